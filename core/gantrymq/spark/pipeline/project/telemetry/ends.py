"""Where messages come from and go to: topics of a server, or files, for a run without one."""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from .settings import Settings

COLUMNS = "topic STRING, queue INT, offset BIGINT, body BINARY, storeTimestamp TIMESTAMP"
"""What is needed of the source's columns: the others are not even decoded."""


class Ends(Protocol):
    """Both have these."""

    def messages(self) -> DataFrame: ...

    def writer(self, rows: DataFrame, topic: str) -> DataStreamWriter: ...


class Topics:
    """A GantryMQ (or RocketMQ) server's."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark = spark
        self._settings = settings

    def messages(self) -> DataFrame:
        """Everything that was ever sent to the topic, then what comes."""
        reader = self._spark.readStream.format("gantry").schema(COLUMNS)
        reader = reader.option("nameserver", self._settings.nameserver).option("topic", self._settings.topic)
        return reader.option("startingOffsets", "earliest").load()

    def writer(self, rows: DataFrame, topic: str) -> DataStreamWriter:
        """Exactly once: a batch that is repeated after a crash shows its rows once."""
        writer = rows.writeStream.format("gantry").option("nameserver", self._settings.nameserver)
        return writer.option("topic", topic).option("mode", "exactlyOnce")


class Files:
    """Recorded messages, a file for each batch, and folders in place of the topics that are written."""

    def __init__(self, spark: SparkSession, settings: Settings, recorded: str) -> None:
        self._spark = spark
        self._settings = settings
        self._recorded = recorded

    def messages(self) -> DataFrame:
        """Lines of JSON: topic, queue, offset, body (text). They count as stored when their file was written."""
        reader = self._spark.readStream.schema("topic STRING, queue INT, offset BIGINT, body STRING")
        rows = reader.option("maxFilesPerTrigger", "1").json(self._recorded)
        stored = F.col("_metadata.file_modification_time").alias("storeTimestamp")
        return rows.select("topic", "queue", "offset", F.col("body").cast("binary").alias("body"), stored)

    def writer(self, rows: DataFrame, topic: str) -> DataStreamWriter:
        """Lines of JSON, one file for each batch."""
        text = rows.withColumn("body", F.col("body").cast("string")).coalesce(1)
        return text.writeStream.format("json").option("path", f"{self._settings.output}/{topic}")
