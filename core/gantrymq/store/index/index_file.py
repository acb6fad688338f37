"""IndexFiles: from a key to the records that carry it (docs/formats/indexfile.md).

      0  begin ms 8 | end ms 8 | begin position 8 | end position 8 | used slots 4 | next entry 4 (counts from 1)
     40  slots of 4 bytes: newest entry of the chain, 0: none
         entries of 20 bytes: key hash 4 | physical offset 8 | seconds after begin 4 | previous entry 4

The slots of the newest file are kept in memory. Entries are written in runs; for a checkpoint the chunks of slots that changed, then the header, which is therefore true for everything it counts. (Keys scatter over
the slots: writing them with each run of entries cost 5 KiB per record.)
After a crash `open` cuts the newest file at a position of the log and makes its slots again from its entries.
"""

from __future__ import annotations

import logging
import mmap
from array import array
from datetime import datetime
from struct import Struct
from typing import TYPE_CHECKING, Final

from gantrymq.model.names import HASH_CHUNK, HIGH_DIGIT, LOW_DIGIT
from gantrymq.store.index.geometry import ENTRY, HEADER, ROCKETMQ_SLOTS, SLOT_SIZE, IndexBytes, cut_short, find_slots
from gantrymq.store.index.key_hashes import HASH_MASK, key_hash, unsigned_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from gantrymq.store.cold import ColdReads
    from gantrymq.store.files import FileSystem

log = logging.getLogger(__name__)

SECONDS_MAX: Final = 0x7FFFFFFF
CHUNK_SHIFT: Final = 12
"""Slots are written in chunks of 4,096 (16 KiB)."""
CHUNK: Final = 1 << CHUNK_SHIFT
CHUNKS_PER_WRITE: Final = 8
"""Neighbours that changed go into one write: 16 chunks cost 0.46 ms in 16 writes, 0.16 ms in two (measured, new pages of the file)."""
HUGE_PAGE: Final = 2 * 1024 * 1024
"""Slots of more bytes lie in pages of this size, if the system has them: keys scatter, and small ones cost 0.09 us more per key."""
LOAD_BYTES: Final = 1024 * 1024
"""Slots read at once while opening."""
SPARE_ENTRIES: Final = 100_000
"""With room for so many entries left, the slots of the file to come are made, a large page per write: the kernel clears it (0.2 ms)."""
WITHDRAWN_MAX: Final = 4_000_000
"""Entries since the last checkpoint whose chains are followed, 80 MB; beyond it the slots are made from all entries."""
KEYS_MAX: Final = 16_400
"""Keys that one record can have: each takes two bytes of its properties at least. A file with less room is filled key by key."""
MARKED_MAX: Final = 2
"""Entries per chunk of slots after which all chunks count as changed (7 of 8 are): marking them is 0.05 us per entry."""
CHAIN_MAX: Final = 1_000_000
"""Entries looked at for one key in one file: a damaged chain must not hang a query."""
PROBED_ENTRIES: Final = 100_000
"""Entries that must fit a number of slots before it is believed: a full file of 20 million would take 10 s."""
ENTRIES_PER_PACK: Final = 64
"""Entries packed by one call; see `consume_queue.UNITS_PER_PACK`."""
_ENTRIES: Final = [Struct(">" + "iqii" * count) for count in range(ENTRIES_PER_PACK + 1)]


def _pack(flat: list[int]) -> bytes:
    count = len(flat) // 4
    if count <= ENTRIES_PER_PACK:
        return _ENTRIES[count].pack(*flat)
    pack = _ENTRIES[ENTRIES_PER_PACK].pack
    whole = count // ENTRIES_PER_PACK * ENTRIES_PER_PACK * 4
    parts = [pack(*flat[at : at + ENTRIES_PER_PACK * 4]) for at in range(0, whole, ENTRIES_PER_PACK * 4)]
    parts.append(_ENTRIES[count % ENTRIES_PER_PACK].pack(*flat[whole:]))
    return b"".join(parts)


