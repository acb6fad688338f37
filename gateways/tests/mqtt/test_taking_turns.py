"""One client that asks for much at once: others have their turn in between, and what it gets is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gantrymq.net.procedures import order
from gantrymq_gateways.mqtt.retained import RetainedStore
from gantrymq_gateways.mqtt.sessions import lifecycle, sessions
from gantrymq_gateways.mqtt.tables import FILTER_GRACE_MS
from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.codec import Ack, Connect, PingReq, PingResp, Publish, SubAck, Subscribe, Unsubscribe
from gateways.tests.mqtt.world import Client, World

MANY = 500
FILTERS = [f"t/{number}" for number in range(MANY)]

PER_TURN = order.TURN_WORK // lifecycle.FILTER_WORK
ADDED_PER_TURN = order.TURN_WORK // lifecycle.ADD_WORK + 1


class Counted:
    """Counts calls of methods of the broker's port, turn by turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, *names: str) -> None:
        self.turns: list[int] = [0]
        for name in names:
            monkeypatch.setattr(owner, name, self._counting(getattr(owner, name)))

    def _counting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.turns[-1] += 1
            return method(*arguments)

        return counted

    def run(self, world: World) -> list[int]:
        """One turn after the other; returns what was counted in each, and before the first."""
        while world.turn.pending or world.port.pending or world.port.turn:
            self.turns.append(0)
            world.turn.run()
            world.port.run()
        world.settle()
        turns, self.turns = self.turns, [0]
        return turns


def start(client: Client, *packets: codec.Packet) -> None:
    """Hand packets over without any turn after them."""
    client.link.hand_over(b"".join([codec.encode_packet(packet) for packet in packets]))


def codes(client: Client) -> list[int]:
    (answer,) = [packet for packet in client.packets if isinstance(packet, SubAck)]
    return answer.codes


def test_filters_of_a_clean_session_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    client = world.client("c")
    other = world.client("other")
    added = Counted(monkeypatch, world.port, "add_volatile")
    start(client, Subscribe(1, [(text, 1) for text in FILTERS]))
    start(other, PingReq())
    world.turn.run()
    other.collect()
    assert other.packets == [PingResp()], "answered after a turn, while the subscriber waits for many more"
    client.collect()
    assert not client.packets
    turns = added.run(world)
    assert max(turns) <= 2 * PER_TURN, "a slice before the first turn, and one in it"
    assert sum(turns) == MANY
    client.collect()
    assert codes(client) == [1] * MANY


def test_filters_of_a_persistent_session_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    client = world.client("c", clean=False)
    counted = Counted(monkeypatch, world.port, "open_cursor")
    added = Counted(monkeypatch, sessions.PersistentSession, "add")
    asked = Counted(monkeypatch, world.port, "acquire")
    start(client, Subscribe(1, [(text, 1) for text in FILTERS]))
    while world.turn.pending:
        for one in (counted, added, asked):
            one.turns.append(0)
        world.turn.run()
    assert max(counted.turns) <= 2 * PER_TURN
    assert sum(counted.turns) == MANY
    assert max(added.turns) <= ADDED_PER_TURN
    assert max(asked.turns) <= sessions.ASK_MAX
    assert sum(asked.turns) == MANY
    client.collect()
    assert codes(client) == [1] * MANY
    world.client("p").publish("t/77")
    assert client.messages() == [("t/77", b"x")]


def test_filters_that_take_longer_than_the_grace_time_are_not_swept() -> None:
    """All that SUBACK grants is there, and stays [MQTT-3.8.4-5]."""
    world = World()
    client = world.client("c", clean=False)
    start(client, Subscribe(1, [(text, 1) for text in FILTERS]))
    began_ms = world.clock.now_ms()
    while world.turn.pending:
        world.turn.run()
        world.wheel.advance(5_000)
    assert world.clock.now_ms() - began_ms > 2 * FILTER_GRACE_MS
    world.settle()
    assert codes(client) == [1] * MANY
    assert len(world.port.lights) == MANY
    client.link.lose()
    world.settle()
    world.client("p").publish(FILTERS[0])
    assert world.client("c", clean=False).messages() == [(FILTERS[0], b"x")]


def test_a_session_that_comes_back_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    client = world.client("c", clean=False)
    client.subscribe(*FILTERS, "t/+")
    client.link.lose()
    world.settle()
    publisher = world.client("p")
    for text in FILTERS[:3]:
        publisher.publish(text)
    opened = Counted(monkeypatch, world.port, "open_cursor")
    asked = Counted(monkeypatch, world.port, "acquire")
    again = Client(world)
    start(again, Connect("c", clean=False))
    while world.turn.pending:
        opened.turns.append(0)
        asked.turns.append(0)
        world.turn.run()
    assert max(opened.turns) <= 2 * PER_TURN
    assert sum(opened.turns) == MANY + 1
    assert max(asked.turns) <= sessions.ASK_MAX + 2 * 3, "and again for each message that is sent"
    world.settle()
    again.collect()
    assert [topic for topic, _ in again.messages()] == FILTERS[:3], "in log order, each overlap once"


