"""The connection state machine: order, framing at every split, limits, keep-alive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.codec import Ack, Connect, Disconnect, PingReq, Publish, Subscribe, Unsubscribe
from gantrymq_gateways.mqtt.wire.connection import (
    PACKETS_MAX,
    ConnectionLimits,
    Event,
    MqttConnection,
    State,
    Violation,
)
from gantrymq_gateways.mqtt.wire.reasons import Reason
from gateways.tests.mqtt import vectors


def connected(limits: ConnectionLimits | None = None) -> MqttConnection:
    connection = MqttConnection(limits or ConnectionLimits(), set(), 0)
    assert isinstance(connection.receive_data(vectors.CONNECT, 0)[0], Connect)
    connection.accept(False)
    assert connection.data_to_send() == b"\x20\x02\x00\x00"
    return connection


SENDABLE = [v for v in vectors.GOOD if not isinstance(v[2], Connect)]


@pytest.mark.parametrize(("name", "data", "packet"), SENDABLE, ids=[v[0] for v in SENDABLE])
def test_every_split(name: str, data: bytes, packet: object) -> None:
    # Twice in a row with a packet behind, so that the fast path sees known topics and trailing bytes.
    whole = data if isinstance(packet, Disconnect) else data + data + b"\xc0\x00"
    for cut in range(len(whole) + 1):
        connection = connected()
        events = connection.receive_data(whole[:cut], 1) + connection.receive_data(whole[cut:], 2)
        expected = [packet] if isinstance(packet, Disconnect) else [packet, packet]
        assert events == ([] if isinstance(packet, PingReq) else expected)
        assert connection.buffered_bytes() == 0


def test_byte_by_byte_with_everything_behind_connect() -> None:
    packets: list[codec.Packet] = [
        Connect("c"), Subscribe(1, [("a", 1)]), Publish(b"a", b"x" * 200, 2, 2), Publish(b"a", b"", 0, 0), Unsubscribe(3, ["a"]),
        Ack(c.PUBACK, 9), Disconnect(),
    ]  # fmt: skip
    data = b"".join([codec.encode_packet(p) for p in packets])
    connection = MqttConnection(ConnectionLimits(), set(), 0)
    events: list[Event] = []
    for i in range(len(data)):
        got = connection.receive_data(data[i : i + 1], 0)
        events += got
        if got and isinstance(got[0], Connect):
            connection.accept(True)
    assert events == packets
    assert connection.state is State.CLOSED


def test_nothing_is_read_before_connect_is_answered() -> None:
    connection = MqttConnection(ConnectionLimits(), set(), 0)
    publish = codec.encode_packet(Publish(b"t", b"1", 2, 1))
    assert len(connection.receive_data(vectors.CONNECT + publish, 0)) == 1
    assert connection.receive_data(publish, 0) == []
    assert connection.buffered_bytes() == 2 * len(publish)
    connection.accept(False)
    assert connection.receive_data(b"", 0) == [Publish(b"t", b"1", 2, 1)] * 2


def test_nothing_is_read_after_a_refusal() -> None:
    connection = MqttConnection(ConnectionLimits(), set(), 0)
    connection.receive_data(vectors.CONNECT + b"\xc0\x00", 0)
    connection.refuse(Reason.NOT_AUTHORIZED)
    assert connection.receive_data(b"\xc0\x00", 0) == []
    assert connection.data_to_send() == b"\x20\x02\x00\x05"


@pytest.mark.parametrize("data", [v[1] for v in vectors.MALFORMED], ids=[v[0] for v in vectors.MALFORMED])
def test_malformed_packets_end_the_connection(data: bytes) -> None:
    good = codec.encode_packet(Publish(b"t", b"before", 0, 0))
    for pieces in ([good + data], [good, *[data[i : i + 1] for i in range(len(data))]]):
        connection = connected()
        events: list[Event] = []
        for piece in pieces:
            events += connection.receive_data(piece, 0)
        assert events[0] == Publish(b"t", b"before", 0, 0)
        assert isinstance(events[1], Violation)
        assert len(events) == 2
        assert connection.state is State.CLOSED
        assert connection.data_to_send() == b""
        assert connection.receive_data(good, 0) == []


@pytest.mark.parametrize(
    "data", [v[1] for v in vectors.MALFORMED_CONNECT], ids=[v[0] for v in vectors.MALFORMED_CONNECT]
)
def test_malformed_connects(data: bytes) -> None:
    connection = MqttConnection(ConnectionLimits(), set(), 0)
    (event,) = connection.receive_data(data, 0)
    assert isinstance(event, Violation)
    assert connection.data_to_send() == b""


@pytest.mark.parametrize(
    ("data", "answer"),
    [v[1:] for v in vectors.REFUSED_CONNECT[:3]],
    ids=[v[0] for v in vectors.REFUSED_CONNECT[:3]],
)
def test_versions_are_refused_on_their_own_terms(data: bytes, answer: bytes) -> None:
    connection = MqttConnection(ConnectionLimits(), set(), 0)
    (event,) = connection.receive_data(data, 0)
    assert isinstance(event, Violation)
    assert connection.data_to_send() == answer


def test_packet_limit_holds_before_and_after_the_topic_is_known() -> None:
    connection = connected(ConnectionLimits(packet_bytes_max=100))
    fits = codec.encode_packet(Publish(b"t", b"x" * 97, 0, 0))
    assert len(connection.receive_data(fits + fits, 0)) == 2
    (event,) = connection.receive_data(codec.encode_packet(Publish(b"t", b"x" * 98, 0, 0)), 0)
    assert isinstance(event, Violation)


def test_a_packet_too_large_is_refused_by_its_length_alone() -> None:
    connection = connected()
    assert isinstance(connection.receive_data(b"\x30\xff\xff\xff\x7f", 0)[0], Violation)


def test_connect_has_a_small_limit() -> None:
    connection = MqttConnection(ConnectionLimits(), set(), 0)
    assert isinstance(connection.receive_data(b"\x10" + codec.encode_length(c.CONNECT_BYTES_MAX + 1), 0)[0], Violation)


def test_a_large_packet_in_many_pieces_is_joined_once() -> None:
    connection = connected()
    data = codec.encode_packet(Publish(b"t", b"x" * 1_000_000, 2, 1))
    events: list[Event] = []
    for i in range(0, len(data), 1000):
        events += connection.receive_data(data[i : i + 1000], 0)
    assert events == [Publish(b"t", b"x" * 1_000_000, 2, 1)]


SHORT = (Publish(b"a", b"x" * 9, 2, 7), Publish(b"b/c", b"", 0, 0), Ack(c.PUBACK, 9), PingReq())


@given(st.lists(st.sampled_from(SHORT), max_size=9), st.lists(st.integers(1, 2_000), max_size=9))
def test_what_is_not_taken_is_handed_over_again(packets: list[codec.Packet], sizes: list[int]) -> None:
    """However the bytes are cut: the same events, no more than so many packets at once, and nothing is held of what was not taken."""
    packets = packets * 100
    data = b"".join([codec.encode_packet(packet) for packet in packets])
    connection = connected()
    events: list[Event] = []
    for size in [*sizes, len(data) + 1]:
        piece, data = data[:size], data[size:]
        while piece:
            got = connection.receive_data(piece, 0)
            assert len(got) <= PACKETS_MAX
            assert connection.taken == len(piece) or not connection.buffered_bytes()
            piece, events = piece[connection.taken :], events + got
    assert events == [packet for packet in packets if not isinstance(packet, PingReq)]
    assert connection.buffered_bytes() == 0


def test_keep_alive_is_one_and_a_half_times() -> None:
    connection = connected()
    assert connection.next_deadline() == 90_000
    connection.receive_data(b"\xc0\x00", 50_000)
    assert connection.data_to_send() == b"\xd0\x00"
    assert connection.handle_deadline(90_000) == []
    assert connection.next_deadline() == 140_000
    assert connection.handle_deadline(139_999) == []
    assert isinstance(connection.handle_deadline(140_000)[0], Violation)


def test_keep_alive_cap_and_pause() -> None:
    connection = connected(ConnectionLimits(keep_alive_s_max=10))
    assert connection.next_deadline() == 15_000
    connection.resumed(14_000)
    assert connection.handle_deadline(15_000) == []


def test_connect_timeout() -> None:
    connection = MqttConnection(ConnectionLimits(connect_timeout_ms=500), set(), 1_000)
    connection.receive_data(b"\x10", 1_400)
    assert connection.next_deadline() == 1_500
    assert isinstance(connection.handle_deadline(1_500)[0], Violation)


def test_no_keep_alive_no_deadline() -> None:
    connection = MqttConnection(ConnectionLimits(), set(), 0)
    connection.receive_data(codec.encode_packet(Connect("c", keep_alive_s=0)), 0)
    connection.accept(False)
    assert connection.next_deadline() is None


def test_known_topics_are_bounded() -> None:
    connection = connected()
    connection.known_topics.update(b"x%d" % i for i in range(c.TOPIC_CACHE_MAX - 1))
    for topic in (b"t1", b"t2"):
        connection.receive_data(codec.encode_packet(Publish(topic, b"", 0, 0)), 0)
    assert connection.known_topics == {b"t2"}


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (b"GET / HTTP/1.1\r\n", "an HTTP request"),
        (b"POST /x HTTP/1.1\r\n", "an HTTP request"),
        (b"AMQP\x00\x00\x09\x01", "amqp.port"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
        (b"\x40\x02\x00\x01", "PUBACK is not allowed before CONNECT"),
    ],
)
def test_strangers_are_called_by_name(first: bytes, text: str) -> None:
    (event,) = MqttConnection(ConnectionLimits(), set(), 0).receive_data(first, 0)
    assert isinstance(event, Violation)
    assert text in event.text


def test_what_is_unfinished_has_a_number_of_its_own() -> None:
    connection = MqttConnection(ConnectionLimits(part_bytes=0), set(), 0)
    assert connection.unfinished() == 0
    connection.receive_data(vectors.CONNECT + b"\x30", 0)
    assert connection.unfinished() == 0, "it waits for us: CONNECT is not answered"
    connection.accept(False)
    packet = codec.encode_packet(Publish(b"a/b", b"x" * 1000, 0, 0))
    connection.receive_data(b"", 1)
    seen = []
    for at in range(1, 900, 100):
        connection.receive_data(packet[at : at + 100], 1)
        seen.append(connection.unfinished())
        assert connection.missing_bytes() == len(packet) - at - 100
    assert len(set(seen)) == 1
    assert seen[0]
    connection.receive_data(packet[901:] + packet[:50], 1)
    assert connection.unfinished() not in (0, seen[0])
    connection.receive_data(packet[50:], 1)
    assert (connection.unfinished(), connection.missing_bytes()) == (0, 0)


def test_parts_of_an_oversized_packet_are_looked_at_one_by_one() -> None:
    connection = connected(ConnectionLimits(packet_bytes_max=1000, part_bytes=500))
    packet = codec.encode_packet(Publish(b"a/b", b"x" * 5000, 0, 0))
    seen = []
    for at in range(0, 4000, 100):
        connection.receive_data(packet[at : at + 100], 1)
        seen.append(connection.unfinished())
    assert 0 not in seen[:4]
    assert 6 <= len(set(seen)) <= 10
