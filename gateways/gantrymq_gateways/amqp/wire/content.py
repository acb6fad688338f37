"""The property list of a content header: bytes to `Properties` and back (AMQP 4.2.6.1).

The list is a word of flags, then the fields whose flag is set. Messages pass as bytes; only what other doors must see, and what
RabbitMQ checks on publish, is read here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from gantrymq_gateways.amqp.wire.values import MalformedError, Table, encode_table, read_shortstr, read_table, shortstr

_FLAGS: Final = struct.Struct(">H")
_TIMESTAMP: Final = struct.Struct(">Q")

# Field name and kind in the order of the flags, from bit 15 down: s shortstr, F table, o octet, q longlong.
_FIELDS: Final = (
    ("content_type", "s"),
    ("content_encoding", "s"),
    ("headers", "F"),
    ("delivery_mode", "o"),
    ("priority", "o"),
    ("correlation_id", "s"),
    ("reply_to", "s"),
    ("expiration", "s"),
    ("message_id", "s"),
    ("timestamp", "q"),
    ("type", "s"),
    ("user_id", "s"),
    ("app_id", "s"),
    ("cluster_id", "s"),
)
_UNUSED_FLAGS: Final = 0b11
"""Bit 0 announces a second word of flags, which class basic does not have; bit 1 has no field."""


@dataclass(slots=True)
class Properties:
    """Fields of basic.properties; None: absent."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


def decode_properties(data: bytes) -> Properties:
    """Raises values.MalformedError, Utf8Error or ValueTypeError."""
    result = Properties()
    end = len(data)
    if end < 2:
        raise MalformedError("no property flags")
    flags = _FLAGS.unpack_from(data)[0]
    if flags & _UNUSED_FLAGS:
        raise MalformedError("unknown property flags")
    at = 2
    bit = 1 << 15
    for name, kind in _FIELDS:
        if flags & bit:
            value: object
            if kind == "s":
                value, at = read_shortstr(data, at)
            elif kind == "F":
                value, at = read_table(data, at, end)
            elif kind == "o":
                if at >= end:
                    raise MalformedError("octet over the end")
                value, at = data[at], at + 1
            else:
                if at + 8 > end:
                    raise MalformedError("timestamp over the end")
                value, at = _TIMESTAMP.unpack_from(data, at)[0], at + 8
            setattr(result, name, value)
        bit >>= 1
    if at != end:
        raise MalformedError("octets after the last property")
    return result


def encode_properties(properties: Properties) -> bytes:
    """Flags and fields."""
    flags = 0
    bit = 1 << 15
    parts = [b""]
    for name, kind in _FIELDS:
        value = getattr(properties, name)
        if value is not None:
            flags |= bit
            if kind == "s":
                parts.append(shortstr(value))
            elif kind == "F":
                parts.append(encode_table(value))
            elif kind == "o":
                parts.append(bytes((value,)))
            else:
                parts.append(_TIMESTAMP.pack(value))
        bit >>= 1
    parts[0] = _FLAGS.pack(flags)
    return b"".join(parts)
