"""One Spark source and sink, gantry's or Kafka's, measured by the same queries: `spark_cases.py JSON`, which says format, address, topic,
broker_pid, rows, runs and jars. Prints a JSON line per case: most rows a second, least CPU seconds per million rows (Spark, its workers, the broker) of the runs
behind the first, which warms the session up."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gantrymq.spark import session

sys.path.insert(0, str(Path(__file__).parent))
from proc_cpu import tree_cpu

BODY_BYTES = 256
PROJECTIONS = {
    "read": "offset bigint, body binary",
    "stream": "offset bigint, body binary, storeTimestamp timestamp",
}
"""The columns that a query uses, which a user names in `.schema()`; Kafka's source has no such choice."""


class Gantry:
    """Options and columns of `format("gantry")`."""

    body, time = "body", "storeTimestamp"
    name = "gantry"

    def __init__(self, address: str) -> None:
        self._address = address

    def reading(self, reader: Any, case: str, topic: str) -> DataFrame:
        reader = reader.format("gantry").option("nameserver", self._address).option("topic", topic)
        if case in PROJECTIONS:
            reader = reader.schema(PROJECTIONS[case])
        return reader.option("startingOffsets", "earliest").load()

    def writing(self, rows: DataFrame, topic: str, mode: str) -> Any:
        shaped = rows.select("body", "tag", "keys", F.create_map(*_pairs()).alias("properties"))
        writer = shaped.write.format("gantry").option("nameserver", self._address).option("topic", topic)
        return writer.option("mode", mode).mode("append")


class Kafka:
    """Those of `format("kafka")`: the tag is a header like the properties, the keys are the key."""

    body, time = "value", "timestamp"
    name = "kafka"

    def __init__(self, address: str) -> None:
        self._address = address

    def reading(self, reader: Any, case: str, topic: str) -> DataFrame:
        reader = reader.format("kafka").option("kafka.bootstrap.servers", self._address).option("subscribe", topic)
        return reader.option("includeHeaders", str(case == "all").lower()).option("startingOffsets", "earliest").load()

    def writing(self, rows: DataFrame, topic: str, mode: str) -> Any:
        pairs = [F.lit("tag"), F.col("tag"), *_pairs()]
        headers = [
            F.struct(name.alias("key"), value.cast("binary").alias("value"))
            for name, value in zip(pairs[::2], pairs[1::2], strict=True)
        ]
        shaped = rows.select(
            F.col("body").alias("value"), F.col("keys").alias("key"), F.array(*headers).alias("headers")
        )
        writer = shaped.write.format("kafka").option("kafka.bootstrap.servers", self._address)
        return writer.option("topic", topic).mode("append")


def _pairs() -> list[Any]:
    """Names and values of three properties that differ from row to row."""
    number = F.col("id")
    return [
        F.lit("site"), F.concat(F.lit("site-"), (number % 97).cast("string")),
        F.lit("line"), F.concat(F.lit("line-"), (number % 13).cast("string")),
        F.lit("sequence"), number.cast("string"),
    ]  # fmt: skip


def rows_to_write(spark: SparkSession, count: int) -> DataFrame:
    """Bodies, tags and keys that differ, in two partitions."""
    number = F.col("id")
    body = F.rpad(F.concat(F.sha2(number.cast("string"), 256), F.lit("-")), BODY_BYTES, "reading ").cast("binary")
    tag = F.concat(F.lit("kind-"), (number % 7).cast("string"))
    return spark.range(0, count, 1, 2).select(
        "id", body.alias("body"), tag.alias("tag"), F.concat(F.lit("k"), number).alias("keys")
    )


def streamed(frame: DataFrame, wire: Gantry | Kafka, count: int) -> int:
    """The whole topic by AvailableNow, in four batches, into a windowed count."""
    folder = tempfile.mkdtemp(prefix="spark-cases-")
    try:
        counts = frame.groupBy(F.window(wire.time, "10 seconds")).agg(F.count("*"), F.sum(F.length(wire.body)))
        writer = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", folder)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(progress["numInputRows"] for progress in query.recentProgress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cases(spark: SparkSession, wire: Gantry | Kafka, given: dict[str, Any]) -> dict[str, Callable[[], int]]:
    """Each returns its rows."""
    count, topic = given["rows"], given["topic"]

    def read(case: str) -> int:
        frame = wire.reading(spark.read, case, topic)
        row = frame.agg(F.sum(F.length(wire.body)), F.max("offset"), F.count("*").alias("n")).collect()[0]
        return int(row["n"])

    def stream() -> int:
        reader = spark.readStream.option("maxOffsetsPerTrigger", str(count // 4))
        return streamed(wire.reading(reader, "stream", topic), wire, count)

    def write(mode: str) -> int:
        wire.writing(rows_to_write(spark, count), f"{topic}-{mode}", mode).save()
        return count

    wire.writing(rows_to_write(spark, count), topic, "atLeastOnce").save()
    found: dict[str, Callable[[], int]] = {
        "read": lambda: read("read"), "all": lambda: read("all"), "stream": stream, "write": lambda: write("atLeastOnce"),
    }  # fmt: skip
    if wire.name == "gantry":
        found["exactly"] = lambda: write("exactlyOnce")
    return found


def main() -> None:
    given = json.loads(sys.argv[1])
    wire = Gantry(given["address"]) if given["format"] == "gantry" else Kafka(given["address"])
    settings = {"spark.driver.extraClassPath": f"{given['jars']}/*"} if given["jars"] else {}
    spark = session("bench", cores=2, settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    roots = [os.getpid(), given["broker_pid"]]
    for name, case in cases(spark, wire, given).items():
        figures = []
        for _ in range(given["runs"] + 1):
            cpu, begun = tree_cpu(roots), time.perf_counter()
            rows = case()
            figures.append((rows / (time.perf_counter() - begun), (tree_cpu(roots) - cpu) / rows * 1e6))
            if rows != given["rows"]:
                sys.exit(f"{name}: {rows} rows instead of {given['rows']}")
        best = {
            "rows_per_s": round(max(rate for rate, _ in figures[1:])),
            "cpu_s": round(min(cpu for _, cpu in figures[1:]), 2),
        }
        print(json.dumps({"case": name, **best}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
