"""Light queues: queues without a file each (docs/formats/light.md).

All of them share one stream under `D/gantry/light`. A flush appends one frame with one run per queue that has new units:

      frame  magic 4 | CRC of what follows 4 | length of the runs 4 | number of runs 4 | log position before 8 | after 8
      run    light 8 | first offset 8 | run number 8 | previous 8 | near 8 | far 8 | units 4 | units of 20 bytes each

A run points back to the previous run of its queue, to the newest one before it whose number divides by 64 (near) and by 4096 (far),
so that any offset is found in few steps. In memory a queue is two integers in a shared array: next offset and position of
its newest run. `after` says that every record of the log below it is in the stream, and a frame begins where the one before it ended:
what lies behind a bad frame is dropped and made again from the log.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

from gantrymq.model.errors import StoreCorruptError
from gantrymq.store.commit_log import file_name, positions_in
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.consume_queue import HOLE, UNIT, Unit, pack_units

if TYPE_CHECKING:
    from pathlib import Path

    from gantrymq.store.cold import ColdReads
    from gantrymq.store.files import FileSystem

FRAME: Final = Struct(">4sIIIqq")
RUN: Final = Struct(">qqqqqqi")
FRAME_MAGIC: Final = b"GLQ1"
_CRC_FROM: Final = 8
SEGMENT_SIZE: Final = 16 * 1024 * 1024
FRAME_BYTES_MAX: Final = 1024 * 1024
"""A flush of more is split, so that a frame fits a segment and one write stays short."""
NEAR: Final = 64
FAR: Final = 4096
NONE: Final = -1
DELETED: Final = -2
"""As first offset of an empty run: the queue was deleted."""
PAGE: Final = 4096
"""Queues per page of the table; ids are dense, so pages are well filled."""
LIGHT_MAX: Final = 1 << 56
HOLES_MAX: Final = 65_536
"""Lost offsets filled in at replay; a larger jump comes from a damaged record."""
HANDLES_MAX: Final = 64
"""Descriptors for segments of the stream."""
TRAILS_MAX: Final = 1024
"""Queues whose last walk is remembered, so that reading on is no new search."""
TAILS: Final = Struct(">4sIqqQ")
"""Head of the table's snapshot: magic, CRC of the rest, stream end, log position, number of (light, next, tail) triples."""
TAILS_MAGIC: Final = b"GLT1"

_Run = tuple[int, int, int, int, int, int, int]


