"""How far things have come, on disk: our own positions (`D/gantry/positions`) and RocketMQ's checkpoint (`D/store/checkpoint`).

Positions are kept twice; writes alternate, so that a torn one leaves the one before it:

      0  magic 4 | CRC of the rest 4 | sequence 8 | flushed position 8 | derived position 8
     32  log file size 8 | queue file size 8 | index slots 8 | index entries 8
     64  begin of the log 8

The sizes are those that the directory's files were made with; a file may be shorter after a crash in the middle of a cut. `flushed`: the log below it is on stable storage, a bad record there is damage and not a torn tail. `derived`: queues and index
hold every record below it, on stable storage. `begin`: the oldest segment that retention left begins here, so a later first one means
that segments are missing; a copy of magic `GPO1`, from before it was kept, ends before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from gantrymq.store.files import read_small

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gantrymq.store.files import FileSystem

SLOT: Final = Struct(">4sIqqqqqqqq")
MAGIC: Final = b"GPO2"
OLD_SLOT: Final = Struct(">4sIqqqqqqq")
OLD_MAGIC: Final = b"GPO1"
SLOT_STRIDE: Final = 512
"""One sector per copy: a torn write cannot hit both."""
CHECKPOINT: Final = Struct(">qqqqq")
CHECKPOINT_SIZE: Final = 4096


@dataclass(slots=True)
class Checkpoint:
    """Derived files to be put on stable storage, and what is true once they are."""

    position: int
    store_ms: int
    paths: list[Path]
    publish: Callable[[], None] | None = None
    """Makes a snapshot of the light queues' table true, once the paths are on stable storage."""


class Sizes(NamedTuple):
    """File lengths in bytes, index sizes in slots and entries."""

    log_file: int
    queue_file: int
    index_slots: int
    index_entries: int

    def __str__(self) -> str:
        return (
            f"log segments of {self.log_file} bytes, queue files of {self.queue_file} bytes, "
            f"index files of {self.index_slots} slots and {self.index_entries} entries"
        )


class Positions:
    """The two positions. `save` from one thread at a time."""

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self._path = path
        self._handle = -1
        self._sequence = 0
        self.flushed = -1
        """-1: never saved."""
        self.derived = -1
        self.begin = -1
        """-1: not known. Set it, then `save`: before a segment is removed."""
        self.sizes = Sizes(0, 0, 0, 0)
        """Of the files; zeros: never saved."""

    def open(self) -> None:
        self._handle = self._files.open(self._path, True)
        for slot in (0, 1):
            data = self._files.pread(self._handle, SLOT.size, slot * SLOT_STRIDE)
            begin = -1
            if data[:4] == OLD_MAGIC:
                data = data[: OLD_SLOT.size]
            elif data[:4] == MAGIC and len(data) == SLOT.size:
                begin = int.from_bytes(data[OLD_SLOT.size :], "big", signed=True)
            if len(data) < OLD_SLOT.size or data[:4] not in (MAGIC, OLD_MAGIC):
                continue
            _, crc, sequence, flushed, derived, *sizes = OLD_SLOT.unpack_from(data)
            if crc == crc32(data[8:]) and sequence > self._sequence:
                self._sequence, self.flushed, self.derived, self.begin = sequence, flushed, derived, begin
                self.sizes = Sizes(*sizes)

    def save(self, flushed: int, derived: int, sync: bool = False) -> None:
        sequence = self._sequence + 1
        tail = SLOT.pack(MAGIC, 0, sequence, flushed, derived, *self.sizes, self.begin)[8:]
        data = MAGIC + crc32(tail).to_bytes(4, "big") + tail
        self._files.pwrite(self._handle, data, sequence % 2 * SLOT_STRIDE)
        self._sequence = sequence  # not after a failure: the next write must not hit the only good copy
        if sync:
            self._files.datasync(self._handle)
        self.flushed, self.derived = flushed, derived

    def close(self) -> None:
        if self._handle >= 0:
            self._files.close(self._handle)
            self._handle = -1


def save_checkpoint(files: FileSystem, path: Path, log_ms: int, queues_ms: int, index_ms: int, sync: bool) -> None:
    """RocketMQ's checkpoint: store times up to which log, queues and index are on stable storage."""
    handle = files.open(path, True)
    try:
        files.pwrite(handle, CHECKPOINT.pack(log_ms, queues_ms, index_ms, 0, 0).ljust(CHECKPOINT_SIZE, b"\0"), 0)
        if sync:
            files.datasync(handle)
    finally:
        files.close(handle)


def load_checkpoint(files: FileSystem, path: Path) -> int:
    """Store time up to which the log was on stable storage; 0 without a checkpoint."""
    data = read_small(files, path, CHECKPOINT.size)
    return int(CHECKPOINT.unpack(data)[0]) if data is not None and len(data) == CHECKPOINT.size else 0
