"""Bytes <-> packets of MQTT 3.1 and 3.1.1, both directions, strict. No state, no I/O.

Decoding raises `MalformedPacket` with the clause that was broken. Framing (where a packet ends) is `packet_end`; the
connection keeps the incomplete rest. What is told about a version this door does not speak is `UnsupportedVersion`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gantrymq_gateways.mqtt.wire import constants as c


class MalformedPacket(Exception):
    """The peer broke the protocol; the text names the clause. The connection must be closed [MQTT-4.8.0-1]."""


class UnsupportedVersion(Exception):
    """CONNECT of a protocol level that is not spoken here."""

    def __init__(self, level: int) -> None:
        super().__init__(f"protocol level {level}")
        self.level = level


@dataclass(slots=True)
class Will:
    """What is published when the client is lost. `topic` is checked."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool


@dataclass(slots=True)
class Connect:
    """CONNECT. `keep_alive_s` 0: none. `level`: 3 (MQTT 3.1) or 4 (3.1.1)."""

    client_id: str
    clean: bool = True
    keep_alive_s: int = 0
    level: int = c.LEVEL_3_1_1
    will: Will | None = None
    user_name: str | None = None
    password: bytes | None = None
    bridge: bool = False
    """The client says that it is another broker (`BRIDGE_BIT`)."""


@dataclass(slots=True)
class ConnAck:
    """CONNACK."""

    code: int
    session_present: bool = False


class Publish:
    """PUBLISH. `topic`: checked UTF-8 bytes. `flags`: low four bits of the first byte. `packet_id` 0 with QoS 0."""

    __slots__ = ("flags", "packet_id", "payload", "topic")

    def __init__(self, topic: bytes, payload: bytes, flags: int, packet_id: int) -> None:
        self.topic = topic
        self.payload = payload
        self.flags = flags
        self.packet_id = packet_id

    @property
    def qos(self) -> int:
        return self.flags >> 1 & 3

    @property
    def retain(self) -> bool:
        return self.flags & c.FLAG_RETAIN != 0

    @property
    def dup(self) -> bool:
        return self.flags & c.FLAG_DUP != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Publish) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Publish({self.topic!r}, {len(self.payload)} bytes, qos={self.qos}, id={self.packet_id})"

    def _key(self) -> tuple[bytes, bytes, int, int]:
        return self.topic, self.payload, self.flags, self.packet_id


@dataclass(slots=True)
class Ack:
    """PUBACK, PUBREC, PUBREL, PUBCOMP or UNSUBACK, told apart by `kind`."""

    kind: int
    packet_id: int


@dataclass(slots=True)
class Subscribe:
    """SUBSCRIBE; `filters`: (filter, requested QoS 0..2), checked."""

    packet_id: int
    filters: list[tuple[str, int]]


@dataclass(slots=True)
class SubAck:
    """SUBACK; `codes`: granted QoS or 0x80."""

    packet_id: int
    codes: list[int]


@dataclass(slots=True)
class Unsubscribe:
    """UNSUBSCRIBE."""

    packet_id: int
    filters: list[str]


@dataclass(slots=True)
class PingReq:
    """PINGREQ."""


@dataclass(slots=True)
class PingResp:
    """PINGRESP."""


@dataclass(slots=True)
class Disconnect:
    """DISCONNECT."""


Packet = Connect | ConnAck | Publish | Ack | Subscribe | SubAck | Unsubscribe | PingReq | PingResp | Disconnect

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


def check_fixed_header(first: int, length: int, to_server: bool) -> None:
    """Raise MalformedPacket unless type, flags, direction and length of a packet fit together."""
    rule = c.RULES.get(first >> 4)
    if rule is None:
        raise MalformedPacket(f"reserved packet type {first >> 4} (MQTT 2.2.1)")
    if not (rule.from_client if to_server else rule.from_server):
        raise MalformedPacket(f"{rule.name} from the wrong side (MQTT 2.2.1)")
    if rule.flags is not None and first & 0x0F != rule.flags:
        raise MalformedPacket(f"flags {first & 0x0F:#x} of {rule.name} are reserved [MQTT-2.2.2-2]")
    if length < rule.length_min or (rule.length_max is not None and length > rule.length_max):
        raise MalformedPacket(f"{rule.name} with a remaining length of {length}")


