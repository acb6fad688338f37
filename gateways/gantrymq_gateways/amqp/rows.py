"""What an exchange, a queue and a binding are, and their rows in the tables `amqp_exchange`, `amqp_queue` and `amqp_binding`."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from gantrymq_gateways.amqp.exchanges.arguments import Rules, rules_of
from gantrymq_gateways.amqp.origin import local, prefix_of
from gantrymq_gateways.amqp.properties.mapping import topic_of

EXCHANGE_TABLE: Final = "amqp_exchange"
QUEUE_TABLE: Final = "amqp_queue"
BINDING_TABLE: Final = "amqp_binding"


@dataclass(frozen=True, slots=True)
class Exchange:
    """`arguments`: the table as sent."""

    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: bytes = b""

    @property
    def rules(self) -> Rules:
        """What type and arguments mean."""
        return rules_of(self.type, self.arguments)


@dataclass(frozen=True, slots=True)
class QueueDefinition:
    """`light`: its light queue, never used twice, so it also tells a queue from an earlier one of the same name."""

    name: str
    light: int
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: bytes
    finished: bool = True

    @property
    def shared(self) -> bool:
        """It has a topic of its own name; the others live in one system topic."""
        return self.durable and not self.exclusive and not self.auto_delete and not local(self.name).startswith("amq.")

    @property
    def transient(self) -> bool:
        """It goes when its gateway goes."""
        return self.exclusive or not self.durable


@dataclass(frozen=True, slots=True)
class Binding:
    """From an exchange to a queue, or to an exchange."""

    source: str
    to_queue: bool
    destination: str
    key: str
    arguments: bytes
    finished: bool = True

    @property
    def row(self) -> str:
        """Key in the table, and the route's id behind `amqp.b.`."""
        identity = [self.source, self.to_queue, self.destination, self.key, self.arguments.hex()]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:40]


SYSTEM_EXCHANGES: Final = {
    **{
        name: Exchange(name, kind)
        for name, kind in (
            ("amq.direct", "direct"), ("amq.fanout", "fanout"), ("amq.headers", "headers"), ("amq.match", "headers"),
            ("amq.topic", "topic"),
        )
    },
    "amq.rabbitmq.trace": Exchange("amq.rabbitmq.trace", "topic", internal=True),
}  # fmt: skip
"""Of every vhost."""


def system_exchange(name: str) -> Exchange | None:
    """By its full name."""
    found = SYSTEM_EXCHANGES.get(local(name))
    return found if found is None or found.name == name else replace(found, name=name)


def system_exchanges(vhost: str) -> list[Exchange]:
    """Those of a vhost."""
    prefix = prefix_of(vhost)
    return [replace(exchange, name=prefix + exchange.name) for exchange in SYSTEM_EXCHANGES.values()]


NO_ARGUMENTS: Final = bytes(4)
"""A table without entries."""


class _ExchangeRow(msgspec.Struct):
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: bytes = b""


class _QueueRow(msgspec.Struct, omit_defaults=True):
    light: int
    durable: bool
    exclusive: bool = False
    auto_delete: bool = False
    arguments: bytes = NO_ARGUMENTS
    finished: bool = True


class _BindingRow(msgspec.Struct, omit_defaults=True):
    source: str
    to_queue: bool
    destination: str
    key: str
    arguments: bytes = NO_ARGUMENTS
    finished: bool = True


SAME_MAX: Final = 10_000
_same_arguments: dict[bytes, bytes] = {}
"""One object for equal tables of arguments; with `SAME_MAX` of them it begins anew."""


def _shared(arguments: bytes) -> bytes:
    if arguments == NO_ARGUMENTS:  # a row leaves out what is this very object
        return NO_ARGUMENTS
    if len(_same_arguments) >= SAME_MAX:
        _same_arguments.clear()
    return _same_arguments.setdefault(arguments, arguments)


_decode_exchange = msgspec.json.Decoder(_ExchangeRow).decode
_decode_queue = msgspec.json.Decoder(_QueueRow).decode
_decode_binding = msgspec.json.Decoder(_BindingRow).decode


def encoded(value: dict[str, Any]) -> bytes:
    """JSON without a space."""
    return msgspec.json.encode(value)


def in_base64(data: bytes) -> str:
    """As bytes stand in JSON."""
    return base64.b64encode(data).decode()


def exchange_row(exchange: Exchange) -> bytes:
    """Value in `amqp_exchange`."""
    return encoded(
        {
            "type": exchange.type, "durable": exchange.durable, "auto_delete": exchange.auto_delete,
            "internal": exchange.internal, "arguments": in_base64(exchange.arguments),
        }
    )  # fmt: skip


NO_EXCHANGE: Final = b'{"type":""}'
"""Row of a name that is no exchange though a topic of that name exists: deleted, or made by a queue."""


def exchange_from(name: str, data: bytes) -> Exchange | None:
    """Back from `exchange_row`; None: no exchange. Raises msgspec.DecodeError."""
    row = _decode_exchange(data)
    if not row.type:
        return None
    return Exchange(name, row.type, row.durable, row.auto_delete, row.internal, row.arguments)


def queue_row(queue: QueueDefinition) -> bytes:
    """Value in `amqp_queue`, without what is as most often."""
    arguments = _shared(queue.arguments)
    return msgspec.json.encode(
        _QueueRow(queue.light, queue.durable, queue.exclusive, queue.auto_delete, arguments, queue.finished)
    )


def queue_from(name: str, data: bytes) -> QueueDefinition:
    """Back from `queue_row`. Raises msgspec.DecodeError."""
    row = _decode_queue(data)
    return QueueDefinition(
        name, row.light, row.durable, row.exclusive, row.auto_delete, _shared(row.arguments or b""), row.finished
    )


def binding_row(binding: Binding) -> bytes:
    """Value in `amqp_binding`, without what is as most often."""
    arguments = _shared(binding.arguments)
    return msgspec.json.encode(
        _BindingRow(binding.source, binding.to_queue, binding.destination, binding.key, arguments, binding.finished)
    )


def binding_from(data: bytes) -> Binding:
    """Back from `binding_row`. Raises msgspec.DecodeError."""
    row = _decode_binding(data)
    arguments = _shared(row.arguments or b"")
    return Binding(row.source, row.to_queue, row.destination, row.key, arguments, row.finished)


def check_binding(key: str, data: bytes) -> None:
    """Raise for a row of `amqp_binding` that is none, or stands under another key than its own."""
    if binding_from(data).row != key:
        raise ValueError("the key is not that of the binding")


def topics_of_exchange(key: str, data: bytes) -> list[str]:
    """Native topics that a row of `amqp_exchange` needs: a declared exchange's."""
    return [topic_of(key)] if exchange_from(key, data) is not None else []


def topics_of_queue(key: str, data: bytes) -> list[str]:
    """As `topics_of_exchange`, of `amqp_queue`."""
    return [topic_of(key)]


def topics_of_binding(key: str, data: bytes) -> list[str]:
    """As `topics_of_exchange`, of `amqp_binding`."""
    return [topic_of(binding_from(data).source)]
