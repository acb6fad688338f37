"""The body of an acknowledgement record (topic `rmq_sys_gantry_ack`): what changed in which cursor. Format: docs/formats/acks.md.

An entry is kind (1 byte), cursor id (8), then: RANGE first (8) last (8) | LIST, BACK count (4) offsets (8 each) | MARK, CUT offset (8) |
BITS first offset (8) count of bytes (4) bytes | COUNT offset (8) deliveries (8). Big-endian. A record holds everything that one loop turn settled.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantrymq.broker.consuming.window import AckWindow

ACK_TOPIC = "rmq_sys_gantry_ack"

_HEAD = struct.Struct(">BQ")
_RANGE = struct.Struct(">BQQQ")
_ONE = struct.Struct(">BQQ")
_COUNT = struct.Struct(">I")
_PAIR = struct.Struct(">QQ")
_OFFSET = struct.Struct(">Q")

RECORD_BYTES_MAX = 1 << 20
"""A turn that settles more than fits is written as several records, so that none exceeds the message limit."""


class AckKind(IntEnum):
    """On disk: do not change the values."""

    RANGE = 0
    """Done, `first..last` both included."""
    LIST = 1
    """Done, single offsets."""
    BACK = 2
    """Delivered and given back: the delivery count of each rises by one."""
    MARK = 3
    """Offsets below were possibly delivered."""
    BITS = 4
    """Done: one bit per offset from the first on, lowest bit first."""
    COUNT = 5
    """Delivered so many times: replaces what was counted before."""
    CUT = 6
    """Nothing from that offset on was ever done: what older entries say of it was said of records that are lost."""


BITS_BYTES_MAX = 32 * 1024
"""Of one BITS entry: 262,144 offsets."""


def encode_state(cursor: int, window: AckWindow) -> list[bytes]:
    """Entries that alone make the window again: what retention writes before it deletes the ones that made it."""
    floor, _, marked, base, bits, counts = window.dump()
    entries = [_RANGE.pack(AckKind.RANGE, cursor, 0, floor - 1)] if floor else []
    for at in range(0, len(bits), BITS_BYTES_MAX):
        part = bits[at : at + BITS_BYTES_MAX]
        entries.append(_ONE.pack(AckKind.BITS, cursor, base + at * 8) + _COUNT.pack(len(part)) + part)
    if marked:
        entries.append(encode_one(AckKind.MARK, cursor, marked))
    entries += [_RANGE.pack(AckKind.COUNT, cursor, offset, count) for offset, count in counts.items()]
    return entries


def cursors_in(body: bytes) -> set[int]:
    """Ids of the cursors that a record speaks of. Raises ValueError for a malformed body."""
    found = set()
    at, end = 0, len(body)
    try:
        while at < end:
            value, cursor = _HEAD.unpack_from(body, at)
            kind = AckKind(value)
            at += _HEAD.size
            if kind is AckKind.RANGE or kind is AckKind.COUNT:
                at += _PAIR.size
            elif kind is AckKind.MARK or kind is AckKind.CUT:
                at += _OFFSET.size
            elif kind is AckKind.BITS:
                at += _OFFSET.size + _COUNT.size + _COUNT.unpack_from(body, at + _OFFSET.size)[0]
            else:
                at += _COUNT.size + 8 * _COUNT.unpack_from(body, at)[0]
            found.add(cursor)
    except struct.error as error:
        raise ValueError(f"acknowledgement record is cut at byte {at}") from error
    return found


def encode_offsets(kind: AckKind, cursor: int, offsets: list[int]) -> list[bytes]:
    """Entries for the offsets of one cursor; a run without holes becomes one RANGE."""
    if kind is AckKind.LIST:
        first, last = offsets[0], offsets[-1]
        if last - first + 1 == len(offsets) and (len(offsets) < 3 or offsets == list(range(first, last + 1))):
            return [_RANGE.pack(AckKind.RANGE, cursor, first, last)]
    step = RECORD_BYTES_MAX // 16
    return [
        _HEAD.pack(kind, cursor) + _COUNT.pack(len(part)) + _packed(part)
        for part in [offsets[at : at + step] for at in range(0, len(offsets), step)]
    ]


def encode_range(cursor: int, first: int, last: int) -> bytes:
    """A whole range done at once (a purge)."""
    return _RANGE.pack(AckKind.RANGE, cursor, first, last)


def encode_one(kind: AckKind, cursor: int, offset: int) -> bytes:
    """MARK or CUT."""
    return _ONE.pack(kind, cursor, offset)


def decode(body: bytes) -> Iterator[tuple[AckKind, int, list[int]]]:
    """Entries of a record; RANGE gives [first, last], MARK and CUT one offset, COUNT [offset, deliveries]; BITS comes as LIST. Raises ValueError for a malformed body."""
    at, end = 0, len(body)
    try:
        while at < end:
            value, cursor = _HEAD.unpack_from(body, at)
            kind = AckKind(value)
            at += _HEAD.size
            if kind is AckKind.RANGE or kind is AckKind.COUNT:
                yield kind, cursor, list(_PAIR.unpack_from(body, at))
                at += _PAIR.size
            elif kind is AckKind.MARK or kind is AckKind.CUT:
                yield kind, cursor, list(_OFFSET.unpack_from(body, at))
                at += _OFFSET.size
            elif kind is AckKind.BITS:
                (first,) = _OFFSET.unpack_from(body, at)
                (count,) = _COUNT.unpack_from(body, at + _OFFSET.size)
                at += _OFFSET.size + _COUNT.size
                if at + count > end:
                    raise ValueError(f"acknowledgement record: {count} bytes announced, {end - at} left")
                yield AckKind.LIST, cursor, _set_bits(first, body[at : at + count])
                at += count
            else:
                (count,) = _COUNT.unpack_from(body, at)
                at += _COUNT.size
                if at + 8 * count > end:
                    raise ValueError(f"acknowledgement record: {count} offsets announced, {end - at} bytes left")
                offsets = array("Q", body[at : at + 8 * count])
                if sys.byteorder == "little":
                    offsets.byteswap()
                yield kind, cursor, offsets.tolist()
                at += 8 * count
    except struct.error as error:
        raise ValueError(f"acknowledgement record is cut at byte {at}") from error


def _set_bits(first: int, bits: bytes) -> list[int]:
    return [first + at * 8 + bit for at, byte in enumerate(bits) if byte for bit in range(8) if byte & (1 << bit)]


def _packed(offsets: list[int]) -> bytes:
    data = array("Q", offsets)
    if sys.byteorder == "little":
        data.byteswap()
    return data.tobytes()
