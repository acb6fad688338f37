"""The queue engine: expiry, limits, dead letters, delivery limit and lifetime of queues with a policy, whoever consumes and whoever is there.

A queue without a policy is not known here and pays nothing. What is taken out of a queue that has dead letters is done in the batch that stores its
copy (`companions.py`): through a crash it is in one of the two places. Where nothing can be stored for now it is tried again; a start brings it back.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappop
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.consuming.priorities import PriorityWindow, Room
from gantrymq.broker.port import FOR_QUEUE, PASSING
from gantrymq.broker.queues.managed import NEVER, ManagedQueue
from gantrymq.broker.queues.streams import Stream, Streams
from gantrymq.broker.queues.taken import TakenOut
from gantrymq.broker.queues.unique import KeyRoom, UniqueKeys
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import FORWARDED, Message
from gantrymq.model.queue_policy import TABLE, DeadLetters, Policy, policy_from, policy_to
from gantrymq.store.cold import Cold
from gantrymq.store.log.forwarded import original

if TYPE_CHECKING:
    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.broker.matches import RouteMatch
    from gantrymq.broker.parts import Context
    from gantrymq.broker.port import Done
    from gantrymq.broker.tables.tables import Rows
    from gantrymq.broker.turn.submitted import Sent

log = logging.getLogger(__name__)

STEP: Final = 256
"""Entries that one look takes out: 3 ms with their dead letters. So many dead letters are stored in one piece, and about so many in a turn."""
BURY_BYTES: Final = 4 << 20
"""...or records of so many bytes, but at least one: one piece may have no more than `companions.BYTES_MAX`."""
LATER_MS: Final = 1
"""A queue with consumers is cut to its length a moment later: what they can take is theirs."""
RETRY_MS: Final = 1_000
"""What could not be stored is tried again."""
KEPT_RETRY_MS: Final = 5_000
"""Dead letters that nothing takes, of a queue that keeps them: the oldest are tried again."""
KEPT_MAX: Final = 10_000
"""Of one queue, some 100 bytes each: then what expires stays in the queue, and until half of them are gone consumers get nothing, for they may reject it."""
UNMADE_MAX: Final = 100
"""Topics of dead letters that could not be made and were told in the log, once each; more are not told."""
RECHECK_MS_MAX: Final = 60_000
"""The clock may be set: nobody waits longer without a look at it."""
OVERDUE_MAX: Final = 10_000
"""Expired in their consumers' hands: those that were answered since are forgotten then."""
OUTCOMES: Final = ("expired", "maxlen", "rejected", "delivery_limit", "dead", "kept", "duplicate", "refused")
"""Why entries leave a queue; `dead`: those of them that became a dead letter; `kept`: tries of dead letters that nothing took. The last two never entered: their
key is there, or the queue is full."""
NO_UNIT: Final = (1 << 62, 0, 0)
EXPIRIES_MAX: Final = 1_000_000
"""Messages with an expiry of their own that are remembered, some 100 bytes each. Others expire when somebody gets them."""


def is_told(message: Message) -> bool:
    """Whether a full queue refuses its publisher. Others' messages are their topic's first of all, and of one that was delayed or decided on nobody
    waits for an answer: they are stored, and the full queue goes without."""
    return message.exchange is not None and not message.kind


def dead_letters_of(route_sets: Mapping[str, object]) -> dict[str, DeadLetters]:
    """Those of the kinds that have any."""
    found = {kind: getattr(routes, "dead_letters", None) for kind, routes in route_sets.items()}
    return {kind: letters for kind, letters in found.items() if letters is not None}


Unit = tuple[int, int, int]
"""Position and size of a record, and what the queue's units hold besides."""
Namer = Callable[[Callable[[str], Mapping[str, bytes]], int], str]
"""`queue_name(rows, light)` of a RouteSet: what its door calls a light queue, from the tables; empty if it is not its."""


