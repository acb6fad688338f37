"""Records that outlived their segment: the body of `rmq_sys_gantry_moved` (docs/formats/moved.md).

      0  magic "GMV1" 4 | number of entries 4 | per entry: length of the queue's name 2, name, offset 8 | the record as it was stored

An entry is a place in a queue (`~<light id>` or `<topic>/<queue id>`) that still shows the record. Readers of units get the old
record back, at the place where it lies now.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from gantrymq.model.message import Message
from gantrymq.store.log import record

if TYPE_CHECKING:
    from collections.abc import Sequence

MOVED_TOPIC: Final = "rmq_sys_gantry_moved"
MAGIC: Final = b"GMV1"
_HEAD: Final = Struct(">4sI")
_NAME: Final = Struct(">H")
_OFFSET: Final = Struct(">q")

Place = tuple[str, int]
"""Queue name and offset in it."""


def cost(name: str) -> int:
    """Bytes that one entry takes."""
    return _NAME.size + len(name) + _OFFSET.size


def wrap(stored: bytes, places: Sequence[Place]) -> Message:
    """The moved form of a stored record; one that was moved before is not wrapped twice."""
    message = record.decode(stored, check_crc=False)
    if message.topic == MOVED_TOPIC:
        stored = message.body[_places_end(message.body) :]
    parts = [_HEAD.pack(MAGIC, len(places))]
    for name, offset in places:
        data = name.encode()
        parts += (_NAME.pack(len(data)), data, _OFFSET.pack(offset))
    parts.append(stored)
    return Message(MOVED_TOPIC, b"".join(parts), queue_id=0)


def places_of(message: Message) -> list[Place]:
    """The entries of a moved record. Raises RecordError for a malformed body."""
    body = message.body
    places: list[Place] = []
    at = _HEAD.size
    try:
        for _ in range(_count(body)):
            (length,) = _NAME.unpack_from(body, at)
            at += _NAME.size + length
            places.append((body[at - length : at].decode(), _OFFSET.unpack_from(body, at)[0]))
            at += _OFFSET.size
    except Exception as error:
        raise record.RecordError(f"moved record at {message.physical_offset} is malformed") from error
    return places


def inner(message: Message) -> Message:
    """The record as it was, with the position where it was stored first. Raises RecordError."""
    return record.decode(message.body, _places_end(message.body))


def unwrap(message: Message) -> Message:
    """The record as it was, but with position and size of where it lies now. Raises RecordError."""
    found = inner(message)
    found.physical_offset, found.size = message.physical_offset, message.size
    return found


def _count(body: bytes) -> int:
    magic, count = _HEAD.unpack_from(body)
    if magic != MAGIC:
        raise record.RecordError("no moved record")
    return int(count)


def _places_end(body: bytes) -> int:
    at = _HEAD.size
    try:
        for _ in range(_count(body)):
            at += _NAME.size + _NAME.unpack_from(body, at)[0] + _OFFSET.size
    except Exception as error:
        raise record.RecordError("moved record is malformed") from error
    return at
