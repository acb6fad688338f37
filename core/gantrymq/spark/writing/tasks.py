"""What one task of a write does: every row of its partition into messages, in the mode that was asked for."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gantrymq.model.errors import GantryError
from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.overview_codes import SEND_BLOCK, SEND_HALF_ROWS, SEND_ROWS_ONCE
from gantrymq.spark.planning.options import AT_LEAST_ONCE, MODES
from gantrymq.spark.schema import BODY_COLUMN
from gantrymq.spark.writing.epochs import Half, HalfSender, group_of
from gantrymq.spark.writing.requests import Request, requests_of
from gantrymq.spark.writing.rows import BadRow, encode_rows, slices
from gantrymq.spark.writing.sender import RowError, Sender
from gantrymq.spark.writing.shapes import shaped

if TYPE_CHECKING:
    import pyarrow as pa

_, IDEMPOTENT, EXACTLY_ONCE = MODES

_PREFIX_BYTES: Final = 10


@dataclass(frozen=True, slots=True)
class Job:
    """What all tasks of a write share. `topic`: for rows without one; `query`, `batch`: the epoch."""

    nameservers: list[str]
    topic: str
    mode: str = AT_LEAST_ONCE
    query: str = ""
    batch: int = 0
    columns: str = ""
    """Whose shape the rows have; empty: the sink's own."""


def task_prefix(*parts: object) -> bytes:
    """The first 20 digits of the ids of a task's rows: always the same for the same parts, without any never the same again."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest() if parts else os.urandom(_PREFIX_BYTES)
    return digest[:_PREFIX_BYTES].hex().upper().encode()


def first_number() -> int:
    """Of rows whose ids need not be the same again: as RocketMQ's clients write the time into theirs, milliseconds of the month, and 16 bits to count."""
    now = time.time()
    month = time.localtime(now)
    begin = time.mktime((month.tm_year, month.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    return int((now - begin) * 1000) << 16


def send_batches(batches: Iterable[pa.RecordBatch], job: Job, partition: int) -> tuple[int, list[Half]]:
    """Send all rows. Their number, when every one is acknowledged, and in mode `exactlyOnce` the half messages that they are. Raises RowError naming
    the first row that is not."""
    if job.mode == EXACTLY_ONCE:
        halves = HalfSender(job.nameservers, partition, group_of(job.query, job.batch))
        return _send(batches, job, partition, halves, task_prefix(), first_number()), halves.halves
    if job.mode == IDEMPOTENT:
        sender = Sender(job.nameservers, partition, strict=True)
        return _send(batches, job, partition, sender, task_prefix(job.query, job.batch, partition), 0), []
    return _send(batches, job, partition, Sender(job.nameservers, partition), task_prefix(), first_number()), []


def _send(
    batches: Iterable[pa.RecordBatch], job: Job, partition: int, sender: Sender, prefix: bytes, number: int
) -> int:
    row = 0
    for part in _parts(batches, BODY_COLUMN[job.columns]):
        try:
            form = shaped(job.columns, part)
            rows = encode_rows(form.columns, job.topic, form.extras)
            for request in requests_of(rows, sender.queues, prefix, number + row):
                sender.send(request, row, *_wrapped(job, request))
        except BadRow as error:
            raise RowError(f"partition {partition}, row {row + error.row}{error}") from None
        except GantryError as error:
            raise RowError(f"partition {partition}, rows from {row} on: {error.text}") from None
        row += part.num_rows
    sender.finish()
    return row


def _parts(batches: Iterable[pa.RecordBatch], body: str) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from slices(batch, body)


def _wrapped(job: Job, request: Request) -> tuple[int, str]:
    """Request code and properties of a request, by mode."""
    if job.mode == IDEMPOTENT:
        return SEND_ROWS_ONCE, ""
    if job.mode == AT_LEAST_ONCE:
        return RequestCode.SEND_MESSAGE_V2 if request.delayed else SEND_BLOCK, ""
    pairs = {
        "TRAN_MSG": "true",
        "PGROUP": group_of(job.query, job.batch),
        "GANTRY_ROWS": len(request.rows),
        "UNIQ_KEY": request.unique,
    }
    return SEND_HALF_ROWS, "".join([f"{name}\x01{value}\x02" for name, value in pairs.items()])
