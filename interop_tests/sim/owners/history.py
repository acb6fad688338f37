"""What clients saw, and what must hold of it at the end.

Times are numbers of events of the simulation: what has a smaller one was earlier, whatever clocks say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from interop_tests.sim.owners.state import ANY, SLOTS, Record, State
from interop_tests.sim.owners.table import Row, SlotTable
from interop_tests.sim.world import Violation

NEVER = 1 << 60


@dataclass(slots=True)
class Publish:
    """`source`: the group it was sent to."""

    record: Record
    source: str
    sent: int
    confirmed: int = NEVER


@dataclass(slots=True)
class Operation:
    """A bind or unbind."""

    on: bool
    asked: int
    answered: int = NEVER


@dataclass
class History:
    """See the module. `sync`: a confirmed publish survives the loss of power."""

    sync: bool
    publishes: dict[int, Publish] = field(default_factory=dict)
    operations: dict[tuple[int, str], list[Operation]] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)
    """When a group's disk was last another one, or the group was forgotten."""
    reset: dict[int, int] = field(default_factory=dict)
    """When a queue was last on such a disk."""
    owners: dict[tuple[int, tuple[int, int]], str] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    after: dict[int, int] = field(default_factory=dict)
    """Of each record stored: the last one of its publisher that the source's log held then, or -1."""
    checked: int = 0
    """Deliveries that were due."""
    forbidden: int = 0
    """Deliveries that were not."""

    def acted(self, group: str, slot: int, epoch: tuple[int, int]) -> None:
        """See `Watcher`."""
        first = self.owners.setdefault((slot, epoch), group)
        if first != group:
            raise Violation("owner", f"{group} acts in epoch {epoch} of slot {slot}, as {first} did")

    def stored(self, record: Record, after: int) -> None:
        """See `Watcher`."""
        if after > record.id:
            raise Violation("order", f"{record} is stored behind record {after} of the same publisher")
        self.after[record.id] = after

    def row(self, row: Row) -> None:
        """See `Watcher`."""
        if self.rows.setdefault(row.version, row) != row:
            raise Violation("table", f"{row} is published, {self.rows[row.version]} was")

    def lost_disk(self, group: str, tables: list[SlotTable], copied: Iterable[int], now: int, known: int) -> None:
        """What was owned there, as of one of those tables, is no longer promised, nor rows after `known`, which nobody else has.

        `copied`: slots whose copy it had, so that it may have said to be ready for them.
        """
        places = [(slot, place) for table in tables for slot, place in enumerate(table.places)]
        lost = {
            slot for slot, place in places if place.owner == group or (place.target == group and slot in set(copied))
        }
        self.replaced[group] = now
        self.lost_rows(known)
        self.lost_slots(lost, now)

    def lost_slots(self, slots: Collection[int], now: int) -> None:
        """What was answered in those slots up to now is no longer promised."""
        for queue in {queue for queue, _ in self.operations}:
            if queue % SLOTS in slots:
                self.reset[queue] = now

    def lost_rows(self, known: int) -> None:
        """Rows after that version are on no disk that counts."""
        self.rows = {version: row for version, row in self.rows.items() if version <= known}

    # At the end.

    def check(self, states: dict[str, State], groups: Iterable[str], table: SlotTable) -> None:
        """Everything owed is there, and nothing else."""
        living = set(groups)
        self._check_confirmed(states)
        queues = sorted({queue for queue, _ in self.operations})
        for queue in queues:
            records = states[table.places[queue % SLOTS].owner].queues.get(queue, [])
            ids = [record.id for record in records]
            if len(ids) != len(set(ids)):
                twice = next(each for each in ids if ids.count(each) > 1)
                raise Violation("once", f"queue {queue} has {self.publishes[twice]} twice")
            self._check_order(queue, records)
            there = set(ids)
            for each in self.publishes.values():
                stored = each.source in living and each.record.id in states[each.source].stored
                self._check_delivery(queue, each, each.record.id in there, stored)

    def _check_confirmed(self, states: dict[str, State]) -> None:
        for each in self.publishes.values():
            promised = self.sync and each.confirmed != NEVER and each.sent > self.replaced.get(each.source, -1)
            if promised and each.record.id not in states[each.source].stored:
                raise Violation("confirmed", f"{each} is lost")

    def _check_order(self, queue: int, records: list[Record]) -> None:
        """What one log held in an order comes in that order; what comes back with a disk may come after what was stored meanwhile."""
        there: dict[tuple[int, str], list[Record]] = {}
        for record in records:
            before = there.setdefault((record.publisher, self.publishes[record.id].source), [])
            for each in before:
                if each.number > record.number and self._is_after(each.id, record.id):
                    raise Violation("order", f"queue {queue}: {record} comes after {each}")
            before.append(record)

    def _is_after(self, record: int, other: int) -> bool:
        """That record's source stored it behind the other, in one log."""
        while record > other:
            record = self.after[record]
        return record == other

    def _check_delivery(self, queue: int, publish: Publish, there: bool, stored: bool) -> None:
        states = [self._bound(queue, key, publish) for key in (publish.record.key, ANY)]
        if True in states and stored and publish.confirmed != NEVER:
            self.checked += 1
            if not there:
                raise Violation(
                    "due", f"queue {queue} was bound and has not got {publish}: {self._told(queue, publish)}"
                )
        elif states == [False, False] and publish.confirmed != NEVER:
            self.forbidden += 1
            if there:
                raise Violation("wrong", f"queue {queue} was not bound and has {publish}: {self._told(queue, publish)}")

    def _told(self, queue: int, publish: Publish) -> str:
        return str([self.operations.get((queue, key)) for key in (publish.record.key, ANY)])

    def _bound(self, queue: int, key: str, publish: Publish) -> bool | None:
        """From before it was sent until after it was confirmed: True, False, or neither for sure."""
        reset = self.reset.get(queue, -1)
        state: bool | None = False if reset < 0 else None
        for operation in self.operations.get((queue, key), []):
            if operation.asked < reset:
                continue
            if operation.answered < publish.sent:
                state = operation.on
            elif operation.asked < publish.confirmed and state is not operation.on:
                return None
        return state