def check_text(data: bytes) -> str:
    """The text of a UTF-8 string field; raises MalformedPacket."""
    try:
        text = data.decode("utf-8", "strict")
    except UnicodeDecodeError:
        # Python's strict decoder refuses surrogates and overlong forms, too.
        raise MalformedPacket("ill-formed UTF-8 [MQTT-1.5.3-1]") from None
    if "\0" in text:
        raise MalformedPacket("U+0000 in a string [MQTT-1.5.3-2]")
    return text


def check_topic(data: bytes) -> None:
    """Raise MalformedPacket unless `data` may be the topic of a PUBLISH or a will."""
    if not data:
        raise MalformedPacket("empty topic [MQTT-4.7.3-1]")
    check_text(data)
    if b"+" in data or b"#" in data:
        raise MalformedPacket("wildcard in the topic of a PUBLISH [MQTT-3.3.2-2]")


def check_filter(text: str) -> None:
    """Raise MalformedPacket unless wildcards stand where MQTT 4.7.1 lets them."""
    if not text:
        raise MalformedPacket("empty topic filter [MQTT-4.7.3-1]")
    if "#" in text and (text.index("#") != len(text) - 1 or (len(text) > 1 and text[-2] != "/")):
        raise MalformedPacket("`#` is not the whole last level of the filter [MQTT-4.7.1-2]")
    if "+" in text and any("+" in level and level != "+" for level in text.split("/")):
        raise MalformedPacket("`+` is not a whole level of the filter [MQTT-4.7.1-3]")


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
            raise MalformedPacket("packet identifier 0 [MQTT-2.3.1-1]")
        return number

    def finish(self) -> None:
        if self.position != self.end:
            raise MalformedPacket(f"{self.end - self.position} bytes behind the last field")


def decode_packet(data: bytes, start: int, body: int, end: int) -> Packet:
    """The packet whose first byte is at `start` and whose variable header is `data[body:end]`; its fixed header was checked."""
    first = data[start]
    kind = first >> 4
    if kind == c.PUBLISH:
        return _decode_publish(first & 0x0F, _Reader(data, body, end))
    reader = _Reader(data, body, end)
    packet: Packet
    if kind == c.CONNECT:
        packet = _decode_connect(reader)
    elif kind == c.SUBSCRIBE:
        packet = _decode_subscribe(reader)
    elif kind == c.UNSUBSCRIBE:
        packet = _decode_unsubscribe(reader)
    elif kind in (c.PUBACK, c.PUBREC, c.PUBREL, c.PUBCOMP, c.UNSUBACK):
        packet = Ack(kind, reader.packet_id())
    elif kind == c.PINGREQ:
        packet = PingReq()
    elif kind == c.PINGRESP:
        packet = PingResp()
    elif kind == c.DISCONNECT:
        packet = Disconnect()
    else:
        packet = _decode_connack(reader) if kind == c.CONNACK else _decode_suback(reader)
    reader.finish()
    return packet


def check_publish(flags: int, topic: bytes, packet_id: int) -> None:
    """Raise MalformedPacket unless these may stand in one PUBLISH that is taken here."""
    _check_publish_flags(flags)
    check_topic(topic)
    if flags & c.FLAG_QOS == c.FLAG_QOS_2:
        raise MalformedPacket("PUBLISH with QoS 2, which is not supported yet")
    if flags & c.FLAG_QOS and not packet_id:
        raise MalformedPacket("packet identifier 0 [MQTT-2.3.1-1]")


def _check_publish_flags(flags: int) -> None:
    qos = flags >> 1 & 3
    if qos == 3:
        raise MalformedPacket("PUBLISH with QoS 3 [MQTT-3.3.1-4]")
    if qos == 0 and flags & c.FLAG_DUP:
        raise MalformedPacket("PUBLISH with DUP and QoS 0 [MQTT-3.3.1-2]")


def _decode_publish(flags: int, reader: _Reader) -> Publish:
    _check_publish_flags(flags)
    qos = flags >> 1 & 3
    topic = reader.binary()
    check_topic(topic)
    packet_id = reader.packet_id() if qos else 0
    return Publish(topic, reader.data[reader.position : reader.end], flags, packet_id)