class QueueEngine:
    """See the module. `route_sets`: by kind, with their dead letters and names; `drop(light, rows)`: delete a light queue and these rows."""

    def __init__(self, broker: Context, route_sets: Mapping[str, object], drop: Callable[[int, Rows], None]) -> None:
        self._broker = broker
        self._dead_letters = dead_letters_of(route_sets)
        self._namers: list[Namer] = [
            namer for routes in route_sets.values() if (namer := getattr(routes, "queue_name", None)) is not None
        ]
        self._drop = drop
        self._unmade: set[str] = set()
        self.by_light: dict[int, ManagedQueue] = {}
        self.rejecting: dict[int, ManagedQueue] = {}
        """Of these, those that refuse what does not fit."""
        self.unique: dict[int, ManagedQueue] = {}
        """Those that take no duplicates."""
        self._by_name: dict[tuple[str, str], int] = {}
        """Light queue by kind of dead letters and name."""
        self.counted: list[ManagedQueue] = []
        """Those with `coming`."""
        self.dying: deque[tuple[ManagedQueue, str, list[int]]] = deque()
        """What is out of everybody's reach and becomes dead letters, for which reason: pieces of at most STEP entries of one queue."""
        self._filling: dict[tuple[int, str], list[int]] = {}
        """Light queue and reason: of these the last piece, where it is not full."""
        self._buried_bytes = 0
        """Of records whose dead letters were made in this turn."""
        self._expiries = 0
        self._suspended: dict[int, list[tuple[str, list[int]]]] = {}
        """Light queues about which nothing is decided for now, with what was on its way to its dead letters."""
        self._room, self._keys = Room(), KeyRoom()
        self._streams = Streams(broker, self._attempt, self._count)
        self.counts: dict[str, int] = {}
        """Entries taken out or not taken, by `OUTCOMES`."""

    # Policies.

    def open(self) -> None:
        """As Part.open."""
        broker = self._broker
        broker.cursors.on_deleted.append(self._deleted)
        gone: Rows = []
        for key, row in broker.tables.rows(TABLE).items():
            cursor = broker.cursors.awake(int(key))
            if cursor is None:
                gone.append((TABLE, key, None))
            else:
                self._manage(cursor, policy_from(row))
        if gone:
            broker.put_rows(gone)

    def close(self) -> None:
        """As Part.close."""

    def set_policy(self, cursor: Cursor, policy: Policy, token: Any, on_done: Done) -> None:
        """From now on; durable. Raises ILLEGAL_ARGUMENT."""
        if not cursor.light:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"queue {cursor.queue} is a topic's: it has no policy")
        if policy.dead_kind and policy.dead_kind not in self._dead_letters:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"nothing here makes dead letters of kind {policy.dead_kind}")
        self._manage(cursor, policy)
        self._broker.put(TABLE, [(str(cursor.id), policy_to(policy))], token, on_done)

    def adopt(self, cursor: Cursor, policy: Policy) -> None:
        """A queue has come here with its policy, whose row is there."""
        self._manage(cursor, policy)

    def suspend(self, light: int) -> None:
        """Nothing of the queue expires, dies or is refused from now on: it is on its way to another group."""
        waiting = self._suspended.setdefault(light, [])
        queue = self.by_light.pop(light, None)
        if queue is not None:
            for reason, kept in groupby(queue.kept, itemgetter(0)):
                offsets = [offset for _, offset in kept]
                waiting += [(reason, offsets[first : first + STEP]) for first in range(0, len(offsets), STEP)]
            self._by_name.pop((queue.policy.dead_kind, queue.policy.name), None)
            self._forget(queue)
            queue.cursor.managed = None

    def is_suspended(self, light: int) -> bool:
        """It is on its way."""
        return light in self._suspended

    def resume(self, light: int) -> None:
        """It stays."""
        dying = self._suspended.pop(light, [])
        for cursor in self._broker.cursors.of_queue(f"~{light}"):
            row = self._broker.tables.rows(TABLE).get(str(cursor.id))
            if row is not None:
                self._manage(cursor, policy_from(row))
        if (queue := self.by_light.get(light)) is not None and dying:
            self.dying.extend([(queue, reason, offsets) for reason, offsets in dying])
            self._broker.arm_append()

    def forget_suspended(self, light: int) -> None:
        """It is gone."""
        self._suspended.pop(light, None)

    def _manage(self, cursor: Cursor, policy: Policy) -> None:
        if policy.stream:
            self._streams.keep(cursor, policy)
            return
        old = self.by_light.get(cursor.light)
        if policy.priorities is not None and not isinstance(cursor.window, PriorityWindow):
            cursor.window = PriorityWindow(cursor.window, policy.priorities, self._room)
        queue = ManagedQueue(cursor, policy, self._broker.cursors.end(cursor), self._work, self._due)
        if old is not None:
            self._forget(old)
            queue.kept = old.kept
        cursor.managed = self.by_light[cursor.light] = queue
        if policy.overflow != "drop-head" and (policy.max_length is not None or policy.max_bytes is not None):
            self.rejecting[cursor.light] = queue
        if policy.unique_by:
            queue.keys = UniqueKeys(cursor, policy.unique_by, self._keys)
            self.unique[cursor.light] = queue
        if policy.dead_kind:
            self._by_name[policy.dead_kind, policy.name] = cursor.light
        queue.used_ms = self._broker.wheel.now_ms()
        self._attempt(partial(self._scan, queue))
        self._due(queue)
        self._try_kept(queue, LATER_MS)

    def _deleted(self, cursor: Cursor) -> None:
        if isinstance(cursor.window, PriorityWindow):
            cursor.window.close()
        if isinstance(cursor.managed, Stream):
            self._streams.forget(cursor.managed)
            self._broker.put_rows([(TABLE, str(cursor.id), None)])
        elif isinstance(cursor.managed, ManagedQueue):
            queue, cursor.managed = cursor.managed, None
            self.by_light.pop(cursor.light, None)
            self._by_name.pop((queue.policy.dead_kind, queue.policy.name), None)
            self._forget(queue)
            self._broker.put_rows([(TABLE, str(cursor.id), None)])

    def _forget(self, queue: ManagedQueue) -> None:
        """It is gone, or has another policy."""
        self.rejecting.pop(queue.cursor.light, None)
        self.unique.pop(queue.cursor.light, None)
        self._expiries -= len(queue.expiries)
        if queue.keys is not None:
            queue.keys.close()

    def _is_gone(self, queue: ManagedQueue) -> bool:
        return self.by_light.get(queue.cursor.light) is not queue

    # What enters.

    def begin_turn(self) -> None:
        """What the last one was about to append is in, or not. Dead letters come behind what was submitted before."""
        if self.dying:
            self._bury_some()
        for queue in self.counted:
            queue.coming = 0
            if queue.keys is not None:
                queue.keys.begin_turn()
        self.counted = []

    def admitted(self, sent: Sent, index: int, match: RouteMatch) -> tuple[RouteMatch, ErrorCode | None]:
        """Where a message goes, as `let_in` says; a code where nothing is left of what it was for, and else its result says so."""
        message = sent.batch[index]
        left, is_refused = self.let_in(match, message)
        if is_refused and is_told(message):
            sent.refuse(index, ErrorCode.QUEUE_FULL)
            return left, None if left.lights else ErrorCode.QUEUE_FULL
        if message.demand_route and not is_refused and match.lights and not left.lights and not left.taps:
            return left, ErrorCode.DUPLICATE
        return left, None

    def let_in(self, match: RouteMatch, message: Message) -> tuple[RouteMatch, bool]:
        """Without the queues that have its key and want it once, and without full ones that refuse it; whether there were any of these."""
        known = [light for light in match.lights if self._knows(light, message)] if self.unique else ()
        if known:
            self._count("duplicate", len(known))
            match = match.without(known)
        full = self.refused_by(match.lights, message) if self.rejecting else ()
        if full:
            self._count("refused", len(full))
            match = match.without(full)
        for light in match.lights if self.unique else ():
            queue = self.unique.get(light)
            if queue is not None and queue.keys is not None and queue.keys.comes(message):
                self.counted.append(queue)
        return match, bool(full)

    def _knows(self, light: int, message: Message) -> bool:
        queue = self.unique.get(light)
        return queue is not None and queue.keys is not None and queue.keys.knows(message)

    def refused_by(self, lights: tuple[int, ...], message: Message) -> set[int]:
        """Light queues that are full and refuse what is to enter; the others of these count it."""
        found: set[int] = set()
        for light in lights:
            queue = self.rejecting.get(light)
            if queue is None:
                continue
            if self._is_over(queue, queue.coming + 1, len(message.body)):
                found.add(light)
            else:
                queue.coming += 1
                self.counted.append(queue)
        for light in found:
            if self.rejecting[light].policy.overflow == "reject-publish-dlx":
                self._copy_refused(self.rejecting[light], message)
        return found

    def _is_over(self, queue: ManagedQueue, more: int, more_bytes: int) -> bool:
        policy, end = queue.policy, self._broker.cursors.end(queue.cursor)
        if policy.max_length is not None and queue.ready(end) + more > policy.max_length:
            return True
        return policy.max_bytes is not None and queue.ready_bytes(end) + more_bytes > policy.max_bytes

    def _copy_refused(self, queue: ManagedQueue, message: Message) -> None:
        """Of a message that was never stored: a copy alone."""
        refused = original(message) if message.kind == FORWARDED else message
        made = self._copy(queue, refused, "maxlen", self._broker.clock.now_ms())
        if made is not None:
            self._broker.submit([made[0]], None, lambda token, result: None)

    def entered(self, matches: Sequence[tuple[Message, RouteMatch]]) -> None:
        """These records were appended."""
        by_light, ends = self.by_light, self._broker.cursors
        touched: dict[int, ManagedQueue] = {}
        numbers: dict[int, int] = {}
        for _, match in matches:
            for light in match.lights:
                queue = by_light.get(light)
                if queue is not None:
                    touched[light] = queue
                    numbers[light] = numbers.get(light, 0) + 1
        if not touched:
            return
        places = {light: ends.end(queue.cursor) - numbers[light] for light, queue in touched.items()}
        for message, match in matches:
            for light in match.lights:
                queue = touched.get(light)
                if queue is None:
                    continue
                if self._expiries < EXPIRIES_MAX and queue.entered(message, places[light]):
                    self._expiries += 1
                places[light] += 1
        now_ms = self._broker.clock.now_ms()
        for queue in touched.values():
            ttl_ms = queue.policy.message_ttl_ms
            self._arm(queue, NEVER if ttl_ms is None else now_ms + ttl_ms)
            if queue.policy.drops_head:
                self._too_long(queue)

    def settle_now(self, cursor: Cursor) -> None:
        """Somebody asks what is in the queue: what is over its limits, and what has expired, is not."""
        queue = cursor.managed
        if isinstance(queue, ManagedQueue):
            self._attempt(partial(self._shorten, queue))
            self._attempt(partial(self._expire, queue))
        elif isinstance(queue, Stream):
            self._streams.cut_now(queue)

    def _too_long(self, queue: ManagedQueue) -> None:
        """Perhaps it is; with consumers it is cut when they have taken what they can."""
        if queue.cursor.watchers:
            self._settle_soon(queue)
        else:
            self._attempt(partial(self._shorten, queue))

    def _shorten(self, queue: ManagedQueue) -> None:
        if self._is_gone(queue) or not queue.policy.drops_head:
            return
        window = queue.cursor.window
        out: list[int] = []
        end = self._broker.cursors.end(queue.cursor)
        at = window.next_offset
        while len(out) < STEP and self._is_over(queue, 0, 0):
            if urgent := window.urgent(1):  # the head, as with RabbitMQ
                offset = urgent[0]
            elif window.returned:
                offset = window.returned[0]
            else:
                while window.ahead and at in window.ahead:
                    at += 1
                if at >= end:
                    break
                offset = at
            window.take_out(offset)
            out.append(offset)
        if out:
            self._work(queue, "maxlen", out)
        if len(out) == STEP:
            self._later(LATER_MS, partial(self._shorten, queue))

    # What expires.

    def _scan(self, queue: ManagedQueue) -> None:
        """What was there before the start: own expiries, and sizes where they count."""
        if self._is_gone(queue) or queue.scan_at >= queue.scan_end:
            return
        offsets = list(range(queue.scan_at, min(queue.scan_at + STEP, queue.scan_end)))
        window = queue.cursor.window
        for offset, message in zip(offsets, self._read(queue, offsets), strict=True):
            if queue.sizes is not None:
                queue.sizes.old.add(len(message.body) if message is not None else 0)
            if message is not None and not window.is_done(offset):
                queue.note_priority(message, offset)
                if queue.keys is not None:
                    queue.keys.note(message, offset)
            if message is not None and not window.is_done(offset) and self._expiries < EXPIRIES_MAX:
                self._expiries += queue.note_expiry(message, offset)
        if queue.sizes is not None:
            window.weigh_again()
        queue.scan_at = offsets[-1] + 1
        if queue.scan_at >= queue.scan_end:  # its bytes are known now
            self._settle_soon(queue)
        self._arm(queue)
        self._later(LATER_MS, partial(self._scan, queue))

    def _due(self, queue: ManagedQueue) -> None:
        """What came back, or was there before the start, may have expired or be too much."""
        if queue.policy.drops_head:
            self._too_long(queue)
        self._settle_soon(queue)

    def _settle_soon(self, queue: ManagedQueue) -> None:
        if not queue.is_due:
            queue.is_due = True
            self._later(LATER_MS if queue.policy.drops_head else 0, partial(self._settle, queue))

    def _settle(self, queue: ManagedQueue) -> None:
        queue.is_due = False
        self._shorten(queue)
        self._expire(queue)

    def _arm(self, queue: ManagedQueue, at_ms: int = NEVER) -> None:
        """Look again when the next thing is over; `at_ms`: when its own time to live ends for the oldest entry."""
        policy, now_ms = queue.policy, self._broker.clock.now_ms()
        if queue.expiries:
            at_ms = min(at_ms, queue.expiries[0][0])
        if policy.expires_ms is not None:
            at_ms = min(at_ms, now_ms + queue.used_ms + policy.expires_ms - self._broker.wheel.now_ms())
        self._wake_at(queue, at_ms, now_ms)

    def _wake_at(self, queue: ManagedQueue, at_ms: int, now_ms: int) -> None:
        if at_ms >= queue.timer_ms:
            return
        queue.timer_ms = at_ms
        self._later(min(max(at_ms - now_ms, 0), RECHECK_MS_MAX), partial(self._timer, queue, at_ms))

    def _timer(self, queue: ManagedQueue, at_ms: int) -> None:
        if queue.timer_ms == at_ms and not self._is_gone(queue):
            queue.timer_ms = NEVER
            if not self._is_unused(queue):
                self._expire(queue)

    def _is_unused(self, queue: ManagedQueue) -> bool:
        policy, now_ms = queue.policy, self._broker.wheel.now_ms()
        if policy.expires_ms is None:
            return False
        if queue.cursor.watchers:
            queue.used_ms = now_ms
        if now_ms < queue.used_ms + policy.expires_ms:
            return False
        log.info("queue %s was not used for %d ms and is deleted", policy.name, policy.expires_ms)
        self.drop(queue)
        return True

    def deserted(self, cursor: Cursor) -> None:
        """All its consumers were one gateway's, which is gone."""
        queue = cursor.managed
        if isinstance(queue, ManagedQueue) and queue.policy.auto_delete and not self._broker.closed:
            log.info("queue %s goes with the gateway of its last consumer", queue.policy.name)
            self.drop(queue)

    def is_held_up(self, cursor: Cursor) -> bool:
        """Nobody gets anything of the queue: it keeps as many dead letters as it may. Whoever asks is called when that is over."""
        return isinstance(cursor.managed, ManagedQueue) and cursor.managed.is_held_up

    def name_of(self, queue: str) -> str:
        """What people call it: its name at its door, where it has one."""
        if not queue.startswith("~"):
            return queue
        light = int(queue[1:])
        managed = self.by_light.get(light)
        if managed is not None and managed.policy.name:
            return managed.policy.name
        names = (namer(self._broker.tables.rows, light) for namer in self._namers)
        return next((name for name in names if name), queue)

    def drop(self, queue: ManagedQueue) -> None:
        """Delete it, with its door's row."""
        row = queue.policy.row
        self._drop(queue.cursor.light, [(*row, None)] if row is not None else [])

    def used(self, cursor: Cursor) -> None:
        """Somebody consumes, gets or declares."""
        if isinstance(cursor.managed, ManagedQueue):
            cursor.managed.used_ms = self._broker.wheel.now_ms()
            self._arm(cursor.managed)

    def _expire(self, queue: ManagedQueue) -> None:
        """Take out what is over. Reading comes first: it may have to be done again."""
        if self._is_gone(queue):
            return
        now_ms, window = self._broker.clock.now_ms(), queue.cursor.window
        if len(queue.kept) >= KEPT_MAX:
            self._wake_at(queue, now_ms + KEPT_RETRY_MS, now_ms)
            return
        place, next_ms = queue.place, NEVER
        out: list[int] = []
        if queue.policy.message_ttl_ms is not None:
            place, next_ms, out = self._outlived(queue, now_ms - queue.policy.message_ttl_ms)
        queue.place = place
        while queue.expiries and queue.expiries[0][0] <= now_ms and len(out) < STEP:
            _, offset = heappop(queue.expiries)
            self._expiries -= 1
            if offset in window.inflight:
                queue.overdue.add(offset)
            elif not window.is_done(offset):
                out.append(offset)
        taken = [offset for offset in out if window.is_ready(offset) and window.take_out(offset)]
        if taken:
            self._work(queue, "expired", taken)
        if len(queue.overdue) > OVERDUE_MAX:
            queue.overdue = {offset for offset in queue.overdue if offset in window.inflight}
        ttl_ms = queue.policy.message_ttl_ms
        self._arm(queue, NEVER if ttl_ms is None or next_ms == NEVER else next_ms + ttl_ms)

    def _outlived(self, queue: ManagedQueue, before_ms: int) -> tuple[int, int, list[int]]:
        """Where the queue's own time to live has come to, when the next entry was stored, and the ready entries stored up to `before_ms`."""
        end, at, step = self._broker.cursors.end(queue.cursor), queue.place, 1
        out: list[int] = []
        window = queue.cursor.window
        while at < end and len(out) < STEP:
            offsets = list(range(at, min(at + step, end)))
            step = min(step * 4, STEP)
            for offset, message in zip(offsets, self._read(queue, offsets), strict=True):
                if message is not None:
                    if message.store_ms > before_ms:
                        return offset, message.store_ms, out
                    if not window.is_done(offset):
                        out.append(offset)
                at = offset + 1
        return at, (before_ms if at < end else NEVER), out

    # What is taken out.

    def _count(self, reason: str, entries: int) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + entries

    def _work(self, queue: ManagedQueue, reason: str, offsets: Sequence[int]) -> None:
        self._count(reason, len(offsets))
        if not queue.policy.dead_kind:
            self._broker.cursors.finish_out(queue.cursor, offsets)
            return
        key = queue.cursor.light, reason
        for first in range(0, len(offsets), STEP):
            some = offsets[first : first + STEP]
            piece = self._filling.get(key)
            if piece is None or len(piece) + len(some) > STEP:
                piece = self._filling[key] = []
                self.dying.append((queue, reason, piece))
            piece.extend(some)
        self._broker.arm_append()

    def _bury_some(self) -> None:
        """What a turn has time for."""
        left, self._buried_bytes = STEP, 0
        while self.dying and left > 0 and self._buried_bytes < BURY_BYTES:
            queue, reason, offsets = self.dying.popleft()
            if self._filling.get((queue.cursor.light, reason)) is offsets:
                del self._filling[queue.cursor.light, reason]
            left -= len(offsets)
            self._attempt(partial(self._bury, queue, reason, offsets))
        if self.dying:
            self._broker.arm_append()

    def _put_back(self, queue: ManagedQueue, reason: str, offsets: list[int]) -> None:
        """They are too large for this piece: the next one is theirs."""
        self.dying.appendleft((queue, reason, offsets))
        self._broker.arm_append()

    def _bury(self, queue: ManagedQueue, reason: str, offsets: list[int]) -> None:
        """Store the copies of these entries and finish them, in one piece."""
        if self._is_gone(queue):
            if (other := self.by_light.get(queue.cursor.light)) is None:
                if (waiting := self._suspended.get(queue.cursor.light)) is not None:
                    waiting.append((reason, offsets))
                return
            queue = other  # it has another policy now
        if not queue.policy.dead_kind:
            self._broker.cursors.finish_out(queue.cursor, offsets)
            return
        units = self._units(queue, offsets)
        fit = self._broker.cursors.within(units, BURY_BYTES)
        found = self._broker.store.get_many([(position, size) for position, size, _ in units[:fit]])
        now_ms, size = self._broker.clock.now_ms(), 0
        batch: list[Message] = []
        places: list[int] = []
        barred: dict[int, frozenset[int]] = {}
        homeless: list[int] = []
        for index, message in enumerate(found):
            made = self._copy(queue, message, reason, now_ms) if message is not None else None
            if made is None and message is not None and queue.policy.dead_keep:
                homeless.append(offsets[index])
            elif made is not None:
                size += len(made[0].body)  # more than the record's where that is compressed
                if size > BURY_BYTES and batch:
                    fit = index
                    break
                lights = [self._by_name.get((queue.policy.dead_kind, name), 0) for name in made[1]]
                if any(lights):
                    barred[id(made[0])] = frozenset(lights)
                batch.append(made[0])
                places.append(offsets[index])
        self._buried_bytes += size
        if fit < len(offsets):
            self._put_back(queue, reason, offsets[fit:])
            offsets = offsets[:fit]
        round_again = {place for place, letter in zip(places, batch, strict=True) if id(letter) in barred}
        if homeless:
            self._keep(queue, reason, homeless)
            offsets = [offset for offset in offsets if offset not in set(homeless)]
            if not offsets:
                return
        taken = TakenOut(self._broker.cursors, queue.cursor, offsets)

        def done(_token: Any, result: Any) -> None:
            self._buried(queue, reason, offsets, places, round_again, result)

        self._broker.submit_with(batch, None, done, None, taken, [], barred)

    def _copy(
        self, queue: ManagedQueue, message: Message, reason: str, now_ms: int
    ) -> tuple[Message, frozenset[str]] | None:
        policy = queue.policy
        maker = self._dead_letters.get(policy.dead_kind)
        if maker is None:
            return None
        try:
            made = maker.copy(message, policy.name, policy.dead_target, reason, now_ms)
        except Exception as error:  # one record's properties must not hold up the queue
            log.error(
                "queue %s: no dead letter of a record can be made: %s: %s", policy.name, type(error).__name__, error
            )
            return None
        if made is None or not self._has_topic(made[0].topic):
            return None  # RabbitMQ: an exchange that does not exist takes nothing
        return made

    def _has_topic(self, name: str) -> bool:
        """Every broker group has all bindings, but the topic of an exchange is only where it was declared or published to: elsewhere it is made."""
        if self._broker.topics.get(name) is not None:
            return True
        if not self._broker.router.names_topic(name):
            return False
        try:
            self._broker.ensure_topic(name, FOR_QUEUE, self._broker.gateway_config.queues)
        except GantryError as error:
            self._log_unmade(name, error)
            return False
        return True

    def _log_unmade(self, name: str, error: GantryError) -> None:
        """Once for each topic: every message that is rejected may want it."""
        is_new = name not in self._unmade and len(self._unmade) < UNMADE_MAX
        if is_new:
            self._unmade.add(name)
        log.log(
            logging.WARNING if is_new else logging.DEBUG, "topic %s of dead letters cannot be made: %s", name, error
        )

    def _keep(self, queue: ManagedQueue, reason: str, offsets: list[int]) -> None:
        """Nothing takes them yet: they stay out of the queue, and in it for a start."""
        log.debug("queue %s: nothing takes %d dead letters; they are kept", queue.policy.name, len(offsets))
        queue.kept.extend([(reason, offset) for offset in offsets])
        self._count("kept", len(offsets))
        if len(queue.kept) >= KEPT_MAX and not queue.is_held_up:
            queue.is_held_up = True
            log.warning(
                "queue %s: nothing takes %d dead letters; its consumers wait", queue.policy.name, len(queue.kept)
            )
        self._try_kept(queue, KEPT_RETRY_MS)

    def _try_kept(self, queue: ManagedQueue, after_ms: int) -> None:
        if queue.kept and not queue.is_trying:
            queue.is_trying = True
            self._later(after_ms, partial(self._again, queue))

    def _again(self, queue: ManagedQueue) -> None:
        """The oldest that are kept for one reason, once more; the others soon, if these found a place."""
        queue.is_trying = False
        if self._is_gone(queue) or not queue.kept:
            return
        reason = queue.kept[0][0]
        offsets: list[int] = []
        while queue.kept and queue.kept[0][0] == reason and len(offsets) < STEP:
            offsets.append(queue.kept.popleft()[1])
        self._attempt(partial(self._bury, queue, reason, offsets))
        self._try_kept(queue, RETRY_MS)
        if queue.is_held_up and len(queue.kept) <= KEPT_MAX // 2:  # far more than one step took out to try them
            queue.is_held_up = False
            self._broker.cursors.fire(queue.cursor)

    def _buried(
        self,
        queue: ManagedQueue,
        reason: str,
        offsets: list[int],
        places: list[int],
        round_again: set[int],
        result: Any,
    ) -> None:
        if isinstance(result, GantryError):
            codes: list[Any] = [result.code] * max(len(places), 1)
        else:
            codes = [code for code in result if isinstance(code, ErrorCode)]
        if not codes:
            self._count("dead", len(places))
            return
        if any(code in PASSING for code in codes):
            self._later(RETRY_MS, partial(self._bury, queue, reason, offsets))
        elif isinstance(result, GantryError):  # the broker stops, or the disk is broken: a start brings them back
            log.warning("queue %s: %d dead letters were not stored: %s", queue.policy.name, len(places), result.text)
        else:  # what nobody takes is gone; the others again
            lost = [at for at, code in zip(places, result, strict=True) if code is not ErrorCode.NOT_ALONE]
            left = [at for at in offsets if at not in set(lost)]
            if queue.policy.dead_keep and (kept := [at for at in lost if at not in round_again]):
                self._keep(queue, reason, kept)
                lost = [at for at in lost if at in round_again]
            if lost:
                self._broker.cursors.finish_out(queue.cursor, lost)
            if left:
                self._attempt(partial(self._bury, queue, reason, left))

    # Helpers.

    def _units(self, queue: ManagedQueue, offsets: Sequence[int]) -> list[Unit]:
        """Of these entries, neighbours read in one piece; of those that are not there, units of no record. May raise `Cold`."""
        cursors, found, first = self._broker.cursors, [], 0
        for index, offset in enumerate(offsets, 1):
            if index < len(offsets) and offsets[index] == offset + 1:
                continue
            found += cursors.units(queue.cursor, offsets[first], index - first)
            found += [NO_UNIT] * (index - len(found))
            first = index
        return found

    def _read(self, queue: ManagedQueue, offsets: Sequence[int]) -> list[Message | None]:
        """Records of these entries; None: there is none, or it is damaged. May raise `Cold`."""
        return self._broker.store.get_many([(position, size) for position, size, _ in self._units(queue, offsets)])

    def _attempt(self, call: Callable[[], None]) -> None:
        """Now, or when the disk has what it reads."""
        try:
            call()
        except Cold as cold:
            self._broker.fetch(cold, call, self._attempt)
        except (OSError, GantryError) as error:
            log.error("a queue's records cannot be read: %s", error)
            self._later(RETRY_MS, call)

    def _later(self, after_ms: int, call: Callable[[], None]) -> None:
        wheel = self._broker.wheel
        wheel.call_at(wheel.now_ms() + after_ms, lambda now_ms: self._attempt(call))
