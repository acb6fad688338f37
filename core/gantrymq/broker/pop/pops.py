"""Pop consumers: a group's place in a queue is a cursor `pop:<group>`; what a pop gives out is leased until a deadline.

Deadlines and receipts live in memory (pop/leases.py); the delivered mark and the acknowledgements are records of the log, so after
a crash everything unacknowledged comes back, with its count. What comes back is served from its old place in the queue, before
anything newer; after the group's `retryMaxTimes` it goes to `%DLQ%<group>` (pop/dead_letters.py). The group's committed offset follows the
window's floor. Wire: remoting/server/pop/requests.py. Page: docs/formats/pop.md.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.consuming.known.table import POP_PREFIX, Cursor
from gantrymq.broker.due.waiting import put_cursor
from gantrymq.broker.pop import lease_table
from gantrymq.broker.pop.dead_letters import DeadLetters
from gantrymq.broker.pop.leases import TICK_MS, Lease, Leases, Place
from gantrymq.broker.pop.revive import Revive
from gantrymq.broker.pop.selection import select
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.broker.parts import Context
    from gantrymq.broker.pop.selection import Pick, Selection

log = logging.getLogger(__name__)

INFLIGHT_MAX: Final = 100_000
"""Entries of one group in one queue that are leased or came back; beyond it only what came back is given out. Some 100 bytes each."""

POPPED_AHEAD: Final = 96
"""A pop consumer's credit, which it does not say: RocketMQ's clients hold that many popped messages of a queue (popThresholdForQueue)."""

LEASED_MAX: Final = 2_000_000
"""Entries leased in all, some 200 MB; beyond it pops are answered SYSTEM_BUSY."""

INVISIBLE_MS_MAX: Final = 12 * 3600 * 1000
"""Longest invisible time: that of RocketMQ's proxy. A longer one is cut to it."""

RETRY_MAX_DEFAULT: Final = 16
"""SubscriptionGroupConfig.retryMaxTimes."""

IN_MEMORY_BYTES: Final = 1 << 30
"""A new group starts at 0 on a queue whose first record is no further back, as for those who pull (initPopOffsetByCheckMsgInMem)."""


