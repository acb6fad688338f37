"""Exchange types, alternate exchanges, further keys, delays and direct replies through the door."""

from __future__ import annotations

import json
from base64 import b64encode
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.model.message import DELAYED, Message
from gantrymq_gateways.amqp.exchanges.hashing import Choice, Ring
from gantrymq_gateways.amqp.exchanges.headers import HeadersMatch, comparable
from gantrymq_gateways.amqp.exchanges.patterns import Pattern, pattern_of
from gantrymq_gateways.amqp.origin import tag_of
from gantrymq_gateways.amqp.routes import AmqpRoutes
from gantrymq_gateways.amqp.wire.content import Properties, decode_properties, encode_properties
from gantrymq_gateways.amqp.wire.values import Field, Table, encode_table
from gateways.tests.amqp.peer import NO_PROPERTIES, Content, Peer, Server, publish


def text(value: str) -> Field:
    return Field("S", value.encode())


def texts(*values: str) -> Field:
    return Field("A", [text(value) for value in values])


def rule(match: str, *pairs: tuple[str, Field]) -> Table:
    return [("x-match", text(match)), *pairs]


# arguments of the binding, headers, matches (observed on RabbitMQ 4.0)
HEADERS: list[tuple[Table, Table, bool]] = [
    ([("a", text("1"))], [("a", text("1"))], True),
    ([("a", text("1")), ("b", text("2"))], [("a", text("1"))], False),
    (rule("all"), [], True),
    (rule("any"), [("a", text("1"))], False),
    (rule("any", ("a", text("1")), ("b", text("2"))), [("b", text("2"))], True),
    (rule("any", ("a", text("1"))), [("a", text("2"))], False),
    (rule("all", ("x-a", text("1"))), [], True),
    (rule("all-with-x", ("x-a", text("1"))), [], False),
    (rule("all-with-x", ("x-a", text("1"))), [("x-a", text("1"))], True),
    (rule("any", ("x-a", text("1"))), [("x-a", text("1"))], False),
    (rule("any-with-x", ("x-a", text("1"))), [("x-a", text("1"))], True),
    (rule("all", ("a", Field("V", None))), [("a", Field("I", 7))], True),
    (rule("all", ("a", Field("V", None))), [], False),
    (rule("all", ("a", Field("I", 1))), [("a", text("1"))], False),
    (rule("all", ("a", Field("I", 1))), [("a", Field("l", 1))], True),
    (rule("all", ("a", Field("t", True))), [("a", Field("I", 1))], False),
    (rule("all", ("a", Field("I", 1))), [("a", Field("d", 1.0))], False),
    (rule("all", ("a", Field("A", [text("x")]))), [("a", texts("x"))], True),
]


@pytest.mark.parametrize(("arguments", "headers", "expected"), HEADERS)
def test_headers(arguments: Table, headers: Table, expected: bool) -> None:
    view = {name: comparable(field) for name, field in headers}
    assert HeadersMatch(arguments).matches(view) is expected


def test_a_pattern_of_wildcards_takes_a_step_per_word() -> None:
    class Words(list[str]):
        steps = 0

        def __iter__(self) -> Any:
            for word in list.__iter__(self):
                Words.steps += 1
                yield word

    assert not Pattern(pattern_of("#.a." * 60 + "b")).matches(Words(["a"] * 127))
    assert Words.steps == 127


@given(st.dictionaries(st.text(max_size=5), st.integers(1, 3), min_size=2, max_size=8))
def test_a_ring_keeps_what_it_can(weights: dict[str, int]) -> None:
    ring, backwards = Ring(), Ring()
    for number, (name, weight) in enumerate(weights.items()):
        ring.add(number, name, weight)
    for number, (name, weight) in reversed(list(enumerate(weights.items()))):
        backwards.add(number, name, weight)
    keys = [f"key{n}" for n in range(50)]
    before = {key: ring.choose(key) for key in keys}
    assert before == {key: backwards.choose(key) for key in keys}
    ring.remove(0)
    assert all(ring.choose(key) == was for key, was in before.items() if was)


def test_a_ring_shares_by_weight() -> None:
    ring = Ring()
    for number, weight in enumerate((1, 1, 2)):
        ring.add(number, f"q{number}", weight)
    found = [ring.choose(f"k{n}") for n in range(4000)]
    shares = [found.count(number) / 4000 for number in range(3)]
    assert shares == pytest.approx([0.25, 0.25, 0.5], abs=0.08)


def test_a_random_choice_takes_each() -> None:
    choice = Choice()
    for number in range(4):
        choice.add(number, f"q{number}")
    found = [choice.any() for _ in range(4000)]
    assert [found.count(number) / 4000 for number in range(4)] == pytest.approx([0.25] * 4, abs=0.05)
    assert len({choice.by_hash("k") for _ in range(10)}) == 1


