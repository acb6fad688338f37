"""`mqtt.refused_publish`: clients that send for ever what cannot be stored, and dead letters instead."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.model.errors import ErrorCode
from gantrymq_gateways.mqtt.messages.refused import (
    CLIENTS_MAX,
    DEAD_LETTERS,
    FORGET_MS,
    LETTER_BYTES_MAX,
    LETTERS_PER_S,
    PART,
    REASON,
    TOPIC,
    Refusals,
)
from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.codec import Ack, ConnAck, Connect, Publish
from gantrymq_gateways.mqtt.wire.connection import ConnectionLimits, MqttConnection, Part, State, Violation
from gateways.tests.mqtt.world import Client, World

DEEP = b"/".join([b"a"] * (c.TOPIC_LEVELS_MAX + 1))
FLOOD = "x" * 5000
"""A first level is shortened, a tag of over 4 KiB is not."""


def poison(client: Client, topic: bytes = DEEP) -> None:
    client.send(Publish(topic, b"p", 2, 1))


def test_a_client_that_sends_poison_again_is_let_in_later_each_time(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    for attempt in range(4):
        client = world.client()
        client.send(Connect("poor"))
        if attempt:
            assert client.packets == []
            world.advance(attempt * 1000 - 1)
            assert client.packets == []
            world.advance(60)
        assert client.packets == [ConnAck(0, False)]
        poison(client)
        assert client.closed
    assert [r.getMessage().count("poor") for r in caplog.records if r.levelno == logging.WARNING] == [1]
    assert world.client("other").present is False  # nobody else waits


def test_what_is_malformed_or_too_late_costs_no_wait() -> None:
    world = World()
    for data in (b"\xf0\x00", b"\x36\x05\x00\x01t\x00\x01"):
        client = world.client("c")
        client.send_bytes(data)
        assert client.closed
    assert world.client("c").present is False


@pytest.mark.parametrize("data", [b"\x30\xff\xff\xff\x7f"], ids=["too large"])
def test_what_is_well_formed_and_not_taken_does(data: bytes) -> None:
    world = World()
    world.client("c").send_bytes(data)
    again = world.client()
    again.send(Connect("c"))
    assert again.packets == []


def test_the_wait_has_an_end_and_is_forgotten() -> None:
    refusals = Refusals()
    for _ in range(100):
        refusals.note("c", 1000)
    assert refusals.delay_ms("c", 2000) == 30_000
    assert refusals.delay_ms("c", 1000 + FORGET_MS + 1) == 0
    assert refusals.note("c", 1000 + FORGET_MS + 1)
    assert refusals.delay_ms("c", 1000 + FORGET_MS + 1) == 1000


def test_refusals_are_bounded() -> None:
    refusals = Refusals()
    for number in range(CLIENTS_MAX + 10):
        refusals.note(f"c{number}", 0)
    assert len(refusals._clients) == CLIENTS_MAX
    assert refusals.delay_ms("c0", 0) == 0


def test_a_client_that_leaves_while_it_waits_leaves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    poison(world.client("poor"))
    client = world.client()
    client.send(Connect("poor"))
    client.door.closed("gone")
    world.advance(2000)
    assert client.packets == []
    assert world.gateway.lifecycle.live == {}


@pytest.mark.parametrize("mode", ["immediate", "late", "shuffled"])
@pytest.mark.parametrize("topic", [DEEP, b"t/" + FLOOD.encode()], ids=["levels", "tag"])
def test_what_its_name_forbids_is_a_dead_letter(mode: str, topic: bytes) -> None:
    world = World(mode, refused_publish="dead_letter")
    client = world.client("poor")
    client.send(Publish(b"t", b"1", 2, 1), Publish(topic, b"2", 2, 2), Publish(b"t", b"3", 2, 3))
    assert client.packets == [Ack(c.PUBACK, number) for number in (1, 2, 3)]
    (found,) = [message for message in world.port.log if message.topic == DEAD_LETTERS]
    assert found.body == b"2"
    assert found.property_map()[TOPIC] == topic.decode()[:2048]
    assert found.property_map()[REASON]


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.TOPIC_LIMIT])
def test_what_the_log_refuses_is_a_dead_letter(code: ErrorCode) -> None:
    world = World("late", refused_publish="dead_letter", busy_retry_ms=100)
    client = world.client("poor")
    world.port.fail_next("submit", code)
    client.send(Publish(b"t/u", b"2", 2, 2))
    world.advance(200)
    assert client.packets == [Ack(c.PUBACK, 2)]
    assert [(m.topic, m.property_map()[TOPIC]) for m in world.port.log] == [(DEAD_LETTERS, "t/u")]


@pytest.mark.parametrize("topic", [b"%DLQ%x", b"$SYS/x", b"rmq_sys_gantry_ack"])
def test_what_nobody_may_do_is_never_stored(topic: bytes) -> None:
    world = World(refused_publish="dead_letter")
    client = world.client("poor")
    poison(client, topic)
    assert client.closed
    assert client.packets == []
    assert world.port.log == []


def test_dead_letters_of_a_client_have_a_budget() -> None:
    refusals = Refusals()
    assert [refusals.admits("c", 10, 0) for _ in range(LETTERS_PER_S + 1)] == [True] * LETTERS_PER_S + [False]
    assert refusals.admits("c", 10, 20)
    assert refusals.admits("big", LETTER_BYTES_MAX, 0)
    assert not refusals.admits("big", 1_000_000, 1000)
    assert refusals.admits("big", 1_000_000, 100_000)
    world = World(refused_publish="dead_letter")
    client = world.client("poor")
    client.send(*[Publish(DEEP, b"p", 2, number) for number in range(1, LETTERS_PER_S + 2)])
    assert client.closed
    assert len(world.port.log) == LETTERS_PER_S


def test_a_packet_larger_than_any_message_comes_as_parts() -> None:
    world = World(refused_publish="dead_letter")
    limits = ConnectionLimits(100 + 65_552, part_bytes=100)
    world.gateway._limits = limits
    client = world.client("poor")
    body = bytes(range(256)) * 300
    client.send(Publish(b"t/u", body, 2, 7), Publish(b"t", b"next", 2, 8))
    assert client.closed  # 768 letters are over the budget of a second
    world.gateway._limits = ConnectionLimits(100 + 65_552, part_bytes=40_000)
    other = world.client("other")
    other.send(Publish(b"t/u", body, 2, 7), Publish(b"t", b"next", 2, 8))
    assert other.packets == [Ack(c.PUBACK, 7), Ack(c.PUBACK, 8)]
    letters = [m for m in world.port.log if m.property_map().get("GANTRY_MQTT_CLIENT") == "other"]
    assert b"".join([m.body for m in letters]) == body
    assert [m.property_map()[PART] for m in letters] == ["1/2", "2/2"]
    assert world.port.log[-1].body == b"next"


@given(st.lists(st.integers(1, 70_000), max_size=12), st.sampled_from([0, 1]))
def test_parts_are_the_same_however_they_are_cut(cuts: list[int], qos: int) -> None:
    body = bytes(range(256)) * 280
    data = codec.encode_packet(Publish(b"t/u", body, qos << 1, 9 if qos else 0))
    data += codec.encode_packet(Publish(b"t", b"next", 0, 0))
    connection = MqttConnection(ConnectionLimits(65_700, part_bytes=30_000), set(), 0)
    connection.state = State.CONNECTED
    events: list[object] = []
    at = 0
    for cut in [*cuts, len(data)]:
        events += connection.receive_data(data[at : at + cut], 0)
        at += cut
    parts = [event for event in events if isinstance(event, Part)]
    assert b"".join([part.payload for part in parts]) == body
    assert [(part.number, part.count) for part in parts] == [(1, 3), (2, 3), (3, 3)]
    assert [part.packet_id for part in parts] == [0, 0, 9 if qos else 0]
    assert events[-1] == Publish(b"t", b"next", 0, 0)


@pytest.mark.parametrize("size", [999, 1000, 1001, 1002, 2001])
@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_payload_one_byte_larger_than_a_record_comes_as_parts(size: int, step: int, qos: int) -> None:
    body = bytes(range(250)) * 9
    wanted = Publish(b"t/u", body[:size], qos << 1, 9 if qos else 0)
    data = codec.encode_packet(wanted) + codec.encode_packet(Publish(b"t/u", b"next", 0, 0))
    connection = MqttConnection(ConnectionLimits(1_000 + 65_552, part_bytes=1_000), {b"t/u"}, 0)
    connection.state = State.CONNECTED
    events: list[object] = []
    for at in range(0, len(data), step):
        events += connection.receive_data(data[at : at + step], 0)
    if size <= 1_000:
        assert events[:-1] == [wanted]
    else:
        count = -(-size // 1_000)
        assert [(part.number, part.count) for part in events[:-1] if isinstance(part, Part)] == [
            (number, count) for number in range(1, count + 1)
        ]
        assert b"".join([part.payload for part in events[:-1] if isinstance(part, Part)]) == body[:size]
    assert events[-1] == Publish(b"t/u", b"next", 0, 0)


@pytest.mark.parametrize(("flags", "topic", "packet_id"), [(6, b"t", 1), (2, b"t", 0), (0, b"a/#", 0), (0, b"", 0)])
def test_a_large_packet_that_is_wrong_ends_the_connection(flags: int, topic: bytes, packet_id: int) -> None:
    connection = MqttConnection(ConnectionLimits(65_700, part_bytes=30_000), set(), 0)
    connection.state = State.CONNECTED
    head = codec.encode_publish_head(topic, 80_000, flags)
    data = head + (packet_id.to_bytes(2, "big") if flags & 6 else b"") + bytes(80_000)
    assert [type(event) for event in connection.receive_data(data, 0)] == [Violation]
