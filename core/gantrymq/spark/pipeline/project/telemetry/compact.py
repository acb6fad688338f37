"""One file for each day that has ended: a stream writes a small one with every batch. `./run compact`, as often as you like."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from gantrymq.spark import session

from .settings import Settings, load


def ended(table: DataFrame) -> list[str]:
    """All days but the newest: when a window of a day is written, the watermark has passed everything of the days before."""
    days = sorted(row.day.isoformat() for row in table.select("day").distinct().collect())
    return days[:-1]


def compact(spark: SparkSession, settings: Settings) -> list[str]:
    """Write each day that has ended, and is not there yet, to `compacted/day=...` of the output folder; these days. The table stays as it is."""
    table = spark.read.parquet(settings.tables)
    written = []
    for day in ended(table):
        folder = Path(settings.output) / "compacted" / f"day={day}"
        if (folder / "_SUCCESS").exists():
            continue
        rows = table.where(table.day == day).drop("day").coalesce(1).sortWithinPartitions("device", "metric", "start")
        rows.write.mode("overwrite").parquet(str(folder))
        written.append(day)
    return written


def main() -> None:
    settings = load()
    spark = session(f"{settings.name}-compact")
    spark.sparkContext.setLogLevel("ERROR")
    try:
        print("compacted:", ", ".join(compact(spark, settings)) or "no day that has ended and was not there yet")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
