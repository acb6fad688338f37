"""What is alive in the oldest segment: computed when the segment is about to go, not counted while messages pass.

Alive are: entries that a cursor has not done (AMQP queues, MQTT sessions, webhooks), entries that were moved before, rows of
tables, and acknowledgements of cursors that still exist. `Survey.run` is done in slices (`slices.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.broker.consuming.acks import ACK_TOPIC, cursors_in
from gantrymq.broker.slices import Slices, patient
from gantrymq.broker.tables.tables import KEY_PROPERTY
from gantrymq.model import names
from gantrymq.model.tables.message_rows import key_of
from gantrymq.store.damage import DAMAGE_MAX
from gantrymq.store.log.moved import cost
from gantrymq.store.queues.consume_queue import HOLE_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.broker.consuming.cursors import Cursors
    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.broker.tables.tables import Tables
    from gantrymq.store.message_store import MessageStore

UNITS_STEP = 512
"""Queue units looked at in one slice."""
RECORDS_STEP = 32
RECORDS_BYTES = 256 * 1024
"""Records of one slice, and their bytes: reading them must not take a millisecond."""
CURSOR_US = 2
READ_US = 15
UNIT_US = 1
RECORD_US = 12
OUT_OF_ORDER = "the unit names a place behind the next one's"

BadUnit = tuple[str, int, tuple[int, int, int], str]
"""Queue and offset of a unit that names no record of its queue, the unit, and why."""


class Walk:
    """Looks at a queue's units in the order of their offsets, which is that of the log: which lie in [begin, end), and where the walk may stop.

    One unit may be damaged and say anything. So the walk stops only where two that name a record, one after the other, lie at or above `end`.
    """

    def __init__(
        self,
        survey: Survey,
        queue: str,
        wanted: Callable[[int], bool],
        found: Callable[[int, tuple[int, int, int]], None],
    ) -> None:
        """`found(offset, unit)` is called for units in the segment whose offset is `wanted`; those that name no record are in `survey.bad`."""
        self._survey = survey
        self._queue = queue
        self._wanted = wanted
        self._found = found
        self.ahead: list[tuple[int, tuple[int, int, int], str]] = []
        """The first unit at or above `end`, and what names no record behind it: right if the next one lies there, too."""

    def behind(self, offset: int, unit: tuple[int, int, int]) -> bool:
        """Take the next unit; True: this and all that follow lie at or above `end`."""
        position, size, _ = unit
        survey = self._survey
        if size == HOLE_SIZE:
            return False
        if not survey.store.may_be_size(position, size):
            what = survey.store.fault(unit)[0]  # none below the log's begin
            if what and self.ahead and len(self.ahead) < DAMAGE_MAX:
                self.ahead.append((offset, unit, what))
            elif what:
                self._bad(offset, unit, what)
            return False
        if position >= survey.end:
            if self.ahead:
                return True
            self.ahead.append((offset, unit, OUT_OF_ORDER))
            return False
        for wrong in self.ahead:
            self._bad(*wrong)
        self.ahead.clear()
        if position >= survey.begin and self._wanted(offset):
            self._found(offset, unit)
        return False

    def _bad(self, offset: int, unit: tuple[int, int, int], what: str) -> None:
        if len(self._survey.bad) < DAMAGE_MAX and self._wanted(offset):
            self._survey.bad.append((self._queue, offset, unit, what))


class Survey:
    """One segment, [begin, end)."""

    def __init__(
        self,
        cursors: Cursors,
        store: MessageStore,
        tables: Tables,
        begin: int,
        end: int,
        passed: dict[int, tuple[int, int]],
    ) -> None:
        """`passed`: by cursor, an offset of its queue below which nothing lies at or above `begin`, and that offset's position."""
        self._cursors = cursors
        self.store = store
        self._tables = tables
        self.begin = begin
        self.end = end
        self._passed = passed
        self.passed: dict[int, tuple[int, int]] = {}
        """As the argument, for the next segment, once this one is gone."""
        self.places: dict[int, tuple[int, list[tuple[str, int]]]] = {}
        """Live records by position: size and who shows them."""
        self.live_bytes = 0
        """Of these records, as they would be written again."""
        self.row_bytes = 0
        self.rows: dict[str, set[str]] = {}
        """Keys of tables with a record here that still have a row."""
        self.acked: set[int] = set()
        """Cursors with acknowledgements here."""
        self.bad: list[BadUnit] = []
        """Units that name no record, of entries that are alive and of system topics: their records may lie here. At most `DAMAGE_MAX`."""

    def run(self, live_max: int) -> Slices[bool]:
        """False as soon as more than `live_max` bytes are alive: the segment stays."""
        for cursor_id in self._cursors.ids():
            if self._cursors.has_nothing(cursor_id):
                yield CURSOR_US
            elif (cursor := self._cursors.view(cursor_id)) is not None:
                yield from self._cursor(cursor)
                if self.live_bytes > live_max:
                    return False
        for name in list(self._cursors.moved.queues):
            yield from self._moved(name)
            if self.live_bytes > live_max:
                return False
        for topic in self.store.topics():
            if table := names.table_of(topic):
                yield from self._table(topic, table)
        yield from self._acks()
        return True

    def _add(self, position: int, size: int, name: str, offset: int) -> None:
        found = self.places.get(position)
        if found is None:
            self.places[position] = (size, [(name, offset)])
            self.live_bytes += size
        else:
            found[1].append((name, offset))
        self.live_bytes += cost(name)

    def _cursor(self, cursor: Cursor) -> Slices[None]:
        yield CURSOR_US
        window = cursor.window
        first, position = self._passed.get(cursor.id, (0, 0))
        if position >= self.end:
            self.passed[cursor.id] = (first, position)
            return
        offset = max(first, window.floor)
        end = self._cursors.live_end(cursor)
        if offset >= end:
            return
        if not cursor.light:
            offset = max(offset, self.store.min_offset(cursor.topic, cursor.queue_id))
            offset = max(offset, self.store.compacted.end(cursor.topic, cursor.queue_id))
        moved = self._cursors.moved.queues.get(cursor.queue, {})
        walk = Walk(
            self,
            cursor.queue,
            lambda offset: not window.is_done(offset) and offset not in moved,
            lambda offset, unit: self._add(unit[0], unit[1], cursor.queue, offset),
        )
        while offset < end:
            at = offset
            units = yield from patient(lambda: self._cursors.raw_units(cursor, at, UNITS_STEP))  # noqa: B023 (called at once)
            yield READ_US + UNIT_US * len(units)
            if not units:
                break
            for unit in units[: end - offset]:
                if walk.behind(offset, unit):
                    self.passed[cursor.id] = (walk.ahead[0][0], walk.ahead[0][1][0])
                    return
                offset += 1
        self.passed[cursor.id] = (offset, 0)
        if walk.ahead:  # what the queue gets from now on lies behind it
            last, unit, _ = walk.ahead[0]
            self.passed[cursor.id] = (last, unit[0] if end == self._cursors.end(cursor) else 0)

    def _moved(self, name: str) -> Slices[None]:
        moved = self._cursors.moved
        seen: set[int] = set()
        gone: list[int] = []
        for entries in moved.walk(name, UNITS_STEP):
            yield UNIT_US * UNITS_STEP
            for offset, (position, size, _) in entries:
                if not self._cursors.is_live(name, offset):
                    gone.append(offset)
                elif self.begin <= position < self.end and offset not in seen:
                    seen.add(offset)
                    self._add(position, size, name, offset)
        for first in range(0, len(gone), UNITS_STEP):
            moved.drop(name, gone[first : first + UNITS_STEP])
            yield UNIT_US * UNITS_STEP

    def _units_of(self, topic: str) -> Slices[list[tuple[int, int, int]]]:
        """Units of queue 0 of a system topic that lie in the segment."""
        found: list[tuple[int, int, int]] = []
        walk = Walk(self, f"{topic}/0", lambda offset: True, lambda offset, unit: found.append(unit))
        offset = self.store.min_offset(topic, 0)
        while True:
            at = offset
            units = yield from patient(lambda: self.store.units(topic, 0, at, UNITS_STEP))  # noqa: B023 (called at once)
            yield READ_US + UNIT_US * len(units)
            if not units:
                return found
            for unit in units:
                if walk.behind(offset, unit):
                    return found
                offset += 1

    def _table(self, topic: str, table: str) -> Slices[None]:
        """Keys of a table out of the records of its topic, or the messages in its queue of rows."""
        units = yield from self._units_of(topic)
        for refs in batches(units):
            batch = refs
            found = yield from patient(lambda: self.store.get_many(batch))  # noqa: B023 (called at once)
            yield RECORD_US * len(refs)
            for message in found:
                if message is None:
                    continue
                key = message.property(KEY_PROPERTY) if message.topic == topic else key_of(message.properties)
                if self._tables.kept(table, key) is not None:
                    self.rows.setdefault(table, set()).add(key)
                    self.row_bytes += message.size

    def _acks(self) -> Slices[None]:
        units = yield from self._units_of(ACK_TOPIC)
        for refs in batches(units):
            batch = refs
            found = yield from patient(lambda: self.store.get_many(batch))  # noqa: B023 (called at once)
            yield RECORD_US * len(refs)
            for message in found:
                if message is not None:
                    self.acked.update(cursors_in(message.body))


def batches(units: list[tuple[int, int, int]]) -> list[list[tuple[int, int]]]:
    """References in portions of one slice."""
    found: list[list[tuple[int, int]]] = []
    size = RECORDS_BYTES
    for unit in units:
        if size + unit[1] > RECORDS_BYTES or len(found[-1]) >= RECORDS_STEP:
            found.append([])
            size = 0
        found[-1].append((unit[0], unit[1]))
        size += unit[1]
    return found
