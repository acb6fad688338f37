"""ConsumeQueues: per topic and queue, 20 bytes for each record, in log order (docs/formats/consumequeue.md).

      0  physical offset 8 | record size 4 | tag code 8

A unit is readable the moment it is dispatched: it waits in memory (three integers) until `write_pending` puts all of a queue's
units into its file with one `pwrite`. No file is mapped and a bounded number is open, so that 80,000 queues work. A unit
of size 0x7FFFFFFF stands for an offset without a record (before the first one, or lost with a damaged record).
"""

from __future__ import annotations

import logging
from itertools import compress
from struct import Struct
from typing import TYPE_CHECKING, Final

from gantrymq.model.errors import StoreCorruptError
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.log.commit_log import file_name, positions_in
from gantrymq.store.queues.ranges import Ranges
from gantrymq.store.queues.unit_words import Spans, matching, spans_of

if TYPE_CHECKING:
    from pathlib import Path

    from gantrymq.store.cold import ColdReads
    from gantrymq.store.files import Buffer, FileSystem

log = logging.getLogger(__name__)

Unit = tuple[int, int, int]
"""Physical offset, record size, tag code."""

UNIT: Final = Struct(">qiq")
HOLE_SIZE: Final = 0x7FFFFFFF
"""RocketMQ's pre-blank unit."""
HOLE: Final = (0, HOLE_SIZE, 0)
HOLES_MAX: Final = 1_000_000
"""Lost offsets filled in at once; a larger jump comes from a damaged queue offset, and its record enters no queue."""
UNITS_PER_PACK: Final = 64
"""Units packed by one call: more need larger layouts (40 bytes of memory a field, and a millisecond to make one of thousands)."""
_UNITS: Final = [Struct(">" + "qiq" * count) for count in range(UNITS_PER_PACK + 1)]

WINDOW_UNITS: Final = 200
"""Read at once when a queue's end is looked for: a page of the disk."""
PATHS_MAX: Final = 1024
"""Paths of files that are read, kept because making one takes as long as reading 32 units: as many as there are queues in use at a time,
at 600 bytes each. Beyond it all are forgotten."""


def pack_units(flat: list[int]) -> bytes:
    """Units from a flat list of offset, size, tag code, repeated."""
    count = len(flat) // 3
    if count <= UNITS_PER_PACK:
        return _UNITS[count].pack(*flat)
    pack = _UNITS[UNITS_PER_PACK].pack
    whole = count // UNITS_PER_PACK * UNITS_PER_PACK * 3
    parts = [pack(*flat[at : at + UNITS_PER_PACK * 3]) for at in range(0, whole, UNITS_PER_PACK * 3)]
    parts.append(_UNITS[count % UNITS_PER_PACK].pack(*flat[whole:]))
    return b"".join(parts)


class QueueFiles:
    """Open ConsumeQueue files, least recently used first; a bounded number of descriptors."""

    def __init__(self, files: FileSystem, root: Path, file_size: int, handles_max: int) -> None:
        self.files = files
        self.root = root
        self.file_size = file_size
        self._handles_max = handles_max
        self._handles: dict[Path, int] = {}
        self.paths: dict[tuple[ConsumeQueue, int], Path] = {}
        """Of files that were read, by queue and first position."""
        self.unsynced: set[Path] = set()
        self.log_min = 0
        self.log_end = 1 << 62
        """Where the log ended when the store was opened, once that is known: a queue that is opened later has no unit there or above."""
        self.cold: ColdReads | None = None
        """Set while the loop runs: `ConsumeQueue.read` then raises `Cold` rather than wait for the disk."""

    def handle(self, path: Path, create: bool) -> int:
        handle = self._handles.pop(path, -1)
        if handle < 0:
            if len(self._handles) >= self._handles_max:
                oldest = next(iter(self._handles))
                self.files.close(self._handles.pop(oldest))
            handle = self.files.open(path, create)
            if self.files.size(handle) != self.file_size:  # new, or cut short by a crash
                self.files.truncate(handle, self.file_size)
        self._handles[path] = handle
        return handle

    def drop(self, path: Path) -> None:
        handle = self._handles.pop(path, -1)
        if handle >= 0:
            self.files.close(handle)
        self.unsynced.discard(path)

    def write(self, path: Path, data: Buffer, at: int) -> None:
        handle = self.handle(path, True)
        self.unsynced.add(path)
        self.files.pwrite(handle, data, at)

    def read(self, path: Path, count: int, at: int, fresh_from: int) -> bytes:
        handle = self.handle(path, False)
        if self.cold is not None:
            return self.cold.read(path, handle, count, at, fresh_from)
        return self.files.pread(handle, count, at)

    def sync(self, path: Path) -> None:
        """Any thread: opens its own descriptor."""
        try:
            handle = self.files.open(path, False)
        except FileNotFoundError:
            return  # retention removed it meanwhile
        try:
            self.files.datasync(handle)
        finally:
            self.files.close(handle)

    def close(self) -> None:
        for handle in self._handles.values():
            self.files.close(handle)
        self._handles.clear()


