"""Spark Connect: a client without a JVM of its own writes, reads and streams through a Connect server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.client import BlockingAdmin
from interop_tests import guard
from interop_tests.running import Gantry, free_port

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

SERVER = """
import sys
from pyspark.sql import SparkSession
from gantrymq.spark import prepare

prepare()
settings = {
    "ui.enabled": "false", "driver.host": "127.0.0.1", "driver.bindAddress": "127.0.0.1",
    "plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "connect.grpc.binding.address": "127.0.0.1", "connect.grpc.binding.port": sys.argv[1],
}
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config("spark." + name, value)
session = builder.getOrCreate()
print("up", flush=True)
sys.stdin.read()
session.stop()
"""
CLIENT = """
import sys
from pyspark.sql import SparkSession

port, nameserver, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
print(type(spark).__module__)
first, second = ({"nameserver": nameserver, "topic": topic} for topic in ("connect", "connected"))
spark.range(5).selectExpr("concat('b', id) as body").write.format("gantry").options(**first).mode("append").save()
print(sorted(bytes(row.body) for row in spark.read.format("gantry").options(**first).load().collect()))
rows = spark.readStream.format("gantry").options(**first, startingOffsets="earliest").load().selectExpr("body", "'hot' as tag")
query = rows.writeStream.format("gantry").options(**second, checkpointLocation=checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
print(query.exception(), spark.read.format("gantry").options(**second, tags="hot").load().count())
try:
    spark.read.format("gantry").options(nameserver=nameserver, topik="x").load().count()
except Exception as error:
    print("option 'topik'" in str(error))
"""


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder), **guard.mark()}


@pytest.fixture
def port(tmp_path: Path) -> Iterator[str]:
    """Of a Connect server."""
    number = str(free_port())
    log = tmp_path / "server.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, number], env=environment(tmp_path), cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"up\n", log.read_text()[-5000:]
            yield number
            process.stdin.close()
            process.wait(60)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def test_source_and_sink_over_connect(own_server: Gantry, port: str, tmp_path: Path) -> None:
    nameserver = own_server.doors["nameserver"]
    with BlockingAdmin(nameserver) as admin:
        for topic in ("connect", "connected"):
            admin.create_topic(topic, queues=2)
    words = [sys.executable, "-c", CLIENT, port, nameserver, str(tmp_path / "checkpoint")]
    done = subprocess.run(words, env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.splitlines() == [
        "pyspark.sql.connect.session",
        "[b'b0', b'b1', b'b2', b'b3', b'b4']",
        "None 5",
        "True",
    ]
