"""The codec of MQTT 5.0: round trips of every packet with every property, vectors, and what is malformed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.packets import (
    Ack,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
)
from gantrymq_gateways.mqtt.wire.reasons import Reason
from gantrymq_gateways.mqtt.wire.text import MalformedPacket


def decode(data: bytes, to_server: bool = True) -> Packet:
    found = codec.packet_end(data, 0)
    assert found is not None
    body, end = found
    assert end == len(data)
    codec.check_fixed_header(data[0], end - body, to_server, c.LEVEL_5)
    return codec.decode_packet(data, 0, body, end, c.LEVEL_5)


NAME = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=20)
TEXT = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=20)
TOPIC = st.text(st.characters(blacklist_characters="+#", blacklist_categories=("Cs", "Cc")), min_size=1, max_size=20)
VALUES: dict[int, st.SearchStrategy[Any]] = {
    p.FLAG: st.integers(0, 1),
    p.WORD: st.integers(1, 0xFFFF),
    p.DOUBLE: st.integers(1, 0xFFFF_FFFF),
    p.VARIABLE: st.lists(st.integers(1, c.REMAINING_LENGTH_MAX), min_size=1, max_size=1),
    p.TEXT: TEXT,
    p.NAME: NAME,
    p.BINARY: st.binary(max_size=30),
    p.PAIR: st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4),
}


def listed(packet: int, without: tuple[int, ...] = ()) -> st.SearchStrategy[dict[int, Any]]:
    optional = {
        number: VALUES[rule.type]
        for number, rule in p.RULES.items()
        if packet in rule.packets and number not in without
    }
    return st.fixed_dictionaries({}, optional=optional)


ID = st.integers(1, 0xFFFF)
FILTER = st.sampled_from(["a", "+", "#", "a/+/b", "$share/g/a/#", "/", "ü/+"])
OPTIONS = st.builds(
    lambda q, rap, rh: q | rap | rh, st.integers(0, 2), st.sampled_from([0, 8]), st.sampled_from([0, 16, 32])
)
WILL = st.builds(Will, TOPIC.map(str.encode), st.binary(max_size=9), st.integers(0, 2), st.booleans(), listed(p.WILL))
FROM_CLIENT = st.one_of(
    st.builds(
        lambda cid, clean, alive, will, user, password, told: Connect(
            cid, clean, alive, 5, will, user, password, False, told
        ),
        NAME,
        st.booleans(),
        st.integers(0, 65_535),
        st.none() | WILL,
        st.none() | NAME,
        st.none() | st.binary(max_size=9),
        listed(c.CONNECT, (p.AUTH_DATA,)),
    ),
    st.builds(
        lambda topic, payload, flags, number, told: Publish(
            topic.encode(), payload, flags, number if flags & 6 else 0, told
        ),
        TOPIC,
        st.binary(max_size=300),
        st.sampled_from([0, 1, 2, 3, 4, 5, 10, 13]),
        ID,
        listed(c.PUBLISH),
    ),
    st.builds(
        lambda kind, number, reason, told: Ack(kind, number, reason if kind in (4, 5) else 0, told or None),
        st.sampled_from([4, 5, 6, 7]),
        ID,
        st.sampled_from([0, 0x10, 0x80, 0x97]),
        listed(c.PUBACK),
    ),
    st.builds(Subscribe, ID, st.lists(st.tuples(FILTER, OPTIONS), min_size=1, max_size=4), listed(c.SUBSCRIBE)),
    st.builds(Unsubscribe, ID, st.lists(FILTER, min_size=1, max_size=4), listed(c.UNSUBSCRIBE)),
    st.builds(Disconnect, st.sampled_from([0, 4, 0x81, 0x8E]), listed(c.DISCONNECT)),
    st.builds(Auth, st.sampled_from([0x18, 0x19]), listed(c.AUTH)),
    st.just(PingReq()),
)
FROM_SERVER = st.one_of(
    st.builds(lambda code, told: ConnAck(code, code == 0, told), st.sampled_from([0, 0x87]), listed(c.CONNACK)),
    st.builds(SubAck, ID, st.lists(st.sampled_from([0, 1, 2, 0x8F]), min_size=1, max_size=4), listed(c.SUBACK)),
    st.builds(UnsubAck, ID, st.lists(st.sampled_from([0, 0x11]), min_size=1, max_size=4), listed(c.UNSUBACK)),
)


@given(FROM_CLIENT)
def test_what_a_client_sends_round_trips(packet: Packet) -> None:
    assert decode(codec.encode_packet(packet, c.LEVEL_5)) == packet


@given(FROM_SERVER)
def test_what_a_server_sends_round_trips(packet: Packet) -> None:
    assert decode(codec.encode_packet(packet, c.LEVEL_5), False) == packet


@given(FROM_CLIENT, st.data())
def test_every_packet_cut_short_is_malformed(packet: Packet, data: st.DataObject) -> None:
    """The remaining length says less than the fields need. What may be left out at the end (reason, properties) may be missing."""
    whole = codec.encode_packet(packet, c.LEVEL_5)
    found = codec.packet_end(whole, 0)
    assert found is not None
    body, end = found
    cut = data.draw(st.integers(body, end - 1)) if end > body else body
    short = whole[:1] + codec.encode_length(cut - body) + whole[body:cut]
    try:
        again = decode(short)
    except MalformedPacket:
        return
    assert type(again) is type(packet)
    assert isinstance(again, Ack | Auth | Disconnect | PingReq | Publish | Subscribe | Unsubscribe)


VECTORS: list[tuple[str, str, Packet]] = [
    ("connect", "100e 0004 4d515454 05 02 003c 00 0001 63", Connect("c", True, 60, 5)),
    (
        "connect with properties and a will",
        "1020 0004 4d515454 05 06 0000 05 110000000a 0001 63 05 1800000005 0001 74 0002 6869",
        Connect("c", True, 0, 5, Will(b"t", b"hi", 0, False, {p.WILL_DELAY: 5}), properties={p.SESSION_EXPIRY: 10}),
    ),
    ("publish", "3006 0001 74 00 6869", Publish(b"t", b"hi", 0, 0)),
    ("publish by alias", "3008 0000 03 230001 6869", Publish(b"", b"hi", 0, 0, {p.TOPIC_ALIAS: 1})),
    ("publish qos 1, empty", "3206 0001 74 0001 00", Publish(b"t", b"", 2, 1)),
    ("puback, short", "4002 0001", Ack(c.PUBACK, 1)),
    ("puback, reason", "4003 0001 10", Ack(c.PUBACK, 1, 0x10)),
    ("puback, reason and no properties", "4004 0001 10 00", Ack(c.PUBACK, 1, 0x10)),
    ("pubrel, not found", "6203 0001 92", Ack(c.PUBREL, 1, 0x92)),
    ("subscribe", "8209 0001 02 0b03 0001 23 2e", Subscribe(1, [("#", 0x2E)], {p.SUBSCRIPTION_ID: [3]})),
    ("unsubscribe", "a206 0001 00 0001 61", Unsubscribe(1, ["a"])),
    ("disconnect", "e000", Disconnect()),
    ("disconnect with will", "e001 04", Disconnect(4)),
    ("disconnect, expiry", "e007 00 05 1100000000", Disconnect(0, {p.SESSION_EXPIRY: 0})),
    ("auth, short", "f000", Auth(0)),
    ("auth", "f007 18 05 150002 6162", Auth(0x18, {p.AUTH_METHOD: "ab"})),
]


@pytest.mark.parametrize(("data", "packet"), [v[1:] for v in VECTORS], ids=[v[0] for v in VECTORS])
def test_vectors(data: str, packet: Packet) -> None:
    assert decode(bytes.fromhex(data)) == packet


MALFORMED: list[tuple[str, str, Reason]] = [
    ("no property length", "3003 0001 74", Reason.MALFORMED_PACKET),
    ("properties longer than the packet", "3004 0001 74 05", Reason.MALFORMED_PACKET),
    ("an unknown property", "3006 0001 74 02 7f00", Reason.MALFORMED_PACKET),
    ("a property of another packet", "3009 0001 74 05 1100000001", Reason.MALFORMED_PACKET),
    ("a property twice", "300a 0001 74 06 230001 230001", Reason.PROTOCOL_ERROR),
    ("a flag of 2", "3006 0001 74 02 0102", Reason.PROTOCOL_ERROR),
    ("a property cut short", "3006 0001 74 02 2300", Reason.MALFORMED_PACKET),
    ("a user property without its value", "3008 0001 74 04 260001 61", Reason.MALFORMED_PACKET),
    ("property length of five bytes", "3008 0001 74 ffffffff7f", Reason.MALFORMED_PACKET),
    ("a longer property length than needed", "3005 0001 74 8000", Reason.MALFORMED_PACKET),
    ("subscription identifier 0", "8209 0001 02 0b00 0001 23 00", Reason.PROTOCOL_ERROR),
    ("two subscription identifiers", "820b 0001 04 0b010b01 0001 23 00", Reason.PROTOCOL_ERROR),
    ("reserved option bits", "8207 0001 00 0001 23 40", Reason.MALFORMED_PACKET),
    ("retain handling 3", "8207 0001 00 0001 23 30", Reason.PROTOCOL_ERROR),
    ("receive maximum 0", "1011 0004 4d515454 05 02 003c 03 210000 0001 63", Reason.PROTOCOL_ERROR),
    ("maximum packet size 0", "1013 0004 4d515454 05 02 003c 05 2700000000 0001 63", Reason.PROTOCOL_ERROR),
    ("authentication data alone", "1012 0004 4d515454 05 02 003c 04 160001 61 0001 63", Reason.PROTOCOL_ERROR),
    (
        "will properties without a will delay's end",
        "1012 0004 4d515454 05 06 003c 00 0001 63 03 180000",
        Reason.MALFORMED_PACKET,
    ),
    ("a reason that PUBACK does not have", "4003 0001 92", Reason.PROTOCOL_ERROR),
]


@pytest.mark.parametrize(("data", "reason"), [v[1:] for v in MALFORMED], ids=[v[0] for v in MALFORMED])
def test_malformed(data: str, reason: Reason) -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode(bytes.fromhex(data))
    assert caught.value.reason == reason


def test_ten_thousand_user_properties_are_the_most() -> None:
    many = Publish(b"t", b"", 0, 0, {p.USER: [("a", "b")] * c.PROPERTIES_MAX})
    assert decode(codec.encode_packet(many, c.LEVEL_5)) == many
    many.properties = {p.USER: [("a", "b")] * (c.PROPERTIES_MAX + 1)}
    with pytest.raises(MalformedPacket) as caught:
        decode(codec.encode_packet(many, c.LEVEL_5))
    assert caught.value.reason == Reason.QUOTA_EXCEEDED


def test_ill_formed_text_and_no_local_on_a_shared_subscription() -> None:
    for data, reason in (
        (b"\x30\x08\x00\x01t\x04\x03\x00\x01\xff", Reason.MALFORMED_PACKET),
        (codec.encode_packet(Subscribe(1, [("$share/g/a", 4)]), c.LEVEL_5), Reason.PROTOCOL_ERROR),
    ):
        with pytest.raises(MalformedPacket) as caught:
            decode(data)
        assert caught.value.reason == reason


def test_3_1_may_set_dup_when_it_subscribes_again() -> None:
    for first in (0x8A, 0xAA, 0x6A):
        codec.check_fixed_header(first, 2, True, c.LEVEL_3_1)
        with pytest.raises(MalformedPacket):
            codec.check_fixed_header(first, 2, True, c.LEVEL_3_1_1)
