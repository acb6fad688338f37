"""A local SparkSession that starts where this Python runs, with settings for one machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from gantrymq.spark.local.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
"""No web UI, nothing listens beyond this machine."""

QUICK_SETTINGS: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Nothing is compiled for long: half the time for tests of small queries, slower for large ones."""


def prepare() -> None:
    """Set what Spark reads from the environment, unless it is set: PYSPARK_PYTHON (this Python: its workers would take `python3` from PATH and not
    find the packages), JAVA_HOME where the machine has no Java for Spark. Raises `java.JavaMissingError`."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)


@contextmanager
def quick_java(quick: bool) -> Iterator[None]:
    """A JVM that starts here is a quick one, unless JDK_JAVA_OPTIONS is set; other programs of this process get theirs as they want them."""
    ours = quick and "JDK_JAVA_OPTIONS" not in os.environ
    if ours:
        os.environ["JDK_JAVA_OPTIONS"] = QUICK_JAVA
    try:
        yield
    finally:
        if ours:
            del os.environ["JDK_JAVA_OPTIONS"]


def session(
    name: str = "gantrymq", cores: int = 0, settings: Mapping[str, str] | None = None, quick: bool = False
) -> SparkSession:
    """A local session; Spark finds format `gantry` by itself (pyspark_gantry). `cores`: 0 takes all. `quick`: for tests of small queries."""
    prepare()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).master(f"local[{cores or '*'}]")
    chosen = {**LOCAL_SETTINGS, "spark.sql.shuffle.partitions": str(cores or os.cpu_count() or 1)}
    for key, value in {**chosen, **(QUICK_SETTINGS if quick else {}), **(settings or {})}.items():
        builder = builder.config(key, value)
    with quick_java(quick):
        spark: SparkSession = builder.getOrCreate()
    return spark
