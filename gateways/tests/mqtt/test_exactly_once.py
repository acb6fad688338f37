"""QoS 2 in both directions: each packet of the exchange may be the last before a crash or a new connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.model.errors import ErrorCode
from gantrymq_gateways.mqtt.messages.exchange import check_row, encode_entries
from gantrymq_gateways.mqtt.messages.receipts import IDS
from gantrymq_gateways.mqtt.sessions import sessions
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


def receiver(world: World, filters: tuple[tuple[str, int], ...] = ()) -> Client:
    client = world.client("s", acks=False, clean=False)
    if filters:
        client.subscribe(*filters)
    return client


def again(world: World, crash: bool) -> tuple[World, Client]:
    """The subscriber comes back, after a kill of everything or without."""
    world = world.restart() if crash else world
    return world, receiver(world)


@pytest.mark.parametrize("crash", [False, True], ids=["reconnect", "kill"])
@pytest.mark.parametrize("filters", [(("t", 2),), (("t", 2), ("#", 2), ("+", 1))], ids=["one", "overlap"])
def test_a_delivery_is_received_once_wherever_the_exchange_stops(
    world: World, crash: bool, filters: tuple[tuple[str, int], ...]
) -> None:
    sub = receiver(world, filters)
    world.client("p").publish("t", "1", qos=2)
    (sent,) = sub.publishes()
    world, sub = again(world, crash)
    (dup,) = sub.publishes()
    assert (dup.packet_id, dup.payload) == (sent.packet_id, b"1"), "the client knows it by its identifier"
    sub.send(Ack(c.PUBREC, sent.packet_id))
    sub.expect(Ack(c.PUBREL, sent.packet_id))
    world, sub = again(world, crash)
    assert sub.take() == [Ack(c.PUBREL, sent.packet_id)], "received: only PUBREL comes again"
    world.client("p").publish("t", "2", qos=2)
    (second,) = sub.publishes()
    assert (second.payload, second.packet_id != sent.packet_id) == (b"2", True)
    sub.send(Ack(c.PUBCOMP, sent.packet_id), Ack(c.PUBREC, second.packet_id))
    sub.expect(Ack(c.PUBREL, second.packet_id))
    world, sub = again(world, crash)
    assert sub.take() == [Ack(c.PUBREL, second.packet_id)], "what is completed left the row with the next one"


def test_pubrel_waits_for_the_row() -> None:
    world = World("late")
    sub = receiver(world, (("t", 2),))
    world.client("p").publish("t", "1", qos=2)
    (sent,) = sub.publishes()
    world.port.fail_next("put_if", ErrorCode.STORE_FULL)
    sub.send(Ack(c.PUBREC, sent.packet_id), Ack(c.PUBREC, sent.packet_id))
    assert sub.take() == [], "the disk is full"
    sub.send(Ack(c.PUBCOMP, sent.packet_id), Ack(c.PUBACK, sent.packet_id))
    world.advance(world.gateway.config.busy_retry_ms)
    assert sub.take() == [Ack(c.PUBREL, sent.packet_id)]


def test_a_row_that_somebody_else_wrote_ends_the_connection() -> None:
    world = World()
    sub = receiver(world, (("t", 2),))
    world.client("p").publish("t", "1", qos=2)
    (sent,) = sub.publishes()
    world.port.tables["mqtt_exchange"] = {">s": encode_entries([(9, (8, 7))])}
    sub.send(Ack(c.PUBREC, sent.packet_id))
    assert sub.closed
    assert Ack(c.PUBREL, sent.packet_id) not in sub.packets


def test_a_settlement_that_was_lost() -> None:
    """The row was stored, the settlement was not: what comes again is settled, not sent."""
    world = World()
    sub = receiver(world, (("t", 2),))
    world.client("p").publish("t", "1", qos=2)
    (sent,) = sub.publishes()
    settle = world.port.settle
    world.port.settle = lambda items: None  # type: ignore[method-assign]
    sub.send(Ack(c.PUBREC, sent.packet_id))
    world.port.settle = settle  # type: ignore[method-assign]
    world = world.restart()
    sub = receiver(world)
    assert sub.take() == [Ack(c.PUBREL, sent.packet_id)]
    world.client("p").publish("t", "2", qos=2)
    assert [p.payload for p in sub.publishes()] == [b"2"]


def test_an_identifier_in_use_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two messages whose places give them the same identifier: the second waits for the end of the first, and for the row without it."""
    monkeypatch.setattr(sessions, "identifier_of_place", lambda place: 5)
    world = World()
    sub = receiver(world, (("t", 2),))
    for payload in "12":
        world.client("p").publish("t", payload, qos=2)
    for payload in (b"1", b"2"):
        (sent,) = sub.publishes()
        assert (sent.packet_id, sent.payload) == (5, payload)
        sub.send(Ack(c.PUBREC, 5))
        assert sub.take() == [Ack(c.PUBREL, 5)]
        sub.send(Ack(c.PUBCOMP, 5))
    assert sub.publishes() == []


def test_identifiers_of_qos_1_are_others() -> None:
    world = World()
    sub = receiver(world, (("t", 2),))
    for qos in (1, 2, 1, 2):
        world.client("p").publish("t", str(qos), qos=qos)
    assert [(p.qos, p.packet_id > IDS) for p in sub.publishes()] == [(1, True), (2, False)] * 2


def test_a_session_that_ends_forgets_its_receipts() -> None:
    world = World()
    sub = receiver(world, (("t", 2),))
    world.client("p").publish("t", "1", qos=2)
    (sent,) = sub.publishes()
    sub.send(Ack(c.PUBREC, sent.packet_id))
    assert set(world.port.tables["mqtt_exchange"]) == {">s"}
    world.client("s").disconnect()
    assert not world.port.tables["mqtt_exchange"]
    assert receiver(world).take() == []


def test_garbage_rows() -> None:
    check_row(">s", encode_entries([(1, (2, 3))]))
    for key, value, why in ((">s", b"123", "receipts"), ("<s", b"123", "identifiers"), ("s", b"", "begins")):
        with pytest.raises(ValueError, match=why):
            check_row(key, value)


def test_pubrels_go_out_in_the_order_of_their_pubrecs(world: World) -> None:
    """[MQTT-4.6.0-4]: clients hand messages to their users when PUBREL comes."""
    sub = world.client("s", clean=False, acks=False)
    sub.subscribe(("t", 2))
    pub = world.client("p")
    for i in range(20):
        pub.publish("t", str(i), 2)
    numbers = [packet.packet_id for packet in sub.publishes()]
    order = [*numbers[10:], *reversed(numbers[:10])]
    sub.send(*[Ack(c.PUBREC, number) for number in order])
    assert sub.take() == [Ack(c.PUBREL, number) for number in order]
    sub.door.eof()
    sub.link.close()
    world.settle()
    again = world.client("s", clean=False, acks=False)
    assert again.take() == [Ack(c.PUBREL, number) for number in order]
