"""Compacted queues: the records of a queue's old part that are still the last of their key (docs/formats/compaction.md).

`D/gantry/compaction/<topic>/<queue id>/<end offset>.compacted` holds what is left of the offsets below `end`; the log may lose its
copies. Layout, big-endian:

      0  records as they were stored, in the order of their queue offsets
         one unit per record: queue offset 8 | position in this file 8 | size 4 | tag code 8
         footer: magic 4 | CRC of the rest of the footer 4 | CRC of the units 4 | begin offset 8 | end offset 8 | units 8 | bytes of records 8

A file is never changed. Readers get its records at positions above `VIRTUAL`, which the log never reaches, so that whoever reads units and
then records need not know where these are.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

from gantrymq.model.names import is_stored_topic
from gantrymq.store.log import record
from gantrymq.store.queues.consume_queue import HOLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gantrymq.store.cold import ColdReads
    from gantrymq.store.files import FileSystem
    from gantrymq.store.queues.consume_queue import ConsumeQueue, Unit
    from gantrymq.store.queues.queue_table import QueueTable

log = logging.getLogger(__name__)

SUFFIX: Final = ".compacted"
TEMPORARY: Final = "new" + SUFFIX + ".tmp"
VIRTUAL: Final = 1 << 61
_FILE_BITS: Final = 44
"""Bytes of a file that can be addressed: 16 TiB."""
_NUMBERS: Final = 1 << (61 - _FILE_BITS)
_UNIT: Final = Struct(">QQIq")
_FOOTER: Final = Struct(">4sIIQQQQ")
_MAGIC: Final = b"GCP1"
HANDLES_MAX: Final = 64
"""Files that readers keep open."""
UNITS_STEP: Final = 32_768
"""Units read at once while opening."""


class CompactedFile:
    """One file. `begin`: first offset that the queue had when it was compacted first; `end`: where the log goes on."""

    __slots__ = ("begin", "end", "number", "offsets", "path", "records_bytes")

    def __init__(self, path: Path, begin: int, end: int, offsets: array[int], records_bytes: int) -> None:
        self.path = path
        self.begin = begin
        self.end = end
        self.offsets = offsets
        self.records_bytes = records_bytes
        self.number = 0


class CompactedQueues:
    """Every queue's newest file, and the one before it, which readers may still be at. Loop thread."""

    def __init__(self, files: FileSystem, root: Path) -> None:
        self._files = files
        self._root = root
        self.queues: dict[tuple[str, int], CompactedFile] = {}
        self._by_number: dict[int, CompactedFile] = {}
        self._handles: dict[int, int] = {}
        self._next_number = 0
        self.damaged: list[Path] = []
        """Files that `open` did not use."""

    def directory(self, topic: str, queue_id: int) -> Path:
        """Where a queue's files are."""
        return self._root / topic / str(queue_id)

    def open(self) -> None:
        """Find the files; what is unfinished or damaged goes, and the file before it is used again if there is one."""
        for topic in self._files.list_dir(self._root):
            for name in self._files.list_dir(self._root / topic) if is_stored_topic(topic) else ():
                if name.isdecimal():
                    self._open_queue(topic, int(name))

    def _open_queue(self, topic: str, queue_id: int) -> None:
        directory = self.directory(topic, queue_id)
        names = self._files.list_dir(directory)
        if TEMPORARY in names:
            self._files.remove(directory / TEMPORARY)
        for name in sorted([name for name in names if name.endswith(SUFFIX)], reverse=True):
            found = self._load(directory / name)
            if found is not None:
                self.put(topic, queue_id, found)
                return
            self.damaged.append(directory / name)
            log.error("%s is damaged and not used: values of keys may be missing", directory / name)

    def _load(self, path: Path) -> CompactedFile | None:
        handle = self._files.open(path, False)
        try:
            size = self._files.size(handle)
            footer = self._files.pread(handle, _FOOTER.size, max(0, size - _FOOTER.size))
            if len(footer) != _FOOTER.size:
                return None
            magic, crc, units_crc, begin, end, count, records = _FOOTER.unpack(footer)
            if magic != _MAGIC or crc != crc32(footer[8:]) or records + count * _UNIT.size + _FOOTER.size != size:
                return None
            offsets = array("Q")
            found_crc = 0
            for first in range(0, count, UNITS_STEP):
                length = min(UNITS_STEP, count - first) * _UNIT.size
                data = self._files.pread(handle, length, records + first * _UNIT.size)
                found_crc = crc32(data, found_crc)
                offsets.extend([unit[0] for unit in _UNIT.iter_unpack(data)])
            return CompactedFile(path, begin, end, offsets, records) if found_crc == units_crc else None
        finally:
            self._files.close(handle)

    def put(self, topic: str, queue_id: int, file: CompactedFile) -> list[Path]:
        """A queue's newest file; the answer: files that nobody needs any more, the one before it excepted."""
        while self._next_number in self._by_number:
            self._next_number = (self._next_number + 1) % _NUMBERS
        file.number = self._next_number
        self._next_number = (self._next_number + 1) % _NUMBERS
        before = self.queues.get((topic, queue_id))
        self.queues[topic, queue_id] = self._by_number[file.number] = file
        old = [
            path
            for name in self._files.list_dir(file.path.parent)
            if (path := file.path.parent / name) != file.path and (before is None or path != before.path)
        ]
        for number in [number for number, other in self._by_number.items() if other.path in old]:
            self._forget(number)
        return old

    def drop(self, topic: str, queue_id: int) -> list[Path]:
        """The queue is no longer compacted; the answer: its files."""
        directory = self.directory(topic, queue_id)
        self.queues.pop((topic, queue_id), None)
        for number in [number for number, other in self._by_number.items() if other.path.parent == directory]:
            self._forget(number)
        return [directory / name for name in self._files.list_dir(directory)]

    def cut(self, queues: QueueTable) -> None:
        """At start: a file that goes beyond its queue's end knows records that a disk lost although it had said otherwise. What it has of
        offsets that the log still has is left to the log: new records take those offsets. A queue that is gone (its directory was lost, and recovery
        had no reason to look for it in the log) goes on behind its file. Reads wait for the disk."""
        for (topic, queue_id), file in list(self.queues.items()):
            queue = queues.find(topic, queue_id)
            if queue is None or not queue.next_offset:
                queue = _begin_behind(queues, topic, queue_id, file)
            if file.end <= queue.next_offset:
                continue
            end = queue.min_offset
            log.error(
                "%s: the queue ends at %d: cut to %d, values of keys may be missing", file.path, queue.next_offset, end
            )
            writer = CompactionWriter(self._files, file.path.parent, file.begin)
            for offset in file.offsets:
                if offset < end:
                    ((position, size, tag),) = self.units(file, offset, 1, None)
                    writer.add(offset, self.read(position, size, None), tag)
            old = self.drop(topic, queue_id)
            if writer.count:
                self.put(topic, queue_id, writer.finish(end))
            for path in old:
                self._files.remove(path)
            self._files.sync_dir(file.path.parent)

    def _forget(self, number: int) -> None:
        del self._by_number[number]
        handle = self._handles.pop(number, -1)
        if handle >= 0:
            self._files.close(handle)

    def end(self, topic: str, queue_id: int) -> int:
        """Offsets below it are read from here; 0: none."""
        found = self.queues.get((topic, queue_id))
        return found.end if found is not None else 0

    # --- reading

    def units(self, file: CompactedFile, offset: int, count: int, cold: ColdReads | None) -> list[Unit]:
        """Units of up to `count` offsets from `offset` on, dense, up to the file's end. May raise `Cold`."""
        end = min(offset + count, file.end)
        low, high = bisect_left(file.offsets, offset), bisect_left(file.offsets, end)
        found: list[Unit] = [HOLE] * (end - offset)
        if high > low:
            at = file.records_bytes + low * _UNIT.size
            data = self._read_file(file, at, (high - low) * _UNIT.size, cold)
            base = VIRTUAL | file.number << _FILE_BITS
            for place, position, size, tag in _UNIT.iter_unpack(data):
                found[place - offset] = (base | position, size, tag)
        return found

    def survivor(self, topic: str, position: int, cold: ColdReads | None) -> Unit | None:
        """The unit of the record that the log had at a position, if compaction kept it. May raise `Cold`."""
        for (name, _), file in self.queues.items():
            low, high = 0, len(file.offsets) if name == topic else 0
            while low < high:
                middle = (low + high) // 2
                (unit,) = self.units(file, file.offsets[middle], 1, cold)
                head = self.read(unit[0], record.HEAD.size, cold)
                at = (
                    record.LONG.unpack_from(head, record.PHYSICAL_OFFSET_AT)[0] if len(head) == record.HEAD.size else -1
                )
                if at == position:
                    return unit
                if at < position:
                    low = middle + 1
                else:
                    high = middle
        return None

    def records(self, topic: str, queue_id: int, start: int) -> Iterator[tuple[int, int, bytes]]:
        """(offset, tag code, record as it was stored) from an offset on. Waits for the disk."""
        file = self.queues.get((topic, queue_id))
        if file is not None:
            for offset in file.offsets[bisect_left(file.offsets, start) :]:
                ((position, size, tag),) = self.units(file, offset, 1, None)
                yield offset, tag, self.read(position, size, None)

    def read(self, position: int, count: int, cold: ColdReads | None) -> bytes:
        """Bytes at a position from `units`; empty if that file is gone. May raise `Cold`."""
        file = self._by_number.get((position - VIRTUAL) >> _FILE_BITS)
        return self._read_file(file, position & ((1 << _FILE_BITS) - 1), count, cold) if file is not None else b""

    def _read_file(self, file: CompactedFile, at: int, count: int, cold: ColdReads | None) -> bytes:
        handle = self._handles.pop(file.number, -1)
        if handle < 0:
            if len(self._handles) >= HANDLES_MAX:
                self._files.close(self._handles.pop(next(iter(self._handles))))
            handle = self._files.open(file.path, False)
        self._handles[file.number] = handle
        if cold is not None:
            return cold.read(file.path, handle, count, at, 1 << 62)
        return self._files.pread(handle, count, at)

    def close(self) -> None:
        for handle in self._handles.values():
            self._files.close(handle)
        self._handles.clear()


