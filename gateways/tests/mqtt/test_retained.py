"""The retained store: index against the rule, limits, and answers that cross changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.model.errors import GantryError
from gantrymq_gateways.mqtt.retained import TABLE, RetainedStore, RowPlace, parse_value, row_key, row_value
from gantrymq_gateways.mqtt.topics.mapping import match_levels
from gateways.tests.mqtt.topics.test_mapping import SMALL_FILTER, SMALL_TOPIC
from gateways.tests.mqtt.world import World, will

TOPICS = st.one_of(SMALL_TOPIC, SMALL_TOPIC.map(lambda t: "$" + t))


@given(st.dictionaries(TOPICS, st.booleans(), max_size=12), SMALL_FILTER)
def test_match(topics: dict[str, bool], text: str) -> None:
    store = RetainedStore(100, 10_000)
    store.load({row_key(t): row_value(t, b"x", 1) or b"" for t in topics})
    for topic, kept in topics.items():
        if not kept:
            store.changed(row_key(topic), None)
    wanted = sorted(t for t, kept in topics.items() if kept and match_levels(text, t))
    assert sorted(m.topic for m in store.match(text)) == wanted
    assert len(store) == sum(topics.values())


def test_deleting_everything_leaves_nothing() -> None:
    store = RetainedStore(100, 10_000)
    for topic in ("a/b/c", "a", "a/b", "/"):
        store.changed(row_key(topic), row_value(topic, b"x", 0))
    for topic in ("a/b", "a/b/c", "/", "a"):
        store.changed(row_key(topic), None)
    assert store.size_bytes == 0
    assert store._root.is_bare()


def test_rows() -> None:
    message = parse_value(row_value("ä/b", b"\x00p", 1) or b"")
    assert (message.topic, message.payload, message.qos) == ("ä/b", b"\x00p", 1)
    assert row_value("a", b"", 1) is None
    assert row_key("ä/b c") == "%C3%A4/b%20c"
    assert len(row_key("x/" + "y" * 4090)) < 100


def test_limits() -> None:
    store = RetainedStore(2, 100)
    store.load({row_key(topic): row_value(topic, b"x", 0) or b"" for topic in ("a", "b")})
    store.check_room(RowPlace("a", 0), b"again")
    store.check_room(RowPlace("c", 0), b"")
    with pytest.raises(GantryError, match="retained_max"):
        store.check_room(RowPlace("c", 0), b"x")
    store.changed(row_key("b"), None)
    with pytest.raises(GantryError, match="retained_bytes_max"):
        store.check_room(RowPlace("c", 0), b"x" * 100)


def test_the_limit_of_bytes_holds_for_what_is_replaced_too() -> None:
    store = RetainedStore(2, 100)
    store.load({row_key(topic): row_value(topic, b"x" * 45, 0) or b"" for topic in ("a", "b")})
    store.check_room(RowPlace("a", 0), b"x" * 53)
    with pytest.raises(GantryError, match="retained_bytes_max"):
        store.check_room(RowPlace("a", 0), b"x" * 54)
    store.bytes_max = 10
    store.check_room(RowPlace("a", 0), b"x" * 45)
    store.check_room(RowPlace("a", 0), b"x")


def test_a_body_of_exactly_the_limit_is_kept_with_the_longest_topic() -> None:
    store = RetainedStore(1, 1 << 30, 70_000)
    store.check_room(RowPlace("t" * 65_535, 0), b"x" * 70_000)
    with pytest.raises(GantryError, match=r"message\.body_bytes_max is 70000"):
        store.check_room(RowPlace("t", 0), b"x" * 70_001)


def test_own_answer_after_a_newer_change_changes_nothing() -> None:
    store = RetainedStore(10, 100)
    mine, other = row_value("a", b"mine", 0), row_value("a", b"other", 0)
    store.storing("a", mine)
    store.changed("a", mine)
    store.changed("a", other)
    store.stored("a", mine, False)
    assert store.match("a")[0].payload == b"other"


def test_own_answer_counts_before_the_change_is_told() -> None:
    store = RetainedStore(10, 100)
    mine = row_value("a", b"mine", 0)
    store.storing("a", mine)
    store.stored("a", mine, False)
    assert store.match("a")[0].payload == b"mine"
    store.storing("a", None)
    store.stored("a", None, True)
    assert store.match("a")


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_rows_of_an_earlier_version_and_messages_that_are_rows_through_kill_9(kind: str, tmp_path: Path) -> None:
    """A directory that has rows as records of their own goes on: they are found, replaced and removed by messages that are rows."""
    world = World(kind, directory=tmp_path / "d")
    old = [(row_key(f"a/{number}"), row_value(f"a/{number}", b"old", 1)) for number in range(4)]
    world.broker_port.put(TABLE, old, None, lambda token, result: None)
    world.settle()
    publisher = world.client("p")
    publisher.publish("a/1", b"new", retain=True)
    publisher.publish("a/2", b"", retain=True)
    publisher.publish("a/4", b"more", qos=2, retain=True)
    publisher.publish("a/5", b"none", qos=0, retain=True)
    wanted = [("a/0", b"old"), ("a/1", b"new"), ("a/3", b"old"), ("a/4", b"more"), ("a/5", b"none")]
    for _ in range(2):
        subscriber = world.client("s")
        subscriber.subscribe("a/+")
        assert sorted(subscriber.messages()) == wanted
        world = world.restart()
    world.client("p").publish("a/4", b"", retain=True)
    world.client("w", will=will("a/6", b"gone", retain=True)).link.lose()
    world.settle()
    world = world.restart()
    subscriber = world.client("s")
    subscriber.subscribe("a/+")
    assert sorted(subscriber.messages()) == [*wanted[:3], ("a/5", b"none"), ("a/6", b"gone")]
    assert world.real is not None
    records = world.real.store.max_offset("rmq_sys_gantry_mqtt_retained", 0)
    assert (records, world.real.store.max_offset("%LMQ%rmq_sys_gantry_mqtt_retained", 0)) == (4, 6)
    world.close()
