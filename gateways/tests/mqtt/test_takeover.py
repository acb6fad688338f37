"""A client id that another gateway takes in the middle of a procedure: what is stored is the taker's from then on [MQTT-3.1.4-2]."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gantrymq.model.errors import ErrorCode
from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire.codec import Connect, Subscribe, Unsubscribe
from gateways.tests.mqtt.world import Client, World

FILTERS = [f"t/{number}" for number in range(500)]


def start(client: Client, packet: codec.Packet) -> None:
    """Hand a packet over without any turn after it: more than one turn's work is left in the middle."""
    client.link.hand_over(codec.encode_packet(packet))


def stored(world: World) -> dict[str, object]:
    """The session's row, with the filters that have rows of their own."""
    rows = world.port.tables["mqtt_session"]
    row: dict[str, Any] = json.loads(rows["c"])
    row["s"] |= {key.partition("\n")[2]: json.loads(value) for key, value in rows.items() if key.startswith("c\n")}
    return row


def test_what_the_taker_subscribed_outlives_a_subscribe_under_way() -> None:
    old, new = _two_gateways()
    client = old.client("c", clean=False)
    start(client, Subscribe(1, [(text, 1) for text in FILTERS]))
    taker = new.client("c", clean=False)
    assert taker.subscribe("x") == [1]
    old.settle()
    assert client.closed
    assert "x" in stored(new)["s"]  # type: ignore[operator]
    _gets(new, "x")


def test_what_the_taker_subscribed_outlives_a_subscribe_of_a_lost_client() -> None:
    old, new = _two_gateways()
    client = old.client("c", clean=False)
    start(client, Subscribe(1, [(text, 1) for text in FILTERS]))
    client.link.lose()
    taker = new.client("c", clean=False)
    assert taker.subscribe("x") == [1]
    old.settle()
    assert "x" in stored(new)["s"]  # type: ignore[operator]
    _gets(new, "x")


def test_what_the_taker_subscribed_outlives_an_unsubscribe_under_way() -> None:
    old, new = _two_gateways()
    client = old.client("c", clean=False)
    client.subscribe(*FILTERS)
    new.settle()
    start(client, Unsubscribe(9, FILTERS[:400]))
    taker = new.client("c", clean=False)
    assert taker.subscribe("x", FILTERS[0]) == [1, 1]
    old.settle()
    new.client("p").publish(FILTERS[0])
    assert taker.messages() == [(FILTERS[0], b"x")]
    _gets(new, "x", FILTERS[0])


def test_a_session_that_was_being_forgotten_begins_anew_for_its_taker() -> None:
    old, new = _two_gateways()
    old.client("c", clean=False).subscribe(*FILTERS)
    new.settle()
    start(Client(old), Connect("c"))
    taker = new.client("c", clean=False)
    assert not taker.present
    assert taker.subscribe("x", FILTERS[-1]) == [1, 1]
    old.settle()
    assert _places(new) == 2
    new.client("p").publish(FILTERS[0])
    new.client("p").publish(FILTERS[-1])
    assert taker.messages() == [(FILTERS[-1], b"x")]
    _gets(new, "x", FILTERS[-1])


@pytest.mark.parametrize("mode", ["immediate", "late", "shuffled"])
@pytest.mark.parametrize("lost", [False, True])
def test_a_subscribe_that_is_taken_over_leaves_no_places_behind(mode: str, lost: bool) -> None:
    old, new = _two_gateways(mode)
    client = old.client("c", clean=False)
    start(client, Subscribe(1, [(text, 1) for text in FILTERS]))
    _work(old, 300)
    if lost:
        client.link.lose()
    taker = new.client("c", clean=False)
    old.settle()
    assert _places(new) == len(stored(new)["s"])  # type: ignore[arg-type]
    assert taker.subscribe("x") == [1]
    _gets(new, "x")


