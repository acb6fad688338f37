"""Bytes <-> packets of MQTT 3.1, 3.1.1 and 5.0, both directions, strict. No state, no I/O.

Decoding raises `MalformedPacket` with the clause that was broken and the reason code for it. Framing (where a packet ends) is `packet_end`; the
connection keeps the incomplete rest. What is told about a version this door does not speak is `UnsupportedVersion`.
"""

from __future__ import annotations

from typing import Final

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
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
)
from gantrymq_gateways.mqtt.wire.properties import Properties, decode_properties, encode_properties
from gantrymq_gateways.mqtt.wire.reasons import SUBACK_FAILURE, Reason
from gantrymq_gateways.mqtt.wire.text import (
    MalformedPacket,
    check_filter,
    check_text,
    check_topic,
    encode_length,
    field,
)

__all__ = [
    "Ack",
    "Auth",
    "ConnAck",
    "Connect",
    "Disconnect",
    "MalformedPacket",
    "Packet",
    "PingReq",
    "PingResp",
    "Publish",
    "SubAck",
    "Subscribe",
    "UnsubAck",
    "Unsubscribe",
    "UnsupportedVersion",
    "Will",
    "check_filter",
    "encode_length",
]

SHARE_PREFIX: Final = "$share/"


class UnsupportedVersion(Exception):
    """CONNECT of a protocol level that is not spoken here."""

    def __init__(self, level: int) -> None:
        super().__init__(f"protocol level {level}")
        self.level = level


PING_RESPONSE: Final = b"\xd0\x00"


def packet_end(data: bytes, start: int) -> tuple[int, int] | None:
    """(start of the variable header, end of the packet) of the packet that begins at `start`, or None while its length is incomplete.

    The end may lie beyond the data. Raises MalformedPacket for a fifth length byte (MQTT 2.2.3).
    """
    length = 0
    shift = 0
    position = start + 1
    size = len(data)
    while True:
        if position >= size:
            return None
        byte = data[position]
        position += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return position, position + length
        shift += 7
        if shift == 28:
            raise MalformedPacket("remaining length of more than four bytes (MQTT 2.2.3)")


def check_fixed_header(first: int, length: int, to_server: bool, level: int = c.LEVEL_3_1_1) -> None:
    """Raise MalformedPacket unless type, flags, direction and length of a packet fit together."""
    rule = c.RULES[level].get(first >> 4)
    if rule is None:
        raise MalformedPacket(f"reserved packet type {first >> 4} (MQTT 2.2.1)")
    if not (rule.from_client if to_server else rule.from_server):
        raise MalformedPacket(f"{rule.name} from the wrong side (MQTT 2.2.1)", Reason.PROTOCOL_ERROR)
    if rule.flags is not None and first & 0x0F not in rule.flags:
        raise MalformedPacket(f"flags {first & 0x0F:#x} of {rule.name} are reserved [MQTT-2.2.2-2] [MQTT5-2.1.3-1]")
    if length < rule.length_min or (rule.length_max is not None and length > rule.length_max):
        raise MalformedPacket(f"{rule.name} with a remaining length of {length}")


