"""Delay levels: each is a queue of `SCHEDULE_TOPIC_XXXX` whose records become due in their order, so only its head is looked at.

A level's delay is kept on the monotonic clock: a record waits its whole delay and not longer, however the wall clock jumps. Its unit
says the wall time when it is due; `Level.anchors` translate. Of records from before the start only the wall time is known; none of
them waits longer than its level's delay, counted from the start (RocketMQ's correctDeliverTimestamp would fire them at once).
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

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
from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import Message
from gantrymq.model.names import SCHEDULE_TOPIC
from gantrymq.store.cold import Cold
from gantrymq.store.queues.consume_queue import HOLE, HOLE_SIZE
from gantrymq.store.schedule import CODE_MIN, schedule_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.broker.parts import Context
    from gantrymq.metrics import Counter

log = logging.getLogger(__name__)

GROUP: Final = "~delay"
"""Owner of the cursors over the levels' queues: what is not done there is pending."""

ANCHOR_MS: Final = 100
ANCHORS_MAX: Final = 1_000
"""Anchors of one level: 3 MB for all of RocketMQ's levels under constant load. A longer delay has them farther apart."""

QUARANTINED_MAX: Final = 10_000
"""Records of a level that were set aside because the disk cannot read them; beyond it the level waits."""
IN_FLIGHT: Final = -1
"""In place of the number of attempts: it was read, and is on its way into its topic."""


def queue_of(level: int) -> str:
    """Queue name of a level, which counts from 1."""
    return f"{SCHEDULE_TOPIC}/{level - 1}"


