"""Cursors: every group's AckWindow over every queue, durable as acknowledgement records of the log.

Cursor definitions are rows of table `cursor` (key: id; value: queue and group); what was settled are records of
`rmq_sys_gantry_ack`. Both are replayed at start. Ids are never used twice.
"""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from gantrymq.broker.consuming.acks import (
    AckKind,
    cursors_in,
    decode,
    encode_offsets,
    encode_one,
    encode_range,
    encode_state,
)
from gantrymq.broker.consuming.entries.moved import MovedPlaces
from gantrymq.broker.consuming.entries.quarantine import Bad, Quarantine
from gantrymq.broker.consuming.entries.shared_bodies import SHARED_BYTES_MIN
from gantrymq.broker.consuming.known.idle import may_rest
from gantrymq.broker.consuming.known.table import NO_WATCHERS, NONE_ARMED, Cursor, CursorTable
from gantrymq.broker.consuming.priorities import PriorityWindow
from gantrymq.broker.consuming.roles import QueueReader, parse_queue
from gantrymq.broker.consuming.settled import Settled
from gantrymq.broker.consuming.window import MARK_STEP
from gantrymq.broker.port import CursorDetails, CursorInfo, Delivery, Outcome
from gantrymq.model.dialect import quick_json
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.store.checked import NOT_READ
from gantrymq.store.damage import Key as DamageKey
from gantrymq.store.queues.consume_queue import HOLE, HOLE_SIZE

log = logging.getLogger(__name__)

CURSORS_MAX = 2_000_000
"""Places of all groups in all queues: a million sessions with two filters each, at some 400 bytes."""
WAITING_GROUPS = frozenset({"~delay", "~timer"})
"""Owners of waiting messages (broker/delay/delays.py): nothing of theirs is ever acquired, so a list of what came back, which may be
a million long, is not made at start."""
ACQUIRE_MAX = 4096
"""Entries leased by one call: one call must not stall the loop."""

RUN_MIN = 4
"""Runs longer than this are RANGE entries of 25 bytes; shorter ones are offsets of 8 bytes in the cursor's LIST."""

GONE = [(1 << 62, 0, 0)]
"""Unit of an offset that its queue no longer has: no record begins there."""


Seen = tuple[list[int], "list[Message | None]", int, list[Bad]]
"""Entries that can be leased: offsets, records (None: gone, or damaged), how many of them had come back, and those that are damaged."""


