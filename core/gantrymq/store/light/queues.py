"""Light queues: queues without a file each (docs/formats/light.md).

All of them share one stream of frames (light/stream.py), to which a flush appends one run of units per queue that has new ones. A run
points back to the run before it in its queue, to the newest one before it whose number divides by 64 (near) and by 4,096 (far), so
that any offset is found in few steps. The table (light/table.py) has seven integers per queue; its file is written a few pages at a
time while the store works. The oldest segment of the stream goes when much of the stream is dead (light/cleaner.py).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from gantrymq.model.errors import StoreCorruptError
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.light.cleaner import LightCleaner
from gantrymq.store.light.stream import FRAME, MOVED_FLAG, PART_FLAG, RUN, SEGMENT_SIZE, UNITS_MASK, LightStream
from gantrymq.store.light.table import (
    DELETED,
    FAR,
    FLOOR,
    FRONT,
    GONE,
    NEAR,
    NEXT,
    NONE,
    NUMBER,
    PAGE_MASK,
    PAGE_SHIFT,
    TAIL,
    WIDTH,
    LightTable,
)  # fmt: skip
from gantrymq.store.log.commit_log import file_name, positions_in
from gantrymq.store.queues.consume_queue import HOLE, UNIT, Unit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gantrymq.store.files import FileSystem

NEAR_RUNS: Final = 64
FAR_RUNS: Final = 4096
LIGHT_MAX: Final = 1 << 56
HOLES_MAX: Final = 65_536
"""Lost offsets filled in at replay; a larger jump comes from a damaged record."""
TRAILS_MAX: Final = 1024
"""Queues whose last walk is remembered, so that reading on is no new search."""
TRAIL_RUNS_MAX: Final = 4096
"""Runs remembered of one walk: those nearest to the reader."""
SNAPSHOT_BYTES: Final = 16 * 1024 * 1024
"""Stream between two snapshots of the table: what a start after a crash reads is at most a few times this."""
SNAPSHOT_PAGES: Final = 64
"""Pages of the table written after a flush, 64 queues and about 6 us each."""
SNAPSHOT_PAGES_PER_FRAME: Final = 12
"""...and after each of its frames: the snapshot of a large table must not take as long as the stream takes to become long."""


class LightQueues(LightStream):
    """All light queues of a store. Loop thread only, but for what `snapshot` returns."""

    def __init__(self, files: FileSystem, directory: Path, segment_size: int = SEGMENT_SIZE) -> None:
        super().__init__(files, directory, segment_size)
        self.table = LightTable(files, directory / "table")
        self._cleaner = LightCleaner(self, self.table, lambda: self.live_units, self.move_begin, self.forget_trail)
        self.pending: dict[int, bytes | list[bytes]] = {}
        """Newest units of a queue as bytes; those of one record are one object, however many queues it is in."""
        self.pending_units = 0
        self.live_units = 0
        """Entries of all queues that are not trimmed."""
        self._deleted: list[int] = []
        self._trails: OrderedDict[int, list[tuple[int, int, int]]] = OrderedDict()
        self._snapshot_end = 0
        self._old_bases: list[int] = []
        self.remade = False
        """The table is made again from the stream."""
        self.distrusted = False
        """Set before `open`: the table is not to be believed, the stream as far as its frames are sound."""
        self.recovered = False
        """`open` read frames, or more is to come from the log: a snapshot spares the next start that."""

    # --- the table

    def next_offset(self, light: int) -> int:
        """The queue's maximum offset; 0 for one that never had an entry or is deleted."""
        page = self.table.pages.get(light >> PAGE_SHIFT)
        return max(page[(light & PAGE_MASK) * WIDTH], 0) if page is not None else 0

    def ids(self) -> list[int]:
        """Queues that ever had an entry and are not deleted."""
        found = []
        for number, page in self.table.pages.items():
            found += [number << PAGE_SHIFT | place for place, end in enumerate(page[NEXT::WIDTH]) if end > 0]
        return found

    def min_offset(self, light: int) -> int:
        """Entries below it are trimmed."""
        page = self.table.pages.get(light >> PAGE_SHIFT)
        return page[(light & PAGE_MASK) * WIDTH + FLOOR] if page is not None else 0

    def add(self, light: int, position: int, size: int, code: int) -> int:
        """Dispatch a record into the queue; returns the offset that it took. An offset is never used twice."""
        self.add_all((light,), position, size, code)
        return self.next_offset(light) - 1

    def offsets_of(self, targets: tuple[int, ...]) -> list[int]:
        """The offsets that the next record takes in these queues."""
        pages = self.table.pages
        offsets = []
        for light in targets:
            page = pages.get(light >> PAGE_SHIFT)
            offset = page[(light & PAGE_MASK) * WIDTH] if page is not None else 0
            offsets.append(offset if offset > 0 else 0)
        return offsets

    def add_all(self, targets: tuple[int, ...], position: int, size: int, code: int) -> None:
        """Dispatch a record into each of the queues."""
        pages, pending = self.table.pages, self.pending
        unit = UNIT.pack(position, size, code)
        for light in targets:
            page = pages.get(light >> PAGE_SHIFT)
            if page is None:
                page = self.table.page(light >> PAGE_SHIFT)
            slot = (light & PAGE_MASK) * WIDTH
            offset = page[slot]
            page[slot] = offset + 1 if offset > 0 else 1
            units = pending.get(light)
            if units is None:
                pending[light] = unit
            elif type(units) is list:
                units.append(unit)
            else:
                pending[light] = [units, unit]  # type: ignore[list-item]
        self.pending_units += len(targets)
        self.live_units += len(targets)

    def newest_pending(self, light: int) -> int:
        """Physical offset of the queue's newest unit that is not in the stream, -1 if there is none."""
        units = self.pending.get(light)
        if units is None:
            return -1
        return int(UNIT.unpack(units[-1] if isinstance(units, list) else units)[0])

    def take_back(self, light: int) -> None:
        """Undo the newest `add` (its record could not be written)."""
        page, slot = self.table.slot(light)
        page[slot] -= 1
        units = self.pending[light]
        if isinstance(units, list) and len(units) > 1:
            units.pop()
        else:
            del self.pending[light]
        self.pending_units -= 1
        self.live_units -= 1

    def replay(self, light: int, offset: int, unit: Unit) -> None:
        """Dispatch of a recovered record with the offset that it took when it was appended."""
        page, slot = self.table.slot(light)
        if page[slot] < 0:
            return
        if not page[slot] and 0 < offset < LIGHT_MAX:
            page[slot] = page[slot + FLOOR] = offset  # what was before it is gone with the log's begin
        missing = offset - page[slot]
        if missing < 0 or missing > HOLES_MAX:
            return
        for _ in range(missing):
            self.add(light, *HOLE)
        self.add(light, *unit)

    def trim(self, light: int, below_offset: int) -> None:
        """Entries below an offset are not needed any more: their space is used again. Cheap; after a crash they may be back."""
        page = self.table.pages.get(light >> PAGE_SHIFT)
        if page is None:
            return
        slot = (light & PAGE_MASK) * WIDTH
        floor = min(below_offset, page[slot])
        if floor > page[slot + FLOOR]:
            self.live_units -= floor - page[slot + FLOOR]
            page[slot + FLOOR] = floor
            self.table.dirty.add(light >> PAGE_SHIFT)

    def delete(self, light: int) -> None:
        """Forget the queue's entries; its id is never used again."""
        page, slot = self.table.slot(light)
        if page[slot] > 0:
            self.live_units -= page[slot] - page[slot + FLOOR]
        page[slot : slot + WIDTH] = GONE[:WIDTH]
        self._trails.pop(light, None)
        units = self.pending.pop(light, None)
        if units is not None:
            self.pending_units -= len(units) if isinstance(units, list) else 1
        self._deleted.append(light)

    # --- writing

    def write_pending(self, log_position: int) -> None:
        """Append all pending units; `log_position`: every record below it has been added. On an error the rest stays pending."""
        self.write_some(log_position, 1 << 30)

    def write_some(self, log_position: int, frames_max: int) -> bool:
        """As `write_pending`, so many frames of it. True: nothing is pending."""
        while self.pending or self._deleted or log_position > self.log_position:
            if not frames_max:
                return False
            frames_max -= 1
            # Deletions first: an id that is used again in spite of its contract begins anew.
            count = self.frame_room // RUN.size
            deleted = self._deleted[:count]
            runs = [RUN.pack(light, DELETED, 0, NONE, NONE, NONE, 0) for light in deleted]
            length = len(runs) * RUN.size
            changes: list[tuple[int, int, int, int, int, int]] = []
            if len(deleted) == len(self._deleted):
                length, complete = self._fill(runs, changes, length)
            else:
                complete = False
            start = self.write_frame(runs, length, log_position if complete else self.log_position, log_position)
            del self._deleted[:count]
            self._written(start, deleted, changes)
            # Pages may speak of units that still wait: before a snapshot becomes true these are in frames behind it.
            if not self._deleted:
                self.table.step(SNAPSHOT_PAGES_PER_FRAME)
        self._after_flush()
        return True

    def _fill(
        self, runs: list[bytes], changes: list[tuple[int, int, int, int, int, int]], length: int
    ) -> tuple[int, bool]:
        """Add runs of pending units up to the size of a frame. (bytes, whether that was all); per run in `changes`: light, place in the
        frame, number, near, far, units."""
        room, pages = self.frame_room, self.table.pages
        pack = RUN.pack
        for light, units in self.pending.items():
            count = len(units) if type(units) is list else 1
            size = RUN.size + count * UNIT_SIZE
            fits = (room - RUN.size) // UNIT_SIZE
            if length + size > room and length:
                return length, False
            page = pages[light >> PAGE_SHIFT]
            slot = (light & PAGE_MASK) * WIDTH
            first = page[slot] - count
            count = min(count, fits)
            tail, number, near, far = page[slot + TAIL], page[slot + NUMBER], page[slot + NEAR], page[slot + FAR]
            if tail == NONE:
                number = 0
            else:
                if number % NEAR_RUNS == 0:
                    near = tail
                    if number % FAR_RUNS == 0:
                        far = tail
                number += 1
            data = units if type(units) is bytes else b"".join(units[:count])  # type: ignore[arg-type]
            runs.append(pack(light, first, number, tail, near, far, count) + data)
            changes.append((light, length, number, near, far, count))
            length += RUN.size + len(data)
            if type(units) is list and count < len(units):
                return length, False
        return length, True

    def _written(self, start: int, deleted: list[int], changes: list[tuple[int, int, int, int, int, int]]) -> None:
        """The frame at `start` is in the stream."""
        pages, pending, dirty = self.table.pages, self.pending, self.table.dirty
        for light in deleted:
            dirty.add(light >> PAGE_SHIFT)
        at = start + FRAME.size
        for light, place, number, near, far, count in changes:
            page = pages[light >> PAGE_SHIFT]
            slot = (light & PAGE_MASK) * WIDTH
            page[slot + TAIL] = at + place
            page[slot + NUMBER] = number
            page[slot + NEAR] = near
            page[slot + FAR] = far
            dirty.add(light >> PAGE_SHIFT)
            units = pending[light]
            if type(units) is list and count < len(units):
                del units[:count]
            else:
                del pending[light]
            self.pending_units -= count

    def _after_flush(self) -> None:
        """Nothing is pending: a slice of the snapshot and of cleaning."""
        table = self.table
        if not table.busy and (self.end - self._snapshot_end >= SNAPSHOT_BYTES or self._old_bases):
            self._begin_snapshot()
        table.step(SNAPSHOT_PAGES)
        self._cleaner.step()

    def _begin_snapshot(self) -> None:
        self._snapshot_end = self.end
        self._old_bases = []
        self.table.begin(self.end, self.log_position, self.begin)

    def move_begin(self, position: int) -> None:
        """Nothing below `position` (a segment's begin) is needed; its file goes once a snapshot says so."""
        for base in range(self.begin - self.begin % self.segment_size, position, self.segment_size):
            handle = self._handles.pop(base, -1)
            if handle >= 0:
                self._files.close(handle)
            self._old_bases.append(base)
        self.begin = position
        self._trails.clear()

    # --- reading

    def read(self, light: int, offset: int, count: int) -> list[Unit]:
        """Up to `count` units from `offset` on, pending ones included; empty at or above the maximum offset. Trimmed ones are holes."""
        next_offset = self.next_offset(light)
        end = min(offset + count, next_offset)
        if offset < 0 or offset >= end:
            return []
        pending = self.pending.get(light, ())
        waiting = [pending] if isinstance(pending, bytes) else pending
        written_end = next_offset - len(waiting)
        units: list[Unit] = [HOLE] * (min(self.min_offset(light), end) - offset)
        offset += len(units)
        while offset < min(end, written_end):
            first, at, run_count = self._find(light, offset)
            if first + run_count <= offset:
                raise StoreCorruptError(f"{self.directory}: light queue {light} has no run with offset {offset}")
            if first > offset:  # trimmed before a crash that forgot it
                missing = min(first, end) - offset
                units.extend([HOLE] * missing)
                offset += missing
                continue
            take = min(first + run_count, end) - offset
            data = self._read_now(at + RUN.size + (offset - first) * UNIT_SIZE, take * UNIT_SIZE)
            units.extend(UNIT.iter_unpack(data))
            offset += take
        if offset < end:
            units.extend(map(UNIT.unpack, waiting[offset - written_end : end - written_end]))
        return units

    def _find(self, light: int, offset: int) -> tuple[int, int, int]:
        """(first offset, position, units) of the run that holds `offset`, or of the first one above it."""
        trail = self._trails.get(light)
        if trail is not None:
            while trail and trail[-1][0] + trail[-1][2] <= offset:
                trail.pop()
            if trail and trail[-1][0] <= offset:
                return trail[-1]
        page, slot = self.table.slot(light)
        at, front = page[slot + TAIL], page[slot + FRONT]
        trail = []
        if front >= self.begin:
            _, first, _, _, _, _, count = self.read_run(front, light, True)
            if offset < first + count:
                at = front
        self._walk(light, offset, at, trail)
        if trail[-1][0] > offset and page[slot + FLOOR] < trail[-1][0]:
            self.trim(light, trail[-1][0])
        self._trails[light] = trail
        self._trails.move_to_end(light)
        if len(self._trails) > TRAILS_MAX:
            self._trails.popitem(last=False)
        return trail[-1]

    def _walk(self, light: int, offset: int, at: int, trail: list[tuple[int, int, int]]) -> None:
        """Follow the queue's runs back from `at` to the one that holds `offset`, or to the oldest."""
        too_far: set[int] = set()
        _, first, _, previous, near, far, count = self.read_run(at, light, True)
        while first > offset and previous >= self.begin:
            trail.append((first, at, count))
            if len(trail) > 2 * TRAIL_RUNS_MAX:
                del trail[:TRAIL_RUNS_MAX]
            at = previous
            for jump in (far, near):
                if jump in too_far or jump < self.begin or jump == previous:
                    continue
                run = self.read_run(jump, light, True)
                if run[1] + run[6] > offset:
                    at = jump
                    trail.clear()  # what is passed over now is far ahead of the reader
                    break
                too_far.add(jump)
            _, first, _, previous, near, far, count = self.read_run(at, light, True)
        trail.append((first, at, count))

    def forget_trail(self, light: int) -> None:
        self._trails.pop(light, None)

    # --- opening

    def open(self, log_end: int, log_begin: int = 0) -> None:
        """Load the table, read the stream behind it up to the first frame that is bad or speaks of records at or above `log_end`, and
        drop the rest. `log_begin`: where the log's oldest segment begins."""
        self._files.make_dirs(self.directory)
        bases = positions_in(self._files, self.directory)
        dropped = [self.directory / "tails"]
        known = self.table.load()
        if known is not None and not self.distrusted and self._fits(known, bases, log_end):
            self.end, self.log_position, self.begin = known
        else:
            self.table.discard()
            self.remade = True
            dropped.append(self.directory / "table")
            self.begin = self.end = self.log_position = 0
            # A stream whose begin is missing was cleaned, or it lost its first file with the power: then the log has everything.
            cleaned = self.table.was_published or log_begin > 0
            if bases and bases[0] and not (cleaned and self._begin_behind(bases[0])):
                dropped += [self.directory / file_name(base) for base in bases]
                bases = []
        self._snapshot_end = self.end
        self._scan(bases, log_end)
        keep = self.end - self.end % self.segment_size
        dropped += [
            self.directory / file_name(base) for base in bases if base > keep or base + self.segment_size <= self.begin
        ]
        self._drop(dropped, keep if keep in bases else -1)
        read_from = self._snapshot_end - self._snapshot_end % self.segment_size
        self.unsynced.update(
            [base for base in bases if max(read_from, self.begin) <= base <= keep]
        )  # by the process before
        self._opened_at = self.end
        self.recovered = self.end > self._snapshot_end or self.log_position < log_end or self.remade
        self.live_units = self.table.live_units()

    def _begin_behind(self, base: int) -> bool:
        """Start at the oldest segment there is. Cleaning has put into later ones what the stream before it held: entries, and where the
        offsets of queues without entries go on. False: it does not begin with a frame, all is made from the log."""
        frame = self.frame_at(base)
        if frame is None:
            return False
        self.begin, self.end, self.log_position = base, frame[1], frame[2]
        return True

    def _drop(self, paths: list[Path], last: int) -> None:
        """Remove files and what lies behind the end of the `last` segment, for good: the log may have lost its end, too, and other
        records will take the positions that what is dropped here speaks of."""
        present = [path for path in paths if self._files.exists(path)]
        if present:
            super().close()  # a segment that is made again is another file
        for path in present:
            self._files.remove(path)
        if present:
            self._files.sync_dir(self.directory)
        if last >= 0 and self._files.size(self._handle(last, False)) > self.end - last:
            self._files.truncate(self._handle(last, False), self.end - last)
            self._files.datasync(self._handle(last, False))

    def _fits(self, known: tuple[int, int, int], bases: list[int], log_end: int) -> bool:
        """Whether the stream is there as far as the table's snapshot knows it."""
        end, log_position, begin = known
        if log_position > log_end:
            return False
        if end == begin:
            return True
        wanted = range(begin - begin % self.segment_size, end, self.segment_size)
        last = wanted[-1]
        return set(wanted) <= set(bases) and self._files.size(self._handle(last, False)) >= end - last

    def _scan(self, bases: list[int], log_end: int) -> None:
        present = set(bases)
        while True:
            base = self.end - self.end % self.segment_size
            if base in present and self._scan_frame(self.end, log_end):
                continue
            following = base + self.segment_size
            if following not in present or not self._scan_frame(following, log_end):
                return

    def _scan_frame(self, at: int, log_end: int) -> bool:
        frame = self.frame_at(at)
        if frame is None:
            return False
        count, follows, before, after, reaches, body = frame
        if follows != self.end or before != self.log_position or reaches > log_end:
            return False
        place, runs_at = 0, at + FRAME.size
        unpack, pages, dirty = RUN.unpack_from, self.table.pages, self.table.dirty
        remade = self.remade  # newer runs of a queue may stand before its moved beginning
        for _ in range(count):
            light, first, number, _, near, far, units = unpack(body, place)
            page = pages.get(light >> PAGE_SHIFT)
            if page is None:
                page = self.table.page(light >> PAGE_SHIFT)
            slot = (light & PAGE_MASK) * WIDTH
            dirty.add(light >> PAGE_SHIFT)
            if units & MOVED_FLAG:
                part, units = units & PART_FLAG, units & UNITS_MASK
                if page[slot] >= 0:
                    if not page[slot] or (remade and first < page[slot + FLOOR]):
                        page[slot + FLOOR] = first
                    page[slot] = max(page[slot], first + units)
                    if not part:
                        page[slot + FRONT] = runs_at + place
            elif first == DELETED:
                page[slot : slot + WIDTH] = GONE[:WIDTH]
            else:
                if not page[slot]:
                    page[slot + FLOOR] = first
                page[slot] = first + units
                page[slot + TAIL] = runs_at + place
                page[slot + NUMBER] = number
                page[slot + NEAR] = near
                page[slot + FAR] = far
            place += RUN.size + units * UNIT_SIZE
        self.end = at + FRAME.size + len(body)
        self.log_position = after
        return True

    # --- snapshots

    def snapshot(self) -> Callable[[], None] | None:
        """If every page of a snapshot is written: what makes it true and unlinks segments that nobody needs then. Any thread runs it,
        when all that was written before this call is on stable storage, the log first."""
        publish = self.table.finish()
        if publish is None:
            return None
        bases = positions_in(self._files, self.directory)

        def finish() -> None:
            begin = publish()
            for base in bases:
                if base + self.segment_size <= begin:
                    self._files.remove(self.directory / file_name(base))

        return finish

    def save_table(self) -> None:
        """At a stop: a whole snapshot, so that the next start reads no frame. Nothing may be pending; the stream is on stable storage."""
        for begun in (self.table.busy, False):  # what one that is under way has not, another one has
            if not begun:
                self._begin_snapshot()
            self.table.step(1 << 60)
            finish = self.snapshot()
            if finish is not None:
                finish()

    def lengths(self) -> list[tuple[int, int]]:
        """First position and bytes of the stream's files."""
        bases = [base for base in positions_in(self._files, self.directory) if base < self.end]
        return [(base, self._files.size(self._handle(base, False))) for base in bases]

    def close(self) -> None:
        super().close()
        self.table.close()
