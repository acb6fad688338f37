"""Rows to messages: the sink's part that runs in the executors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from gantrymq.client import BlockingProducer, OutMessage, PartialSendError
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW: Final = 512
"""Messages without an acknowledgement per task."""
SLICE: Final = 8192
"""Rows that are Python objects at a time: Spark's own batches may be of any size."""
TIMEOUT_S: Final = 10.0
RETRIES: Final = 5
"""More patient than an application's producer: a broker that restarts must not fail a long job."""

NOT_WRITTEN: Final = (props.SYSTEM_NAMES - {props.SHARDING_KEY}) | {
    props.EXCHANGE, props.ORIGIN, props.AMQP_HEADER, props.AMQP_REST,
}  # fmt: skip
"""Pairs of the column `properties` that are left out: they belong to the record that a row was read from. Tag and keys have columns."""

_producers: dict[tuple[int, str], BlockingProducer] = {}


class RowError(RuntimeError):
    """A row that could not be sent; the text names partition, row and topic."""


class _BadRow(Exception):
    """`row`: its number in the batch."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


def producer_of(nameserver: str) -> BlockingProducer:
    """This process's producer: Spark uses a Python worker again for the next task. A forked worker makes its own."""
    key = os.getpid(), nameserver
    found = _producers.get(key)
    if found is None:
        for other in [other for other in _producers if other[0] != key[0]]:
            del _producers[other]
        found = _producers[key] = BlockingProducer(
            nameserver, group="gantry_spark_sink", timeout_s=TIMEOUT_S, retries=RETRIES
        )
    return found


def messages_of(batch: pa.RecordBatch, topic: str) -> Iterator[OutMessage]:
    """One message per row; `topic` for rows without one. Raises `_BadRow`."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    nothing: list[Any] = [None] * batch.num_rows
    rows = zip(*[columns.get(name, nothing) for name in ("body", "topic", "tag", "keys", "properties")], strict=True)
    for row, (body, own_topic, tag, keys, pairs) in enumerate(rows):
        if body is None:
            raise _BadRow(row, f" (topic {own_topic or topic!r}): the body is null; an empty one is allowed")
        if not own_topic and not topic:
            raise _BadRow(row, ": the topic is null or empty, and the option 'topic' is not set")
        kept = {name: value for name, value in pairs or () if value and name not in NOT_WRITTEN}
        sharding_key = kept.pop(props.SHARDING_KEY, "")
        data = body.encode() if isinstance(body, str) else body
        yield OutMessage(own_topic or topic, data, tag or "", keys or "", kept, sharding_key)


def send_batches(batches: Iterable[pa.RecordBatch], nameserver: str, topic: str, partition: int) -> int:
    """Send all rows and return their number when every one is acknowledged. Raises RowError naming the first that is not."""
    producer = producer_of(nameserver)
    sent = 0
    for batch in batches:
        for begin in range(0, batch.num_rows, SLICE):
            part = batch.slice(begin, SLICE)
            try:
                messages = list(messages_of(part, topic))
            except _BadRow as error:
                raise RowError(f"partition {partition}, row {sent + error.row}{error}") from None
            try:
                producer.send_many(messages, WINDOW)
            except GantryError as error:
                raise RowError(f"partition {partition}, {_describe(error, messages, sent)}") from None
            sent += len(messages)
    return sent


def _describe(error: GantryError, messages: list[OutMessage], sent: int) -> str:
    if isinstance(error, PartialSendError):
        for row, result in enumerate(error.results):
            if isinstance(result, GantryError):
                failed = sum(1 for other in error.results if isinstance(other, GantryError))
                more = f" ({failed} rows from {sent} on failed)" if failed > 1 else ""
                return f"row {sent + row} (topic {messages[row].topic!r}): {result.text}{more}"
    code = "" if error.code is ErrorCode.UNAVAILABLE else f" [{error.code.name}]"
    return f"rows {sent} to {sent + len(messages) - 1}{code}: {error.text}"
