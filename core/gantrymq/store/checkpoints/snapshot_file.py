"""Files of `D/gantry/snapshots`: what they are made of, how they come into being whole or not at all (docs/formats/snapshots.md).

A file is a sequence of blocks, big-endian:

      0  length of the payload 4 | CRC of kind and payload 4 | kind 1 | payload

HEAD first, TAIL last; one without its TAIL, with a wrong CRC or with bytes behind it is no snapshot. `write` and `finish` are system calls
only, so that a thread can do them; what is in a block is rendered by the caller.
"""

from __future__ import annotations

import sys
from array import array
from enum import IntEnum
from itertools import accumulate, pairwise
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from gantrymq.store.files import FileSystem

SUFFIX: Final = ".snapshot"
TEMPORARY: Final = "new" + SUFFIX + ".tmp"
KEPT: Final = 2
"""Snapshots on the disk: the newest, and the one before it should the newest turn out to be damaged."""
READ_STEP: Final = 1 << 20
SHARED_MAX: Final = 1_000_000
"""Keys and values of a snapshot that are remembered while it is read: some 100 MB at most, given back then."""
SHARED_BYTES: Final = 256
"""Longer values are hardly ever equal."""
PAYLOAD_MAX: Final = 64 << 20
"""A length beyond it is damage: a block ends soon after 64 KiB, or with the one row that is larger."""
MAGIC: Final = b"GSN1"

_BLOCK: Final = Struct(">IIB")
_NAME: Final = Struct(">H")
_COUNT: Final = Struct(">I")
_OFFSET: Final = Struct(">Q")
_TAIL: Final = Struct(">QII")
_TOPIC: Final = Struct(">QQI")
_MOVED: Final = Struct(">qqiq")

MovedEntry = tuple[int, tuple[int, int, int]]
"""Offset in a queue, and the unit that stands there now."""


class BlockKind(IntEnum):
    """On disk: do not change the values."""

    HEAD = 1
    ROWS = 2
    CURSORS = 3
    TAIL = 4
    MOVED = 5


class SnapshotError(ValueError):
    """The file is no whole snapshot; the text says why."""


class LastRecord(NamedTuple):
    """By what a topic of the log is recognised: the offset behind a record, the record's position and the CRC of its stored bytes.
    All zeros: the topic had no record."""

    offset: int
    position: int
    crc: int


class Tail(NamedTuple):
    """What the log must hold for the snapshot to be true of it. `limit`: nothing in the snapshot came from beyond this position."""

    limit: int
    topics: dict[str, LastRecord]


def block(kind: BlockKind, payload: bytes) -> bytes:
    """A block as it stands in the file."""
    body = bytes((kind,)) + payload
    return _BLOCK.pack(len(payload), crc32(body), kind) + payload


def head_block(offsets: dict[str, int]) -> bytes:
    """`offsets`: by topic, from where its records must be replayed over the snapshot."""
    parts = [MAGIC, _COUNT.pack(len(offsets))]
    for name, offset in offsets.items():
        parts += (_named(name), _OFFSET.pack(offset))
    return block(BlockKind.HEAD, b"".join(parts))


def read_head(payload: bytes) -> dict[str, int]:
    """Back from `head_block`."""
    if payload[:4] != MAGIC:
        raise SnapshotError(f"magic {payload[:4]!r}")
    (count,) = _COUNT.unpack_from(payload, 4)
    at = 8
    offsets = {}
    for _ in range(count):
        name, at = _name_at(payload, at)
        offsets[name] = _OFFSET.unpack_from(payload, at)[0]
        at += _OFFSET.size
    return offsets


def rows_block(table: str, keys: Sequence[str], values: Sequence[bytes]) -> bytes:
    """Rows of one table. Key lengths count characters, value lengths bytes."""
    return block(
        BlockKind.ROWS,
        b"".join(
            (
                _named(table), _COUNT.pack(len(keys)), _lengths([len(key) for key in keys]),
                _lengths([len(value) for value in values]),
                _COUNT.pack(sum([len(value) for value in values])), *values,
                "".join(keys).encode("utf-8", "surrogatepass"),
            )
        ),
    )  # fmt: skip


def read_rows(
    payload: bytes, tables: dict[str, dict[str, bytes]], shared: dict[Any, Any], alone: Collection[str] = ()
) -> None:
    """Back from `rows_block`, into the rows of its table; a key that is there already is replaced. `shared`, of one snapshot: keys and short values
    that are equal become one object, for a queue of AMQP has its name in three tables. `alone`: tables whose rows are not kept as they are."""
    table, at = _name_at(payload, 0)
    (count,) = _COUNT.unpack_from(payload, at)
    at += _COUNT.size
    key_ends = [0, *accumulate(_from_lengths(payload, at, count))]
    at += 4 * count
    value_ends = [0, *accumulate(_from_lengths(payload, at, count))]
    at += 4 * count
    (size,) = _COUNT.unpack_from(payload, at)
    at += _COUNT.size
    values = payload[at : at + size]
    text = payload[at + size :].decode("utf-8", "surrogatepass")
    if value_ends[-1] != len(values) or key_ends[-1] != len(text):
        raise SnapshotError(f"rows of table {table}: the lengths do not add up")
    keys, found = [text[a:b] for a, b in pairwise(key_ends)], [values[a:b] for a, b in pairwise(value_ends)]
    if table in alone:
        tables.setdefault(table, {}).update(zip(keys, found, strict=True))
        return
    one = shared.setdefault if len(shared) < SHARED_MAX else shared.get
    tables.setdefault(table, {}).update(
        zip(
            [one(key, key) for key in keys],
            [one(value, value) if len(value) <= SHARED_BYTES else value for value in found],
            strict=True,
        )
    )