class LightQueues:
    """All light queues of a store. Loop thread only."""

    def __init__(self, files: FileSystem, directory: Path, segment_size: int = SEGMENT_SIZE) -> None:
        self._files = files
        self._directory = directory
        self._segment_size = segment_size
        self._pages: dict[int, array[int]] = {}
        """Next offset and newest run (-1: none) of PAGE queues, interleaved."""
        self.pending: dict[int, list[int]] = {}
        """Newest units of a queue as a flat list."""
        self.pending_units = 0
        self._deleted: list[int] = []
        self._handles: dict[int, int] = {}
        self.cold: ColdReads | None = None
        """As in `QueueFiles`; for `read` alone."""
        self._opened_at = 0
        self._trails: OrderedDict[int, list[tuple[int, int, int]]] = OrderedDict()
        self.end = 0
        """Where the next frame begins in the stream."""
        self.log_position = 0
        """Every record below it is in the stream."""
        self.unsynced: set[int] = set()

    # --- the table

    def _page(self, light: int) -> array[int]:
        page = self._pages.get(light // PAGE)
        if page is None:
            page = self._pages[light // PAGE] = array("q", (0, NONE) * PAGE)
        return page

    def next_offset(self, light: int) -> int:
        """The queue's maximum offset; 0 for one that never had an entry or is deleted."""
        page = self._pages.get(light // PAGE)
        return max(page[light % PAGE * 2], 0) if page is not None else 0

    def add(self, light: int, position: int, size: int, code: int) -> int:
        """Dispatch a record into the queue; returns the offset that it took. An offset is never used twice."""
        page = self._pages.get(light // PAGE)
        if page is None:
            page = self._page(light)
        slot = light % PAGE * 2
        offset = max(page[slot], 0)
        page[slot] = offset + 1
        units = self.pending.get(light)
        if units is None:
            self.pending[light] = [position, size, code]
        else:
            units += (position, size, code)
        self.pending_units += 1
        return offset

    def offsets_of(self, targets: tuple[int, ...]) -> list[int]:
        """The offsets that the next record takes in these queues."""
        pages = self._pages
        offsets = []
        for light in targets:
            page = pages.get(light // PAGE)
            offset = page[light % PAGE * 2] if page is not None else 0
            offsets.append(offset if offset > 0 else 0)
        return offsets

    def add_all(self, targets: tuple[int, ...], position: int, size: int, code: int) -> None:
        """`add` to each of the queues."""
        pages, pending = self._pages, self.pending
        entry = (position, size, code)
        for light in targets:
            page = pages.get(light // PAGE)
            if page is None:
                page = self._page(light)
            slot = light % PAGE * 2
            offset = page[slot]
            page[slot] = offset + 1 if offset > 0 else 1
            units = pending.get(light)
            if units is None:
                pending[light] = [position, size, code]
            else:
                units += entry
        self.pending_units += len(targets)

    def take_back(self, light: int) -> None:
        """Undo the newest `add` (its record could not be written)."""
        self._page(light)[light % PAGE * 2] -= 1
        units = self.pending[light]
        del units[-3:]
        if not units:
            del self.pending[light]
        self.pending_units -= 1

    def replay(self, light: int, offset: int, unit: Unit) -> None:
        """Dispatch of a recovered record with the offset that it took when it was appended."""
        page = self._page(light)
        if page[light % PAGE * 2] < 0:
            return
        missing = offset - self.next_offset(light)
        if missing < 0 or missing > HOLES_MAX:
            return
        for _ in range(missing):
            self.add(light, *HOLE)
        self.add(light, *unit)

    def delete(self, light: int) -> None:
        """Forget the queue's entries; its id is never used again."""
        page = self._page(light)
        page[light % PAGE * 2] = DELETED
        page[light % PAGE * 2 + 1] = NONE
        self._trails.pop(light, None)
        units = self.pending.pop(light, None)
        if units is not None:
            self.pending_units -= len(units) // 3
        self._deleted.append(light)

    # --- writing

    def write_pending(self, log_position: int) -> None:
        """Append all pending units; `log_position`: every record below it has been added. On an error the rest stays pending."""
        while self.pending or self._deleted or log_position > self.log_position:
            # Deletions first: an id that is used again in spite of its contract begins anew.
            runs = [RUN.pack(light, DELETED, 0, NONE, NONE, NONE, 0) for light in self._deleted]
            at, start = self._place(self.end + FRAME.size)
            at += len(runs) * RUN.size
            tails: list[tuple[int, int]] = []
            length = 0
            for light, units in self.pending.items():
                run = self._run(light, units)
                if length and length + len(run) > FRAME_BYTES_MAX:
                    break
                tails.append((light, at + length))
                runs.append(run)
                length += len(run)
            complete = len(tails) == len(self.pending)
            self._write_frame(start, runs, log_position if complete else self.log_position)
            self._deleted = []
            for light, tail in tails:
                self._page(light)[light % PAGE * 2 + 1] = tail
                self.pending_units -= len(self.pending.pop(light)) // 3

    def _place(self, at: int) -> tuple[int, int]:
        """(first run, frame) positions: a frame that might not fit begins the next segment."""
        start = at - FRAME.size
        room = self._segment_size - start % self._segment_size
        worst = FRAME.size + self._worst_length()
        if room < worst:
            start += room
        return start + FRAME.size, start

    def _worst_length(self) -> int:
        largest = max([len(units) for units in self.pending.values()], default=0) // 3 * UNIT_SIZE + RUN.size
        total = self.pending_units * UNIT_SIZE + (len(self.pending) + len(self._deleted)) * RUN.size
        return min(total, FRAME_BYTES_MAX + largest + len(self._deleted) * RUN.size)

    def _run(self, light: int, units: list[int]) -> bytes:
        page = self._page(light)
        tail = page[light % PAGE * 2 + 1]
        count = len(units) // 3
        first = page[light % PAGE * 2] - count
        if tail == NONE:
            return RUN.pack(light, first, 0, NONE, NONE, NONE, count) + pack_units(units)
        _, _, number, _, near, far, _ = self._read_run(tail, light)
        near = tail if number % NEAR == 0 else near
        far = tail if number % FAR == 0 else far
        return RUN.pack(light, first, number + 1, tail, near, far, count) + pack_units(units)

    def _write_frame(self, start: int, runs: list[bytes], after: int) -> None:
        body = b"".join(runs)
        tail = FRAME.pack(FRAME_MAGIC, 0, len(body), len(runs), self.log_position, after)[_CRC_FROM:] + body
        frame = FRAME_MAGIC + crc32(tail).to_bytes(4, "big") + tail
        base = start - start % self._segment_size
        if start + len(frame) > base + self._segment_size:
            raise StoreCorruptError(f"{self._directory}: a frame of {len(frame)} bytes does not fit a segment")
        self._files.pwrite(self._handle(base, True), frame, start - base)
        self.unsynced.add(base)
        self.end = start + len(frame)
        self.log_position = after

    def _handle(self, base: int, create: bool) -> int:
        handle = self._handles.pop(base, -1)
        if handle < 0:
            if len(self._handles) >= HANDLES_MAX:
                self._files.close(self._handles.pop(next(iter(self._handles))))
            handle = self._files.open(self._directory / file_name(base), create)
        self._handles[base] = handle
        return handle

    # --- reading

    def _read(self, at: int, count: int) -> bytes:
        base = at - at % self._segment_size
        return self._files.pread(self._handle(base, False), count, at - base)

    def _read_now(self, at: int, count: int) -> bytes:
        """As `_read`, but `Cold` rather than wait."""
        if self.cold is None:
            return self._read(at, count)
        base = at - at % self._segment_size
        path = self._directory / file_name(base)
        return self.cold.read(path, self._handle(base, False), count, at - base, self._opened_at - base)

    def _read_run(self, at: int, light: int, now: bool = False) -> _Run:
        data = self._read_now(at, RUN.size) if now else self._read(at, RUN.size)
        run: _Run = RUN.unpack(data) if len(data) == RUN.size else (NONE, 0, 0, 0, 0, 0, 0)
        if run[0] != light:
            raise StoreCorruptError(f"{self._directory}: no run of light queue {light} at {at}")
        return run

    def read(self, light: int, offset: int, count: int) -> list[Unit]:
        """Up to `count` units from `offset` on, pending ones included; empty at or above the maximum offset."""
        next_offset = self.next_offset(light)
        end = min(offset + count, next_offset)
        if offset < 0 or offset >= end:
            return []
        pending = self.pending.get(light, [])
        written_end = next_offset - len(pending) // 3
        units: list[Unit] = []
        while offset < min(end, written_end):
            first, at, run_count = self._find(light, offset)
            take = min(first + run_count, end) - offset
            data = self._read_now(at + RUN.size + (offset - first) * UNIT_SIZE, take * UNIT_SIZE)
            units.extend(UNIT.iter_unpack(data))
            offset += take
        if offset < end:
            at, stop = (offset - written_end) * 3, (end - written_end) * 3
            units.extend(
                zip(pending[at:stop:3], pending[at + 1 : stop : 3], pending[at + 2 : stop : 3], strict=True)
            )
        return units

    def _find(self, light: int, offset: int) -> tuple[int, int, int]:
        """(first offset, position, units) of the run that holds `offset`."""
        trail = self._trails.get(light)
        if trail is not None:
            while trail and trail[-1][0] + trail[-1][2] <= offset:
                trail.pop()
            if trail and trail[-1][0] <= offset:
                return trail[-1]
        at = self._page(light)[light % PAGE * 2 + 1]
        trail = []
        too_far: set[int] = set()
        _, first, _, previous, near, far, count = self._read_run(at, light, True)
        while first > offset:
            trail.append((first, at, count))
            at = previous
            for jump in (far, near):
                if jump in too_far or jump in (NONE, previous):
                    continue
                run = self._read_run(jump, light, True)
                if run[1] + run[6] > offset:
                    at = jump
                    trail.clear()  # what is passed over now is far ahead of the reader
                    break
                too_far.add(jump)
            _, first, _, previous, near, far, count = self._read_run(at, light, True)
        trail.append((first, at, count))
        self._trails[light] = trail
        self._trails.move_to_end(light)
        if len(self._trails) > TRAILS_MAX:
            self._trails.popitem(last=False)
        return first, at, count

    # --- opening

    def open(self, log_end: int) -> None:
        """Read the stream up to the first frame that is bad or speaks of records at or above `log_end`, and drop the rest."""
        self._files.make_dirs(self._directory)
        bases = positions_in(self._files, self._directory)
        if not self._load_tails(bases, log_end):
            self.end = bases[0] if bases else 0
            self.log_position = 0
        self._scan(bases, log_end)
        keep = self.end - self.end % self._segment_size
        for base in bases:
            if base > keep:
                self._files.remove(self._directory / file_name(base))
        self._opened_at = self.end
        if keep in bases:
            self._files.truncate(self._handle(keep, False), self.end - keep)

    def _scan(self, bases: list[int], log_end: int) -> None:
        present = set(bases)
        while True:
            base = self.end - self.end % self._segment_size
            if base not in present:
                return
            if self._scan_frame(self.end, log_end):
                continue
            following = base + self._segment_size
            if following not in present or not self._scan_frame(following, log_end):
                return

    def _scan_frame(self, at: int, log_end: int) -> bool:
        head = self._read(at, FRAME.size)
        if len(head) < FRAME.size:
            return False
        magic, crc, length, count, before, after = FRAME.unpack(head)
        if magic != FRAME_MAGIC or length > self._segment_size or before != self.log_position or after > log_end:
            return False
        body = self._read(at + FRAME.size, length)
        if crc32(head[_CRC_FROM:] + body) != crc:
            return False
        place = 0
        for _ in range(count):
            light, first, _, _, _, _, units = RUN.unpack_from(body, place)
            page = self._page(light)
            if first == DELETED:
                page[light % PAGE * 2], page[light % PAGE * 2 + 1] = DELETED, NONE
            else:
                page[light % PAGE * 2] = first + units
                page[light % PAGE * 2 + 1] = at + FRAME.size + place
            place += RUN.size + units * UNIT_SIZE
        self.end = at + FRAME.size + length
        self.log_position = after
        return True

    def _load_tails(self, bases: list[int], log_end: int) -> bool:
        path = self._directory / "tails"
        if not self._files.exists(path):
            return False
        handle = self._files.open(path, False)
        try:
            data = self._files.pread(handle, self._files.size(handle), 0)
        finally:
            self._files.close(handle)
        if len(data) < TAILS.size:
            return False
        magic, crc, end, log_position, count = TAILS.unpack_from(data)
        base = (end - 1) // self._segment_size * self._segment_size if end else 0
        if magic != TAILS_MAGIC or crc32(data[8:]) != crc or log_position > log_end or (end and base not in bases):
            return False
        if end and self._files.size(self._handle(base, False)) < end - base:
            return False
        table = array("q", data[TAILS.size : TAILS.size + count * 24])
        table.byteswap()
        for light, next_offset, tail in zip(table[::3], table[1::3], table[2::3], strict=True):
            page = self._page(light)
            page[light % PAGE * 2], page[light % PAGE * 2 + 1] = next_offset, tail
        self.end, self.log_position = end, log_position
        return True

    def save_tails(self) -> None:
        """Snapshot of the table, so that the next start scans only what comes after it. Nothing may be pending."""
        table: list[int] = []
        for number, page in self._pages.items():
            for index in range(0, 2 * PAGE, 2):
                if page[index] or page[index + 1] != NONE:
                    table += (number * PAGE + index // 2, page[index], page[index + 1])
        packed = array("q", table)
        packed.byteswap()
        tail = TAILS.pack(TAILS_MAGIC, 0, self.end, self.log_position, len(table) // 3)[8:] + packed.tobytes()
        temporary = self._directory / "tails.tmp"
        handle = self._files.open(temporary, True)
        try:
            self._files.truncate(handle, 0)
            self._files.pwrite(handle, TAILS_MAGIC + crc32(tail).to_bytes(4, "big") + tail, 0)
            self._files.datasync(handle)
        finally:
            self._files.close(handle)
        self._files.rename(temporary, self._directory / "tails")

    def take_unsynced(self) -> list[Path]:
        """Files written since the last call."""
        paths = [self._directory / file_name(base) for base in self.unsynced]
        self.unsynced.clear()
        return paths

    def close(self) -> None:
        for handle in self._handles.values():
            self._files.close(handle)
        self._handles.clear()
