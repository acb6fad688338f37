"""A store directory looked at from outside: nothing is written, and recovery is applied in memory only.

Ours or a real broker's, cleanly stopped, killed or running. File lengths are found from the files. `StoreImage` knows where the log
ends as recovery would find it, from where on queues and index would be made again (`derived`), and reads queues as they lie there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final

from gantrymq.model.errors import StoreCorruptError
from gantrymq.model.message import Message
from gantrymq.store.checkpoints.positions import CHECKPOINT, Positions
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.files import OsFileSystem, read_small
from gantrymq.store.log import record
from gantrymq.store.log.commit_log import file_name, positions_in
from gantrymq.store.log.groups import OpenGroup
from gantrymq.store.log.recovery import check_record
from gantrymq.store.queues.compaction import CompactedQueues
from gantrymq.store.queues.consume_queue import HOLE_SIZE, UNIT, Unit
from gantrymq.store.start.takeover import is_foreign, oldest_unchecked, refuse_unreadable

if TYPE_CHECKING:
    from gantrymq.store.files import Buffer, FileSystem

_FLOCK: Final = Struct("hhqqi4x")
"""struct flock of Linux, 64 bits."""
UNITS_AT_ONCE: Final = 4096
MISSING_MAX: Final = 10_000
"""Segments between two others that count as missing, a terabyte at the usual length: beyond it one of the names is wrong."""
_WINDOW: Final = 1024 * 1024
_BLANK_MAGIC: Final = b"\xcb\xd4\x31\x94"


class ReadOnlyFileSystem(OsFileSystem):
    """The real one; whatever would change something raises."""

    def open(self, path: Path, create: bool) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def pwrite(self, handle: int, data: Buffer, at: int) -> None:
        raise PermissionError("opened for reading only")

    def truncate(self, handle: int, length: int) -> None:
        raise PermissionError("opened for reading only")

    def make_dirs(self, path: Path) -> None:
        raise PermissionError("opened for reading only")

    def rename(self, source: Path, target: Path) -> None:
        raise PermissionError("opened for reading only")

    def remove(self, path: Path) -> None:
        raise PermissionError("opened for reading only")


class ForgetfulFiles(ReadOnlyFileSystem):
    """What recovery would remove or cut stays."""

    def truncate(self, handle: int, length: int) -> None:
        """Nothing."""

    def make_dirs(self, path: Path) -> None:
        """Nothing."""

    def remove(self, path: Path) -> None:
        """Nothing."""

    def sync_dir(self, path: Path) -> None:
        """Nothing."""

    def datasync(self, handle: int) -> None:
        """Nothing."""


def lock_holder(path: Path) -> int:
    """Who holds the lock that a broker takes; asked without taking it. 0: nobody, or nobody can tell."""
    try:
        with path.open("rb") as file:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    except OSError:
        return 0
    kind, _, _, _, process = _FLOCK.unpack(answer)
    return int(process) if kind != fcntl.F_UNLCK else 0


class LogImage:
    """The segments; reads as `CommitLog` does. A last segment that a crash left short reads as if it went on with zeros, one that is missing
    between others as one blank record."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self.directory = directory
        self.bases = positions_in(files, directory)
        self._handles: dict[int, int] = {}
        lengths = [self._length(base) for base in self.bases]
        self.lengths = dict(zip(self.bases, lengths, strict=True))
        self.file_size = max(lengths, default=0)
        self.short: list[int] = []
        """Segments shorter than the others; only the last may be."""
        self.missing: set[int] = set()
        """Segments between others that are not there."""
        for place, base in enumerate(self.bases):
            if lengths[place] != self.file_size:
                self.short.append(base)
            between = range(self.bases[place - 1] + self.file_size, base, self.file_size) if place else range(0)
            if base % (self.file_size or 1) or len(between) > MISSING_MAX:
                raise StoreCorruptError(
                    f"{directory / file_name(base)} does not follow the segment before it ({self.file_size} bytes)"
                )
            self.missing.update(between)
        self.min_position = self.bases[0] if self.bases else 0
        self.limit = self.bases[-1] + self.file_size if self.bases else 0

    def _length(self, base: int) -> int:
        handle = self._files.open(self.directory / file_name(base), False)
        try:
            return self._files.size(handle)
        finally:
            self._files.close(handle)

    def base_of(self, position: int) -> int:
        return position - position % self.file_size

    def read(self, at: int, count: int) -> bytes:
        """Up to `count` bytes at `at`, not beyond the end of that segment."""
        if not self.min_position <= at < self.limit:
            return b""
        base = self.base_of(at)
        if base in self.missing:
            return record.blank(self.file_size)[at - base :].ljust(min(count, base + self.file_size - at), b"\0")[
                :count
            ]
        handle = self._handles.get(base)
        if handle is None:
            self.close()  # scans go forward: one is enough
            handle = self._handles[base] = self._files.open(self.directory / file_name(base), False)
        count = min(count, base + self.file_size - at)
        data = self._files.pread(handle, count, at - base)
        return data if len(data) == count else data.ljust(count, b"\0")

    def close(self) -> None:
        for handle in self._handles.values():
            self._files.close(handle)
        self._handles.clear()


