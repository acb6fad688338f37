"""Messages with a time of delivery of their own: records of `rmq_sys_wheel_timer`, as RocketMQ's TimerMessageStore keeps them.

Which of them are pending is what the cursor `~timer` is not done with; `TimerSlots` says which are due. The slots are filled from the
queue's units, which hold the time, at start and when records are appended, a slice per loop turn; nothing else is kept per message.
Times are the wall clock's: it may jump, so it is asked before anything fires, and at least every `CHECK_MS` while something waits.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.delay.timer_search import Search, Searches, is_target
from gantrymq.broker.delay.timer_slots import NEVER, TimerSlots
from gantrymq.broker.due.waiting import (
    PASSING,
    RETRY_MS,
    STEP,
    STEP_BYTES,
    UNREADABLE_MS,
    UNREADABLE_TRIES,
    codes_of,
    keep_readable,
    log_dropped,
    new_cursor,
    put_cursor,
    read_each,
    revived,
)
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import Message
from gantrymq.store.cold import Cold
from gantrymq.store.queues.consume_queue import HOLE, HOLE_SIZE, Unit
from gantrymq.store.schedule import CODE_MIN, PRECISION_MS, TIMER_TOPIC, number_of, timer_code, timer_tag

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.broker.delay.timer_search import OnFound
    from gantrymq.broker.parts import Context
    from gantrymq.metrics import Counter

log = logging.getLogger(__name__)

GROUP: Final = "~timer"
QUEUE: Final = f"{TIMER_TOPIC}/0"
CHECK_MS: Final = 10_000
"""A wall clock that is set forward is noticed after this time at the latest."""
UNITS_STEP: Final = 1_000
"""Queue units put into the slots in one slice: half a millisecond."""
ODD_STEP: Final = 32
"""Records asked for their time in one slice: a real broker's, and those that were moved."""
INFLIGHT_MAX: Final = 1_024
"""Messages on their way into their topics (synchronous flush: they wait for it); beyond it nothing fires."""
SPAN_MIN: Final = 1_000_000
SPAN_FACTOR: Final = 8
"""The window takes a bit for each entry above the oldest pending one, and a start looks at its unit: when there are SPAN_FACTOR times
as many as are pending, and SPAN_MIN, the oldest are appended again (RocketMQ rolls them, too: TIMER_ROLL_TIMES)."""
ROLL_AT_STOP_MAX: Final = 10_000
ROLL_AT_STOP_BYTES: Final = 64 * 1024 * 1024
"""A clean stop appends pending entries again that lie between delivered ones, so that another broker repeats nothing: at most so
many, and so many bytes, which take a quarter of a second."""
SAME_KEY_MAX: Final = 64
"""Records with one unique key that a recall looks at: a producer that tried again, and rolled ones."""
TRIES_KEPT_MAX: Final = 10_000
"""Records that cannot be read whose attempts are counted; of others they are counted when there is room."""