def routes(*bindings: dict[str, str]) -> AmqpRoutes:
    made = AmqpRoutes()
    for number, binding in enumerate(bindings):
        made.add(number, binding["exchange"], json.dumps(binding))
    return made


def published(exchange: str, key: str, properties: bytes = b"") -> Message:
    message = Message(exchange, b"", properties, tag_of(key))
    message.exchange = exchange
    return message


def test_only_what_reads_more_is_not_remembered() -> None:
    arguments = b64encode(encode_table([("colour", text("red"))])).decode()
    made = routes(
        {"exchange": "t", "type": "topic", "key": "#", "queue": "q"},
        {"exchange": "h", "type": "headers", "key": "", "queue": "q", "arguments": arguments},
        {"exchange": "up", "type": "fanout", "key": "", "destination": "h"},
    )
    assert list(made.match(published("h", "", b"colour\x01red\x02"))) == [1]
    assert made.read_more
    assert list(made.match(published("up", "", b"colour\x01red\x02"))) == [1]
    assert made.read_more
    assert list(made.match(published("t", "k"))) == [0]
    assert not made.read_more
    assert list(made.leading_to("h")) == ["up"]
    made.remove(2)
    assert list(made.leading_to("h")) == []


def test_the_alternate_exchange_gets_what_nobody_wants() -> None:
    made = routes(
        {"exchange": "a", "type": "alternate", "key": "", "destination": "b"},
        {"exchange": "a", "type": "direct", "key": "k", "queue": "q"},
        {"exchange": "b", "type": "fanout", "key": "", "queue": "q"},
        {"exchange": "b", "type": "alternate", "key": "", "destination": "a"},
    )
    assert list(made.match(published("a", "k"))) == [1]
    assert list(made.match(published("a", "other"))) == [2]
    made.remove(2)
    assert list(made.match(published("a", "other"))) == []
    made.remove(0)
    made.remove(1)
    assert list(made.leading_to("b")) == []


# Through the door.


@pytest.fixture
def peer() -> Peer:
    return Server().client()


def queues(peer: Peer, *names: str) -> None:
    for name in names:
        peer.declare(name)


def declare(peer: Peer, exchange: str, kind: str, *arguments: tuple[str, Field]) -> None:
    reply = peer.call("exchange.declare", 0, exchange, kind, False, True, False, False, False, list(arguments))
    assert reply == [(1, "exchange.declare-ok", [])]


def bind(peer: Peer, queue: str, exchange: str, key: str = "", arguments: Table | None = None) -> None:
    reply = peer.call("queue.bind", 0, queue, exchange, key, False, arguments or [])
    assert reply == [(1, "queue.bind-ok", [])]


def headers(*pairs: tuple[str, Field], **fields: Any) -> bytes:
    return encode_properties(Properties(headers=list(pairs), **fields))


def got(peer: Peer, queue: str) -> tuple[str, str, Properties]:
    ((_, content),) = peer.call("basic.get", 0, queue, True)
    assert isinstance(content, Content)
    return content.arguments[2], content.arguments[3], decode_properties(content.properties)


def test_cc_and_bcc(peer: Peer) -> None:
    queues(peer, "one", "two", "three")
    declare(peer, "e", "direct")
    for name in ("one", "two", "three"):
        bind(peer, name, "e", name)
    peer.ask(publish(1, "e", "one", b"x", headers(("CC", texts("two")), ("BCC", texts("three")), ("k", text("v")))))
    for name in ("one", "two", "three"):
        exchange, key, properties = got(peer, name)
        assert (exchange, key) == ("e", "one")
        assert properties.headers == [("CC", texts("two")), ("k", text("v"))]
    peer.ask(publish(1, "e", "none", b"x", headers(("CC", texts("two", "two")))))
    assert [peer.count(name) for name in ("one", "two", "three")] == [0, 1, 0]


def test_cc_of_the_default_exchange(peer: Peer) -> None:
    queues(peer, "one.a", "two")
    reply = peer.ask(publish(1, "", "nobody", b"x", headers(("CC", texts("two", "one.a"))), mandatory=True))
    assert reply == []
    assert got(peer, "two")[:2] == ("", "nobody")
    assert got(peer, "one.a")[:2] == ("", "nobody")
    peer.ask(publish(1, "", "two", b"x", headers(("BCC", texts("one.a")))))
    assert [peer.count("one.a"), peer.count("two")] == [1, 1]


