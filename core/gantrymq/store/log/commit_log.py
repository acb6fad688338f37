"""The CommitLog's segment files: placing, writing and reading bytes by physical offset. Records are `record.py`'s matter.

Segments have one length and are named by the position of their first byte, in 20 digits; none may be missing in between
(RocketMQ computes files from offsets). Written with `pwrite` or `pwritev`; what this process wrote last is read through a shared
map, all else through `ColdReads`, because touching a cold mapped page would hold up every thread.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from gantrymq.model.errors import StoreCorruptError
from gantrymq.store.cold import Cold
from gantrymq.store.log.missing import Gap, describe, fill, gaps_of
from gantrymq.store.log.write_buffer import BUFFER_BYTES_MAX

if TYPE_CHECKING:
    import mmap
    from collections.abc import Sequence
    from pathlib import Path

    from gantrymq.store.cold import ColdReads, Want
    from gantrymq.store.files import Buffer, FileSystem
    from gantrymq.store.log.write_buffer import WriteBuffer

log = logging.getLogger(__name__)

HOT_BYTES: Final = 64 * 1024 * 1024
"""Read through a map: so much behind the end, if this process wrote it. The kernel has not dropped that yet, or memory is so short
that everything waits."""
PART_BYTES_MIN: Final = 1024
"""Average size of a batch's parts from which `pwritev` is faster than joining them (measured: 0.84 against 1.44 us for a record of
16 KiB, 0.31 against 0.28 at 4 KiB, 0.19 against 0.05 at 128 bytes)."""
GAP_BYTES_MAX: Final = 4096
"""Between two records that are wanted, read rather than skipped: a read costs a microsecond, as long as copying so much."""
SPAN_BYTES_MAX: Final = 256 * 1024
"""One read for records that lie among others: what `pread_now` has a buffer for. Many records take several."""
SEGMENT_HANDLES_MAX: Final = 64
"""Descriptors kept open for flushed segments; a log may have thousands."""
RESERVE_STEP: Final = 64 * 1024 * 1024
"""Disk space is taken this far ahead of the write position."""
HOT_NEVER: Final = 1 << 62
NAME_DIGITS: Final = 20
NO_HANDLE_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""The process, or the machine, has no descriptor left: nothing is wrong with the disk, and nothing was written."""
FULL_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG}) | NO_HANDLE_ERRORS
"""There is no room: the store goes on when there is. Every other error stops it."""
_REMEDY: Final = "Nothing was changed. Mount the disk, or restore the files, and start again; to go on without what was there, start once with --accept-loss"


def file_name(position: int) -> str:
    """Name of the file that begins at `position`, in the log and in queues."""
    return f"{position:020d}"


def positions_in(files: FileSystem, directory: Path) -> list[int]:
    """First positions of the segment files in a directory, ascending; other names are left alone."""
    return [int(name) for name in files.list_dir(directory) if len(name) == NAME_DIGITS and name.isdecimal()]


class Segment:
    """An open segment file."""

    __slots__ = ("base", "handle", "path", "view")

    def __init__(self, base: int, handle: int, path: Path) -> None:
        self.base = base
        self.handle = handle
        self.path = path
        self.view: mmap.mmap | None = None


