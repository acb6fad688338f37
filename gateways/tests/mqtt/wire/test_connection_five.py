"""The connection in MQTT 5.0: the hot path beside the plain one, every split, authentication, what is said before the end."""

from __future__ import annotations

import pytest

from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.connection import ConnectionLimits, Event, MqttConnection, State, Violation
from gantrymq_gateways.mqtt.wire.packets import Ack, Auth, Connect, Disconnect, Packet, Publish, Subscribe
from gantrymq_gateways.mqtt.wire.reasons import Reason
from gateways.tests.mqtt.world import decode_all

CONNECT = Connect("c", True, 60, 5)


def connected(connect: Connect = CONNECT, limits: ConnectionLimits | None = None) -> MqttConnection:
    connection = MqttConnection(limits or ConnectionLimits(topic_alias_max=5), set(), 0)
    assert isinstance(connection.receive_data(codec.encode_packet(connect, 5), 0)[0], Connect)
    connection.accept(False)
    assert connection.data_to_send() == b"\x20\x03\x00\x00\x00"
    return connection


PACKETS: list[Packet] = [
    Publish(b"t", b"hi", 0, 0),
    Publish(b"t", b"", 0, 0),
    Publish(b"t", b"hi", 3, 9),
    Publish(b"t", b"", 2, 9),
    Publish(b"t", b"hi", 4, 9),
    Publish(b"t", b"x" * 200, 5, 9),
    Publish(b"t", b"hi", 2, 9, {p.CONTENT_TYPE: "a"}),
    Ack(c.PUBACK, 9),
    Ack(c.PUBREC, 9),
    Ack(c.PUBREL, 9),
    Ack(c.PUBCOMP, 9, 0x92),
    Subscribe(1, [("a", 1)], {p.SUBSCRIPTION_ID: [7]}),
]


@pytest.mark.parametrize("packet", PACKETS, ids=repr)
def test_every_split(packet: Packet) -> None:
    data = codec.encode_packet(packet, 5)
    whole = data + data + b"\xc0\x00"
    for cut in range(len(whole) + 1):
        connection = connected()
        assert connection.receive_data(whole[:cut], 1) + connection.receive_data(whole[cut:], 2) == [packet, packet]
        assert connection.buffered_bytes() == 0


def events_of(connection: MqttConnection, data: bytes) -> tuple[list[Event], list[Packet]]:
    events = connection.receive_data(data, 0)
    sent = connection.data_to_send()
    assert isinstance(sent, bytes)
    return events, decode_all(sent, 5)


def test_a_violation_is_told_and_nothing_follows() -> None:
    connection = connected()
    events, sent = events_of(connection, b"\x30\x03\x00\x01+" + codec.encode_packet(Publish(b"t", b"", 0, 0), 5))
    assert isinstance(events[0], Violation)
    assert len(events) == 1
    assert [packet.reason for packet in sent if isinstance(packet, Disconnect)] == [Reason.TOPIC_NAME_INVALID]
    assert connection.has_disconnected
    assert connection.state is State.CLOSED


def test_a_reason_string_that_is_too_much_is_left_out() -> None:
    connection = connected(Connect("c", level=5, properties={p.MAXIMUM_PACKET_SIZE: 20}))
    connection.disconnect(Reason.QUOTA_EXCEEDED, "x" * 100)
    assert connection.data_to_send() == b"\xe0\x01\x97"  # [MQTT5-3.14.2-3]
    connection = connected(Connect("c", level=5, properties={p.MAXIMUM_PACKET_SIZE: 2}))
    connection.disconnect(Reason.QUOTA_EXCEEDED, "x")
    assert connection.data_to_send() == b""


def test_3_1_1_is_told_nothing() -> None:
    connection = MqttConnection(ConnectionLimits(), set(), 0)
    connection.receive_data(codec.encode_packet(Connect("c")), 0)
    connection.accept(False)
    connection.data_to_send()
    connection.disconnect(Reason.SERVER_SHUTTING_DOWN)
    assert connection.data_to_send() == b""


METHOD = Connect("c", level=5, properties={p.AUTH_METHOD: "M", p.AUTH_DATA: b"1"})


def test_an_authentication_of_two_steps() -> None:
    connection = MqttConnection(ConnectionLimits(), set(), 0)
    connection.receive_data(codec.encode_packet(METHOD), 0)
    connection.challenge(Reason.CONTINUE_AUTHENTICATION, b"2")
    assert connection.next_deadline() is not None
    said = Auth(0x18, {p.AUTH_METHOD: "M", p.AUTH_DATA: b"3"})
    events, sent = events_of(connection, codec.encode_packet(said) + b"\xc0\x00")
    assert events == [said]
    assert sent == [Auth(0x18, {p.AUTH_METHOD: "M", p.AUTH_DATA: b"2"})]
    connection.accept(False)
    assert connection.receive_data(b"", 0) == []
    again = Auth(0x19, {p.AUTH_METHOD: "M"})
    assert connection.receive_data(codec.encode_packet(again), 0) == [again]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (codec.encode_packet(Auth(0x18, {p.AUTH_METHOD: "other"})), Reason.PROTOCOL_ERROR),
        (codec.encode_packet(Auth(0x19, {p.AUTH_METHOD: "M"})), Reason.PROTOCOL_ERROR),
        (codec.encode_packet(Auth(0x18)), Reason.PROTOCOL_ERROR),
        (codec.encode_packet(Publish(b"t", b"", 0, 0), 5), Reason.PROTOCOL_ERROR),
        (b"\xc0\x00", Reason.PROTOCOL_ERROR),
    ],
)
def test_while_it_authenticates_nothing_else_may_come(data: bytes, reason: Reason) -> None:
    connection = MqttConnection(ConnectionLimits(), set(), 0)
    connection.receive_data(codec.encode_packet(METHOD), 0)
    connection.challenge(Reason.CONTINUE_AUTHENTICATION, b"2")
    (event,) = connection.receive_data(data, 0)
    assert isinstance(event, Violation)
    assert event.reason == reason


def test_auth_without_a_method_is_an_error() -> None:
    connection = connected()
    events, sent = events_of(connection, b"\xf0\x00")
    assert isinstance(events[0], Violation)
    assert [packet.reason for packet in sent if isinstance(packet, Disconnect)] == [Reason.PROTOCOL_ERROR]


@pytest.mark.parametrize("topic", ["", "a/+", "#"])
def test_response_topics_are_topics(topic: str) -> None:
    events, _ = events_of(connected(), codec.encode_packet(Publish(b"t", b"", 0, 0, {p.RESPONSE_TOPIC: topic}), 5))
    assert isinstance(events[0], Violation)


def test_a_client_sends_no_subscription_identifier() -> None:
    events, _ = events_of(connected(), codec.encode_packet(Publish(b"t", b"", 0, 0, {p.SUBSCRIPTION_ID: [1]}), 5))
    assert isinstance(events[0], Violation)  # [MQTT5-3.3.4-6]
