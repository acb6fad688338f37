"""Snapshots of tables, cursors and moved entries, so that a start replays what came after the newest one and not the whole log.

One is rendered in slices while the broker goes on working, so its parts are of different moments, all between the begin and the end of
the rendering. That is no harm: a row's last record counts, so what is replayed from the begin on makes the same rows again, and for every
cursor it is noted which acknowledgement records its part holds already. The file gets its name when the log is on stable
storage up to the end of the rendering: a snapshot never knows more than the log will have.

A snapshot is used only if the log still has what it names: every record that it does not hold, and of each topic the very record
that was the last one. Any other is removed, and everything is replayed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from gantrymq.broker.consuming.acks import ACK_TOPIC
from gantrymq.broker.tables.tables import RESTING
from gantrymq.model import names
from gantrymq.model.errors import GantryError
from gantrymq.store.checkpoints.snapshot_file import (
    BlockKind,
    LastRecord,
    MovedEntry,
    SnapshotError,
    SnapshotFiles,
    Tail,
    cursors_block,
    head_block,
    moved_block,
    read_cursors,
    read_head,
    read_moved,
    read_rows,
    read_tail,
    rows_block,
    tail_block,
)
from gantrymq.store.cold import Cold
from gantrymq.store.log.moved import MOVED_TOPIC

if TYPE_CHECKING:
    from gantrymq.broker.consuming.cursors import Cursors
    from gantrymq.broker.tables.tables import Tables
    from gantrymq.net.api import Wheel
    from gantrymq.store.message_store import MessageStore

log = logging.getLogger(__name__)

BLOCK_ROWS: Final = 512
BLOCK_BYTES: Final = 64 * 1024
"""A block ends with the row that reaches one of these: some 300 us of work."""
CURSORS_AT_ONCE: Final = 128
BLOCK_US: Final = 400
CHUNK_BYTES: Final = 1 << 20
"""Handed to the thread that writes; the next is rendered when it is done."""
SHARE: Final = 4
"""A snapshot is due when the records since the last one reach a quarter of what it would hold: rendering costs a few
microseconds per record then, whatever the tables' size."""
SLICE_EVERY_MS: Final = 50
CHECK_EVERY_MS: Final = 5_000

