"""AMQP methods on behalf of a request: the same handlers, checks and words as those of a client's channel."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from gantrymq.broker.port import Outcome
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.held.outbound import Piece
from gantrymq.net.procedures.driver import Done, Steps
from gantrymq_gateways.amqp.channels.channel import Channel, clean_names
from gantrymq_gateways.amqp.door import HANDLERS
from gantrymq_gateways.amqp.gateway import Gateway
from gantrymq_gateways.amqp.messages.consumers import Queue
from gantrymq_gateways.amqp.messages.publish import Publisher, PublishingChannel
from gantrymq_gateways.amqp.messages.tracing import trace
from gantrymq_gateways.amqp.origin import ROOT, full_name, prefix_of
from gantrymq_gateways.amqp.vhosts.registry import said_in
from gantrymq_gateways.amqp.wire.codec import FRAME, decode_arguments, encode_arguments
from gantrymq_gateways.amqp.wire.constants import FRAME_BODY, FRAME_HEADER, METHODS, NOT_FOUND, AmqpError
from gantrymq_gateways.amqp.wire.content import Properties, decode_properties, encode_properties
from gantrymq_gateways.amqp.wire.events import Publish

CHANNEL: Final = 1
FRAME_MAX: Final = 1 << 30
"""Nothing is cut: what is sent never leaves the process."""


class Fetched:
    """A message that basic.get brought."""

    __slots__ = ("body", "exchange", "key", "properties", "ready", "redelivered")

    def __init__(self, frames: bytes) -> None:
        at, self.body, self.properties = 0, b"", Properties()
        while at < len(frames):
            kind, _, size = FRAME.unpack_from(frames, at)
            payload = frames[at + 7 : at + 7 + size]
            at += 8 + size
            if kind == FRAME_HEADER:
                self.properties = decode_properties(payload[12:])
            elif kind == FRAME_BODY:
                self.body += payload
            else:
                arguments = decode_arguments(METHODS["basic.get-ok"].spec, payload, 4)
                _, self.redelivered, self.exchange, self.key, self.ready = arguments


class Inside:
    """A connection without a peer (`channels.channel.Door`). One request uses it, then `leave`."""

    def __init__(self, gateway: Gateway, user: str, vhost: str = ROOT) -> None:
        self.gateway = gateway
        self.vhost = vhost
        self.frame_max = FRAME_MAX
        self.replies: list[tuple[str, tuple[Any, ...]]] = []
        self._frames: list[bytes] = []
        self._user = user
        self._channel = Channel(self, CHANNEL)
        self._settled: Done | None = None
        self._refused: ErrorCode | None = None

    def call(self, name: str, *arguments: Any) -> Steps:
        """One method; returns the arguments of its answer. Raises AmqpError and GantryError."""
        self.replies.clear()
        asked = list(arguments)
        clean_names(name, asked)
        try:
            steps = HANDLERS[name](self._channel, *asked)
            if steps is not None:
                yield from steps
        except AmqpError as error:
            raise said_in(error, self.vhost) from None
        return self.replies[-1][1] if self.replies else ()

    def get(self, queue: str, count: int) -> Steps:
        """Up to so many messages, which wait for `answer`."""
        found: list[Fetched] = []
        while len(found) < count:
            self._frames.clear()
            yield from self.call("basic.get", 0, queue, False)
            if not self._frames:
                break
            found.append(Fetched(b"".join(self._frames)))
        return found

    def answer(self, outcome: Outcome) -> None:
        """What becomes of all that was fetched."""
        self._channel.settle(self._channel.ledger.take_all(), outcome)

    def publish(self, exchange: str, key: str, properties: Properties, body: bytes) -> Steps:
        """True if a queue got it."""
        definitions = self.gateway.definitions
        if exchange and (yield from definitions.find_exchange(full_name(prefix_of(self.vhost), exchange))) is None:
            raise AmqpError(NOT_FOUND, f"no exchange '{exchange}' in vhost '{self.vhost}'")
        self._frames.clear()
        gateway = self.gateway
        targets, contents = gateway.targets_in(self.vhost), gateway.contents(self._user)
        publisher = Publisher(gateway.port, targets, contents, gateway.clock.now_ms, self)
        arguments = encode_arguments(METHODS["basic.publish"].spec, (0, exchange, key, True, False))
        try:
            event = Publish(CHANNEL, arguments, encode_properties(properties), body)
            publisher.publish(self._channel, event)
            trace(gateway, self.vhost, event, self.who())
        except AmqpError as error:
            raise said_in(error, self.vhost) from None
        yield partial(self._flushed, publisher)
        if self._refused is not None:
            raise GantryError(self._refused)
        returned = METHODS["basic.return"].number.to_bytes(4, "big")
        return not any(frames.startswith(returned, FRAME.size) for frames in self._frames)

    def _flushed(self, publisher: Publisher, _token: Any, on_done: Done) -> None:
        self._settled = on_done
        publisher.flush()

    def who(self) -> tuple[str, str]:
        """See consumers.Outlet."""
        return "management", self._user

    def leave(self) -> None:
        """What was fetched and not answered goes back."""
        self._channel.release()

    # publish.Publishers

    def check_keys(self, exchange: str, keys: list[str]) -> None:
        """See Publishers: an administrator may."""

    def publish_failed(self, channel: PublishingChannel, code: ErrorCode) -> None:
        """See Publishers."""
        self._refused = code

    def blocked(self, code: ErrorCode) -> None:
        """See Publishers."""
        self._refused = code

    def settled(self, channel: PublishingChannel) -> None:
        """See Publishers."""
        if (on_done := self._settled) is not None:
            self._settled = None
            on_done(None, None)

    # channel.Door

    def send(self, channel: int, name: str, *arguments: Any) -> None:
        """An answer."""
        self.replies.append((name, arguments))

    def send_frames(self, frames: bytes) -> None:
        """A message."""
        self._frames.append(frames)

    def send_pieces(self, pieces: list[Piece]) -> None:
        """The same in pieces."""
        self._frames.append(b"".join(pieces))

    def congested(self) -> bool:
        """See consumers.Outlet."""
        return False

    def settle_when_written(self, cursor: int, offset: int) -> None:
        """See consumers.Outlet."""
        self.gateway.port.settle([(cursor, offset, Outcome.ACK)])

    def stalled(self, queue: Queue) -> None:
        """See consumers.Outlet: it never is."""

    def has_capability(self, name: str) -> bool:
        """See Door."""
        return False

    def own(self, queue: Queue) -> None:
        """See Door: the API declares no exclusive queues."""

    def shutdown(self) -> None:
        """See Door."""

    def close_for(self, reason: str) -> None:
        """See Owner: it is no connection."""

    def check_timeouts(self, now_ms: int) -> None:
        """See Door: a request is shorter."""

    def rights_changed(self) -> None:
        """See Door. What is asked here was allowed when the request began."""

    def settle(self, queue: Queue, offset: int, outcome: Outcome) -> None:
        """See Door."""
        self.gateway.port.settle([(queue.cursor, offset, outcome)])

    def settle_now(self) -> None:
        """See Door: it is, at once."""

    def touch(self, queue: Queue) -> None:
        """See Door."""
        queue.pump()

    def touch_last(self, queue: Queue) -> None:
        """See Door."""
        queue.pump()