@dataclass(slots=True)
class Bad:
    """A place of the log that is no record. `lost`: recovery would keep the bytes aside and go on behind it, else it would cut."""

    position: int
    size: int
    lost: bool


class QueueImage:
    """One ConsumeQueue as its files are."""

    def __init__(self, files: FileSystem, directory: Path, topic: str, queue_id: int, file_size: int) -> None:
        self._files = files
        self.directory = directory
        self.topic = topic
        self.queue_id = queue_id
        self.file_size = file_size
        self.bases = positions_in(files, directory)
        self.first_offset = self.bases[0] // UNIT_SIZE if self.bases else 0
        self._block: list[Unit] = []
        self._block_at = -1
        self.next_offset = self._end()

    def _end(self) -> int:
        per_file = self.file_size // UNIT_SIZE
        for base in reversed(self.bases):
            low, high = 0, per_file
            while low < high:
                middle = (low + high) // 2
                if self.unit(base // UNIT_SIZE + middle)[1] <= 0:
                    high = middle
                else:
                    low = middle + 1
            if low:
                return base // UNIT_SIZE + low
        return self.first_offset

    def unit(self, offset: int) -> Unit:
        """The unit of an offset, (0, 0, 0) where there is none."""
        at = self._block_at
        if not 0 <= offset - at < len(self._block) or at < 0:
            self._load(offset)
            at = self._block_at
        place = offset - at
        return self._block[place] if 0 <= place < len(self._block) else (0, 0, 0)

    def _load(self, offset: int) -> None:
        at = offset // UNITS_AT_ONCE * UNITS_AT_ONCE * UNIT_SIZE
        end = at + UNITS_AT_ONCE * UNIT_SIZE
        parts = []
        self._block_at = at // UNIT_SIZE
        while at < end:
            base = at // self.file_size * self.file_size
            length = min(end, base + self.file_size) - at
            data = b""
            if base in self.bases:
                handle = self._files.open(self.directory / file_name(base), False)
                try:
                    data = self._files.pread(handle, length, at - base)
                finally:
                    self._files.close(handle)
            parts.append(data.ljust(length, b"\0"))
            at += length
        self._block = list(UNIT.iter_unpack(b"".join(parts)))


class StoreImage:
    """See the module. Raises StoreCorruptError for what is no store that can be read."""

    def __init__(self, directory: Path, files: FileSystem | None = None) -> None:
        self.files: FileSystem = files or ReadOnlyFileSystem()
        if not self.files.exists(directory / "commitlog") and self.files.exists(directory / "store" / "commitlog"):
            directory = directory / "store"
        if not self.files.exists(directory / "commitlog"):
            raise StoreCorruptError(
                f"{directory} is no store: it has no directory commitlog (give RocketMQ's storePathRootDir)"
            )
        refuse_unreadable(self.files, directory)
        self.directory = directory
        self.clean = not self.files.exists(directory / "abort")
        self.running = lock_holder(directory / "lock")
        """Process id of the broker that has the directory, 0: none has."""
        self.log = LogImage(self.files, directory / "commitlog")
        self.names = [name for name in self.files.list_dir(directory / "consumequeue") if not name.startswith(".")]
        self.positions = Positions(self.files, directory.parent / "gantry" / "positions")
        if self.files.exists(directory.parent / "gantry" / "positions"):
            self.positions.open()
            self.positions.close()
        self.known = self.positions.flushed >= 0
        """There are positions of ours."""
        self.foreign = not self.known and is_foreign(self.files, directory, self.names)
        self.checkpoint = self._checkpoint()
        self._queue_file_size = self._find_queue_size()
        self._queues: dict[tuple[str, int], QueueImage | None] = {}
        self.compacted = CompactedQueues(ForgetfulFiles(), directory.parent / "gantry" / "compaction")
        self.compacted.open()

    def _checkpoint(self) -> tuple[int, ...]:
        path = self.directory / "checkpoint"
        if not self.files.exists(path):
            return ()
        data = self.read_file(path, CHECKPOINT.size)
        return CHECKPOINT.unpack(data) if len(data) == CHECKPOINT.size else (-1,)

    def read_file(self, path: Path, count: int = 64 * 1024 * 1024) -> bytes:
        """Begin of a file; empty if there is none."""
        return read_small(self.files, path, count) or b""

    # --- queues

    def _find_queue_size(self) -> int:
        """Length of queue files: the longest, as a crash leaves some short."""
        most = 0
        for name, queue_id in self.queue_names():
            directory = self.directory / "consumequeue" / name / str(queue_id)
            bases = positions_in(self.files, directory)
            if len(bases) > 1:
                return bases[-1] - bases[-2]
            for base in bases:
                handle = self.files.open(directory / file_name(base), False)
                most = max(most, self.files.size(handle))
                self.files.close(handle)
        return most

    def queue_names(self) -> list[tuple[str, int]]:
        """(topic, queue id) of every queue directory."""
        return [
            (name, int(queue))
            for name in self.names
            for queue in self.files.list_dir(self.directory / "consumequeue" / name)
            if queue.isdecimal()
        ]

    def queue(self, topic: str, queue_id: int) -> QueueImage | None:
        """The queue, or None without files."""
        key = (topic, queue_id)
        if key not in self._queues:
            found = None
            if topic in self.names:
                path = self.directory / "consumequeue" / topic / str(queue_id)
                found = QueueImage(self.files, path, topic, queue_id, self._queue_file_size or 6_000_000)
            self._queues[key] = found if found is not None and found.bases else None
        return self._queues[key]

    def queues_end(self) -> int:
        """End of the last record that a queue names."""
        end = 0
        for name, queue_id in self.queue_names():
            queue = self.queue(name, queue_id)
            if queue is not None and queue.next_offset > queue.first_offset:
                position, size, _ = queue.unit(queue.next_offset - 1)
                if size != HOLE_SIZE:
                    end = max(end, position + size)
        return end

    # --- the log

    @property
    def safe(self) -> int:
        """Below it a bad record is damage: it had been on stable storage."""
        if self.known:
            return self.positions.flushed if not self.clean else max(self.positions.flushed, self.queues_end())
        return self.queues_end() if self.clean else oldest_unchecked(self.files, self.directory, self.log)

    def derived(self, end: int) -> int:
        """Queue units and index entries of records below it are kept by recovery; others are made again."""
        if self.clean:
            return end
        if self.known:
            return min(max(self.positions.derived, self.log.min_position), end)
        return (
            min(max(oldest_unchecked(self.files, self.directory, self.log), self.log.min_position), end)
            if self.foreign
            else 0
        )

    def walk(self, start: int = -1) -> Iterator[tuple[int, int, Message | None, Bad | None]]:
        """(position, size, message, bad) in log order from `start` (a record's begin): records, blanks (no message) and bad places; ends
        where recovery would.

        A torn tail comes last, as a bad place that is not lost; of a group that is torn (store/log/groups.py) the first record is its begin.
        """
        log_, at, safe = self.log, self.log.min_position if start < 0 else start, self.safe
        held: list[tuple[int, int, Message | None, Bad | None]] = []
        group = OpenGroup()
        window, window_at = b"", -1
        while at < log_.limit:
            place = at - window_at
            if window_at < 0 or not 0 <= place <= len(window) - record.HEAD.size or not self._inside(window, place):
                window, window_at, place = log_.read(at, max(_WINDOW, self._need(at))), at, 0
            size, message = self._one(window, place, at, safe)
            if not size:
                bad = self._bad(at, safe)
                if bad is None or not bad.lost:
                    if group.is_open() and held[0][0] >= safe:
                        bad = Bad(held[0][0], at - held[0][0] + (bad.size if bad is not None else 0), False)
                    else:
                        yield from held
                    if bad is not None:
                        yield bad.position, bad.size, None, bad
                    return
                yield from held
                held = []
                group.forget()
                yield at, bad.size, None, bad
                at += bad.size
                continue
            item = (at, size, message, None)
            if message is not None:
                group.saw(message, at)
                if group.begin == at:
                    yield from held
                    held = []
            if group.is_open() or held:
                held.append(item)
                if not group.is_open():
                    yield from held
                    held = []
            else:
                yield item
            at += size
        yield from held

    @staticmethod
    def _inside(window: bytes, place: int) -> bool:
        return place + int.from_bytes(window[place : place + 4], "big") <= len(window)

    def _need(self, at: int) -> int:
        head = self.log.read(at, record.BLANK_SIZE)
        blank = head[4:] == _BLANK_MAGIC  # it may fill a whole segment
        return record.BLANK_SIZE if blank else min(int.from_bytes(head[:4], "big"), self.log.file_size)

    def _one(self, window: bytes, place: int, at: int, safe: int) -> tuple[int, Message | None]:
        """As `check_record`, out of what was read already."""
        try:
            size, magic = record.PREFIX.unpack_from(window, place)
            if magic in (record.MAGIC_V1, record.MAGIC_V2) and 0 < size <= len(window) - place:
                if record.LONG.unpack_from(window, place + record.PHYSICAL_OFFSET_AT)[0] == at:
                    message = record.decode(window, place)
                    strict = self.known and not self.clean and at >= safe
                    if size + record.BLANK_SIZE <= self.log.file_size - at % self.log.file_size and not (
                        strict and (b"\0" in message.properties or b"\0" in message.dispatch)
                    ):
                        return size, message
                return 0, None
        except (record.RecordError, ValueError, IndexError):
            return 0, None
        return check_record(self.log, at)

    def _bad(self, at: int, safe: int) -> Bad | None:
        """What stands at a position that is no record: None for the plain end of the log."""
        if at >= safe:
            size = self._used_after(at)
            if not size:
                return None
            following = self._next_valid(at) if not self.known else -1
            return Bad(at, following - at, True) if following >= 0 else Bad(at, size, False)
        following = self._next_valid(at)
        stop = min(max(safe, at + 1), self.log.base_of(at) + self.log.file_size)
        return Bad(at, (following if following >= 0 else stop) - at, True)

    def _used_after(self, at: int) -> int:
        total, place = 0, at
        while place < self.log.limit:
            data = self.log.read(place, _WINDOW)
            used = data.rstrip(b"\0")
            if used:
                total = place + len(used) - at
            place += len(data)
        return total

    def _next_valid(self, at: int) -> int:
        """Position of the next valid record in the rest of the segment, or the next segment if that begins with one; -1 if none."""
        segment_end = self.log.base_of(at) + self.log.file_size
        place = at + 1
        while place < segment_end:
            data = self.log.read(place, _WINDOW + 8)
            if data.strip(b"\0"):
                for hit in sorted(_magics(data)):
                    if place + hit - 4 > at and check_record(self.log, place + hit - 4)[0]:
                        return place + hit - 4
            place += _WINDOW
        return segment_end if segment_end < self.log.limit and check_record(self.log, segment_end)[0] else -1

    def close(self) -> None:
        self.log.close()
        self.compacted.close()


def _magics(data: bytes) -> list[int]:
    matches = []
    for magic in (record.MAGIC_BYTES_V1, record.MAGIC_BYTES_V2, _BLANK_MAGIC):
        hit = data.find(magic, 4)
        while hit >= 0:
            matches.append(hit)
            hit = data.find(magic, hit + 1)
    return matches
