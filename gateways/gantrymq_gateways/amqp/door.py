"""One AMQP connection at the broker: events of the connection state in, calls of the port out, answers back.

Events of a channel are handled in order. A channel whose steps are on their way keeps later events in its backlog; so does a method
that must see what was published before it, until that is stored. One received chunk ends with one batch per channel,
one `settle`, and one look at the queues that got credit.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq.auth.authority import QUEUE, READ
from gantrymq.auth.tokens.ending import Ending
from gantrymq.broker.port import Outcome
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.held.outbound import Piece, Pieces
from gantrymq.net.procedures.driver import Steps, run
from gantrymq_gateways.amqp import access
from gantrymq_gateways.amqp.channels import channel as channels
from gantrymq_gateways.amqp.channels import declare, transactions
from gantrymq_gateways.amqp.channels.channel import NO_EVENTS, Channel, Handler, clean_names
from gantrymq_gateways.amqp.login import Login
from gantrymq_gateways.amqp.messages.publish import Publisher, PublishingChannel, UnknownExchangeError
from gantrymq_gateways.amqp.messages.timeouts import timed_out
from gantrymq_gateways.amqp.messages.tracing import trace
from gantrymq_gateways.amqp.origin import DEFAULT_EXCHANGE, ROOT, local
from gantrymq_gateways.amqp.vhosts.registry import said_in
from gantrymq_gateways.amqp.wire.connection import Asked, Connection
from gantrymq_gateways.amqp.wire.constants import (
    BLOCKED_CAPABILITY,
    COMMAND_INVALID,
    CONNECTION_FORCED,
    FRAME_ERROR,
    INTERNAL_ERROR,
    MECHANISMS,
    NOT_ALLOWED,
    NOT_FOUND,
    NUMBER_PUBLISH,
    RESOURCE_ERROR,
    AmqpError,
)
from gantrymq_gateways.amqp.wire.events import (
    ChannelClosing,
    ChannelFailed,
    ChannelOpened,
    ConnectionClosing,
    Ended,
    Event,
    MethodReceived,
    Opened,
    Publish,
    Settings,
)
from gantrymq_gateways.amqp.wire.failures import amqp_error
from gantrymq_gateways.amqp.wire.login import credentials_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gantrymq.auth.authority import Identity
    from gantrymq.net.api import Link
    from gantrymq_gateways.amqp.gateway import Gateway
    from gantrymq_gateways.amqp.messages.consumers import Queue

log = logging.getLogger(__name__)

HANDLERS: Final[dict[str, Handler]] = {**channels.HANDLERS, **declare.HANDLERS, **transactions.HANDLERS}

BACKLOG, LOG, BLOCKED = 1, 2, 4
"""Why we stop reading: events wait for an earlier one; what was published is not stored; the broker has no room."""
BACKLOG_MAX: Final = 1000
"""Events of one connection that wait for an earlier one before we stop reading."""
BLOCKED_MS: Final = 1000
"""How long a publisher waits after the broker refused a message for lack of room; then it may try again."""


def _body_bytes(event: Event) -> int:
    """What an event that waits holds besides itself."""
    return len(event.body) if isinstance(event, Publish) else 0


class AmqpDoor:
    """See the module and `net.api.Door`."""

    __slots__ = (
        "_blocked_until",
        "_channels",
        "_closing",
        "_connection",
        "_counted",
        "_deadline",
        "_ending",
        "_holds",
        "_lifetime",
        "_link",
        "_login",
        "_orphaned",
        "_out_bytes",
        "_over",
        "_owned",
        "_publishable",
        "_publisher",
        "_released",
        "_settings",
        "_settlements",
        "_stalled",
        "_touched",
        "_waiting",
        "_waiting_bytes",
        "_written",
        "connected_ms",
        "frame_max",
        "gateway",
        "identity",
        "vhost",
    )

    def __init__(self, gateway: Gateway, settings: Settings) -> None:
        self.gateway = gateway
        self.vhost = ROOT
        """Where it is, once it is open."""
        self._counted: list[tuple[str, str]] = []
        """What of `VirtualHosts.present` is this connection's."""
        self.frame_max = settings.frame_max
        self._settings = settings
        self._link: Link
        self._connection: Connection
        self._publisher: Publisher | None = None
        self._channels: dict[int, Channel] = {}
        self._settlements: list[tuple[int, int, Outcome]] = []
        self._written: list[tuple[int, int, Outcome]] = []
        self._touched: dict[Queue, None] = {}
        self._stalled: dict[Queue, None] = {}
        self._owned: dict[Queue, None] = {}
        self._holds = 0
        """Reasons not to read: bits of `BACKLOG`, `LOG` and `BLOCKED`."""
        self._out_bytes = 0
        self._waiting = 0
        self._waiting_bytes = 0
        self._deadline: int | None = None
        self._blocked_until = 0
        self._closing = False
        self._released = False
        self.identity: Identity | None = None
        """Who it is; None without authentication."""
        self._over = ""
        """Why its user may have no further connection; said when it opens its vhost, as RabbitMQ does."""
        self._login: Login | None = None
        self._lifetime: Ending | None = None
        """Of its token."""
        self._publishable = access.Publishable()
        self._orphaned = False
        """The peer left without goodbye: what it published before is still stored."""

    # From the pump.

    def connected(self, link: Link) -> None:
        """See Door."""
        self._link = link
        self.connected_ms = self.gateway.clock.now_ms()
        authority = self.gateway.authority
        offered = MECHANISMS
        if authority is not None:
            self._login = Login(authority, link, self._identified)
            offered = self._login.mechanisms
        asked = Asked(self._check_vhost, self._check_channel, self._update_secret, self._failed)
        now_ms = self.gateway.clock.monotonic_ms()
        self._connection = Connection(self._settings, self._authenticate, now_ms, offered, asked)
        self._ending = False
        """The connection is being closed for an error that the log has."""
        self.gateway.doors.add(self)
        self._arm()

    # For whoever looks at connections.

    @property
    def opened(self) -> bool:
        """Logged in, and not gone."""
        return self._connection.running and not self._released

    @property
    def peer(self) -> str:
        """Address and port."""
        return self._link.peer

    def who(self) -> tuple[str, str]:
        """See consumers.Outlet."""
        return self.peer, self.wire.user

    @property
    def wire(self) -> Connection:
        """What was agreed with the peer."""
        return self._connection

    @property
    def channels(self) -> Mapping[int, Channel]:
        """Those that are open."""
        return self._channels

    @property
    def blocked_for_room(self) -> bool:
        """It publishes, and the broker has no room."""
        return bool(self._blocked_until)

    def close_for(self, reason: str) -> None:
        """Somebody wants it closed."""
        self._release()
        self._connection.fail(AmqpError(CONNECTION_FORCED, reason, connection=True), 0)
        self._arm()
        self._link.mark()

    def _authenticate(self, mechanism: str, response: bytes, answer: Callable[[str | bytes | bool], None]) -> None:
        """By the users there are; without authentication the one account there is. The peer is told no more than that it is refused."""
        if self._login is not None:
            self._login.step(mechanism, response, answer)
            return
        credentials = credentials_of(mechanism, response)
        link = self._link
        good = credentials is not None and self.gateway.may_log_in(*credentials, link.peer, link.peer_is_loopback)
        answer(credentials[0] if credentials is not None and good else False)

    def _identified(
        self, answer: Callable[[str | bytes | bool], None], identity: Identity | None, found: str | bytes | bool
    ) -> None:
        """`found`: what the connection is told."""
        if self._released:
            return
        self.identity = identity
        if identity is not None:
            self._over = self._link.known(identity.name)
            self._lifetime = Ending(self.gateway.wheel, self.rights_changed)
            self._lifetime.watch(identity)
        answer(found)
        self._arm()
        self._link.mark()

    def _update_secret(self, secret: str) -> None:
        """The client has a new token. Raises AmqpError for one that is not its user's; a password is what it was."""
        identity, authority = self.identity, self.gateway.authority
        if identity is None or authority is None or not identity.has_token:
            return
        found, why = authority.by_token(secret, "", self._link.peer)
        authority.audit.login(access.DOOR, identity.name, self._link.peer, why, "update-secret")
        try:
            if found is None:
                raise PermissionError(why)
            identity.renew(found)
        except PermissionError as error:
            log.warning("%s: update-secret refused: %s", self._link.peer, error)
            text = "New secret was refused by one of the backends"
            raise AmqpError(NOT_ALLOWED, text, connection=True) from error
        if self._lifetime is not None:
            self._lifetime.watch(identity)
        self.rights_changed()

    def _check_vhost(self, vhost: str) -> None:
        """Raises AmqpError; else it is in."""
        if self._over and self.identity is not None:
            text = f"access to vhost '{vhost}' refused for user '{self.identity.name}': {self._over}"
            raise AmqpError(NOT_ALLOWED, text, connection=True)
        user = self._connection.user
        self.gateway.definitions.vhosts.check_entry(vhost, user)
        if self.identity is not None:
            access.check_vhost(self.identity, vhost)
        self.vhost = vhost
        self._count("vhost", vhost)
        self._count("user", user)

    def _check_channel(self) -> None:
        user = self._connection.user
        self.gateway.definitions.vhosts.check_channel(user)
        self._count("channels", user)

    def _count(self, what: str, name: str) -> None:
        self._counted.append((what, name))
        self.gateway.definitions.vhosts.present[what, name] += 1

    def _uncount(self, counted: list[tuple[str, str]]) -> None:
        present = self.gateway.definitions.vhosts.present
        for each in counted:
            present[each] -= 1
            if present[each] <= 0:
                del present[each]

    def check_timeouts(self, now_ms: int) -> None:
        """A channel with a delivery that waits for its answer for too long is closed."""
        for channel in list(self._channels.values()):
            found = channel.ages.overdue(channel.ledger.open, channel.ledger.next_tag, now_ms)
            if found is not None:
                tag, queue = found
                log.warning("%s: channel %d: delivery %d of queue %r was not answered in time",
                            self._link.peer, channel.number, tag, queue.name)  # fmt: skip
                self._fail(channel, timed_out(channel.number, queue.timeout_ms), 0)

    def rights_changed(self) -> None:
        """See `Gateway`: consumers that may not read any more are cancelled; a user that is gone is shown out."""
        identity = self.identity
        if identity is None or self._released:
            return
        if not identity.alive:
            self._connection.fail(AmqpError(CONNECTION_FORCED, identity.farewell, connection=True), 0)
            self._release()
            self._link.mark()
            return
        for channel in list(self._channels.values()):
            for consumer in list(channel.consumers.values()):
                if not access.decide(identity, (READ, QUEUE, local(consumer.queue.name)), self.vhost).allowed:
                    consumer.queue.remove(consumer)
                    channel.cancelled(consumer)
                    self.gateway.consumer_left(consumer)
        self._publishable.forget()
        self._link.mark()

    def received(self, data: bytes) -> int:
        """See Door."""
        connection = self._connection
        events = connection.receive_data(data, self.gateway.clock.monotonic_ms())
        taken = connection.taken
        self._link.spent(len(events))
        for event in events:
            if event.__class__ is Publish or event.__class__ is MethodReceived:
                channel = self._channels.get(event.channel)
                if channel is not None:
                    self._in_order(channel, event)
            else:
                self._handle(event)
        self._end_of_chunk()
        self._arm()
        self._link.mark()
        return taken

    def inbound_bytes(self) -> int:
        """See Door."""
        return self._connection.inbound_bytes()

    def unfinished(self) -> int:
        """See Door."""
        return self._connection.unfinished()

    def missing_bytes(self) -> int:
        """See Door."""
        return self._connection.missing_bytes()

    def overdue(self, why: str, busy: bool) -> None:
        """See Door."""
        if not self._connection.running:
            log.warning("%s: closed: %s", self._link.peer, why)  # nobody else says it
        self._ending = True
        self._release()
        self._connection.give_up(AmqpError(RESOURCE_ERROR if busy else FRAME_ERROR, why, connection=True))
        self._link.close()

    def data_to_send(self) -> Pieces:
        """See Door."""
        self._out_bytes = 0
        if self._written:
            written, self._written = self._written, []
            self.gateway.port.settle(written)
        if self._stalled:
            self.gateway.turn.at_deliver(self._resume)
        return self._connection.data_to_send()

    def eof(self) -> bool | None:
        """See Door. What the connection held is free before anything else happens."""
        self._orphaned = not self._released
        self._release()
        return None

    def closed(self, reason: str) -> None:
        """See Door."""
        if reason and not self._ending:  # why it ends was said already
            log.info("%s: connection lost: %s", self._link.peer, reason)
        self._orphaned = self._orphaned or not self._released
        self._release()
        self._connection.forget_contents()
        self.gateway.doors.discard(self)

    def writable(self) -> None:
        """See Door."""
        self._resume()

    def deadline(self, now_ms: int) -> None:
        """See Door."""
        self._deadline = None
        if self._blocked_until and now_ms >= self._blocked_until:
            self._try_again(now_ms)
        for event in self._connection.handle_deadline(now_ms, reading=not self._holds):
            self._handle(event)
        self._arm()
        self._link.mark()

    def shutdown(self) -> None:
        """See Door."""
        if self._connection.running:
            self._release()
            text = "broker forced connection closure with reason 'shutdown'"
            self._connection.fail(AmqpError(CONNECTION_FORCED, text, connection=True), 0)
        self._link.close()

    # Outbox.

    def send(self, channel: int, name: str, *arguments: Any) -> None:
        """One method."""
        self._connection.send(channel, name, *arguments)
        self._link.mark()

    def send_frames(self, frames: bytes) -> None:
        """Encoded frames."""
        self._out_bytes += len(frames)
        self._connection.send_frames(frames)
        self._link.mark()

    def send_pieces(self, pieces: list[Piece]) -> None:
        """See consumers.Outlet."""
        self._out_bytes += sum(map(len, pieces))
        self._connection.send_pieces(pieces)
        self._link.mark()

    def has_capability(self, name: str) -> bool:
        """What the client announced."""
        return self._connection.has_capability(name)

    def congested(self) -> bool:
        """See consumers.Outlet."""
        return self._out_bytes + self._link.outbound_bytes() >= self.gateway.config.outbound_bytes_max

    def stalled(self, queue: Queue) -> None:
        """See consumers.Outlet."""
        self._stalled[queue] = None

    def settle_when_written(self, cursor: int, offset: int) -> None:
        """See consumers.Outlet."""
        self._written.append((cursor, offset, Outcome.ACK))

    def _resume(self) -> None:
        """Queues that stopped for this reader go on."""
        if self._stalled and not self.congested():
            stalled, self._stalled = self._stalled, {}
            for queue in stalled:
                queue.pump()

    # Events.

    def _handle(self, event: Event) -> None:
        if isinstance(event, MethodReceived | ChannelClosing | Publish):
            channel = self._channels.get(event.channel)
            if channel is not None:
                self._in_order(channel, event)
        elif isinstance(event, ChannelOpened):
            self._channels[event.channel] = Channel(self, event.channel)
        elif isinstance(event, ChannelFailed):
            self._drop_channel(event.channel)
        elif isinstance(event, Opened):
            self._opened(event)
        elif isinstance(event, ConnectionClosing):
            self._closing = True
            self._finish_closing()
        elif isinstance(event, Ended):
            self._ended(event)

    def _opened(self, event: Opened) -> None:
        gateway = self.gateway
        self.frame_max = self._connection.frame_max
        if not gateway.ready:
            self._connection.fail(AmqpError(INTERNAL_ERROR, "the broker is not reachable", connection=True), 0)
            return
        contents = gateway.contents(event.user)
        targets = gateway.targets_in(self.vhost)
        self._publisher = Publisher(gateway.port, targets, contents, gateway.clock.now_ms, self)
        log.debug("%s: open, user %s, client %s", self._link.peer, event.user, event.client)

    def _in_order(self, channel: Channel, event: Event) -> None:
        """Handle an event of a channel, or keep it until the earlier ones are finished."""
        if channel.dead:
            return
        if channel.busy or channel.backlog:
            channel.wait(event)
            self._waiting += 1
            self._waiting_bytes += _body_bytes(event)
            if self._waiting > BACKLOG_MAX or self._waiting_bytes > self.gateway.config.inbound_bytes_max:
                self._hold(BACKLOG, True)
            return
        self._handle_now(channel, event)

    def _handle_now(self, channel: Channel, event: Event) -> None:
        if isinstance(event, Publish):
            self._publish(channel, event)
        elif isinstance(event, MethodReceived):
            if event.method.name not in channels.UNORDERED and self._stores(channel):
                channel.wait(event, first=True)
                self._waiting += 1
                return
            self._method(channel, event)
        elif isinstance(event, ChannelClosing):
            if self._stores(channel):
                channel.wait(event, first=True)
                self._waiting += 1
                return
            self._drop_channel(channel.number)
            self._connection.channel_closed(channel.number)
            self._link.mark()

    def _stores(self, channel: Channel) -> bool:
        """Whether something published on the channel is not stored yet; what was answered is settled."""
        if self._publisher is not None:
            self._publisher.flush()
        self.settle_now()
        return bool(channel.pending) or (self._publisher is not None and self._publisher.holds(channel))

    def settle_now(self) -> None:
        """What was answered so far, before anything else."""
        if self._settlements:
            settlements, self._settlements = self._settlements, []
            self.gateway.settled += len(settlements)
            self.gateway.port.settle(settlements)

    def _method(self, channel: Channel, event: MethodReceived) -> None:
        number = event.method.number
        handler = HANDLERS.get(event.method.name)
        if handler is None:
            error = AmqpError(COMMAND_INVALID, "unimplemented method", connection=True)
            self._fail(channel, error, number)
            return
        clean_names(event.method.name, event.arguments)
        try:
            if self.identity is not None:
                access.check_method(self.identity, channel, event.method.name, event.arguments)
                changed = access.change_of(channel, self.gateway.definitions, event.method.name, event.arguments)
                if changed:
                    self.identity.changed(access.DOOR, event.method.name, changed)
            steps = handler(channel, *event.arguments)
        except AmqpError as error:
            self._fail(channel, error, number)
            return
        if steps is not None:
            self._run(channel, steps, number)

    def _run(self, channel: Channel, steps: Steps, number: int) -> None:
        channel.busy = True
        run(steps, partial(self._finished, channel, number), Exception)

    def _finished(self, channel: Channel, number: int, error: Exception | None) -> None:
        channel.busy = False
        if channel.cancels:
            channel.send_cancels()
        if isinstance(error, GantryError):
            error = amqp_error(error, self.gateway.port.up)
        if isinstance(error, AmqpError):
            self._fail(channel, error, number)
        elif error is not None:
            log.error("%s: channel %d failed: %s: %s", self._link.peer, channel.number, type(error).__name__, error)
            log.debug("%s: traceback", self._link.peer, exc_info=error)
            self._fail(channel, AmqpError(INTERNAL_ERROR, "", connection=True), number)
        self._catch_up(channel)

    def _catch_up(self, channel: Channel) -> None:
        """Handle what waited; a channel that ended still stores what was published on it before."""
        if channel.draining:
            return
        channel.draining = True
        while channel.backlog and not channel.busy:
            event = channel.take()
            self._waiting -= 1
            self._waiting_bytes -= _body_bytes(event)
            if channel.dead and not (self._orphaned and isinstance(event, Publish)):
                continue
            waiting = len(channel.backlog)
            self._handle_now(channel, event)
            if len(channel.backlog) > waiting:
                break
        channel.draining = False
        self._take_more()
        if not channel.busy:
            self._end_of_chunk()
        self._finish_closing()

    # Publishing.

    def _publish(self, channel: Channel, event: Publish) -> None:
        publisher = self._publisher
        if publisher is None:
            return
        try:
            if self.identity is not None:
                self._publishable.check(self.identity, event.arguments, self.vhost)
            publisher.publish(channel, event, channel.transaction)
            if self.gateway.tracers:
                trace(self.gateway, self.vhost, event, self.who(), channel.transaction)
        except AmqpError as error:
            self._fail(channel, error, NUMBER_PUBLISH)
        except UnknownExchangeError as unknown:
            self._run(channel, self._lookup(channel, event, unknown.name), NUMBER_PUBLISH)

    def check_keys(self, exchange: str, keys: list[str]) -> None:
        """See publish.Publishers."""
        if self.identity is not None:
            for key in keys:
                access.check_publish(self.identity, "" if exchange == DEFAULT_EXCHANGE else exchange, key, self.vhost)

    def _lookup(self, channel: Channel, event: Publish, name: str) -> Steps:
        """An exchange that nobody declared may be another door's topic."""
        found = yield from self.gateway.definitions.find_exchange(name)
        if found is None:
            raise AmqpError(NOT_FOUND, f"no exchange '{name}' in vhost '/'")
        if self._publisher is not None:
            try:
                self._publisher.publish(channel, event, channel.transaction)
                trace(self.gateway, self.vhost, event, self.who(), channel.transaction)
            except UnknownExchangeError:
                raise AmqpError(NOT_FOUND, f"no exchange '{name}' in vhost '/'") from None

    def publish_failed(self, channel: PublishingChannel, code: ErrorCode) -> None:
        """See publish.Publishers."""
        if isinstance(channel, Channel) and not channel.dead:
            # 404 would say that there is no such exchange: of what could not be stored the whole connection hears.
            self._fail(channel, amqp_error(GantryError(code), False), NUMBER_PUBLISH)

    def settled(self, channel: PublishingChannel) -> None:
        """See publish.Publishers."""
        publisher = self._publisher
        if publisher is not None and publisher.bytes_open < self.gateway.config.inbound_bytes_max // 2:
            self._hold(LOG, False)
        if isinstance(channel, Channel) and channel.backlog and not channel.busy:
            self._catch_up(channel)
        elif self._closing:
            self._finish_closing()

    def blocked(self, code: ErrorCode) -> None:
        """See publish.Publishers."""
        if not self._blocked_until and not self._released:
            if self._connection.has_capability(BLOCKED_CAPABILITY):
                self.send(0, "connection.blocked", code.value)
            log.warning("%s: publisher blocked: %s", self._link.peer, code.value)
            self._hold(BLOCKED, True)
        self._blocked_until = self.gateway.clock.monotonic_ms() + BLOCKED_MS
        self._arm()

    def _try_again(self, now_ms: int) -> None:
        """What waits is stored before the client hears that there is room: it hears once."""
        publisher = self._publisher
        if publisher is not None and (publisher.waiting() or publisher.bytes_open):
            self._blocked_until = now_ms + BLOCKED_MS // 10
            publisher.retry()
            return
        self._blocked_until = 0
        if self._connection.running and self._connection.has_capability(BLOCKED_CAPABILITY):
            self.send(0, "connection.unblocked")
        self._hold(BLOCKED, False)

    # Answers to deliveries.

    def settle(self, queue: Queue, offset: int, outcome: Outcome) -> None:
        """Into the `settle` at the end of the chunk."""
        if not queue.is_stream:
            self._settlements.append((queue.cursor, offset, outcome))
        self._touched[queue] = None

    def touch(self, queue: Queue) -> None:
        """Its consumers may have more credit."""
        self._touched[queue] = None

    def touch_last(self, queue: Queue) -> None:
        """The same, and behind all others so far."""
        self._touched.pop(queue, None)
        self._touched[queue] = None

    def _end_of_chunk(self) -> None:
        publisher = self._publisher
        if publisher is not None:
            publisher.flush()
            self.gateway.received += publisher.submitted
            publisher.submitted = 0
            if publisher.bytes_open > self.gateway.config.inbound_bytes_max:
                self._hold(LOG, True)
        self.settle_now()
        if self._touched:
            touched, self._touched = self._touched, {}
            for queue in touched:
                queue.pump()

    # Endings.

    def own(self, queue: Queue) -> None:
        """An exclusive queue of this connection."""
        self._owned[queue] = None
        if self._released:
            self._drop_owned()

    def _fail(self, channel: Channel, error: AmqpError, number: int) -> None:
        error = said_in(error, self.vhost)
        if self._publisher is not None:
            self._publisher.flush()
        if error.connection:
            self._connection.fail(error, channel.number, number)
            self._release()
            self._arm()
        elif not channel.dead:
            self._connection.fail(error, channel.number, number)
            self._drop_channel(channel.number)
        self._link.mark()

    def _drop_channel(self, number: int) -> None:
        channel = self._channels.pop(number, None)
        if channel is not None:
            counted = ("channels", self._connection.user)
            if counted in self._counted:
                self._counted.remove(counted)
                self._uncount([counted])
            self._waiting -= len(channel.backlog)
            self._waiting_bytes -= sum(map(_body_bytes, channel.backlog))
            channel.backlog = NO_EVENTS
            self._take_more()
            channel.release()
            self._end_of_chunk()

    def _release(self) -> None:
        """Everything that the connection held is free: consumers, deliveries, exclusive queues."""
        if self._released:
            return
        self._released = True
        counted, self._counted = self._counted, []
        self._uncount(counted)
        if self._lifetime is not None:
            self._lifetime.stop()
        if self._written:
            # Not written, so never seen: somebody else shall have it.
            written = [(cursor, offset, Outcome.REQUEUE) for cursor, offset, _ in self._written]
            self._written = []
            self.gateway.port.settle(written)
        for channel in list(self._channels.values()):
            channel.release()
        self._end_of_chunk()
        self._drop_owned()
        if self._publisher is not None and self._publisher.waiting():
            log.warning("%s: %d messages that found no room are lost", self._link.peer, self._publisher.waiting())

    def _drop_owned(self) -> None:
        owned, self._owned = self._owned, {}
        for queue in owned:
            if not queue.deleted:
                self.gateway.drop_queue(queue)

    def _failed(self, channel: int, text: str) -> None:
        if channel:
            log.info("%s: channel %d: %s", self._link.peer, channel, text)
        else:
            self._ending = True
            log.info("%s: closed: %s", self._link.peer, text)

    def _finish_closing(self) -> None:
        """Answer connection.close when nothing that came before it is open any more."""
        if not self._closing or any(channel.busy or channel.backlog for channel in self._channels.values()):
            return
        # Storing may be answered at once, and bring us here again.
        if any(self._stores(channel) for channel in self._channels.values()) or not self._closing:
            return
        self._closing = False
        self._ending = True
        self._release()
        self._connection.connection_closed()
        self._arm()
        self._link.mark()

    def _ended(self, event: Ended) -> None:
        if event.reason:
            log.info("%s: closed: %s", self._link.peer, event.reason)
        self._release()
        if event.abort:
            self._link.abort()
        else:
            self._link.close()

    # Reading and deadlines.

    def _take_more(self) -> None:
        """Read again when the backlog is half of what stopped us."""
        if self._waiting <= BACKLOG_MAX // 2 and self._waiting_bytes <= self.gateway.config.inbound_bytes_max // 2:
            self._hold(BACKLOG, False)

    def _hold(self, reason: int, on: bool) -> None:
        """Stop reading while there is a reason to."""
        if on:
            if not self._holds:
                self._link.pause_reading()
            self._holds |= reason
        elif self._holds & reason:
            self._holds &= ~reason
            if not self._holds:
                self._link.resume_reading()

    def _arm(self) -> None:
        at_ms = self._connection.next_deadline()
        if self._blocked_until and (at_ms is None or self._blocked_until < at_ms):
            at_ms = self._blocked_until
        if at_ms != self._deadline:
            self._deadline = at_ms
            self._link.set_deadline(at_ms)