class Timers:
    """See the module. `on_settled()` is called when the cursor has moved on; `damaged` counts records that were given up."""

    def __init__(self, broker: Context, on_settled: Callable[[], None], damaged: Counter) -> None:
        self._broker = broker
        self._on_settled = on_settled
        self._damaged = damaged
        self._searches = Searches(broker)
        self._tries: dict[int, int] = {}
        """Attempts by the offset of a record that cannot be read."""
        self.cursor: Cursor | None = None
        self._slots = TimerSlots(0)
        self._seen = 0
        """Units below this offset are in the slots, in `_odd`, in flight or done."""
        self._first_check = 0
        """Nothing is delivered until what lay below this offset at the start is looked at: an order to recall may lie behind what is due."""
        self._looking = 0
        """Orders whose message is searched for, or that wait for their search."""
        self._odd: list[int] = []
        """Offsets whose record must be asked, descending."""
        self._inflight: set[int] = set()
        self._dead = 0
        """Entries of the slots that are done already."""
        self._armed = False
        """A step comes in the next turn."""
        self._waits = False
        self._fetching = False
        self.orders: list[Message] = []
        """Orders to recall whose sender waits for the answer: who stored them carries them out."""
        self._handle = 0
        self._handle_at = 0
        self._roll_to = 0
        """Pending entries below this offset are being appended again."""
        self._rolling = False
        self._after_roll: list[int] = []
        """Orders that were carried out while entries were on their way to be appended again: one of these may be a target's copy."""

    def open(self) -> None:
        """Go on with what is pending; it is found in slices after the start."""
        store = self._broker.store
        if self.cursor is None and 0 in store.queues_of(TIMER_TOPIC):
            self._make(store.min_offset(TIMER_TOPIC, 0))

    def _make(self, start: int) -> Cursor:
        broker = self._broker
        cursor = broker.cursors.find(QUEUE, GROUP)
        if cursor is None:
            cursor, rows = broker.cursors.create(QUEUE, GROUP, start)
            put_cursor(broker, cursor, rows)
        self.cursor = cursor
        self._first_check = broker.store.max_offset(TIMER_TOPIC, 0)
        self._rebuild()
        return cursor

    def restart_at(self, start: int, done: Sequence[int]) -> None:
        """Another broker went on meanwhile: forget what was known; `done` are entries at or above `start` that it delivered."""
        self.cursor = new_cursor(self._broker, QUEUE, GROUP, start)
        self._broker.cursors.finish(self.cursor, done)
        self._first_check = self._broker.store.max_offset(TIMER_TOPIC, 0)
        self._rebuild()

    def _rebuild(self) -> None:
        """Fill the slots anew."""
        assert self.cursor is not None
        self._slots = TimerSlots(self._broker.clock.now_ms())
        self._seen = self.cursor.window.floor
        self._odd = []
        self._dead = 0
        self._arm()

    def expect(self) -> None:
        """A record is about to be appended."""
        if self.cursor is None:
            self._make(self._broker.store.max_offset(TIMER_TOPIC, 0))
        if not self._waits and not self._armed:
            self._wait()

    def pending(self) -> int:
        """Messages that wait."""
        unseen = self._broker.store.max_offset(TIMER_TOPIC, 0) - self._seen if self.cursor is not None else 0
        return max(self._slots.count - self._dead, 0) + len(self._odd) + len(self._inflight) + unseen

    @property
    def busy(self) -> bool:
        """Messages are on their way into their topics."""
        return bool(self._inflight)

    def floor(self) -> int | None:
        """Below this offset everything is delivered; None: there never was a timer."""
        return self.cursor.window.floor if self.cursor is not None else None

    # Steps.

    def _wait(self) -> None:
        self._waits = True

        def wake() -> None:
            self._waits = False
            self._step()

        self._broker.topics.wait_for(TIMER_TOPIC, 0, GROUP, wake)

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._broker.turn.at_deliver(self._turn)

    def _turn(self) -> None:
        self._armed = False
        self._step()

    def _step(self) -> None:
        """One slice of everything; then the next one, or a deadline."""
        if self._broker.closed or self._fetching or self.cursor is None:
            return
        try:
            more = self._ask() if self._odd else self._read()
            if not self._first_check or self._looked():
                more |= self._fire(self._slots)
            if self._roll_to:
                more |= self._roll()
        except Cold as cold:
            self._fetching = True
            self._broker.fetch(cold, None, self._again)
            return
        except OSError as error:
            log.error("%s: what is due waits on: %s", QUEUE, error)
            self._fetching = True
            wheel = self._broker.wheel
            wheel.call_at(wheel.now_ms() + UNREADABLE_MS, lambda now_ms: self._again(None))
            return
        if more:
            self._arm()
        else:
            self._sleep()

    def _looked(self) -> bool:
        if self._seen < self._first_check or self._odd or self._looking:
            return False
        self._first_check = 0
        return True

    def _again(self, _call: None) -> None:
        self._fetching = False
        self._step()

    def _sleep(self) -> None:
        if not self._waits:
            self._wait()
        next_ms = self._slots.next_ms()
        if next_ms == NEVER or self._first_check or len(self._inflight) >= INFLIGHT_MAX:
            return
        broker = self._broker
        wheel = broker.wheel
        now_ms = wheel.now_ms()
        at_ms = now_ms + min(max(next_ms - broker.clock.now_ms(), 0), CHECK_MS)
        if self._handle and now_ms <= self._handle_at <= at_ms:
            return
        wheel.cancel(self._handle)
        self._handle_at = at_ms
        self._handle = wheel.call_at(at_ms, self._rung)

    def _rung(self, _now_ms: int) -> None:
        self._handle = 0
        self._step()

    def _read(self) -> bool:
        """A slice of the queue's units goes into the slots; True: there is more."""
        cursor, broker = self.cursor, self._broker
        assert cursor is not None
        end = broker.store.max_offset(TIMER_TOPIC, 0)
        if self._seen >= end:
            return False
        units = broker.cursors.units(cursor, self._seen, UNITS_STEP)
        window, add = cursor.window, self._slots.add
        first = offset = self._seen
        old = offset < window.next_offset or bool(self._inflight)
        for _, size, code in units:
            if old and (window.is_done(offset) or offset in self._inflight):
                offset += 1
                continue
            if code >= CODE_MIN and size != HOLE_SIZE:
                add(code, offset)
            elif size == HOLE_SIZE:
                broker.cursors.finish(cursor, [offset])
            else:
                self._odd.append(offset)
            offset += 1
        self._odd.reverse()
        self._seen = offset
        return bool(self._odd) or (offset < end and offset > first)

    def _ask(self) -> bool:
        """Records whose unit does not say when they are due: a real broker's, moved ones, and orders to recall."""
        cursor, broker = self.cursor, self._broker
        assert cursor is not None
        offsets = self._odd[-ODD_STEP:]
        units = self._units(offsets)
        records = read_each(broker.store, [unit[:2] for unit in units])
        own = {order.queue_offset for order in self.orders}
        asked = []
        for offset, found in zip(offsets, records, strict=True):
            if isinstance(found, Message) and found.property("TIMER_DEL_UNIQKEY") and offset not in own:
                topic, _, unique = found.property("TIMER_DEL_UNIQKEY").partition("+")
                out_ms = number_of(found.property("TIMER_OUT_MS"))
                asked.append((offset, (topic, unique, out_ms), self.known(topic, unique, out_ms)))
        # Everything is read: what follows changes things.
        del self._odd[-ODD_STEP:]
        for offset, found in zip(offsets, records, strict=True):
            if isinstance(found, OSError):
                if not self._given_up(offset, found):
                    self._ask_later(offset, UNREADABLE_MS)
            elif found is None:
                broker.cursors.finish(cursor, [offset])
            elif not found.property("TIMER_DEL_UNIQKEY"):
                self._slots.add(max(timer_code(found), 0), offset)
        for offset, wanted, targets in asked:
            if targets is not None:
                self.recall(targets, offset)
            else:
                self._looking += 1
                self._search(*wanted, partial(self._carry_out, offset))
        return True

    def _ask_later(self, offset: int, wait_ms: int, busy: bool = False) -> None:
        wheel, slots = self._broker.wheel, self._slots

        def again(_now_ms: int) -> None:
            if self._slots is slots:  # else it is read anew
                self._odd.insert(0, offset)
            self._looking -= busy
            self._arm()

        self._looking += busy
        wheel.call_at(wheel.now_ms() + wait_ms, again)

    def _carry_out(self, order: int, found: list[int] | ErrorCode) -> None:
        self._looking -= 1
        self._arm()
        if isinstance(found, ErrorCode):
            busy = found is ErrorCode.BUSY
            self._ask_later(order, RETRY_MS if busy else UNREADABLE_MS, busy)
        else:
            self.recall(found, order)

    def _given_up(self, offset: int, error: OSError) -> bool:
        """The record could not be read once more; True: that was the last attempt, and it is left out."""
        tries = self._tries.get(offset, 0) + 1
        if tries >= UNREADABLE_TRIES:
            self._tries.pop(offset, None)
            self._leave_out(offset, f"the disk could not read it {tries} times: {error}")
            return True
        if tries > 1 or len(self._tries) < TRIES_KEPT_MAX:
            self._tries[offset] = tries
        log.error("%s, offset %d: cannot be read, tried again later: %s", QUEUE, offset, error)
        return False

    def _leave_out(self, offset: int, why: str) -> None:
        assert self.cursor is not None
        log.error("%s, offset %d: %s; it is left out", QUEUE, offset, why)
        self._damaged.value += 1
        self._broker.cursors.finish(self.cursor, [offset])

    def _units(self, offsets: Sequence[int]) -> list[Unit]:
        """Of these offsets, any order. Raises `Cold` with all that is."""
        cursor, cursors = self.cursor, self._broker.cursors
        assert cursor is not None
        low, high = min(offsets), max(offsets)
        if high - low < 4 * len(offsets):
            units = cursors.units(cursor, low, high - low + 1)
            return [units[offset - low] if offset - low < len(units) else HOLE for offset in offsets]
        found: list[Unit] = []
        wanted: list[Any] = []
        for offset in offsets:
            try:
                found += cursors.units(cursor, offset, 1) or [HOLE]
            except Cold as cold:
                wanted += cold.wanted
        if wanted:
            raise Cold(wanted)
        return found

    def _fire(self, slots: TimerSlots) -> bool:
        """Submit what is due, at most one slice; True: there is more."""
        broker, cursor = self._broker, self.cursor
        assert cursor is not None
        if len(self._inflight) >= INFLIGHT_MAX:
            return False
        now_ms = broker.clock.now_ms()
        if slots.next_ms() > now_ms:
            return False
        taken = slots.due(now_ms, STEP)
        offsets = [offset for offset in taken if not cursor.window.is_done(offset)]
        self._dead -= len(taken) - len(offsets)
        if offsets:
            try:
                self._submit(offsets, now_ms)
            except (Cold, OSError):
                for offset in offsets:
                    slots.add(now_ms, offset)
                raise
        return slots.next_ms() <= now_ms

    def _submit(self, offsets: list[int], now_ms: int) -> None:
        broker, cursor = self._broker, self.cursor
        assert cursor is not None
        units = self._units(offsets)
        size = keep = 0
        for unit in units:
            size += unit[1] if unit[1] != HOLE_SIZE else 0
            if size > STEP_BYTES and keep:
                break
            keep += 1
        found = read_each(broker.store, [unit[:2] for unit in units[:keep]])
        for offset in offsets[keep:]:
            self._slots.add(now_ms, offset)
        batch: list[Message] = []
        sent: list[int] = []
        for offset, waiting in zip(offsets, found, strict=False):
            if isinstance(waiting, OSError):
                if not self._given_up(offset, waiting):
                    self._slots.add(now_ms + UNREADABLE_MS, offset)
                continue
            if self._tries:
                self._tries.pop(offset, None)
            message = revived(waiting) if waiting is not None else None
            if message is None or waiting is None:
                self._leave_out(offset, "no record with a topic to deliver to")
                continue
            stamp_times(message, waiting.store_ms, now_ms)
            keep_readable(broker, message)
            batch.append(message)
            sent.append(offset)
        if batch:
            self._inflight.update(sent)
            broker.submit(batch, (sent, batch), self._stored)

    def _stored(self, token: tuple[list[int], list[Message]], results: Any) -> None:
        offsets, batch = token
        cursor, broker = self.cursor, self._broker
        assert cursor is not None
        done: list[int] = []
        dropped: list[tuple[Message, ErrorCode]] = []
        self._inflight.difference_update(offsets)
        for offset, message, code in zip(offsets, batch, codes_of(results, len(batch)), strict=True):
            if code in PASSING:
                self._slots.add(broker.clock.now_ms() + RETRY_MS, offset)
                continue
            if code is not None:
                dropped.append((message, code))
            done.append(offset)
        log_dropped(dropped)
        self.settle(done, False)
        if not broker.closed:
            self._arm()

    def settle(self, offsets: Sequence[int], in_slots: bool) -> list[int]:
        """These are done; returns those that were still pending. `in_slots`: they may still stand in the slots."""
        cursor = self.cursor
        assert cursor is not None
        window = cursor.window
        pending = [
            offset for offset in dict.fromkeys(offsets) if not window.is_done(offset) and offset not in self._inflight
        ]
        self._broker.cursors.finish(cursor, pending)
        if in_slots:
            self._dead += sum([offset < self._seen for offset in pending])
        if pending:
            self._on_settled()
        live = self.pending()
        if self._dead > live + SPAN_MIN:
            self._rebuild()
        span = window.next_offset - window.floor
        if not self._roll_to and span > SPAN_MIN and span > SPAN_FACTOR * live:
            self._roll_to = window.next_offset
        return pending

    # Recall.

    def targets(self, known: list[int] | None, topic: str, unique: str, out_ms: int, on_found: OnFound) -> None:
        """Offsets of pending messages with this unique key, due in the second behind `out_ms`; BUSY, UNAVAILABLE. They are called back,
        possibly at once. `known`: what the method of that name found."""
        if known is not None:
            on_found(known)
        else:
            self._search(topic, unique, out_ms, on_found)

    def known(self, topic: str, unique: str, out_ms: int) -> list[int] | None:
        """As far as the index knows the message; None: it does not. Changes nothing. May raise `Cold`."""
        if self.cursor is None:
            return []
        found = [
            message.queue_offset
            for message in self._broker.store.query(TIMER_TOPIC, unique, SAME_KEY_MAX, 0, 1 << 62)
            if is_target(message, topic, unique, out_ms)
        ]
        return [offset for offset in found if not self.cursor.window.is_done(offset)] if found else None

    def _search(self, topic: str, unique: str, out_ms: int, on_found: OnFound) -> None:
        """Where the index does not know the message (any more)."""
        if self._searches.full:
            on_found(ErrorCode.BUSY)
            return

        def pending(offset: int) -> bool:
            return self.cursor is not None and not self.cursor.window.is_done(offset)

        def read(offsets: Sequence[int]) -> list[Message | OSError | None]:
            return read_each(self._broker.store, [unit[:2] for unit in self._units(offsets)])

        wanted = partial(is_target, topic=topic, unique=unique, out_ms=out_ms)
        self._searches.begin(Search(self._slots, out_ms, pending, read, wanted), on_found)

    def recall(self, found: Sequence[int], order: int) -> bool:
        """Carry out an order, itself a record: these are done. Whether one was still pending."""
        settled = self.settle(found, True)
        if self._rolling:  # a crash until then carries it out once more
            self._after_roll.append(order)
        else:
            self.settle([order], False)
        return bool(settled)

    # Rolling.

    def _roll(self) -> bool:
        """A slice of the oldest pending entries is appended again; True: there is more."""
        cursor = self.cursor
        assert cursor is not None
        window = cursor.window
        if self._rolling:
            return False
        if window.floor >= self._roll_to:
            self._roll_to = 0
            return False
        offsets = window.undone(window.floor, min(self._roll_to, window.floor + UNITS_STEP))
        offsets = [offset for offset in offsets if offset not in self._inflight][:ODD_STEP]
        batch = self._rolled(offsets) if offsets else []
        if batch:
            self._rolling = True
            self._broker.submit([message for _, message in batch], [offset for offset, _ in batch], self._roll_done)
            return False
        self._roll_to = 0  # the rest is in flight or gone; the next time finds it
        return False

    def _rolled(self, offsets: Sequence[int]) -> list[tuple[int, Message]]:
        """Pending records as they are appended again."""
        found = read_each(self._broker.store, [unit[:2] for unit in self._units(offsets)])
        batch: list[tuple[int, Message]] = []
        for offset, waiting in zip(offsets, found, strict=True):
            message = rolled(waiting) if isinstance(waiting, Message) else None
            if message is not None:
                batch.append((offset, message))
        return batch

    def _roll_done(self, offsets: list[int], results: Any) -> None:
        self._rolling = False
        codes = codes_of(results, len(offsets))
        stored = [row for row, code in enumerate(codes) if code is None]
        cursor = self.cursor
        assert cursor is not None
        # Recalled or fired while its copy was on its way: so is the copy.
        gone = [row for row in stored if cursor.window.is_done(offsets[row]) or offsets[row] in self._inflight]
        self.settle([results[row] for row in gone], True)
        self.settle([offsets[row] for row in stored], True)
        orders, self._after_roll = self._after_roll, []
        self.settle(orders, False)
        if any(codes):
            self._roll_to = 0
        if not self._broker.closed:
            self._arm()

    def roll_at_stop(self) -> None:
        """So that another broker, which knows one offset only, repeats nothing: pending entries below delivered ones go to the end."""
        cursor, store = self.cursor, self._broker.store
        if cursor is None:
            return
        window = cursor.window
        if window.next_offset - window.floor > SPAN_MIN:
            return self._too_many(window.next_offset - window.floor)
        offsets = [o for o in window.undone(window.floor, window.next_offset) if o not in self._inflight]
        if len(offsets) > ROLL_AT_STOP_MAX:
            return self._too_many(window.next_offset - window.floor - len(offsets))
        cold, store.cold = store.cold, None
        store.read_without_waiting(None)
        try:
            units = self._units(offsets) if offsets else []
            if sum([unit[1] for unit in units if unit[1] != HOLE_SIZE]) > ROLL_AT_STOP_BYTES:
                return self._too_many(window.next_offset - window.floor - len(offsets))
            for first in range(0, len(offsets), STEP):
                batch = self._rolled(offsets[first : first + STEP])
                if batch:
                    store.append([message for _, message in batch], [()] * len(batch))
                self._broker.cursors.finish(cursor, [offset for offset, _ in batch])
        finally:
            store.read_without_waiting(cold)
        self._on_settled()
        return None

    def _too_many(self, repeated: int) -> None:
        log.warning("timers: another broker on this directory would deliver up to %d messages again", repeated)