def _decode_connect(reader: _Reader) -> Connect:
    name = reader.binary()
    levels = c.PROTOCOL_NAMES.get(name)
    if levels is None:
        raise MalformedPacket(f"protocol name {name[:16]!r} [MQTT-3.1.2-1]")
    byte = reader.byte()
    level = byte & ~c.BRIDGE_BIT
    if level not in levels:
        raise UnsupportedVersion(byte)  # [MQTT-3.1.2-2]
    flags = reader.byte()
    _check_connect_flags(flags)
    keep_alive_s = reader.word()
    client_id = reader.text()
    will = None
    if flags & c.CONNECT_WILL:
        topic = reader.binary()
        check_topic(topic)
        payload = reader.binary()
        will = Will(topic, payload, flags >> 3 & 3, flags & c.CONNECT_WILL_RETAIN != 0)
    user_name = reader.text() if flags & c.CONNECT_USER_NAME else None
    password = reader.binary() if flags & c.CONNECT_PASSWORD else None
    clean = flags & c.CONNECT_CLEAN != 0
    return Connect(client_id, clean, keep_alive_s, level, will, user_name, password, byte != level)


def _check_connect_flags(flags: int) -> None:
    if flags & c.CONNECT_RESERVED:
        raise MalformedPacket("reserved connect flag is set [MQTT-3.1.2-3]")
    if not flags & c.CONNECT_WILL and flags & (c.CONNECT_WILL_QOS | c.CONNECT_WILL_RETAIN):
        raise MalformedPacket("will QoS or retain without a will [MQTT-3.1.2-13] [MQTT-3.1.2-15]")
    if flags & c.CONNECT_WILL_QOS == c.CONNECT_WILL_QOS:
        raise MalformedPacket("will QoS 3 [MQTT-3.1.2-14]")
    if flags & c.CONNECT_PASSWORD and not flags & c.CONNECT_USER_NAME:
        raise MalformedPacket("password without a user name [MQTT-3.1.2-22]")


def _decode_connack(reader: _Reader) -> ConnAck:
    flags = reader.byte()
    if flags & 0xFE:
        raise MalformedPacket("reserved bits of CONNACK are set (MQTT 3.2.2.1)")
    return ConnAck(reader.byte(), flags == 1)


def _decode_subscribe(reader: _Reader) -> Subscribe:
    packet_id = reader.packet_id()
    filters: list[tuple[str, int]] = []
    data, position, end = reader.data, reader.position, reader.end
    while position < end:
        start = position + 2
        # There may be thousands, so no calls per field. At the packet's end `data` may end, too: slices then come out short.
        stop = start + int.from_bytes(data[position:start], "big")
        position = stop + 1
        if position > end:
            raise MalformedPacket("a field is longer than its packet")
        qos = data[stop]
        if qos > 2:
            raise MalformedPacket(f"requested QoS byte {qos:#x} [MQTT-3-8.3-4]")
        text = check_text(data[start:stop])
        check_filter(text)
        filters.append((text, qos))
        if len(filters) > c.FILTERS_MAX:
            raise MalformedPacket(f"more than {c.FILTERS_MAX} filters in one SUBSCRIBE")
    reader.position = position
    if not filters:
        raise MalformedPacket("SUBSCRIBE without a topic filter [MQTT-3.8.3-3]")
    return Subscribe(packet_id, filters)


def _decode_suback(reader: _Reader) -> SubAck:
    packet_id = reader.packet_id()
    codes = list(reader.take(reader.end - reader.position))
    if any(code not in (0, 1, 2, c.SUBACK_FAILURE) for code in codes):
        raise MalformedPacket("reserved SUBACK return code [MQTT-3.9.3-2]")
    return SubAck(packet_id, codes)


def _decode_unsubscribe(reader: _Reader) -> Unsubscribe:
    packet_id = reader.packet_id()
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
            raise MalformedPacket(f"more than {c.FILTERS_MAX} filters in one UNSUBSCRIBE")
    reader.position = position
    if not filters:
        raise MalformedPacket("UNSUBSCRIBE without a topic filter [MQTT-3.10.3-2]")
    return Unsubscribe(packet_id, filters)


def encode_length(length: int) -> bytes:
    """Remaining length in one to four bytes (MQTT 2.2.3)."""
    if length < 0x80:
        return bytes((length,))
    if length > c.REMAINING_LENGTH_MAX:
        raise ValueError(f"a packet of {length} bytes, at most {c.REMAINING_LENGTH_MAX} are possible")
    encoded = bytearray()
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