class CommitLog:
    """Bytes by physical offset. Loop thread only, except `sync`, `reserve` and `write_buffered`."""

    def __init__(self, files: FileSystem, directory: Path, file_size: int) -> None:
        self._files = files
        self.directory = directory
        self.file_size = file_size
        self.min_position = 0
        self.bases: list[int] = []
        self.lost: list[Gap] = []
        """What was missing when the log was opened."""
        self._segments: dict[int, Segment] = {}
        self._names_dirty = False
        self.flushed_position = 0
        """Kept by the store; segments not yet flushed keep their descriptor."""
        self.writing_base = -1
        self.hot_from = HOT_NEVER
        """Reads from here on go through a map; set by the store when the log is open."""
        self.opened_at = 0
        """End of the log when it was opened: what follows was written by this process."""
        self.cold: ColdReads | None = None
        """Set while the loop runs: `read` then raises `Cold` rather than wait for the disk."""
        self.buffer: WriteBuffer | None = None
        """Set by `store.transient_pool`."""

    def open(self, size_known: bool, flushed: int = -1, begin: int = -1, accept_loss: bool = False) -> None:
        """Find the segments. Unless their length is known, the one that the directory has wins over the setting.

        `flushed`: what a power cut left above this position is no damage, -1: not known. It may have lost the name or the length of
        one segment and kept those of a later one. Below it nothing may be missing, from `begin` on: StoreCorruptError, unless the loss is
        accepted (missing.py).
        """
        bases = positions_in(self._files, self.directory)
        lengths = {}
        for base in bases:
            handle = self._files.open(self.directory / file_name(base), False)
            lengths[base] = self._files.size(handle)
            self._files.close(handle)
        known = [length for length in lengths.values() if length]
        if known and known[0] != self.file_size and not size_known:
            log.warning("%s: segments have %d bytes; store.commitlog_file_size = %d is ignored",
                        self.directory, known[0], self.file_size)  # fmt: skip
            self.file_size = known[0]
        if flushed >= 0:
            bases = self._without_strays(bases, flushed)
            here = {base: lengths[base] for base in bases}
            self.lost = gaps_of(here, self.file_size, begin, flushed)
        if self.lost:
            missing = describe(self.lost, self.file_size)
            if not accept_loss:
                raise StoreCorruptError(f"{self.directory}: {missing}. {_REMEDY}")
            log.error("%s: %s; the loss is accepted", self.directory, missing)
            bases = fill(self._files, self.directory, bases, self.lost, self.file_size)
            lengths = dict.fromkeys(bases, self.file_size) | {base: lengths[base] for base in bases if base > flushed}
        for place, base in enumerate(bases):
            if base % self.file_size or (place and base != bases[place - 1] + self.file_size):
                raise StoreCorruptError(
                    f"{self.directory}: segment {file_name(base)} does not follow the one before it (length {self.file_size})"
                )
            # A crash may have left it short: it is extended when it is opened.
            open_ended = place == len(bases) - 1 or 0 <= flushed <= base
            if lengths[base] > self.file_size or (lengths[base] != self.file_size and not open_ended):
                raise StoreCorruptError(
                    f"{self.directory / file_name(base)} has {lengths[base]} bytes, its neighbours {self.file_size}"
                )
        self._files.make_dirs(self.directory)
        self.bases = bases
        self._names_dirty = bool(lengths)  # the process before this one may have been killed before it synced them
        self.min_position = bases[0] if bases else 0
        self.writing_base = bases[-1] if bases else -1

    def _without_strays(self, bases: list[int], flushed: int) -> list[int]:
        """Segments behind a missing one, if nothing that is missing was flushed, are a torn tail: they go."""
        following = bases[0] if bases and bases[0] <= flushed else self.base_of(flushed)
        for place, base in enumerate(bases):
            if base > following >= flushed:
                for stray in bases[place:]:
                    log.warning("%s: segment %s follows none: a power cut kept it, not what came before",
                                self.directory, file_name(stray))  # fmt: skip
                    self._files.remove(self.directory / file_name(stray))
                return bases[:place]
            following = base + self.file_size
        return bases

    @property
    def limit(self) -> int:
        """End of the last segment."""
        return self.bases[-1] + self.file_size if self.bases else 0

    def base_of(self, position: int) -> int:
        return position - position % self.file_size

    def segment(self, base: int, create: bool = False) -> Segment:
        """The open segment; with `create` the file is made (sparse, full length) if it is not there."""
        segment = self._segments.get(base)
        if segment is not None:
            return segment
        path = self.directory / file_name(base)
        handle = self._files.open(path, create)
        if self._files.size(handle) != self.file_size:
            self._files.truncate(handle, self.file_size)
            self._names_dirty = True
        if not self.bases or base > self.bases[-1]:
            self.bases.append(base)
            self._names_dirty = True
            if len(self.bases) == 1:
                self.min_position = base
        segment = self._segments[base] = Segment(base, handle, path)
        if len(self._segments) > SEGMENT_HANDLES_MAX:
            self._close_one(base)
        return segment

    def _close_one(self, keep: int) -> None:
        for base, segment in self._segments.items():
            if base + self.file_size <= self.flushed_position and base != keep:
                self._close(segment)
                del self._segments[base]
                return

    def _close(self, segment: Segment) -> None:
        if segment.view is not None:
            segment.view.close()
            segment.view = None
        self._files.close(segment.handle)

    def _writable(self, at: int) -> Segment:
        base = at - at % self.file_size
        segment = self._segments.get(base)
        if segment is None:
            segment = self.segment(base, True)
        if base > self.writing_base:
            self.writing_base = base
        if at - HOT_BYTES > self.hot_from and self.hot_from != HOT_NEVER:
            self.hot_from = at - HOT_BYTES
        return segment

    def write(self, at: int, data: Buffer) -> None:
        """Write inside one segment, making it if it is the next one."""
        segment = self._writable(at)
        self._files.pwrite(segment.handle, data, at - segment.base)

    def write_parts(self, at: int, parts: list[bytes], count: int) -> None:
        """As `write` of all parts, which have `count` bytes together; into the buffer if there is one."""
        segment = self._writable(at)
        buffer = self.buffer
        if buffer is not None:
            if buffer.bytes + count > BUFFER_BYTES_MAX:
                self.write_buffered()
            buffer.add(at, b"".join(parts))
        elif count >= len(parts) * PART_BYTES_MIN:
            self._files.pwritev(segment.handle, parts, at - segment.base)
        else:
            self._files.pwrite(segment.handle, b"".join(parts), at - segment.base)

    def write_buffered(self) -> None:
        """Write what waits in the buffer. Any thread. On an error the rest stays there, readable."""
        if self.buffer is not None:
            self.buffer.write(self._write_pieces, self.file_size)

    def _write_pieces(self, at: int, pieces: list[bytes]) -> None:
        base = self.base_of(at)
        self._files.pwritev(self._segments[base].handle, pieces, at - base)

    def read(self, at: int, count: int) -> bytes:
        """Up to `count` bytes at `at`, not beyond the end of that segment; empty where there is no segment. May raise `Cold`."""
        base = at - at % self.file_size
        segment = self._segments.get(base)
        if segment is None:
            if not self.bases or not self.min_position <= at < self.limit:
                return b""
            segment = self.segment(base)
        start = at - base
        if start + count > self.file_size:
            count = self.file_size - start
        if self.buffer is not None and self.buffer.bytes:
            begin, data = self.buffer.read(at, count)
            if data and begin <= at:
                return data[at - begin : at - begin + count]
            if data:
                return self._read_file(segment, at, begin - at) + data[: at + count - begin]
        return self._read_file(segment, at, count)

    def read_many(self, places: Sequence[int], sizes: Sequence[int], base: int, total: int) -> list[bytes] | None:
        """Records at `base` + ascending places, `total` bytes in all: neighbours in one piece, others cut out of the map, or of reads.

        None where they are in two segments, or so far apart that reading each alone is cheaper. May raise `Cold`.
        """
        first = base + places[0]
        span = base + places[-1] + sizes[-1] - first
        begin = first - first % self.file_size
        if first + span > begin + self.file_size or span < total:
            return None
        if span == total:
            return [self.read(first, total)]
        segment = self._segments.get(begin)
        view: mmap.mmap | bytes | None = None
        if first >= self.hot_from and segment is not None and (self.buffer is None or not self.buffer.bytes):
            view = segment.view
        if view is None:
            if span > total + GAP_BYTES_MAX * len(sizes):
                return None
            if span > SPAN_BYTES_MAX:
                return self._read_stretches(places, sizes, base)
            view = self.read(first, span)
            begin = first
        if base != begin:
            places = [place + (base - begin) for place in places]
        return [view[place : place + size] for place, size in zip(places, sizes, strict=True)]

    def _read_stretches(self, places: Sequence[int], sizes: Sequence[int], base: int) -> list[bytes] | None:
        """As `read_many` in one segment, in reads of `SPAN_BYTES_MAX` (a longer record alone). Raises `Cold` with all that is not in memory."""
        pieces: list[bytes] = []
        wanted: list[Want] = []
        first, count = 0, len(places)
        while first < count:
            begin = places[first]
            stop = max(bisect_right(places, begin + SPAN_BYTES_MAX, first), first + 1)
            while stop > first + 1 and places[stop - 1] + sizes[stop - 1] - begin > SPAN_BYTES_MAX:
                stop -= 1
            span, total = places[stop - 1] + sizes[stop - 1] - begin, sum(sizes[first:stop])
            if span < total:
                return None
            try:
                data = self.read(base + begin, span)
            except Cold as cold:
                wanted += cold.wanted
            else:
                if span == total:
                    pieces.append(data)
                else:
                    near = zip(places[first:stop], sizes[first:stop], strict=True)
                    pieces += [data[place - begin : place - begin + size] for place, size in near]
            first = stop
        if wanted:
            raise Cold(wanted)
        return pieces

    def _read_file(self, segment: Segment, at: int, count: int) -> bytes:
        start = at - segment.base
        if at >= self.hot_from:
            view = segment.view
            if view is None:
                view = segment.view = self._files.map_read(segment.handle, self.file_size)
                self._cool_down()
            if view is not None:
                return view[start : start + count]
        if self.cold is None:
            return self._files.pread(segment.handle, count, start)
        return self.cold.read(segment.path, segment.handle, count, start, self.opened_at - segment.base)

    def _cool_down(self) -> None:
        for segment in self._segments.values():
            if segment.view is not None and segment.base + self.file_size <= self.hot_from:
                segment.view.close()
                segment.view = None

    def sync(self, start: int, end: int) -> None:
        """Put [start, end) on stable storage. Any thread; one caller at a time. Those segments are open or in the list."""
        for base in range(self.base_of(start), end, self.file_size):
            segment = self._segments.get(base)
            if segment is not None:
                self._files.datasync(segment.handle)
            elif base + self.file_size > self.min_position:
                handle = self._files.open(self.directory / file_name(base), False)
                try:
                    self._files.datasync(handle)
                finally:
                    self._files.close(handle)
        if self._names_dirty:
            self._names_dirty = False
            self._files.sync_dir(self.directory)

    def reserve(self, position: int, reserved: int) -> int:
        """Take disk space up to `RESERVE_STEP` ahead of `position`; returns up to where it is taken. Any one thread.

        Beyond the end of a segment the next one is made under its final name; the loop finds it there.
        """
        goal = min(position + RESERVE_STEP, self.base_of(position) + 2 * self.file_size)
        if reserved >= min(position + RESERVE_STEP // 2, goal):
            return reserved
        at = max(reserved, position)
        while at < goal:
            base = self.base_of(at)
            stop = min(goal, base + self.file_size)
            handle = self._files.open(self.directory / file_name(base), True)
            try:
                if self._files.size(handle) != self.file_size:
                    self._files.truncate(handle, self.file_size)
                self._files.allocate(handle, at - base, stop - at)
            finally:
                self._files.close(handle)
            self._names_dirty = True
            at = stop
        return at

    def drop_oldest(self, end: int) -> Path:
        """Forget the oldest segment, which ends at `end`; returns its file for the caller to remove. Reads of it are empty from now on."""
        base = self.bases[0]
        if base + self.file_size != end or end > self.writing_base:
            raise ValueError(f"segment {base} cannot go: asked for the one that ends at {end}")
        del self.bases[0]
        self.min_position = end
        segment = self._segments.pop(base, None)
        if segment is not None:
            self._close(segment)
        return self.directory / file_name(base)

    def cut(self, position: int) -> None:
        """Forget everything from `position` on: the rest of its segment reads as zeros, later segments go."""
        for base in [base for base in reversed(self.bases) if base > position or base + self.file_size <= position]:
            if base < position:
                continue
            segment = self._segments.pop(base, None)
            if segment is not None:
                self._close(segment)
            self._files.remove(self.directory / file_name(base))
            self.bases.remove(base)
            self._names_dirty = True
        base = self.base_of(position)
        if self.bases and base == self.bases[-1]:
            segment = self.segment(base)
            if segment.view is not None:
                segment.view.close()
                segment.view = None
            self._files.truncate(segment.handle, position - base)
            self._files.truncate(segment.handle, self.file_size)
            self._files.datasync(segment.handle)
        self.writing_base = self.bases[-1] if self.bases else -1
        if self._names_dirty:
            self._names_dirty = False
            self._files.sync_dir(self.directory)

    def close(self) -> None:
        for segment in self._segments.values():
            self._close(segment)
        self._segments.clear()
