"""The Spark side, a process of its own: `python -m interop_tests.demo.spark_job NAMESERVER DIRECTORY`.

Query one reads the union of all topics and reports (id, SHA-256 of the body); query two aggregates the telemetry per device and window
and writes its alerts back to a topic. Reports are JSON lines on standard output; the end of standard input stops the queries.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from gantrymq.spark.local.session import session
from interop_tests.demo.alerts import DEVICES, PEAK, UNIT, WATERMARK_S, WINDOW_S

TOPICS = "telemetry,flights,pushes"
UNION_TRIGGER = "500 milliseconds"
ALERTS_TRIGGER = "2 seconds"
POLL_S = 0.5
RESTART_S = 15.0
"""Until the process that was too late is gone: beside it the next one would be later still."""
RESTARTS_MAX = 20
"""Spark gives the Python process of a stream's source ten seconds to start, whatever else the machine does; then a query goes on from its checkpoint."""
BODY_CHARACTERS = 200
TELEMETRY = "id STRING, device STRING, metric STRING, unit STRING, value DOUBLE, at DOUBLE"


def say(kind: str, **fields: Any) -> None:
    # The real standard output: the queries' own prints go to standard error.
    sys.__stdout__.write(json.dumps({"kind": kind, **fields}) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def stream(spark: SparkSession, nameserver: str, topics: str) -> DataFrame:
    reader = spark.readStream.format("gantry").option("nameserver", nameserver).option("topic", topics)
    return reader.option("startingOffsets", "earliest").load()


def report(batch: DataFrame, _batch_id: int) -> None:
    """One batch to the parent. Rows are whole, without the body, of which there is the digest and the beginning."""
    text = F.col("body").cast("string")
    rows = batch.select(
        F.get_json_object(text, "$.id").alias("id"),
        F.get_json_object(text, "$.at").cast("double").alias("sent_at"),
        F.sha2("body", 256).alias("sha256"),
        "topic", "broker", "queue", "offset", "tag", "keys",
        F.col("storeTimestamp").cast("string").alias("storeTimestamp"),
        "properties",
        F.substring(text, 1, BODY_CHARACTERS).alias("body"),
    ).collect()  # fmt: skip
    if rows:
        say("rows", at=time.time(), rows=[row.asDict() for row in rows])


def union_query(spark: SparkSession, nameserver: str, directory: Path) -> StreamingQuery:
    frame = stream(spark, nameserver, TOPICS)
    writer = frame.writeStream.queryName("union").foreachBatch(report)
    return writer.option("checkpointLocation", str(directory / "union")).trigger(processingTime=UNION_TRIGGER).start()


def alerts_query(spark: SparkSession, nameserver: str, directory: Path) -> StreamingQuery:
    telemetry = stream(spark, nameserver, "telemetry").select(
        F.from_json(F.col("body").cast("string"), TELEMETRY).alias("m")
    )
    peaks = (
        telemetry.select("m.*")
        .withColumn("time", F.timestamp_micros((F.col("at") * 1e6).cast("long")))
        .withWatermark("time", f"{WATERMARK_S} seconds")
        .where((F.col("unit") == UNIT) & F.col("device").startswith(DEVICES))
        .groupBy(F.window("time", f"{WINDOW_S} seconds").alias("w"), "device")
        .agg(F.max("value").alias("peak"), F.size(F.collect_set("id")).alias("messages"))
        .where(F.col("peak") >= PEAK)
    )
    alerts = peaks.select(
        F.to_json(F.struct("device", F.unix_timestamp("w.start").alias("start"), "messages", "peak")).alias("body"),
        F.col("device").alias("tag"),
        F.col("device").alias("keys"),
    )
    writer = alerts.writeStream.queryName("alerts").format("gantry").outputMode("append")
    writer = writer.option("nameserver", nameserver).option("topic", "alerts")
    writer = writer.option("checkpointLocation", str(directory / "alerts"))
    return writer.trigger(processingTime=ALERTS_TRIGGER).start()


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()  # nothing is ever sent: this waits for the parent's word or its end
    ended.set()


def main(nameserver: str, directory: Path) -> None:
    sys.stdout = sys.stderr
    spark = session("gantry-demo", cores=2, quick=True, settings={"spark.local.dir": str(directory / "local")})
    spark.sparkContext.setLogLevel("WARN")
    starts = [partial(start, spark, nameserver, directory) for start in (union_query, alerts_query)]
    queries = [start() for start in starts]
    restarts = RESTARTS_MAX
    say("started", version=spark.version)
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    while not ended.wait(POLL_S):
        for number, query in enumerate(queries):
            error = query.exception()
            if error is not None and "worker failed to connect back" in str(error) and restarts:
                restarts -= 1
                ended.wait(RESTART_S)
                queries[number] = starts[number]()
            elif error is not None:
                say("failed", text=f"query {query.name}: {error}")
                ended.wait()
    for query in queries:
        query.stop()
    spark.stop()
    say("stopped")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
