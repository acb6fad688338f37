"""The three streaming queries, and what is written down of their progress."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from gantrymq.spark import lag

from . import transform
from .ends import Ends
from .settings import Settings

WINDOWS, ALERTS, REJECTED = QUERIES = ("windows", "alerts", "rejected")
POLL_S = 0.5
BEGUN_S = 30.0
RESTART_S = 15.0
"""Before a query that failed is started again: what was too slow for it may have passed by then."""


def devices(spark: SparkSession, settings: Settings) -> DataFrame:
    """The reference data; read again by each batch, so a new file counts from the next batch on."""
    return spark.read.schema(transform.DEVICES).option("header", "true").csv(settings.devices)


def writers(spark: SparkSession, settings: Settings, ends: Ends) -> dict[str, DataStreamWriter]:
    """Each query, ready but for its trigger."""
    waited = F.unix_millis(F.current_timestamp()) - F.unix_millis("storeTimestamp")
    messages = ends.messages().observe("delay", F.avg(waited).alias("mean_ms"), F.max(waited).alias("max_ms"))
    rows = transform.parsed(messages)
    found = transform.windows(transform.readings(rows), settings.window, settings.watermark)
    summary = transform.enriched(found, devices(spark, settings))
    table = transform.by_day(summary).writeStream.format("parquet").partitionBy("day").option("path", settings.tables)
    return {
        WINDOWS: table,
        ALERTS: ends.writer(transform.alerts(summary), settings.alerts_topic),
        REJECTED: ends.writer(transform.rejected(rows), settings.rejected_topic),
    }


def start(spark: SparkSession, settings: Settings, ends: Ends, name: str, trigger: dict[str, Any]) -> StreamingQuery:
    """Start one query where its checkpoint is, or at the beginning. `trigger`: arguments of DataStreamWriter.trigger."""
    writer = writers(spark, settings, ends)[name].queryName(f"{settings.name}-{name}").outputMode("append")
    return writer.option("checkpointLocation", settings.checkpoint(name)).trigger(**trigger).start()


class Progress:
    """A line of JSON for each batch of each query, appended to `progress.jsonl` of the output folder."""

    def __init__(self, settings: Settings) -> None:
        self._path = Path(settings.output) / "progress.jsonl"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._seen: dict[str, tuple[str, int]] = {}

    def note(self, name: str, query: StreamingQuery) -> None:
        """Write down the batches that are new."""
        lines = []
        for progress in query.recentProgress:
            document = json.loads(progress.json)
            batch = (document["runId"], document["batchId"])
            seen = self._seen.get(name, ("", -1))
            if seen[0] == batch[0] and batch[1] <= seen[1]:
                continue
            self._seen[name] = batch
            lines.append(json.dumps(line_of(name, document)) + "\n")
        if lines:
            with self._path.open("a") as file:
                file.writelines(lines)


def line_of(name: str, progress: dict[str, Any]) -> dict[str, Any]:
    """What the dashboard needs of one batch. `lag`: messages of the topic that were not read yet, null where files are replayed;
    `late`: readings that the watermark left out."""
    behind = lag(progress)
    delay = progress.get("observedMetrics", {}).get("delay", {})
    return {
        "query": name,
        "batch": progress["batchId"],
        "at": progress["timestamp"],
        "rows": progress["numInputRows"],
        "rows_per_s": progress.get("processedRowsPerSecond") or 0.0,
        "batch_ms": progress["durationMs"].get("triggerExecution", 0),
        "waited_ms": delay.get("mean_ms"),
        "lag": sum(behind.values()) if behind else None,
        "late": sum(state.get("numRowsDroppedByWatermark", 0) for state in progress.get("stateOperators", ())),
    }


def begun(query: StreamingQuery) -> StreamingQuery:
    """The query when it has done something, or after a while: queries that start all at once are in each other's way."""
    end = time.monotonic() + BEGUN_S
    while query.isActive and not query.recentProgress and time.monotonic() < end:
        time.sleep(POLL_S)
    return query


def attend(starts: dict[str, Callable[[], StreamingQuery]], settings: Settings, ended: Callable[[], bool]) -> None:
    """Run the queries until `ended` or until each has come to its end by itself. One that fails goes on from its checkpoint after a while;
    raises its error when that has happened `restarts_max` times."""
    progress = Progress(settings)
    queries: dict[str, StreamingQuery] = {}
    restarts = 0
    try:
        for name, begin in starts.items():
            queries[name] = begun(begin())
        while not ended():
            for name, query in queries.items():
                progress.note(name, query)
                error = query.exception()
                if error is None:
                    continue
                restarts += 1
                if restarts > settings.restarts_max:
                    raise error
                print(f"query {name} failed, it goes on in {RESTART_S:.0f} s: {str(error).strip()}", flush=True)
                time.sleep(RESTART_S)
                queries[name] = begun(starts[name]())
            if not any(query.isActive or query.exception() for query in queries.values()):
                break
            time.sleep(POLL_S)
        for name, query in queries.items():
            progress.note(name, query)
    finally:
        for query in queries.values():
            query.stop()


def run(
    spark: SparkSession, settings: Settings, ends: Ends, trigger: dict[str, Any], ended: Callable[[], bool]
) -> None:
    """All three."""
    attend({name: partial(start, spark, settings, ends, name, trigger) for name in QUERIES}, settings, ended)
