"""The data source as Spark sees it: thin classes around planning, pulling and writing. Imported only where pyspark is.

What runs where: `DataSource`, `partitions`, offsets and `commit` on the driver, `read` and `write` on pickled copies in executors.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from gantrymq.spark.carried import Carried
from gantrymq.spark.planning import options as settings
from gantrymq.spark.planning.dividing import QueueRange
from gantrymq.spark.planning.filters import Narrowing
from gantrymq.spark.planning.offsets import Document, OptionError, from_document, marks_of, to_document
from gantrymq.spark.planning.options import AT_LEAST_ONCE
from gantrymq.spark.planning.planner import Planner
from gantrymq.spark.schema import ONLY_AT_LEAST_ONCE, RETAIN_COLUMN, check_projection, check_sink, ddl
from gantrymq.spark.wire import FIRST_FOR_S, RETRY_FOR_S, Metadata, close_all

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from gantrymq.spark.writing.epochs import Half


class QueuePartition(InputPartition):  # type: ignore[misc]
    """One message queue's range."""

    def __init__(self, queue_range: QueueRange) -> None:
        super().__init__(queue_range)
        self.queue_range = queue_range


class _Reading(Carried):
    """What batch and stream readers share: both are pickled to the executors."""

    def __init__(self, options: settings.Options, schema: StructType) -> None:
        fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        check_projection(fields, options.columns)
        self._options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of one queue."""
        if not isinstance(partition, QueuePartition):
            if partition.value is not None:
                raise TypeError(f"{partition!r} is no partition of this source: it reads one message queue's range")
            return  # where `partitions` has none to give (empty topics) Spark makes one of its own, of no queue

        from pyspark.sql.pandas.types import to_arrow_schema

        from gantrymq.spark.pulling import read_range

        options = self._options
        schema = to_arrow_schema(self._schema, timezone="UTC")
        yield from read_range(
            partition.queue_range,
            schema,
            options.nameservers,
            options.group,
            options.tags,
            options.fail_on_data_loss,
            options.check_crc,
            options.sql,
            options.columns,
            options.selection,
        )


class GantryReader(_Reading, DataSourceReader):  # type: ignore[misc]
    """Batch read."""

    narrowing: Narrowing | None = None

    def partitions(self) -> list[InputPartition]:
        """One or more per queue that has something to read."""
        return [QueuePartition(queue_range) for queue_range in Planner(self._options).batch(self.narrowing)]


class GantryFilteringReader(GantryReader):
    """Batch read with `pushFilters`: a class of its own, because Spark refuses any reader with this method unless it is set up for it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Read less; Spark still applies every filter itself."""
        self.narrowing = Narrowing()
        self.narrowing.push(filters)
        self._options = self.narrowing.apply(self._options)
        return filters


class GantryStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Streaming read. Lives in one process on the driver as long as its query."""

    def __init__(self, options: settings.Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._planner: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}

    @property
    def _plan(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._options)
        return self._planner

    def initialOffset(self) -> Document:
        """Where a query without a checkpoint begins."""
        return to_document(self._plan.initial())

    def getDefaultReadLimit(self) -> Any:
        """At most `maxOffsetsPerTrigger` messages a batch."""
        rows = self._options.rows_per_trigger
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, Any], limit: Any) -> Document:
        """End of the next batch."""
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        begun = from_document(start)
        end = self._plan.latest(begun, rows_max)
        return to_document(end, self._plan.marks(marks_of(start), begun, end))

    def reportLatestOffset(self) -> Document:
        """The newest offsets, shown in the query's progress."""
        return to_document(self._plan.newest())

    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing beyond what is there now will be read."""
        self._plan.freeze()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """One or more per queue that has something to read."""
        ranges = self._plan.ranges(from_document(start), from_document(end), marks_of(start))
        return [QueuePartition(queue_range) for queue_range in ranges]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing: the offsets are in Spark's checkpoint, and `latestOffset` keeps them for the group where that is wanted."""

    def stop(self) -> None:
        """Close the connections of the driver's process."""
        close_all()


class Written(WriterCommitMessage):  # type: ignore[misc]
    """Result of one task: how many messages the brokers acknowledged; of mode `exactlyOnce` the half messages that they are, and whose."""

    def __init__(self, messages: int, query: str = "", batch: int = 0, halves: Sequence[Half] = ()) -> None:
        self.messages = messages
        self.query = query
        self.batch = batch
        self.halves = list(halves)


