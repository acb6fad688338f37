"""The Spark side, a process of its own: `python -m interop_tests.demo.spark_job NAMESERVER DIRECTORY`.

One query reads the union of all topics and reports (id, SHA-256 of the body); beside it runs the pipeline that `gantry pipeline init` writes: the
telemetry to a table of windows, to alerts and to dead letters. Reports are JSON lines on standard output; the end of standard input stops the queries.
"""

from __future__ import annotations

import json
import os
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
from gantrymq.spark.pipeline.project.telemetry import queries
from gantrymq.spark.pipeline.project.telemetry.ends import Topics
from gantrymq.spark.pipeline.project.telemetry.settings import Settings
from interop_tests.demo.alerts import WATERMARK_S, WINDOW_S, devices
from interop_tests.demo.consumers import ALERTS, REJECTED

TOPICS = "telemetry,flights,pushes"
UNION_TRIGGER = "500 milliseconds"
PIPELINE_TRIGGER = "2 seconds"
BODY_CHARACTERS = 200


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


def settings_of(nameserver: str, directory: Path) -> Settings:
    """The pipeline that `gantry pipeline init` writes, with the demonstration's topics and alarms."""
    reference = directory / "devices.csv"
    reference.write_text(devices(os.cpu_count() or 1))
    return Settings(
        name="demo",
        nameserver=nameserver,
        topic="telemetry",
        alerts_topic=ALERTS,
        rejected_topic=REJECTED,
        devices=str(reference),
        output=str(directory / "out"),
        window=f"{WINDOW_S} seconds",
        watermark=f"{WATERMARK_S} seconds",
        trigger=PIPELINE_TRIGGER,
    )


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()  # nothing is ever sent: this waits for the parent's word or its end
    ended.set()


def main(nameserver: str, directory: Path) -> None:
    sys.stdout = sys.stderr
    spark = session("gantry-demo", cores=2, quick=True, settings={"spark.local.dir": str(directory / "local")})
    spark.sparkContext.setLogLevel("WARN")
    settings = settings_of(nameserver, directory)
    ends = Topics(spark, settings)
    trigger = {"processingTime": settings.trigger}
    starts = {name: partial(queries.start, spark, settings, ends, name, trigger) for name in queries.QUERIES}
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    told = False

    def over() -> bool:
        nonlocal told
        if not told:
            say("started", version=spark.version)
            told = True
        return ended.is_set()

    try:
        queries.attend({"union": partial(union_query, spark, nameserver, directory), **starts}, settings, over)
    except Exception as error:  # the parent decides what that means
        say("failed", text=str(error))
        ended.wait()
    spark.stop()
    say("stopped")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
