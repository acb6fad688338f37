"""What becomes of the messages: functions from DataFrame to DataFrame, the same for streams, batches and tests. No Python runs per row."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

RECORD = "id STRING, device STRING, metric STRING, unit STRING, value DOUBLE, at DOUBLE"
"""The JSON of one reading; `at`: when it was taken, in seconds since 1970."""
DEVICES = "device STRING, metric STRING, site STRING, alarm_above DOUBLE"
"""The reference data: a device without a row here, or without `alarm_above`, raises no alarm."""


def parsed(messages: DataFrame) -> DataFrame:
    """Messages (`body`, `topic`, `queue`, `offset`) with the fields of their reading, and `reason`: null, or why there is none."""
    rows = messages.withColumn("m", F.from_json(F.col("body").cast("string"), RECORD))
    m = {name: F.col(f"m.{name}") for name in ("id", "device", "metric", "value", "at")}
    nothing = F.coalesce(*[column.cast("string") for column in m.values()]).isNull()
    reason = (
        F.when(nothing, "not the JSON of a reading")
        .when(m["id"].isNull(), "no id")
        .when(m["device"].isNull() | m["metric"].isNull(), "no device or no metric")
        .when(m["value"].isNull() | F.isnan(m["value"]), "value is not a number")
        .when(m["at"].isNull() | (m["at"] <= 0), "no time")
    )
    time = F.timestamp_micros((m["at"] * 1_000_000).cast("long"))
    return rows.select("body", "topic", "queue", "offset", "m.*", time.alias("time"), reason.alias("reason"))


def readings(rows: DataFrame) -> DataFrame:
    """Of `parsed`, what is sound."""
    return rows.where("reason IS NULL").select("id", "device", "metric", "unit", "value", "time")


def rejected(rows: DataFrame) -> DataFrame:
    """Of `parsed`, the dead letters: the body as it came, with the reason and its place as properties."""
    place = F.concat_ws("/", "topic", F.col("queue").cast("string"), F.col("offset").cast("string"))
    properties = F.create_map(F.lit("reason"), F.col("reason"), F.lit("from"), place)
    return rows.where("reason IS NOT NULL").select(
        F.coalesce("body", F.lit(b"")).alias("body"), F.lit("rejected").alias("tag"), properties.alias("properties")
    )


def windows(rows: DataFrame, window: str, watermark: str, streaming: bool = True) -> DataFrame:
    """Readings by device, metric and window of their own time. One that came twice counts once; one that is later than the watermark is left out.
    `streaming`: False for a batch. (To ask `rows` would be an analysis, which declarative pipelines forbid.)"""
    timed = rows.withWatermark("time", watermark)
    once = timed.dropDuplicatesWithinWatermark(["id"]) if streaming else timed.dropDuplicates(["id"])
    return (
        once.groupBy(F.window("time", window).alias("w"), "device", "metric", "unit")
        .agg(
            F.count("*").alias("readings"),
            F.min("value").alias("lowest"),
            F.avg("value").alias("mean"),
            F.max("value").alias("highest"),
        )
        .select("device", "metric", "unit", F.col("w.start").alias("start"), "readings", "lowest", "mean", "highest")
    )


def enriched(rows: DataFrame, devices: DataFrame) -> DataFrame:
    """Windows with what the reference data says of their device."""
    return rows.join(F.broadcast(devices), ["device", "metric"], "left")


def by_day(rows: DataFrame) -> DataFrame:
    """Windows as they are stored: with the day, by which the table is partitioned; one file for each batch and day."""
    return rows.select("*", F.to_date("start").alias("day")).coalesce(1)


def alerts(rows: DataFrame) -> DataFrame:
    """Windows above their alarm, as messages: JSON with the device as tag and key."""
    high = rows.where(F.col("highest") > F.col("alarm_above"))
    start = F.unix_timestamp("start").alias("start")
    body = F.to_json(F.struct("device", "metric", start, "readings", "highest", "alarm_above", "site"))
    return high.select(body.alias("body"), F.col("device").alias("tag"), F.col("device").alias("keys"))
