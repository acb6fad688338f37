"""What all connections of the AMQP door share: definitions, queues at work, caches, the port."""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.broker.port import END, BrokerPort, CursorInfo, Done
from gantrymq.metrics import Counter
from gantrymq.net.procedures.driver import Steps, run
from gantrymq_gateways.amqp.config import AmqpConfig
from gantrymq_gateways.amqp.definitions import GROUP, SLICE, DefinitionLimits, Definitions
from gantrymq_gateways.amqp.messages.consumers import Consumer, Queue
from gantrymq_gateways.amqp.messages.publish import Contents, Targets, Unstored
from gantrymq_gateways.amqp.messages.routed import RoutedQueues
from gantrymq_gateways.amqp.messages.streams import StreamQueue
from gantrymq_gateways.amqp.messages.timeouts import Clockwork
from gantrymq_gateways.amqp.messages.tracing import Tracer
from gantrymq_gateways.amqp.origin import ROOT, prefix_of, vhost_of
from gantrymq_gateways.amqp.properties.writing import Renderer
from gantrymq_gateways.amqp.queues.arguments import consumer_timeout, is_stream, parse
from gantrymq_gateways.amqp.rows import QueueDefinition
from gantrymq_gateways.amqp.wire.constants import locked_error, unknown_queue_error

if TYPE_CHECKING:
    from gantrymq.auth.authority import Authority
    from gantrymq.net.api import Wheel
    from gantrymq.services import Clock, Turn


log = logging.getLogger(__name__)

ORPHANS_MS: Final = 2_000
"""How often some transient queues are looked at, whether their gateway is still there."""
START_RETRY_MS: Final = 1000
"""Until the next attempt to load the definitions, when the broker is back but refuses something."""


class Owner(Protocol):
    """A connection, as those know it who share what it has."""

    vhost: str

    def close_for(self, reason: str) -> None:
        """Somebody wants it closed."""

    def own(self, queue: Queue) -> None: ...

    def shutdown(self) -> None: ...

    def check_timeouts(self, now_ms: int) -> None:
        """Close channels that do not answer."""

    def rights_changed(self) -> None:
        """Users or policies are others now."""


