"""The pipeline on a server's topics: `spark-submit job.py`, or `./run stream`. Ends with what runs it, or with --once at the end of the topic."""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import SparkSession

from gantrymq.spark import prepare
from telemetry import dashboard, queries
from telemetry.ends import Topics
from telemetry.settings import HERE, load

SPARKS_OWN_PARTITIONS = "200"
"""Unless somebody has chosen another number: so many tasks for each batch of the windows, however few rows it has."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, default=HERE / "settings.toml")
    parser.add_argument("--once", action="store_true", help="read what is there, then end")
    given = parser.parse_args()
    settings = load(given.settings)
    prepare()
    spark = SparkSession.builder.appName(settings.name).config("spark.sql.session.timeZone", "UTC").getOrCreate()
    if spark.conf.get("spark.sql.shuffle.partitions") == SPARKS_OWN_PARTITIONS:
        spark.conf.set("spark.sql.shuffle.partitions", str(settings.partitions))
    spark.sparkContext.setLogLevel("WARN")
    trigger = {"availableNow": True} if given.once else {"processingTime": settings.trigger}
    try:
        queries.run(spark, settings, Topics(spark, settings), trigger, ended=lambda: False)
    finally:
        dashboard.draw(settings)
        spark.stop()


if __name__ == "__main__":
    main()