def _field(data: bytes) -> bytes:
    if len(data) > c.STRING_BYTES_MAX:
        raise ValueError(f"a field of {len(data)} bytes, at most {c.STRING_BYTES_MAX} are possible")
    return len(data).to_bytes(2, "big") + data


def encode_publish_head(topic: bytes, payload_bytes: int, flags: int) -> bytes:
    """Everything of a PUBLISH in front of the packet identifier (QoS > 0) and the payload: the same for all receivers."""
    length = 2 + len(topic) + payload_bytes + (2 if flags & c.FLAG_QOS else 0)
    return bytes((c.PUBLISH << 4 | flags,)) + encode_length(length) + _field(topic)


def encode_connack(code: int, session_present: bool = False) -> bytes:
    """CONNACK; a refusal never reports a session [MQTT-3.2.2-4]."""
    return bytes((c.CONNACK << 4, 2, 1 if session_present and code == c.ACCEPTED else 0, code))


def encode_v5_refusal() -> bytes:
    """CONNACK as MQTT 5 writes it: flags, reason code Unsupported Protocol Version, no properties."""
    return bytes((c.CONNACK << 4, 3, 0, c.V5_UNSUPPORTED_VERSION, 0))


def encode_suback(packet_id: int, codes: list[int]) -> bytes:
    """SUBACK, one code per requested filter, in order [MQTT-3.8.4-5]."""
    return b"\x90" + encode_length(2 + len(codes)) + packet_id.to_bytes(2, "big") + bytes(codes)


_ACK_HEAD: Final = {kind: bytes((kind << 4 | (c.RULES[kind].flags or 0), 2)) for kind in (4, 5, 6, 7, 11)}


def encode_ack(kind: int, packet_id: int) -> bytes:
    """PUBACK, PUBREC, PUBREL, PUBCOMP or UNSUBACK."""
    return _ACK_HEAD[kind] + packet_id.to_bytes(2, "big")


def encode_packet(packet: Packet) -> bytes:
    """Any packet; the client's side is for tests and tools."""
    if isinstance(packet, Publish):
        packet_id = packet.packet_id.to_bytes(2, "big") if packet.flags & c.FLAG_QOS else b""
        return encode_publish_head(packet.topic, len(packet.payload), packet.flags) + packet_id + packet.payload
    if isinstance(packet, Ack):
        return encode_ack(packet.kind, packet.packet_id)
    if isinstance(packet, Connect):
        return _encode_connect(packet)
    if isinstance(packet, ConnAck):
        return encode_connack(packet.code, packet.session_present)
    if isinstance(packet, Subscribe):
        body = b"".join([_field(text.encode()) + bytes((qos,)) for text, qos in packet.filters])
        return b"\x82" + encode_length(2 + len(body)) + packet.packet_id.to_bytes(2, "big") + body
    if isinstance(packet, Unsubscribe):
        body = b"".join([_field(text.encode()) for text in packet.filters])
        return b"\xa2" + encode_length(2 + len(body)) + packet.packet_id.to_bytes(2, "big") + body
    if isinstance(packet, SubAck):
        return encode_suback(packet.packet_id, packet.codes)
    if isinstance(packet, PingReq):
        return b"\xc0\x00"
    return PING_RESPONSE if isinstance(packet, PingResp) else b"\xe0\x00"


def _encode_connect(packet: Connect) -> bytes:
    name = b"MQIsdp" if packet.level == c.LEVEL_3_1 else b"MQTT"
    flags = c.CONNECT_CLEAN if packet.clean else 0
    fields = [_field(packet.client_id.encode())]
    if packet.will is not None:
        flags |= c.CONNECT_WILL | packet.will.qos << 3 | (c.CONNECT_WILL_RETAIN if packet.will.retain else 0)
        fields += [_field(packet.will.topic), _field(packet.will.payload)]
    if packet.user_name is not None:
        flags |= c.CONNECT_USER_NAME
        fields.append(_field(packet.user_name.encode()))
    if packet.password is not None:
        flags |= c.CONNECT_PASSWORD
        fields.append(_field(packet.password))
    head = (
        _field(name)
        + bytes((packet.level | (c.BRIDGE_BIT if packet.bridge else 0), flags))
        + packet.keep_alive_s.to_bytes(2, "big")
    )
    body = head + b"".join(fields)
    return b"\x10" + encode_length(len(body)) + body
