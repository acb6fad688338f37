"""Subscriptions that begin in the past: what the log has, oldest first, then what comes, each once; what is left of them when they end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq_gateways.mqtt.gateway import SWEEP_MS
from gantrymq_gateways.mqtt.sessions.past import ACQUIRE_MAX, GROUP, STEP_MAX, TABLE
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.codec import Ack
from gateways.tests.mqtt.world import Client, World

ALL = "$from/earliest/t/#"


@pytest.fixture(params=["immediate", "late", "shuffled", "local", "remote"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(request.param, seed=18, directory=tmp_path / "first")
    yield world
    world.close()


def bodies(client: Client) -> list[bytes]:
    return [packet.payload for packet in client.publishes()]


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % i for i in range(first, last)]


def later(world: World, ms: int) -> int:
    """Let time pass; what time it is then."""
    world.advance(ms)
    world.port.now_ms = world.clock.now_ms()
    return world.port.now_ms


def publish_some(world: World, first: int, last: int, topic: str = "t/x", qos: int = 1) -> None:
    publisher = world.client(f"p{first}-{len(world.clients)}")
    for i in range(first, last):
        publisher.publish(topic, str(i), qos)
    publisher.disconnect()


@pytest.mark.parametrize("clean", [True, False])
def test_what_there_is_comes_first_and_then_what_comes(world: World, clean: bool) -> None:
    publish_some(world, 0, 20)
    reader = world.client("r", clean=clean)
    assert reader.subscribe(ALL) == [1]
    publish_some(world, 20, 30)
    assert bodies(reader) == numbers(0, 30)
    assert not reader.closed


def test_only_what_the_filter_matches_and_at_the_lower_qos(world: World) -> None:
    for topic, qos in (("t/a/x", 0), ("t/b/y", 1), ("t/c/x", 2), ("t", 1), ("other/a/x", 1)):
        publish_some(world, qos, qos + 1, topic, qos)
    reader = world.client("r")
    assert reader.subscribe(("$from/earliest/t/+/x", 1)) == [1]
    assert [(p.topic, p.qos, p.retain) for p in reader.publishes()] == [(b"t/a/x", 0, False), (b"t/c/x", 1, False)]


def test_from_a_time(world: World) -> None:
    publish_some(world, 0, 3)
    at_ms = later(world, 10_000)
    publish_some(world, 3, 6)
    reader = world.client("r")
    assert reader.subscribe(f"$from/{at_ms}/t/#", f"$from/{at_ms + 3_600_000}/t/x") == [1, 1]
    assert bodies(reader) == numbers(3, 6)


def test_of_several_queues_the_oldest_first(world: World) -> None:
    """Each topic has a queue by its tag."""
    names = [f"t/{name}" for name in "abcdefgh"]
    for i, name in enumerate(names * 5):
        later(world, 1)
        publish_some(world, i, i + 1, name)
    reader = world.client("r")
    reader.subscribe(ALL)
    assert bodies(reader) == numbers(0, 40)


def test_flow_control(world: World) -> None:
    count = world.gateway.config.inflight_max
    publish_some(world, 0, count + 10)
    reader = world.client("r", acks=False)
    reader.subscribe(ALL)
    got = reader.publishes()
    assert len(got) == count
    reader.send(*[Ack(c.PUBACK, packet.packet_id) for packet in got[:5]])
    assert bodies(reader) == numbers(count, count + 5)


def test_many_that_do_not_match_are_work_for_several_turns(tmp_path: Path) -> None:
    world = World("immediate")
    publish_some(world, 0, STEP_MAX + ACQUIRE_MAX, "t/no")
    publish_some(world, 7, 8, "t/yes")
    reader = world.client("r")
    reader.subscribe("$from/earliest/t/yes")
    assert bodies(reader) == [b"7"]


def test_both_a_subscription_from_the_past_and_an_ordinary_one(world: World) -> None:
    """Each has its copy, as with shared subscriptions."""
    publish_some(world, 0, 2)
    reader = world.client("r")
    reader.subscribe(ALL, "t/#")
    publish_some(world, 2, 3)
    assert sorted(bodies(reader)) == [b"0", b"1", b"2", b"2"]


def test_subscribing_again_changes_the_qos_and_not_the_place(world: World) -> None:
    publish_some(world, 0, 3)
    reader = world.client("r")
    reader.subscribe(ALL)
    assert len(reader.publishes()) == 3
    assert reader.subscribe((ALL, 0)) == [0]
    publish_some(world, 3, 4)
    assert [(p.payload, p.qos) for p in reader.publishes()] == [(b"3", 0)]


def test_kept_session_goes_on_where_it_acknowledged(world: World) -> None:
    publish_some(world, 0, 6)
    reader = world.client("r", acks=False, clean=False)
    reader.subscribe(ALL)
    got = reader.publishes()
    assert [packet.payload for packet in got] == numbers(0, 6)
    reader.send(*[Ack(c.PUBACK, packet.packet_id) for packet in got[:4]])
    reader.disconnect()
    publish_some(world, 6, 8)
    back = world.client("r", clean=False)
    assert back.present
    again = back.publishes()
    assert [(packet.payload, packet.dup) for packet in again] == [
        (b"4", True), (b"5", True), (b"6", False), (b"7", False),
    ]  # fmt: skip


def test_kept_session_goes_on_after_a_kill(world: World) -> None:
    publish_some(world, 0, 4)
    reader = world.client("r", clean=False)
    reader.subscribe(ALL)
    assert bodies(reader) == numbers(0, 4)
    after = world.restart()
    publish_some(after, 4, 6)
    back = after.client("r", clean=False)
    assert back.present
    got = bodies(back)
    assert got[-2:] == numbers(4, 6)
    assert sorted(set(got)) == got, "in order"


@pytest.mark.parametrize("clean", [True, False])
def test_unsubscribe_forgets_the_place(world: World, clean: bool) -> None:
    publish_some(world, 0, 2)
    reader = world.client("r", clean=clean)
    reader.subscribe(ALL)
    assert bodies(reader) == numbers(0, 2)
    reader.unsubscribe(ALL)
    publish_some(world, 2, 3)
    assert bodies(reader) == []
    reader.subscribe(ALL)
    assert bodies(reader) == numbers(0, 3)


def test_a_clean_connect_ends_the_kept_one(world: World) -> None:
    publish_some(world, 0, 2)
    reader = world.client("r", clean=False)
    reader.subscribe(ALL)
    assert bodies(reader) == numbers(0, 2)
    reader.disconnect()
    world.client("r").disconnect()
    reader = world.client("r", clean=False)
    assert not reader.present
    reader.subscribe(ALL)
    assert bodies(reader) == numbers(0, 2)


def cursors(world: World) -> list[str]:
    return [group for _, group in world.port.cursor_by_name if group.startswith(GROUP)]


@pytest.mark.parametrize("mode", ["immediate", "late", "shuffled"])
def test_nothing_is_left(mode: str) -> None:
    world = World(mode, seed=3)
    publish_some(world, 0, 2)
    for clean in (True, False):
        reader = world.client("r", clean=clean)
        reader.subscribe(ALL)
        assert cursors(world)
        reader.disconnect()
    assert cursors(world)
    world.client("r").disconnect()
    assert cursors(world) == []
    assert not world.port.tables.get(TABLE)


@pytest.mark.parametrize("mode", ["immediate", "late", "shuffled"])
def test_what_a_killed_gateway_left_is_removed(mode: str) -> None:
    world = World(mode, seed=5)
    publish_some(world, 0, 2)
    world.client("r").subscribe(ALL)
    assert len(world.port.tables[TABLE]) == 1
    after = world.restart()
    assert cursors(after)
    after.advance(2 * SWEEP_MS)
    assert cursors(after) == []
    assert not after.port.tables.get(TABLE)


def test_a_bounded_number_at_once() -> None:
    world = World("immediate", replays_max=2)
    publish_some(world, 0, 1)
    reader = world.client("r", clean=False)
    assert reader.subscribe(ALL, "$from/earliest/t/a", "$from/earliest/t/b") == [1, 1, 0x80]
    assert reader.subscribe(ALL) == [1]
    reader.unsubscribe("$from/earliest/t/a")
    assert reader.subscribe("$from/earliest/t/b") == [1]
    five = world.client("five", level=c.LEVEL_5)
    assert five.subscribe(ALL) == [0x97]
    reader.disconnect()
    assert five.subscribe(ALL, "$from/0/t") == [1, 1]
    back = world.client("r", clean=False)
    assert back.present, "who comes back keeps what it has"


@pytest.mark.parametrize("text", ["$from/earliest/+/x", "$from/x/t", "$from/earliest", "$from/earliest/$SYS/#"])
def test_what_is_none_is_refused(text: str) -> None:
    world = World("immediate")
    assert world.client("r").subscribe(text) == [0x80]
    assert world.client("five", level=c.LEVEL_5).subscribe(text) == [0x8F]
    assert world.client("kept", clean=False).subscribe(text) == [0x80]


def test_no_local_and_identifiers_count(world: World) -> None:
    reader = world.client("r", level=c.LEVEL_5)
    reader.subscribe((ALL, 1 | c.OPTION_NO_LOCAL))
    reader.publish("t/own", "own")
    publish_some(world, 0, 1)
    assert bodies(reader) == [b"0"]


def test_topic_rules() -> None:
    """What a filter matches may be in several native topics."""
    world = World("immediate", topic_rules="t/=fleet; t/b=others")
    publish_some(world, 0, 2, "t/a/x")
    publish_some(world, 2, 3, "t/b")
    publish_some(world, 3, 4, "t")
    reader = world.client("r")
    assert reader.subscribe("$from/earliest/t/a/#", "$from/earliest/t/#") == [1, 1]
    publish_some(world, 4, 5, "t/bb")
    assert sorted(bodies(reader)) == sorted([*numbers(0, 2), *numbers(0, 5)])


def test_topic_levels() -> None:
    world = World("immediate", topic_levels=2)
    publish_some(world, 0, 2, "t/a/x")
    reader = world.client("r")
    assert reader.subscribe("$from/earliest/t/a/#", "$from/earliest/t/#") == [1, 0x80]
    assert bodies(reader) == numbers(0, 2)


def test_rows_say_what_to_remove() -> None:
    world = World("immediate")
    world.client("r").subscribe(ALL)
    ((key, value),) = world.port.tables[TABLE].items()
    assert key.startswith(f"{world.gateway.shell.name}/")
    assert json.loads(value) == ["t"]
