"""`$delayed/<seconds>/<topic>` on the broker's timers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.model.errors import GantryError
from gantrymq_gateways.mqtt.topics.delayed import DELAY_S_MAX, split_delay
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.packets import Ack, Disconnect, Publish
from gantrymq_gateways.mqtt.wire.reasons import Reason
from gateways.tests.mqtt.world import Client, World


@pytest.fixture(params=["local", "remote"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(request.param, 1, directory=tmp_path / "broker")
    yield made
    made.close()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_it_comes_later_and_not_before(world: World, qos: int) -> None:
    sub = world.client("s", clean=False)
    sub.subscribe(("a/#", 2))
    world.client("p", clean=False).publish("$delayed/5/a/b", "later", qos=qos)
    world.advance(4_900)
    assert sub.messages() == []
    world = world.restart()
    sub = world.client("s", clean=False)
    world.advance(10_000)
    (got,) = sub.publishes()
    assert (got.topic, got.payload, got.qos, got.retain) == (b"a/b", b"later", qos, False)


def test_no_delay_is_at_once(world: World) -> None:
    sub = world.client("s")
    sub.subscribe("a/b")
    world.client("p").publish("$delayed/0/a/b", "now")
    assert sub.messages() == [("a/b", b"now")]


def test_it_retains_nothing(world: World) -> None:
    sub = world.client("s")
    sub.subscribe("a/b")
    world.client("p").publish("$delayed/1/a/b", "later", retain=True)
    world.advance(5_000)
    assert sub.messages() == [("a/b", b"later")]
    new = world.client("new")
    new.subscribe("a/b")
    assert new.messages() == []


@pytest.mark.parametrize("topic", ["$delayed/9999999/t", f"$delayed/{3 * 86_400 + 5}/t", "$delayed/x/t", "$delayed/5"])
def test_what_cannot_be_is_refused(world: World, topic: str) -> None:
    new = Client(world, level=c.LEVEL_5).connect("new")
    new.send(Publish(topic.encode(), b"", 2, 7))
    (ack,) = new.take()
    assert isinstance(ack, Ack)
    assert (ack.kind, ack.packet_id, ack.reason >= Reason.UNSPECIFIED) == (c.PUBACK, 7, True)
    new.send(Disconnect())
    old = world.client("old")
    old.send(Publish(topic.encode(), b"", 2, 7))
    assert old.closed


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("a/b", (0, "a/b")),
        ("$delayed/15/a/b", (15, "a/b")),
        (f"$delayed/{DELAY_S_MAX}/$x", (DELAY_S_MAX, "$x")),
        ("$delayed/7//a", (7, "/a")),
        ("$delayed", (0, "$delayed")),
    ],
)
def test_the_form(topic: str, expected: tuple[int, str]) -> None:
    assert split_delay(topic) == expected


@pytest.mark.parametrize(
    "topic", ["$delayed/", "$delayed//t", "$delayed/5/", "$delayed/-1/t", "$delayed/²/t", "$delayed/4294968/t"]
)
def test_what_is_not_of_the_form(topic: str) -> None:
    with pytest.raises(GantryError, match="is not"):
        split_delay(topic)