def _begin_behind(queues: QueueTable, topic_name: str, queue_id: int, file: CompactedFile) -> ConsumeQueue:
    """The queue, without a record; still empty if a file of it is in the way that begins too far before."""
    topic = queues.topic(topic_name)
    queue = topic.queues.get(queue_id) or queues.add_queue(topic, queue_id)
    if queue.replay(file.end - 1, HOLE):
        log.warning("%s: the queue is gone: it goes on at %d", file.path, file.end)
        queue.min_offset = file.end
        queues.dirty.append(queue)
    return queue


class CompactionWriter:
    """Makes one file. `write` and `finish` are system calls only: a thread does them, one after the other."""

    def __init__(self, files: FileSystem, directory: Path, begin: int) -> None:
        self._files = files
        self._directory = directory
        self._begin = begin
        self._handle = -1
        self._written = 0
        self._waiting: list[bytes] = []
        self.waiting_bytes = 0
        self._units = bytearray()
        self._offsets = array("Q")
        self._size = 0

    @property
    def count(self) -> int:
        """Records so far."""
        return len(self._offsets)

    def add(self, offset: int, stored: bytes, tag: int) -> None:
        """A record; offsets ascend."""
        self._units += _UNIT.pack(offset, self._size, len(stored), tag)
        self._offsets.append(offset)
        self._waiting.append(stored)
        self._size += len(stored)
        self.waiting_bytes += len(stored)

    def write(self) -> None:
        """Put what was added into the file."""
        if self._handle < 0:
            self._files.make_dirs(self._directory)
            self._handle = self._files.open(self._directory / TEMPORARY, True)
            self._files.truncate(self._handle, 0)
        data = b"".join(self._waiting)
        if data:
            self._files.pwrite(self._handle, data, self._written)
        self._written += len(data)
        self._waiting = []
        self.waiting_bytes = 0

    def finish(self, end: int) -> CompactedFile:
        """Give the file its name, once it is on stable storage."""
        self.write()
        rest = _FOOTER.pack(
            _MAGIC, 0, crc32(self._units), self._begin, end, len(self._offsets), self._size
        )[8:]  # fmt: skip
        self._files.pwrite(
            self._handle, bytes(self._units) + _MAGIC + crc32(rest).to_bytes(4, "big") + rest, self._written
        )
        self._files.datasync(self._handle)
        self._files.close(self._handle)
        self._handle = -1
        path = self._directory / f"{end:020d}{SUFFIX}"
        self._files.rename(self._directory / TEMPORARY, path)
        for directory in (
            self._directory,
            self._directory.parent,
            self._directory.parent.parent,
            self._directory.parent.parent.parent,
        ):
            self._files.sync_dir(directory)
        return CompactedFile(path, self._begin, end, self._offsets, self._size)

    def abandon(self) -> None:
        """Forget the file."""
        if self._handle >= 0:
            self._files.close(self._handle)
            self._handle = -1
        self._files.remove(self._directory / TEMPORARY)
