"""Mosquitto's bridges: the level's high bit, their state topic, no local and retain as published."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq_gateways.mqtt.wire import constants as c
from gateways.tests.mqtt.world import Client, World, will

STATE = "$SYS/broker/connection/site/state"


@pytest.fixture(params=["immediate", "shuffled", "local", "remote"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(request.param, seed=7, directory=tmp_path / "store")
    yield world
    world.close()


def bridge(world: World, clean: bool, level: int = c.LEVEL_3_1_1) -> Client:
    return world.client("site", clean=clean, level=level, bridge=True, will=will(STATE, b"0", retain=True))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("level", [c.LEVEL_3_1, c.LEVEL_3_1_1])
def test_nothing_goes_back_to_the_bridge_that_sent_it(world: World, clean: bool, level: int) -> None:
    client = bridge(world, clean, level)
    client.subscribe("#")
    other = world.client("other")
    other.subscribe("#")
    client.publish("a/b", b"from the site")
    client.publish("a/b", b"from the site", qos=0)
    other.publish("a/b", b"to the site")
    other.publish("a/b", b"to the site", qos=0)
    assert client.messages() == [("a/b", b"to the site")] * 2
    assert sorted(other.messages()) == [("a/b", b"from the site")] * 2 + [("a/b", b"to the site")] * 2


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("qos", [0, 1])
def test_retain_is_passed_on_as_published(world: World, clean: bool, qos: int) -> None:
    client = bridge(world, clean)
    client.subscribe("a")
    ordinary = world.client("ordinary")
    ordinary.subscribe("a")
    world.client("p").publish("a", b"kept", qos=qos, retain=True)
    assert [one.flags & c.FLAG_RETAIN for one in client.publishes()] == [1]
    assert [one.flags & c.FLAG_RETAIN for one in ordinary.publishes()] == [0]  # [MQTT-3.3.1-9]


def test_one_that_was_away_gets_what_others_sent(world: World) -> None:
    client = bridge(world, False)
    client.subscribe("a")
    client.disconnect()
    world.client("other").publish("a", b"1")
    again = bridge(world, False)
    again.publish("a", b"mine")
    assert again.messages() == [("a", b"1")]
    once_more = bridge(world, False)
    assert once_more.messages() == []


def test_another_bridge_gets_it(world: World) -> None:
    one = bridge(world, True)
    two = world.client("site2", bridge=True)
    two.subscribe("#")
    one.publish("a", b"x")
    assert two.messages() == [("a", b"x")]


def test_its_state_is_kept(world: World) -> None:
    client = bridge(world, True)
    client.publish(STATE, b"1", retain=True)
    watcher = world.client("watcher")
    watcher.subscribe("$SYS/broker/connection/#")
    assert watcher.messages() == [(STATE, b"1")]
    client.door.closed("gone")
    world.settle()
    assert watcher.messages() == [(STATE, b"0")]
    everything = world.client("all")
    everything.subscribe("#")
    assert everything.messages() == []  # [MQTT-4.7.2-1]