Done = Callable[[OSError | None], None]
InThread = Callable[[Callable[[], None], Done], None]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What came out of a snapshot. `offsets`: by topic, where replay begins; `cursors`: (acknowledgement offset, entries);
    `moved`: queue and entries."""

    offsets: dict[str, int]
    tables: dict[str, dict[str, bytes]]
    cursors: list[tuple[int, bytes]]
    moved: list[tuple[str, list[MovedEntry]]]


NOTHING: Final = Loaded({}, {}, [], [])
"""Everything is replayed."""


def is_of_rows(topic: str) -> bool:
    """It is the queue of messages that are rows of some table."""
    return topic.startswith(names.OWN_ROWS_PREFIX) and topic != names.OWN_ROWS_PREFIX


class Snapshots:
    """See the module. Loop thread; at start and stop any one thread."""

    def __init__(
        self, files: SnapshotFiles, store: MessageStore, tables: Tables, cursors: Cursors, settle: Callable[[], None]
    ) -> None:
        """`settle()` makes records of everything that cursors settled."""
        self._files = files
        self._store = store
        self._tables = tables
        self._cursors = cursors
        self._settle = settle
        self._covered: dict[str, int] = {}
        """Offsets that the newest snapshot covers."""
        self._own: list[str] = [names.OWN_ROWS_PREFIX]
        """The first is none, and stands in every snapshot: it was made by a version that knows of messages that are rows."""
        self._looked = 0
        """Topics of the store that `_own_topics` has looked at."""
        self.tail = Tail(0, {})
        """Of what was rendered last."""

    # Start.

    def load(self) -> Loaded:
        """The newest snapshot that is true of the log; an empty one if there is none. Reads wait for the disk."""
        self._files.abandon()
        self._own_topics()  # 7 ms for 20,000 topics: now and not on the loop
        for name in self._files.names():
            try:
                loaded, tail = self._read(name)
                self._check(loaded.offsets, tail)
            except SnapshotError as error:
                log.warning("snapshot %s is not used: %s; tables and cursors are replayed from the log", name, error)
                self._files.remove(name)
                continue
            self.tail = tail
            self.done()
            return loaded
        return NOTHING

    def _read(self, name: str) -> tuple[Loaded, Tail]:
        loaded = Loaded({}, {}, [], [])
        tail: Tail | None = None
        shared: dict[Any, Any] = {}
        for count, (kind, payload) in enumerate(self._files.blocks(name)):
            if tail is not None or (count == 0) != (kind is BlockKind.HEAD):
                raise SnapshotError(f"block {count} of kind {kind}")
            try:
                if kind is BlockKind.HEAD:
                    loaded.offsets.update(read_head(payload))
                elif kind is BlockKind.ROWS:
                    read_rows(payload, loaded.tables, shared, RESTING)
                elif kind is BlockKind.CURSORS:
                    loaded.cursors.append(read_cursors(payload))
                elif kind is BlockKind.MOVED:
                    loaded.moved.append(read_moved(payload))
                else:
                    tail = read_tail(payload, count)
            except Exception as error:
                raise SnapshotError(f"block {count}: {error}") from error
        if tail is None:
            raise SnapshotError("it has no end")
        return loaded, tail

    def _check(self, offsets: dict[str, int], tail: Tail) -> None:
        """Raise SnapshotError unless the log has what the snapshot was made from, and everything since."""
        store = self._store
        if tail.limit > store.written_position:
            raise SnapshotError(f"it was made at {tail.limit}, the log ends at {store.written_position}")
        if names.OWN_ROWS_PREFIX not in offsets and any(map(is_of_rows, self._own_topics())):
            raise SnapshotError("an earlier version made it, which does not know of messages that are rows")
        for topic, last in tail.topics.items():
            low, high = store.min_offset(topic, 0), store.max_offset(topic, 0)
            first = offsets.get(topic, 0)
            if topic == MOVED_TOPIC:
                first = max(first, low)  # what is deleted there was moved once more, or nobody needs it
                last = last if last.offset >= low else LastRecord(low, 0, 0)
            if not low <= first <= last.offset <= high:
                raise SnapshotError(
                    f"it needs records {first} to {last.offset} of {topic}, the log has {low} to {high}"
                )
            if last.offset > low and self._last_record(topic, last.offset) != last:
                raise SnapshotError(f"record {last.offset - 1} of {topic} is another one now")

    def _last_record(self, topic: str, offset: int) -> LastRecord:
        """May raise `Cold`."""
        units = self._store.units(topic, 0, offset - 1, 1) if offset else []
        if not units:
            return LastRecord(offset, 0, 0)
        pieces, _ = self._store.read_records(units, units[0][1])
        return LastRecord(offset, units[0][0], crc32(b"".join(pieces)))

    # Rendering.

    def changes(self) -> int:
        """Records that the newest snapshot does not hold."""
        covered = self._covered
        return sum([offset - covered.get(topic, 0) for topic, offset in self._offsets().items()])

    def size(self) -> int:
        """Rows, cursors and moved entries: what a snapshot would hold."""
        return (
            self._cursors.count()
            + self._cursors.moved.count
            + sum([len(self._tables.rows(table)) for table in self._names()])
        )

    def _offsets(self) -> dict[str, int]:
        return {topic: self._store.max_offset(topic, 0) for topic in self._own_topics()}

    def _names(self) -> list[str]:
        return list(dict.fromkeys(filter(None, map(names.table_of, self._own_topics()))))

    def _own_topics(self) -> list[str]:
        """Of tables and of cursors. Topics are never taken away from the store's list: only those that came are looked at."""
        topics = self._store.topics()
        own = self._own
        own += [topic for topic in topics[self._looked :] if topic in (ACK_TOPIC, MOVED_TOPIC) or names.table_of(topic)]
        self._looked = len(topics)
        return own

    def render(self) -> Generator[bytes | Cold, None, None]:
        """The blocks of a snapshot, each some 300 us of work; or a `Cold` that must be fetched before it goes on."""
        yield head_block(self._offsets())
        blocks = 1
        for table in self._names():
            for data in self._rows(table):
                yield data
                blocks += 1
        for data in self._moved():
            yield data
            blocks += 1
        for data in self._windows():
            yield data
            blocks += 1
        self._settle()
        limit, topics = self._store.written_position, {}
        for topic, offset in self._offsets().items():
            while True:
                try:
                    topics[topic] = self._last_record(topic, offset)
                    break
                except Cold as cold:
                    yield cold
        self.tail = Tail(limit, topics)
        yield tail_block(blocks, self.tail)

    def done(self) -> None:
        """What was rendered is a snapshot now."""
        self._covered = {topic: last.offset for topic, last in self.tail.topics.items()}

    def _rows(self, table: str) -> Generator[bytes, None, None]:
        rows = self._tables.rows(table)
        keys: list[str] = []
        values: list[bytes] = []
        size = 0
        for page in self._tables.walk(table):
            for key in page:
                value = rows.get(key)
                if value is None:
                    continue
                keys.append(key)
                values.append(value)
                size += len(value)
                if len(keys) >= BLOCK_ROWS or size >= BLOCK_BYTES:
                    yield rows_block(table, keys, values)
                    keys, values, size = [], [], 0
        if keys:
            yield rows_block(table, keys, values)
        for key, value in list(self._tables.quarantined(table).items()):
            yield rows_block(table, [key], [value])

    def _moved(self) -> Generator[bytes, None, None]:
        moved = self._cursors.moved
        for name in list(moved.queues):
            for entries in moved.walk(name, BLOCK_ROWS):
                yield moved_block(name, entries)

    def _windows(self) -> Generator[bytes, None, None]:
        ids = self._cursors.ids()
        for first in range(0, len(ids), CURSORS_AT_ONCE):
            self._settle()
            offset = self._store.max_offset(ACK_TOPIC, 0)
            entries: list[bytes] = []
            for cursor_id in ids[first : first + CURSORS_AT_ONCE]:
                entries += self._cursors.state_of(cursor_id)
            if entries:
                yield cursors_block(offset, b"".join(entries))

    # Writing at once: a clean stop.

    def write_now(self) -> None:
        """Make one, waiting for the disk; the log is flushed for it. Nothing, if nothing changed."""
        try:
            self._files.abandon()
            if not self.changes():
                return
            for data in self.render():
                assert isinstance(data, bytes), "reads wait at a stop"
                self._files.write(data)
            if self._store.flush() < self.tail.limit:
                raise OSError("the log is not on stable storage")
            self._files.finish(self.tail.limit)
            self.done()
        except (OSError, GantryError) as error:
            log.warning("no snapshot of tables and cursors: %s; the next start replays more of the log", error)


