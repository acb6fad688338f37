"""Messages for later: the delay levels and arbitrary times of delivery. Here a message is turned aside to where it waits.

It becomes a record of `SCHEDULE_TOPIC_XXXX` (broker/delay/levels.py) or `rmq_sys_wheel_timer` (broker/delay/timers.py), written as a real broker
writes it, and is pending until the cursor `~delay` or `~timer` is done with it. Fired, it is an ordinary message of its own topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gantrymq.broker.config import TimerConfig
from gantrymq.broker.delay.levels import Levels
from gantrymq.broker.delay.timers import Timers
from gantrymq.broker.due.waiting import with_origin, without
from gantrymq.metrics import Counter
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import DELAYED, Message
from gantrymq.model.names import SCHEDULE_TOPIC
from gantrymq.store.schedule import (
    PRECISION_MS,
    TIMER_TOPIC,
    delays_of,
    level_tag,
    number_of,
    recall_tag,
    timer_tag,
)

if TYPE_CHECKING:
    from gantrymq.broker.parts import Context
    from gantrymq.metrics import Metrics

log = logging.getLogger(__name__)

TIMES = ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
_TIMES = tuple([name.encode() + props.NAME_END for name in TIMES])
RECALL_TAG = "_RECALL_TAG_"
"""RocketMQ: RecallMessageProcessor.RECALL_MESSAGE_TAG."""
SCHEDULE_QUEUES_MIN = 18
"""RocketMQ: TopicConfigManager, SCHEDULE_TOPIC_QUEUE_NUM."""


def timer_pairs(properties: bytes) -> dict[bytes, bytes]:
    """The pairs whose name begins with TIMER_, by name with its U+0001; the last of a name counts."""
    found: dict[bytes, bytes] = {}
    for pair in properties.split(props.PAIR_END):
        if pair.startswith(b"TIMER_"):
            name, mark, value = pair.partition(props.NAME_END)
            if value:
                found[name + mark] = value
    return found


def _out_ms(at_ms: int) -> int:
    """The second behind which a message waits whose handle says `at_ms`."""
    return (at_ms - 1) // PRECISION_MS * PRECISION_MS


class Delays:
    """See the module. A `parts.Part`."""

    def __init__(self, broker: Context, config: TimerConfig, on_settled: Callable[[], None]) -> None:
        self._broker = broker
        self._others_levels: dict[int, int] | None = None
        self._others_timers: Callable[[Timers], None] | None = None
        self.damaged = Counter()
        """Records that were left out because they could not be read."""
        self.config = config
        self.levels = Levels(broker, delays_of(config.delay_levels), on_settled, self.damaged)
        self.timers = Timers(broker, on_settled, self.damaged)

    def take_over(self, levels: dict[int, int] | None, timers: Callable[[Timers], None] | None) -> None:
        """Before `open`: another broker's delayOffset.json, where it went on meanwhile, and for the timers what sets their cursor."""
        self._others_levels, self._others_timers = levels, timers

    def open(self) -> None:
        """See `parts.Part`."""
        if self._others_levels is not None:
            self.levels.restart_at(self._others_levels)
        if self._others_timers is not None:
            self._others_timers(self.timers)
        if self._others_levels is not None or self._others_timers is not None:
            self._broker.write_acks()
            self._broker.store.flush()
        self.levels.open()
        self.timers.open()

    def close(self) -> None:
        """See `parts.Part`. What is in its topic and waits for the flush is not to come again."""
        try:
            if self.timers.busy or self.levels.busy:
                self._broker.gate.advance(self._broker.store.flush())
            self.timers.roll_at_stop()
        except (GantryError, OSError) as error:
            log.warning("delays: the stop could not note all that was delivered, some may come again: %s", error)

    def floors(self) -> tuple[dict[int, int], int | None]:
        """What another broker has to know: by level, and of the timers (None: there are none), the offset to go on at."""
        return self.levels.floors(), self.timers.floor()

    def show(self, metrics: Metrics) -> None:
        """Gauges of what waits."""
        metrics.read("gantry_delay_pending", "Messages that wait at a delay level", self.levels.pending)
        metrics.read(
            "gantry_timer_pending", "Messages that wait for a time of delivery of their own", self.timers.pending
        )

        metrics.read(
            "gantry_delay_damaged_total",
            "Delayed messages that were left out because their record is damaged",
            lambda: self.damaged.value,
            "counter",
        )

    def redirect(self, message: Message) -> ErrorCode | None:
        """Rewrite the message for the topic where it waits; its queue in its own topic is chosen already. What is due already, or
        asks for nothing that RocketMQ knows, stays as it is (RocketMQ: HookUtils.handleScheduleMessage)."""
        if b"DELAY\x01" in message.properties:
            text = message.property(props.DELAY)
            if text and number_of(text.removeprefix("-")) < 0:
                return ErrorCode.MESSAGE_ILLEGAL
            level = number_of(text)
            if level > 0:
                return self._delay(message, min(level, len(self.levels.delays_ms)), str(level))
        if b"TIMER_" not in message.properties:
            return None
        if b"TIMER_OUT_MS\x01" in message.properties and message.property("TIMER_OUT_MS"):
            return None
        return self._time(message)

    def _delay(self, message: Message, level: int, asked: str) -> ErrorCode | None:
        properties = message.properties
        if b"TIMER_" in properties:
            properties = without(properties, _TIMES)
        if str(level) != asked:
            properties = without(properties, (b"DELAY\x01",)) + b"DELAY\x01%d\x02" % level
        queues = max(SCHEDULE_QUEUES_MIN, len(self.levels.delays_ms))
        code = self._redirect_to(message, with_origin(message, properties), SCHEDULE_TOPIC, level - 1, queues)
        if code is None:
            message.tag = level_tag(level)
            self.levels.expect(level)
        return code

    def _time(self, message: Message) -> ErrorCode | None:
        found = timer_pairs(message.properties)
        if found.keys().isdisjoint(_TIMES):
            return None
        now_ms = self._broker.clock.now_ms()
        delay_ms = exact_ms = -1
        try:
            if b"TIMER_DELAY_SEC\x01" in found:  # RocketMQ's order
                delay_ms = int(found[b"TIMER_DELAY_SEC\x01"]) * 1000
                exact_ms = now_ms + delay_ms
            elif b"TIMER_DELAY_MS\x01" in found:
                delay_ms = int(found[b"TIMER_DELAY_MS\x01"])
                exact_ms = now_ms + delay_ms
            else:
                exact_ms = int(found[b"TIMER_DELIVER_MS\x01"])
        except ValueError:
            return ErrorCode.MESSAGE_ILLEGAL
        recalls = b"TIMER_DEL_UNIQKEY\x01" in found
        if exact_ms <= now_ms:
            return ErrorCode.MESSAGE_ILLEGAL if recalls else None
        # The limit is of those who name a time themselves; a door whose protocol knows delays has its own.
        if message.exchange is None and exact_ms - now_ms > self.config.max_delay_s * 1000:
            return ErrorCode.MESSAGE_ILLEGAL
        out_ms = _out_ms(exact_ms)
        properties = message.properties
        if b"TIMER_ROLL_TIMES\x01" in found:
            properties = without(properties, (b"TIMER_ROLL_TIMES\x01",))
        properties = with_origin(message, properties)
        properties += b"TIMER_OUT_MS\x01%d\x02" % out_ms
        code = self._redirect_to(message, properties, TIMER_TOPIC, 0, 1)
        if code is None:
            message.tag = recall_tag(out_ms) if recalls else timer_tag(out_ms, exact_ms, delay_ms)
            self.timers.expect()
        return code

    def _redirect_to(
        self, message: Message, properties: bytes, topic: str, queue_id: int, queues: int
    ) -> ErrorCode | None:
        broker = self._broker
        if topic not in broker.topics.topics:
            try:
                broker.ensure_topic(topic, True, queues)
            except GantryError as error:
                return error.code
        before = (message.topic, message.queue_id, message.properties)
        message.topic, message.queue_id, message.properties = topic, queue_id, properties
        code = broker.store.check(message)
        if code is not None:
            message.topic, message.queue_id, message.properties = before
            return code
        message.lmq = ()
        return None

    # Recall.

    def pending(self, topic: str, unique: str, at_ms: int) -> list[int] | None:
        """What the index says about a message to `recall`. Changes nothing. May raise `Cold`."""
        return self.timers.known(topic, unique, _out_ms(at_ms))

    def recall(
        self,
        known: list[int] | None,
        topic: str,
        unique: str,
        at_ms: int,
        group: str,
        born_host: bytes,
        on_done: Callable[[bool | ErrorCode], None],
    ) -> None:
        """Take back the message with this unique key, whose handle says `at_ms`. The answer: whether one was still pending, or why
        the order could not be stored. The order is a record (RocketMQ's own), so it holds across a crash, and for another broker on
        this directory. `known`: what `pending` found."""

        def go_on(found: list[int] | ErrorCode) -> None:
            if isinstance(found, ErrorCode) or not found:
                on_done(found if isinstance(found, ErrorCode) else False)
            else:
                self._order(found, topic, unique, at_ms, group, born_host, on_done)

        self.timers.targets(known, topic, unique, _out_ms(at_ms), go_on)

    def _order(
        self, found: list[int], topic: str, unique: str, at_ms: int, group: str, born_host: bytes,
        on_done: Callable[[bool | ErrorCode], None],
    ) -> None:  # fmt: skip
        """Store the order, then carry it out."""
        pairs = [
            ("TIMER_DEL_UNIQKEY", f"{topic}+{unique}"), (props.UNIQ_KEY, unique), ("TIMER_DELIVER_MS", str(at_ms)),
            (props.PRODUCER_GROUP, group), (props.TAGS, RECALL_TAG),
        ]  # fmt: skip
        order = Message(topic, b"0", props.encode(pairs), RECALL_TAG, (unique,), 0)
        order.born_host = born_host
        order.sys_flag = 0 if len(born_host) == 8 else 0x10
        order.kind = DELAYED

        def stored(_token: Any, results: Any) -> None:
            self.timers.orders.remove(order)
            if isinstance(results, GantryError):
                on_done(results.code)
            elif isinstance(results[0], ErrorCode):
                on_done(results[0])
            else:
                on_done(self.timers.recall(found, order.queue_offset))

        self.timers.orders.append(order)
        self._broker.submit([order], None, stored)
