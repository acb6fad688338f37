"""What one task of a write does: every row of its partition into messages, in the mode that was asked for."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from gantrymq.model.errors import GantryError
from gantrymq.spark.writing.requests import requests_of
from gantrymq.spark.writing.rows import BadRow, encode_rows, slices
from gantrymq.spark.writing.sender import RowError, Sender

if TYPE_CHECKING:
    import pyarrow as pa

_PREFIX_BYTES: Final = 10


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


def send_batches(batches: Iterable[pa.RecordBatch], nameservers: Sequence[str], topic: str, partition: int) -> int:
    """Send all rows and return their number when every one is acknowledged. Raises RowError naming the first that is not."""
    sender = Sender(nameservers, partition)
    prefix, number = task_prefix(), first_number()
    row = 0
    for batch in batches:
        for part in slices(batch):
            try:
                rows = encode_rows(part, topic, prefix, number + row)
                for request in requests_of(rows, sender.queues):
                    sender.send(request, row)
            except BadRow as error:
                raise RowError(f"partition {partition}, row {row + error.row}{error}") from None
            except GantryError as error:
                raise RowError(f"partition {partition}, rows from {row} on: {error.text}") from None
            row += part.num_rows
    sender.finish()
    return row
