"""One channel: its state, and the methods of classes channel, basic, confirm and access.

A handler takes the method's arguments. It answers at once, or returns `Steps`; then the channel takes nothing more until they are
done. Failures are AmqpError; the door sends them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.broker.port import CursorInfo, Outcome
from gantrymq.net.procedures.driver import Steps
from gantrymq_gateways.amqp.messages.consumers import Consumer, Ledger, Outlet, Queue
from gantrymq_gateways.amqp.messages.publish import PublishingChannel
from gantrymq_gateways.amqp.messages.streams import StreamConsumer, StreamQueue, check_terms, reading_of, unsupported
from gantrymq_gateways.amqp.messages.timeouts import Ages
from gantrymq_gateways.amqp.messages.tracing import about_of
from gantrymq_gateways.amqp.messages.transaction import Transaction
from gantrymq_gateways.amqp.origin import clean, local, prefix_of
from gantrymq_gateways.amqp.properties.mapping import body_of
from gantrymq_gateways.amqp.queues.arguments import consumer_priority
from gantrymq_gateways.amqp.rows import QueueDefinition
from gantrymq_gateways.amqp.wire.codec import content_frames, method_frame
from gantrymq_gateways.amqp.wire.constants import (
    CANCEL_CAPABILITY,
    DIRECT_REPLY_TO,
    METHODS,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    AmqpError,
    unknown_queue_error,
)
from gantrymq_gateways.amqp.wire.values import Table

if TYPE_CHECKING:
    from gantrymq_gateways.amqp.gateway import Gateway
    from gantrymq_gateways.amqp.wire.events import Event


Handler = Callable[..., Steps | None]

NO_EVENTS: Final = ()
"""Backlog of a channel where none waits: most are idle, and an empty queue takes 760 bytes."""


class Door(Outlet, Protocol):
    """The connection that a channel belongs to."""

    gateway: Gateway
    vhost: str

    def send(self, channel: int, name: str, *arguments: Any) -> None: ...

    def has_capability(self, name: str) -> bool: ...

    def own(self, queue: Queue) -> None: ...

    def shutdown(self) -> None: ...

    def close_for(self, reason: str) -> None: ...

    def check_timeouts(self, now_ms: int) -> None: ...

    def rights_changed(self) -> None: ...

    def settle(self, queue: Queue, offset: int, outcome: Outcome) -> None: ...

    def settle_now(self) -> None: ...

    def touch(self, queue: Queue) -> None: ...

    def touch_last(self, queue: Queue) -> None: ...


class Channel(PublishingChannel):
    """State of one open channel."""

    __slots__ = (
        "ages",
        "backlog",
        "busy",
        "cancels",
        "consumers",
        "door",
        "draining",
        "last_queue",
        "ledger",
        "prefetch",
        "prefix",
        "transaction",
    )

    def __init__(self, door: Door, number: int) -> None:
        super().__init__(number)
        self.door = door
        self.prefix = prefix_of(door.vhost)
        """What stands in front of the names of its vhost."""
        self.consumers: dict[str, Consumer] = {}
        self.ages = Ages()
        self.ledger = Ledger(door.gateway.config.unacked_max)
        self.prefetch = 0
        """For consumers to come (basic.qos without global); 0 without limit."""
        self.transaction: Transaction | None = None
        self.last_queue = ""
        """The queue last declared here: what an empty queue name means."""
        self.backlog: deque[Event] | tuple[()] = NO_EVENTS
        """Events that wait for an earlier one; a queue of its own has a channel only then."""
        self.cancels: list[str] = []
        """Consumers that the server cancelled while the channel was busy."""
        self.busy = False
        """Steps are on their way; events wait in the backlog."""
        self.draining = False
        """The backlog is being worked off further up the stack."""

    def wait(self, event: Event, first: bool = False) -> None:
        """Into the backlog; `first`: before all others."""
        backlog = self.backlog
        if isinstance(backlog, tuple):
            backlog = self.backlog = deque()
        if first:
            backlog.appendleft(event)
        else:
            backlog.append(event)

    def take(self) -> Event:
        """The first event of the backlog. Raises IndexError."""
        backlog = self.backlog
        if isinstance(backlog, tuple):
            raise IndexError("no event waits")
        event = backlog.popleft()
        if not backlog:
            self.backlog = NO_EVENTS
        return event

    def reply(self, name: str, *arguments: Any) -> None:
        """A method to the peer, unless the channel is gone."""
        if not self.dead:
            self.door.send(self.number, name, *arguments)

    def queue_name(self, name: str) -> str:
        """The full name; an empty one is the queue last declared."""
        if name:
            return self.prefix + name
        if not self.last_queue:
            raise AmqpError(NOT_FOUND, "no previously declared queue")
        return self.last_queue

    def release(self) -> None:
        """The channel ends: no more deliveries, what is not answered goes back to its place."""
        self.dead = True
        consumers = list(self.consumers.values())
        self.consumers.clear()
        for consumer in consumers:
            consumer.queue.remove(consumer)
        self.settle(self.ledger.take_all(), Outcome.REQUEUE)
        if consumers:
            self.door.settle_now()  # before another has its turn
        for consumer in consumers:
            self.door.gateway.consumer_left(consumer)

    def answered(self, answers: list[tuple[int, Outcome]]) -> None:
        """What a committed transaction has answered, by tag. Acknowledgements are in the log already, and count for nothing any more."""
        for tag, outcome in answers:
            entries = self.ledger.take(tag, False)
            if entries:
                self.settle(entries, outcome)

    def settle(self, entries: list[tuple[Queue, int, Consumer | None]], outcome: Outcome) -> None:
        """What became of deliveries that were taken from the ledger."""
        add = self.door.settle
        for queue, offset, consumer in entries:
            add(queue, offset, outcome)
            if consumer is not None:
                consumer.answered()
        ledger = self.ledger
        if ledger.prefetch_shared or len(ledger.open) + len(entries) >= ledger.credit_max:
            self._share_credit([consumer for _, _, consumer in entries if consumer is not None])

    def _share_credit(self, served: list[Consumer]) -> None:
        """Who was served goes behind the others: what a channel's limit frees would else go to the same queue for ever."""
        for consumer in dict.fromkeys(served):
            if self.consumers.pop(consumer.tag, None) is not None:
                self.consumers[consumer.tag] = consumer
        for consumer in self.consumers.values():
            self.door.touch_last(consumer.queue)

    def cancelled(self, consumer: Consumer) -> None:
        """The queue of a consumer was deleted (RabbitMQ's consumer_cancel_notify). If this channel did it, its own answer goes first."""
        if self.consumers.pop(consumer.tag, None) is not None and self.door.has_capability(CANCEL_CAPABILITY):
            self.cancels.append(consumer.tag)
            if not self.busy:
                self.send_cancels()

    def send_cancels(self) -> None:
        """Tell the peer which consumers are gone."""
        tags, self.cancels = self.cancels, []
        for tag in tags:
            self.reply("basic.cancel", tag, True)


