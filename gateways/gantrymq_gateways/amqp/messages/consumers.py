"""Queues at work: consumers with their credit, round-robin delivery, what is not acknowledged yet.

A queue acquires entries of its cursor up to the credit that its consumers have together, and hands them out one by one in turn;
what nobody can take any more goes back as if never acquired. Everything is a plain call; nothing waits.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from gantrymq.broker.port import BrokerPort, Delivery, Outcome, Terms
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.held.outbound import LARGE_BYTES, Piece
from gantrymq.net.procedures.driver import Steps
from gantrymq_gateways.amqp.messages.tracing import Tracer, about_of
from gantrymq_gateways.amqp.properties.mapping import body_of
from gantrymq_gateways.amqp.properties.writing import Rendered, Renderer
from gantrymq_gateways.amqp.queues.arguments import is_quorum, is_single, parse
from gantrymq_gateways.amqp.wire.codec import deliver_frames, deliver_prefix, large_deliver_frames
from gantrymq_gateways.amqp.wire.constants import ACCESS_REFUSED, AmqpError
from gantrymq_gateways.amqp.wire.content import decode_properties, encode_properties
from gantrymq_gateways.amqp.wire.values import Field

if TYPE_CHECKING:
    from gantrymq_gateways.amqp.rows import QueueDefinition

log = logging.getLogger(__name__)

ACQUIRE_COUNT_MAX: Final = 256
"""Entries per acquire: enough to spread its cost, little enough to give back when a consumer goes."""
ACQUIRE_BYTES_MAX: Final = 512 * 1024
"""Bytes per acquire: what one slow consumer may hold besides its own limit."""


class Outlet(Protocol):
    """A connection as deliveries see it."""

    frame_max: int

    def send_frames(self, frames: bytes) -> None:
        """Into the outbox."""

    def send_pieces(self, pieces: list[Piece]) -> None:
        """The same, without a copy."""

    def congested(self) -> bool:
        """So much waits for a slow reader that nothing more is fetched; `stalled` queues are pumped again later."""

    def settle_when_written(self, cursor: int, offset: int) -> None:
        """Acknowledge as soon as the outbox is taken."""

    def stalled(self, queue: Queue) -> None:
        """Pump this queue when there is room again."""

    def who(self) -> tuple[str, str]:
        """Connection and user, for traces."""


class Ledger:
    """Deliveries of one channel that wait for an answer, by delivery tag."""

    __slots__ = ("consumed", "credit_max", "next_tag", "open", "prefetch_shared")

    def __init__(self, credit_max: int) -> None:
        self.open: dict[int, tuple[Queue, int, Consumer | None]] = {}
        self.consumed = 0
        """Those of consumers: prefetch is about them, not about what basic.get fetched (rabbit_channel: record_sent)."""
        self.next_tag = 1
        self.prefetch_shared = 0
        """basic.qos with global set: all consumers of the channel together; 0 without limit."""
        self.credit_max = credit_max

    def add(self, queue: Queue, offset: int, consumer: Consumer | None) -> int:
        """Note a delivery; returns its tag."""
        tag = self.next_tag
        self.next_tag = tag + 1
        self.open[tag] = (queue, offset, consumer)
        if consumer is not None:
            self.consumed += 1
        return tag

    def full(self) -> bool:
        """Whether the limit that the consumers of the channel share is reached."""
        return 0 < self.prefetch_shared <= self.consumed

    def credit(self) -> int:
        """How many more deliveries may wait for an answer."""
        credit = self.credit_max - len(self.open)
        if self.prefetch_shared and self.prefetch_shared - self.consumed < credit:
            credit = self.prefetch_shared - self.consumed
        return credit

    def take(self, tag: int, multiple: bool) -> list[tuple[Queue, int, Consumer | None]] | None:
        """Remove what an answer is about, oldest first; None for an unknown tag. Tag 0 with `multiple`: everything."""
        if not multiple:
            entry = self.open.pop(tag, None)
            if entry is None:
                return None
            if entry[2] is not None:
                self.consumed -= 1
            return [entry]
        if tag == 0:
            return self.take_all()
        if tag not in self.open:
            return None
        tags = []
        for open_tag in self.open:  # in rising order: tags are given so
            if open_tag > tag:
                break
            tags.append(open_tag)
        found = [self.open.pop(open_tag) for open_tag in tags]
        self.consumed -= sum([entry[2] is not None for entry in found])
        return found

    def take_all(self) -> list[tuple[Queue, int, Consumer | None]]:
        """Everything, oldest first."""
        found = list(self.open.values())
        self.open.clear()
        self.consumed = 0
        return found


class Consumer:
    """One basic.consume."""

    __slots__ = (
        "active",
        "channel",
        "exclusive",
        "ledger",
        "no_ack",
        "on_cancel",
        "outlet",
        "parked",
        "prefetch",
        "prefix",
        "priority",
        "queue",
        "seat",
        "tag",
        "tier",
        "unacked",
    )

    def __init__(
        self,
        queue: Queue,
        outlet: Outlet,
        ledger: Ledger,
        channel: int,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
        on_cancel: Callable[[Consumer], None],
        priority: int = 0,
    ) -> None:
        self.queue = queue
        self.outlet = outlet
        self.ledger = ledger
        self.channel = channel
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = prefetch
        self.on_cancel = on_cancel
        """The queue is gone."""
        self.priority = priority
        self.seat = 0
        """What the broker knows it as."""
        self.active = True
        """Served; false while it waits for its turn."""
        self.unacked = 0
        self.tier: Tier | None = None
        """Where it takes turns while it is served."""
        self.parked = False
        """It has all that its prefetch allows, and takes no turn before it answers one."""
        self.prefix = deliver_prefix(tag)

    def credit(self) -> int:
        """How many messages it takes now."""
        if self.outlet.congested():
            self.outlet.stalled(self.queue)
            return 0
        if self.no_ack:
            # A limit of the channel stops these too, though they do not count towards it (rabbit_limiter: can_send).
            return 0 if self.ledger.full() else ACQUIRE_COUNT_MAX
        credit = self.ledger.credit()
        if self.prefetch and self.prefetch - self.unacked < credit:
            credit = self.prefetch - self.unacked
        return credit

    def full(self) -> bool:
        """Whether it has all that its own prefetch allows."""
        return 0 < self.prefetch <= self.unacked

    def answered(self) -> None:
        """One of its deliveries waits no more."""
        self.unacked -= 1
        if self.parked:
            self.parked = False
            if self.tier is not None:
                self.tier.turn[self] = None

    def deliver(self, delivery: Delivery, rendered: Rendered) -> None:
        """Write basic.deliver."""
        queue = self.queue
        if self.no_ack:
            tag = self.ledger.next_tag
            self.ledger.next_tag = tag + 1
            self.outlet.settle_when_written(queue.cursor, delivery.offset)
        else:
            tag = self.ledger.add(queue, delivery.offset, self)
            self.unacked += 1
        message = delivery.message
        body = body_of(message) if message.sys_flag else message.body
        outlet = self.outlet
        redelivered, frame_max = delivery.count > 1, outlet.frame_max
        head = self.channel, self.prefix, tag, redelivered, rendered.tail, rendered.properties
        if len(body) < LARGE_BYTES:
            outlet.send_frames(deliver_frames(*head, body, frame_max))
        else:
            outlet.send_pieces(large_deliver_frames(*head, body, frame_max))
        if queue.tracer is not None:
            about = about_of(self.channel, outlet.who())
            queue.tracer.delivered(queue.name, rendered.tail, rendered.properties, body, redelivered, about)


class Tier:
    """Consumers of one priority, served in turn. Those that are full stand aside: what an answer costs does not depend on how many they are."""

    __slots__ = ("count", "priority", "turn")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.count = 0
        """Those that stand aside, too."""
        self.turn: OrderedDict[Consumer, None] = OrderedDict()
        """The next one first."""

    def add(self, consumer: Consumer) -> None:
        """It takes its turn behind the others."""
        consumer.tier = self
        self.count += 1
        self.turn[consumer] = None

    def remove(self, consumer: Consumer) -> None:
        """It takes no more turns."""
        consumer.tier = None
        consumer.parked = False
        self.count -= 1
        self.turn.pop(consumer, None)

    def wanted(self) -> int:
        """How many messages they take together."""
        wanted = 0
        full = []
        for consumer in self.turn:
            if consumer.full():
                full.append(consumer)
                continue
            wanted += max(consumer.credit(), 0)
            if wanted >= ACQUIRE_COUNT_MAX:
                wanted = ACQUIRE_COUNT_MAX
                break
        for consumer in full:
            self._park(consumer)
        return wanted

    def following(self) -> Consumer | None:
        """The next that takes one."""
        turn = self.turn
        for _ in range(len(turn)):
            consumer = next(iter(turn))
            if consumer.full():
                self._park(consumer)
                continue
            turn.move_to_end(consumer)
            if consumer.credit() > 0:
                return consumer
        return None

    def _park(self, consumer: Consumer) -> None:
        consumer.parked = True
        del self.turn[consumer]


def counted(rendered: Rendered, deliveries: int) -> Rendered:
    """The same with header `x-delivery-count`."""
    properties = decode_properties(rendered.properties)
    headers = [pair for pair in properties.headers or [] if pair[0] != "x-delivery-count"]
    properties.headers = [*headers, ("x-delivery-count", Field("l", deliveries))]
    return Rendered(rendered.tail, encode_properties(properties), rendered.expires_at_ms)


class Queue:
    """A queue of this process. `holder`: who leases its entries at the broker. `owner`: the connection of an exclusive queue."""

    is_stream = False
    """What consumers read stays (streams.py): answers are nothing to the broker."""
    tracer: Tracer | None = None
    """Of its vhost, while that is traced."""

    def __init__(
        self,
        port: BrokerPort,
        renderer: Renderer,
        now_ms: Callable[[], int],
        definition: QueueDefinition,
        cursor: int,
        holder: int,
    ) -> None:
        self._port = port
        self._renderer = renderer
        self._now_ms = now_ms
        self.definition = definition
        self.name = definition.name
        self.managed = False
        """The broker keeps a policy of it, and sees to what expires."""
        arguments = parse(definition.arguments)
        self._single = is_single(arguments)
        self._counts = is_quorum(arguments)
        """Consumers are told how often a message came before."""
        self.cursor = cursor
        self.holder = holder
        self.timeout_ms = 0
        """How long a delivery may wait for its answer; 0: for ever."""
        self.owner: object = None
        self.deleted = False
        self.consumers: list[Consumer] = []
        self._tiers: list[Tier] = []
        """Those that are served, by falling priority."""
        self._rank = 0
        """The priority that the broker was told."""
        self._ready = False
        self._hungry = False
        """Since the queue was last found empty its consumers had credit: what is acquired now came to open hands."""
        self._acquiring = False
        self._pumping = False
        self._woken = False
        self._watching = False

    def seat(self, consumer: Consumer) -> Steps:
        """Register a consumer at the broker, which knows those of every gateway. Raises AmqpError where it or another is exclusive."""
        terms = Terms(consumer.exclusive, self._single, consumer.priority)
        try:
            call = partial(self._port.take_seat, self.cursor, terms, partial(self._turned, consumer))
            consumer.seat, consumer.active = yield call
        except GantryError as error:
            if error.code is ErrorCode.LEASE_HELD:
                raise AmqpError(ACCESS_REFUSED, f"queue '{self.name}' in vhost '/' in exclusive use") from None
            raise

    def _turned(self, consumer: Consumer, _seat: int, active: bool | None) -> None:
        if active is None:
            self.remove(consumer)
            consumer.on_cancel(consumer)
            return
        if consumer.active == active:
            return
        consumer.active = active
        if consumer not in self.consumers:
            return
        if active:
            self._serve(consumer)
            self.pump()
        else:
            self._pass_over(consumer)

    def add(self, consumer: Consumer) -> None:
        """A consumer came; `pump` follows when its consume-ok is in the outbox."""
        self.consumers.append(consumer)
        if consumer.active:
            self._serve(consumer)

    def _serve(self, consumer: Consumer) -> None:
        tier = next((tier for tier in self._tiers if tier.priority == consumer.priority), None)
        if tier is None:
            tier = Tier(consumer.priority)
            self._tiers.append(tier)
            self._tiers.sort(key=lambda tier: -tier.priority)
        tier.add(consumer)
        self._ready = True  # look, and know whether it waits for what comes
        if not self._watching:
            self._watching = True
            self._port.watch(self.cursor, self._on_ready)

    def remove(self, consumer: Consumer) -> None:
        """It takes nothing more; what it has not answered stays with its channel."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            self._pass_over(consumer)

    def _pass_over(self, consumer: Consumer) -> None:
        tier = consumer.tier
        if tier is not None:
            tier.remove(consumer)
            if not tier.count:
                self._tiers.remove(tier)
        if not self._tiers and self._watching:
            self._watching = self._ready = self._hungry = False
            self._port.watch(self.cursor, None)

    def gone(self) -> list[Consumer]:
        """The queue was deleted: its consumers are cancelled; returns them."""
        self.deleted = True
        consumers, self.consumers = self.consumers, []
        self._tiers = []
        for consumer in consumers:
            consumer.tier = None
            consumer.on_cancel(consumer)
        return consumers

    def _on_ready(self, _cursor: int) -> None:
        self._ready = True
        self._woken = True
        self.pump()

    def pump(self) -> None:
        """Deliver what is ready to whoever has credit, the highest priority first."""
        self._pumping = True
        if not self._ready and len(self._tiers) > 1:
            self._hungriest()  # the broker is told who has credit again
        while self._ready and not self._acquiring and self._tiers:
            wanted = self._hungriest()
            if not wanted:
                self._hungry = False
                break
            self._acquiring = True
            self._woken = False
            self._port.acquire(self.cursor, self.holder, wanted, ACQUIRE_BYTES_MAX, wanted, self._acquired)
        self._pumping = False

    def _hungriest(self) -> int:
        """How many messages the highest priority takes that takes any."""
        for tier in self._tiers:
            wanted = tier.wanted()
            if wanted:
                if tier.priority != self._rank:
                    self._rank = tier.priority
                    self._port.rank(self.cursor, tier.priority)
                return wanted
        return 0

    def _acquired(self, wanted: int, result: list[Delivery] | GantryError) -> None:
        self._acquiring = False
        if isinstance(result, GantryError):
            self._ready = False
            if not self.deleted:
                log.warning("amqp: queue %r cannot be read: %s", self.name, result.text)
            return
        self._share_out(wanted, result)
        if not self._pumping:  # the answer came later (another process, a cold disk): nobody else goes on
            self.pump()

    def _share_out(self, wanted: int, result: list[Delivery]) -> None:
        if not result and not self._woken:
            # The watcher calls again: it is armed by an acquire that came back short.
            self._ready = False
            self._hungry = bool(self._tiers)
            return
        hungry = self._hungry
        live = [(delivery, rendered) for delivery in result if (rendered := self._alive(delivery, hungry)) is not None]
        tiers = self._tiers
        if len(tiers) == 1 and tiers[0].count == len(tiers[0].turn) == 1:
            consumer = next(iter(tiers[0].turn))
            room = consumer.credit()
            for delivery, rendered in live[: max(room, 0)]:
                consumer.deliver(delivery, rendered)
            left = live[max(room, 0) :]
        else:
            left = self._hand_out(live)
        if left:
            # Their consumers went or filled up meanwhile.
            self._port.settle([(self.cursor, delivery.offset, Outcome.RELEASE) for delivery, _ in left])
        if len(result) < wanted and not self._woken and sum([d.message.size for d in result]) < ACQUIRE_BYTES_MAX // 2:
            # Few may be what one of several brokers had, or what fitted: only an empty answer says that the queue is empty.
            self._ready = not self._hungry
            self._hungry = self._hungry and not left

    def _hand_out(self, live: list[tuple[Delivery, Rendered]]) -> list[tuple[Delivery, Rendered]]:
        """One message to each consumer in turn, of the highest priority that takes any; returns what nobody takes."""
        for index, (delivery, rendered) in enumerate(live):
            for tier in self._tiers:
                consumer = tier.following()
                if consumer is not None:
                    consumer.deliver(delivery, rendered)
                    break
            else:
                return live[index:]
        return []

    def _alive(self, delivery: Delivery, awaited: bool = False) -> Rendered | None:
        """How it is shown, or None if its time is over (then it is settled). What came to a consumer that waited is not over, were
        its time 0 (RabbitMQ hands it on without a look at the clock); what comes back is."""
        rendered = self._renderer.render(delivery.message)
        if self.managed:
            return counted(rendered, delivery.count - 1) if self._counts and delivery.count > 1 else rendered
        if rendered.expires_at_ms and rendered.expires_at_ms <= self._now_ms() and (delivery.count > 1 or not awaited):
            self._port.settle([(self.cursor, delivery.offset, Outcome.DROP)])
            return None
        return rendered

    def get(self) -> Steps:
        """One message for basic.get with its looks, None if there is none. Whatever is over is passed over.

        What consumers can take is theirs: RabbitMQ hands it out before it looks at the next request.
        """
        if self._tiers:
            self._ready = True
            self.pump()
        while True:
            taken: list[Delivery] = yield partial(self._port.acquire, self.cursor, self.holder, 1, ACQUIRE_BYTES_MAX)
            if not taken:
                return None
            rendered = self._alive(taken[0])
            if rendered is not None:
                return taken[0], rendered