def cursors_block(offset: int, entries: bytes) -> bytes:
    """`entries`: as in an acknowledgement record; `offset`: of the acknowledgement topic, they hold what stands below it."""
    return block(BlockKind.CURSORS, _OFFSET.pack(offset) + entries)


def read_cursors(payload: bytes) -> tuple[int, bytes]:
    """Back from `cursors_block`."""
    return _OFFSET.unpack_from(payload)[0], payload[_OFFSET.size :]


def moved_block(queue: str, entries: Sequence[MovedEntry]) -> bytes:
    """Entries of one queue whose records lie elsewhere than it says (docs/formats/moved.md)."""
    return block(BlockKind.MOVED, _named(queue) + b"".join([_MOVED.pack(offset, *unit) for offset, unit in entries]))


def read_moved(payload: bytes) -> tuple[str, list[MovedEntry]]:
    """Back from `moved_block`."""
    queue, at = _name_at(payload, 0)
    return queue, [(offset, (place, size, tag)) for offset, place, size, tag in _MOVED.iter_unpack(payload[at:])]


def tail_block(blocks: int, tail: Tail) -> bytes:
    """`blocks`: how many stand before it."""
    parts = [_TAIL.pack(tail.limit, blocks, len(tail.topics))]
    for name, last in tail.topics.items():
        parts += (_named(name), _TOPIC.pack(*last))
    return block(BlockKind.TAIL, b"".join(parts))


def read_tail(payload: bytes, blocks: int) -> Tail:
    """Back from `tail_block`; `blocks`: how many were read before it."""
    limit, expected, count = _TAIL.unpack_from(payload)
    if expected != blocks:
        raise SnapshotError(f"{blocks} blocks of {expected}")
    at = _TAIL.size
    topics = {}
    for _ in range(count):
        name, at = _name_at(payload, at)
        topics[name] = LastRecord(*_TOPIC.unpack_from(payload, at))
        at += _TOPIC.size
    return Tail(limit, topics)


def _named(name: str) -> bytes:
    data = name.encode()
    return _NAME.pack(len(data)) + data


def _name_at(payload: bytes, at: int) -> tuple[str, int]:
    (length,) = _NAME.unpack_from(payload, at)
    at += _NAME.size
    return payload[at : at + length].decode(), at + length


def _lengths(lengths: list[int]) -> bytes:
    data = array("I", lengths)
    if sys.byteorder == "little":
        data.byteswap()
    return data.tobytes()


def _from_lengths(payload: bytes, at: int, count: int) -> array[int]:
    data = array("I", payload[at : at + 4 * count])
    if len(data) != count:
        raise SnapshotError("a block is shorter than it says")
    if sys.byteorder == "little":
        data.byteswap()
    return data


class SnapshotFiles:
    """The directory. `write`, `finish` and `abandon` from one thread at a time."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self.directory = directory
        self._handle = -1
        self._at = 0

    def names(self) -> list[str]:
        """Snapshots that are there, newest first."""
        return sorted([name for name in self._files.list_dir(self.directory) if name.endswith(SUFFIX)], reverse=True)

    def write(self, data: bytes) -> None:
        """Add to the file that is being made; the first call begins it."""
        if self._handle < 0:
            self._files.make_dirs(self.directory)
            self._handle = self._files.open(self.directory / TEMPORARY, True)
            self._files.truncate(self._handle, 0)
            self._at = 0
        self._files.pwrite(self._handle, data, self._at)
        self._at += len(data)

    def finish(self, limit: int) -> None:
        """Give the file its name, once it is on stable storage; older ones than the one before it go."""
        self._files.datasync(self._handle)
        self._files.close(self._handle)
        self._handle = -1
        self._files.rename(self.directory / TEMPORARY, self.directory / f"{limit:020d}{SUFFIX}")
        self._files.sync_dir(self.directory)
        for name in self.names()[KEPT:]:
            self._files.remove(self.directory / name)

    def abandon(self) -> None:
        """Forget the file that is being made, if there is one."""
        if self._handle >= 0:
            self._files.close(self._handle)
            self._handle = -1
        self._files.remove(self.directory / TEMPORARY)

    def remove(self, name: str) -> None:
        """A snapshot that is not true of the log (any more): it must not come back when the log has grown again."""
        self._files.remove(self.directory / name)
        self._files.sync_dir(self.directory)

    def blocks(self, name: str) -> Iterator[tuple[BlockKind, bytes]]:
        """Kind and payload of every block. Raises SnapshotError."""
        handle = self._files.open(self.directory / name, False)
        try:
            size = self._files.size(handle)
            data, start, at = b"", 0, 0  # `data` stands at `start` in the file
            while at < size:
                if at + _BLOCK.size > start + len(data):
                    data, start = self._files.pread(handle, READ_STEP, at), at
                if len(data) < _BLOCK.size + at - start:
                    raise SnapshotError(f"cut off at {at}")
                length, crc, kind = _BLOCK.unpack_from(data, at - start)
                end = at + _BLOCK.size + length
                if length > PAYLOAD_MAX or end > size:
                    raise SnapshotError(f"cut off at {at}")
                if end > start + len(data):
                    data, start = self._files.pread(handle, max(READ_STEP, end - at), at), at
                body = data[at - start + _BLOCK.size - 1 : end - start]
                if crc32(body) != crc or len(body) != length + 1:
                    raise SnapshotError(f"CRC at {at}")
                yield BlockKind(kind), body[1:]
                at = end
        except ValueError as error:
            raise SnapshotError(str(error)) from error
        finally:
            self._files.close(handle)