def make_table(slots: int) -> memoryview:
    """Empty slots."""
    size = slots * SLOT_SIZE
    if size < HUGE_PAGE:
        return memoryview(bytearray(size)).cast("i")
    pages = mmap.mmap(-1, -(-size // HUGE_PAGE) * HUGE_PAGE)
    try:
        pages.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        log.debug("no large pages for the index")
    return memoryview(pages)[:size].cast("i")


class IndexFile:
    """One file. `next_entry` - 1 entries are in it, those in `_pending` not yet on disk."""

    def __init__(self, files: FileSystem, path: Path, slots: int, entries: int) -> None:
        self._files = files
        self.path = path
        self.slots = slots
        self.entries = entries
        self.begin_ms = self.end_ms = self.begin_position = self.end_position = 0
        self.used_slots = 0
        self.next_entry = 1
        self._pending: list[int] = []
        self._table: memoryview | None = None
        """Slots, of the newest file only."""
        self._dirty = bytearray(slots + CHUNK - 1 >> CHUNK_SHIFT)
        """1 for each chunk of slots that changed."""
        self._marked = 0
        """Entries since the slots were written; beyond `MARKED_MAX` all chunks count as changed."""
        self._handle = -1
        self.cold: ColdReads | None = None
        """As in `QueueFiles`; for `find` alone."""
        self._opened_at = 0

    @property
    def length(self) -> int:
        """Of the whole file, in bytes."""
        return HEADER.size + self.slots * SLOT_SIZE + self.entries * ENTRY.size

    @property
    def room(self) -> int:
        """Entries that still fit."""
        return self.entries - self.next_entry

    @property
    def full(self) -> bool:
        return self.next_entry >= self.entries

    def create(self, table: memoryview | None = None) -> None:
        """Make the file. `table`: empty slots, if there are some at hand."""
        self._handle = self._files.open(self.path, True)
        self._files.truncate(self._handle, self.length)
        self._table = table if table is not None else make_table(self.slots)
        self._write_header()

    def open(self) -> None:
        self._handle = self._files.open(self.path, False)
        if self._files.size(self._handle) != self.length:  # cut short by a crash
            self._files.truncate(self._handle, self.length)
        (
            self.begin_ms, self.end_ms, self.begin_position, self.end_position, self.used_slots, self.next_entry,
        ) = HEADER.unpack(self._files.pread(self._handle, HEADER.size, 0))  # fmt: skip
        self.next_entry = min(max(self.next_entry, 1), self.entries)
        self._opened_at = self._entry_at(self.next_entry)

    def reaches(self, next_entry: int) -> bool:
        """Whether header and entries on disk go as far as they did once."""
        return self.next_entry >= next_entry and (next_entry < 2 or any(self._stored_entry(next_entry - 1)))

    def _write_header(self) -> None:
        self._files.pwrite(
            self._handle,
            HEADER.pack(
                self.begin_ms, self.end_ms, self.begin_position, self.end_position, self.used_slots, self.next_entry
            ),
            0,
        )

    def load_slots(self) -> None:
        """Have the slots in memory: entries are about to be added. 20 MB with RocketMQ's size; waits for the disk."""
        if self._table is None:
            table = make_table(self.slots)
            for at in range(0, self.slots * SLOT_SIZE, LOAD_BYTES):
                count = min(LOAD_BYTES, self.slots * SLOT_SIZE - at)
                data = self._files.pread(self._handle, count, HEADER.size + at)
                if data.count(0) != len(data):
                    slots = array("i", data[: len(data) // SLOT_SIZE * SLOT_SIZE])
                    slots.byteswap()
                    if min(slots) < 0 or max(slots) >= self.next_entry:  # damage, or entries that a crash took away
                        slots = array("i", [slot if 0 < slot < self.next_entry else 0 for slot in slots])
                    table[at // SLOT_SIZE : at // SLOT_SIZE + len(slots)] = memoryview(slots)
            self._table = table

    def add_records(
        self, records: Iterable[tuple[str, tuple[str, ...], int, int]]
    ) -> Iterator[tuple[str, tuple[str, ...], int, int]]:
        """Put records, each with a key at least, under their keys, as many as there is surely room for; the answer has the rest. `add_run` in one
        pass: a tuple and a list item less per key."""
        waiting = iter(records)
        self.load_slots()
        entry, slots, pending, dirty, table = self.next_entry, self.slots, self._pending, self._dirty, self._table
        assert table is not None
        limit, mask, low, high, longest = self.entries - KEYS_MAX, HASH_MASK, LOW_DIGIT, HIGH_DIGIT, HASH_CHUNK
        if entry >= limit:
            return waiting
        begin_ms = self.begin_ms
        used = seconds = position = store_ms = 0
        last_ms, first_entry, marking = -1, entry, self._marks_chunks()
        for topic, keys, position, store_ms in waiting:
            if entry == 1:
                self.begin_position, self.begin_ms = position, store_ms
                begin_ms = store_ms
            if store_ms != last_ms:
                last_ms = store_ms
                seconds = min(max((store_ms - begin_ms) // 1000, 0), SECONDS_MAX)
            for key in keys:
                text = f"{topic}#{key}"
                if len(text) <= longest and text.isascii():  # `unsigned_hash`, without a call per key
                    data = text.encode()
                    hashed = int(data.translate(low), 31) + 31 * int(data.translate(high), 31) & 0xFFFFFFFF
                else:
                    hashed = unsigned_hash(text)
                if hashed > mask:  # negative in Java; the one without an absolute value counts as 0
                    hashed = 0x100000000 - hashed & mask
                slot = hashed % slots
                previous = table[slot]
                table[slot] = entry
                if marking:
                    dirty[slot >> CHUNK_SHIFT] = 1
                if not previous:
                    used += 1
                pending += (hashed, position, seconds, previous)
                entry += 1
            if entry >= limit:
                break
        self.next_entry = entry
        self.used_slots += used
        self._marked += entry - first_entry
        if entry > first_entry:
            self.end_ms, self.end_position = store_ms, position
        return waiting

    def add_run(self, run: list[tuple[int, int, int]], at: int) -> int:
        """Put entries (Java's hash, physical offset, store ms) from `run[at]` on, as many as fit; returns where it stopped."""
        self.load_slots()
        entry, slots, table, dirty, pending = self.next_entry, self.slots, self._table, self._dirty, self._pending
        assert table is not None
        stop = min(len(run), at + self.entries - entry)
        if entry == 1 and at < stop:
            _, self.begin_position, self.begin_ms = run[at]
        begin_ms = self.begin_ms
        position = store_ms = used = seconds = 0
        last_ms = -1
        for hashed, position, store_ms in run[at:stop]:
            if hashed > HASH_MASK:
                hashed = 0x100000000 - hashed & HASH_MASK
            slot = hashed % slots
            previous = table[slot]
            table[slot] = entry
            dirty[slot >> CHUNK_SHIFT] = 1
            if not previous:
                used += 1
            if store_ms != last_ms:
                last_ms = store_ms
                seconds = min(max((store_ms - begin_ms) // 1000, 0), SECONDS_MAX)
            pending += (hashed, position, seconds, previous)
            entry += 1
        self.next_entry = entry
        self.used_slots += used
        if at < stop:
            self.end_ms, self.end_position = store_ms, position
        return stop

    def add_hashed(self, hashes: list[int], places: list[int], at: int, store_ms: int) -> int:
        """As `add_run`, of records of one time: hashes as the index has them, and where the record of each is."""
        self.load_slots()
        entry, slots, table, dirty = self.next_entry, self.slots, self._table, self._dirty
        assert table is not None
        if at or len(hashes) > self.entries - entry:
            stop = min(len(hashes), at + self.entries - entry)
            hashes, places = hashes[at:stop], places[at:stop]
        count = len(hashes)
        if not count:
            return at
        if entry == 1:
            self.begin_position, self.begin_ms = places[0], store_ms
        seconds = min(max((store_ms - self.begin_ms) // 1000, 0), SECONDS_MAX)
        chosen = [hashed % slots for hashed in hashes]
        before: list[int] = []
        for slot in chosen:
            before.append(table[slot])
            table[slot] = entry
            entry += 1
        if self._marks_chunks():
            for slot in chosen:
                dirty[slot >> CHUNK_SHIFT] = 1
        flat = [seconds] * (4 * count)
        flat[::4], flat[1::4], flat[3::4] = hashes, places, before
        self._pending += flat
        self.used_slots += before.count(0)
        self._marked += count
        self.next_entry = entry
        self.end_ms, self.end_position = store_ms, places[-1]
        return at + count

    def _marks_chunks(self) -> bool:
        """False: all chunks of slots count as changed."""
        if self._marked > MARKED_MAX * len(self._dirty):
            self._dirty[:] = b"\1" * len(self._dirty)
            return False
        return True

    @property
    def pending_bytes(self) -> int:
        return len(self._pending) * 5

    def write_entries(self) -> None:
        """The new entries alone: one write."""
        if self._pending:
            first = self.next_entry - len(self._pending) // 4
            self._files.pwrite(self._handle, _pack(self._pending), self._entry_at(first))
            self._pending = []

    def write_pending(self, chunks_max: int = 1 << 30) -> bool:
        """Entries, then slots, then the header. False: more than `chunks_max` chunks of slots had changed; call again."""
        number = self._dirty.find(1)
        if not self._pending and number < 0:
            return True
        self.write_entries()
        while number >= 0 and chunks_max:
            stop = self._dirty.find(0, number, number + min(CHUNKS_PER_WRITE, chunks_max))
            if stop < 0:
                stop = min(number + min(CHUNKS_PER_WRITE, chunks_max), len(self._dirty))
            self._write_chunks(number, stop)
            chunks_max -= stop - number
            number = self._dirty.find(1, stop)
        if number >= 0:
            return False
        self._marked = 0
        self._write_header()
        return True

    def _write_chunks(self, first: int, stop: int) -> None:
        assert self._table is not None
        slots = array("i")
        slots.frombytes(self._table[first << CHUNK_SHIFT : stop << CHUNK_SHIFT].cast("B"))
        slots.byteswap()
        self._files.pwrite(self._handle, slots, HEADER.size + (first * SLOT_SIZE << CHUNK_SHIFT))
        self._dirty[first:stop] = bytes(stop - first)

    @property
    def changed(self) -> bool:
        """Something is not on disk."""
        return bool(self._pending) or self._dirty.find(1) >= 0

    def _entry_at(self, entry: int) -> int:
        return HEADER.size + self.slots * SLOT_SIZE + entry * ENTRY.size

    def _read_entry(self, entry: int) -> tuple[int, int, int, int]:
        first_pending = self.next_entry - len(self._pending) // 4
        if entry >= first_pending:
            at = (entry - first_pending) * 4
            one = self._pending[at : at + 4]
            return one[0], one[1], one[2], one[3]
        data = self._read(ENTRY.size, self._entry_at(entry))
        return ENTRY.unpack(data) if len(data) == ENTRY.size else (0, 0, 0, 0)

    def _read(self, count: int, at: int) -> bytes:
        if self.cold is not None:
            return self.cold.read(self.path, self._handle, count, at, self._opened_at)
        return self._files.pread(self._handle, count, at)

    def _stored_entry(self, entry: int) -> tuple[int, int, int, int]:
        data = self._files.pread(self._handle, ENTRY.size, self._entry_at(entry))
        return ENTRY.unpack(data) if len(data) == ENTRY.size else (0, 0, 0, 0)

    def find(self, hashed: int, begin_ms: int, end_ms: int, count_max: int) -> list[int]:
        """Physical offsets of entries with this hash, newest first; times to the second."""
        slot = hashed % self.slots
        if self._table is not None:
            entry = self._table[slot]
        else:
            data = self._read(SLOT_SIZE, HEADER.size + slot * SLOT_SIZE)
            entry = int.from_bytes(data, "big", signed=True)
        found: list[int] = []
        limit = self.next_entry
        for _ in range(CHAIN_MAX):
            if not 0 < entry < limit or len(found) >= count_max:
                break
            one_hash, position, seconds, previous = self._read_entry(entry)
            at_ms = self.begin_ms + seconds * 1000
            if at_ms < begin_ms - 1000:
                break
            if one_hash == hashed and at_ms <= end_ms:
                found.append(position)
            limit = entry  # a chain only goes back
            entry = previous
        return found

    def cut(self, position: int, store_ms_at: Callable[[int], int], whole: bool) -> None:
        """Drop every entry of a record at or above `position`, and make the slots again from what stays; or, if no write was lost (`whole`),
        take them back to it: 10 million entries take 4 s, those of the last seconds nothing.

        `store_ms_at(position)`: store time of a record, because entries keep whole seconds only.
        """
        count, high = 1, self.entries
        while count < high:
            middle = (count + high) // 2
            stored = self._stored_entry(middle)
            if stored[1] >= position or stored[1] < self.begin_position or not any(stored):
                high = middle
            else:
                count = middle + 1
        if whole and 1 < count <= self.next_entry and self._take_back(count):
            self.next_entry = count
            self.end_position = self._stored_entry(count - 1)[1]
        else:
            self._remake(count)
        if count > 1:
            self.end_ms = store_ms_at(self.end_position)
        self._files.truncate(self._handle, self._entry_at(count))
        self._files.truncate(self._handle, self.length)
        self.write_pending()
        self._write_header()

    def _take_back(self, count: int) -> bool:
        """Have the slots in memory as they were when entry `count` came. Slots are written behind the entries that they name, and entries
        name the one before them. False: they do not fit together."""
        table = make_table(self.slots)
        data = self._files.pread(self._handle, self.slots * SLOT_SIZE, HEADER.size)
        slots = array("i", data.ljust(self.slots * SLOT_SIZE, b"\0"))
        slots.byteswap()
        newest = max(slots)
        if min(slots) < 0 or newest - count > WITHDRAWN_MAX:
            return False
        if newest >= count:
            tail = self._files.pread(self._handle, (newest + 1 - count) * ENTRY.size, self._entry_at(count))
            before = [entry[3] for entry in ENTRY.iter_unpack(tail[: len(tail) // ENTRY.size * ENTRY.size])]
            if len(before) <= newest - count or any(old >= count + place for place, old in enumerate(before)):
                return False
            for slot in [slot for slot, entry in enumerate(slots) if entry >= count]:
                entry = slots[slot]
                while entry >= count:
                    entry = before[entry - count]
                if entry < 0:
                    return False
                slots[slot] = entry
                self._dirty[slot >> CHUNK_SHIFT] = 1
        table[:] = memoryview(slots)
        self._table, self.used_slots = table, self.slots - slots.count(0)
        return True

    def _remake(self, count: int) -> None:
        """Make the slots from the first `count` - 1 entries."""
        self._table = make_table(self.slots)
        self.next_entry, self.used_slots = 1, 0
        begin = self.begin_ms
        entry = 1
        while entry < count:
            run = self._files.pread(self._handle, min(count - entry, CHUNK) * ENTRY.size, self._entry_at(entry))
            self.add_run([(hashed, at, begin + s * 1000) for hashed, at, s, _ in ENTRY.iter_unpack(run)], 0)
            self._pending = []
            entry += len(run) // ENTRY.size
        self._dirty = bytearray(b"\1" * len(self._dirty))

    def forget_slots(self) -> None:
        """The file is full and written: its slots are read from disk from now on."""
        self._table = None

    def close(self) -> None:
        if self._handle >= 0:
            self._files.close(self._handle)
            self._handle = -1


class Index:
    """All IndexFiles of a store. Loop thread only."""

    def __init__(self, files: FileSystem, directory: Path, slots: int, entries: int) -> None:
        self._files = files
        self.directory = directory
        self.slots = slots
        self.entries = entries
        self.list: list[IndexFile] = []
        self.cold: ColdReads | None = None
        """As in `QueueFiles`; set before the first `find`."""
        self.unsynced: set[Path] = set()
        self._unreadable: list[Path] = []
        self._spare: memoryview | None = None
        """Empty slots for the next file, whose memory is touched up to `_spare_at`."""
        self._spare_at = 0

    def open(self, size_known: bool, derived: int = 1 << 62) -> bool:
        """Find the files, each with its own geometry. Unless it is known, what the newest has wins over the settings.

        `derived`: what records from there on have here is made again anyhow, so that a torn file of theirs alone just goes.
        False: a file's geometry cannot be told; `cut` removes it, and the index must be made again from the first record.
        """
        self._files.make_dirs(self.directory)
        complete = True
        for name in self._files.list_dir(self.directory):
            if not name.isdecimal():
                continue
            path = self.directory / name
            handle = self._files.open(path, False)
            try:
                stored = IndexBytes(self._files, handle)
                slots, entries = self._geometry(stored, size_known)
            finally:
                self._files.close(handle)
            if not slots:
                if stored.used and stored.begin_position < derived:
                    log.error("%s: number of slots not found: the index is made again", path)
                    complete = False
                    self._unreadable.append(path)  # not before it is on record that the index must be made again
                else:
                    self._files.remove(path)
                continue
            if not size_known and (slots, entries) != (self.slots, self.entries):
                log.warning(
                    "%s has %d slots and %d entries; store.index_slots and index_entries are ignored",
                    path,
                    slots,
                    entries,
                )
                self.slots, self.entries = slots, entries
            file = IndexFile(self._files, path, slots, entries)
            file.open()
            self.list.append(file)
        return complete

    def load_slots(self) -> None:
        """What adding needs, in memory: not on the loop later."""
        if self.list and not self.list[-1].full:
            self.list[-1].load_slots()
        else:
            while not self._prepare():
                pass

    def _prepare(self) -> bool:
        """Make slots for the file to come, a large page at a time. True: they are there."""
        if self._spare is None:
            self._spare, self._spare_at = make_table(self.slots), 0
        if self._spare_at < self.slots:
            self._spare[self._spare_at] = 0
            self._spare_at += HUGE_PAGE // SLOT_SIZE
        return self._spare_at >= self.slots

    def _geometry(self, stored: IndexBytes, size_known: bool) -> tuple[int, int]:
        """(slots, entries) of a file; (0, 0) if it has none that can be told."""
        if stored.length < HEADER.size:
            return 0, 0
        if stored.entries_of(self.slots) == self.entries and (size_known or not stored.used):
            return self.slots, self.entries
        if size_known and cut_short(stored, self.slots, self.entries):
            return self.slots, self.entries
        slots = find_slots(stored, (self.slots, ROCKETMQ_SLOTS), PROBED_ENTRIES)
        if not slots and stored.entries_of(self.slots) == self.entries:
            slots = self.slots  # damaged: what the settings say is the best guess
        return slots, stored.entries_of(slots) if slots else 0

    def cut(self, position: int, store_ms_at: Callable[[int], int], whole: bool = False) -> None:
        """Drop entries of records at or above `position`. `whole`: the process alone ended, what it wrote is there."""
        while self._unreadable:
            self._files.remove(self._unreadable.pop())
        while self.list and (self.list[-1].begin_position >= position or self.list[-1].next_entry == 1):
            file = self.list.pop()
            file.close()
            self._files.remove(file.path)
        if self.list:
            self.list[-1].cut(position, store_ms_at, whole)
            self.unsynced.add(self.list[-1].path)

    def add(self, records: list[tuple[str, tuple[str, ...], int, int]]) -> None:
        """Index records (topic, keys, physical offset, store ms) under each of their keys, of which each has one."""
        rest = records
        if self.list and not self.list[-1].full:
            rest = list(self.list[-1].add_records(records))
        run = [
            (unsigned_hash(f"{topic}#{key}"), position, store_ms)
            for topic, keys, position, store_ms in rest
            for key in keys
        ]
        at = 0
        while at < len(run):
            if not self.list or self.list[-1].full:
                self._roll(run[at][2])
            at = self.list[-1].add_run(run, at)

    def add_hashed(self, hashes: list[int], places: list[int], store_ms: int) -> None:
        """Index records of one time under hashes that are known; see `IndexFile.add_hashed`."""
        at = 0
        while at < len(hashes):
            if not self.list or self.list[-1].full:
                self._roll(store_ms)
            at = self.list[-1].add_hashed(hashes, places, at, store_ms)

    def _roll(self, now_ms: int) -> None:
        if self.list:
            self.list[-1].write_pending()
            self.list[-1].forget_slots()
            self.unsynced.add(self.list[-1].path)
        moment = datetime.fromtimestamp(now_ms / 1000)  # local time, as RocketMQ names them
        name = moment.strftime("%Y%m%d%H%M%S") + f"{now_ms % 1000:03d}"
        if self.list and name <= self.list[-1].path.name:
            name = str(int(self.list[-1].path.name) + 1)
        file = IndexFile(self._files, self.directory / name, self.slots, self.entries)
        file.create(self._spare)
        self._spare = None
        self.list.append(file)
        self.unsynced.add(file.path)

    @property
    def pending_entries(self) -> int:
        """What `write_entries` has to write."""
        return self.list[-1].pending_bytes // ENTRY.size if self.list else 0

    def write_entries(self) -> None:
        """New entries into the newest file. Its slots and header may wait: after a crash they are made again from the entries."""
        if self.list and self.list[-1].pending_bytes:
            self.unsynced.add(self.list[-1].path)
            self.list[-1].write_entries()
            if self.list[-1].room < SPARE_ENTRIES:
                self._prepare()

    def write_pending(self, chunks_max: int = 1 << 30) -> bool:
        """Entries, slots, header of the newest file. False: there are more than `chunks_max` chunks of slots to write; call again,
        and add nothing meanwhile, so that the file on disk is one state of the index."""
        if not self.list or not self.list[-1].changed:
            return True
        self.unsynced.add(self.list[-1].path)
        return self.list[-1].write_pending(chunks_max)

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int, count_max: int) -> list[int]:
        """Physical offsets under a key, newest first; collisions of the hash included."""
        hashed = key_hash(topic, key)
        found: list[int] = []
        for file in reversed(self.list):
            if file.begin_ms - 1000 <= end_ms and file.end_ms + 1000 >= begin_ms:
                file.cold = self.cold
                found += file.find(hashed, begin_ms, end_ms, count_max - len(found))
            if len(found) >= count_max:
                break
        return found

    def take_unsynced(self) -> list[Path]:
        """Files written since the last call."""
        paths = list(self.unsynced)
        self.unsynced.clear()
        return paths

    def close(self) -> None:
        for file in self.list:
            file.close()