class Pops:
    """See the module."""

    def __init__(self, broker: Context) -> None:
        self._broker = broker
        self._cursors = broker.cursors
        self._store = broker.store
        self.leases = Leases(broker.wheel, self._expired, self._pass_over)
        self._watchers: list[Callable[[Place], None]] = []
        self._places: dict[tuple[str, str], dict[int, Place]] = {}
        """By (group, topic) and queue id; filled on use."""
        self._back: dict[Place, list[int]] = {}
        """What came back in this pass of the deadlines."""
        self._pop_ms_min = 0
        """Above the pop times of all leases that ended without an acknowledgement: a receipt tells one delivery from the next."""
        self._moved: set[Place] = set()
        """Places whose floor moved in this turn: committed once, at its end."""
        self._retry_max: dict[str, tuple[bytes, int]] = {}
        self._cursors.on_deleted.append(self._deleted)
        self._dead = DeadLetters(broker, self.lease_dead, self.acknowledge)
        self._revive = Revive(broker)

    def watch(self, on_ready: Callable[[Place], None]) -> None:
        """Call `on_ready` with each place where entries came back, or whose ordered queue is free again."""
        self._watchers.append(on_ready)

    def _ready(self, place: Place) -> None:
        for on_ready in self._watchers:
            on_ready(place)

    def open(self) -> None:
        """See `parts.Part`. The cursors are as the log has them; committed offsets may be half a second behind their floors."""
        for cursor in self._cursors.by_id.values():
            if cursor.group.startswith(POP_PREFIX):
                group, floor = cursor.group[len(POP_PREFIX) :], cursor.window.floor
                if self._broker.offsets.query(group, cursor.topic, cursor.queue_id) < floor:
                    self._broker.commits.commit(group, cursor.topic, cursor.queue_id, floor)
        self._take_up()
        self._revive.open()

    def close(self) -> None:
        """See `parts.Part`. What is leased stays leased across a clean restart."""
        by_place: dict[Place, list[Lease]] = {
            place: [] for places in self._places.values() for place in places.values()
        }
        for lease in self.leases.by_id.values():
            by_place.setdefault(lease.place, []).append(lease)
        now_ms, wall_ms = self._broker.wheel.now_ms(), self._broker.clock.now_ms()
        rows = [
            (str(place.cursor.id), lease_table.row_of(place, leases, now_ms, wall_ms, TICK_MS))
            for place, leases in by_place.items()
        ]
        kept = [row for row in rows if row[1] is not None]
        if kept:
            self._broker.put(lease_table.TABLE, kept, None, None)

    def _take_up(self) -> None:
        rows = dict(self._broker.tables.rows(lease_table.TABLE))
        for key, data in rows.items():
            cursor = self._cursors.by_id.get(int(key))
            if cursor is not None and cursor.group.startswith(POP_PREFIX):
                self._lease_again(cursor, json.loads(data))
        if rows:
            self._broker.put(lease_table.TABLE, [(key, None) for key in rows], None, None)

    def _lease_again(self, cursor: Cursor, value: dict[str, Any]) -> None:
        window = cursor.window
        end = min(value["next"], self._cursors.end(cursor))
        if end > window.next_offset:
            window.returned = [*window.returned, *range(window.next_offset, end)]
            window.next_offset = end
        cursor.recovered_below = min(cursor.recovered_below, max(end, value["recovered"]))
        place = self.place(cursor.group[len(POP_PREFIX) :], cursor.topic, cursor.queue_id, True)
        place.ordered, place.attempt = value["ordered"], value["attempt"]
        now_ms, wall_ms = self._broker.wheel.now_ms(), self._broker.clock.now_ms()
        returned = set(window.returned)
        for pop_ms, due_ms, offsets in lease_table.leases_of(value):
            self._pop_ms_min = max(self._pop_ms_min, pop_ms)
            held = [offset for offset in offsets if offset in returned]
            if held:
                returned.difference_update(held)
                # A wall clock that was set back meanwhile must not make the lease longer than it was at the stop.
                left_ms = min(max(due_ms - wall_ms, 0), due_ms - value.get("stopped", 0), INVISIBLE_MS_MAX)
                lease = self.leases.add(place, held, pop_ms, now_ms + left_ms)
                window.hold(held, lease.id)
                for offset in held:
                    window.count(
                        offset, window.counts.get(offset, 0)
                    )  # this delivery is counted when it comes back, not by the mark
        window.returned = sorted(returned)

    # Places.

    def place(self, group: str, topic: str, queue_id: int, from_first: bool) -> Place:
        """The group's place, made if need be, see `find`. Raises LIMIT_REACHED, NAME_INVALID, `Cold` with nothing changed."""
        place = self.find(group, topic, queue_id, from_first)
        self.enter(place)
        return place

    def find(self, group: str, topic: str, queue_id: int, from_first: bool) -> Place:
        """The group's place; one that does not exist is at the committed offset, else at the first message (`from_first`) or the last, and
        counts from `enter` on. Changes nothing. Raises NAME_INVALID, `Cold`."""
        places = self._places.get((group, topic))
        place = places.get(queue_id) if places is not None else None
        if place is not None:
            return place
        queue = f"{topic}/{queue_id}"
        cursor = self._cursors.find(queue, POP_PREFIX + group)
        if cursor is None:
            names.check_group(group)
            cursor = Cursor(0, queue, POP_PREFIX + group, self._start(group, topic, queue_id, from_first))
        return Place(cursor, group)

    def enter(self, place: Place) -> None:
        """Make what `find` found count; nothing to do for most. Raises LIMIT_REACHED."""
        if place.entered:
            return
        place.entered = True
        group, topic, queue_id = place.group, place.topic, place.queue_id
        self._hear_reset(group, topic, queue_id)
        if not place.cursor.id:
            start = place.cursor.window.floor
            self._broker.commits.commit(group, topic, queue_id, start)
            place.cursor, rows = self._cursors.create(place.cursor.queue, POP_PREFIX + group, start)
            put_cursor(self._broker, place.cursor, rows)
        self._places.setdefault((group, topic), {})[queue_id] = place

    def known(self, group: str, topic: str, queue_id: int) -> Place | None:
        """The group's place, if it ever popped from that queue."""
        places = self._places.get((group, topic))
        place = places.get(queue_id) if places is not None else None
        if place is None and self._cursors.find(f"{topic}/{queue_id}", POP_PREFIX + group) is not None:
            place = self.place(group, topic, queue_id, True)
        return place

    def _hear_reset(self, group: str, topic: str, queue_id: int) -> None:
        """A tool set the offset before the group ever popped: it is heard of now (PopMessageProcessor.resetPopOffset), and commits count."""
        offsets = self._broker.offsets
        if offsets.resets and offsets.take_reset(group, topic, queue_id) >= 0:
            self._broker.commits.write(everything=False)

    def _start(self, group: str, topic: str, queue_id: int, from_first: bool) -> int:
        broker = self._broker
        low, high = broker.min_offset(topic, queue_id), broker.store.visible_end(topic, queue_id)
        committed = broker.offsets.query(group, topic, queue_id)
        if committed >= 0:
            return min(max(committed, low), high)
        if from_first or high <= low:
            return low
        first = broker.store.units(topic, queue_id, 0, 1) if low <= 0 else []
        if first and broker.store.written_position - first[0][0] <= IN_MEMORY_BYTES:
            return 0
        return high - 1  # RocketMQ: the last one is delivered (PopMessageProcessor.getInitOffset)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Go on at `offset`, back or forth; what was leased is forgotten, its receipts are stale. The committed offset becomes it, too."""
        place = self.known(group, topic, queue_id)
        if place is not None:
            self._forget(place)
        self._broker.commits.commit(group, topic, queue_id, offset)
        if place is not None:
            self._ready(self.place(group, topic, queue_id, True))

    def _forget(self, place: Place) -> None:
        self._cursors.delete(place.cursor)
        self._broker.put("cursor", [(str(place.cursor.id), None)], None, None)

    def _deleted(self, cursor: Cursor) -> None:
        """A cursor is deleted, with its topic or its group or by a reset: its receipts are stale."""
        if not cursor.group.startswith(POP_PREFIX):
            return
        group = cursor.group[len(POP_PREFIX) :]
        places = self._places.get((group, cursor.topic))
        place = places.pop(cursor.queue_id, None) if places is not None else None
        if places is not None and not places:
            del self._places[group, cursor.topic]
        if place is not None:
            self._end_all(place)

    def _end_all(self, place: Place) -> None:
        for lease_id in set(place.cursor.window.inflight.values()):
            lease = self.leases.by_id.get(lease_id)
            if lease is not None:
                self._pop_ms_min = max(self._pop_ms_min, lease.pop_ms + 1)
                self.leases.end(lease)

    # Giving out.

    def ready(self, place: Place) -> int:
        """Entries that could be given out now."""
        window = place.cursor.window
        fresh = self._store.visible_end(place.topic, place.queue_id) - window.next_offset
        return len(window.returned) + fresh if fresh > 0 else len(window.returned)

    def blocked(self, place: Place, attempt: str | None) -> bool:
        """An ordered pop has to wait: the batch before is neither acknowledged nor expired. The same attempt again gets it again."""
        return bool(place.cursor.window.inflight) and not (attempt and attempt == place.attempt)

    def select(
        self, place: Place, count: int, bytes_max: int, pick: Pick | None, again: bool = False
    ) -> Selection | None:
        """What `take` would give out, with `again` after `repeat`; None if nothing is ready. But for what was committed elsewhere
        meanwhile, which every look takes notice of, nothing changes. Raises `Cold`."""
        window = place.cursor.window
        committed = self._broker.offsets.query(place.group, place.topic, place.queue_id)
        if committed != place.committed and place.cursor.id:
            self._follow(place, committed)
        queue_end = end = self._store.visible_end(place.topic, place.queue_id)
        returned = sorted([*window.inflight, *window.returned]) if again else window.returned
        if not returned:
            if window.next_offset >= end or len(window.inflight) >= INFLIGHT_MAX:
                return None
        elif len(window.inflight) + len(window.returned) >= INFLIGHT_MAX:
            end = window.next_offset
        found = select(self._cursors, self._store, place.cursor, returned, count, bytes_max, pick, end)
        found.queue_end = queue_end
        return found

    def repeat(self, place: Place) -> None:
        """The same attempt of an ordered pop came again, its answer was lost: what it holds is as if it had not been given out."""
        window = place.cursor.window
        self._end_all(place)
        for offset in sorted(window.inflight):
            window.give_back(offset, False)

    def pop_ms(self) -> int:
        """Pop time of a new answer: the clock's, and above that of any lease whose entries came back."""
        return max(self._broker.clock.now_ms(), self._pop_ms_min)

    def check_room(self) -> None:
        """Raises BUSY while too much is leased."""
        if self.leases.entries >= LEASED_MAX:
            raise GantryError(ErrorCode.BUSY, f"{LEASED_MAX} popped messages are not acknowledged; acknowledge or wait")

    def take(
        self, place: Place, found: Selection, pop_ms: int, invisible_ms: int, ordered: bool, attempt: str | None
    ) -> None:
        """Give out what was found: nothing may have changed since."""
        cursors, cursor = self._cursors, place.cursor
        window = cursor.window
        first, end, offsets = window.next_offset, found.end, found.offsets
        if found.gone and (lost := [offset for offset in found.gone if offset < first]):
            for offset in lost:
                window.recall(offset)
            cursors.settle_run(cursor, sorted(lost))
        quarantined: list[int] = []
        if found.bad:
            quarantined = [offset for offset in cursors.quarantine(cursor, found.bad) if not window.recall(offset)]
        if end > window.marked and (offsets or quarantined):
            cursors.mark(cursor, end, max(POPPED_AHEAD, len(window.inflight) + len(offsets)))
        fresh = len(offsets) - found.back
        if offsets:
            due_ms = self._broker.wheel.now_ms() + min(max(invisible_ms, 0), INVISIBLE_MS_MAX)
            lease = self.leases.add(place, offsets, pop_ms, due_ms)
            if found.back:
                window.take_returned(lease.id, found.back)
            if fresh == end - first:
                if fresh:
                    window.take_run(lease.id, fresh)
            else:
                window.take_chosen(lease.id, offsets[found.back :], end)
            place.ordered = ordered
            place.attempt = attempt or "" if ordered else ""
        elif quarantined:
            window.take_chosen(0, (), end)
        if fresh + len(quarantined) < end - first:
            self._skip(
                place,
                sorted([*offsets[found.back :], *quarantined]) if quarantined else offsets[found.back :],
                first,
                end,
            )

    def _skip(self, place: Place, taken: Sequence[int], first: int, end: int) -> None:
        """New entries that did not pass the filter are done."""
        at = first
        for offset in taken:
            if offset > at:
                self._cursors.skip(place.cursor, at, offset - 1)
            at = offset + 1
        if at < end:
            self._cursors.skip(place.cursor, at, end - 1)
        self._commit(place)

    # Taking back.

    def acknowledge(self, place: Place, offsets: Sequence[int], pop_ms: int) -> int:
        """Done: `offsets`, ascending, of the delivery at `pop_ms`; the number that were. A receipt of an earlier delivery does nothing,
        one that expired counts as long as nobody else got the message."""
        cursor = place.cursor
        window, leases = cursor.window, self.leases.by_id
        inflight = window.inflight
        done: list[int] = []
        for offset in offsets:
            lease = leases.get(inflight.get(offset, 0))
            if lease is None:
                if window.recall(offset):
                    done.append(offset)
            elif lease.pop_ms == pop_ms:
                done.append(offset)
                lease.left -= 1
                if not lease.left:
                    self.leases.end(lease)
        if not done:
            return 0
        self._cursors.settle_run(cursor, done)
        self._commit(place)
        if place.ordered and not inflight:
            self._ready(place)
        return len(done)

    def acknowledge_one(self, place: Place, offset: int, pop_ms: int) -> bool:
        """As `acknowledge` for one offset that the delivery at `pop_ms` holds; False, with nothing done, for any other."""
        inflight = place.cursor.window.inflight
        lease = self.leases.by_id.get(inflight.get(offset, 0))
        if lease is None or lease.pop_ms != pop_ms:
            return False
        lease.left -= 1
        if not lease.left:
            self.leases.end(lease)
        self._cursors.settle_one(place.cursor, offset)
        self._commit(place)
        if place.ordered and not inflight:
            self._ready(place)
        return True

    def change(self, place: Place, offset: int, pop_ms: int, invisible_ms: int) -> int:
        """A new deadline for one entry: `invisible_ms` from now, 0: it comes back at once. The pop time of the receipt that counts from
        now on; -1 if this receipt counts no more."""
        window = place.cursor.window
        lease = self.leases.by_id.get(window.inflight.get(offset, 0))
        if lease is None:
            if not window.recall(offset):
                return -1
        elif lease.pop_ms != pop_ms:
            return -1
        else:
            lease.left -= 1
            if not lease.left:
                self.leases.end(lease)
        now_ms = pop_ms if place.ordered else self.pop_ms()
        if lease is not None and invisible_ms <= 0:
            self._pop_ms_min = max(self._pop_ms_min, pop_ms + 1)
            self._return(place, [offset])
            self._ready(place)
            return now_ms
        due_ms = self._broker.wheel.now_ms() + min(max(invisible_ms, 0), INVISIBLE_MS_MAX)
        window.hold((offset,), self.leases.add(place, (offset,), now_ms, due_ms).id)
        return now_ms

    def _expired(self, lease: Lease) -> None:
        self._pop_ms_min = max(self._pop_ms_min, lease.pop_ms + 1)
        inflight, held = lease.place.cursor.window.inflight, lease.id
        self._back.setdefault(lease.place, []).extend([at for at in lease.offsets if inflight.get(at) == held])

    def _pass_over(self) -> None:
        back, self._back = self._back, {}
        for place, offsets in back.items():
            if offsets and self._cursors.by_id.get(place.cursor.id) is place.cursor:
                offsets.sort()
                self._return(place, offsets)
                self._ready(place)

    def _return(self, place: Place, offsets: list[int]) -> None:
        """Offsets in flight, ascending, come back; those that were delivered too often go to the dead letters."""
        cursor = place.cursor
        counts, limit = cursor.window.counts, self.retry_max(place.group)
        recovered = cursor.recovered_below
        for offset in offsets:
            if offset < recovered and offset not in counts:
                cursor.window.count(offset, 1)  # delivered before the crash, as far as anybody knows
        self._cursors.give_back(cursor, offsets)
        counts = cursor.window.counts  # another table perhaps
        dead = [offset for offset in offsets if counts[offset] > limit]
        if dead:
            self._dead.bury(place, dead)

    def lease_dead(self, place: Place, offsets: Sequence[int], due_ms: int) -> None:
        """Entries that came back are kept from consumers while they become dead letters; after `due_ms` they come back again."""
        window = place.cursor.window
        taken = [offset for offset in offsets if window.recall(offset)]
        if taken:
            lease = self.leases.add(place, taken, 0, self._broker.wheel.now_ms() + due_ms)
            window.hold(taken, lease.id)

    def retry_max(self, group: str) -> int:
        """The group's retryMaxTimes: deliveries beyond the first."""
        row = self._broker.tables.rows("group").get(group)
        if row is None:
            return RETRY_MAX_DEFAULT
        known = self._retry_max.get(group)
        if known is None or known[0] is not row:
            value = json.loads(row).get("retryMaxTimes", RETRY_MAX_DEFAULT)
            known = self._retry_max[group] = (row, int(value) if int(value) >= 0 else RETRY_MAX_DEFAULT)
        return known[1]

    # The group's committed offset.

    def _commit(self, place: Place) -> None:
        moved = self._moved
        if not moved:
            self._broker.turn.at_append(self._commit_all)
        moved.add(place)

    def _commit_all(self) -> None:
        moved, self._moved = self._moved, set()
        offsets = self._broker.offsets
        for place in moved:
            if offsets.deleting:
                offsets.before_change(place.topic, place.group)  # the place itself may go with it
            floor = place.cursor.window.floor
            if floor != place.committed and self._cursors.by_id.get(place.cursor.id) is place.cursor:
                place.committed = floor
                self._broker.commits.commit(place.group, place.topic, place.queue_id, floor)

    def _follow(self, place: Place, committed: int) -> None:
        """Somebody who pulls committed a higher offset: go on there. A lower one is a late commit; `reset` is for going back."""
        place.committed = committed
        window = place.cursor.window
        end = min(committed, self._store.visible_end(place.topic, place.queue_id))
        if end > window.floor:
            for offset in [offset for offset in window.inflight if offset < end]:
                lease = self.leases.by_id.get(window.inflight[offset])
                if lease is not None:
                    lease.left -= 1
                    if not lease.left:
                        self.leases.end(lease)
            window.returned = [offset for offset in window.returned if offset >= end]
            self._cursors.skip(place.cursor, window.floor, end - 1)