NAMES: Final[dict[str, tuple[int, ...]]] = {
    "exchange.declare": (1,), "exchange.delete": (1,), "exchange.bind": (1, 2), "exchange.unbind": (1, 2),
    "queue.declare": (1,), "queue.bind": (1, 2), "queue.unbind": (1, 2), "queue.purge": (1,), "queue.delete": (1,),
    "basic.consume": (1,), "basic.get": (1,),
}  # fmt: skip
"""Which arguments of a method are names of queues and exchanges. basic.publish has its own way (`Targets`)."""


def clean_names(method: str, arguments: list[Any]) -> None:
    """Take the line ends out of names, before anybody asks for rights or looks for what has the name: both must see the same."""
    for at in NAMES.get(method, ()):
        arguments[at] = clean(arguments[at])


# channel.


def channel_flow(channel: Channel, active: bool) -> None:
    if not active:
        raise AmqpError(NOT_IMPLEMENTED, "active=false", connection=True)
    channel.reply("channel.flow-ok", True)


def channel_flow_ok(channel: Channel, active: bool) -> None:
    """Never asked for, so it means nothing."""


# access, confirm.


def access_request(channel: Channel, *_arguments: Any) -> None:
    channel.reply("access.request-ok", 1)


def confirm_select(channel: Channel, nowait: bool) -> None:
    if channel.transaction is not None:
        raise AmqpError(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    if not channel.confirming:
        channel.confirming = True
        channel.published = channel.confirmed = 0
    if not nowait:
        channel.reply("confirm.select-ok")


# basic: consuming.


def basic_qos(channel: Channel, size: int, count: int, shared: bool) -> None:
    if size:
        raise AmqpError(NOT_IMPLEMENTED, f"prefetch_size!=0 ({size})", connection=True)
    if shared:
        channel.ledger.prefetch_shared = count
        for consumer in channel.consumers.values():
            channel.door.touch(consumer.queue)
    else:
        channel.prefetch = count
    channel.reply("basic.qos-ok")


def basic_consume(
    channel: Channel,
    _ticket: int,
    queue: str,
    tag: str,
    _no_local: bool,
    no_ack: bool,
    exclusive: bool,
    nowait: bool,
    arguments: Table,
) -> Steps:
    name = channel.queue_name(queue)
    if tag in channel.consumers:
        raise AmqpError(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'", connection=True)
    priority = consumer_priority(name, arguments)
    door = channel.door
    found: Queue
    replies = local(name) == DIRECT_REPLY_TO
    if replies:
        found = yield from _open_replies(channel, no_ack)
    else:
        found = yield from door.gateway.open_queue(name, door)
    if channel.dead:
        if replies:
            door.gateway.drop_queue(found)
        return
    if len(channel.consumers) >= door.gateway.config.consumers_max:
        text = f"a channel has at most {door.gateway.config.consumers_max} consumers"
        raise AmqpError(RESOURCE_ERROR, text, connection=True)
    tag = tag or "amq.ctag-" + door.gateway.token()
    terms = (no_ack, exclusive, channel.prefetch, channel.cancelled, priority)
    kind = StreamConsumer if isinstance(found, StreamQueue) else Consumer
    consumer = kind(found, door, channel.ledger, channel.number, tag, *terms)
    if isinstance(found, StreamQueue) and isinstance(consumer, StreamConsumer):
        check_terms(name, channel.prefetch, no_ack, channel.ledger.prefetch_shared)
        yield from found.begin(consumer, reading_of(name, arguments, door.gateway.clock.now_ms()))
    yield from found.seat(consumer)
    if not _is_wanted(channel, found):
        door.gateway.consumer_left(consumer)
        return
    channel.consumers[tag] = consumer
    if not nowait:
        channel.reply("basic.consume-ok", tag)
    found.add(consumer)
    if not no_ack:
        door.gateway.timeouts.need(found.timeout_ms)
    found.pump()


def _is_wanted(channel: Channel, queue: Queue) -> bool:
    """Asked again after each answer. Raises AmqpError where the queue was deleted meanwhile."""
    if queue.deleted and not channel.dead:
        raise unknown_queue_error(queue.name)
    return not channel.dead


def _open_replies(channel: Channel, no_ack: bool) -> Steps:
    """RabbitMQ's direct reply-to: here a queue of its own, which goes with its consumer. Who knows its name, 128 random bits, may answer."""
    if not no_ack:
        raise AmqpError(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.reply_queue:
        raise AmqpError(PRECONDITION_FAILED, "reply consumer already set")
    gateway = channel.door.gateway
    name = f"{channel.prefix}{DIRECT_REPLY_TO}.{gateway.token()}"
    lock = gateway.definitions.lock
    yield lock.take("definitions")
    try:
        found = yield from gateway.create_queue(QueueDefinition(name, 0, False, True, True, b""), channel.door)
    finally:
        lock.free("definitions")
    channel.reply_queue = name
    return found


def basic_cancel(channel: Channel, tag: str, nowait: bool) -> None:
    consumer = channel.consumers.pop(tag, None)
    if not nowait:
        channel.reply("basic.cancel-ok", tag)
    if consumer is not None:
        if consumer.queue.name == channel.reply_queue:
            channel.reply_queue = ""
        consumer.queue.remove(consumer)
        channel.door.gateway.consumer_left(consumer)


def basic_cancel_ok(channel: Channel, _tag: str) -> None:
    """Some clients answer our basic.cancel."""


def basic_get(channel: Channel, _ticket: int, queue: str, no_ack: bool) -> Steps:
    name = channel.queue_name(queue)
    door = channel.door
    found: Queue = yield from door.gateway.open_queue(name, door)
    if found.is_stream:
        raise unsupported("basic.get", name)
    taken = yield from found.get()
    if taken is None and (yield partial(door.gateway.port.catch_up, found.cursor)):
        taken = yield from found.get()
    if taken is None:
        channel.reply("basic.get-empty", "")
        return
    delivery, rendered = taken
    counts: list[CursorInfo | None] = yield partial(door.gateway.port.stats, [found.cursor])
    info = counts[0]
    if channel.dead:
        door.gateway.port.settle([(found.cursor, delivery.offset, Outcome.RELEASE)])
        return
    if no_ack:
        tag = channel.ledger.next_tag
        channel.ledger.next_tag = tag + 1
        door.settle_when_written(found.cursor, delivery.offset)
    else:
        tag = channel.ledger.add(found, delivery.offset, None)
        door.gateway.timeouts.need(found.timeout_ms)
    method = METHODS["basic.get-ok"]
    head = method_frame(channel.number, method, (tag, delivery.count > 1, "", "", info.ready if info else 0))
    # The arguments end with exchange, key (both still empty) and the count: put the rendered names in.
    payload = head[7:-7] + rendered.tail + head[-5:-1]
    frame = b"\x01" + channel.number.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + head[-1:]
    body = body_of(delivery.message)
    door.send_frames(frame + content_frames(channel.number, rendered.properties, body, door.frame_max))
    if found.tracer is not None:
        about = about_of(channel.number, door.who())
        found.tracer.delivered(found.name, rendered.tail, rendered.properties, body, delivery.count > 1, about)


# basic: answers.


def basic_ack(channel: Channel, tag: int, multiple: bool) -> None:
    ledger = channel.ledger
    shared = ledger.prefetch_shared or len(ledger.open) >= ledger.credit_max
    if not multiple and not shared and channel.transaction is None:
        entry = ledger.open.pop(tag, None)
        if entry is not None:
            queue, offset, consumer = entry
            if consumer is not None:
                ledger.consumed -= 1
                consumer.answered()
            channel.door.settle(queue, offset, Outcome.ACK)
            return
    _answer(channel, tag, multiple, Outcome.ACK)


def basic_reject(channel: Channel, tag: int, requeue: bool) -> None:
    _answer(channel, tag, False, Outcome.REQUEUE if requeue else Outcome.DROP)


def basic_nack(channel: Channel, tag: int, multiple: bool, requeue: bool) -> None:
    _answer(channel, tag, multiple, Outcome.REQUEUE if requeue else Outcome.DROP)


def _answer(channel: Channel, tag: int, multiple: bool, outcome: Outcome) -> None:
    if channel.transaction is not None:
        channel.transaction.answer(channel.ledger.open, tag, multiple, outcome)
        return
    entries = channel.ledger.take(tag, multiple)
    if entries is None:
        raise AmqpError(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
    channel.settle(entries, outcome)


def basic_recover(channel: Channel, requeue: bool) -> None:
    basic_recover_async(channel, requeue)
    channel.reply("basic.recover-ok")


def basic_recover_async(channel: Channel, requeue: bool) -> None:
    if not requeue:
        raise AmqpError(NOT_IMPLEMENTED, "requeue=false", connection=True)
    channel.settle(channel.ledger.take_all(), Outcome.REQUEUE)


HANDLERS: Final[dict[str, Handler]] = {
    "channel.flow": channel_flow,
    "channel.flow-ok": channel_flow_ok,
    "access.request": access_request,
    "confirm.select": confirm_select,
    "basic.qos": basic_qos,
    "basic.consume": basic_consume,
    "basic.cancel": basic_cancel,
    "basic.cancel-ok": basic_cancel_ok,
    "basic.get": basic_get,
    "basic.ack": basic_ack,
    "basic.reject": basic_reject,
    "basic.nack": basic_nack,
    "basic.recover": basic_recover,
    "basic.recover-async": basic_recover_async,
}

UNORDERED: Final = frozenset(
    {"basic.ack", "basic.nack", "basic.reject", "basic.qos", "channel.flow", "channel.flow-ok"}
)
"""Methods that need not wait until what was published before on the channel is stored."""