class _Writing(Carried):
    def __init__(self, options: settings.Options, schema: StructType, limit_s: float = FIRST_FOR_S) -> None:
        fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        check_sink(fields, bool(options.topics), options.columns)
        named = [name for name, _ in fields]
        timed = [name for name in named if name in ONLY_AT_LEAST_ONCE]
        if timed and options.mode != AT_LEAST_ONCE:
            raise OptionError(
                f"mode is {options.mode!r}, which takes no column {timed[0]!r}: use {AT_LEAST_ONCE}, or leave the column out"
            )
        # Here, on the driver: tasks are patient with a broker that restarts.
        metadata = Metadata(options.nameservers)
        metadata.reach(options.topics, limit_s)
        if RETAIN_COLUMN in named and len(brokers := sorted(metadata.brokers())) > 1:
            raise OptionError(
                f"the column {RETAIN_COLUMN!r} needs a cluster of one broker group, and there are {', '.join(brokers)}: leave it out, or publish what is retained by MQTT"
            )
        self._options = options
        self._job = uuid.uuid4().hex
        """Of a batch write, which has no query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send every row; returns when all are acknowledged. Raises naming the row that was not."""
        from pyspark import TaskContext

        from gantrymq.spark.writing.tasks import Job, send_batches

        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        query, batch = self._epoch(context)
        topic = self._options.topics[0] if self._options.topics else ""
        job = Job(self._options.nameservers, topic, self._options.mode, query, batch, self._options.columns)
        count, halves = send_batches(iterator, job, partition)
        return Written(count, query, batch, halves)

    def _epoch(self, context: Any) -> tuple[str, int]:
        return self._job, 0

    def _decide(self, messages: Iterable[Any], commit: bool) -> None:
        """Of mode `exactlyOnce`: what the tasks that count have sent. Messages of tasks that failed are None."""
        written = [message for message in messages if isinstance(message, Written) and message.halves]
        if not written:
            return
        from gantrymq.spark.writing.epochs import Epoch

        epoch = Epoch(self._options.nameservers, written[0].query, written[0].batch)
        (epoch.commit if commit else epoch.abort)([half for message in written for half in message.halves])


class GantryWriter(_Writing, DataSourceArrowWriter):  # type: ignore[misc]
    """Batch write."""

    def commit(self, messages: list[Any]) -> None:
        """All tasks have ended well."""
        self._decide(messages, True)

    def abort(self, messages: list[Any]) -> None:
        """A task has failed for good. Without a transaction what was sent stays."""
        self._decide(messages, False)


class GantryStreamWriter(_Writing, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Streaming write. Made anew for each batch, and again for its end."""

    def _epoch(self, context: Any) -> tuple[str, int]:
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if self._options.mode != AT_LEAST_ONCE and not (query and batch):
            raise RuntimeError(
                f"this Spark does not tell its tasks query and batch, which mode {self._options.mode!r} needs"
            )
        return query or "", int(batch or 0)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """All tasks have ended well, in this run or before a driver was lost."""
        self._decide(messages, True)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Also called behind a commit that failed. Without a transaction what was sent stays, and the batch that is repeated sends it again."""
        self._decide(messages, False)


class GantryDataSource(Carried, DataSource):  # type: ignore[misc]
    """`spark.read.format("gantry")`; options and columns: docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """Spark's name of the format."""
        return "gantry"

    def schema(self) -> str:
        """All columns; `.schema(...)` on the reader chooses some."""
        options = settings.parse(self.options)
        return ddl(options.columns, options.include_headers)

    def reader(self, schema: StructType) -> GantryReader:
        """For `spark.read`."""
        options = settings.for_batch(settings.parse(self.options))
        return (GantryFilteringReader if options.push_filters else GantryReader)(options, schema)

    def streamReader(self, schema: StructType) -> GantryStreamReader:
        """For `spark.readStream`."""
        return GantryStreamReader(settings.for_stream(settings.parse(self.options)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> GantryWriter:
        """For `df.write`; mode `overwrite` is refused, a log only grows."""
        if overwrite:
            raise OptionError("mode 'overwrite' cannot be kept by a log; use mode('append')")
        return GantryWriter(settings.for_sink(settings.parse(self.options)), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> GantryStreamWriter:
        """For `df.writeStream`."""
        limit_s = RETRY_FOR_S if has_run(self.options.get("checkpointLocation", "")) else FIRST_FOR_S
        return GantryStreamWriter(settings.for_sink(settings.parse(self.options)), schema, limit_s)


def has_run(checkpoint: str) -> bool:
    """Whether a streaming query has ended a batch before: Spark makes its writer anew for each. True where that cannot be seen from here."""
    place = checkpoint.removeprefix("file://").removeprefix("file:")
    return "://" in place or not place or Path(place, "commits", "0").exists()