def first_free(files: FileSystem, handle: int, low: int, high: int, cut_at: int = -1) -> int:
    """Index of the first unit of a file, from `low` on, that is empty or (with `cut_at`) points at or above it; all before are neither."""
    pread = files.pread
    data = pread(handle, min(WINDOW_UNITS, high - low) * UNIT_SIZE, low * UNIT_SIZE)
    whole, used = len(data) // UNIT_SIZE, -(-len(data.rstrip(b"\0")) // UNIT_SIZE)
    units = list(UNIT.iter_unpack(data[: min(used + 1, whole) * UNIT_SIZE]))  # not 200 of which one counts
    first = low
    low = first + len(units)
    if not units or units[-1][1] <= 0 or (cut_at >= 0 and units[-1][1] != HOLE_SIZE and units[-1][0] >= cut_at):
        low, high = first, first + len(units)  # most queues have few units in a file: one read
    while low < high:
        middle = (low + high) // 2
        if middle - first < len(units):
            position, size, _ = units[middle - first]
        else:
            data = pread(handle, UNIT_SIZE, middle * UNIT_SIZE)
            position, size, _ = UNIT.unpack(data) if len(data) == UNIT_SIZE else (0, 0, 0)
        if size <= 0 or (cut_at >= 0 and size != HOLE_SIZE and position >= cut_at):
            high = middle
        else:
            low = middle + 1
    return low


