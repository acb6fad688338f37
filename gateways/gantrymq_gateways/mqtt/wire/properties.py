"""Properties of MQTT 5.0 (2.2.2), one table: identifiers, types, where each may stand. Bytes <-> dict.

A dict holds identifier -> value: int, str, bytes; USER a list of (name, value) in order; SUBSCRIPTION_ID a list of int.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.reasons import Reason
from gantrymq_gateways.mqtt.wire.text import MalformedPacket, check_content, check_text, encode_length, field

Properties = dict[int, Any]

PAYLOAD_FORMAT: Final = 0x01
MESSAGE_EXPIRY: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_ID: Final = 0x0B
SESSION_EXPIRY: Final = 0x11
ASSIGNED_CLIENT_ID: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTH_METHOD: Final = 0x15
AUTH_DATA: Final = 0x16
REQUEST_PROBLEM: Final = 0x17
WILL_DELAY: Final = 0x18
REQUEST_RESPONSE: Final = 0x19
RESPONSE_INFORMATION: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER: Final = 0x26
MAXIMUM_PACKET_SIZE: Final = 0x27
WILDCARD_AVAILABLE: Final = 0x28
SUBSCRIPTION_ID_AVAILABLE: Final = 0x29
SHARED_AVAILABLE: Final = 0x2A

WILL: Final = 0
"""Stands for the will in `Rule.packets`: no packet type has this number."""

FLAG, BYTE, WORD, DOUBLE, VARIABLE, TEXT, NAME, BINARY, PAIR = range(9)
"""Types: FLAG is a byte of 0 or 1, NAME a text that may hold no control character."""

_ACKS: Final = (c.PUBACK, c.PUBREC, c.PUBREL, c.PUBCOMP, c.SUBACK, c.UNSUBACK)


@dataclass(frozen=True, slots=True)
class Rule:
    """One property. `zero`: its value may be 0."""

    name: str
    type: int
    packets: tuple[int, ...]
    zero: bool = True


RULES: Final[dict[int, Rule]] = {
    PAYLOAD_FORMAT: Rule("Payload Format Indicator", FLAG, (c.PUBLISH, WILL)),
    MESSAGE_EXPIRY: Rule("Message Expiry Interval", DOUBLE, (c.PUBLISH, WILL)),
    CONTENT_TYPE: Rule("Content Type", TEXT, (c.PUBLISH, WILL)),
    RESPONSE_TOPIC: Rule("Response Topic", NAME, (c.PUBLISH, WILL)),
    CORRELATION_DATA: Rule("Correlation Data", BINARY, (c.PUBLISH, WILL)),
    SUBSCRIPTION_ID: Rule("Subscription Identifier", VARIABLE, (c.PUBLISH, c.SUBSCRIBE), False),
    SESSION_EXPIRY: Rule("Session Expiry Interval", DOUBLE, (c.CONNECT, c.CONNACK, c.DISCONNECT)),
    ASSIGNED_CLIENT_ID: Rule("Assigned Client Identifier", TEXT, (c.CONNACK,)),
    SERVER_KEEP_ALIVE: Rule("Server Keep Alive", WORD, (c.CONNACK,)),
    AUTH_METHOD: Rule("Authentication Method", NAME, (c.CONNECT, c.CONNACK, c.AUTH)),
    AUTH_DATA: Rule("Authentication Data", BINARY, (c.CONNECT, c.CONNACK, c.AUTH)),
    REQUEST_PROBLEM: Rule("Request Problem Information", FLAG, (c.CONNECT,)),
    WILL_DELAY: Rule("Will Delay Interval", DOUBLE, (WILL,)),
    REQUEST_RESPONSE: Rule("Request Response Information", FLAG, (c.CONNECT,)),
    RESPONSE_INFORMATION: Rule("Response Information", TEXT, (c.CONNACK,)),
    SERVER_REFERENCE: Rule("Server Reference", TEXT, (c.CONNACK, c.DISCONNECT)),
    REASON_STRING: Rule("Reason String", TEXT, (c.CONNACK, *_ACKS, c.DISCONNECT, c.AUTH)),
    RECEIVE_MAXIMUM: Rule("Receive Maximum", WORD, (c.CONNECT, c.CONNACK), False),
    TOPIC_ALIAS_MAXIMUM: Rule("Topic Alias Maximum", WORD, (c.CONNECT, c.CONNACK)),
    TOPIC_ALIAS: Rule("Topic Alias", WORD, (c.PUBLISH,)),
    MAXIMUM_QOS: Rule("Maximum QoS", FLAG, (c.CONNACK,)),
    RETAIN_AVAILABLE: Rule("Retain Available", FLAG, (c.CONNACK,)),
    USER: Rule(
        "User Property",
        PAIR,
        (c.CONNECT, c.CONNACK, c.PUBLISH, WILL, *_ACKS, c.SUBSCRIBE, c.UNSUBSCRIBE, c.DISCONNECT, c.AUTH),
    ),
    MAXIMUM_PACKET_SIZE: Rule("Maximum Packet Size", DOUBLE, (c.CONNECT, c.CONNACK), False),
    WILDCARD_AVAILABLE: Rule("Wildcard Subscription Available", FLAG, (c.CONNACK,)),
    SUBSCRIPTION_ID_AVAILABLE: Rule("Subscription Identifiers Available", FLAG, (c.CONNACK,)),
    SHARED_AVAILABLE: Rule("Shared Subscription Available", FLAG, (c.CONNACK,)),
}
"""MQTT 5.0 table 2-4."""

_SIZES: Final = {FLAG: 1, BYTE: 1, WORD: 2, DOUBLE: 4}


def decode_variable(data: bytes, position: int, end: int) -> tuple[int, int]:
    """(value, position behind it) of a variable byte integer (MQTT 5.0 1.5.5). Raises MalformedPacket."""
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift and not byte:
                raise MalformedPacket("a variable byte integer is longer than it needs to be [MQTT5-1.5.5-1]")
            return value, position
        shift += 7
        if shift == 28:
            raise MalformedPacket("a variable byte integer of more than four bytes (MQTT 5.0 1.5.5)")
    raise MalformedPacket("a field is longer than its packet")


def decode_properties(data: bytes, position: int, end: int, packet: int) -> tuple[Properties, int]:
    """(properties, position behind them) of a packet of that type, or of a WILL. Raises MalformedPacket."""
    length, position = decode_variable(data, position, end)
    stop = position + length
    if stop > end:
        raise MalformedPacket("the properties are longer than their packet")
    found: Properties = {}
    several = 0
    while position < stop:
        identifier, position = decode_variable(data, position, stop)
        rule = RULES.get(identifier)
        if rule is None or packet not in rule.packets:
            name = rule.name if rule else f"{identifier:#x}"
            raise MalformedPacket(f"property {name} is none of this packet (MQTT 5.0 2.2.2.2)")
        value, position = _decode_value(rule, data, position, stop)
        if rule.type == PAIR or (identifier == SUBSCRIPTION_ID and packet == c.PUBLISH):
            several += 1
            if several > c.PROPERTIES_MAX:
                raise MalformedPacket(f"over {c.PROPERTIES_MAX} properties in one packet", Reason.QUOTA_EXCEEDED)
            found.setdefault(identifier, []).append(value)
        elif identifier in found:
            raise MalformedPacket(f"property {rule.name} twice (MQTT 5.0 2.2.2.2)", Reason.PROTOCOL_ERROR)
        else:
            found[identifier] = [value] if identifier == SUBSCRIPTION_ID else value
    return found, position


def _decode_value(rule: Rule, data: bytes, position: int, stop: int) -> tuple[Any, int]:
    kind = rule.type
    size = _SIZES.get(kind, 0)
    if size:
        end = position + size
        if end > stop:
            raise MalformedPacket(f"property {rule.name} is cut short")
        number = int.from_bytes(data[position:end], "big")
        if (kind == FLAG and number > 1) or not (number or rule.zero):
            raise MalformedPacket(f"property {rule.name} is {number}", Reason.PROTOCOL_ERROR)
        return number, end
    if kind == VARIABLE:
        number, end = decode_variable(data, position, stop)
        if not (number or rule.zero):
            raise MalformedPacket(f"property {rule.name} is {number}", Reason.PROTOCOL_ERROR)
        return number, end
    raw, position = _take(rule, data, position, stop)
    if kind == BINARY:
        return raw, position
    if kind == NAME:
        return check_text(raw), position
    text = check_content(raw)
    if kind == TEXT:
        return text, position
    raw, position = _take(rule, data, position, stop)
    return (text, check_content(raw)), position


def _take(rule: Rule, data: bytes, position: int, stop: int) -> tuple[bytes, int]:
    start = position + 2
    end = start + int.from_bytes(data[position:start], "big")
    if start > stop or end > stop:
        raise MalformedPacket(f"property {rule.name} is cut short")
    return data[start:end], end


def encode_one(identifier: int, value: Any) -> bytes:
    """One property; raises ValueError for what does not fit its type."""
    rule = RULES[identifier]
    head = bytes((identifier,))
    kind = rule.type
    if kind == PAIR:
        return b"".join([head + field(name.encode()) + field(text.encode()) for name, text in value])
    if kind == VARIABLE:
        return b"".join([head + encode_length(number) for number in value])
    size = _SIZES.get(kind, 0)
    if size:
        return head + int(value).to_bytes(size, "big")
    return head + field(value if isinstance(value, bytes) else value.encode())


def encode_list(properties: Properties | None) -> bytes:
    """Properties without their length."""
    return b"".join([encode_one(identifier, value) for identifier, value in properties.items()]) if properties else b""


def encode_properties(properties: Properties | None) -> bytes:
    """Properties with their length in front."""
    if not properties:
        return b"\0"
    listed = encode_list(properties)
    return encode_length(len(listed)) + listed