class Cursors(CursorTable):
    """`append_now(body)` writes an acknowledgement record at once; `wait(cursor, call)` calls at the queue's next entry;
    `wake(cursor, port)` calls that port's watcher at the end of the turn; `on_dirty()` asks for `settled.take_bodies` in the next append phase;
    `share`: see `SharedBodies.shared`."""

    def __init__(
        self,
        reader: QueueReader,
        append_now: Callable[[bytes], None],
        wait: Callable[[Cursor, Callable[[], None]], None],
        wake: Callable[[Cursor, int], None],
        on_dirty: Callable[[], None],
        share: Callable[[int, bytes], bytes],
    ) -> None:
        super().__init__(reader)
        self._append_now = append_now
        self._wait = wait
        self._wake = wake
        self.share = share
        self.on_rest: list[Callable[[Cursor], None]] = []
        """Called for each cursor that comes to rest: its object is to be forgotten."""
        self.moved = MovedPlaces()
        self._holders: dict[int, set[int]] = {}
        self.settled = Settled(on_dirty, self.state_of)
        self.quarantined = Quarantine(reader)
        self.on_deleted: list[Callable[[Cursor], None]] = []
        """Called for each cursor that is forgotten."""

    # Start: definitions, then records, then `recovered`.

    def load(self, rows: Mapping[str, bytes], quarantined: Iterable[str] = ()) -> None:
        """Definitions from table `cursor`; the row `next` keeps ids from being used twice, and so do the keys of rows that cannot be read."""
        for key in quarantined:
            if key.isdecimal():
                self._next_id = max(self._next_id, int(key) + 1)
        self.idle.rows = rows
        for key, data in rows.items():
            number = int(data if key == "next" else key)
            if key == "next":
                self._next_id = max(self._next_id, number)
                continue
            queue, group, start = quick_json(data)
            light = parse_queue(queue)[0]
            if not may_rest(light, group) or not self.idle.put(number, light, start, start):
                self._insert(Cursor(number, queue, group, start))
            self._next_id = max(self._next_id, number + 1)

    def load_states(self, states: Sequence[tuple[int, bytes]], begin: int) -> dict[int, int]:
        """Take over a snapshot: (offset of the acknowledgement topic, entries that hold what stands below it). Records are replayed
        from `begin` on; the answer is for `replay`."""
        known: dict[int, int] = {}
        for offset, entries in states:
            self.replay(entries)
            if offset > begin:
                known.update(dict.fromkeys(cursors_in(entries), offset))
        return known

    def replay(self, body: bytes, at: int = 0, known: dict[int, int] | None = None) -> None:
        """Apply one acknowledgement record, which is `at` that offset of the topic; entries of deleted cursors are skipped, and those that a
        snapshot held: `known`: by cursor, up to which offset of the topic."""
        for kind, cursor_id, offsets in decode(body):
            # An id whose row never came into the log: no other cursor may take these for its own.
            self._next_id = max(self._next_id, cursor_id + 1)
            if (known and known.get(cursor_id, 0) > at) or self.idle.replay(kind, cursor_id, offsets):
                continue
            cursor = self.awake(cursor_id)
            if cursor is None:
                continue
            window = cursor.window
            if kind is AckKind.RANGE:
                window.done_range(offsets[0], offsets[1])
            elif kind is AckKind.LIST:
                for offset in offsets:
                    window.done(offset)
            elif kind is AckKind.COUNT:
                window.count(offsets[0], offsets[1])
            elif kind is AckKind.BACK:
                for offset in offsets:
                    window.count(offset, window.counts.get(offset, 0) + 1)
            elif kind is AckKind.CUT:
                window.cut(offsets[0])
            else:
                window.marked = max(window.marked, offsets[0])

    def recovered(self) -> None:
        """Replay is over: bring back what was in flight; nothing may point beyond its queue's end. What did is cut, and the caller
        has that written (`Settled.take_bodies`) before the queue gets other records: the next start must not take them for done."""
        for cursor_id in list(self.idle.ids()):
            light, floor, marked = self.idle.place(cursor_id) or (0, 0, 0)
            end = self._reader.light_visible_end(light)
            if floor > end or floor < min(marked, end):
                self.awake(cursor_id)
        for cursor in self.by_id.values():
            window = cursor.window
            end = self.end(cursor)
            if window.next_offset > end:
                log.warning("cursor %d (%s, group %s) was at %d, its queue ends at %d: cut to the end",
                            cursor.id, cursor.queue, cursor.group, window.next_offset, end)  # fmt: skip
                window.cut(end)
                self.settled.note_cut(cursor.id, end)
            window.counts = {
                offset: count
                for offset, count in window.counts.items()
                if window.floor <= offset < end and not window.is_done(offset)
            }
            if cursor.group not in WAITING_GROUPS:
                window.recover()
            cursor.recovered_below = min(window.marked, end)
        for cursor in list(self.by_id.values()):
            self.rest(cursor)

    # Definitions.

    def rest(self, cursor: Cursor) -> bool:
        """Forget the object of a cursor that needs none. Nothing of what keeps cursors between turns keeps such a one."""
        if not cursor.is_at_rest() or self.by_id.get(cursor.id) is not cursor or str(cursor.id) not in self.idle.rows:
            return False
        window = cursor.window
        if (
            self.settled.knows(cursor.id)
            or cursor.id in self.quarantined.by_cursor
            or not self.idle.put(cursor.id, cursor.light, window.floor, window.marked)
        ):
            return False
        self._remove(cursor)
        for on_rest in self.on_rest:
            on_rest(cursor)
        return True

    def create(self, queue: str, group: str, start: int) -> tuple[Cursor, list[tuple[str, bytes]]]:
        """A new cursor and the table rows that make it durable. Raises LIMIT_REACHED."""
        if self.count() >= CURSORS_MAX:
            raise GantryError(
                ErrorCode.LIMIT_REACHED, f"{CURSORS_MAX} cursors exist; delete sessions, queues or subscriptions first"
            )
        cursor = Cursor(self._next_id, queue, group, start)
        self._next_id += 1
        self._insert(cursor)
        return cursor, self.rows_of(cursor)

    def rows_of(self, cursor: Cursor) -> list[tuple[str, bytes]]:
        """The table rows that make it durable."""
        definition = json.dumps([cursor.queue, cursor.group, cursor.window.floor]).encode()
        return [(str(cursor.id), definition), self.next_row()]

    def next_row(self) -> tuple[str, bytes]:
        """The row that keeps ids from being used twice."""
        return "next", str(self._next_id).encode()

    def delete(self, cursor: Cursor) -> None:
        """Forget it; the caller removes its row."""
        self._remove(cursor)
        self.settled.forget(cursor.id)
        for offset in self.quarantined.offsets(cursor.id):
            self.quarantined.release(cursor.id, offset)
        cursor.watchers, cursor.armed = NO_WATCHERS, NONE_ARMED
        for on_deleted in self.on_deleted:
            on_deleted(cursor)

    def state_of(self, cursor_id: int) -> list[bytes]:
        """Acknowledgement entries that make the cursor's state again without earlier ones; what is settled and not yet written must
        be written first (`Settled.take_bodies`). Nothing for a cursor that is gone."""
        cursor = self.view(cursor_id)
        return encode_state(cursor_id, cursor.window) if cursor is not None else []

    def info(self, cursor: Cursor) -> CursorInfo:
        """Counts as they are now."""
        window = cursor.window
        consumers = cursor.seats.count() if cursor.seats is not None else 0
        return CursorInfo(cursor.id, window.ready(self.end(cursor)), window.unacked(), window.next_offset, consumers)

    def details(self, cursor_id: int, log_end: int) -> CursorDetails | None:
        """As QueuePort.details. May raise `Cold`."""
        cursor = self.view(cursor_id)
        if cursor is None:
            return None
        info, end = self.info(cursor), self.end(cursor)
        units = self.units(cursor, cursor.window.floor, 1) if cursor.window.floor < end else []
        pinned = log_end - units[0][0] if units and units[0][1] != HOLE_SIZE else 0
        return CursorDetails(info.ready, info.unacked, info.consumers, end, max(pinned, 0))

    # Work.

    def acquire(self, cursor: Cursor, holder: int, count_max: int, bytes_max: int, port: int = 0) -> list[Delivery]:
        """`peek` and `take`; first of all what is urgent."""
        window = cursor.window
        window.pass_ahead()
        urgent = window.urgent(max(min(count_max, ACQUIRE_MAX), 0))
        if urgent and isinstance(window, PriorityWindow):
            return self._acquire_urgent(cursor, window, urgent, holder, count_max, bytes_max, port)
        return self.take(cursor, self.peek(cursor, count_max, bytes_max), holder, count_max, port)

    def _acquire_urgent(
        self, cursor: Cursor, window: PriorityWindow, offsets: list[int], holder: int, count_max: int, bytes_max: int,
        port: int,
    ) -> list[Delivery]:  # fmt: skip
        units = [(self.units(cursor, offset, 1) or GONE)[0] for offset in offsets]
        keep = self.within(units, bytes_max)
        found = self._reader.get_many([(unit[0], unit[1]) for unit in units[:keep]], [])
        bad = self.quarantined.damaged(cursor, offsets[:keep], units[:keep], found)
        left = bytes_max - sum([unit[1] for unit in units[:keep]])
        more = count_max - keep if keep == len(offsets) and left > 0 else 0
        seen = self.peek(cursor, more, left) if more else None  # nothing is changed before all of it is read
        self.mark(cursor, max(offsets[:keep]) + 1, len(window.inflight) + count_max)
        window.take_urgent(holder, offsets[:keep])
        deliveries = self._deliver(cursor, offsets[:keep], found, bad, holder)
        if seen is not None:
            return deliveries + self.take(cursor, seen, holder, more, port)
        if len(deliveries) < count_max:
            self.arm(cursor, port)
        return deliveries

    def peek(self, cursor: Cursor, count_max: int, bytes_max: int) -> Seen:
        """What `take` would lease, returned entries first; where all of that is damaged, what comes behind it, too. Changes nothing. Raises `Cold`
        (store/cold.py), and OSError where the disk can read none of it: that is no matter of a record."""
        count_max = max(min(count_max, ACQUIRE_MAX), 0)
        offsets, found, back, bad = seen = self._peek(cursor, 0, 0, count_max, bytes_max)
        while offsets and len(bad) == len(offsets) < ACQUIRE_MAX:
            more = self._peek(cursor, back, len(offsets) - back, count_max, bytes_max)
            if not more[0]:
                break
            offsets, found, back, bad = seen = (offsets + more[0], found + more[1], back + more[2], bad + more[3])
        if bad and len(bad) == len(offsets) and all(entry[2] == NOT_READ for entry in bad):
            raise OSError(errno.EIO, f"Input/output error in {cursor.queue}, at each of {len(bad)} records")
        return seen

    def _peek(self, cursor: Cursor, back_from: int, fresh_from: int, count_max: int, bytes_max: int) -> Seen:
        """As `peek`, behind so many entries that came back and so many others."""
        window = cursor.window
        first = window.next_offset + fresh_from
        offsets = window.returned[back_from : back_from + count_max]
        units = [(self.units(cursor, offset, 1) or GONE)[0] for offset in offsets]
        back = len(offsets)
        if count_max > back:
            fresh = self.units(cursor, first, count_max - back)
            if window.ahead:
                fresh = [GONE[0] if at in window.ahead else unit for at, unit in enumerate(fresh, first)]
            offsets += range(first, first + len(fresh))
            units += fresh
        keep = self.within(units, bytes_max)
        del offsets[keep:], units[keep:]
        refs = [(unit[0], unit[1]) for unit in units]
        found = self._reader.get_entries(refs) if cursor.light else self._reader.get_many(refs, [])
        return offsets, found, min(back, keep), self.quarantined.damaged(cursor, offsets, units, found)

    def take(self, cursor: Cursor, seen: Seen, holder: int, count_max: int, port: int = 0) -> list[Delivery]:
        """Lease what was just seen. Entries whose record is gone are done silently, those whose record is damaged are kept aside. Coming back short
        of `count_max` arms the watcher of `port`."""
        offsets, found, back, bad = seen
        window, keep = cursor.window, len(offsets)
        count_max = min(count_max, ACQUIRE_MAX)
        if count_max <= 0:
            return []
        if keep > back:
            self.mark(cursor, window.next_offset + keep - back, len(window.inflight) + count_max)
        window.take_returned(holder, back)
        passed: set[int] | tuple[()] = ()
        if window.ahead:
            passed = window.ahead.intersection(offsets[back:])
            for offset in offsets[back:]:
                if offset in passed:
                    window.pass_over()
                else:
                    window.take_next(holder)
        else:
            for _ in range(keep - back):
                window.take_next(holder)
        deliveries = self._deliver(cursor, offsets, found, bad, holder, passed)
        if len(deliveries) < count_max:
            self.arm(cursor, port)
        elif cursor.armed and window.ready(self.end(cursor)):  # of a lower rank
            self.fire(cursor)
        return deliveries

    def _deliver(
        self, cursor: Cursor, offsets: Sequence[int], found: Sequence[Message | None], bad: Sequence[Bad], holder: int,
        passed: Collection[int] = (),
    ) -> list[Delivery]:  # fmt: skip
        quarantined, window = self.quarantine(cursor, bad) if bad else (), cursor.window
        deliveries = []
        for offset, message in zip(offsets, found, strict=True):
            if offset in quarantined or offset in passed:
                continue
            if message is None:
                self._done(cursor, offset)
                continue
            if len(message.body) >= SHARED_BYTES_MIN:
                message.body = self.share(message.physical_offset, message.body)
            deliveries.append(Delivery(message, offset, 1 + window.deliveries(offset, cursor.recovered_below)))
        if deliveries:
            self._holders.setdefault(holder, set()).add(cursor.id)
        return deliveries

    # What cannot be read.

    def quarantine(self, cursor: Cursor, bad: Sequence[Bad]) -> set[int]:
        """Entries that were acquired, or never, wait for a better disk or for somebody who skips them; returns their offsets."""
        self.quarantined.add(cursor, bad)
        for entry in bad:
            cursor.window.inflight.pop(entry[0], None)
        return {entry[0] for entry in bad}

    def waiting_for(self, damage: DamageKey) -> list[tuple[Cursor, int]]:
        """Who waits for a damaged record or unit (`Damaged.key`), and at which offset of his queue."""
        found = [(self.by_id[cursor_id], offset) for cursor_id, offset in self.quarantined.waiting_for(damage)]
        for cursor, offset in found:
            if cursor.window.is_done(offset):  # a limit or somebody's commit has passed over it
                self.quarantined.release(cursor.id, offset)
        return [(cursor, offset) for cursor, offset in found if not cursor.window.is_done(offset)]

    def end_waiting(self, damage: DamageKey, deliver: bool) -> int:
        """Nobody waits for it any more: it is done unread, or (`deliver`) it is whole again. The number of entries."""
        waiting = self.waiting_for(damage)
        for cursor, offset in waiting:
            self.quarantined.release(cursor.id, offset)
            if deliver:
                cursor.window.bring_back(offset)
                self.fire(cursor)
            else:
                self._done(cursor, offset)
        return len(waiting)

    def mark(self, cursor: Cursor, end: int, credit: int) -> None:
        """Offsets below `end` are about to be delivered: the delivered mark goes ahead of them, by as many as the consumers may hold. After
        a crash no more than that comes redelivered that never was delivered."""
        window = cursor.window
        if end > window.marked:
            window.marked = end + min(credit, MARK_STEP)
            self._append_now(encode_one(AckKind.MARK, cursor.id, window.marked))

    def stop_marks(self) -> None:
        """At a clean stop: what the delivered marks ran ahead of was never delivered, and the next start is to know it."""
        for cursor in self.by_id.values():
            end = max(cursor.window.acquired_end(), cursor.recovered_below)
            if cursor.window.marked > end:
                cursor.window.cut(end)
                self.settled.note_stop(encode_one(AckKind.CUT, cursor.id, end))
        for cursor_id in self.idle.ids():
            _, floor, marked = self.idle.place(cursor_id) or (0, 0, 0)
            if marked > floor:
                self.idle.move(cursor_id, floor, floor)
                self.settled.note_stop(encode_one(AckKind.CUT, cursor_id, floor))

    # Pop consumers keep deadlines of their own (pops.py): whole runs at once.

    def settle_run(self, cursor: Cursor, offsets: Sequence[int]) -> None:
        """Done: offsets that were acquired and are not done, ascending."""
        window = cursor.window
        first, last = offsets[0], offsets[-1]
        if last - first + 1 == len(offsets):
            window.done_range(first, last)
        else:
            for offset in offsets:
                window.done(offset)
        self.settled.note(cursor.id).extend(offsets)

    def settle_one(self, cursor: Cursor, offset: int) -> None:
        """As `settle_run` for one offset."""
        cursor.window.done(offset)
        acked = self.settled.acked.get(cursor.id)
        (acked if acked is not None else self.settled.note(cursor.id)).append(offset)

    def skip(self, cursor: Cursor, first: int, last: int) -> None:
        """Done without ever having been delivered: `first..last`, both included."""
        cursor.window.done_range(first, last)
        if last - first < RUN_MIN:
            self.settled.note(cursor.id).extend(range(first, last + 1))
        else:
            self.settled.note_run(encode_range(cursor.id, first, last))

    def give_back(self, cursor: Cursor, offsets: list[int]) -> None:
        """Returned after a delivery: offsets in flight, ascending."""
        cursor.window.give_back_many(offsets)
        self.settled.note_back(cursor.id, offsets)

    def settle(self, items: Sequence[tuple[int, int, Outcome]]) -> None:
        """Apply outcomes; what is not in flight is ignored."""
        for cursor_id, offset, outcome in items:
            cursor = self.by_id.get(cursor_id)
            if cursor is None:
                continue
            window = cursor.window
            if offset not in window.inflight:
                continue
            if outcome is Outcome.ACK or outcome is Outcome.DROP:
                if outcome is Outcome.DROP and cursor.managed is not None and cursor.managed.rejects(offset):
                    continue
                self._done(cursor, offset)
            else:
                self._return(cursor, offset, outcome is Outcome.REQUEUE)

    def finish(self, cursor: Cursor, offsets: Sequence[int]) -> None:
        """These entries are done, acquired or not: for cursors whose owner reads the queue himself."""
        for offset in offsets:
            if not cursor.window.is_done(offset):
                self._done(cursor, offset)

    def finish_out(self, cursor: Cursor, offsets: Sequence[int]) -> None:
        """Entries that were taken out (`AckWindow.take_out`) are done."""
        for offset in offsets:
            cursor.window.done_out(offset)
        if offsets:
            self.settled.note(cursor.id).extend(offsets)

    def release(self, holder: int) -> None:
        """Requeue everything that the holder has."""
        for cursor_id in self._holders.pop(holder, ()):
            cursor = self.by_id.get(cursor_id)
            if cursor is None:
                continue
            offsets = cursor.window.give_back_all(holder)
            if offsets:
                self.settled.note_back(cursor.id, offsets)
                if cursor.managed is not None:
                    cursor.managed.came_back(offsets)
                self.fire(cursor)

    def purge(self, cursor: Cursor) -> int:
        """Drop what is ready."""
        end = self.end(cursor)
        window = cursor.window
        if isinstance(window, PriorityWindow):
            offsets = window.ready_below(end)
            self.finish(cursor, offsets)
            return len(offsets)
        entries = encode_offsets(AckKind.LIST, cursor.id, list(window.returned)) if window.returned else []
        if end > window.next_offset:
            entries.append(encode_range(cursor.id, window.next_offset, end - 1))
        dropped = window.skip_to(end)
        for entry in entries:
            self._append_now(entry)
        for offset in self.quarantined.offsets(cursor.id):
            self.quarantined.release(cursor.id, offset)
            dropped += not window.is_done(offset)
            self._done(cursor, offset)
        return dropped

    def watch(self, cursor: Cursor, port: int, watcher: Callable[[int], None] | None) -> None:
        """Set or end a port's watcher."""
        cursor.armed.discard(port)
        if watcher is None:
            cursor.watchers.pop(port, None)
            if not cursor.watchers:
                cursor.watchers, cursor.armed = NO_WATCHERS, NONE_ARMED
        else:
            if cursor.watchers is NO_WATCHERS:
                cursor.watchers, cursor.armed = {}, set()
            cursor.watchers[port] = watcher
            self.arm(cursor, port)

    def arm(self, cursor: Cursor, port: int) -> None:
        """Call the port's watcher when something is ready: at the end of this turn if there is, else at the next entry."""
        if port not in cursor.watchers:
            return
        cursor.armed.add(port)
        if cursor.window.ready(self.end(cursor)):
            self.fire(cursor)
        else:
            self._wait(cursor, partial(self.fire, cursor))

    def await_next(self, cursor: Cursor, port: int) -> None:
        """Call the port's watcher at the next entry, whatever is ready now."""
        if port in cursor.watchers:
            cursor.armed.add(port)
            self._wait(cursor, partial(self.fire, cursor))

    def fire(self, cursor: Cursor) -> None:
        """An entry is ready: wake the armed watchers, each once; where they have ranks, the highest."""
        armed, seats = cursor.armed, cursor.seats
        if seats is not None and seats.ranks and len(armed) > 1:
            first = seats.first(armed)
            armed.difference_update(first)
            for port in first:
                self._wake(cursor, port)
            if armed:
                self._wait(cursor, partial(self.fire, cursor))
                seats.serve_the_rest(cursor)
            return
        while armed:
            self._wake(cursor, armed.pop())

    def _done(self, cursor: Cursor, offset: int) -> None:
        cursor.window.done(offset)
        self.settled.note(cursor.id).append(offset)

    def _return(self, cursor: Cursor, offset: int, delivered: bool) -> None:
        if not cursor.window.give_back(offset, delivered):
            return
        if delivered:
            self.settled.note_back(cursor.id, [offset])
        if cursor.managed is not None:
            cursor.managed.came_back([offset])
        self.fire(cursor)

    def has(self, holder: int, cursor: Cursor) -> bool:
        """Whether the holder acquired something of the cursor and was not released since."""
        return cursor.id in self._holders.get(holder, ())

    def raw_units(self, cursor: Cursor, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Units as the queue itself has them, dense from `offset` on; below its minimum they are holes."""
        if cursor.light:
            return self._reader.light_units(cursor.light, offset, count)
        gone = self._reader.min_offset(cursor.topic, cursor.queue_id) - offset
        if gone > 0:
            return [HOLE] * min(gone, count)
        return self._reader.units(cursor.topic, cursor.queue_id, offset, count)

    def units(self, cursor: Cursor, offset: int, count: int) -> list[tuple[int, int, int]]:
        """As `raw_units`, moved entries where they lie now."""
        units = self.raw_units(cursor, offset, count)
        moved = self.moved.queues.get(cursor.queue) if self.moved.count else None
        if moved is None:
            return units
        return [moved.get(at, unit) for at, unit in enumerate(units, offset)]

    @staticmethod
    def within(units: list[tuple[int, int, int]], bytes_max: int) -> int:
        """How many units fit, at least one."""
        size = 0
        for index, unit in enumerate(units):
            size += unit[1] if unit[1] != HOLE_SIZE else 0
            if size > bytes_max and index:
                return index
        return len(units)
