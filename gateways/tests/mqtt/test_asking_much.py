"""A client that asks for much in few bytes: filters by the thousand, retained messages again and again, without reading."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq_gateways.mqtt.sessions import sessions
from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.codec import MalformedPacket, Subscribe, Unsubscribe
from gateways.tests.mqtt.world import World


def decode(packet: Subscribe | Unsubscribe) -> codec.Packet:
    data = codec.encode_packet(packet)
    found = codec.packet_end(data, 0)
    assert found is not None
    return codec.decode_packet(data, 0, *found)


def test_filters_in_one_packet_are_counted() -> None:
    most = ["a"] * c.FILTERS_MAX
    assert decode(Unsubscribe(1, most)) == Unsubscribe(1, most)
    assert decode(Subscribe(1, [(text, 0) for text in most])) == Subscribe(1, [(text, 0) for text in most])
    for packet in (Unsubscribe(1, [*most, "a"]), Subscribe(1, [(text, 0) for text in [*most, "a"]])):
        with pytest.raises(MalformedPacket, match="more than 10000 filters"):
            decode(packet)


def test_the_limit_of_one_packet_is_named_beside_the_setting() -> None:
    """`mqtt.subscriptions_max` may be set higher than one packet can ask for."""
    page = Path(__file__).parents[3] / "docs" / "operations" / "configuration.md"
    (line,) = [line for line in page.read_text().splitlines() if line.startswith("| `mqtt.subscriptions_max`")]
    assert f"at most {c.FILTERS_MAX} filters" in line


def test_refused_filters_of_one_packet_take_one_line(caplog: pytest.LogCaptureFixture) -> None:
    client = World(subscriptions_max=2).client("c")
    with caplog.at_level(logging.WARNING):
        codes = client.subscribe(*[f"t/{number}" for number in range(50)])
    assert codes == [1, 1] + [0x80] * 48
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "client c: 48 of 50 subscriptions refused, first 't/2': mqtt.subscriptions_max (2) is reached"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("mode", ["immediate", "late"])
def test_asking_again_does_not_pile_retained_messages_up(clean: bool, mode: str) -> None:
    """[MQTT-3.8.4-3]: sent again, but what still waits for the same filter is not sent twice more."""
    world = World(mode)
    for number in range(20):
        world.client("p").publish(f"t/{number}", retain=True)
    client = world.client("c", acks=False, clean=clean)
    client.link.waiting = 10_000_000
    for _ in range(30):
        client.subscribe("t/#")
    session = client.door.session
    assert session is not None
    assert len(session.retained) == 20, "each once, and none is forgotten"


class Counted(deque[Any]):
    """Counts passes."""

    passes = 0

    def __iter__(self) -> Iterator[Any]:
        Counted.passes += 1
        return super().__iter__()


@pytest.mark.parametrize("clean", [True, False])
def test_many_filters_asked_again_are_one_pass_over_what_waits(clean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "deque", Counted)
    world = World(inflight_max=1)
    for number in range(20):
        world.client("p").publish(f"t/{number}", retain=True)
    client = world.client("c", acks=False, clean=clean)
    filters = [f"t/{number}" for number in range(20)]
    client.subscribe(*filters)
    Counted.passes = 0
    client.subscribe(*filters[1:15])
    session = client.door.session
    assert session is not None
    assert Counted.passes == 1
    assert sorted(entry[3] for entry in session.retained) == sorted(filters[1:])


def test_who_asks_for_ever_more_without_reading_is_cut_off() -> None:
    world = World(inflight_max=1)
    world.gateway.lifecycle.tools.retained_waiting_max = 50
    for number in range(20):
        world.client("p").publish(f"t/{number}", retain=True)
    client = world.client("c", acks=False)
    for text in ("t/#", "+/#", "#", "t/+"):
        client.send(Subscribe(7, [(text, 1)]))
    assert client.closed
    assert client.door.session is None


def test_a_filter_that_finds_nothing_cuts_nobody_off() -> None:
    world = World(inflight_max=1)
    world.gateway.lifecycle.tools.retained_waiting_max = 10
    for number in range(20):
        world.client("p").publish(f"t/{number}", retain=True)
    client = world.client("c", acks=False, clean=False)
    assert client.subscribe("t/#") == [1]
    assert client.subscribe("nothing/here") == [1]
    assert not client.closed
    client.send(Subscribe(9, [("t/+", 1)]))
    assert client.closed


def test_the_limit_of_what_waits_follows_what_may_be_kept() -> None:
    """One filter may find all of it, and four more."""
    for retained_max, waiting_max in ((0, 500_000), (100_000, 500_000), (10_000_000, 50_000_000)):
        assert World(retained_max=retained_max).gateway.lifecycle.tools.retained_waiting_max == waiting_max


def test_a_session_that_is_owed_too_much_can_come_back() -> None:
    world = World(inflight_max=1)
    for number in range(20):
        world.client("p").publish(f"t/{number}", retain=True)
    client = world.client("c", acks=False, clean=False)
    client.subscribe("t/#", "+/#", "#", "t/+")
    client.link.lose()
    world.settle()
    world.gateway.lifecycle.tools.retained_waiting_max = 50
    again = world.client("c", clean=False)
    assert not again.closed
    world.settle()
    assert {topic for topic, _ in again.messages()} == {f"t/{number}" for number in range(20)}
