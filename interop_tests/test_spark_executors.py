"""Executors of a cluster on this machine whose Python lacks the package: what a job that reads, and one that writes, is told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import gantrymq
from gantrymq import __version__
from gantrymq.client import BlockingAdmin, BlockingProducer, OutMessage
from interop_tests import guard
from interop_tests.running import Gantry

pyspark = pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PYTHON = f"""#!/bin/sh
# The driver's workers have the package, those of executors only what is installed: nothing of this checkout.
if [ "$BARE" ]; then
  export PYTHONPATH="$PYTHONPATH:{sysconfig.get_path("purelib")}"
  exec {sys.executable} -S "$@"
fi
exec {sys.executable} "$@"
"""
JOB = """
import sys
from pyspark.sql import SparkSession
from gantrymq.spark import prepare, register

nameserver, bare, package = sys.argv[1:]
prepare()
builder = SparkSession.builder.master("local-cluster[1,1,768]").config("spark.executorEnv.BARE", bare)
for name, value in {"ui.enabled": "false", "driver.host": "127.0.0.1", "driver.bindAddress": "127.0.0.1", "executor.memory": "768m"}.items():
    builder = builder.config("spark." + name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
if package:  # as --py-files
    spark.sparkContext.addPyFile(package)
    register(spark)
options = {"nameserver": nameserver, "topic": "executors"}
for what in (
    lambda: spark.read.format("gantry").options(**options).load().count(),
    lambda: spark.range(3).selectExpr("string(id) as body").write.format("gantry").options(**options).mode("append").save(),
):
    try:
        print("done", what())
    except Exception as error:
        print("failed", " ".join(str(error).split()))
"""


def told(folder: Path, nameserver: str, bare: str, package: str = "") -> list[str]:
    """What the job prints of its read and its write."""
    folder.mkdir()
    program, python = folder / "job.py", folder / "python"
    program.write_text(JOB)
    python.write_text(PYTHON)
    python.chmod(0o755)
    home = folder / "spark"  # its workers write into Spark's own folder
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        (home / path.name).symlink_to(path)
    # Spark takes the driver's Python for sources, on executors too, where that is set.
    environment = {
        **os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), "TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_HOME": str(home), **guard.mark(),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(program), nameserver, bare, package],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout.splitlines()


def test_an_executor_without_the_package_is_told_what_to_do(own_server: Gantry, tmp_path: Path) -> None:
    nameserver = own_server.doors["nameserver"]
    with BlockingAdmin(nameserver) as admin:
        admin.create_topic("executors", queues=1)
    with BlockingProducer(nameserver) as producer:
        producer.send_many([OutMessage("executors", b"x")])
    assert told(tmp_path / "with", nameserver, "") == ["done 1", "done None"]
    texts = told(tmp_path / "without", nameserver, "1")
    assert len(texts) == 2
    for text in texts:
        assert text.startswith("failed")
        assert "ImportError: the executor on " in text
        assert "does not have the package gantrymq: No module named 'gantrymq'" in text
        assert f"pip install 'gantrymq[spark]=={__version__}'" in text


def test_a_zip_of_the_package_is_enough(own_server: Gantry, tmp_path: Path) -> None:
    """`spark-submit --py-files`: executors have what it needs, but not the package."""
    nameserver = own_server.doors["nameserver"]
    with BlockingAdmin(nameserver) as admin:
        admin.create_topic("executors", queues=1)
    package = shutil.make_archive(str(tmp_path / "package"), "zip", Path(gantrymq.__file__).parents[1], "gantrymq")
    assert told(tmp_path / "zip", nameserver, "1", package) == ["done 0", "done None"]
    assert told(tmp_path / "again", nameserver, "1", package) == ["done 3", "done None"]
