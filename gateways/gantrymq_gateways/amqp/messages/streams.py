"""Stream queues: every consumer reads from a place of its own, and what it reads stays.

Acknowledgements give credit and nothing else. What a consumer reads comes from the log; of a stream nothing is kept here but each consumer's
place. `x-stream-offset` says where it begins, and stands in the headers of each delivery.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.port import EARLIEST, END, Scanned, Start
from gantrymq.model import properties as props
from gantrymq.model.errors import GantryError
from gantrymq.net.procedures.driver import Steps
from gantrymq_gateways.amqp.messages.consumers import ACQUIRE_BYTES_MAX, ACQUIRE_COUNT_MAX, Consumer, Queue
from gantrymq_gateways.amqp.properties.writing import Rendered
from gantrymq_gateways.amqp.queues.arguments import INTEGERS, interval_ms
from gantrymq_gateways.amqp.wire.constants import NOT_IMPLEMENTED, PRECONDITION_FAILED, AmqpError
from gantrymq_gateways.amqp.wire.content import decode_properties, encode_properties
from gantrymq_gateways.amqp.wire.values import ERLANG_TYPES, Field, Table, lookup, text_of

if TYPE_CHECKING:
    from gantrymq.model.message import Message

log = logging.getLogger(__name__)

OFFSET: Final = "x-stream-offset"
FILTER: Final = "x-stream-filter"
UNFILTERED: Final = "x-stream-match-unfiltered"
FILTER_VALUE: Final = "x-stream-filter-value"
"""A header of messages: what consumers with a filter are compared with."""
READS_AT_ONCE: Final = 4
"""Of one consumer, until others have had their turn: a filter may pass over a million messages."""

_HEADERS: Final = 0x2000
_BEFORE: Final = (0x8000, 0x4000)
"""Flags of a property list: the table, and the two texts before it."""
_NAME: Final = bytes((len(OFFSET),)) + OFFSET.encode()
_PAIR: Final = struct.Struct(f">{len(_NAME)}scq")
_NATIVE_VALUE: Final = props.foreign_name(FILTER_VALUE)


class Filter:
    """What a consumer takes: messages with one of these values, and those without any if it says so."""

    __slots__ = ("unfiltered", "values")

    def __init__(self, values: frozenset[str], unfiltered: bool) -> None:
        self.values = values
        self.unfiltered = unfiltered

    def takes(self, message: Message) -> bool:
        """Whether it is delivered."""
        value = props.find(message.properties, _NATIVE_VALUE)
        return value in self.values if value else self.unfiltered


class Reading:
    """How somebody wants to read: from `start`, or from offset `number` (-1: the last one)."""

    __slots__ = ("filter", "number", "start")

    def __init__(self, start: Start | None, number: int, wanted: Filter | None) -> None:
        self.start = start
        self.number = number
        self.filter = wanted


def reading_of(queue: str, arguments: Table, now_ms: int) -> Reading:
    """What the arguments of basic.consume say. Raises AmqpError."""
    start, number = _start_of(queue, lookup(arguments, OFFSET), now_ms)
    return Reading(start, number, _filter_of(arguments))


def _start_of(queue: str, field: Field | None, now_ms: int) -> tuple[Start | None, int]:
    if field is None:
        return END, 0
    if field.kind in INTEGERS:
        return None, max(int(field.value), 0)
    if field.kind == "T":
        return Start("time", int(field.value) * 1000), 0
    if field.kind == "S":
        text = text_of(field)
        if text == "last":
            return None, -1
        if text in ("first", "next"):
            return (EARLIEST if text == "first" else END), 0
        age_ms = interval_ms(text)
        if age_ms is not None:
            return Start("time", max(now_ms - age_ms, 0)), 0
    shown = f'{{{ERLANG_TYPES[field.kind]},<<"{text_of(field)}">>}}'
    text = f"invalid arg '{OFFSET}' for queue '{queue}' in vhost '/': {{invalid_stream_offset_arg,{shown}}}"
    raise AmqpError(PRECONDITION_FAILED, text)


def _filter_of(arguments: Table) -> Filter | None:
    field = lookup(arguments, FILTER)
    if field is None or field.kind not in "SA":
        return None
    items = field.value if field.kind == "A" else [field]
    unfiltered = lookup(arguments, UNFILTERED)
    values = frozenset([text_of(item) for item in items if item.kind == "S"])
    return Filter(values, unfiltered is not None and unfiltered.value is True)


def check_terms(queue: str, prefetch: int, no_ack: bool, shared: int) -> None:
    """What basic.consume of a stream needs. Raises AmqpError with RabbitMQ's words."""
    if not prefetch:
        text = f"consumer prefetch count is not set for stream queue '{queue}' in vhost '/'"
        raise AmqpError(PRECONDITION_FAILED, text)
    if no_ack:
        text = f"automatic acknowledgement not supported by stream queue '{queue}' in vhost '/'"
        raise AmqpError(NOT_IMPLEMENTED, text, connection=True)
    if shared:
        text = f"queue '{queue}' in vhost '/' does not support global qos"
        raise AmqpError(NOT_IMPLEMENTED, text, connection=True)


def unsupported(method: str, queue: str) -> AmqpError:
    """What takes messages from a queue, or takes them away."""
    text = f"{method} not supported by stream queues queue '{queue}' in vhost '/'"
    return AmqpError(NOT_IMPLEMENTED, text, connection=True)


