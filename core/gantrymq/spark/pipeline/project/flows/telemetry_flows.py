"""The same pipeline for Spark's declarative pipelines (4.1 and newer): `spark-pipelines run`, or `./run declared`."""

from __future__ import annotations

import os
import sys

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

sys.path.insert(0, os.getcwd())  # spark-pipelines runs in the folder of its spec

from telemetry import queries, transform
from telemetry.ends import Topics
from telemetry.settings import load

settings = load()


def session() -> SparkSession:
    spark = SparkSession.getActiveSession()
    assert spark is not None, "spark-pipelines makes the session"
    return spark


def sink(name: str, topic: str) -> None:
    options = {"nameserver": settings.nameserver, "topic": topic, "mode": "exactlyOnce"}
    dp.create_sink(name, "gantry", options)


@dp.temporary_view
def parsed() -> DataFrame:
    return transform.parsed(Topics(session(), settings).messages())


@dp.temporary_view
def summary() -> DataFrame:
    # From the topic, not from `parsed`: Spark looks at once at what duplicates are dropped from, when views are no tables yet.
    rows = transform.readings(transform.parsed(Topics(session(), settings).messages()))
    found = transform.windows(rows, settings.window, settings.watermark)
    return transform.enriched(found, queries.devices(session(), settings))


@dp.table(partition_cols=["day"], format="parquet")
def windows() -> DataFrame:
    return transform.by_day(session().readStream.table("summary"))


sink("alerts", settings.alerts_topic)
sink("rejected", settings.rejected_topic)


@dp.append_flow(target="alerts")
def alerts() -> DataFrame:
    return transform.alerts(session().readStream.table("summary"))


@dp.append_flow(target="rejected")
def rejected() -> DataFrame:
    return transform.rejected(session().readStream.table("parsed"))
