"""Compaction of topics with `cleanup.policy=COMPACTION` (docs/formats/compaction.md): of every key the last value is kept, whatever
retention deletes.

A queue is compacted in runs. One reads a bounded part behind the file that the queue has (`RECORDS_MAX` records), notes the last offset of
each key in it, then writes a new file: what is in the old one and not replaced, then the last ones of the part. The file gets its
name when the log is on stable storage up to the part's end, so that it never knows a record that a power cut takes away. Readers
change over between two turns; a crash at any place leaves the old file or the new one.

A tombstone (an empty body) is kept for a day, so that readers learn of the deletion, and then goes with its key. A record without a key is
refused when it is sent; one that came before the topic was compacted is not kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from gantrymq.broker.retention.live import RECORDS_BYTES, RECORDS_STEP
from gantrymq.broker.slices import HELD, Sliced, Slices, patient
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.store.log import record
from gantrymq.store.queues.compaction import CompactedFile, CompactionWriter
from gantrymq.store.queues.consume_queue import HOLE_SIZE

if TYPE_CHECKING:
    from pathlib import Path

    from gantrymq.broker.slices import Upkeep
    from gantrymq.broker.topics import TopicTable
    from gantrymq.model.message import Message
    from gantrymq.store.message_store import MessageStore
    from gantrymq.store.queues.consume_queue import Unit

log = logging.getLogger(__name__)

RECORDS_MAX: Final = 200_000
"""Records of one run that are not compacted yet: their keys are in memory meanwhile, some 30 MiB of them."""
DIRTY_MIN: Final = 1_000
"""A run begins when so many records came, at least half as many as the file has..."""
TOMBSTONE_MS: Final = 24 * 3_600_000
"""How long a deletion can be read; a consumer that is further behind may keep a key that is gone."""
TOPICS_STEP: Final = 1_000
TOPICS_US: Final = 100
"""Looking which topics are compacted, so many at a time."""
UNITS_STEP: Final = 512
RECORD_US: Final = 15
READ_US: Final = 20
WRITE_BYTES: Final = 1 << 20
"""Handed to the thread that writes."""
SLICE_US: Final = 1_000
CHECK_MS: Final = 5_000

Done = Callable[[OSError | None], None]


class Background(Protocol):
    """Where work goes that must not hold up the loop."""

    def in_thread(self, work: Callable[[], None], done: Done) -> None:
        """Run `work()`, system calls only, in a thread, one after the other; then `done(failure or None)` on the loop."""

    def later(self, call: Callable[[], None]) -> None:
        """Call on the loop after a pause of some slices' length: work in the background takes a part of the loop's time only."""


@dataclass(slots=True)
class Part:
    """What a run looks at. `begin`: first offset readers see; `from_offset` to `end`: not compacted yet."""

    topic: str
    queue_id: int
    old: CompactedFile | None
    begin: int
    from_offset: int
    end: int
    newest: dict[str, int] = field(default_factory=dict)


class Compaction:
    """One per broker. Loop thread. `min_offset(topic, queue)`: the first that readers see."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        min_offset: Callable[[str, int], int],
        upkeep: Upkeep,
        background: Background,
    ) -> None:
        self._store = store
        self._topics = topics
        self._min_offset = min_offset
        self._upkeep = upkeep
        self._background = background
        self._work = Sliced(store, self._slice, background.later, self._stopped)
        self._needed_from = 0
        self.runs = 0
        """Since the start."""
        store.segments.keep_from(self.needed_from)

    # --- what is to be done

    def start(self) -> None:
        """Look now and then for ever."""
        self._tick(self._upkeep.wheel.now_ms())

    def _tick(self, now_ms: int) -> None:
        if self._upkeep.is_closed():
            return
        if not self.busy and self._store.failure is None:
            self.begin()
        self._upkeep.wheel.call_at(now_ms + CHECK_MS, self._tick)

    @property
    def busy(self) -> bool:
        """A run is under way."""
        return self._work.job is not None

    def begin(self, force: bool = False) -> None:
        """Compact what is due; `force`: whatever is not compacted."""
        self._work.job = self._run(force)
        self._slice()

    def _queues(self) -> Slices[list[tuple[str, int]]]:
        found = []
        topics = list(self._topics.topics.values())
        for first in range(0, len(topics), TOPICS_STEP):
            compacted = [topic.name for topic in topics[first : first + TOPICS_STEP] if topic.compacted]
            found += [(name, queue_id) for name in compacted for queue_id in self._store.queues_of(name)]
            yield TOPICS_US + READ_US * len(compacted)
        return found

    def needed_from(self) -> int:
        """For retention: below this position no record of a compacted topic is needed in the log, because files on stable storage hold
        the last values. Measured at each look; it only rises, since a topic is compacted from its first record on."""
        return self._needed_from

    def _measure(self) -> Slices[None]:
        lowest = self._store.written_position
        for topic, queue_id in (yield from self._queues()):
            needed = yield from patient(lambda: self._first_needed(topic, queue_id))  # noqa: B023 (called at once)
            yield READ_US
            lowest = min(lowest, needed)
        self._needed_from = lowest

    def _first_needed(self, topic: str, queue_id: int) -> int:
        store = self._store
        offset = max(store.compacted.end(topic, queue_id), self._min_offset(topic, queue_id))
        while units := store.units(topic, queue_id, offset, UNITS_STEP):
            for position, size, _ in units:
                if size != HOLE_SIZE:
                    return position
            offset += len(units)
        return 1 << 62

    def _part(self, topic: str, queue_id: int) -> Part:
        store = self._store
        old = store.compacted.queues.get((topic, queue_id))
        begin = self._min_offset(topic, queue_id)
        from_offset = max(begin, old.end if old is not None else 0)
        end = min(store.max_offset(topic, queue_id), from_offset + RECORDS_MAX)
        return Part(topic, queue_id, old, begin, from_offset, end)

    def _is_due(self, part: Part) -> bool:
        """Much has come, or the oldest segment is complete and needed."""
        dirty = part.end - part.from_offset
        if dirty <= 0:
            return False
        if dirty >= min(max(DIRTY_MIN, len(part.old.offsets) // 2 if part.old is not None else 0), RECORDS_MAX):
            return True
        oldest_end = self._store.log_min_position + self._store.segments.file_size
        return oldest_end <= self._store.written_position and self._first_needed(part.topic, part.queue_id) < oldest_end

    # --- slices

    def _slice(self) -> None:
        if not self._upkeep.is_closed() and self._work.step(SLICE_US):
            self._background.later(self._slice)

    def _stopped(self, error: Exception) -> None:
        log.warning("compaction stopped: %s; it is tried again in %d s", error, CHECK_MS // 1000)

    def _thread(self, work: Callable[[], None]) -> Slices[None]:
        """Wait for a thread; raises what it raised."""
        answer: list[OSError | None] = []

        def done(failure: OSError | None) -> None:
            answer.append(failure)
            if self._work.waiting:
                self._work.wake()

        self._background.in_thread(work, done)
        while not answer:
            yield HELD
        if answer[0] is not None:
            raise answer[0]

    # --- the job

    def _run(self, force: bool) -> Slices[None]:
        for topic, queue_id in list(self._store.compacted.queues):
            found = self._topics.get(topic)
            if found is None or not found.compacted:
                yield from self._remove(self._store.compacted.drop(topic, queue_id))
        for topic, queue_id in (yield from self._queues()):
            while True:
                part = self._part(topic, queue_id)
                due = force and part.end > part.from_offset
                if not due and not (yield from patient(lambda: self._is_due(part))):  # noqa: B023 (called at once)
                    break
                yield from self._compact(part)
        yield from self._measure()

    def _compact(self, part: Part) -> Slices[None]:
        store = self._store
        limit = store.written_position
        writer = CompactionWriter(store.files, store.compacted.directory(part.topic, part.queue_id), part.begin)
        made: list[CompactedFile] = []
        try:
            yield from self._note_newest(part)
            yield from self._copy(part, writer)
            while store.flushed_position < limit:
                self._upkeep.request_flush()
                self._background.later(self._work.wake)
                yield HELD
            yield from self._thread(lambda: made.append(writer.finish(part.end)))
        finally:
            if not made:
                self._background.in_thread(writer.abandon, lambda failure: None)
        found = self._topics.get(part.topic)
        if found is None or not found.compacted or self._topics.first_offset(part.topic, part.queue_id) > part.begin:
            yield from self._remove([made[0].path])  # deleted meanwhile
            return
        self.runs += 1
        yield from self._remove(store.compacted.put(part.topic, part.queue_id, made[0]))

    def _note_newest(self, part: Part) -> Slices[None]:
        newest = part.newest
        offset = part.from_offset
        while offset < part.end:
            units = yield from self._units(part, offset)
            for some in _portions(units):
                for _, message, _ in (yield from self._records(some)):
                    key = message.property(props.KEYS)
                    if key:
                        newest[key] = message.queue_offset
            offset += len(units)

    def _copy(self, part: Part, writer: CompactionWriter) -> Slices[None]:
        newest, first = part.newest, part.from_offset
        gone_ms = self._upkeep.clock.now_ms() - TOMBSTONE_MS
        offset = part.begin
        while offset < part.end:
            units = yield from self._units(part, offset)
            for some in _portions(units):
                for stored, message, tag in (yield from self._records(some)):
                    key, at = message.property(props.KEYS), message.queue_offset
                    last = newest.get(key, at if at < first else -1)
                    if last == at and (message.body or message.store_ms > gone_ms):
                        writer.add(at, stored, tag)
                if writer.waiting_bytes >= WRITE_BYTES:
                    yield from self._thread(writer.write)
            offset += len(units)

    def _units(self, part: Part, offset: int) -> Slices[list[Unit]]:
        count = min(UNITS_STEP, part.end - offset)
        units = yield from patient(lambda: self._store.units(part.topic, part.queue_id, offset, count))
        yield READ_US + len(units) // 4
        if not units:
            raise GantryError(ErrorCode.STORE_FAILED, f"queue {part.queue_id} of {part.topic} has no offset {offset}")
        return units

    def _records(self, units: list[Unit]) -> Slices[list[tuple[bytes, Message, int]]]:
        """Stored bytes, message and tag code of each; what cannot be read is left out."""
        pieces, _ = yield from patient(lambda: self._store.read_records(units, 1 << 40))
        yield RECORD_US * len(units)
        data = b"".join(pieces)
        found = []
        at = 0
        for position, size, tag in units:
            try:
                message = record.decode(data, at)
                found.append((data[at : at + size], message, tag))
            except record.RecordError as error:
                log.error("record at %d cannot be read (%s): compaction leaves it out", position, error)
            at += size
        return found

    def _remove(self, paths: list[Path]) -> Slices[None]:
        def remove() -> None:
            for path in paths:
                self._store.files.remove(path)

        if paths:
            yield from self._thread(remove)


def _portions(units: list[Unit]) -> list[list[Unit]]:
    """Without holes, in portions of one slice."""
    found: list[list[Unit]] = []
    size = RECORDS_BYTES
    for unit in units:
        if unit[1] == HOLE_SIZE:
            continue
        if size + unit[1] > RECORDS_BYTES or len(found[-1]) >= RECORDS_STEP:
            found.append([])
            size = 0
        found[-1].append(unit)
        size += unit[1]
    return found