@pytest.mark.parametrize("clean", [True, False])
def test_unsubscribing_takes_turns(clean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    client = world.client("c", clean=clean)
    client.subscribe(*FILTERS)
    removed = Counted(monkeypatch, world.port, "remove_volatile" if clean else "delete_cursor")
    start(client, Unsubscribe(9, FILTERS))
    turns = removed.run(world)
    assert max(turns) <= (2 * PER_TURN if clean else 2 * ADDED_PER_TURN)
    assert sum(turns) == MANY
    client.collect()
    assert Ack(c.UNSUBACK, 9) in client.packets
    world.client("p").publish("t/1")
    assert client.messages() == []


def test_nobody_hears_through_a_clean_session_that_goes() -> None:
    world = World()
    client = world.client("c")
    client.subscribe(*FILTERS)
    client.door.closed("")
    world.gateway.fanout.deliveries = 0
    start(world.client("p"), Publish(b"t/499", b"x", 0, 0))
    world.settle()
    assert world.gateway.fanout.deliveries == 0
    stays = world.client("stays")
    stays.subscribe("t/499")
    world.client("p").publish("t/499")
    assert stays.messages() == [("t/499", b"x")]
    stays.link.lose()
    world.settle()
    assert world.gateway.fanout._by_text == {}


def test_routes_of_a_lost_clean_session_go_a_few_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    client = world.client("c")
    client.subscribe(*FILTERS)
    removed = Counted(monkeypatch, world.port, "remove_volatile")
    client.door.closed("")
    turns = removed.run(world)
    assert max(turns) <= 2 * PER_TURN
    assert sum(turns) == MANY


def test_a_filter_taken_up_again_while_its_route_was_to_go_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    client = world.client("c")
    client.subscribe(*FILTERS)
    removed = Counted(monkeypatch, world.port, "remove_volatile")
    stays = world.client("stays")
    client.door.closed("")
    start(stays, Subscribe(2, [(FILTERS[-1], 1)]))
    assert sum(removed.run(world)) == MANY - 1
    stays.collect()
    world.client("p").publish(FILTERS[-1])
    assert stays.messages() == [(FILTERS[-1], b"x")]


def test_clearing_a_stored_session_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.client("c", clean=False).subscribe(*FILTERS)
    deleted = Counted(monkeypatch, world.port, "delete_cursor")
    start(Client(world), Connect("c"))
    turns = deleted.run(world)
    assert max(turns) <= 2 * PER_TURN
    assert sum(turns) == MANY


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("mode", ["immediate", "late"])
def test_what_is_pipelined_behind_many_filters_waits_for_them(clean: bool, mode: str) -> None:
    """[MQTT-4.6.0]: the client's own message, sent behind SUBSCRIBE, finds all of them installed."""
    world = World(mode)
    client = world.client("c", clean=clean)
    start(client, Subscribe(1, [(text, 1) for text in FILTERS]), Publish(b"t/499", b"own", 2, 5), PingReq())
    world.settle()
    kinds = [type(packet) for packet in client.packets]
    assert kinds.index(SubAck) < kinds.index(Publish)
    assert Ack(c.PUBACK, 5) in client.packets
    assert client.messages() == [("t/499", b"own")]


@pytest.mark.parametrize("clean", [True, False])
def test_a_client_lost_between_turns_leaves_nothing_behind(clean: bool) -> None:
    world = World()
    client = world.client("c", clean=clean)
    start(client, Subscribe(1, [(text, 1) for text in FILTERS]))
    world.turn.run()
    client.link.lose()
    world.settle()
    assert world.gateway.fanout._by_text == {}
    again = world.client("c", clean=clean)
    assert not again.closed
    again.subscribe("t/3")
    world.client("p").publish("t/3")
    assert again.messages() == [("t/3", b"x")]


def test_a_session_lost_while_it_comes_back_can_come_back_again() -> None:
    world = World()
    client = world.client("c", acks=False, clean=False)
    client.subscribe(*FILTERS)
    world.client("p").publish("t/3")
    (sent,) = client.publishes()
    client.link.lose()
    world.settle()
    again = Client(world, acks=False)
    start(again, Connect("c", clean=False))
    world.turn.run()
    again.link.lose()
    world.settle()
    back = world.client("c", acks=False, clean=False)
    assert back.present
    (dup,) = back.publishes()
    assert (dup.dup, dup.packet_id, dup.topic) == (True, sent.packet_id, b"t/3")


@pytest.mark.parametrize("turns", range(0, 40, 2))
@pytest.mark.parametrize("mode", ["immediate", "late"])
def test_a_message_that_comes_while_filters_are_added_is_delivered_once(
    turns: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queues differ: the old filter has it, and those of the new ones that were there already."""
    monkeypatch.setattr(order, "TURN_WORK", 1)
    world = World(mode)
    publisher = world.client("p")
    client = world.client("c", clean=False)
    client.subscribe(("a/#", 0), "b")
    start(client, Subscribe(7, [("a/b", 1), ("#", 1), ("a/+", 1), ("+/b", 1)]))
    for _ in range(turns):
        world.turn.run()
        world.port.step()
    start(publisher, Publish(b"a/b", b"x", 2, 1))
    world.settle()
    assert codes(client) == [1, 1, 1, 1]
    assert client.messages() == [("a/b", b"x")]
    client.link.lose()
    world.settle()
    assert world.client("c", clean=False).messages() == []


# Retained messages


class Levels:
    """Counts levels looked at, turn by turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns = [0]
        walk = RetainedStore.walk

        def counted(store: RetainedStore, text: str) -> Any:
            for message in walk(store, text):
                self.turns[-1] += 1
                yield message

        monkeypatch.setattr(RetainedStore, "walk", counted)


@pytest.mark.parametrize("clean", [True, False])
def test_many_retained_messages_are_looked_for_in_turns(clean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 3 * order.TURN_WORK
    world = World()
    rows = {
        f"t/{number}": b"\x01\x00" + bytes((len(f"t/{number}"),)) + b"t/%d" % number + b"x" for number in range(count)
    }
    world.gateway.kept.load(rows)
    client = world.client("c", clean=clean)
    levels = Levels(monkeypatch)
    start(client, Subscribe(1, [("#", 1)]))
    while world.turn.pending:
        levels.turns.append(0)
        world.turn.run()
        client.collect()
    world.settle()
    assert max(levels.turns) <= order.TURN_WORK + lifecycle.LEVEL_WORK
    assert {topic for topic, _ in client.messages()} == {f"t/{number}" for number in range(count)}


@pytest.mark.parametrize("clean", [True, False])
def test_what_waits_to_be_sent_is_the_newest_that_is_retained(clean: bool) -> None:
    """[MQTT-3.3.1-5]: the last one is what is retained, so an older one must not come behind it."""
    world = World(inflight_max=1)
    publisher = world.client("p")
    for number in range(4):
        publisher.publish(f"t/{number}", "old", retain=True)
    client = world.client("c", acks=False, clean=clean)
    client.subscribe("t/#")
    (first,) = client.publishes()
    others = sorted({"t/0", "t/1", "t/2", "t/3"} - {first.topic.decode()})
    publisher.publish(others[0], "new", retain=True)
    publisher.publish(others[1], "", retain=True)
    publisher.publish(others[2], "new", qos=0, retain=True)
    client.acks = True
    client.send(Ack(c.PUBACK, first.packet_id))
    seen = client.publishes()
    kept = {publish.topic.decode(): (publish.payload, publish.qos) for publish in seen if publish.retain}
    assert kept == {others[0]: (b"new", 1), others[2]: (b"new", 0)}
    assert not any(publish.payload == b"old" for publish in seen)
    client.link.lose()
    world.settle()
    back = world.client("c", clean=clean)
    assert back.messages() == [], "nothing is owed any more"


def test_a_row_that_its_table_reports_again_is_the_same_message() -> None:
    store = RetainedStore(100, 10_000)
    value = b"\x01\x00\x01tx"
    store.storing("t/", value)
    store.stored("t/", value, False)
    (message,) = store.match("t")
    store.changed("t/", value)
    assert message.kept
    assert store.match("t") == [message]
    assert store.size_bytes == 2


@pytest.mark.parametrize("mode", ["immediate", "late"])
def test_what_is_acknowledged_in_a_turn_is_stored_once(mode: str) -> None:
    """One change of the session: one per acknowledged filter would be quadratic work where they stand in one row."""
    world = World(mode)
    publisher = world.client("p")
    for number in range(50):
        publisher.publish(f"t/{number}", retain=True)
    client = world.client("c", acks=False, clean=False)
    client.subscribe(*[f"t/{number}" for number in range(50)])
    got = client.publishes()
    assert len(got) == 50
    world.port.calls.clear()
    client.send(*[Ack(c.PUBACK, publish.packet_id) for publish in got])
    assert (world.port.calls.count("put_if"), world.port.calls.count("put_together")) == (0, 1)
    client.link.lose()
    world.settle()
    assert world.client("c", clean=False).messages() == [], "nothing is owed any more"


def test_what_is_acknowledged_right_before_the_end_is_stored() -> None:
    world = World()
    world.client("p").publish("r", retain=True)
    client = world.client("c", acks=False, clean=False)
    client.subscribe("r")
    (got,) = client.publishes()
    client.link.hand_over(codec.encode_packet(Ack(c.PUBACK, got.packet_id)))
    client.link.lose()
    world.settle()
    assert world.restart().client("c", clean=False).messages() == []


def test_a_session_that_comes_back_stops_when_its_client_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    client = world.client("c", clean=False)
    client.subscribe(*FILTERS)
    client.link.lose()
    world.settle()
    opened = Counted(monkeypatch, world.port, "open_cursor")
    again = Client(world)
    start(again, Connect("c", clean=False))
    again.link.lose()
    world.settle()
    assert 0 < sum(opened.turns) <= 2 * PER_TURN
    world.client("p").publish("t/3")
    assert world.client("c", clean=False).messages() == [("t/3", b"x")]
