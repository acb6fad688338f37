"""Messages that are rows of a table, too: one record is both, so that no crash leaves one without the other (docs/formats/tables.md).

Such a message has property GANTRY_ROW (head in base64, a blank, key) and enters the queue `%LMQ%rmq_sys_gantry_TABLE`. The row's value is the head and
the body behind it; an empty body deletes the row. The property alone is nothing: only what is in that queue is a row, and only gateways put
messages there.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from functools import cache
from typing import TYPE_CHECKING, Final

from gantrymq.model import names
from gantrymq.model import properties as props

if TYPE_CHECKING:
    from gantrymq.model.message import Message

HEAD_BYTES_MAX: Final = 2048
"""Of a head and its key together; a row with more is a record of its own."""


@cache
def queues_of(table: str) -> tuple[str, ...]:
    """`Message.lmq` of a message that is a row of this table."""
    return (names.OWN_ROWS_PREFIX + table,)


def row_pair(key: str, head: bytes) -> bytes:
    """The property of a message that is the row `key`."""
    return props.encode(((props.ROW, f"{b64encode(head).decode()} {key}"),))


def table_of_message(message: Message) -> str:
    """The table that a message on its way into the log has a row of; empty: none."""
    if message.lmq and message.lmq[0].startswith(names.OWN_ROWS_PREFIX):
        return message.lmq[0][len(names.OWN_ROWS_PREFIX) :]
    return ""


def key_of(properties: bytes) -> str:
    """The key of a message's row; empty: it is none."""
    return props.find(properties, props.ROW).partition(" ")[2]


def row_of(properties: bytes, body: bytes) -> tuple[str, bytes | None] | None:
    """Key and value of a message's row; None: its property says none."""
    head, _, key = props.find(properties, props.ROW).partition(" ")
    if not key:
        return None
    if not body:
        return key, None
    try:
        return key, b64decode(head, validate=True) + body
    except (binascii.Error, ValueError):
        return None
