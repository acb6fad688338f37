"""The stream that all light queues share: segments of frames of runs (docs/formats/light.md).

      frame  magic 4 | CRC of what follows 4 | length of the runs 4 | number of runs 4 | end of the frame before 8
             | log position before 8 | after 8 | reaches 8
      run    light 8 | first offset 8 | run number 8 | previous 8 | near 8 | far 8 | units 4 | units of 20 bytes each

`after` says that every record of the log below it is in the stream, `reaches` that the frame names no record at or above it, and a frame begins where the one before it ended, or with the
next segment: what lies behind a bad frame is dropped and made again from the log.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

from gantrymq.model.errors import StoreCorruptError
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.light.table import NONE
from gantrymq.store.log.commit_log import file_name
from gantrymq.store.queues.consume_queue import HOLE, UNIT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gantrymq.store.cold import ColdReads
    from gantrymq.store.files import FileSystem

FRAME: Final = Struct(">4sIIIqqqq")
RUN: Final = Struct(">qqqqqqi")
FRAME_MAGIC: Final = b"GLQ2"
_CRC_FROM: Final = 8
SEGMENT_SIZE: Final = 16 * 1024 * 1024
FRAME_BYTES_MAX: Final = 16 * 1024
"""A flush of more is split: the loop writes, and cleans, a frame at a time (at most 227 runs of one unit, a third of a millisecond)."""
MOVED_FLAG: Final = 1 << 30
"""In a run's number of units: the run is part of its queue's moved beginning."""
PART_FLAG: Final = 1 << 29
"""Beside it: more of the moved beginning follows in a later frame, whose last run counts."""
UNITS_MASK: Final = PART_FLAG - 1
HANDLES_MAX: Final = 64
"""Descriptors for segments of the stream."""

_Run = tuple[int, int, int, int, int, int, int]


class LightStream:
    """The files. Loop thread only."""

    def __init__(self, files: FileSystem, directory: Path, segment_size: int) -> None:
        self._files = files
        self.directory = directory
        self.segment_size = segment_size
        self._handles: dict[int, int] = {}
        self.cold: ColdReads | None = None
        """As in `QueueFiles`; for reads of the loop."""
        self._opened_at = 0
        self.begin = 0
        """Where the stream begins; nothing points below it."""
        self.end = 0
        """Where the next frame begins in the stream."""
        self.log_position = 0
        """Every record below it is in the stream."""
        self.unsynced: set[int] = set()

    # --- frames

    @property
    def frame_room(self) -> int:
        """Bytes of runs in one frame."""
        return min(FRAME_BYTES_MAX, self.segment_size - FRAME.size)

    def write_frame(self, runs: list[bytes], length: int, after: int, reaches: int) -> int:
        """Append a frame of so many bytes of runs; returns where it begins."""
        start = self.end
        room = self.segment_size - start % self.segment_size
        if room < FRAME.size + length:
            start += room
        body = b"".join(runs)
        tail = (
            FRAME.pack(FRAME_MAGIC, 0, len(body), len(runs), self.end, self.log_position, after, reaches)[_CRC_FROM:]
            + body
        )
        base = start - start % self.segment_size
        self._files.pwrite(self._handle(base, True), FRAME_MAGIC + crc32(tail).to_bytes(4, "big") + tail, start - base)
        self.unsynced.add(base)
        self.end = start + FRAME.size + len(body)
        self.log_position = after
        return start

    def frame_at(self, at: int) -> tuple[int, int, int, int, int, bytes] | None:
        """(runs, end of the frame before, log position before, after, reaches, bytes of the runs) of a frame; None if there is no sound one."""
        head = self.read_bytes(at, FRAME.size)
        if len(head) < FRAME.size:
            return None
        magic, crc, length, count, follows, before, after, reaches = FRAME.unpack(head)
        if magic != FRAME_MAGIC or length > self.segment_size:
            return None
        body = self.read_bytes(at + FRAME.size, length)
        if crc32(body, crc32(head[_CRC_FROM:])) != crc:
            return None
        return count, follows, before, after, reaches, body

    def _handle(self, base: int, create: bool) -> int:
        handle = self._handles.pop(base, -1)
        if handle < 0:
            if len(self._handles) >= HANDLES_MAX:
                self._files.close(self._handles.pop(next(iter(self._handles))))
            handle = self._files.open(self.directory / file_name(base), create)
        self._handles[base] = handle
        return handle

    # --- runs

    def read_bytes(self, at: int, count: int) -> bytes:
        """Bytes of the stream; may wait for the disk."""
        base = at - at % self.segment_size
        return self._files.pread(self._handle(base, False), count, at - base)

    def _read_now(self, at: int, count: int) -> bytes:
        """As `read_bytes`, but `Cold` rather than wait."""
        if self.cold is None:
            return self.read_bytes(at, count)
        base = at - at % self.segment_size
        path = self.directory / file_name(base)
        return self.cold.read(path, self._handle(base, False), count, at - base, self._opened_at - base)

    def read_run(self, at: int, light: int, now: bool = False) -> _Run:
        """The head of the run at a position; its number of units without flag."""
        data = self._read_now(at, RUN.size) if now else self.read_bytes(at, RUN.size)
        run: _Run = RUN.unpack(data) if len(data) == RUN.size else (NONE, 0, 0, 0, 0, 0, 0)
        if run[0] != light:
            raise StoreCorruptError(f"{self.directory}: no run of light queue {light} at {at}")
        return *run[:6], run[6] & UNITS_MASK

    frame_head: Final = FRAME.size
    run_head: Final = RUN.size

    @staticmethod
    def runs_of(count: int, body: bytes) -> Iterator[tuple[int, int, int, int, bool]]:
        """(light, first offset, place, units, moved) of each run in a frame's body."""
        place = 0
        for _ in range(count):
            light, first, _, _, _, _, units = RUN.unpack_from(body, place)
            yield light, first, place, units & UNITS_MASK, units >= MOVED_FLAG
            place += RUN.size + (units & UNITS_MASK) * UNIT_SIZE

    @staticmethod
    def moved_run(light: int, first: int, previous: int, data: bytes, part: bool = False) -> bytes:
        """A run of a moved beginning."""
        units = len(data) // UNIT_SIZE | MOVED_FLAG | (PART_FLAG if part else 0)
        return RUN.pack(light, first, 0, previous, NONE, NONE, units) + data

    def read_run_at(self, at: int, light: int) -> tuple[int, int, int]:
        """(first offset, previous, units) of the run at a position."""
        _, first, _, previous, _, _, count = self.read_run(at, light)
        return first, previous, count

    def chain(self, light: int, at: int, floor: int) -> list[tuple[int, bytes]]:
        """(first offset, units) of the runs from `at` back to the one that holds `floor`, oldest first, without what is below it."""
        found: list[tuple[int, bytes]] = []
        while at >= self.begin:
            first, previous, count = self.read_run_at(at, light)
            if first + count <= floor:
                break
            low = max(first, floor)
            data = self.read_bytes(at + RUN.size + (low - first) * UNIT_SIZE, (first + count - low) * UNIT_SIZE)
            found.append((low, data))
            at = previous if first > floor else NONE
        return found[::-1]

    @staticmethod
    def holes(count: int) -> bytes:
        return UNIT.pack(*HOLE) * count

    def take_unsynced(self) -> list[Path]:
        """Files written since the last call."""
        paths = [self.directory / file_name(base) for base in self.unsynced]
        self.unsynced.clear()
        return paths

    def close(self) -> None:
        for handle in self._handles.values():
            self._files.close(handle)
        self._handles.clear()