def test_mandatory_and_alternate(peer: Peer) -> None:
    queues(peer, "lost")
    declare(peer, "other", "fanout")
    declare(peer, "e", "direct", ("alternate-exchange", text("other")))
    ((_, returned),) = peer.ask(publish(1, "e", "k", b"x", mandatory=True))
    assert isinstance(returned, Content)
    bind(peer, "lost", "other")
    assert peer.ask(publish(1, "e", "k", b"x", mandatory=True)) == []
    assert got(peer, "lost")[:2] == ("e", "k")
    peer.call("exchange.delete", 0, "e", False, False)
    declare(peer, "e", "direct")
    peer.ask(publish(1, "e", "k", b"x"))
    assert peer.count("lost") == 0


def test_a_delay_is_handed_to_the_timers(peer: Peer) -> None:
    queues(peer, "q")
    declare(peer, "later", "x-delayed-message", ("x-delayed-type", text("direct")))
    declare(peer, "now", "direct")
    bind(peer, "q", "later", "k")
    bind(peer, "q", "now", "k")
    peer.ask(publish(1, "later", "k", b"x", headers(("x-delay", Field("I", 5000)), expiration="1000"), mandatory=True))
    message = peer.server.port.submitted[-1][0]
    assert message.kind == DELAYED
    assert message.property("TIMER_DELAY_MS") == "5000"
    assert int(message.property("GANTRY_EXPIRES_AT")) == message.born_ms + 6000
    assert got(peer, "q")[2].headers == [("x-delay", Field("l", -5000))]
    for exchange, field in (("now", Field("I", 5000)), ("later", Field("I", -1)), ("later", text("x"))):
        peer.ask(publish(1, exchange, "k", b"x", headers(("x-delay", field))))
        assert peer.server.port.submitted[-1][0].kind != DELAYED
        assert got(peer, "q")[2].headers == [("x-delay", field)]


def test_direct_replies() -> None:
    server = Server()
    asking, answering = server.client(1, 2), server.client()
    answering.declare("work")
    assert asking.call("queue.declare", 0, "amq.rabbitmq.reply-to", True, False, False, False, False, []) == [
        (1, "queue.declare-ok", ["amq.rabbitmq.reply-to", 0, 1])
    ]
    asked = encode_properties(Properties(reply_to="amq.rabbitmq.reply-to", correlation_id="7"))
    ((_, name, reply),) = asking.ask(publish(2, "", "work", b"x", asked))
    assert (name, reply[1]) == ("channel.close", "PRECONDITION_FAILED - fast reply consumer does not exist")
    asking.call("basic.consume", 0, "amq.rabbitmq.reply-to", "t", False, True, False, False, [])
    asking.ask(publish(1, "", "work", b"question", asked))
    _, _, properties = got(answering, "work")
    assert properties.reply_to is not None
    assert properties.reply_to.startswith("amq.rabbitmq.reply-to.token")
    answering.ask(publish(1, "", properties.reply_to, b"answer", mandatory=True))
    ((_, answer),) = asking.ask()
    assert (answer.name, answer.body, answer.arguments[0]) == ("basic.deliver", b"answer", "t")
    # Nobody else reads it, and who is gone is told to the one who answers.
    ((_, name, _),) = answering.call("basic.consume", 0, properties.reply_to, "u", False, True, False, False, [])
    assert name == "channel.close"
    asking.call("basic.cancel", "t", False)
    other = server.client()
    ((_, returned),) = other.ask(publish(1, "", properties.reply_to, b"late", NO_PROPERTIES, mandatory=True))
    assert (returned.name, returned.arguments[0]) == ("basic.return", 312)
    assert not [queue for queue in server.gateway.definitions.queues if queue.startswith("amq.rabbitmq")]


class FewKeys:
    """An identity (`auth.authority.Identity`) that may publish with keys that begin with `ok`."""

    name = "few"
    alive = True

    def __init__(self) -> None:
        self.denied: list[str] = []

    def refused(self, _door: str, _action: str, resource: str, _why: str) -> None:
        self.denied.append(resource)

    def decide_amqp(self, *_needs: object) -> Any:
        return SimpleNamespace(allowed=True)

    def decide_routing_key(self, _which: int, _vhost: str, _exchange: str, key: str) -> Any:
        return SimpleNamespace(allowed=key.startswith("ok"))


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_further_keys_need_the_same_right_as_the_first(header: str) -> None:
    peer = Server().client()
    queues(peer, "q")
    declare(peer, "e", "topic")
    bind(peer, "q", "e", "#")
    identity = FewKeys()
    peer.door.identity = identity  # type: ignore[assignment]
    peer.ask(publish(1, "e", "ok.1", b"x", headers((header, texts("ok.2")))))
    assert peer.count("q") == 1
    ((_, name, reply),) = peer.ask(publish(1, "e", "ok.1", b"x", headers((header, texts("ok.2", "secret")))))
    assert (name, reply[0]) == ("channel.close", 403)
    assert "topic 'secret'" in reply[1]
    assert identity.denied == ["routing key secret of exchange e"]