class ConsumeQueue:
    """One queue. `next_offset` is its maximum offset; `pending` the newest units as a flat list."""

    __slots__ = (
        "_bases",
        "_files",
        "_made",
        "_opened_at",
        "checked",
        "directory",
        "min_offset",
        "next_offset",
        "pending",
        "queue_id",
    )

    def __init__(self, files: QueueFiles, directory: Path, queue_id: int) -> None:
        self._files = files
        self.directory = directory
        self.queue_id = queue_id
        self.next_offset = 0
        self.min_offset = 0
        self.checked: Ranges | None = None
        """Offsets whose records were found whole by this process (store/checked.py); made when there are any."""
        self.pending: list[int] = []
        self._bases: list[int] = []
        self._made = False
        self._opened_at = 0
        """Bytes that the queue had when it was opened: what follows was written by this process."""

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.directory.parent.name

    def note_checked(self, first: int, end: int) -> None:
        """Records of these offsets are whole. Several readers' places are remembered, and what a reader looked at while it skipped."""
        if self.checked is None:
            self.checked = Ranges()
        self.checked.add(first, end)

    def open(self, cut_at: int = -1) -> None:
        """Find the files and both ends. With `cut_at` every unit of that physical offset or above is removed."""
        self._bases = positions_in(self._files.files, self.directory)
        self._made = bool(self._bases)
        self._finish_removal()
        if cut_at < 0 and self._bases:
            self._drop_empty_files()
            cut_at = self._find_end()
        if cut_at >= 0:
            self._cut(cut_at)
        if not self._bases:
            self.next_offset = self.min_offset = 0
            return
        self.min_offset = self._find_min()
        self._opened_at = self.next_offset * UNIT_SIZE

    def _find_end(self) -> int:
        """Where to cut what points behind the log's end: a file system lost that end while the machine ran on; -1 if nothing does."""
        base = self._bases[-1]
        index = self._first(base, 0, self._files.file_size // UNIT_SIZE, -1)
        self.next_offset = base // UNIT_SIZE + index
        position, size, _ = self._unit_at(base, index - 1) if index else (0, HOLE_SIZE, 0)
        if size == HOLE_SIZE or position < self._files.log_end:
            return -1
        log.warning("queue %s points behind the log's end %d: it is cut", self.directory, self._files.log_end)
        return self._files.log_end

    def remove_files(self, log_end: int) -> int:
        """For a rebuild: returns the offset behind the last unit that names something below `log_end`, before the files go."""
        self._bases = positions_in(self._files.files, self.directory)
        end = 0
        if self._bases:
            base = self._bases[-1]
            end = base // UNIT_SIZE + self._first(base, 0, self._files.file_size // UNIT_SIZE, log_end)
        while self._bases:
            self._remove_last()
        return end

    def reach(self, end: int) -> None:
        """The queue had come to `end`, though the log does not say so any more: its offsets are not given twice."""
        if end > self.next_offset:
            empty = not self._bases and not self.pending
            if not self.replay(end - 1, HOLE):
                log.error("queue %s ended at offset %d, the log leads to %d: it goes on there",
                          self.directory, end, self.next_offset)  # fmt: skip
            elif empty:
                self.min_offset = end
            self.write_pending()

    def _finish_removal(self) -> None:
        """A power cut may have undone the removal of an expired file and not that of the one behind it."""
        bases, size = self._bases, self._files.file_size
        gaps = [place for place in range(1, len(bases)) if bases[place] != bases[place - 1] + size]
        for base in bases[: gaps[-1]] if gaps else ():
            position, length, _ = self._unit_at(base, size // UNIT_SIZE - 1)
            if length != HOLE_SIZE and position >= self._files.log_min:
                return  # not expired: a file is missing
            self._files.drop(self._path(base))
            self._files.files.remove(self._path(base))
            self._bases = self._bases[1:]

    def _unit_at(self, base: int, index: int) -> Unit:
        data = self._files.files.pread(self._files.handle(self._path(base), False), UNIT_SIZE, index * UNIT_SIZE)
        return UNIT.unpack(data) if len(data) == UNIT_SIZE else (0, 0, 0)

    def _path(self, base: int) -> Path:
        return self.directory / file_name(base)

    def _read_file(self, base: int, at: int, length: int) -> bytes:
        """`length` bytes from `at` on of the file that begins at `base`."""
        paths = self._files.paths
        path = paths.get((self, base))
        if path is None:
            if len(paths) >= PATHS_MAX:
                paths.clear()
            path = paths[self, base] = self._path(base)
        return self._files.read(path, length, at - base, self._opened_at - base)

    def _first(self, base: int, low: int, high: int, cut_at: int) -> int:
        return first_free(self._files.files, self._files.handle(self._path(base), False), low, high, cut_at)

    def _drop_empty_files(self) -> None:
        """A file made just before a crash may hold nothing; the queue ends in the one before it."""
        while len(self._bases) > 1 and self._unit_at(self._bases[-1], 0)[1] <= 0:
            self._remove_last()

    def _remove_last(self) -> None:
        path = self._path(self._bases.pop())
        self._files.drop(path)
        self._files.files.remove(path)

    def _cut(self, cut_at: int) -> None:
        per_file = self._files.file_size // UNIT_SIZE
        while self._bases:
            base = self._bases[-1]
            index = self._first(base, 0, per_file, cut_at)
            if index or len(self._bases) == 1:
                path = self._path(base)
                self.next_offset = base // UNIT_SIZE + index if index else 0
                if not index and base:
                    self._remove_last()  # an empty queue begins at offset 0
                    return
                handle = self._files.handle(path, True)
                self._files.files.truncate(handle, index * UNIT_SIZE)
                self._files.files.truncate(handle, self._files.file_size)
                self._files.unsynced.add(path)
                return
            self._remove_last()

    def _find_min(self) -> int:
        low, high = self._bases[0] // UNIT_SIZE, self.next_offset
        if low >= high:
            return high
        position, size, _ = self._unit_of(low)
        if size != HOLE_SIZE and position >= self._files.log_min:
            return low
        while low < high:
            middle = (low + high) // 2
            found, position = self._past_holes(middle, high)
            if found < high and position < self._files.log_min:
                low = found + 1
            else:
                high = middle
        return self._past_holes(low, self.next_offset, over_blank=False)[0]  # a reader has to meet what is damaged

    def _past_holes(self, offset: int, end: int, over_blank: bool = True) -> tuple[int, int]:
        """Offset and position of the first unit from `offset` on that is no hole, and not blank; `end` if there is none below it. A lost record
        says nothing of what lies before and behind it. Waits for the disk; nothing is pending."""
        while offset < end:
            at = offset * UNIT_SIZE
            base = at - at % self._files.file_size
            count = min(end - offset, WINDOW_UNITS, (base + self._files.file_size - at) // UNIT_SIZE)
            handle = self._files.handle(self._path(base), False)
            data = self._files.files.pread(handle, count * UNIT_SIZE, at - base)
            for position, size, _ in UNIT.iter_unpack(data):
                if size != HOLE_SIZE and (size > 0 or not over_blank):
                    return offset, position
                offset += 1
        return end, 0

    def _unit_of(self, offset: int) -> Unit:
        """One unit, waiting for the disk if need be: an append opens a queue, and must not come upon `Cold`."""
        if offset >= self.next_offset - len(self.pending) // 3:
            return self.read(offset, 1)[0]
        at = offset * UNIT_SIZE
        base = at - at % self._files.file_size
        return self._unit_at(base, (at - base) // UNIT_SIZE)

    def replay(self, offset: int, unit: Unit) -> bool:
        """Dispatch of a recovered record at its own queue offset. False: a jump that cannot be true; nothing was done."""
        if offset < self.next_offset:
            return offset >= 0
        if not self._bases and not self.pending:
            first_of_file = offset * UNIT_SIZE // self._files.file_size * self._files.file_size // UNIT_SIZE
            self.next_offset = first_of_file
            self.min_offset = offset
        if offset - self.next_offset > HOLES_MAX:
            return False
        self.pending.extend(HOLE * (offset - self.next_offset))
        self.pending.extend(unit)
        self.next_offset = offset + 1
        return True

    def read(self, offset: int, count: int) -> list[Unit]:
        """Up to `count` units from `offset` on, pending ones included. May raise `Cold` (store/cold.py)."""
        pending = self.pending
        end = min(offset + count, self.next_offset)
        if offset < 0 or offset >= end:
            return []
        written_end = self.next_offset - len(pending) // 3
        if offset >= written_end:
            at, stop = (offset - written_end) * 3, (end - written_end) * 3
            return list(zip(pending[at:stop:3], pending[at + 1 : stop : 3], pending[at + 2 : stop : 3], strict=True))
        units: list[Unit] = []
        size = self._files.file_size
        at, stop = offset * UNIT_SIZE, min(end, written_end) * UNIT_SIZE
        while at < stop:
            base = at - at % size
            if not self._bases or base < self._bases[0]:
                raise StoreCorruptError(f"{self.directory}: no file for offset {offset}")
            length = min(stop, base + size) - at
            data = self._read_file(base, at, length)
            units.extend(UNIT.iter_unpack(data))
            at += length
        if end > written_end:
            units.extend(self.read(written_end, end - written_end))
        return units

    def spans(self, offset: int, count: int) -> Spans | None:
        """Where the records of up to `count` units from `offset` on lie, without taking the units apart one by one.

        None where only `read` can tell: outside the queue, and where the units lie in two places or their records on both sides of a
        multiple of 4 GiB. The size of a lost offset is `HOLE_SIZE`. May raise `Cold`.
        """
        pending = self.pending
        end = min(offset + count, self.next_offset)
        written_end = self.next_offset - len(pending) // 3
        if not 0 <= offset < end:
            return None
        if offset >= written_end:
            at, stop = (offset - written_end) * 3, (end - written_end) * 3
            return pending[at:stop:3], pending[at + 1 : stop : 3], 0
        at, length = offset * UNIT_SIZE, (end - offset) * UNIT_SIZE
        base = at - at % self._files.file_size
        if end > written_end or at + length > base + self._files.file_size or not self._bases or base < self._bases[0]:
            return None
        data = self._read_file(base, at, length)
        if len(data) != length:
            return None
        return spans_of(data)

    def select(
        self, offset: int, count: int, codes: frozenset[int], words: frozenset[int]
    ) -> tuple[list[int], list[int], list[int]]:
        """Of up to `count` units from `offset` on those with one of the tag codes: their offsets, their records' positions and sizes.
        `words`: `unit_words.tag_words(codes)`. A unit that is not wanted costs 20 ns: it is never taken apart. May raise `Cold`.
        """
        pending = self.pending
        end = min(offset + count, self.next_offset)
        written_end = self.next_offset - len(pending) // 3
        offsets: list[int] = []
        positions: list[int] = []
        sizes: list[int] = []
        size = self._files.file_size
        at, stop = offset * UNIT_SIZE, min(end, written_end) * UNIT_SIZE
        while at < stop:
            base = at - at % size
            if not self._bases or base < self._bases[0]:
                raise StoreCorruptError(f"{self.directory}: no file for offset {at // UNIT_SIZE}")
            length = min(stop, base + size) - at
            places, found, lengths = matching(self._read_file(base, at, length), words)
            first = at // UNIT_SIZE
            offsets += [first + place for place in places]
            positions += found
            sizes += lengths
            at += length
        first = max(offset, written_end)
        if end > first:
            at = (first - written_end) * 3
            tags = pending[at + 2 : (end - written_end) * 3 : 3]
            for place in [place for place, code in enumerate(tags) if code in codes]:
                offsets.append(first + place)
                positions.append(pending[at + place * 3])
                sizes.append(pending[at + place * 3 + 1])
        if HOLE_SIZE in sizes:
            kept = [length != HOLE_SIZE for length in sizes]
            offsets, positions, sizes = [list(compress(column, kept)) for column in (offsets, positions, sizes)]
        return offsets, positions, sizes

    @property
    def unused(self) -> bool:
        """It has never had a record."""
        return not self.next_offset and not self._bases

    def expired_files(self) -> list[Path]:
        """Oldest files whose every unit is below `min_offset`; never the last one, which says where the queue goes on."""
        limit = self.min_offset * UNIT_SIZE - self._files.file_size
        return [self._path(base) for base in self._bases[:-1] if base <= limit]

    def forget(self, count: int) -> None:
        """The oldest `count` files are about to be removed."""
        del self._bases[:count]

    def write_pending(self) -> None:
        """Put the pending units into the file: one `pwrite`, two where they cross into the next file."""
        pending = self.pending
        if not pending:
            return
        if not self._made:
            self._files.files.make_dirs(self.directory)
            self._made = True
        data = pack_units(pending)
        size = self._files.file_size
        at = (self.next_offset - len(pending) // 3) * UNIT_SIZE
        start = 0
        while start < len(data):
            base = at - at % size
            length = min(len(data) - start, base + size - at)
            part = data if length == len(data) else data[start : start + length]
            self._files.write(self._path(base), part, at - base)
            if not self._bases or base > self._bases[-1]:
                self._bases.append(base)
            at += length
            start += length
        self.pending = []