class Gateway:
    """See the module. `token()`: 22 random characters for names that the server makes."""

    def __init__(
        self, config: AmqpConfig, port: BrokerPort, clock: Clock, turn: Turn, wheel: Wheel, token: Callable[[], str]
    ) -> None:
        self.config = config
        self.port = port
        self.clock = clock
        self.turn = turn
        self.wheel = wheel
        self._life = 0
        """Counts goings and comings of the broker: an attempt to start that belongs to an earlier one is over."""
        self.token = token
        self.node = "gantrymq@localhost"
        """As RabbitMQ names nodes."""
        self.authority: Authority | None = None
        """Who knows the users; None without authentication."""
        self.ready = False
        self.stopped = False
        """The service is over; another gateway may follow in this process."""
        self.doors: set[Owner] = set()
        self.received = self.settled = 0
        """Messages of publishers, and answers of consumers, since the start."""
        self._swept = ""
        self._sweeping = False
        self.timeouts = Clockwork(wheel, self._check_timeouts)
        self._contents: dict[str, Contents] = {}
        self._holders = 0
        self._reset()

    def _reset(self) -> None:
        config = self.config
        limits = DefinitionLimits(config.exchanges_max, config.queues_max, config.bindings_max, config.delivery_limit)
        self.definitions = Definitions(
            self.port, limits, self._queue_gone, self._policies_changed, self._vhost_changed, self._breathe
        )
        self.unstored: collections.Counter[Unstored] = collections.Counter()
        self.targets = Targets(self.definitions, "", self.unstored)
        self._targets_in: dict[str, Targets] = {}
        self.renderer = Renderer(self.definitions.exchange_of)
        self.queues: dict[str, Queue] = {}
        self.tracers: dict[str, Tracer] = {}
        self._routed: dict[str, RoutedQueues] = {}
        """Of vhosts that are traced."""
        self.trace_dropped = Counter()

    def _trace(self, vhost: str) -> None:
        row = self.definitions.vhosts.get(vhost)
        if (vhost in self.tracers) == (row is not None and row.tracing):
            return
        followers = self.definitions.followers
        if self.tracers.pop(vhost, None) is None:
            routed = self._routed[vhost] = RoutedQueues(self.definitions, vhost)
            self.tracers[vhost] = Tracer(self.port, vhost, self.node, self.trace_dropped, routed.of)
            followers.append(routed.changed)
        else:
            followers.remove(self._routed.pop(vhost).changed)
        log.info("amqp: tracing of vhost %r is %s", vhost, "on" if vhost in self.tracers else "off")
        for queue in self.queues.values():
            if vhost_of(queue.name) == vhost:
                queue.tracer = self.tracers.get(vhost)

    def _breathe(self, token: object, on_done: Done) -> None:
        self.turn.in_slices(lambda: on_done(token, None))

    def authenticate_by(self, authority: Authority) -> None:
        """From now on."""
        self.authority = authority
        authority.watch(self.rights_changed)

    def rights_changed(self) -> None:
        """Every connection loses what it lost."""
        for door in list(self.doors):
            door.rights_changed()

    def _check_timeouts(self, now_ms: int) -> None:
        if self.stopped:
            self.timeouts.stop()
            return
        for door in list(self.doors):
            door.check_timeouts(now_ms)

    def start(self, on_started: Callable[[Exception | None], None]) -> None:
        """Load the definitions; connections are taken when `on_started(None)` was called."""

        def finished(error: Exception | None) -> None:
            self.ready = error is None
            on_started(error)

        run(self.definitions.start(), finished, Exception)
        if not self._sweeping:
            self._sweeping = True
            self._sweep_later()

    def _sweep_later(self) -> None:
        if not self.stopped:
            self.wheel.call_at(self.wheel.now_ms() + ORPHANS_MS, self._sweep)

    def _sweep(self, now_ms: int) -> None:
        if self.ready and not self.stopped:
            run(self.definitions.drop_orphans(self._swept), self._after_sweep, Exception)
        else:
            self._sweep_later()

    def _after_sweep(self, result: Any) -> None:
        if isinstance(result, Exception):
            log.debug("amqp: queues of gateways that are gone: %s", result)
        self._swept = result if isinstance(result, str) else ""
        self._sweep_later()

    def broker_state(self, up: bool) -> None:
        """The broker went away (cursors, leases and watches with it) or came back."""
        if self.stopped:
            return
        self._life += 1
        if not up and self.ready:
            self.ready = False
            log.warning("amqp: the broker is not reachable: %d connections are closed", len(self.doors))
            for door in list(self.doors):
                door.shutdown()
            self._reset()
        elif up and not self.ready:
            self._restart(self._life)

    def _restart(self, life: int) -> None:
        if life == self._life and not self.stopped:
            self._reset()
            self.start(partial(self._restarted, life))

    def _restarted(self, life: int, error: Exception | None) -> None:
        if error is None:
            log.info("amqp: ready")
        elif life == self._life and not self.stopped:
            log.warning("amqp: definitions cannot be loaded: %s; trying again", error)
            self.wheel.call_at(self.clock.monotonic_ms() + START_RETRY_MS, lambda now_ms: self._restart(life))

    def may_log_in(self, user: str, password: str, peer: str, from_here: bool) -> bool:
        """The one account there is, from this machine unless others are let in. The peer is told no more than that it is refused."""
        if (user, password) != ("guest", "guest"):
            log.warning("%s: login refused: there is one account, guest with password guest", peer)
            return False
        if from_here or not self.config.loopback_guest_only:
            return True
        log.warning(
            "%s: login refused: guest comes from this machine only; amqp.loopback_guest_only=false lets it in from others",
            peer,
        )
        return False

    def contents(self, user: str) -> Contents:
        """Content headers of one user."""
        found = self._contents.get(user)
        if found is None:
            found = self._contents[user] = Contents(user)
        return found

    def targets_in(self, vhost: str) -> Targets:
        """Where publishes lead."""
        if vhost == ROOT:
            return self.targets
        found = self._targets_in.get(vhost)
        if found is None:
            found = self._targets_in[vhost] = Targets(self.definitions, prefix_of(vhost), self.unstored)
        return found

    def _vhost_changed(self, vhost: str) -> None:
        self._trace(vhost)
        if self.definitions.vhosts.get(vhost) is not None:
            return
        self._targets_in.pop(vhost, None)
        for door in list(self.doors):
            if door.vhost == vhost:
                door.close_for(f"vhost '{vhost}' is deleted")

    # Queues.

    def open_queue(self, name: str, door: Owner) -> Steps:
        """The queue at work; 404 if unknown, 405 if it is another connection's."""
        definition = self.definitions.queues.get(name)
        if definition is None or not definition.finished:
            raise unknown_queue_error(name)
        queue = self.queues.get(name)
        if queue is None or queue.definition.light != definition.light:
            info: CursorInfo = yield partial(self.port.open_cursor, f"~{definition.light}", GROUP, END)
            queue = self.queues.get(name)
            if queue is None or queue.definition.light != definition.light:
                queue = self._queue(definition, info.cursor)
        if queue.deleted:
            raise unknown_queue_error(name)
        if definition.exclusive and queue.owner is not door:
            raise locked_error(name)
        return queue

    def create_queue(self, wanted: QueueDefinition, door: Owner) -> Steps:
        """Declare a queue that does not exist; the caller holds the lock."""
        definition, cursor = yield from self.definitions.create_queue(wanted)
        queue = self._queue(definition, cursor)
        if definition.exclusive:
            queue.owner = door
            door.own(queue)
        return queue

    def _queue(self, definition: QueueDefinition, cursor: int) -> Queue:
        self._holders += 1
        parts = (self.port, self.renderer, self.clock.now_ms, definition, cursor, self._holders)
        stream = is_stream(parse(definition.arguments))
        queue = StreamQueue(self.turn.in_slices, *parts) if stream else Queue(*parts)
        self._follow_policies(queue)
        if self.tracers:
            queue.tracer = self.tracers.get(vhost_of(definition.name))
        self.queues[definition.name] = queue
        return queue

    def _follow_policies(self, queue: Queue) -> None:
        """What its arguments and the policies say of it now, as far as it concerns this process."""
        queue.managed = self.definitions.broker_policy(queue.definition) is not None
        timeout_ms = consumer_timeout(self.definitions.effective_arguments(queue.definition))
        queue.timeout_ms = timeout_ms if timeout_ms is not None else self.config.consumer_timeout_ms

    def _policies_changed(self) -> None:
        def steps() -> Steps:
            for number, queue in enumerate(list(self.queues.values()), 1):
                if not number % SLICE:
                    yield self.definitions.breathe
                self._follow_policies(queue)
                self.timeouts.need(queue.timeout_ms)

        run(steps(), self._looked, Exception)

    @staticmethod
    def _looked(error: Exception | None) -> None:
        if error is not None:
            log.error("amqp: queues could not be held against the policies: %s", error)

    def _queue_gone(self, definition: QueueDefinition) -> None:
        queue = self.queues.get(definition.name)
        if queue is not None and queue.definition.light == definition.light:
            del self.queues[definition.name]
            queue.gone()
        if definition.name not in self.definitions.queues and self.definitions.bindings_to(True, definition.name):
            run(self.definitions.forget_queue(definition), partial(self._forgotten, definition.name), Exception)

    @staticmethod
    def _forgotten(name: str, error: Exception | None) -> None:
        if error is not None:
            log.warning("amqp: bindings of the deleted queue %r are still there: %s", name, error)

    def consumer_left(self, consumer: Consumer) -> None:
        """An auto-delete queue goes with the last consumer that it has anywhere."""

        def left(queue: Queue, count: Any) -> None:
            if queue.definition.auto_delete and not count and not queue.deleted:
                self.drop_queue(queue, if_unused=True)

        self.port.leave_seat(consumer.queue.cursor, consumer.seat, consumer.queue, left)

    def drop_queue(self, queue: Queue, if_unused: bool = False) -> None:
        """Delete a queue on our own account."""

        def steps() -> Steps:
            definitions = self.definitions
            yield definitions.lock.take("definitions")
            try:
                found = definitions.queues.get(queue.name)
                in_use = False
                if if_unused:
                    counts: list[CursorInfo | None] = yield partial(self.port.stats, [queue.cursor])
                    in_use = counts[0] is not None and counts[0].consumers > 0
                if found is not None and found.light == queue.definition.light and not in_use:
                    yield from definitions.delete_queue(found)
            finally:
                definitions.lock.free("definitions")

        def finished(error: Exception | None) -> None:
            if error is not None:
                log.warning("amqp: queue %r could not be deleted: %s", queue.name, error)

        run(steps(), finished, Exception)
