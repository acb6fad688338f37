"""Sessions that end because their backlog is over a limit: the client's, one that is away, one that has caught up, one at another gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq_gateways.mqtt.gateway import SWEEP_MS
from gantrymq_gateways.mqtt.operate.overfull import TABLE
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.packets import Disconnect
from gateways.tests.mqtt.operate.test_operations import put, rows
from gateways.tests.mqtt.sides import Site
from gateways.tests.mqtt.world import Client, World

OVER = {"entries": 3, "text": "2 messages (broker.session_messages_max), queue ~1"}


@pytest.fixture(params=["immediate", "late", "local", "remote"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(request.param, seed=18, directory=tmp_path / "first")
    yield world
    world.close()


def slow(world: World, level: int = c.LEVEL_5) -> Client:
    """One with three messages, which it does not acknowledge."""
    properties = {0x11: 1_000} if level == c.LEVEL_5 else {}
    client = Client(world, False, level).connect("slow", level=level, clean=False, properties=properties)
    client.subscribe("t/#", "$share/g/x")
    for number in range(3):
        Client(world).connect(f"p{number}").publish("t/x", str(number))
    assert len(client.messages()) == 3
    return client


def test_its_client_is_disconnected_and_finds_no_session(world: World) -> None:
    client = slow(world)
    put(world, TABLE, "slow", OVER)
    (last,) = client.take()
    assert isinstance(last, Disconnect)
    assert last.reason == 0x97
    assert client.closed
    assert rows(world, TABLE) == {}
    assert world.gateway.overfull.ended == 1
    back = world.client("slow", clean=False)
    assert not back.present
    assert back.messages() == []


def test_one_of_three_point_one_point_one_is_closed(world: World) -> None:
    client = slow(world, c.LEVEL_3_1_1)
    put(world, TABLE, "slow", OVER)
    assert client.closed
    assert not world.client("slow", clean=False).present


def test_a_session_whose_client_is_away_ends(world: World) -> None:
    slow(world).disconnect()
    put(world, TABLE, "slow", OVER)
    world.advance(SWEEP_MS)
    assert rows(world, TABLE) == {}
    assert not world.client("slow", clean=False).present


def test_who_has_caught_up_stays(world: World) -> None:
    client = slow(world)
    client.acks = True
    client.disconnect()
    back = world.client("slow", clean=False)
    assert back.present
    assert len(back.messages()) == 3
    put(world, TABLE, "slow", OVER)
    assert not back.closed
    assert rows(world, TABLE) == {}
    put(world, TABLE, "nobody", OVER)
    world.advance(SWEEP_MS)
    assert rows(world, TABLE) == {}
    assert world.gateway.overfull.ended == 0


def test_rows_that_a_killed_gateway_left_are_found(world: World) -> None:
    slow(world).disconnect()
    put(world, TABLE, "slow", OVER)
    after = world.restart()
    after.advance(SWEEP_MS)
    assert not after.client("slow", clean=False).present


def test_the_gateway_that_has_the_client_ends_it(tmp_path: Path) -> None:
    site = Site(tmp_path)
    try:
        client = slow(site.new)  # type: ignore[arg-type]
        site.broker.put(TABLE, [("slow", json.dumps(OVER).encode())], None, None)
        site.settle()
        assert client.closed
        assert [side.gateway.overfull.ended for side in site.sides] == [0, 1]
        assert site.broker.tables.rows(TABLE) == {}
    finally:
        site.close()
