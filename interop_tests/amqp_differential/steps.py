"""The scripts: what is said to both brokers. Each has connections and names of its own, and leaves nothing behind that another one meets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gantrymq_gateways.amqp.wire.values import Field, Table


@dataclass(frozen=True)
class Call:
    """A method. `answers`: so many messages, confirmations and the like come unasked (`sides.UNASKED`): the step waits for them, and shows no other ones."""

    name: str
    arguments: tuple[Any, ...]
    channel: int = 1
    answers: int = 0
    on: str = "first"


@dataclass(frozen=True)
class Send:
    """A message. `answers`: as of a method."""

    exchange: str
    key: str
    body: bytes = b"body"
    mandatory: bool = False
    answers: int = 0
    channel: int = 1
    on: str = "first"
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Http:
    """A request to the management API, below `/api/`. `shows`: what of the answer is compared."""

    method: str
    path: str
    body: Any = None
    shows: tuple[str, ...] = ()


Step = Call | Send | Http


def table(**values: Any) -> Table:
    """`message_ttl=5` is `x-message-ttl`; integers as most clients send them."""
    return [("x-" + name.replace("_", "-"), typed(value)) for name, value in values.items()]


def typed(value: Any) -> Field:
    if isinstance(value, Field):
        return value
    if isinstance(value, bool):
        return Field("t", value)
    return Field("I", value) if isinstance(value, int) else Field("S", str(value).encode())


def queue(
    name: str,
    durable: bool = False,
    exclusive: bool = True,
    auto_delete: bool = False,
    passive: bool = False,
    arguments: Table | None = None,
    **more: Any,
) -> Call:
    return Call("queue.declare", (0, name, passive, durable, exclusive, auto_delete, False, arguments or []), **more)


def exchange(
    name: str,
    kind: str = "direct",
    passive: bool = False,
    durable: bool = False,
    auto_delete: bool = False,
    internal: bool = False,
    arguments: Table | None = None,
) -> Call:
    return Call("exchange.declare", (0, name, kind, passive, durable, auto_delete, internal, False, arguments or []))


def bind(name: str, source: str, key: str = "", arguments: Table | None = None) -> Call:
    return Call("queue.bind", (0, name, source, key, False, arguments or []))


def unbind(name: str, source: str, key: str = "") -> Call:
    return Call("queue.unbind", (0, name, source, key, []))


def drop(name: str, if_unused: bool = False, if_empty: bool = False) -> Call:
    return Call("queue.delete", (0, name, if_unused, if_empty, False))


def drop_exchange(name: str, if_unused: bool = False) -> Call:
    return Call("exchange.delete", (0, name, if_unused, False))


def consume(
    name: str,
    tag: str = "c",
    no_ack: bool = False,
    exclusive: bool = False,
    arguments: Table | None = None,
    **more: Any,
) -> Call:
    return Call("basic.consume", (0, name, tag, False, no_ack, exclusive, False, arguments or []), **more)


def get(name: str, no_ack: bool = True, **more: Any) -> Call:
    return Call("basic.get", (0, name, no_ack), **more)


def ack(tag: int, multiple: bool = False, **more: Any) -> Call:
    return Call("basic.ack", (tag, multiple), **more)


def nack(tag: int, multiple: bool = False, requeue: bool = False, **more: Any) -> Call:
    return Call("basic.nack", (tag, multiple, requeue), **more)


CONFIRM: Final = Call("confirm.select", (False,))


def differing() -> list[Step]:
    """A queue and an exchange declared again with one thing other than before."""
    base: dict[str, Any] = {"message_ttl": 60000, "max_length": 10, "dead_letter_exchange": "amq.fanout"}
    steps: list[Step] = [queue("d-q", arguments=table(**base)), queue("d-q", arguments=table(**base))]
    for change in (
        {"message_ttl": 1}, {"max_length": 11}, {"max_length": None}, {"dead_letter_exchange": "other"}, {"dead_letter_exchange": None}, {"expires": 60000},
        {"max_length_bytes": 5}, {"overflow": "reject-publish"}, {"max_priority": 5}, {"single_active_consumer": True}, {"dead_letter_routing_key": "k"},
        {"queue_mode": "lazy"}, {"queue_type": "classic"}, {"unknown": 7}, {"message_ttl": Field("l", 60000)},
    ):  # fmt: skip
        values = {name: value for name, value in {**base, **change}.items() if value is not None}
        steps.append(queue("d-q", arguments=table(**values)))
    steps += [
        queue("d-q", durable=True, arguments=table(**base)),
        queue("d-q", auto_delete=True, arguments=table(**base)),
        queue("d-q", exclusive=False, arguments=table(**base)),
    ]
    steps += [
        exchange("d-e"),
        exchange("d-e"),
        exchange("d-e", "topic"),
        exchange("d-e", durable=True),
        exchange("d-e", auto_delete=True),
        exchange("d-e", internal=True),
    ]
    steps += [exchange("d-e", arguments=[("alternate-exchange", typed("amq.fanout"))]), drop_exchange("d-e")]
    return steps


def wrong_arguments() -> list[Step]:
    """Arguments of a wrong type or out of range."""
    steps: list[Step] = []
    for number, arguments in enumerate((
        table(message_ttl=-1), table(message_ttl="5"), table(message_ttl=Field("l", 1 << 40)), table(expires=Field("l", 1 << 40)), table(expires=0), table(expires=-1), table(expires="x"),
        table(max_length=-1), table(max_length="x"), table(max_length_bytes=-1), table(overflow="spill"), table(overflow=5), table(max_priority=256),
        table(max_priority=-1), table(max_priority="x"), table(dead_letter_exchange=5), table(dead_letter_routing_key="k"), table(dead_letter_routing_key=5, dead_letter_exchange="x"),
        table(single_active_consumer="yes"), table(queue_mode="fast"), table(queue_type="fast"), table(queue_type=5), table(queue_version="two"),
        table(delivery_limit=5), table(consumer_timeout=-1), table(consumer_timeout="x"),
    )):  # fmt: skip
        name = f"w-{number}"
        steps += [queue(name, arguments=arguments), drop(name)]
    quorum = table(queue_type="quorum")
    steps += [
        drop("w-quorum"),
        queue("w-quorum", exclusive=False, arguments=quorum),
        queue("w-quorum", durable=True, arguments=quorum),
        queue("w-quorum", durable=True, exclusive=False, auto_delete=True, arguments=quorum),
        queue("w-quorum", durable=True, exclusive=False, arguments=table(queue_type="quorum", max_priority=5)),
        drop("w-quorum"),
        queue(
            "w-quorum",
            durable=True,
            exclusive=False,
            arguments=table(queue_type="quorum", overflow="reject-publish-dlx"),
        ),
        drop("w-quorum"),
        exchange("w-e", "foo"),
        exchange("w-h", "headers"),
        queue("w-b"),
        bind("w-b", "w-h", "", [("x-match", typed("some"))]),
        bind("w-b", "w-h", "", [("x-match", typed(5))]),
        drop_exchange("w-h"),
    ]
    return steps


SCRIPTS: Final[dict[str, list[Step]]] = {
    "declared again": differing(),
    "wrong arguments": wrong_arguments(),
    "what is not there": [
        queue("m-none", passive=True), exchange("m-none", passive=True), get("m-none"), consume("m-none"), Call("queue.purge", (0, "m-none", False)),
        bind("m-none", "amq.direct"), unbind("m-none", "amq.direct"), drop("m-none"), drop_exchange("m-none"), Send("m-none", "k"),
        queue("m-q"), bind("m-q", "m-none"), unbind("m-q", "m-none"), unbind("m-q", "amq.direct", "k"),
        Call("exchange.bind", (0, "amq.direct", "m-none", "", False, [])), Call("exchange.bind", (0, "m-none", "amq.direct", "", False, [])),
        Call("exchange.unbind", (0, "m-none", "amq.direct", "", False, [])), Call("basic.cancel", ("m-none", False)),
        ack(1), ack(0), ack(0, True), ack(5, True), nack(1), nack(0, True), Call("basic.reject", (1, False)),
    ],
    "no queue was declared": [get(""), Call("queue.purge", (0, "", False)), bind("", "amq.direct"), consume("")],
    "names of the server": [
        queue("amq.mine"), exchange("amq.mine"), queue(""), exchange("amq.direct", durable=True), exchange("amq.direct", "topic", durable=True),
        drop_exchange("amq.direct"), exchange("", passive=True), drop_exchange(""), Call("exchange.bind", (0, "", "amq.direct", "", False, [])),
        queue("n-q"), bind("n-q", ""), unbind("n-q", ""), exchange("amq.rabbitmq.trace", "topic", passive=True), Send("amq.rabbitmq.trace", "x"),
    ],
    "somebody else's queue": [
        queue("x-q", on="owner"), queue("x-q"), queue("x-q", passive=True), get("x-q"), consume("x-q"), drop("x-q"), bind("x-q", "amq.direct"),
        Call("queue.purge", (0, "x-q", False)), unbind("x-q", "amq.direct"), Send("", "x-q"), get("x-q", on="owner"),
    ],
    "in use": [
        queue("u-q"), consume("u-q", "one"), drop("u-q", if_unused=True), consume("u-q", "two", exclusive=True), Call("basic.cancel", ("one", False)),
        consume("u-q", "only", exclusive=True), consume("u-q", "more"), Call("basic.cancel", ("only", False)), Send("", "u-q", answers=1), Call("queue.delete", (0, "u-q", False, True, False), answers=1),
        exchange("u-e"), bind("u-q", "u-e", "k"), drop_exchange("u-e", if_unused=True), drop_exchange("u-e"), drop("u-q"),
    ],
    "a tag twice": [queue("t-q"), consume("t-q", "same"), consume("t-q", "same")],
    "an internal exchange": [exchange("i-e", internal=True), Send("i-e", "k"), drop_exchange("i-e")],
    "not supported: size": [Call("basic.qos", (10, 0, False))],
    "not supported: immediate": [queue("s-q"), Call("basic.recover", (False,))],
    "flow": [Call("channel.flow", (False,))],
    "confirms": [
        CONFIRM, queue("c-q", arguments=table(max_length=1, overflow="reject-publish")), Send("", "c-q", answers=1), Send("", "c-q", answers=1),
        Send("", "c-none", answers=1), Send("", "c-none", mandatory=True, answers=2), Send("amq.fanout", "x", mandatory=True, answers=2), CONFIRM,
        Call("tx.select", ()),
    ],
    "transactions": [
        Call("tx.commit", ()), Call("tx.rollback", ()), Call("tx.select", ()), Call("tx.select", ()), CONFIRM, Call("tx.select", ()), queue("tx-q"), Send("", "tx-q"), get("tx-q"),
        Call("tx.commit", ()), get("tx-q"), Send("", "tx-q"), Call("tx.rollback", ()), get("tx-q"), Send("", "tx-none", mandatory=True), Call("tx.commit", (), answers=1),
    ],
    "properties": [
        queue("p-q"),
        *(Send("", "p-q", properties=each) for each in (
            {"user_id": "bob"}, {"expiration": "soon"}, {"expiration": "-1"}, {"expiration": ""}, {"headers": [("CC", typed("x"))]},
            {"headers": [("BCC", typed(5))]},
        )),
        Send("", "p-q", properties={"user_id": "guest", "priority": 200, "delivery_mode": 2, "type": "t", "headers": [("n", Field("l", 5)), ("CC", Field("A", [typed("p-q")]))]}),
        get("p-q"), get("p-q"), Send("", "p-q", properties={"expiration": "99999999999"}), Send("", "p-q", properties={"headers": [("CC", Field("A", [typed(5)]))]}),
    ],
    "deliveries": [
        queue("r-q"), *(Send("", "r-q", b"%d" % number) for number in range(6)), get("r-q", False), get("r-q", False), get("r-q", False), nack(3, requeue=True), nack(1, requeue=True),
        get("r-q", False), get("r-q", False), Call("basic.recover", (True,)), consume("r-q", "c", answers=6), ack(6), ack(6), Call("queue.purge", (0, "r-q", False)), drop("r-q"),
    ],
    "a full queue gets something back": [
        queue("f-q", arguments=table(max_length=2)), Send("", "f-q", b"1"), Send("", "f-q", b"2"), get("f-q", False), get("f-q", False), Send("", "f-q", b"3"),
        Send("", "f-q", b"4"), nack(2, True, requeue=True), get("f-q", False), get("f-q", False), get("f-q", False), Call("basic.recover", (True,)), get("f-q"), get("f-q"), get("f-q"),
        queue("f-r", arguments=table(max_length=1, overflow="reject-publish")), Send("", "f-r", b"1"), get("f-r", False), Send("", "f-r", b"2"), nack(7, requeue=True), get("f-r"), get("f-r"),
    ],
    "one by one past what is gone": [
        queue("k-q", arguments=table(max_length=2)), Send("", "k-q", b"1"), get("k-q", False), *(Send("", "k-q", b"%d" % number) for number in range(2, 7)), *[get("k-q", False)] * 3,
        queue("k-p", arguments=table(max_priority=5)), Send("", "k-p", b"high", properties={"priority": 5}), Send("", "k-p", b"low"), *[get("k-p", False)] * 3,
    ],
    "dead letters": [
        exchange("l-e", "fanout"), queue("l-sink"), bind("l-sink", "l-e"), queue("l-q", arguments=table(dead_letter_exchange="l-e", max_length=2)),
        consume("l-sink", no_ack=True), Send("", "l-q", b"1", properties={"expiration": "60000", "headers": [("CC", Field("A", [typed("more")]))]}), Send("", "l-q", b"2"),
        Send("", "l-q", b"3", answers=1), get("l-q", False, channel=2), nack(1, channel=2, answers=1), get("l-q", False),
        Call("basic.reject", (3, False), answers=1), drop_exchange("l-e"),
    ],
    "priorities and singles": [
        queue("o-q", arguments=table(single_active_consumer=True)), consume("o-q", "first"), consume("o-q", "second"), consume("o-q", "third", exclusive=True, channel=2),
        Send("", "o-q", b"1", answers=1), Call("basic.cancel", ("first", False)), Send("", "o-q", b"2", answers=1),
        consume("o-q", "fourth", arguments=[("x-priority", typed("high"))]),
    ],
    "routing": [
        queue("h-q"), exchange("h-t", "topic"), exchange("h-h", "headers"), bind("h-q", "h-t", "a.#.b"), bind("h-q", "h-t", "*.x"),
        bind("h-q", "h-h", "", [("x-match", typed("any")), ("n", Field("I", 5)), ("x-y", typed("z"))]), *(
            step for key in ("a.b", "a.c.b", "a", "q.x", ".x", "x", "a..b") for step in (Send("h-t", key), get("h-q"))
        ), *(step for headers in (
            [("n", Field("l", 5))], [("n", Field("I", 6))], [("n", typed("5"))], [("n", Field("d", 5.0))], [("x-y", typed("z"))], [],
        ) for step in (Send("h-h", "", properties={"headers": headers}), get("h-q"))),
        drop_exchange("h-t"), drop_exchange("h-h"),
    ],
    "direct reply-to": [
        consume("amq.rabbitmq.reply-to"), Send("", "f-none", properties={"reply_to": "amq.rabbitmq.reply-to"}), consume("amq.rabbitmq.reply-to", no_ack=True),
        consume("amq.rabbitmq.reply-to", "again", no_ack=True), queue("amq.rabbitmq.reply-to", passive=True), get("amq.rabbitmq.reply-to"),
        queue("f-q"), Send("", "f-q", properties={"reply_to": "amq.rabbitmq.reply-to"}), get("f-q"), Send("", "amq.rabbitmq.reply-to.made-up", mandatory=True, answers=1),
    ],
    "policies": [
        *(Http("PUT", "policies/%2F/y-bad", {"pattern": "^y-bad", "definition": definition, **more}) for definition, more in (
            ({"max-length": -1}, {}), ({"max-length": "x"}, {}), ({"colour": "red"}, {}), ({}, {}), ({"overflow": "spill"}, {}), ({"expires": 0}, {}),
            ({"message-ttl": 5}, {"priority": "high"}), ({"message-ttl": 5}, {"apply-to": "people"}), ({"dead-letter-strategy": "never"}, {}),
            ({"delivery-limit": -5}, {}), ({"consumer-timeout": "x"}, {}), ({"alternate-exchange": 5}, {}),
        )),
        Http("DELETE", "policies/%2F/y-bad"), Http("PUT", "policies/%2F/y-bad", {"pattern": "(", "definition": {"max-length": 5}}), Http("PUT", "policies/%2F/y-bad", {"definition": {"max-length": 5}}),
        Http("PUT", "operator-policies/%2F/y-bad", {"pattern": "^y", "definition": {"dead-letter-exchange": "x"}}),
        Http("GET", "policies/%2F/y-none"), Http("DELETE", "policies/%2F/y-none"),
        Http("PUT", "policies/%2F/y-short", {"pattern": "^y-q", "definition": {"max-length": 2, "overflow": "reject-publish"}, "apply-to": "queues", "priority": 3}),
        Http("GET", "policies/%2F/y-short"), CONFIRM, queue("y-q"), queue("y-q", arguments=table(max_length=2)), CONFIRM,
        Send("", "y-q", answers=1), Send("", "y-q", answers=1), Send("", "y-q", answers=1),
        Http("GET", "queues/%2F/y-q", shows=("exclusive", "durable", "auto_delete")),
        Http("PUT", "operator-policies/%2F/y-op", {"pattern": "^y-q", "definition": {"max-length": 1}, "apply-to": "queues"}),
        Send("", "y-q", answers=1), Http("DELETE", "operator-policies/%2F/y-op"),
        Http("DELETE", "policies/%2F/y-short"), Http("PUT", "policies/%2F/y-alt", {"pattern": "^y-e$", "definition": {"alternate-exchange": "amq.fanout"}, "apply-to": "exchanges"}),
        exchange("y-e"), bind("y-q", "amq.fanout"), Call("queue.purge", (0, "y-q", False)), Send("y-e", "nobody", b"by the alternate", answers=1), get("y-q"), Http("DELETE", "policies/%2F/y-alt"),
        drop_exchange("y-e"),
    ],
    "management": [
        Http("PUT", "queues/%2F/g-q", {"durable": True, "arguments": {"x-max-length": 5}}), Http("PUT", "queues/%2F/g-q", {"durable": True, "arguments": {"x-max-length": 5}}),
        Http("PUT", "queues/%2F/g-q", {"durable": True, "arguments": {"x-max-length": 6}}), Http("PUT", "queues/%2F/g-q2", {"arguments": {"x-max-length": "six"}}),
        *(  # the first as KEDA's scaler asks
            Http("GET", f"queues/%2F?page=1&use_regex=true&pagination=false&name={name}&page_size=100", shows=("item_count",)) for name in ("%5Eg-q%24", "%5EG-Q%24", "g-%5Cd", "%5Eg-n", "%28")
        ),
        Http("GET", "queues/%2F/g-none"), Http("DELETE", "queues/%2F/g-none"), Http("PUT", "exchanges/%2F/g-e", {"type": "topic", "durable": True}),
        Http("PUT", "exchanges/%2F/g-e", {"type": "fanout", "durable": True}), Http("PUT", "exchanges/%2F/g-e2", {"type": "foo"}), Http("PUT", "exchanges/%2F/g-e2", {}),
        Http("POST", "bindings/%2F/e/g-e/q/g-q", {"routing_key": "a.#"}), Http("POST", "bindings/%2F/e/g-e/q/g-none", {"routing_key": "a"}),
        Http("POST", "exchanges/%2F/g-e/publish", {"properties": {}, "routing_key": "a.b", "payload": "hello", "payload_encoding": "string"}),
        Http("POST", "exchanges/%2F/g-e/publish", {"properties": {}, "routing_key": "b", "payload": "hello", "payload_encoding": "string"}),
        Http("POST", "queues/%2F/g-q/get", {"count": 5, "ackmode": "ack_requeue_false", "encoding": "auto"}), Http("DELETE", "queues/%2F/g-q/contents"),
        Http("GET", "bindings/%2F/e/g-e/q/g-q"), Http("DELETE", "bindings/%2F/e/g-e/q/g-q/a.%23"), Http("DELETE", "queues/%2F/g-q?if-empty=true"), Http("DELETE", "exchanges/%2F/g-e"), Http("DELETE", "exchanges/%2F/g-e2"),
        Http("GET", "vhosts/none"), Http("GET", "no-such-thing"), Http("GET", "exchanges/%2F/amq.topic", shows=("type", "durable", "auto_delete", "internal", "arguments", "vhost", "name")),
    ],
    "vhosts": [
        Http("PUT", "vhosts/v-shop"), Http("PUT", "vhosts/v-shop"), Http("GET", "vhosts/v-none"), Http("DELETE", "vhosts/v-none"), Http("GET", "vhosts/v-shop", shows=("name", "description", "tags", "tracing")),
        queue("v-q", durable=True, exclusive=False, on="in v-shop"), queue("v-q", passive=True), queue("v-none", passive=True, exclusive=False, on="in v-shop"), queue("amq.v", exclusive=False, on="in v-shop"),
        queue("v-q", durable=True, exclusive=False, arguments=table(max_length=5), on="in v-shop"),
        Send("", "v-q", b"one", on="in v-shop"), Send("v-none", "k", on="in v-shop"), Send("amq.topic", "k", b"nobody", mandatory=True, answers=1, on="in v-shop"), get("v-q", on="in v-shop"), get("v-q", on="in v-shop"),
        queue("v-work", durable=True, exclusive=False, arguments=table(dead_letter_exchange="", dead_letter_routing_key="v-q"), on="in v-shop"), Send("", "v-work", b"dies", on="in v-shop"), get("v-work", no_ack=False, on="in v-shop"),
        consume("v-q", no_ack=True, on="in v-shop"), Call("basic.reject", (2, False), answers=1, on="in v-shop"),
        Http("PUT", "vhost-limits/v-shop/max-queues", {"value": 2}), Http("GET", "vhost-limits/v-shop"), queue("v-third", exclusive=False, durable=True, on="in v-shop"), Http("DELETE", "vhost-limits/v-shop/max-queues"), Http("GET", "vhost-limits/v-shop"),
        Http("PUT", "policies/v-shop/p", {"pattern": "^x", "definition": {"max-length": 1}}), Http("GET", "policies/v-shop/p"), Http("GET", "policies/%2F/p"),
        Http("PUT", "queues/v-none/q", {"durable": True}), Http("GET", "queues/v-none"), Http("DELETE", "vhosts/v-shop"), Http("GET", "queues/v-shop"), Http("GET", "vhosts/v-shop"),
    ],
}  # fmt: skip
"""By name. A script's steps are played in order; its names begin with letters that no other one has."""
