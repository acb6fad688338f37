"""Exclusive subscriptions: one client at a time, over gateways and kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq_gateways.mqtt.sessions.exclusive import TABLE
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.packets import Ack, Publish
from gateways.tests.mqtt.sides import Site
from gateways.tests.mqtt.world import Client, World

TEXT = "$exclusive/t/#"


@pytest.fixture(params=["immediate", "late", "shuffled", "local", "remote"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(request.param, seed=18, directory=tmp_path / "first")
    yield world
    world.close()


@pytest.mark.parametrize("clean", [True, False])
def test_one_client_has_it_until_it_leaves(world: World, clean: bool) -> None:
    first, second = world.client("1", clean=clean), world.client("2", level=c.LEVEL_5)
    assert first.subscribe(TEXT) == [1]
    assert first.subscribe(TEXT) == [1]
    assert second.subscribe(TEXT) == [0x97]
    assert second.subscribe("t/#", "$exclusive/t/x") == [1, 1], "another filter is another subscription"
    world.client("p").publish("t/x", "1")
    assert first.messages() == [("t/x", b"1")]
    assert len(second.messages()) == 1
    first.unsubscribe(TEXT)
    assert second.subscribe(TEXT) == [1]
    assert first.subscribe(TEXT) == [0x80]


def test_it_ends_with_a_clean_session(world: World) -> None:
    world.client("1").subscribe(TEXT)
    other = world.client("2")
    assert other.subscribe(TEXT) == [0x80]
    world.clients[0].disconnect()
    assert other.subscribe(TEXT) == [1]


def test_a_kept_session_keeps_it_while_its_client_is_away(world: World) -> None:
    first, other = world.client("1", clean=False), world.client("2")
    first.subscribe(TEXT)
    first.disconnect()
    assert other.subscribe(TEXT) == [0x80]
    world.client("p").publish("t/x", "while away")
    back = world.client("1", clean=False)
    assert back.present
    assert back.messages() == [("t/x", b"while away")]
    back.disconnect()
    world.client("1").disconnect()
    assert other.subscribe(TEXT) == [1]


@pytest.mark.parametrize("clean", [True, False])
def test_after_a_kill_the_kept_ones_are_held(world: World, clean: bool) -> None:
    world.client("1", clean=clean).subscribe(TEXT)
    after = world.restart()
    assert after.client("2").subscribe(TEXT) == [1 if clean else 0x80]


def test_retained_messages_are_sent(world: World) -> None:
    world.client("p").publish("t/r", "kept", retain=True)
    for name, clean in (("1", True), ("2", False)):
        reader = world.client(name, clean=clean)
        assert reader.subscribe("$exclusive/t/r") == [1]
        assert reader.messages() == [("t/r", b"kept")]
        reader.unsubscribe("$exclusive/t/r")


@pytest.mark.parametrize("text", ["$exclusive", "$exclusive/", "$exclusive/$share/g/t", "$exclusive/$SYS/#"])
def test_what_is_none_is_refused(text: str) -> None:
    world = World("immediate")
    assert world.client("1").subscribe(text) == [0x80]
    assert world.client("5", level=c.LEVEL_5).subscribe(text) == [0x8F]


def test_who_is_refused_for_another_reason_holds_nothing() -> None:
    world = World("immediate", subscriptions_max=1)
    full, other = world.client("1"), world.client("2")
    assert full.subscribe("a", TEXT) == [1, 0x80]
    assert other.subscribe(TEXT) == [1]
    other.disconnect()
    assert not world.port.tables.get(TABLE)


def test_nobody_publishes_there() -> None:
    world = World("immediate")
    client = world.client("1", level=c.LEVEL_5)
    client.next_id += 1
    client.send(Publish(b"$exclusive/t", b"x", 2, client.next_id))
    assert [packet.reason for packet in client.packets if isinstance(packet, Ack)] == [0x87]


def test_two_gateways(tmp_path: Path) -> None:
    site = Site(tmp_path)
    try:
        first, second = (Client(side).connect(name) for side, name in ((site.old, "1"), (site.new, "2")))  # type: ignore[arg-type]
        assert first.subscribe(TEXT) == [1]
        assert second.subscribe(TEXT) == [0x80]
        first.unsubscribe(TEXT)
        assert second.subscribe(TEXT) == [1]
        assert first.subscribe(TEXT) == [0x80]
        second.disconnect()
        assert first.subscribe(TEXT) == [1]
    finally:
        site.close()
