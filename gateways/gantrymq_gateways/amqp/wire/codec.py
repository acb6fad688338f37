"""Frames and methods of AMQP 0-9-1: bytes to arguments and back.

Methods are coded from the table in `constants.py`; the two hot ones (publish in, deliver out) are written by hand,
here and in `connection.py`. Content headers are passed on as bytes; `content.py` reads them.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from gantrymq.net.held.outbound import Piece
from gantrymq_gateways.amqp.wire.constants import (
    CLASS_BASIC,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    METHODS,
    Method,
)
from gantrymq_gateways.amqp.wire.values import (
    MalformedError,
    encode_table,
    longstr,
    read_longstr,
    read_shortstr,
    read_table,
    shortstr,
)

FRAME: Final = struct.Struct(">BHI")
"""Frame header: type, channel, payload size."""
HEADER: Final = struct.Struct(">BHIHHQ")
"""Frame header and the fixed part of a content header: class, weight, body size."""
CONTENT: Final = struct.Struct(">HHQ")
"""The fixed part of a content header's payload."""
CONTENT_OVERHEAD: Final = CONTENT.size

_METHOD_FRAME: Final = struct.Struct(">BHII")
_TAG_FLAG: Final = struct.Struct(">QB")
_ACK: Final = struct.Struct(">BHIIQBB")
END: Final = bytes((FRAME_END,))
HEARTBEAT_FRAME: Final = FRAME.pack(FRAME_HEARTBEAT, 0, 0) + END

_FIXED: Final = {
    "o": struct.Struct(">B"),
    "h": struct.Struct(">H"),
    "l": struct.Struct(">I"),
    "q": struct.Struct(">Q"),
}
_DELIVER: Final = METHODS["basic.deliver"].number
_ACK_NUMBER: Final = METHODS["basic.ack"].number
_NACK_NUMBER: Final = METHODS["basic.nack"].number


def decode_arguments(spec: str, data: bytes, at: int = 0) -> list[Any]:
    """Arguments of a method from `data[at:]`, which they fill (values.MalformedError otherwise)."""
    arguments: list[Any] = []
    end = len(data)
    bit = 8
    bits = 0
    for letter in spec:
        if letter == "t":
            if bit == 8:
                if at >= end:
                    raise MalformedError("bits over the end")
                bits, bit, at = data[at], 0, at + 1
            arguments.append(bits >> bit & 1 == 1)
            bit += 1
            continue
        bit = 8
        value: Any
        if letter == "s":
            value, at = read_shortstr(data, at)
        elif letter == "S":
            value, at = read_longstr(data, at, end)
        elif letter == "F":
            value, at = read_table(data, at, end)
        else:
            number = _FIXED[letter]
            if at + number.size > end:
                raise MalformedError("number over the end")
            value = number.unpack_from(data, at)[0]
            at += number.size
        arguments.append(value)
    if at != end:
        raise MalformedError("octets after the last argument")
    return arguments


def encode_arguments(spec: str, arguments: tuple[Any, ...]) -> bytes:
    """The payload of a method after its ids."""
    parts: list[bytes] = []
    bits: list[bool] = []
    for letter, value in zip(spec, arguments, strict=True):
        if letter == "t":
            bits.append(value)
            continue
        if bits:
            parts.append(_pack_bits(bits))
            bits = []
        if letter == "s":
            parts.append(shortstr(value))
        elif letter == "S":
            parts.append(longstr(value))
        elif letter == "F":
            parts.append(encode_table(value))
        else:
            parts.append(_FIXED[letter].pack(value))
    if bits:
        parts.append(_pack_bits(bits))
    return b"".join(parts)


def _pack_bits(bits: list[bool]) -> bytes:
    return bytes((sum([1 << place for place, bit in enumerate(bits) if bit]),))


def method_frame(channel: int, method: Method, arguments: tuple[Any, ...]) -> bytes:
    """One method frame."""
    payload = encode_arguments(method.spec, arguments)
    return _METHOD_FRAME.pack(FRAME_METHOD, channel, 4 + len(payload), method.number) + payload + END