class SnapshotWork:
    """Makes snapshots when they are due, in the background."""

    def __init__(
        self,
        snapshots: Snapshots,
        files: SnapshotFiles,
        store: MessageStore,
        wheel: Wheel,
        in_thread: InThread,
    ) -> None:
        self._snapshots = snapshots
        self._files = files
        self._store = store
        self._wheel = wheel
        self._in_thread = in_thread
        self._job: Generator[bytes | Cold, None, None] | None = None
        self._chunk: list[bytes] = []
        self._writing = False
        self._last_ms = 0
        self.records = 100_000
        """Records of tables and acknowledgements after which a snapshot is made (settings `broker.snapshot_records`...)."""
        self.interval_ms = 600_000
        """...and the time after which one is made if a tenth of them came."""
        self.closed = False

    def start(self, records: int, interval_ms: int) -> None:
        """Look from time to time whether one is due."""
        self.records, self.interval_ms = records, interval_ms
        self._last_ms = self._wheel.now_ms()
        self._wheel.call_at(self._last_ms + CHECK_EVERY_MS, self._check)

    def stop(self) -> None:
        """Give up the one that is being made. Its thread may still be in one write."""
        self.closed = True

    @property
    def busy(self) -> bool:
        """One is being made."""
        return self._job is not None

    def _check(self, now_ms: int) -> None:
        if self.closed:
            return
        if self._job is None and self.is_due(now_ms):
            self.begin()
        self._wheel.call_at(now_ms + CHECK_EVERY_MS, self._check)

    def is_due(self, now_ms: int) -> bool:
        """Enough has changed."""
        changes = self._snapshots.changes()
        at_last = now_ms - self._last_ms >= self.interval_ms
        if changes * (10 if at_last else 1) < self.records:
            return False  # whatever the size is, which takes milliseconds to count
        wanted = max(self.records, self._snapshots.size() // SHARE)
        return changes >= wanted or (at_last and changes * 10 >= wanted)

    def begin(self) -> None:
        """Make one."""
        self._last_ms = self._wheel.now_ms()
        self._job = self._snapshots.render()
        self._later()

    def _later(self) -> None:
        self._wheel.call_at(self._wheel.now_ms() + SLICE_EVERY_MS, lambda now_ms: self.step(1000))

    def step(self, budget_us: int) -> None:
        """A slice of the rendering."""
        job = self._job
        if job is None or self.closed or self._writing:
            return
        size = sum([len(data) for data in self._chunk])
        for _ in range(max(1, budget_us // BLOCK_US)):
            try:
                data = next(job, None)
            except (GantryError, OSError) as error:  # a record cannot be read: without this nobody would ever try again
                self._chunk = []
                self._give_up(error)
                return
            if data is None:
                self._write(self._finish)
                return
            if isinstance(data, Cold):
                self._fetch(data)
                return
            self._chunk.append(data)
            size += len(data)
            if size >= CHUNK_BYTES:
                self._write(self._later)
                return
        self._later()

    def _fetch(self, cold: Cold) -> None:
        def again(token: object) -> None:
            self.step(BLOCK_US)

        try:
            self._store.fetch(cold, self._job, again)
        except GantryError:
            self._later()

    def _write(self, then: Callable[[], None]) -> None:
        data = b"".join(self._chunk)
        self._chunk = []
        self._writing = True

        def done(failure: OSError | None) -> None:
            self._writing = False
            if failure is not None:
                self._give_up(failure)
            elif not self.closed:
                then()

        self._in_thread(lambda: self._files.write(data), done)

    def _finish(self) -> None:
        """Everything is in the file; its name it gets when the log is as far on stable storage."""
        if self.closed:
            return
        if self._store.flushed_position < self._snapshots.tail.limit:
            self._wheel.call_at(self._wheel.now_ms() + SLICE_EVERY_MS, lambda now_ms: self._finish())
            return
        limit = self._snapshots.tail.limit

        def done(failure: OSError | None) -> None:
            if failure is not None:
                self._give_up(failure)
            else:
                self._job = None
                self._snapshots.done()
                log.debug("snapshot of tables and cursors at %d", limit)

        self._in_thread(lambda: self._files.finish(limit), done)

    def _give_up(self, failure: Exception) -> None:
        log.warning(
            "no snapshot of tables and cursors: %s; the next one is tried in %d s", failure, self.interval_ms // 1000
        )
        self._job = None
        self._in_thread(self._files.abandon, lambda failure: None)
