"""What each method needs: RabbitMQ's configure, write and read on exchanges and queues, asked before its handler runs.

The table has every method that the door takes; one without a row is refused to everybody (tests go through it). Texts are RabbitMQ's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.auth.authority import AMQP_NATIVE, CONFIGURE, EXCHANGE, QUEUE, READ, WRITE, Identity
from gantrymq.auth.resources import Action, Kind
from gantrymq.auth.rights import Decision
from gantrymq_gateways.amqp.origin import ROOT, clean, full_name, local, prefix_of
from gantrymq_gateways.amqp.properties.mapping import topic_of
from gantrymq_gateways.amqp.wire.constants import ACCESS_REFUSED, NOT_ALLOWED, AmqpError
from gantrymq_gateways.amqp.wire.values import lookup, text_of

if TYPE_CHECKING:
    from gantrymq_gateways.amqp.channels.channel import Channel

DOOR: Final = "amqp"
"""What the audit trail calls it."""

VHOST: Final = ROOT

ANY: Final = 3
"""One of the three: who looks whether something is there must have to do with it."""

WORDS: Final = ("configure", "write", "read", "passive")

GENERATED: Final = "amq.gen-"
"""How names begin that the server makes: an empty name in a declaration."""

PUBLISHABLE_MAX: Final = 1000
"""Places remembered that a connection may publish to."""

DEFAULT_NAME: Final = "amq.default"
"""What permissions call the default exchange."""


class Known(Protocol):
    """What is needed of `definitions.Definitions`."""

    @property
    def queues(self) -> Mapping[str, object]: ...

    def known_exchange(self, name: str) -> object | None: ...


Need = tuple[int, str, str]
"""Which permission, on what, its name."""

Needs = Callable[["Channel", list[Any]], Iterable[Need]]


def nothing(_channel: Channel, _arguments: list[Any]) -> Iterable[Need]:
    """Concerns the channel alone, or what was allowed when it began."""
    return ()


def _declare_exchange(_channel: Channel, arguments: list[Any]) -> Iterable[Need]:
    name, passive, table = arguments[1], arguments[3], arguments[8]
    if passive:
        yield ANY, EXCHANGE, name
        return
    yield CONFIGURE, EXCHANGE, name
    alternate = lookup(table, "alternate-exchange")
    if alternate is not None:
        yield READ, EXCHANGE, name
        yield WRITE, EXCHANGE, text_of(alternate)


def _declare_queue(_channel: Channel, arguments: list[Any]) -> Iterable[Need]:
    name, passive, table = arguments[1] or GENERATED, arguments[2], arguments[7]
    if passive:
        yield ANY, QUEUE, name
        return
    yield CONFIGURE, QUEUE, name
    letters = lookup(table, "x-dead-letter-exchange")
    if letters is not None:
        yield READ, QUEUE, name
        yield WRITE, EXCHANGE, text_of(letters)


def _bind_queue(channel: Channel, arguments: list[Any]) -> Iterable[Need]:
    yield WRITE, QUEUE, local(channel.queue_name(arguments[1]))
    yield READ, EXCHANGE, arguments[2]


def _bind_exchange(_channel: Channel, arguments: list[Any]) -> Iterable[Need]:
    yield WRITE, EXCHANGE, arguments[1]
    yield READ, EXCHANGE, arguments[2]


def _named(which: int, what: str) -> Needs:
    def needs(channel: Channel, arguments: list[Any]) -> Iterable[Need]:
        yield which, what, local(channel.queue_name(arguments[1])) if what == QUEUE else arguments[1]

    return needs


NEEDS: Final[dict[str, Needs]] = {
    "channel.flow": nothing, "channel.flow-ok": nothing, "access.request": nothing, "confirm.select": nothing,
    "tx.select": nothing, "tx.commit": nothing, "tx.rollback": nothing,
    "exchange.declare": _declare_exchange,
    "exchange.delete": _named(CONFIGURE, EXCHANGE),
    "exchange.bind": _bind_exchange,
    "exchange.unbind": _bind_exchange,
    "queue.declare": _declare_queue,
    "queue.bind": _bind_queue,
    "queue.unbind": _bind_queue,
    "queue.purge": _named(READ, QUEUE),
    "queue.delete": _named(CONFIGURE, QUEUE),
    "basic.qos": nothing, "basic.cancel": nothing, "basic.cancel-ok": nothing, "basic.ack": nothing, "basic.reject": nothing,
    "basic.nack": nothing, "basic.recover": nothing, "basic.recover-async": nothing,
    "basic.consume": _named(READ, QUEUE),
    "basic.get": _named(READ, QUEUE),
}  # fmt: skip
"""By method. basic.publish is asked by `check_publish`."""


def change_of(channel: Channel, definitions: Known, name: str, arguments: list[Any]) -> str:
    """What a method that is allowed makes or deletes, for the audit trail; empty: nothing that lasts. What is declared again, as clients do
    whenever they start, and what is its connection's own (exclusive) is none."""
    if name == "queue.declare":
        queue, passive, exclusive = arguments[1], arguments[2], arguments[4]
        new = channel.prefix + queue not in definitions.queues
        return f"queue {queue}" if queue and not passive and not exclusive and new else ""
    if name == "exchange.declare":
        exchange, passive = arguments[1], arguments[3]
        return (
            ""
            if passive or definitions.known_exchange(channel.prefix + exchange) is not None
            else f"exchange {exchange}"
        )
    if name in ("queue.delete", "queue.purge"):
        queue = channel.queue_name(arguments[1])
        return f"queue {local(queue)}" if queue in definitions.queues else ""
    if name == "exchange.delete":
        return (
            f"exchange {arguments[1]}" if definitions.known_exchange(channel.prefix + arguments[1]) is not None else ""
        )
    return ""