@pytest.mark.parametrize("mode", ["immediate", "late", "shuffled"])
def test_an_unsubscribe_that_is_taken_over_leaves_no_places_behind(mode: str) -> None:
    old, new = _two_gateways(mode)
    client = old.client("c", clean=False)
    client.subscribe(*FILTERS)
    new.settle()
    start(client, Unsubscribe(9, FILTERS[:400]))
    _work(old, 100)
    taker = new.client("c", clean=False)
    old.settle()
    assert _places(new) == len(stored(new)["s"])  # type: ignore[arg-type]
    assert taker.subscribe(FILTERS[0]) == [1]
    new.client("p").publish(FILTERS[0])
    assert taker.messages() == [(FILTERS[0], b"x")]
    taker.link.lose()
    new.settle()
    assert "e" not in stored(new), "what was given back is named no longer"


def test_a_taken_session_did_not_leave() -> None:
    old, new = _two_gateways()
    old.client("c", clean=False)
    taker = new.client("c", clean=False)
    old.settle()
    assert "l" not in stored(new)
    taker.link.lose()
    new.settle()
    assert "l" in stored(new)


def test_a_session_whose_taker_goes_at_once_expires() -> None:
    old, new = _two_gateways()
    old.client("c", clean=False).subscribe(*FILTERS)
    new.settle()
    taker = Client(new)
    start(taker, Connect("c", clean=False))
    new.port.run()
    taker.link.lose()
    old.settle()
    new.settle()
    assert "l" in stored(new)
    assert [name for name in new.port.leases if name.startswith("mqtt:")] == []


def test_a_row_that_is_not_what_its_holder_wrote_ends_the_connection() -> None:
    """A broker group that went away has stored a change whose answer was lost, and says so when it is back."""
    world = World()
    client = world.client("c", clean=False)
    client.subscribe("x")
    row = stored(world)
    row["s"]["y"] = [1, 77, 0]  # type: ignore[index]
    world.port._set("mqtt_session", [("c", json.dumps(row, separators=(",", ":")).encode())])
    world.settle()
    assert not client.closed
    start(client, Subscribe(9, [("z", 1)]))
    world.settle()
    assert client.closed
    again = world.client("c", clean=False)
    assert again.present
    assert again.subscribe("z") == [1]
    assert set(stored(world)["s"]) == {"x", "y", "z"}  # type: ignore[call-overload]


@pytest.mark.parametrize("code", [ErrorCode.STORE_FULL, ErrorCode.UNAVAILABLE])
def test_who_comes_to_another_gateway_while_its_row_cannot_be_written_gets_what_waits(code: ErrorCode) -> None:
    old, new = _two_gateways()
    client = old.client("c", clean=False)
    client.subscribe("x")
    client.link.lose()
    old.settle()
    new.settle()
    before = stored(new)["g"]
    new.client("p").publish("x")
    new.port.fail_next("put_if", code)
    taker = new.client("c", clean=False)
    assert taker.present
    assert taker.messages() == [("x", b"x")]
    assert taker.subscribe("y") == [1]
    assert stored(new)["g"] != before, "the next change claims the row"
    old.client("c", clean=False)
    new.settle()
    assert taker.closed


def _two_gateways(mode: str = "immediate") -> tuple[World, World]:
    """Two gateways of one broker."""
    old = World(mode)
    return old, World(port=old.port)


def _work(world: World, answers: int) -> None:
    """Let a gateway come to the middle of something."""
    for _ in range(answers):
        world.turn.run()
        world.port.step()


def _places(world: World) -> int:
    """Of the client's session, in all queues."""
    return sum(cursor.group == "mqtt:c" for cursor in world.port.cursors.values())


def _gets(world: World, *filters: str) -> None:
    """The session, coming back after a restart of everything, gets what was published for the filters."""
    world = world.restart()
    publisher = world.client("p")
    for text in filters:
        publisher.publish(text, "later")
    assert sorted(world.client("c", clean=False).messages()) == sorted((text, b"later") for text in filters)