def stamp_times(message: Message, store_ms: int, now_ms: int) -> None:
    """TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS, as in RocketMQ, where there is room (they are for people)."""
    text = b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (store_ms // PRECISION_MS * PRECISION_MS, now_ms)
    if len(message.properties) + len(text) <= 32_000:
        message.properties += text


def rolled(waiting: Message) -> Message | None:
    """A pending record as a new one of the same topic, due at the same time."""
    out_ms = number_of(waiting.property("TIMER_OUT_MS"))
    if out_ms < 0:
        return None
    times = max(number_of(waiting.property("TIMER_ROLL_TIMES")), 0) + 1
    exact_ms = abs(timer_code(waiting))
    text = waiting.properties + waiting.dispatch + b"TIMER_ROLL_TIMES\x01%d\x02" % times
    keys = (waiting.property(props.UNIQ_KEY), *waiting.property(props.KEYS).split())
    message = Message(TIMER_TOPIC, waiting.body, text, "", tuple([key for key in keys if key]), 0, waiting.born_ms)
    message.tag = timer_tag(out_ms, exact_ms, -1)
    message.born_host = waiting.born_host
    message.flag = waiting.flag
    message.sys_flag = waiting.sys_flag & ~0x20
    message.reconsume_times = waiting.reconsume_times
    return message