def decide(identity: Identity, need: Need, vhost: str = VHOST) -> Decision:
    """Whether somebody has what a method needs."""
    which, what, name = need
    if which == ANY:
        found = [decide(identity, (each, what, name), vhost) for each in (CONFIGURE, WRITE, READ)]
        return next((each for each in found if each.allowed), found[0])
    kind = Kind.TOPIC if what == EXCHANGE else Kind.QUEUE
    full = full_name(prefix_of(vhost), name)
    native = topic_of(full) if what == EXCHANGE or vhost != VHOST else name
    return identity.decide_amqp(which, vhost, name, (AMQP_NATIVE[which, what], kind, native))


def refusal(identity: Identity, need: Need, vhost: str = VHOST) -> AmqpError:
    """On AMQP's terms."""
    which, what, name = need
    word = WORDS[which] if which != ANY else WORDS[CONFIGURE]
    text = f"{word} access to {what} '{name}' in vhost '{vhost}' refused for user '{identity.name}'"
    return AmqpError(ACCESS_REFUSED, text)


def refused(identity: Identity, need: Need, vhost: str = VHOST) -> AmqpError:
    """As `refusal`, of what somebody tried: it stands in the audit trail, too."""
    identity.refused(DOOR, WORDS[need[0]], f"{need[1]} {need[2]}", decide(identity, need, vhost).rule)
    return refusal(identity, need, vhost)


def check_method(identity: Identity, channel: Channel, name: str, arguments: list[Any]) -> None:
    """Raises AmqpError for what the user may not do."""
    needs = NEEDS.get(name)
    if needs is None:
        raise AmqpError(ACCESS_REFUSED, f"{name} has no declared right")
    vhost = channel.door.vhost
    for need in needs(channel, arguments):
        if need[1] == QUEUE and need[2].startswith("amq.rabbitmq.reply-to"):
            continue  # the connection's own
        if not decide(identity, need, vhost).allowed:
            raise refused(identity, need, vhost)


def check_publish(identity: Identity, exchange: str, key: str, vhost: str = VHOST) -> None:
    """Raises AmqpError for what the user may not publish."""
    if exchange:
        need: Need = (WRITE, EXCHANGE, exchange)
        allowed = decide(identity, need, vhost).allowed
    elif key.startswith("amq.rabbitmq.reply-to"):
        return  # whoever was asked may answer: the name cannot be guessed
    else:
        need = (WRITE, EXCHANGE, DEFAULT_NAME)
        native = key if vhost == VHOST else topic_of(full_name(prefix_of(vhost), key))
        allowed = identity.decide_amqp(WRITE, vhost, DEFAULT_NAME, (Action.PUB, Kind.QUEUE, native)).allowed
    if not allowed:
        raise refused(identity, need, vhost)
    if not identity.decide_routing_key(WRITE, vhost, exchange or DEFAULT_NAME, key).allowed:
        text = f"write access to topic '{key}' in exchange '{exchange}' in vhost '{vhost}' refused for user '{identity.name}'"
        identity.refused(DOOR, "write", f"routing key {key} of exchange {exchange}", "topic permission")
        raise AmqpError(ACCESS_REFUSED, text)


def check_vhost(identity: Identity, vhost: str) -> None:
    """Raises AmqpError for a vhost that is not the user's."""
    if not identity.may_enter(vhost):
        text = f"access to vhost '{vhost}' refused for user '{identity.name}'"
        identity.refused(DOOR, "open", f"vhost {vhost}", "no permission in this vhost")
        raise AmqpError(NOT_ALLOWED, text, connection=True)


class Publishable:
    """Where a connection may publish to: arguments of basic.publish that are allowed, as far as it was asked."""

    __slots__ = ("_allowed",)

    def __init__(self) -> None:
        self._allowed: dict[bytes, None] = {}

    def check(self, identity: Identity, arguments: bytes, vhost: str) -> None:
        """Raises AmqpError for what the user may not publish."""
        if arguments not in self._allowed:
            at = 3 + arguments[2]  # behind two bytes of a ticket
            exchange, key = arguments[3:at], arguments[at + 1 : at + 1 + arguments[at]]
            check_publish(identity, clean(exchange.decode("utf-8", "replace")), key.decode("utf-8", "replace"), vhost)
            if len(self._allowed) >= PUBLISHABLE_MAX:
                self._allowed.clear()
            self._allowed[arguments] = None

    def forget(self) -> None:
        """Something changed: all is asked again."""
        self._allowed.clear()
