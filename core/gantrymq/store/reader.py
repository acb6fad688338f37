"""The reading half of the store: queues, records by position, queries. Loop thread only; changes nothing.

After `MessageStore.read_without_waiting` every read here raises `Cold` where it would wait for the disk (store/cold.py).

Records that a queue unit names are looked at before they are handed out, unless this process wrote them a short while ago (store/checked.py). A
position from outside (a message id in a query) is believed only if the record's own queue points back at it: a body may hold bytes that
look like a record.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from functools import partial
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any, Final

from gantrymq.model import properties as props
from gantrymq.model.errors import StoreCorruptError
from gantrymq.model.names import FORWARDED_TOPIC
from gantrymq.model.sysflag import TRANSACTION_ROLLBACK
from gantrymq.store.checked import LOOKED_AT_MAX, RECORD_BYTES_MAX, is_unreadable
from gantrymq.store.checkpoints.ends import Ends, RememberedEnds, of_topic
from gantrymq.store.cold import Cold
from gantrymq.store.index.key_hashes import key_hash
from gantrymq.store.log import forwarded, moved, record
from gantrymq.store.log.commit_log import GAP_BYTES_MAX
from gantrymq.store.log.recovery import FILLER_TOPIC
from gantrymq.store.queues.compaction import VIRTUAL
from gantrymq.store.queues.consume_queue import HOLE, HOLE_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gantrymq.model.message import Message
    from gantrymq.store.appender import Appender
    from gantrymq.store.checked import CheckedReads
    from gantrymq.store.cold import ColdReads, Want
    from gantrymq.store.damage import Damaged, DamageList
    from gantrymq.store.index.index_file import Index
    from gantrymq.store.light.queues import LightQueues
    from gantrymq.store.log.commit_log import CommitLog
    from gantrymq.store.queues.compaction import CompactedFile, CompactedQueues
    from gantrymq.store.queues.consume_queue import ConsumeQueue, QueueFiles, Unit
    from gantrymq.store.queues.queue_table import QueueTable, Topic

log = logging.getLogger(__name__)

WRAPPED: Final = {moved.MOVED_TOPIC: moved.unwrap, FORWARDED_TOPIC: forwarded.unwrap}
"""By topic: what makes of such a record the one that it stands for."""
QUERY_CANDIDATES_MAX: Final = 10_000
"""Records looked at for one query: many may share a hash or lie outside the time range."""

HOLES_AT_ONCE: Final = 512
"""Units read to find one that is no hole; the first one nearly always is."""
WARMING_MAX: Final = 256
"""Operations that wait for the disk, above which a topic is opened on the loop: a client of thousands of queues that comes back after a restart would
fill the limit of what may wait, and be refused."""
OPENED_AHEAD_MAX: Final = 2_000
"""Topics opened though nobody asks: a kilobyte of memory per queue, 0.1 ms of the loop."""


def _unwrapped(message: Message | None) -> Message | None:
    """The record that one stands for, which may have been moved after it was forwarded; None: it is malformed."""
    try:
        while message is not None and (unwrap := WRAPPED.get(message.topic)) is not None:
            message = unwrap(message)
    except record.RecordError:
        return None
    return message


class StoreReader:
    """Read access to one store."""

    _log: CommitLog
    _queues: QueueTable
    _queue_files: QueueFiles
    _lights: LightQueues
    _index: Index
    _appender: Appender
    compacted: CompactedQueues
    """Old parts of compacted queues, whose records the log may have lost."""
    _ends: RememberedEnds
    _checked: CheckedReads
    damage: DamageList
    """Records that somebody has met and that cannot be read."""
    cold: ColdReads | None = None
    """The threads that read what is not in memory; None: reads wait."""

    def fetch(self, cold: Cold, token: Any, again: Callable[[Any], None]) -> None:
        """As `ColdReads.fetch`, for operations that came upon `Cold`."""
        assert self.cold is not None
        self.cold.fetch(cold, token, again)

    # --- queues

    def open_ahead(self) -> None:
        """Open topics that nobody has used since the start, one after the other, each when a thread has read what that reads: their
        first users need not wait for the disk."""
        self._open_one((self._queues.unopened()[:OPENED_AHEAD_MAX], ""))

    def _open_one(self, token: tuple[list[str], str]) -> None:
        waiting, name = token
        if name:
            try:
                self._queues.find_topic(name)
            except (StoreCorruptError, OSError) as error:
                log.warning("topic %s could not be opened ahead: %s", name, error)
        while waiting and self.cold is not None:
            name = waiting.pop()
            if name not in self._queues.open_topics:
                self.cold.warm(partial(self._queues.warm, name), (waiting, name), self._open_one)
                return

    def topics(self) -> list[str]:
        """Every topic that ever had a record, system topics included."""
        return self._queues.names()

    def on_units_written(self, counted: Callable[[ConsumeQueue, int, int], None]) -> None:
        """From now on `counted(queue, records, bytes of them)` is called when a queue's units are written, at most a second late."""
        self._queues.when_written(counted)

    def queues_of(self, topic: str) -> list[int]:
        """Queue ids of a topic that ever had a record, ascending."""
        self._queues.find(topic, -1)
        found = self._queues.open_topics.get(topic)
        return sorted(found.queues) if found is not None else []

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Offset that the next record will take; 0 for an unknown queue."""
        queue = self._queues.find(topic, queue_id)
        return queue.next_offset if queue is not None else 0

    def visible_end(self, topic: str, queue_id: int) -> int:
        """One behind the last record that consumers may be given; 0 for an unknown queue.

        Whoever gives records to consumers, counts what is left for them, or tells a queue's end to clients asks here (for light queues
        `light_visible_end`, for all queues of a topic `visible_sum`), and nowhere else. It is `max_offset` today: a record counts when it is
        appended. A store whose records count when others have them, too, ends here what they have.
        """
        queue = self._queues.find(topic, queue_id)
        return queue.next_offset if queue is not None else 0

    @property
    def used_topics(self) -> Mapping[str, Topic]:
        """Topics that somebody has used since the start; the queues of others cost no memory yet."""
        return self._queues.open_topics

    def known_ends(self, topic: str) -> Ends | None:
        """Sums of maximum and minimum offsets of a topic's queues; None: nobody has used it since the start, and nothing is remembered."""
        found = self._queues.open_topics.get(topic)
        if found is not None:
            return of_topic(found)
        return self._ends.get(topic) if topic in self._queues else (0, 0)

    def visible_sum(self, topic: str) -> int:
        """`visible_end` of all queues of a topic together."""
        found = self._queues.find_topic(topic)
        return sum([queue.next_offset for queue in found.queues.values()]) if found is not None else 0

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Offset of the oldest record still in the log; the maximum if there is none. A compacted queue begins where it always did."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        old = self.compacted.queues.get((topic, queue_id)) if self.compacted.queues else None
        return queue.min_offset if old is None else min(queue.min_offset, old.begin)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """What `read_queue` reads; None: it never had a record. May raise `Cold`: the first one to use a topic since the start waits until a thread
        has read what opening it reads, unless `WARMING_MAX` wait already."""
        queues, cold = self._queues, self.cold
        if cold is not None and topic not in queues.open_topics and topic in queues and cold.queued < WARMING_MAX:
            cold.warm_first(self._queue_files.root / topic, partial(self._warm, topic))
        return queues.find(topic, queue_id)

    def _warm(self, topic: str) -> None:
        """In a thread; several may have asked at once."""
        if topic not in self._queues.open_topics:
            self._queues.warm(topic)

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[Unit]:
        """(physical offset, record size, tag code) of up to `count` offsets from `offset` on, dense: item i is offset + i.

        Empty outside the queue. A lost offset has size `HOLE_SIZE`; readers skip it (`read_records` does).
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return []
        if self.compacted.queues:
            old = self.compacted.queues.get((topic, queue_id))
            if old is not None and old.begin <= offset < max(old.end, queue.min_offset):
                return self._old_units(old, queue, offset, count)
        return queue.read(offset, count) if offset >= queue.min_offset else []

    def select_units(
        self, topic: str, queue_id: int, offset: int, count: int, codes: frozenset[int], words: frozenset[int]
    ) -> tuple[list[int], list[int], list[int]]:
        """Of the units that `units` gives those with one of the tag codes: their offsets, their records' positions and sizes. `words`:
        `unit_words.tag_words(codes)`."""
        queue = self._queues.find(topic, queue_id)
        if queue is not None and offset >= queue.min_offset and offset >= self.compacted.end(topic, queue_id):
            return queue.select(offset, count, codes, words)
        units = self.units(topic, queue_id, offset, count)
        places = [place for place, unit in enumerate(units) if unit[2] in codes and unit[1] != HOLE_SIZE]
        return (
            [offset + place for place in places],
            [units[place][0] for place in places],
            [units[place][1] for place in places],
        )

    def _old_units(self, old: CompactedFile, queue: ConsumeQueue, offset: int, count: int) -> list[Unit]:
        units: list[Unit] = []
        if offset < old.end:
            units = self.compacted.units(old, offset, count, self.cold)
        end = min(offset + count, queue.next_offset)
        units += [HOLE] * (min(end, queue.min_offset) - offset - len(units))  # lost, with a file that was damaged
        if offset + len(units) < end:
            units += queue.read(offset + len(units), end - offset - len(units))
        return units

    def offset_by_time(self, topic: str, queue_id: int, ms: int, lower: bool) -> int:
        """`lower`: first offset stored at or after `ms` (the maximum if none). Else: last one stored at or before (the minimum)."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.next_offset
        old = self.compacted.queues.get((topic, queue_id))
        if old is not None and len(old.offsets):
            if self._store_ms(self._old(old, -1)) >= ms + (not lower):
                return self._old_offset_by_time(old, ms, lower)
            low = max(low, old.end)
        while low < high:
            middle = (low + high) // 2
            found, unit = _past_holes(queue, middle, high)
            at_ms = self._store_ms(unit) if found < high else ms + 1
            if at_ms < ms or (at_ms == ms and not lower):
                low = found + 1
            else:
                high = middle
        return low if lower else max(low - 1, queue.min_offset)

    def _old(self, old: CompactedFile, index: int) -> Unit:
        return self.compacted.units(old, old.offsets[index], 1, self.cold)[0]

    def _old_offset_by_time(self, old: CompactedFile, ms: int, lower: bool) -> int:
        low, high = 0, len(old.offsets) - 1
        while low < high:
            middle = (low + high) // 2
            at_ms = self._store_ms(self._old(old, middle))
            if at_ms < ms or (at_ms == ms and not lower):
                low = middle + 1
            else:
                high = middle
        return old.offsets[low if lower else max(low - 1, 0)]

    def _store_ms(self, unit: Unit) -> int:
        return self._store_ms_at(unit[0]) if unit[1] != HOLE_SIZE else 0

    def store_ms_at(self, position: int) -> int:
        """Store time of the record that begins at `position`; 0 where none can."""
        return self._store_ms_at(position)

    def _store_ms_at(self, position: int) -> int:
        head = self._bytes_at(position, record.HEAD.size)
        if len(head) < record.HEAD.size:
            return 0
        at = record.STORE_MS_AT + (12 if head[record.SYS_FLAG_AT + 3] & 0x10 else 0)
        return int(record.LONG.unpack_from(head, at)[0])

    def light_ids(self) -> list[int]:
        """Light queues that ever had an entry and are not deleted."""
        return self._lights.ids()

    def light_visible_end(self, light: int) -> int:
        """`visible_end` of a light queue."""
        return self._lights.next_offset(light)

    def light_units(self, light: int, offset: int, count: int) -> list[Unit]:
        """As `units`, for a light queue; entries below its minimum are lost offsets."""
        return self._lights.read(light, offset, count)

    # --- records

    def read_records(self, units: Sequence[Unit], bytes_max: int) -> tuple[list[bytes], int]:
        """Stored bytes of records named by units, neighbours in one piece, and the number of units covered.

        At least one record, then as many as `bytes_max` allows. Units without a record count as covered.
        """
        ranges: list[tuple[int, int]] = []
        taken = total = 0
        start = end = -1
        file_size = self._log.file_size
        for position, size, _ in units:
            if size == HOLE_SIZE:
                taken += 1
                continue
            if total and total + size > bytes_max:
                break
            if position != end or position % file_size == 0:
                if end > start:
                    ranges.append((start, end - start))
                start = position
            end = position + size
            total += size
            taken += 1
        if end > start:
            ranges.append((start, end - start))
        return self._read_all(ranges), taken

    def read_queue(self, queue: ConsumeQueue, offset: int, count: int, bytes_max: int) -> tuple[list[bytes], int, int]:
        """As `units` and `read_records`, for offsets that are in no compacted file: pieces, number of offsets covered, bytes of the pieces.

        Damaged records are left out. Neighbours need not be in one piece. Records that lie among those of other queues cost 0.2 us each.
        """
        found = self.read_span(queue, offset, count, bytes_max)
        if found is not None:
            return found
        units = queue.read(offset, count) if offset >= queue.min_offset else []
        if units and self._is_trusted(min(units)[0], queue, offset, offset + len(units)):
            holes = any(unit[1] == HOLE_SIZE for unit in units)
            try:
                pieces, taken = (self.read_records if holes else self.read_scattered)(units, bytes_max)
                return pieces, taken, sum(map(len, pieces))
            except OSError as error:
                if not is_unreadable(error):
                    raise
        del units[LOOKED_AT_MAX:]
        run = range(offset, offset + len(units))
        pieces, taken = self._checked.read(queue.topic, queue.queue_id, run, units, bytes_max)
        whole = [piece for piece in pieces if piece]
        if taken and len(whole) == taken:
            queue.note_checked(offset, offset + taken)
        return whole, taken, sum(map(len, whole))

    def _is_trusted(self, position: int, queue: ConsumeQueue | None = None, offset: int = 0, end: int = 0) -> bool:
        """Whether records from a position on need no look: this process wrote them a short while ago, or has looked at all of these offsets. What
        the disk had to be read for is looked at again."""
        if self.cold is not None and self.cold.answering:
            return False
        if position >= self._log.hot_from:
            return True
        return queue is not None and queue.checked is not None and queue.checked.covers(offset, end)

    def read_span(
        self, queue: ConsumeQueue, offset: int, count: int, bytes_max: int
    ) -> tuple[list[bytes], int, int] | None:
        """As `read_queue`; None where a record is lost or damaged, or it takes more to find them. At least one record otherwise."""
        spans = queue.spans(offset, count) if offset >= queue.min_offset else None
        if spans is None:
            return None
        places, sizes, base = spans
        if len(sizes) > LOOKED_AT_MAX and not self._is_trusted(base + places[0], queue, offset, offset + len(sizes)):
            places, sizes = places[:LOOKED_AT_MAX], sizes[:LOOKED_AT_MAX]
        found = self._read_near(places, sizes, base, bytes_max)
        if found is None or self._is_trusted(base + places[0], queue, offset, offset + found[1]):
            return found
        run = range(offset, offset + found[1])
        if not self._checked.all_whole(queue.topic, queue.queue_id, run, places, sizes, base, found[0]):
            return None
        queue.note_checked(run.start, run.stop)
        return found

    def read_units(
        self, topic: str, queue_id: int, offsets: Sequence[int], units: Sequence[Unit], bytes_max: int
    ) -> tuple[list[bytes], int]:
        """As `read_records`, but a piece for each unit covered, empty where there is no whole record. `offsets`: of the units in that queue."""
        trusted = units and self._is_trusted(min(units)[0]) and max(units)[0] < self._appender.position
        if trusted and not any(unit[1] == HOLE_SIZE for unit in units):
            try:
                return self.read_scattered(units, bytes_max)
            except OSError as error:
                if not is_unreadable(error):
                    raise
        return self._checked.read(topic, queue_id, offsets, units, bytes_max)

    def fault(self, unit: Unit) -> tuple[str, bool]:
        """Why the record that a unit names could not be had, and whether that is the unit's fault; empty: it is not there any more. May raise
        `Cold`."""
        return self._checked.fault(unit)

    def is_fresh(self, position: int) -> bool:
        """This process wrote the record at a position a short while ago, or it is one that compaction kept."""
        return position >= self._log.hot_from

    def note_damage(self, unit: Unit, queue: str, offset: int, what: str, is_unit: bool) -> None:
        """List it, if it is not. `queue`: `<topic>/<queue id>` or `~<light id>`."""
        self.damage.found(unit[0], unit[1], queue, offset, what, is_unit)

    def is_mended(self, entry: Damaged) -> bool:
        """What was damaged can be read now (its file was restored), or is not there any more. May raise `Cold`."""
        if entry.gone:
            return False
        if entry.is_unit:
            light, (topic, _, number) = entry.queue.startswith("~"), entry.queue.rpartition("/")
            units = (
                self.light_units(int(entry.queue[1:]), entry.offset, 1)
                if light
                else self.units(topic, int(number), entry.offset, 1)
            )
            return not units or units[0][:2] != (entry.position, entry.size)
        if entry.position < self._log.min_position:
            return True
        return self._checked.is_whole(entry.position, entry.size)

    # --- for who walks through the log (broker/retention/verification.py)

    def read_log(self, position: int, count: int) -> bytes:
        """Up to `count` bytes, not beyond the segment's end. May raise `Cold`."""
        return self._log.read(position, count)

    def segment_end(self, position: int) -> int:
        """Where the segment of a position ends."""
        return self._log.base_of(position) + self._log.file_size

    def may_be_size(self, position: int, size: int) -> bool:
        """Whether a record of `size` bytes could stand there."""
        return self._checked.names_a_record(position, size)

    def is_whole(self, position: int) -> bool:
        """Whether a whole record begins at a position. May raise `Cold`."""
        return self._checked.is_whole(position, 0)

    # --- pieces of answers

    def read_places(
        self, topic: str, queue_id: int, offsets: Sequence[int], positions: list[int], sizes: list[int], bytes_max: int
    ) -> tuple[list[bytes], int, int]:
        """Records of these offsets of a queue, at ascending positions, as far as `bytes_max` allows (one at least): pieces, number of offsets
        covered, bytes. Damaged records are left out."""
        if not positions:
            return [], 0, 0
        if len(positions) > LOOKED_AT_MAX and not self._is_trusted(positions[0]):
            positions, sizes = positions[:LOOKED_AT_MAX], sizes[:LOOKED_AT_MAX]
        found = self._read_near(positions, sizes, 0, bytes_max)
        if found is not None and (
            self._is_trusted(positions[0])
            or self._checked.all_whole(topic, queue_id, offsets[: found[1]], positions, sizes, 0, found[0])
        ):
            return found
        units = list(zip(positions, sizes, repeat(0)))
        pieces, taken = self.read_units(topic, queue_id, offsets, units, bytes_max)
        whole = [piece for piece in pieces if piece]
        return whole, taken, sum(map(len, whole))

    def _read_near(
        self, places: Sequence[int], sizes: Sequence[int], base: int, bytes_max: int
    ) -> tuple[list[bytes], int, int] | None:
        taken, total = len(sizes), sum(sizes)
        if bytes_max < total < HOLE_SIZE:
            taken = max(1, bisect_right(list(accumulate(sizes)), bytes_max))
            places, sizes = places[:taken], sizes[:taken]
            total = sum(sizes)
        if total >= HOLE_SIZE or places[-1] >= VIRTUAL or (total > bytes_max and total > RECORD_BYTES_MAX):
            return None
        try:
            found = self._log.read_many(places, sizes, base, total)
        except OSError as error:
            if not is_unreadable(error):
                raise
            return None
        return (found, taken, total) if found is not None and sum(map(len, found)) == total else None

    def whole_records(self, topic: str, queue_id: int, offset: int, units: Sequence[Unit]) -> list[bytes | None]:
        """Bytes of the records of a queue from `offset` on, where they lie near each other and nothing is odd about them; None: `get_many` and
        `fault` tell. May raise `Cold`."""
        places, sizes, name = [unit[0] for unit in units], [unit[1] for unit in units], topic.encode()
        if HOLE_SIZE in sizes or not self._log.min_position <= places[0] <= places[-1]:
            return [None] * len(units)
        near = self._read_near(places, sizes, 0, HOLE_SIZE)
        if near is None or near[1] != len(units):
            return [None] * len(units)
        pieces = near[0]
        if len(pieces) != len(units):  # neighbours came in one
            data = b"".join(pieces)
            pieces = [data[end - size : end] for end, size in zip(accumulate(sizes), sizes, strict=True)]
        is_at = record.is_at
        return [
            data if is_at(data, size, place, name, queue_id, number) else None
            for number, (data, place, size) in enumerate(zip(pieces, places, sizes, strict=True), offset)
        ]

    def read_scattered(self, units: Sequence[Unit], bytes_max: int) -> tuple[list[bytes], int]:
        """As `read_records`, for units that skip others: what lies between near ones is read with them and left out.

        Near: `GAP_BYTES_MAX`.
        """
        ranges: list[tuple[int, int]] = []
        taken = total = 0
        start = end = -1
        file_size = self._log.file_size
        for position, size, _ in units:
            if total and total + size > bytes_max:
                break
            near = (
                0 <= position - end <= GAP_BYTES_MAX
                and position < VIRTUAL
                and position // file_size == start // file_size
            )
            if not near:
                if end > start:
                    ranges.append((start, end - start))
                start = position
            end = position + size
            total += size
            taken += 1
        if end > start:
            ranges.append((start, end - start))
        read = self._read_all(ranges)
        pieces = []
        which = -1
        base = end = 0
        for position, size, _ in units[:taken]:
            if not base <= position < end:
                which += 1
                base, end = ranges[which][0], sum(ranges[which])
            pieces.append(read[which][position - base : position - base + size])
        return pieces, taken

    def _read_all(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Every range, or `Cold` with all that are."""
        pieces = []
        wanted: list[Want] = []
        for at, count in ranges:
            try:
                pieces.append(self._bytes_at(at, count))
            except Cold as cold:
                wanted += cold.wanted
        if wanted:
            raise Cold(wanted)
        return pieces

    def _bytes_at(self, position: int, count: int) -> bytes:
        if position >= VIRTUAL:
            return self.compacted.read(position, count, self.cold)
        return self._log.read(position, count)

    def get(self, position: int, size: int | None = None) -> Message | None:
        """The record at a position from anywhere, or None if no record of a queue begins there. `size` None: not known."""
        message = self._decode(position, size)
        if message is None:
            return None
        queue = self._queues.find(message.topic, message.queue_id)
        units = queue.read(message.queue_offset, 1) if queue is not None else []
        if not units or units[0][0] != position:
            return None
        return message

    def get_many(self, refs: Sequence[tuple[int, int]], unreadable: list[int] | None = None) -> list[Message | None]:
        """Records by (physical offset, size) out of units; None where there is no such record (any more), or one that stands for damage.
        `unreadable` gets the indexes of those that the disk cannot read; without it that is an OSError."""
        found = self._decode_all(refs, unreadable)
        for index, message in enumerate(found):
            if message is None:
                continue
            if message.sys_flag & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK and FILLER_TOPIC.startswith(
                message.topic
            ):
                found[index] = None
            elif message.topic in WRAPPED:
                found[index] = _unwrapped(message)
        return found

    def get_entries(self, refs: Sequence[tuple[int, int]]) -> list[Message | None]:
        """As `get_many` for entries of light queues, None for what the disk cannot read, too. They may be others' messages as well: not to be changed."""
        recent, hot_from = self._appender.recent, self._log.hot_from
        if not refs or refs[-1][0] < recent.begin:
            return self.get_many(refs, [])
        found = [recent.find(position, size) if position >= hot_from else None for position, size in refs]
        missing = [index for index, message in enumerate(found) if message is None]
        if missing:
            read = self.get_many([refs[index] for index in missing], [])
            for index, message in zip(missing, read, strict=True):
                found[index] = message
        return found

    def _decode_all(
        self, refs: Sequence[tuple[int, int | None]], unreadable: list[int] | None = None
    ) -> list[Message | None]:
        found: list[Message | None] = []
        wanted: list[Want] = []
        for index, (position, size) in enumerate(refs):
            try:
                found.append(self._decode(position, size))
            except Cold as cold:
                wanted += cold.wanted
            except OSError as error:
                if unreadable is None or not is_unreadable(error):
                    raise
                unreadable.append(index)
                found.append(None)
        if wanted:
            raise Cold(wanted)
        return found

    def _decode(self, position: int, size: int | None) -> Message | None:
        if position >= VIRTUAL:
            return self._decode_old(position, size or 0)
        if size == HOLE_SIZE or not (
            self._log.min_position <= position <= self._appender.position - record.RECORD_SIZE_MIN
        ):
            return None  # no record has the size of a hole, and reading as much would take seconds
        if size is None:  # a unit's 0 is damage, and no question
            size = int.from_bytes(self._log.read(position, 4), "big")
        if size < record.RECORD_SIZE_MIN or position + size > self._appender.position:
            return None
        try:
            message = record.decode(self._log.read(position, size))
        except record.RecordError:
            return None
        if message.size != size or message.physical_offset != position:
            return None
        return message

    def _decode_old(self, position: int, size: int) -> Message | None:
        """A record of a compacted queue, named by its unit; it says where it once stood in the log."""
        try:
            message = record.decode(self.compacted.read(position, size, self.cold))
        except record.RecordError:
            return None
        return message if message.size == size else None

    # --- the index

    def _candidates(self, topic: str, positions: list[int]) -> list[Message | None]:
        """Records at positions that the index names; what compaction kept of a segment that is gone comes from its file."""
        refs: list[tuple[int, int | None]] = [(position, None) for position in positions]
        if any(name == topic for name, _ in self.compacted.queues):
            low = self._log.min_position
            kept = [self.compacted.survivor(topic, position, self.cold) for position in positions if position < low]
            refs = [ref for ref in refs if ref[0] >= low] + [(unit[0], unit[1]) for unit in kept if unit is not None]
        return self._decode_all(refs)

    def _in_block(self, position: int, hashed: int) -> list[int]:
        """Records of a block that waits for the index which have that hash, newest first."""
        hashes, places, _ = self._appender.hashed[position]
        if hashed not in hashes:
            return []
        found = [place for one, place in zip(hashes, places, strict=True) if one == hashed]
        return found[::-1]

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[Message]:
        """Messages of a topic with this UNIQ_KEY or entry of KEYS, stored in [begin, end], newest first."""
        found: list[Message] = []
        positions: list[int] = []
        for its_topic, keys, position, store_ms in reversed(self._appender.index_pending):
            if its_topic == topic and begin_ms <= store_ms <= end_ms:
                if key in keys:
                    positions.append(position)
                elif not keys:
                    positions += self._in_block(position, key_hash(topic, key))
        limit = min(max(count_max * 4, 64), QUERY_CANDIDATES_MAX)
        while len(found) < count_max:
            indexed = self._index.find(topic, key, begin_ms, end_ms, limit)
            found = []
            for message in self._candidates(topic, list(dict.fromkeys((*positions, *indexed)))):
                if message is not None and message.topic == topic and begin_ms <= message.store_ms <= end_ms:
                    names = props.find(message.properties, props.KEYS).split(" ")
                    if key in names or key == props.find(message.properties, props.UNIQ_KEY):
                        found.append(message)
                        if len(found) == count_max:
                            break
            if len(indexed) < limit or limit == QUERY_CANDIDATES_MAX:
                break
            limit = QUERY_CANDIDATES_MAX
        return found


def _past_holes(queue: ConsumeQueue, offset: int, end: int) -> tuple[int, Unit]:
    """The first offset from `offset` on with a record, and its unit; `end` if there is none below it. A lost record has no time: what
    lies before it is not older than what is looked for. May raise `Cold`."""
    step = 1
    while offset < end:
        units = queue.read(offset, min(step, end - offset))
        for unit in units:
            if unit[1] != HOLE_SIZE:
                return offset, unit
            offset += 1
        step = HOLES_AT_ONCE
        if not units:
            break
    return end, HOLE
