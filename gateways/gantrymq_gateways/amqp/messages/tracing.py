"""The firehose: a copy of every message that is published to a vhost or delivered from it, at the vhost's exchange `amq.rabbitmq.trace`.

Off but for vhosts whose row says so (`gantry amqp trace on`); then nobody waits for the copies. What is on its way is bounded, and copies beyond
that are dropped and counted. Copies are not traced themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.broker.port import BrokerPort, SubmitResult
from gantrymq.metrics import Counter
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq_gateways.amqp.origin import own_prefix, prefix_of, tag_of
from gantrymq_gateways.amqp.properties.mapping import native_target, topic_of
from gantrymq_gateways.amqp.properties.reading import PropertyReader
from gantrymq_gateways.amqp.wire.codec import split_publish
from gantrymq_gateways.amqp.wire.constants import AmqpError
from gantrymq_gateways.amqp.wire.content import Properties, decode_properties, encode_properties
from gantrymq_gateways.amqp.wire.events import Publish
from gantrymq_gateways.amqp.wire.values import SHORTSTR_BYTES_MAX, Field, Table, lookup, read_shortstr

if TYPE_CHECKING:
    from gantrymq_gateways.amqp.messages.transaction import Transaction

log = logging.getLogger(__name__)

EXCHANGE: Final = "amq.rabbitmq.trace"
OPEN_BYTES_MAX: Final = 4 << 20
"""Copies of a vhost that are not stored yet: a turn of small messages, or one large one."""
COPY_BYTES: Final = 1_024
"""What one takes beside its body."""

_KINDS: Final = {"delivery_mode": "I", "priority": "I", "timestamp": "T", "headers": "F"}
"""Of properties in a copy; the others are texts."""


class Tracer:
    """Of one vhost. `node`: as RabbitMQ names nodes; `dropped`: copies of all vhosts that were dropped; `routed`: `RoutedQueues.of`."""

    def __init__(
        self,
        port: BrokerPort,
        vhost: str,
        node: str,
        dropped: Counter,
        routed: Callable[[str, str, Properties], list[str] | None],
    ) -> None:
        self._dropped = dropped
        self._routed = routed
        self._told = False
        self._port = port
        self._vhost = vhost
        self._node = node
        self._exchange = prefix_of(vhost) + EXCHANGE
        self._topic = topic_of(self._exchange)
        self._reader = PropertyReader("", special=True)
        self._open_bytes = 0

    def published(self, arguments: bytes, properties: bytes, body: bytes, channel: int, who: tuple[str, str]) -> None:
        """`arguments`: of basic.publish; `who`: connection and user."""
        exchange, key, _, _ = split_publish(arguments)
        self._copy("publish", exchange, exchange, key, properties, body, about_of(channel, who))

    def delivered(
        self, queue: str, tail: bytes, properties: bytes, body: bytes, redelivered: bool, about: Table
    ) -> None:
        """`queue`: its full name; `tail`: exchange and routing key, as basic.deliver ends with them."""
        exchange, at = read_shortstr(tail, 0)
        key, _ = read_shortstr(tail, at)
        if exchange != EXCHANGE:
            name = queue.removeprefix(own_prefix(queue))
            self._copy(
                "deliver", name, exchange, key, properties, body, [*about, ("redelivered", Field("I", redelivered))]
            )

    def _copy(
        self, what: str, name: str, exchange: str, key: str, properties: bytes, body: bytes, about: Table
    ) -> None:
        size = len(body) + COPY_BYTES
        if self._open_bytes and self._open_bytes + size > OPEN_BYTES_MAX:
            self._drop("too much is on its way")
            return
        try:
            said = decode_properties(properties)
            if what == "publish" and (queues := self._routed(exchange, key, said)) is not None:
                about = [*about, ("routed_queues", Field("A", [_text(queue) for queue in queues]))]
            message = self._message(f"{what}.{name}", exchange, key, said, body, about)
        except (AmqpError, GantryError, ValueError) as error:  # its properties and ours are too much for one record
            self._drop(str(error))
            return
        self._open_bytes += size
        self._port.submit([message], size, self._stored, self)

    def _message(
        self, routing_key: str, exchange: str, key: str, properties: Properties, body: bytes, about: Table
    ) -> Message:
        further = lookup(properties.headers or [], "CC")
        keys = [_text(key), *(further.value if further is not None and further.kind == "A" else [])]
        headers: Table = [
            ("exchange_name", _text(exchange)),
            ("routing_keys", Field("A", keys)),
            ("properties", Field("F", _table_of(properties))),
            ("node", _text(self._node)),
            ("vhost", _text(self._vhost)),
            *about,
        ]
        tag = tag_of(routing_key.encode("utf-8", "replace")[:SHORTSTR_BYTES_MAX].decode("utf-8", "ignore"))
        content = self._reader.read(encode_properties(Properties(headers=headers)))
        message = Message(self._topic, body, native_target(self._exchange, tag, "") + content.native, tag)
        message.exchange = self._exchange
        return message

    def _stored(self, size: Any, result: list[SubmitResult] | GantryError) -> None:
        self._open_bytes -= size
        if isinstance(result, GantryError):
            self._drop(result.text)
        elif isinstance(result[0], ErrorCode):
            self._drop(result[0].name)

    def _drop(self, why: str) -> None:
        self._dropped.value += 1
        if not self._told:
            self._told = True
            log.warning("amqp: vhost %r is traced with gaps: %s", self._vhost, why)


class Traced(Protocol):
    """Who has the tracers: the gateway."""

    tracers: dict[str, Tracer]


def trace(
    gateway: Traced, vhost: str, event: Publish, who: tuple[str, str], transaction: Transaction | None = None
) -> None:
    """Copy a publish, if its vhost is traced; that of a transaction when it is committed."""
    tracer = gateway.tracers.get(vhost)
    if tracer is None:
        return
    if transaction is not None:
        transaction.traced.append(event)
    else:
        tracer.published(event.arguments, event.properties, event.body, event.channel, who)


def about_of(channel: int, who: tuple[str, str]) -> Table:
    """Connection, channel and user."""
    return [("connection", _text(who[0])), ("channel", Field("I", channel)), ("user", _text(who[1]))]


def _table_of(properties: Properties) -> Table:
    found = ((name, getattr(properties, name)) for name in Properties.__dataclass_fields__)
    return [
        (name, Field(_KINDS[name], value) if name in _KINDS else _text(value))
        for name, value in found
        if value is not None
    ]


def _text(value: str) -> Field:
    return Field("S", value.encode("utf-8", "surrogatepass"))
