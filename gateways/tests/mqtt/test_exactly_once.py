"""QoS 2 in both directions: each packet of the exchange may be the last before a crash or a new connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.packets import Ack, Disconnect, Publish
from gantrymq_gateways.mqtt.wire.reasons import Reason
from gateways.tests.mqtt.world import Client, World

MODES = ["immediate", "late", "local", "remote"]


@pytest.fixture(params=MODES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(request.param, 1, directory=tmp_path / "broker")
    yield made
    made.close()


def message(number: int = 7, payload: bytes = b"1", dup: bool = False) -> Publish:
    return Publish(b"t", payload, 4 | (8 if dup else 0), number)


def stored(world: World) -> list[bytes]:
    """What a session that was there all the time has got."""
    watcher = world.client("watcher", clean=False)
    return [payload for _, payload in watcher.messages()]


def watch(world: World) -> None:
    watcher = world.client("watcher", clean=False)
    watcher.subscribe(("t", 2))
    watcher.disconnect()


@pytest.mark.parametrize("crash", [False, True], ids=["reconnect", "kill"])
def test_a_publish_is_stored_once_wherever_the_exchange_stops(world: World, crash: bool) -> None:
    watch(world)
    client = world.client("p", clean=False)
    client.send(message())
    client.expect(Ack(c.PUBREC, 7))
    world = world.restart() if crash else world
    client = world.client("p", clean=False)
    assert client.present
    client.send(message(dup=True))
    client.expect(Ack(c.PUBREC, 7))  # known: not stored again [MQTT-4.3.3-2]
    client.send(Ack(c.PUBREL, 7))
    client.expect(Ack(c.PUBCOMP, 7))
    world = world.restart() if crash else world
    client = world.client("p", clean=False)
    client.send(Ack(c.PUBREL, 7))
    client.expect(Ack(c.PUBCOMP, 7))
    client.send(message(payload=b"2"))
    client.expect(Ack(c.PUBREC, 7))
    assert stored(world) == [b"1", b"2"], "a released identifier is a new message's"


def test_a_session_that_ends_forgets_its_identifiers(world: World) -> None:
    watch(world)
    client = world.client("p", clean=False)
    client.send(message())
    world.client("p").disconnect()
    world = world.restart()
    client = world.client("p", clean=False)
    client.send(message(payload=b"2"))
    client.expect(Ack(c.PUBREC, 7))
    assert stored(world) == [b"1", b"2"]


def test_releases_and_publishes_of_one_write(world: World) -> None:
    watch(world)
    client = world.client("p", clean=False)
    client.send(message(1, b"1"), message(2, b"2"))
    client.send(Ack(c.PUBREL, 1), message(1, b"3"), Ack(c.PUBREL, 2))
    assert {(a.kind, a.packet_id) for a in client.take() if isinstance(a, Ack)} == {
        (c.PUBREC, 1),
        (c.PUBREC, 2),
        (c.PUBCOMP, 1),
        (c.PUBCOMP, 2),
    }
    assert stored(world) == [b"1", b"2", b"3"]


def test_a_delivery_goes_on_after_a_new_connection() -> None:
    world = World()
    sub = world.client("s", acks=False, clean=False)
    sub.subscribe(("t", 2))
    world.client("p").publish("t", "1", qos=2)
    (sent,) = sub.publishes()
    assert sent.qos == 2
    sub = world.client("s", acks=False, clean=False)
    (again,) = sub.publishes()
    assert (again.packet_id, again.dup) == (sent.packet_id, True)  # [MQTT-4.4.0-1]
    sub.send(Ack(c.PUBREC, again.packet_id))
    sub.expect(Ack(c.PUBREL, again.packet_id))
    sub = world.client("s", acks=False, clean=False)
    assert sub.take() == [Ack(c.PUBREL, again.packet_id)], "released: only PUBREL comes again"
    sub.send(Ack(c.PUBCOMP, again.packet_id))
    assert world.client("s", acks=False, clean=False).take() == []


def test_a_puback_does_not_end_qos_2() -> None:
    world = World()
    sub = world.client("s", acks=False)
    sub.subscribe(("t", 2))
    world.client("p").publish("t", "1", qos=2)
    (sent,) = sub.publishes()
    sub.send(Ack(c.PUBACK, sent.packet_id), Ack(c.PUBCOMP, sent.packet_id))
    sub.send(Ack(c.PUBREC, sent.packet_id))
    sub.expect(Ack(c.PUBREL, sent.packet_id))


def test_unknown_identifiers() -> None:
    world = World()
    old, new = world.client("a"), Client(world, True, c.LEVEL_5).connect("b")
    for client, reason in ((old, 0), (new, Reason.PACKET_ID_NOT_FOUND)):
        client.send(Ack(c.PUBREL, 9), Ack(c.PUBREC, 8), Ack(c.PUBCOMP, 7), Ack(c.PUBACK, 6))
        client.expect(Ack(c.PUBCOMP, 9, reason))
        client.expect(Ack(c.PUBREL, 8, reason))
        assert not client.closed


def test_a_refused_receipt_ends_the_delivery() -> None:
    world = World()
    sub = Client(world, False, c.LEVEL_5).connect("s")
    sub.subscribe(("t", 2))
    world.client("p").publish("t", "1", qos=2)
    (sent,) = sub.publishes()
    sub.send(Ack(c.PUBREC, sent.packet_id, Reason.QUOTA_EXCEEDED))
    assert sub.take() == []  # [MQTT5-4.3.3-3]
    assert not sub.door._outlet.inflight  # type: ignore[union-attr]


def test_too_many_open_identifiers_end_a_3_1_1_connection() -> None:
    world = World(awaiting_rel_max=2)
    client = world.client("p")
    client.send(*[message(number) for number in (1, 2)])
    assert not client.closed
    client.send(message(3))
    assert client.closed
    assert not any(isinstance(packet, Disconnect) for packet in client.packets)
