"""MQTT topics <-> native names, and filters as routes against the rule of MQTT 4.7."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq_gateways.mqtt.routes import FilterTrie, MqttRoutes
from gantrymq_gateways.mqtt.topics import mapping as topics
from gantrymq_gateways.mqtt.topics.mapping import (
    DeliveryTopics,
    LongTopics,
    filter_route,
    match_levels,
    to_mqtt,
    to_native,
)

LEVEL = st.text(st.characters(blacklist_characters="\0/+#", blacklist_categories=("Cs",)), max_size=8)
TOPIC = st.lists(LEVEL, min_size=1, max_size=5).map("/".join).filter(bool)
SMALL = st.sampled_from(["", "a", "b", ".", "%", "%2F", "a.b", "ä"])
SMALL_TOPIC = st.lists(SMALL, min_size=1, max_size=4).map("/".join).filter(bool)
SMALL_FILTER = st.builds(
    lambda levels, rest: "/".join([*levels, "#"] if rest else levels),
    st.lists(st.one_of(st.just("+"), SMALL), min_size=0, max_size=4),
    st.booleans(),
).filter(bool)


@pytest.mark.parametrize(
    ("topic", "native"),
    [
        ("factory/line1/temp", ("factory", "line1.temp")),
        ("a", ("a", "")),
        ("a/", ("a", "%00")),
        ("a//", ("a", ".")),
        ("/a", ("%00", "a")),
        ("/", ("%00", "%00")),
        ("a.b/c.d", ("a%2Eb", "c%2Ed")),
        ("ä/%41", ("%C3%A4", "%2541")),
        ("a b/c d", ("a%20b", "c%20d")),
    ],
)
def test_examples(topic: str, native: tuple[str, str]) -> None:
    assert to_native(topic) == native
    assert to_mqtt(*native).decode() == topic


@given(TOPIC)
@example("a/%00")
@example("%00")
def test_round_trip(topic: str) -> None:
    try:
        native, tag = to_native(topic)
    except GantryError:
        assert names.is_closed_to_gateways(names.encode_topic(topic.split("/")[0]))
        return
    assert to_mqtt(native, tag).decode() == topic


@given(TOPIC, TOPIC)
def test_injective(one: str, other: str) -> None:
    try:
        assert (to_native(one) == to_native(other)) == (one == other)
    except GantryError:
        pass


@pytest.mark.parametrize(
    "topic",
    [
        "$SYS/x",
        "$SYS/broker/connection/x/y/state",
        "$share/g/t",
        "$queue/t",
        "$delayed/5/t",
        "$from/earliest/t",
        "%RETRY%g",
        "%DLQ%g/a",
        "%LMQ%x",
        "rmq_sys_gantry_ack",
        "TBW102/a",
        "RMQ_SYS_TRACE_TOPIC",
    ],
)
def test_closed_topics(topic: str) -> None:
    with pytest.raises(GantryError) as raised:
        to_native(topic)
    assert raised.value.code is ErrorCode.NO_PERMISSION


@pytest.mark.parametrize("topic", ["$", "$aws/things/x", "$SYSx", "$SYS/broker/connection/b1/state"])
def test_other_names_with_a_dollar_are_ordinary(topic: str) -> None:
    native, tag = to_native(topic)
    assert to_mqtt(native, tag).decode() == topic
    assert not names.matches_wildcards(native)  # [MQTT-4.7.2-1]


def test_long_first_levels_come_back_through_the_table() -> None:
    learned: list[tuple[str, str]] = []
    long = LongTopics(lambda native, first: learned.append((native, first)))
    first = "x" * 200
    native, tag = to_native(first + "/t")
    assert len(native) <= 127
    delivery = DeliveryTopics(long)
    assert delivery.get(native, tag) != f"{first}/t".encode()
    long.note(first, native)
    long.note(first, native)
    long.note("short", "short")
    delivery.forget()
    assert delivery.get(native, tag) == f"{first}/t".encode()
    assert learned == [(native, first)]


def test_tags_of_other_doors_keep_their_separators_escaped() -> None:
    assert to_mqtt("t", "a/b.c+d") == b"t/a%2Fb/c%2Bd"
    assert to_mqtt("t", "TagA||TagB") == b"t/TagA||TagB"
    assert to_mqtt("t", "%00.x") == b"t/%00/x"


def test_limits() -> None:
    with pytest.raises(GantryError):
        to_native("t/" + "x" * 4097)
    with pytest.raises(GantryError):
        filter_route("t/" + "x" * 4097)
    with pytest.raises(GantryError):
        filter_route("/".join("a" * 202))
    assert to_mqtt("t", "%E4" * 22_000) == b""


def test_delivery_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "DELIVERY_CACHE_MAX", 3)
    delivery = DeliveryTopics(LongTopics())
    assert [delivery.get("t", f"a{i}") for i in range(9)] == [b"t/a%d" % i for i in range(9)]
    assert len(delivery._known) <= 3


@given(st.lists(SMALL_FILTER, max_size=12), st.lists(SMALL_TOPIC, max_size=6), st.data())
def test_routes_match_as_the_rule_says(filters: list[str], published: list[str], data: st.DataObject) -> None:
    routes = MqttRoutes()
    for number, text in enumerate(filters):
        assert routes.add(number, *filter_route(text)) is False
    gone = data.draw(st.sets(st.integers(0, 12)))
    for number in gone:
        routes.remove(number)
    for topic in published:
        native, tag = to_native(topic)
        wanted = {n for n, text in enumerate(filters) if n not in gone and match_levels(text, topic)}
        assert set(routes.match(Message(native, b"", tag=tag))) == wanted


@pytest.mark.parametrize(
    ("text", "topic", "matches"),
    [
        ("#", "a/b", True), ("a/#", "a", True), ("a/#", "ab", False), ("+", "a", True), ("+", "a/b", False), ("+/+", "/a", True),
        ("/+", "/a", True), ("+", "/a", False), ("a/+", "a", False), ("a/+", "a/", True), ("a/+/b", "a//b", True), ("a", "a/", False),
    ],
)  # fmt: skip
def test_rule(text: str, topic: str, matches: bool) -> None:
    assert match_levels(text, topic) is matches
    routes = MqttRoutes()
    routes.add(5, *filter_route(text))
    native, tag = to_native(topic)
    assert list(routes.match(Message(native, b"", tag=tag))) == ([5] if matches else [])


@given(
    st.lists(SMALL_FILTER, max_size=12), st.lists(st.tuples(st.booleans(), st.integers(0, 11)), max_size=60), st.data()
)
def test_routes_that_come_and_go(filters: list[str], steps: list[tuple[bool, int]], data: st.DataObject) -> None:
    routes, there = MqttRoutes(), set()
    for comes, number in steps:
        if number >= len(filters):
            continue
        if comes:
            routes.add(number, *filter_route(filters[number]))
            there.add(number)
        else:
            routes.remove(number)
            there.discard(number)
        topic = data.draw(SMALL_TOPIC)
        native, tag = to_native(topic)
        wanted = sorted(n for n in there if match_levels(filters[n], topic))
        assert sorted(routes.match(Message(native, b"", tag=tag))) == wanted
    for number in list(there):
        routes.remove(number)
    assert routes._any.root.is_empty()
    assert not routes._by_topic


def test_wildcards_do_not_see_the_system() -> None:
    routes = MqttRoutes()
    for number, text in enumerate(["#", "+/x", "%24SYS/x", "$SYS/x"]):
        routes.add(number, *filter_route(text))
    assert list(routes.match(Message("%24SYS", b"", tag="x"))) == [3]
    assert list(routes.match(Message("rmq_sys_gantry_ack", b"", tag="x"))) == []
    assert list(routes.match(Message("%LMQ%a", b"", tag="x"))) == []
    assert set(routes.match(Message("ok", b"", tag="x"))) == {0, 1}


def test_removing_leaves_nothing_behind() -> None:
    routes = MqttRoutes()
    for number, text in enumerate(["#", "+/x/#", "a/b/c", "a/b", "a/+/c"]):
        routes.add(number, *filter_route(text))
    for number in range(5):
        routes.remove(number)
        routes.remove(number)
    assert routes._any.root.is_empty()
    assert not routes._by_topic
    routes.remove(99)


def test_the_same_number_again_replaces() -> None:
    routes = MqttRoutes()
    routes.add(1, "a", "[]")
    routes.add(1, "b", "[]")
    assert list(routes.match(Message("a", b""))) == []
    assert list(routes.match(Message("b", b""))) == [1]


@pytest.mark.parametrize("expression", ["", "{}", "[1]", '["#","a"]', '"#"', "[" + ",".join(['"a"'] * 202) + "]"])
def test_bad_expressions(expression: str) -> None:
    with pytest.raises(GantryError) as raised:
        MqttRoutes().add(1, None, expression)
    assert raised.value.code is ErrorCode.ILLEGAL_ARGUMENT


def test_deep_filters_need_no_recursion() -> None:
    words = ("t", *["+"] * 20_000)
    trie = FilterTrie({1: words, 2: words})
    trie.add(1)
    trie.add(2)
    found: list[int] = []
    trie.match(["a"] * 20_000, found)
    assert found == [1, 2]
    trie.remove(1)
    trie.remove(2)
    assert trie.root.is_empty()