class _Reader:
    """Fields of one packet, in order; raises MalformedPacket when the packet is too short for them."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self.data = data
        self.position = position
        self.end = end

    def take(self, count: int) -> bytes:
        stop = self.position + count
        if stop > self.end:
            raise MalformedPacket("a field is longer than its packet")
        taken = self.data[self.position : stop]
        self.position = stop
        return taken

    def byte(self) -> int:
        return self.take(1)[0]

    def word(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def binary(self) -> bytes:
        return self.take(self.word())

    def text(self) -> str:
        return check_text(self.binary())

    def packet_id(self) -> int:
        number = self.word()
        if number == 0:
            raise MalformedPacket("packet identifier 0 [MQTT-2.3.1-1] [MQTT5-2.2.1-3]", Reason.PROTOCOL_ERROR)
        return number

    def properties(self, packet: int) -> Properties:
        found, self.position = decode_properties(self.data, self.position, self.end, packet)
        return found

    def properties_if_any(self, packet: int) -> Properties:
        return self.properties(packet) if self.position < self.end else {}

    def finish(self) -> None:
        if self.position != self.end:
            raise MalformedPacket(f"{self.end - self.position} bytes behind the last field")


def decode_packet(data: bytes, start: int, body: int, end: int, level: int = c.LEVEL_3_1_1) -> Packet:
    """The packet whose first byte is at `start` and whose variable header is `data[body:end]`; its fixed header was checked."""
    first = data[start]
    kind = first >> 4
    reader = _Reader(data, body, end)
    five = level == c.LEVEL_5
    if kind == c.PUBLISH:
        return _decode_publish(first & 0x0F, reader, five)
    packet: Packet
    if kind == c.CONNECT:
        packet = _decode_connect(reader)
    elif kind == c.SUBSCRIBE:
        packet = _decode_subscribe(reader, five)
    elif kind == c.UNSUBSCRIBE:
        packet = _decode_unsubscribe(reader, five)
    elif kind in (c.PUBACK, c.PUBREC, c.PUBREL, c.PUBCOMP) or (kind == c.UNSUBACK and not five):
        packet = Ack(kind, reader.packet_id())
        if five and reader.position < end:
            packet.reason = _reason(reader, kind)
            packet.properties = reader.properties_if_any(kind) or None
    elif kind == c.PINGREQ:
        packet = PingReq()
    elif kind == c.PINGRESP:
        packet = PingResp()
    elif kind == c.DISCONNECT:
        packet = Disconnect()
        if five and reader.position < end:
            packet = Disconnect(_reason(reader, kind), reader.properties_if_any(kind))
    elif kind == c.AUTH:
        packet = _decode_auth(reader)
    elif kind == c.CONNACK:
        packet = _decode_connack(reader, five)
    else:
        packet = _decode_codes(reader, kind, five)
    reader.finish()
    return packet


REASONS_ALLOWED: Final[dict[int, frozenset[int]]] = {
    c.PUBACK: frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}),
    c.PUBREC: frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}),
    c.PUBREL: frozenset({0x00, 0x92}),
    c.PUBCOMP: frozenset({0x00, 0x92}),
    c.DISCONNECT: frozenset({0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8D, 0xA3)}),
    c.AUTH: frozenset({0x00, 0x18, 0x19}),
}
"""MQTT 5.0 tables 3-4 to 3-7, 3-10 and 3-11, whoever sends it."""


def _reason(reader: _Reader, kind: int) -> int:
    code = reader.byte()
    if code not in REASONS_ALLOWED[kind]:
        raise MalformedPacket(f"reason code {code:#x} is none of this packet (MQTT 5.0 2.4)", Reason.PROTOCOL_ERROR)
    return code


def _decode_auth(reader: _Reader) -> Auth:
    if reader.position == reader.end:
        return Auth(0)  # (MQTT 5.0 3.15.2.1)
    return Auth(_reason(reader, c.AUTH), reader.properties_if_any(c.AUTH))


def check_publish(flags: int, topic: bytes, packet_id: int) -> None:
    """Raise MalformedPacket unless these may stand in one PUBLISH."""
    _check_publish_flags(flags)
    check_topic(topic)
    if flags & c.FLAG_QOS and not packet_id:
        raise MalformedPacket("packet identifier 0 [MQTT-2.3.1-1]", Reason.PROTOCOL_ERROR)


def _check_publish_flags(flags: int) -> None:
    qos = flags >> 1 & 3
    if qos == 3:
        raise MalformedPacket("PUBLISH with QoS 3 [MQTT-3.3.1-4]")
    if qos == 0 and flags & c.FLAG_DUP:
        raise MalformedPacket("PUBLISH with DUP and QoS 0 [MQTT-3.3.1-2]")


def _decode_publish(flags: int, reader: _Reader, five: bool) -> Publish:
    _check_publish_flags(flags)
    qos = flags >> 1 & 3
    topic = reader.binary()
    if topic or not five:
        check_topic(topic)
    packet_id = reader.packet_id() if qos else 0
    properties = None
    if five:
        properties = reader.properties(c.PUBLISH) or None
        if not topic and (properties is None or p.TOPIC_ALIAS not in properties):
            raise MalformedPacket("neither a topic nor a topic alias (MQTT 5.0 3.3.2.1)", Reason.PROTOCOL_ERROR)
    return Publish(topic, reader.data[reader.position : reader.end], flags, packet_id, properties)


def _decode_connect(reader: _Reader) -> Connect:
    name = reader.binary()
    levels = c.PROTOCOL_NAMES.get(name)
    if levels is None:
        raise MalformedPacket(f"protocol name {name[:16]!r} [MQTT-3.1.2-1]", Reason.UNSUPPORTED_VERSION)
    byte = reader.byte()
    level = byte if byte == c.LEVEL_5 else byte & ~c.BRIDGE_BIT
    if level not in levels or (level == c.LEVEL_5 and byte != level):
        raise UnsupportedVersion(byte)  # [MQTT-3.1.2-2]
    flags = reader.byte()
    five = level == c.LEVEL_5
    _check_connect_flags(flags, five)
    keep_alive_s = reader.word()
    properties = reader.properties(c.CONNECT) if five else {}
    if p.AUTH_DATA in properties and p.AUTH_METHOD not in properties:
        raise MalformedPacket("authentication data without a method (MQTT 5.0 3.1.2.11.10)", Reason.PROTOCOL_ERROR)
    client_id = reader.text()
    will = None
    if flags & c.CONNECT_WILL:
        of_will = reader.properties(p.WILL) if five else {}
        topic = reader.binary()
        check_topic(topic)
        payload = reader.binary()
        will = Will(topic, payload, flags >> 3 & 3, flags & c.CONNECT_WILL_RETAIN != 0, of_will)
    user_name = reader.text() if flags & c.CONNECT_USER_NAME else None
    password = reader.binary() if flags & c.CONNECT_PASSWORD else None
    clean = flags & c.CONNECT_CLEAN != 0
    return Connect(client_id, clean, keep_alive_s, level, will, user_name, password, byte != level, properties)


def _check_connect_flags(flags: int, five: bool) -> None:
    if flags & c.CONNECT_RESERVED:
        raise MalformedPacket("reserved connect flag is set [MQTT-3.1.2-3]")
    if not flags & c.CONNECT_WILL and flags & (c.CONNECT_WILL_QOS | c.CONNECT_WILL_RETAIN):
        raise MalformedPacket("will QoS or retain without a will [MQTT-3.1.2-13] [MQTT-3.1.2-15]")
    if flags & c.CONNECT_WILL_QOS == c.CONNECT_WILL_QOS:
        raise MalformedPacket("will QoS 3 [MQTT-3.1.2-14]")
    if not five and flags & c.CONNECT_PASSWORD and not flags & c.CONNECT_USER_NAME:
        raise MalformedPacket("password without a user name [MQTT-3.1.2-22]")


def _decode_connack(reader: _Reader, five: bool) -> ConnAck:
    flags = reader.byte()
    if flags & 0xFE:
        raise MalformedPacket("reserved bits of CONNACK are set (MQTT 3.2.2.1)")
    return ConnAck(reader.byte(), flags == 1, reader.properties(c.CONNACK) if five else {})


def _decode_subscribe(reader: _Reader, five: bool) -> Subscribe:
    packet_id = reader.packet_id()
    properties = reader.properties(c.SUBSCRIBE) if five else {}
    filters: list[tuple[str, int]] = []
    data, position, end = reader.data, reader.position, reader.end
    while position < end:
        start = position + 2
        # There may be thousands, so no calls per field. At the packet's end `data` may end, too: slices then come out short.
        stop = start + int.from_bytes(data[position:start], "big")
        position = stop + 1
        if position > end:
            raise MalformedPacket("a field is longer than its packet")
        options = data[stop]
        if options > 2:
            _check_options(options, five)
        text = check_text(data[start:stop])
        check_filter(text)
        if options & c.OPTION_NO_LOCAL and text.startswith(SHARE_PREFIX):
            raise MalformedPacket("no local on a shared subscription [MQTT5-3.8.3-4]", Reason.PROTOCOL_ERROR)
        filters.append((text, options))
        if len(filters) > c.FILTERS_MAX:
            raise MalformedPacket(f"more than {c.FILTERS_MAX} filters in one SUBSCRIBE", Reason.QUOTA_EXCEEDED)
    reader.position = position
    if not filters:
        raise MalformedPacket("SUBSCRIBE without a topic filter [MQTT-3.8.3-3]", Reason.PROTOCOL_ERROR)
    return Subscribe(packet_id, filters, properties)


def _check_options(options: int, five: bool) -> None:
    if not five or options & c.OPTION_RESERVED or options & c.OPTION_QOS == 3:
        raise MalformedPacket(f"requested QoS byte {options:#x} [MQTT-3-8.3-4] [MQTT5-3.8.3-5]")
    if options & c.OPTION_RETAIN_HANDLING == c.OPTION_RETAIN_HANDLING:
        raise MalformedPacket("retain handling 3 (MQTT 5.0 3.8.3.1)", Reason.PROTOCOL_ERROR)


def _decode_codes(reader: _Reader, kind: int, five: bool) -> SubAck | UnsubAck:
    packet_id = reader.packet_id()
    properties = reader.properties(kind) if five else {}
    codes = list(reader.take(reader.end - reader.position))
    if not five and any(code not in (0, 1, 2, SUBACK_FAILURE) for code in codes):
        raise MalformedPacket("reserved SUBACK return code [MQTT-3.9.3-2]")
    return SubAck(packet_id, codes, properties) if kind == c.SUBACK else UnsubAck(packet_id, codes, properties)


def _decode_unsubscribe(reader: _Reader, five: bool) -> Unsubscribe:
    packet_id = reader.packet_id()
    properties = reader.properties(c.UNSUBSCRIBE) if five else {}
    filters: list[str] = []
    data, position, end = reader.data, reader.position, reader.end
    while position < end:
        start = position + 2
        position = start + int.from_bytes(data[position:start], "big")
        if position > end:
            raise MalformedPacket("a field is longer than its packet")
        text = check_text(data[start:position])
        check_filter(text)
        filters.append(text)
        if len(filters) > c.FILTERS_MAX:
            raise MalformedPacket(f"more than {c.FILTERS_MAX} filters in one UNSUBSCRIBE", Reason.QUOTA_EXCEEDED)
    reader.position = position
    if not filters:
        raise MalformedPacket("UNSUBSCRIBE without a topic filter [MQTT-3.10.3-2]", Reason.PROTOCOL_ERROR)
    return Unsubscribe(packet_id, filters, properties)


def encode_publish_head(topic: bytes, payload_bytes: int, flags: int) -> bytes:
    """Everything of a 3.x PUBLISH in front of the packet identifier (QoS > 0) and the payload: the same for all receivers. For 5.0,
    `payload_bytes` counts the properties, too, which stand behind the packet identifier."""
    length = 2 + len(topic) + payload_bytes + (2 if flags & c.FLAG_QOS else 0)
    return bytes((c.PUBLISH << 4 | flags,)) + encode_length(length) + field(topic)


def encode_connack(
    code: int, session_present: bool = False, properties: Properties | None = None, level: int = c.LEVEL_3_1_1
) -> bytes:
    """CONNACK; a refusal never reports a session [MQTT-3.2.2-4] [MQTT5-3.2.2-6]; MQTT 3.1 knows no such flag."""
    present = session_present and code == 0 and level != c.LEVEL_3_1
    if level != c.LEVEL_5:
        return bytes((c.CONNACK << 4, 2, int(present), code))
    return _packet(c.CONNACK << 4, bytes((int(present), code)) + encode_properties(properties))


def _packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + encode_length(len(body)) + body


def encode_codes(
    kind: int, packet_id: int, codes: list[int], properties: Properties | None = None, level: int = c.LEVEL_3_1_1
) -> bytes:
    """SUBACK (or UNSUBACK of 5.0), one code per requested filter, in order [MQTT-3.8.4-5] [MQTT5-3.8.4-6]."""
    listed = encode_properties(properties) if level == c.LEVEL_5 else b""
    return _packet(kind << 4, packet_id.to_bytes(2, "big") + listed + bytes(codes))


def encode_ack(kind: int, packet_id: int, reason: int = 0, properties: Properties | None = None) -> bytes:
    """PUBACK, PUBREC, PUBREL, PUBCOMP, or UNSUBACK of 3.x. A reason other than 0, and properties, are for 5.0 alone."""
    first = kind << 4 | (2 if kind == c.PUBREL else 0)
    body = packet_id.to_bytes(2, "big")
    if properties:
        body += bytes((reason,)) + encode_properties(properties)
    elif reason:
        body += bytes((reason,))
    return bytes((first, len(body))) + body if len(body) < 0x80 else _packet(first, body)


def encode_disconnect(reason: int, properties: Properties | None = None) -> bytes:
    """DISCONNECT of 5.0."""
    if properties:
        return _packet(c.DISCONNECT << 4, bytes((reason,)) + encode_properties(properties))
    return bytes((c.DISCONNECT << 4, 1, reason)) if reason else b"\xe0\x00"


def encode_auth(reason: int, properties: Properties | None = None) -> bytes:
    """AUTH of 5.0."""
    if not reason and not properties:
        return b"\xf0\x00"
    return _packet(c.AUTH << 4, bytes((reason,)) + encode_properties(properties))


def encode_packet(packet: Packet, level: int = c.LEVEL_3_1_1) -> bytes:
    """Any packet in the form of a protocol level; the client's side is for tests and tools."""
    if isinstance(packet, Connect):
        return _encode_connect(packet)
    listed = encode_properties(getattr(packet, "properties", None)) if level == c.LEVEL_5 else b""
    if isinstance(packet, Publish):
        packet_id = packet.packet_id.to_bytes(2, "big") if packet.flags & c.FLAG_QOS else b""
        head = encode_publish_head(packet.topic, len(listed) + len(packet.payload), packet.flags)
        return head + packet_id + listed + packet.payload
    if isinstance(packet, Ack):
        return encode_ack(packet.kind, packet.packet_id, packet.reason, packet.properties)
    if isinstance(packet, ConnAck):
        return encode_connack(packet.code, packet.session_present, packet.properties, level)
    if isinstance(packet, Subscribe):
        body = b"".join([field(text.encode()) + bytes((options,)) for text, options in packet.filters])
        return _packet(0x82, packet.packet_id.to_bytes(2, "big") + listed + body)
    if isinstance(packet, Unsubscribe):
        body = b"".join([field(text.encode()) for text in packet.filters])
        return _packet(0xA2, packet.packet_id.to_bytes(2, "big") + listed + body)
    if isinstance(packet, SubAck | UnsubAck):
        kind = c.SUBACK if isinstance(packet, SubAck) else c.UNSUBACK
        return encode_codes(kind, packet.packet_id, packet.codes, packet.properties, level)
    if isinstance(packet, PingReq):
        return b"\xc0\x00"
    if isinstance(packet, Auth):
        return encode_auth(packet.reason, packet.properties)
    if isinstance(packet, Disconnect):
        return encode_disconnect(packet.reason, packet.properties)
    return PING_RESPONSE


def _encode_connect(packet: Connect) -> bytes:
    name = b"MQIsdp" if packet.level == c.LEVEL_3_1 else b"MQTT"
    five = packet.level == c.LEVEL_5
    flags = c.CONNECT_CLEAN if packet.clean else 0
    fields = [field(packet.client_id.encode())]
    if packet.will is not None:
        flags |= c.CONNECT_WILL | packet.will.qos << 3 | (c.CONNECT_WILL_RETAIN if packet.will.retain else 0)
        fields += [encode_properties(packet.will.properties)] if five else []
        fields += [field(packet.will.topic), field(packet.will.payload)]
    if packet.user_name is not None:
        flags |= c.CONNECT_USER_NAME
        fields.append(field(packet.user_name.encode()))
    if packet.password is not None:
        flags |= c.CONNECT_PASSWORD
        fields.append(field(packet.password))
    head = (
        field(name)
        + bytes((packet.level | (c.BRIDGE_BIT if packet.bridge else 0), flags))
        + packet.keep_alive_s.to_bytes(2, "big")
        + (encode_properties(packet.properties) if five else b"")
    )
    return _packet(0x10, head + b"".join(fields))