def with_offset(properties: bytes, offset: int) -> bytes:
    """A property list with the offset as the last header, in place of one that the publisher gave."""
    if _NAME in properties:  # as somebody's header, or by chance
        listed = decode_properties(properties)
        pairs = [pair for pair in listed.headers or [] if pair[0] != OFFSET]
        listed.headers = [*pairs, (OFFSET, Field("l", offset))]
        return encode_properties(listed)
    flags = properties[0] << 8 | properties[1]
    at = 2
    for flag in _BEFORE:
        if flags & flag:
            at += 1 + properties[at]
    pair = _PAIR.pack(_NAME, b"l", offset)
    if not flags & _HEADERS:
        head = (flags | _HEADERS).to_bytes(2, "big") + properties[2:at]
        return head + len(pair).to_bytes(4, "big") + pair + properties[at:]
    size = int.from_bytes(properties[at : at + 4], "big")
    end = at + 4 + size
    return properties[:at] + (size + len(pair)).to_bytes(4, "big") + properties[at + 4 : end] + pair + properties[end:]


class StreamConsumer(Consumer):
    """One basic.consume of a stream."""

    __slots__ = ("at_end", "filter", "position", "reading", "running")

    position: int
    """Offset of what it reads next."""
    filter: Filter | None
    reading: bool
    """A scan is under way."""
    running: bool
    """Its messages are being handed out further up the stack, or go on in a later turn."""
    at_end: bool
    """It waits for what comes."""


class StreamQueue(Queue):
    """A stream of this process. `later`: call in a later turn."""

    is_stream = True

    def __init__(self, later: Callable[[Callable[[], None]], None], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._later = later
        self._seen: tuple[int, Scanned] | None = None
        """The queue's end from that offset on, as one consumer has just read it, for the others."""

    def begin(self, consumer: StreamConsumer, wanted: Reading) -> Steps:
        """Find where it begins."""
        port = self._port
        consumer.filter = wanted.filter
        consumer.reading = consumer.running = consumer.at_end = False
        if wanted.start is not None:
            consumer.position = yield partial(port.seek, self.cursor, wanted.start)
            return
        end = yield partial(port.seek, self.cursor, END)
        consumer.position = max(end - 1, 0) if wanted.number < 0 else min(wanted.number, end)

    def add(self, consumer: Consumer) -> None:
        """See Queue."""
        self.consumers.append(consumer)
        if not self._watching:
            self._watching = True
            self._port.watch(self.cursor, self._on_ready)

    def remove(self, consumer: Consumer) -> None:
        """See Queue."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
        if not self.consumers and self._watching:
            self._watching = False
            self._port.watch(self.cursor, None)

    def _on_ready(self, _cursor: int) -> None:
        for consumer in self.consumers:
            if isinstance(consumer, StreamConsumer):
                consumer.at_end = False
        self.pump()

    def pump(self) -> None:
        """Every consumer reads on, as far as it has credit."""
        for consumer in list(self.consumers):
            if isinstance(consumer, StreamConsumer) and not consumer.running:
                self._read_on(consumer)
        self._seen = None

    def _read_on(self, consumer: StreamConsumer) -> None:
        consumer.running = True
        for _ in range(READS_AT_ONCE):
            if consumer.reading or consumer.at_end or consumer not in self.consumers:
                break
            credit = consumer.credit()
            if credit <= 0:
                break
            consumer.reading = True
            if not self._seen_before(consumer):
                count = ACQUIRE_COUNT_MAX if consumer.filter is not None else min(credit, ACQUIRE_COUNT_MAX)
                place = self.cursor, consumer.position
                self._port.scan(*place, count, ACQUIRE_BYTES_MAX, consumer, self._scanned)
        else:
            self._later(partial(self._go_on, consumer))
            return
        consumer.running = False

    def _go_on(self, consumer: StreamConsumer) -> None:
        self._read_on(consumer)
        self._seen = None

    def _seen_before(self, consumer: StreamConsumer) -> bool:
        """Another consumer of this turn has read what this one wants: the queue's end."""
        if self._seen is None:
            return False
        first, seen = self._seen
        if not first <= consumer.position < seen.following:
            return False
        self._take(consumer, Scanned(seen.deliveries[:], seen.following, True))
        return True

    def _scanned(self, asked: StreamConsumer, result: Scanned | GantryError) -> None:
        if isinstance(result, GantryError):
            asked.reading = False
            asked.at_end = True  # the watcher calls when it may be read again
            if not self.deleted:
                log.warning("amqp: stream %r cannot be read: %s", self.name, result.text)
            return
        if result.at_end and result.deliveries:
            self._seen = (asked.position, result)
        self._take(asked, result)
        if not asked.running:  # the answer came later (another process, a cold disk)
            self._go_on(asked)

    def _take(self, consumer: StreamConsumer, found: Scanned) -> None:
        """Deliver as many as there is credit for."""
        consumer.reading = False
        wanted, room = consumer.filter, consumer.credit()
        for delivery in found.deliveries:
            if delivery.offset < consumer.position or (wanted is not None and not wanted.takes(delivery.message)):
                continue
            if room <= 0:
                consumer.position = delivery.offset
                return
            room -= 1
            rendered = self._renderer.render(delivery.message)
            listed = with_offset(rendered.properties, delivery.offset)
            consumer.deliver(delivery, Rendered(rendered.tail, listed, 0))
        consumer.position = max(found.following, consumer.position)
        consumer.at_end = found.at_end
