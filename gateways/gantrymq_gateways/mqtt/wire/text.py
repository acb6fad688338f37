"""Strings, topics, filters and lengths of MQTT: what is well-formed, in every version.

Names (topics, filters, client ids, user names) hold no control characters, as with Mosquitto [MQTT-1.5.3-2]; contents (user properties,
reason strings, content types) hold any text but U+0000.
"""

from __future__ import annotations

import re
from typing import Final

from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.reasons import Reason

_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


class MalformedPacket(Exception):
    """The peer broke the protocol; the text names the clause. The connection must be closed [MQTT-4.8.0-1] [MQTT5-4.13.1-1]."""

    def __init__(self, text: str, reason: Reason = Reason.MALFORMED_PACKET) -> None:
        super().__init__(text)
        self.reason = reason


def check_content(data: bytes) -> str:
    """The text of a UTF-8 string field that is no name; raises MalformedPacket."""
    try:
        text = data.decode("utf-8", "strict")
    except UnicodeDecodeError:
        # Python's strict decoder refuses surrogates and overlong forms, too.
        raise MalformedPacket("ill-formed UTF-8 [MQTT-1.5.3-1] [MQTT5-1.5.4-1]") from None
    if "\0" in text:
        raise MalformedPacket("U+0000 in a string [MQTT-1.5.3-2] [MQTT5-1.5.4-2]")
    return text


def check_text(data: bytes) -> str:
    """The text of a name; raises MalformedPacket."""
    text = check_content(data)
    if not text.isprintable() and _CONTROLS.search(text) is not None:
        raise MalformedPacket("a control character in a name (MQTT 1.5.3)")
    return text


def check_topic(data: bytes) -> None:
    """Raise MalformedPacket unless `data` may be the topic of a PUBLISH or a will."""
    if not data:
        raise MalformedPacket("empty topic [MQTT-4.7.3-1]", Reason.TOPIC_NAME_INVALID)
    check_text(data)
    if b"+" in data or b"#" in data:
        raise MalformedPacket("wildcard in the topic of a PUBLISH [MQTT-3.3.2-2]", Reason.TOPIC_NAME_INVALID)


def check_filter(text: str) -> None:
    """Raise MalformedPacket unless wildcards stand where MQTT 4.7.1 lets them."""
    if not text:
        raise MalformedPacket("empty topic filter [MQTT-4.7.3-1]", Reason.TOPIC_FILTER_INVALID)
    if "#" in text and (text.index("#") != len(text) - 1 or (len(text) > 1 and text[-2] != "/")):
        raise MalformedPacket(
            "`#` is not the whole last level of the filter [MQTT-4.7.1-2]", Reason.TOPIC_FILTER_INVALID
        )
    if "+" in text and any("+" in level and level != "+" for level in text.split("/")):
        raise MalformedPacket("`+` is not a whole level of the filter [MQTT-4.7.1-3]", Reason.TOPIC_FILTER_INVALID)


def encode_length(length: int) -> bytes:
    """Remaining length, or another variable byte integer, in one to four bytes (MQTT 2.2.3)."""
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


def field(data: bytes) -> bytes:
    """A string or binary field: two bytes of length in front."""
    if len(data) > c.STRING_BYTES_MAX:
        raise ValueError(f"a field of {len(data)} bytes, at most {c.STRING_BYTES_MAX} are possible")
    return len(data).to_bytes(2, "big") + data