def content_frames(channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """Content header and body; `properties`: flags and property list as bytes."""
    head = HEADER.pack(FRAME_HEADER, channel, CONTENT_OVERHEAD + len(properties), CLASS_BASIC, 0, len(body))
    size = len(body)
    if not size:
        return head + properties + END
    room = frame_max - FRAME_OVERHEAD
    if size <= room:
        return b"".join((head, properties, END, FRAME.pack(FRAME_BODY, channel, size), body, END))
    parts = [head, properties, END]
    for start in range(0, size, room):
        piece = body[start : start + room]
        parts += (FRAME.pack(FRAME_BODY, channel, len(piece)), piece, END)
    return b"".join(parts)


def deliver_prefix(consumer_tag: str) -> bytes:
    """What stays the same in every basic.deliver of a consumer."""
    return struct.pack(">I", _DELIVER) + shortstr(consumer_tag)


def deliver_frames(
    channel: int,
    prefix: bytes,
    delivery_tag: int,
    redelivered: bool,
    tail: bytes,
    properties: bytes,
    body: bytes,
    frame_max: int,
) -> bytes:
    """basic.deliver with its content. `prefix`: `deliver_prefix`; `tail`: exchange and routing key as shortstrs."""
    size = len(body)
    method = FRAME.pack(FRAME_METHOD, channel, len(prefix) + 9 + len(tail))
    flag = _TAG_FLAG.pack(delivery_tag, redelivered)
    if 0 < size <= frame_max - FRAME_OVERHEAD:
        head = HEADER.pack(FRAME_HEADER, channel, CONTENT_OVERHEAD + len(properties), CLASS_BASIC, 0, size)
        last = FRAME.pack(FRAME_BODY, channel, size)
        return b"".join((method, prefix, flag, tail, END, head, properties, END, last, body, END))
    return b"".join((method, prefix, flag, tail, END, content_frames(channel, properties, body, frame_max)))


def large_deliver_frames(
    channel: int,
    prefix: bytes,
    delivery_tag: int,
    redelivered: bool,
    tail: bytes,
    properties: bytes,
    body: bytes,
    frame_max: int,
) -> list[Piece]:
    """As `deliver_frames`, without a copy of the body, which other consumers get as well."""
    size, room = len(body), frame_max - FRAME_OVERHEAD
    method = FRAME.pack(FRAME_METHOD, channel, len(prefix) + 9 + len(tail))
    flag = _TAG_FLAG.pack(delivery_tag, redelivered)
    head = HEADER.pack(FRAME_HEADER, channel, CONTENT_OVERHEAD + len(properties), CLASS_BASIC, 0, size)
    pieces: list[Piece] = [b"".join((method, prefix, flag, tail, END, head, properties, END))]
    view = memoryview(body)
    for start in range(0, size, room):
        piece = view[start : start + room]
        pieces += (FRAME.pack(FRAME_BODY, channel, len(piece)), piece, END)
    return pieces


def ack_frame(channel: int, delivery_tag: int, multiple: bool) -> bytes:
    """basic.ack to a publisher."""
    return _ACK.pack(FRAME_METHOD, channel, 13, _ACK_NUMBER, delivery_tag, multiple, FRAME_END)


def nack_frame(channel: int, delivery_tag: int, multiple: bool) -> bytes:
    """basic.nack to a publisher; RabbitMQ leaves the requeue bit unset here."""
    return _ACK.pack(FRAME_METHOD, channel, 13, _NACK_NUMBER, delivery_tag, multiple, FRAME_END)


def split_publish(raw: bytes) -> tuple[str, str, bool, bool]:
    """Exchange, routing key, mandatory and immediate of a basic.publish (`raw`: its arguments)."""
    arguments = decode_arguments(METHODS["basic.publish"].spec, raw)
    return arguments[1], arguments[2], arguments[3], arguments[4]


def erlang_binary(data: bytes, printable: bool) -> str:
    """A binary as Erlang prints it, for reply texts (`~p` with `printable`, else `~w`)."""
    if printable and data and all(32 <= octet < 127 or octet in b"\t\n\r" for octet in data):
        text = data.decode("ascii").replace("\\", "\\\\").replace('"', '\\"')
        return '<<"' + text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + '">>'
    return "<<" + ",".join(str(octet) for octet in data) + ">>"


def frame_description(kind: int, payload: bytes) -> str:
    """A bad frame as RabbitMQ's reply texts describe it (rabbit_reader: payload_snippet)."""
    if len(payload) <= 16:
        return f"type {kind}, all octets = {erlang_binary(payload, True)}"
    return f"type {kind}, first 16 octets = {erlang_binary(payload[:16], True)}"
