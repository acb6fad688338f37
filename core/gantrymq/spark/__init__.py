"""The PySpark data source, a client of the native pull API: `spark.read.format("gantry")`; see docs/spark.md.

Importing this needs neither pyspark nor pyarrow; using it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gantrymq.spark.local.java import java_home
from gantrymq.spark.local.session import prepare, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gantrymq.client.connecting.routes import MessageQueue
    from gantrymq.spark.local.doctor import Finding

__all__ = ["doctor", "java_home", "lag", "metrics", "prepare", "register", "session"]


def register(spark: SparkSession) -> None:
    """Make `format("gantry")` known to a session by hand, where Spark does not find it by itself."""
    from gantrymq.spark.source import GantryDataSource

    spark.dataSource.register(GantryDataSource)


def lag(progress: Mapping[str, Any]) -> dict[MessageQueue, int]:
    """Messages that each queue has behind what a streaming query has read, from its `lastProgress`."""
    from gantrymq.spark.planning.progress import lag as behind

    return behind(progress)


def metrics(progress: Mapping[str, Any]) -> dict[str, float]:
    """How far a streaming query is behind and what it wrote, from its `lastProgress`, by the names of Spark's Kafka source."""
    from gantrymq.spark.planning.progress import metrics as found

    return found(progress)


def doctor(spark: SparkSession | None = None, nameserver: str = "", topic: str = "") -> list[Finding]:
    """Print what is right and wrong with Java, Python, packages, servers and (of a session) executors; return what is wrong."""
    from gantrymq.spark.local.doctor import doctor as examine

    return examine(spark, nameserver, topic)
