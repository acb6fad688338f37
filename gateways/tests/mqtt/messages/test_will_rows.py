"""Wills survive their gateway: rows of `mqtt_will`, and who publishes what a gateway left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gantrymq.model.errors import ErrorCode
from gantrymq_gateways.mqtt.gateway import SWEEP_MS
from gantrymq_gateways.mqtt.messages.will_rows import LEASE, TABLE, check_row
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.packets import Disconnect, Will
from gantrymq_gateways.mqtt.wire.text import MalformedPacket
from gateways.tests.mqtt.world import Client, World, will

MODES = ["immediate", "late", "local", "remote"]


@pytest.fixture(params=MODES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(request.param, 1, directory=tmp_path / "broker")
    yield made
    made.close()


def watch(world: World) -> Client:
    """The one who hears of wills; also of what came while it was away."""
    sub = world.client("watcher", clean=False)
    if not sub.present:
        sub.subscribe("will/#")
    return sub


def late(world: World, client_id: str = "c", delay_s: int = 5, clean: bool = True) -> Client:
    """A client of 5.0 whose will has a delay."""
    left = Will(b"will/t", b"gone", 1, False, {p.WILL_DELAY: delay_s, p.CONTENT_TYPE: "a/b"})
    fields = {"clean": clean, "properties": {p.SESSION_EXPIRY: 100}}
    return Client(world, level=c.LEVEL_5).connect(client_id, will=left, **fields)


def two_gateways() -> tuple[World, World]:
    old = World()
    return old, World(port=old.port)


def kill(old: World, other: World) -> None:
    """The gateway's leases are gone, and it says nothing any more."""
    for name in list(old.port.leases):
        if name == LEASE + old.gateway.shell.name or name == "mqtt:c":
            del old.port.leases[name]
    other.settle()


def test_a_kill_publishes_the_wills_of_connected_clients_once(world: World) -> None:
    watch(world)
    world.client("a", will=will(payload=b"a"))
    world.client("b", will=will(payload=b"b", retain=True))
    world.client("c", will=will(payload=b"c")).disconnect()
    world = world.restart()
    sub = watch(world)
    assert sorted(sub.messages()) == [("will/t", b"a"), ("will/t", b"b")]
    new = world.client("new")
    new.subscribe("will/t")
    assert new.messages() == [("will/t", b"b")], "retained"
    world = world.restart()
    assert watch(world).messages() == [], "the row went in one piece with the will"


def test_a_delay_goes_on_after_a_kill(world: World) -> None:
    watch(world)
    late(world)
    world = world.restart()
    sub = watch(world)
    world.advance(4_900)
    assert sub.messages() == []
    world.advance(200)
    assert sub.messages() == [("will/t", b"gone")]


@pytest.mark.parametrize("clean", [False, True], ids=["resumed", "ended"])
def test_who_comes_back_after_a_kill(world: World, clean: bool) -> None:
    watch(world)
    late(world)
    world = world.restart()
    sub = watch(world)
    again = late(world, clean=clean)
    assert sub.messages() == ([("will/t", b"gone")] if clean else [])
    again.send(Disconnect())
    world.advance(10_000)
    assert sub.messages() == []


def test_a_will_that_waits_outlives_a_stop() -> None:
    world = World()
    watch(world)
    late(world).link.lose()
    world.advance(2_000)
    world.gateway.stop()
    world = world.restart()
    sub = watch(world)
    world.advance(10_000)
    assert sub.messages() == [("will/t", b"gone")]


def test_another_gateway_publishes_what_a_killed_one_left() -> None:
    old, new = two_gateways()
    sub = watch(new)
    late(old)
    old.client("d", will=will(payload=b"d"))
    new.advance(SWEEP_MS)
    assert sub.messages() == [], "the gateway is there"
    kill(old, new)
    new.advance(SWEEP_MS)
    assert sub.messages() == [("will/t", b"d")]
    new.advance(5_000)
    assert sub.messages() == [("will/t", b"gone")]
    assert not new.port.tables[TABLE]
    new.advance(SWEEP_MS)
    assert LEASE + old.gateway.shell.name not in new.port.leases


def test_the_will_of_a_killed_gateway_comes_before_its_client() -> None:
    old, new = two_gateways()
    sub = watch(new)
    old.client("c", will=will())
    kill(old, new)
    new.client("c").publish("will/t", "back")
    assert sub.messages() == [("will/t", b"gone"), ("will/t", b"back")]


@pytest.mark.parametrize("clean", [False, True], ids=["resumed", "ended"])
def test_who_moves_to_another_gateway(clean: bool) -> None:
    """A delay that runs at one gateway ends with a connection at another."""
    old, new = two_gateways()
    sub = watch(new)
    late(old).link.lose()
    old.settle()
    again = late(new, clean=clean)
    old.settle()
    new.settle()
    assert sub.messages() == ([("will/t", b"gone")] if clean else [])
    again.send(Disconnect())
    for world in (old, new):
        world.advance(10_000)
    assert sub.messages() == []
    assert not new.port.tables[TABLE]


def test_a_gateway_that_was_taken_for_gone_takes_its_wills_back() -> None:
    old, new = two_gateways()
    watch(new)
    late(old)
    kill(old, new)
    new.advance(SWEEP_MS)
    assert len(new.gateway.will_rows) == 1
    old.port.take_lease(LEASE + old.gateway.shell.name, True, lambda name: None, None, lambda token, result: None)
    new.settle()
    assert len(new.gateway.will_rows) == 0


def test_a_lost_broker_is_a_lost_client() -> None:
    world = World()
    watch(world)
    world.client("a", will=will())
    world.port.lose()
    world.settle()
    world.port.return_()
    world.settle()
    assert watch(world).messages() == [("will/t", b"gone")]


def test_a_full_disk_leaves_the_will_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    sub = watch(world)
    world.port.fail_next("put", ErrorCode.STORE_FULL)
    client = world.client("a", will=will())
    assert "its will is in memory only" in caplog.text
    client.link.lose()
    world.settle()
    assert sub.messages() == [("will/t", b"gone")]
    world.port.fail_next("put", ErrorCode.STORE_FAILED)
    refused = world.client()
    with pytest.raises(AssertionError, match="code=3"):
        refused.connect("b", will=will())


def test_rows_that_cannot_be_read() -> None:
    world = World()
    late(world)
    ((key, value),) = world.port.tables[TABLE].items()
    check_row(key, value)
    properties = b'{"client":"c","topic":"dA==","payload":"","flags":1,"properties":"Bf8="}'
    for bad, why in ((b"{}", "client"), (b"[", "object"), (properties, "longer than their packet")):
        with pytest.raises((MalformedPacket, msgspec.DecodeError), match=why):
            check_row(key, bad)
