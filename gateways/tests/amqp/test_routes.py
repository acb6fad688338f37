"""The exchange graph against a plain model of AMQP's rules."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.broker.routing.router import route_to_bytes
from gantrymq.model.errors import GantryError
from gantrymq.model.message import Message
from gantrymq.model.names import encode_word
from gantrymq_gateways.amqp.exchanges.bindings import default_routes
from gantrymq_gateways.amqp.exchanges.patterns import Pattern, pattern_of
from gantrymq_gateways.amqp.origin import DIRECT_TOPIC, tag_of
from gantrymq_gateways.amqp.properties.mapping import topic_of
from gantrymq_gateways.amqp.routes import AmqpRoutes
from gantrymq_gateways.amqp.rows import QueueDefinition


def routes(*bindings: dict[str, str]) -> AmqpRoutes:
    made = AmqpRoutes()
    for number, binding in enumerate(bindings):
        assert made.add(number, None, json.dumps(binding)) is False
    return made


def published(exchange: str | None, key: str, topic: str | None = None) -> Message:
    message = Message(topic or exchange or "", b"", tag=tag_of(key))
    message.exchange = exchange
    return message


def bind(exchange: str, kind: str, key: str, **target: str) -> dict[str, str]:
    return {"exchange": exchange, "type": kind, "key": key, **(target or {"queue": "q"})}


# pattern, key, matches (observed on RabbitMQ)
PATTERNS = [
    ("#", "", True), ("*", "", False), ("*", "a", True), ("a.*", "a.", True), ("*.*", ".", True), ("a.#", "a", True),
    ("a.#", "a.b.c", True), ("#.c", "a.b.c", True), ("#.c", "c", True), ("a.#.c", "a.c", True), ("a.#.c", "a.b.b.c", True),
    ("a.*.c", "a.c", False), ("a.b", "a.b", True), ("a.b", "a.b.c", False), ("", "", True), ("", "a", False),
    ("#.#", "", True), ("#.*.#", "", False), ("#.*.#", "a", True), ("a.#.#.b", "a.b", True), ("*.#", "a", True),
    ("a#", "a#", True), ("a#", "ab", False), ("é.*", "é.x", True), ("a/b.*", "a/b.c", True),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "key", "expected"), PATTERNS)
def test_topic_patterns(pattern: str, key: str, expected: bool) -> None:
    found = routes(bind("e", "topic", pattern))
    assert bool(list(found.match(published("e", key)))) is expected


def reference(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    @cache
    def step(p: int, w: int) -> bool:
        if p == len(pattern):
            return w == len(words)
        if pattern[p] == "#":
            return step(p + 1, w) or (w < len(words) and step(p, w + 1))
        return w < len(words) and pattern[p] in ("*", words[w]) and step(p + 1, w + 1)

    return step(0, 0)


words_ = st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=6)


@given(st.lists(st.sampled_from(["a", "b", "", "*", "#"]), min_size=1, max_size=6), words_)
def test_matching_as_defined(pattern: list[str], words: list[str]) -> None:
    assert Pattern(pattern_of(".".join(pattern))).matches(words) == reference(
        tuple(pattern) if pattern != [""] else (), tuple(words)
    )


def test_no_pattern_is_expensive() -> None:
    words = ["a"] * 120
    assert not Pattern(pattern_of("#.a." * 40 + "b")).matches(words)
    assert pattern_of("#.#.#.a.#.#") == ("#", "a", "#")


def test_direct_fanout_and_default() -> None:
    made = routes(
        bind("d", "direct", "k.1"), bind("f", "fanout", "whatever"), bind("(default)", "default", "my queue"),
        bind("d", "direct", ""),
    )  # fmt: skip
    assert list(made.match(published("d", "k.1"))) == [0]
    assert list(made.match(published("d", ""))) == [3]
    assert list(made.match(published("d", "k"))) == []
    assert list(made.match(published("f", "any"))) == [1]
    assert list(made.match(published("(default)", "", "my%20queue"))) == [2]
    assert list(made.match(published("(default)", "", "k.1"))) == []
    hidden = Message(DIRECT_TOPIC, b"", tag="my%20queue")
    hidden.exchange = "(default)"
    assert list(made.match(hidden)) == [2]


def test_records_of_other_doors() -> None:
    made = routes(bind("plant", "topic", "line.#"), bind("(default)", "default", "plant"), bind("x", "fanout", ""))
    assert list(made.match(published(None, "line.1", "plant"))) == [0]
    assert list(made.match(published(None, "", "plant"))) == [1]
    assert list(made.match(published("plant", "", "plant"))) == []
    assert list(made.match(published(None, "a", "other"))) == []


def test_exchange_to_exchange_with_a_circle() -> None:
    made = routes(
        bind("a", "topic", "#", destination="b"), bind("b", "fanout", "", destination="c"), bind("c", "direct", "k", destination="a"),
        bind("c", "direct", "k"), bind("a", "topic", "*"), bind("b", "fanout", ""),
    )  # fmt: skip
    assert sorted(made.match(published("a", "k"))) == [3, 4, 5]
    assert sorted(made.match(published("c", "k"))) == [3, 4, 5]
    made.remove(0)
    assert sorted(made.match(published("a", "k"))) == [4]


def test_removing_everything_leaves_nothing() -> None:
    made = routes(
        bind("e", "topic", "a.*"), bind("e", "topic", "*.a"), bind("e", "topic", "a.b"), bind("e", "topic", ""),
        bind("d", "direct", "x"), bind("f", "fanout", ""), bind("(default)", "default", "q"),
    )  # fmt: skip
    for number in range(7):
        made.remove(number)
        made.remove(number)
    assert not made._exchanges
    assert not made._default
    assert not made._direct


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "[]",
        "{}",
        '{"exchange":1,"type":"topic","key":""}',
        '{"exchange":"e","type":"x","key":""}',
        '{"exchange":"e","type":"headers","key":"","arguments":"AAAB"}',
    ],
)
def test_bad_expressions(expression: str) -> None:
    with pytest.raises(GantryError):
        AmqpRoutes().add(1, None, expression)


def test_a_light_queue_has_the_name_of_its_queue() -> None:
    queue = QueueDefinition("jobs/ä", 7, True, False, False, b"")
    (route,) = default_routes(queue)
    rows = {"route": {route.route_id: route_to_bytes(route)}}
    assert [AmqpRoutes.queue_name(lambda table: rows[table], light) for light in (7, 8)] == ["jobs/ä", ""]


@pytest.mark.parametrize("name", ["jobs", "orders.eu", "é x", "n" * 200])
@pytest.mark.parametrize("durable", [True, False])
def test_a_queue_is_found_by_its_name_until_it_goes(name: str, durable: bool) -> None:
    made = AmqpRoutes()
    every = default_routes(QueueDefinition(name, 7, durable, False, False, b""))
    for number, each in enumerate(every):
        assert made.add(number, each.topic, each.expression) is False
    sent = published("(default)", "", topic_of(name)) if durable else published("(default)", "", DIRECT_TOPIC)
    sent.tag = "" if durable else encode_word(name)
    foreign = published(None, "", topic_of(name))
    assert list(made.match(sent)) == [0]
    assert list(made.match(foreign)) == [len(every) - 1]
    for number in range(len(every)):
        made.remove(number)
    assert list(made.match(sent)) == list(made.match(foreign)) == []
    made.remove(0)
