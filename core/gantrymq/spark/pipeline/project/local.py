"""The pipeline without a server: replays data/sample.jsonl from files and shows what came out. `./run local`."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from gantrymq.spark import session
from telemetry import dashboard, queries
from telemetry.ends import Files
from telemetry.settings import HERE, Settings, load

BATCHES = 4


def replay_files(sample: Path, folder: Path) -> int:
    """The sample in pieces, each a batch; how many messages. Spark reads files in the order of their times, which are told apart here."""
    lines = sample.read_text().splitlines(keepends=True)
    folder.mkdir(parents=True)
    begun = time.time()
    for batch in range(BATCHES):
        piece = lines[batch * len(lines) // BATCHES : (batch + 1) * len(lines) // BATCHES]
        path = folder / f"{batch:03d}.jsonl"
        path.write_text("".join(piece))
        os.utime(path, (begun + batch * 0.1, begun + batch * 0.1))
    return len(lines)


def show(spark: SparkSession, settings: Settings) -> None:
    """What was written, as tables."""
    table = spark.read.parquet(settings.tables)
    print("Windows by device:")
    highest = F.round(F.max("highest"), 1).alias("highest")
    table.groupBy("day", "device", "metric").agg(
        F.count("*").alias("windows"), F.sum("readings").alias("readings"), highest
    ).orderBy("device", "metric").show(truncate=False)
    print("Alerts, the first of them:")
    spark.read.text(f"{settings.output}/{settings.alerts_topic}").show(3, truncate=False)
    print("Dead letters by reason:")
    letters = spark.read.json(f"{settings.output}/{settings.rejected_topic}")
    letters.groupBy(F.col("properties.reason").alias("reason")).count().orderBy("reason").show(truncate=False)


def main() -> None:
    settings = load()
    output = Path(settings.output)
    shutil.rmtree(output, ignore_errors=True)
    spark = session(settings.name, cores=2, quick=True)
    spark.sparkContext.setLogLevel("ERROR")
    count = replay_files(HERE / "data" / "sample.jsonl", output / "recorded")
    print(f"Replaying {count} recorded messages in {BATCHES} batches ...", flush=True)
    try:
        ends = Files(spark, settings, str(output / "recorded"))
        queries.run(spark, settings, ends, {"availableNow": True}, ended=lambda: False)
        show(spark, settings)
    finally:
        spark.stop()
    for path in dashboard.draw(settings):
        print(f"Dashboard: {path}")


if __name__ == "__main__":
    main()