class Level:
    """One level's state in memory."""

    __slots__ = (
        "anchors",
        "at",
        "base",
        "busy",
        "checking",
        "cursor",
        "delay_ms",
        "handle",
        "number",
        "quarantined",
        "waits",
    )

    def __init__(self, number: int, delay_ms: int, cursor: Cursor, mono_ms: int, wall_ms: int) -> None:
        self.number = number
        self.delay_ms = delay_ms
        self.cursor = cursor
        self.at = cursor.window.floor
        """Next offset to look at; below it everything is done or on its way."""
        self.quarantined: dict[int, int] = {}
        """Offsets below `at` whose records cannot be read, and how often that was tried."""
        self.checking = False
        """Another attempt at these is due."""
        self.base = (mono_ms, wall_ms)
        self.anchors: deque[tuple[int, int, int]] = deque()
        """(offset, monotonic time, wall time): records from that offset on were sent then, or a little later."""
        self.busy = False
        """A batch is on its way into its topics, or a record is fetched."""
        self.handle = 0
        """Of the deadline when the head is due; 0: none is set."""
        self.waits = False
        """For a record, the queue being empty."""

    @property
    def anchor_ms(self) -> int:
        """How far anchors are apart."""
        return max(ANCHOR_MS, self.delay_ms // ANCHORS_MAX)

    def note(self, end: int, mono_ms: int, wall_ms: int) -> None:
        """A record is about to take an offset at or above `end`."""
        if not self.anchors or mono_ms - self.anchors[-1][1] >= self.anchor_ms:
            self.anchors.append((end, mono_ms, wall_ms))

    def due_at(self, offset: int, code: int) -> int:
        """Monotonic time when the record is due; offsets must not go back from call to call."""
        anchors = self.anchors
        while len(anchors) > 1 and anchors[1][0] <= offset:
            anchors.popleft()
        if not anchors or offset < anchors[0][0]:
            mono_ms, wall_ms = self.base
            return mono_ms + min(max(code - wall_ms, 0), self.delay_ms)
        _, mono_ms, wall_ms = anchors[0]
        gap = code - self.delay_ms - wall_ms
        if not 0 <= gap <= self.anchor_ms:
            gap = self.anchor_ms  # the wall clock jumped meanwhile
        return mono_ms + gap + self.delay_ms


class Levels:
    """All levels. `on_settled()` is called when a level has moved on; `damaged` counts records that were given up."""

    def __init__(
        self, broker: Context, delays_ms: tuple[int, ...], on_settled: Callable[[], None], damaged: Counter
    ) -> None:
        self._broker = broker
        self._on_settled = on_settled
        self._damaged = damaged
        self.delays_ms = delays_ms
        self.by_number: dict[int, Level] = {}

    def open(self) -> None:
        """Go on with every level that has a queue; a queue without a cursor was left by a broker that had delivered nothing of it."""
        store = self._broker.store
        for queue_id in store.queues_of(SCHEDULE_TOPIC):
            level = self.level(queue_id + 1, store.min_offset(SCHEDULE_TOPIC, queue_id))
            self._step(level)

    def restart_at(self, offsets: dict[int, int]) -> None:
        """Another broker went on meanwhile: it has delivered what is below these offsets, by level."""
        store = self._broker.store
        for queue_id in store.queues_of(SCHEDULE_TOPIC):
            start = max(offsets.get(queue_id + 1, 0), store.min_offset(SCHEDULE_TOPIC, queue_id))
            end = store.visible_end(SCHEDULE_TOPIC, queue_id)
            new_cursor(self._broker, queue_of(queue_id + 1), GROUP, min(start, end))

    def level(self, number: int, start: int) -> Level:
        """The level; one that is new begins at `start`."""
        level = self.by_number.get(number)
        if level is None:
            broker = self._broker
            cursor = broker.cursors.find(queue_of(number), GROUP)
            if cursor is None:
                cursor, rows = broker.cursors.create(queue_of(number), GROUP, start)
                put_cursor(broker, cursor, rows)
            delays = self.delays_ms
            delay_ms = delays[number - 1] if number <= len(delays) else max(delays)
            level = self.by_number[number] = Level(
                number, delay_ms, cursor, broker.clock.monotonic_ms(), broker.clock.now_ms()
            )
        return level

    def expect(self, number: int) -> None:
        """A message of that level is about to be appended."""
        broker = self._broker
        end = broker.store.visible_end(SCHEDULE_TOPIC, number - 1)
        level = self.by_number.get(number) or self.level(number, end)
        clock = broker.clock
        level.note(end, clock.monotonic_ms(), clock.now_ms())
        if not level.handle and not level.busy and not level.waits:
            self._wait(level)

    def pending(self) -> int:
        """Messages that wait at all levels."""
        store = self._broker.store
        ends = [store.visible_end(SCHEDULE_TOPIC, number - 1) for number in self.by_number]
        return sum(
            [max(end - level.cursor.window.floor, 0) for end, level in zip(ends, self.by_number.values(), strict=True)]
        )

    @property
    def busy(self) -> bool:
        """Messages are on their way into their topics."""
        return any(level.busy or IN_FLIGHT in level.quarantined.values() for level in self.by_number.values())

    def floors(self) -> dict[int, int]:
        """By level, the offset below which everything is delivered: RocketMQ's delayOffset.json."""
        return {number: level.cursor.window.floor for number, level in sorted(self.by_number.items())}

    def _wait(self, level: Level) -> None:
        level.waits = True

        def wake() -> None:
            level.waits = False
            self._step(level)

        self._broker.topics.wait_for(SCHEDULE_TOPIC, level.number - 1, (GROUP, level.number), wake)

    def _step(self, level: Level) -> None:
        """Fire what is due, at most one slice, and see to it that it goes on."""
        broker = self._broker
        if level.busy or broker.closed:
            return
        if level.handle:
            broker.wheel.cancel(level.handle)
            level.handle = 0
        if level.at >= broker.store.visible_end(SCHEDULE_TOPIC, level.number - 1):
            self._wait(level)
            return
        try:
            offsets, found, due_at = self._due(level)
        except Cold as cold:
            level.busy = True
            broker.fetch(cold, level, self._again)
            return
        except OSError as error:
            log.error("%s: offset %d and what is behind it waits on: %s", level.cursor.queue, level.at, error)
            self._later(level, UNREADABLE_MS)
            return
        if len(level.quarantined) + len(offsets) > QUARANTINED_MAX and any(isinstance(one, OSError) for one in found):
            log.error(
                "%s: %d records cannot be read; what is behind them waits", level.cursor.queue, len(level.quarantined)
            )
            self._later(level, UNREADABLE_MS)
            return
        if offsets:
            self._fire(level, offsets, found)
        elif due_at > broker.wheel.now_ms():
            level.handle = broker.wheel.call_at(due_at, lambda now_ms: self._fired(level))
        else:
            broker.turn.at_deliver(lambda: self._step(level))  # nothing but holes so far

    def _later(self, level: Level, wait_ms: int) -> None:
        wheel = self._broker.wheel
        level.handle = wheel.call_at(wheel.now_ms() + wait_ms, lambda now_ms: self._fired(level))

    def _fired(self, level: Level) -> None:
        level.handle = 0
        self._step(level)

    def _again(self, level: Level) -> None:
        level.busy = False
        self._step(level)

    def _due(self, level: Level) -> tuple[list[int], list[Message | OSError | None], int]:
        """Offsets that are due with their records, at most one slice; and when the next one is due."""
        broker, cursor = self._broker, level.cursor
        cursors, window = broker.cursors, cursor.window
        now_ms = broker.wheel.now_ms()
        units = cursors.units(cursor, level.at, STEP)
        offsets: list[int] = []
        refs: list[tuple[int, int]] = []
        at, size, due_at = level.at, 0, now_ms
        for position, length, code in units:
            if length == HOLE_SIZE or window.is_done(at):
                if not offsets:
                    level.at = at + 1
                    cursors.finish(cursor, [at])
                at += 1
                continue
            if at in level.quarantined:
                at += 1
                level.at = level.at if offsets else at
                continue
            due_at = level.due_at(at, code if code >= CODE_MIN else self._code(position, length))
            if due_at > now_ms or (offsets and size + length > STEP_BYTES):
                break
            offsets.append(at)
            refs.append((position, length))
            size += length
            at += 1
        return offsets, read_each(broker.store, refs), due_at

    def _code(self, position: int, length: int) -> int:
        """Of a record that was moved: its unit no longer says it."""
        (message,) = self._broker.store.get_many([(position, length)])
        return schedule_code(message, self.delays_ms) if message is not None else 0

    def _fire(self, level: Level, offsets: list[int], found: list[Message | OSError | None]) -> None:
        level.busy = True
        level.at = offsets[-1] + 1
        batch: list[Message] = []
        sent: list[int] = []
        for offset, waiting in zip(offsets, found, strict=True):
            if isinstance(waiting, OSError):
                self._quarantine(level, offset, waiting)
                continue
            message = self._revived(level, offset, waiting)
            if message is not None:
                batch.append(message)
                sent.append(offset)
        if batch:
            self._broker.submit(batch, (level, sent, batch), self._stored)
        else:
            level.busy = False
            self._broker.turn.at_deliver(lambda: self._step(level))

    def _revived(self, level: Level, offset: int, waiting: Message | None) -> Message | None:
        """The message for its topic; a record that is none any more is left out."""
        message = revived(waiting) if waiting is not None else None
        if message is None:
            self._give_up(level, offset, "no record with a topic to deliver to")
            return None
        keep_readable(self._broker, message)
        return message

    def _give_up(self, level: Level, offset: int, why: str) -> None:
        log.error("%s, offset %d: %s; it is left out", level.cursor.queue, offset, why)
        self._damaged.value += 1
        level.quarantined.pop(offset, None)
        self._broker.cursors.finish(level.cursor, [offset])

    # Records that cannot be read.

    def _quarantine(self, level: Level, offset: int, error: OSError) -> None:
        log.error("%s, offset %d: cannot be read, tried again later: %s", level.cursor.queue, offset, error)
        level.quarantined[offset] = 1
        self._check_later(level)

    def _check_later(self, level: Level) -> None:
        if not level.checking:
            level.checking = True
            wheel = self._broker.wheel
            wheel.call_at(
                wheel.now_ms() + UNREADABLE_MS, lambda now_ms: self._check_again(level, list(level.quarantined))
            )

    def _check_again(self, level: Level, left: list[int]) -> None:
        """Another attempt at what was set aside: a slice of these now, the others in the next turns."""
        if self._broker.closed:
            return
        offsets = [offset for offset in left[:STEP] if level.quarantined.get(offset, IN_FLIGHT) != IN_FLIGHT]
        cursors, cursor = self._broker.cursors, level.cursor
        try:
            units = [(cursors.units(cursor, offset, 1) or [HOLE])[0] for offset in offsets]
            found = read_each(self._broker.store, [unit[:2] for unit in units])
        except Cold as cold:
            self._broker.fetch(cold, level.quarantined, lambda quarantined: self._check_again(level, left))
            return
        except OSError as error:
            log.error("%s: %d records cannot be read: %s", cursor.queue, len(level.quarantined), error)
            level.checking = False
            self._check_later(level)
            return
        for offset, waiting in zip(offsets, found, strict=True):
            if isinstance(waiting, OSError):
                tries = level.quarantined[offset] = level.quarantined[offset] + 1
                if tries >= UNREADABLE_TRIES:
                    self._give_up(level, offset, f"the disk could not read it {tries} times: {waiting}")
                continue
            message = self._revived(level, offset, waiting)
            if message is not None:
                level.quarantined[offset] = IN_FLIGHT
                self._broker.submit([message], (level, offset, message), self._quarantined_stored)
        if len(left) > STEP:
            self._broker.turn.at_deliver(lambda: self._check_again(level, left[STEP:]))
            return
        level.checking = False
        if level.quarantined:
            self._check_later(level)

    def _quarantined_stored(self, token: tuple[Level, int, Message], results: Any) -> None:
        level, offset, message = token
        (code,) = codes_of(results, 1)
        if code in PASSING:
            level.quarantined[offset] = 0
            return
        log_dropped([(message, code)] if code is not None else [])
        del level.quarantined[offset]
        self._broker.cursors.finish(level.cursor, [offset])
        self._on_settled()

    def _stored(self, token: tuple[Level, list[int], list[Message]], results: Any) -> None:
        level, offsets, batch = token
        level.busy = False
        done: list[int] = []
        dropped: list[tuple[Message, ErrorCode]] = []
        again = -1
        for offset, message, code in zip(offsets, batch, codes_of(results, len(batch)), strict=True):
            if code in PASSING:
                again = offset if again < 0 else again
                continue
            if code is not None:
                dropped.append((message, code))
            done.append(offset)
        log_dropped(dropped)
        self._broker.cursors.finish(level.cursor, done)
        self._on_settled()
        if self._broker.closed:
            return
        if again >= 0:
            level.at = again
            self._later(level, RETRY_MS)
        else:
            self._broker.turn.at_deliver(lambda: self._step(level))
