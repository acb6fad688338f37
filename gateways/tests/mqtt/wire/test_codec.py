"""The codec: vectors, round trips, and amqtt's codec as a second opinion."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.codec import (
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    Unsubscribe,
    Will,
)
from gateways.tests.mqtt import vectors


def decode(data: bytes) -> Packet:
    found = codec.packet_end(data, 0)
    assert found is not None
    body, end = found
    assert end == len(data)
    return codec.decode_packet(data, 0, body, end)


@pytest.mark.parametrize(("data", "packet"), [v[1:] for v in vectors.GOOD], ids=[v[0] for v in vectors.GOOD])
def test_vectors_decode(data: bytes, packet: Packet) -> None:
    assert decode(data) == packet
    assert decode(codec.encode_packet(packet)) == packet


@pytest.mark.parametrize("length", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455])
def test_remaining_length(length: int) -> None:
    encoded = codec.encode_length(length)
    assert codec.packet_end(b"\x30" + encoded, 0) == (1 + len(encoded), 1 + len(encoded) + length)
    for cut in range(len(encoded)):
        assert codec.packet_end(b"\x30" + encoded[:cut], 0) is None


def test_lengths_beyond_four_bytes() -> None:
    with pytest.raises(codec.MalformedPacket):
        codec.packet_end(b"\x30\x80\x80\x80\x80", 0)
    with pytest.raises(ValueError, match="268435456"):
        codec.encode_length(268_435_456)
    with pytest.raises(ValueError, match="65536"):
        codec.encode_publish_head(b"t" * 65_536, 0, 0)


TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=30)
TOPIC = st.text(st.characters(blacklist_characters="+#", blacklist_categories=("Cs", "Cc")), min_size=1, max_size=30)
LEVEL = st.one_of(st.just("+"), st.text(st.characters(blacklist_characters="+#/", blacklist_categories=("Cs", "Cc"))))
FILTER = st.builds(
    lambda levels, rest: "/".join(levels) + ("/#" if rest else ""),
    st.lists(LEVEL, min_size=1, max_size=6),
    st.booleans(),
).filter(bool)
ID = st.integers(1, c.PACKET_ID_MAX)
WILL = st.builds(Will, TOPIC.map(str.encode), st.binary(max_size=50), st.integers(0, 2), st.booleans())
PACKET: st.SearchStrategy[Packet] = st.one_of(
    st.builds(
        lambda cid, clean, alive, level, will, user, password: Connect(
            cid, clean, alive, level, will, user, password if user is not None else None
        ),
        TEXT,
        st.booleans(),
        st.integers(0, 65_535),
        st.sampled_from([3, 4]),
        st.none() | WILL,
        st.none() | TEXT,
        st.none() | st.binary(max_size=50),
    ),
    st.builds(ConnAck, st.just(0), st.booleans()),
    st.builds(
        lambda topic, payload, retain, qos, dup, number: Publish(
            topic.encode(), payload, retain | qos << 1 | (8 if dup and qos else 0), number if qos else 0
        ),
        TOPIC,
        st.binary(max_size=300),
        st.integers(0, 1),
        st.integers(0, 2),
        st.booleans(),
        ID,
    ),
    st.builds(Ack, st.sampled_from([4, 5, 6, 7, 11]), ID),
    st.builds(Subscribe, ID, st.lists(st.tuples(FILTER, st.integers(0, 2)), min_size=1, max_size=5)),
    st.builds(SubAck, ID, st.lists(st.sampled_from([0, 1, 2, 128]), min_size=1, max_size=5)),
    st.builds(Unsubscribe, ID, st.lists(FILTER, min_size=1, max_size=5)),
    st.sampled_from([PingReq(), PingResp(), Disconnect()]),
)


@given(PACKET)
def test_round_trip(packet: Packet) -> None:
    data = codec.encode_packet(packet)
    assert decode(data) == packet


@given(st.binary(min_size=2, max_size=60))
def test_any_bytes_decode_or_are_malformed(data: bytes) -> None:
    try:
        found = codec.packet_end(data, 0)
        if found is None or found[1] > len(data):
            return
        codec.check_fixed_header(data[0], found[1] - found[0], True)
        packet = codec.decode_packet(data, 0, *found)
    except (codec.MalformedPacket, codec.UnsupportedVersion):
        return
    if not isinstance(packet, Connect):
        assert decode(codec.encode_packet(packet)) == packet


def _amqtt(data: bytes) -> object:
    """The packet as amqtt reads it."""
    amqtt_packet = pytest.importorskip("amqtt.mqtt.packet")
    adapters = pytest.importorskip("amqtt.adapters")
    mqtt = pytest.importorskip("amqtt.mqtt")

    async def read() -> object:
        reader = adapters.BufferReader(data)
        header = await amqtt_packet.MQTTFixedHeader.from_stream(reader)
        return await mqtt.packet_class(header).from_stream(reader, fixed_header=header)

    return asyncio.run(read())


@settings(max_examples=60, deadline=None)
@given(PACKET.filter(lambda p: isinstance(p, Publish | Subscribe | Unsubscribe | SubAck | Connect)))
def test_amqtt_reads_what_we_write(packet: Packet) -> None:
    if isinstance(packet, Connect) and (
        packet.level == 3 or packet.password or packet.will or packet.user_name == "" or not packet.client_id
    ):
        return  # amqtt knows 3.1.1 alone, and takes passwords and wills for text, and makes up missing ids.
    read = _amqtt(codec.encode_packet(packet))
    if isinstance(packet, Publish):
        assert (read.topic_name.encode(), bytes(read.data), read.qos) == (
            packet.topic,
            packet.payload,
            packet.qos,
        )  # type: ignore[attr-defined]
        assert (read.retain_flag, read.dup_flag) == (packet.retain, packet.dup)  # type: ignore[attr-defined]
    elif isinstance(packet, Subscribe):
        assert [tuple(t) for t in read.payload.topics] == packet.filters  # type: ignore[attr-defined]
    elif isinstance(packet, Unsubscribe):
        assert read.payload.topics == packet.filters  # type: ignore[attr-defined]
    elif isinstance(packet, SubAck):
        assert read.payload.return_codes == packet.codes  # type: ignore[attr-defined]
    elif isinstance(packet, Connect):
        assert (read.client_id or "", read.clean_session_flag, read.keep_alive) == (  # type: ignore[attr-defined]
            packet.client_id,
            packet.clean,
            packet.keep_alive_s,
        )


def test_publish_head_is_shared() -> None:
    head = codec.encode_publish_head(b"a/b", 3, 2)
    assert decode(head + b"\x00\x07" + b"xyz") == Publish(b"a/b", b"xyz", 2, 7)
