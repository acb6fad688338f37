"""CloudEvents over HTTP: header lists and bodies to events and back (HTTP binding 1.0, JSON format 1.0).

Strict in what is read, except where 1.0.2 is laxer than later text. JSON `data` keeps its bytes: the slice
of the body becomes the data as it stands, numbers like `1.10` and the order of members included.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Sequence
from enum import Enum
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec
from msgspec import Raw

from gantrymq_gateways.cloudevents.wire.constants import JSON_TYPE, OCTETS_TYPE, STRUCTURED_TYPE
from gantrymq_gateways.cloudevents.wire.event import DataState, Event, EventError, check, check_name, media_kind

Headers = Sequence[tuple[bytes, bytes]]
"""Lower-case names and values without surrounding blanks, in the order received."""


Element = Raw
"""The JSON text of one event inside a batch; it keeps the whole body alive."""


class Mode(Enum):
    """Content mode of an HTTP message (HTTP binding 3)."""

    BINARY = "binary"
    STRUCTURED = "structured"
    BATCHED = "batched"


class FormatError(Exception):
    """An event format or charset that is not ours: 415."""


_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_ARRAY: Final = msgspec.json.Decoder(list[Raw])
_VALUE: Final = msgspec.json.Decoder(Raw)
_SCALAR: Final = msgspec.json.Decoder()
_ENCODE: Final = msgspec.json.Encoder().encode
_NATIVE_STRINGS: Final = frozenset(
    {"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema"}
)
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"\Z', re.DOTALL)
_QUOTED_PAIR = re.compile(rb"\\(.)", re.DOTALL)
_PLAIN_HEADER = re.compile(r"[!#$&-~]*\Z", re.ASCII)
_HEADER_SAFE: Final = "!#$&'()*+,/:;=?@[]^`{|}<>\\"
_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]{0,9})\Z")
_CHARSET = re.compile(r";[ \t]*charset[ \t]*=[ \t]*\"?([^\";, \t]+)", re.IGNORECASE)
_QUOTE: Final = ord('"')
_TRIMMED_DATA: Final = 4096
"""Data above this size is cut out before the slow search for repeated members."""


def mode_of(content_type: str) -> Mode:
    """Mode by the prefix of Content-Type, batch first because both share the prefix (HTTP binding 3)."""
    media, _, _ = content_type.partition(";")
    media = media.strip().lower()
    if not media.startswith("application/cloudevents"):
        return Mode.BINARY
    mode = Mode.BATCHED if media.startswith("application/cloudevents-batch") else Mode.STRUCTURED
    if not media.endswith("+json"):
        raise FormatError(f"event format {media[:64]!r} is not supported; send +json")
    charset = _CHARSET.search(content_type)
    if charset is not None and charset[1].lower() not in ("utf-8", "utf8", "us-ascii"):
        raise FormatError(f"charset {charset[1][:32]!r} is not supported; JSON is UTF-8 (RFC 8259 8.1)")
    return mode


def decode_header(name: str, value: bytes) -> str:
    """Value of a header: quoted string first, then one round of percent-decoding (HTTP binding 3.1.3.2)."""
    if value.startswith(b'"') and len(value) > 1:
        quoted = _QUOTED.match(value)
        if quoted is not None:
            value = _QUOTED_PAIR.sub(rb"\1", quoted[1])
    if b"%" in value:
        value = unquote_to_bytes(value)
    try:
        return value.decode("utf-8", "strict")
    except UnicodeDecodeError:
        raise EventError(f"header ce-{name} is not UTF-8 after percent-decoding") from None


def encode_header(value: str) -> bytes:
    """Header value (HTTP binding 3.1.3.2): blank, `"`, `%` and all outside U+0021-7E as `%XX`."""
    if _PLAIN_HEADER.match(value) is not None:
        return value.encode("ascii")
    return quote_from_bytes(value.encode("utf-8"), safe=_HEADER_SAFE).encode("ascii")


def decode_binary(headers: Headers, body: bytes) -> Event:
    """Event of a binary-mode request. Raises EventError."""
    attributes: dict[str, str] = {}
    types: dict[str, str] = {}
    content_type: str | None = None
    for raw_name, raw_value in headers:
        if raw_name.startswith(b"ce-"):
            name = raw_name[3:].decode("ascii", "replace")
            check_name(name)
            if name in attributes:  # spec.md, Context Attributes: at most once
                raise EventError(f"header ce-{name} is repeated; an attribute has one value")
            if name == "datacontenttype":  # HTTP binding 3.1.1
                raise EventError("header ce-datacontenttype is not allowed; Content-Type carries it")
            if raw_value.isalnum():
                attributes[name] = raw_value.decode("ascii")
                continue
            value = decode_header(name, raw_value)
            attributes[name] = value
            if not value:
                types[name] = "e"
        elif raw_name == b"content-type":
            content_type = raw_value.decode("latin-1")
    if content_type is not None:
        attributes["datacontenttype"] = content_type
    check(attributes)
    # SDKs state a type without data, too: no bytes are no JSON (RFC 8259 2), but they are a text.
    present = body or (content_type is not None and media_kind(content_type) != "json")
    state = DataState.PRESENT if present else DataState.ABSENT
    return Event(attributes, body, state, types)


def _text_checked(body: bytes) -> None:
    # Values are taken over as slices, so nobody else would see a broken sequence (RFC 8259 8.1).
    if not body.isascii():
        try:
            body.decode("utf-8", "strict")
        except UnicodeDecodeError as error:
            raise EventError(f"the JSON text is not UTF-8 (byte {error.start})") from None


def _refuse_repeated(body: bytes, members: dict[str, Raw], data: bytes | None) -> None:
    """Raise EventError if the object in `body` names a member twice; `data` is the value of its member of that name."""
    if data is not None and len(data) > _TRIMMED_DATA:
        body = body.replace(data, b"0", 1)
    pairs: list[tuple[str, object]] = []

    def keep(found: list[tuple[str, object]]) -> None:
        pairs[:] = found  # The outermost object is seen last.

    try:
        json.loads(body, object_pairs_hook=keep, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        raise EventError("the event is not a JSON object that can be read") from None
    if len(pairs) != len(members):
        raise EventError("a member of the event is repeated; an attribute has one value")


def _attribute(name: str, raw: bytes, types: dict[str, str]) -> str | None:
    """Canonical string of a JSON value; None for null, which means unset (JSON format 2.2)."""
    if raw.startswith(b'"'):
        value = raw[1:-1].decode("utf-8") if b"\\" not in raw else _scalar_string(name, raw)
        if not value and name not in _NATIVE_STRINGS:
            types[name] = "e"
        return value
    if raw == b"null":
        return None
    if name in _NATIVE_STRINGS:
        raise EventError(f"{name} must be a JSON string")
    if raw in (b"true", b"false"):
        types[name] = "b"
        return raw.decode()
    if _INTEGER.match(raw) is not None and -(2**31) <= int(raw) < 2**31:  # spec.md, Type System: 32 bits
        types[name] = "i"
        return "0" if raw == b"-0" else raw.decode()
    raise EventError(f"{name} must be a string, a Boolean or an integer of 32 bits")


def _scalar_string(name: str, raw: bytes) -> str:
    try:
        value: str = _SCALAR.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise EventError(f"{name} is not a JSON string that can be read") from None
    return value


def decode_structured(body: bytes) -> Event:
    """Event of a JSON text (UTF-8). Raises EventError."""
    _text_checked(body)
    return _decode_object(body)


def _decode_object(body: bytes) -> Event:
    try:
        members = _OBJECT.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise EventError(f"the event is not a JSON object: {_reason(error)}") from None
    attributes: dict[str, str] = {}
    types: dict[str, str] = {}
    data: bytes | None = None
    encoded: bytes | None = None
    compact = 1
    for name, raw in members.items():
        value = bytes(raw)
        compact += len(name) + len(value) + 4
        if name in _NATIVE_STRINGS and value[0] == _QUOTE and b"\\" not in value:
            attributes[name] = value[1:-1].decode()
        elif name == "data":
            data = value
        elif name == "data_base64":
            encoded = value if value != b"null" else None
        else:
            check_name(name)
            text = _attribute(name, value, types)
            if text is not None:
                attributes[name] = text
    if compact != len(body):
        # Compact text of these members has one possible length; any other has blanks, escapes, or a repeated member.
        _refuse_repeated(body, members, data)
    if data is not None and encoded is not None:  # JSON format 3.1.1
        raise EventError("data and data_base64 exclude each other")
    if data is not None and "datacontenttype" not in attributes:
        attributes["datacontenttype"] = JSON_TYPE  # JSON format 3.1.2, spec.md datacontenttype
    check(attributes)
    if encoded is not None:
        return Event(attributes, _base64(encoded), DataState.PRESENT, types)
    if data is None:
        return Event(attributes, b"", DataState.ABSENT, types)
    if media_kind(attributes["datacontenttype"]) == "json":
        return Event(attributes, data, DataState.PRESENT, types)
    if data == b"null":
        return Event(attributes, b"", DataState.NULL, types)
    if data.startswith(b'"'):
        data = data[1:-1] if b"\\" not in data else _scalar_string("data", data).encode()
    return Event(attributes, data, DataState.PRESENT, types)


def _base64(raw: bytes) -> bytes:
    if not raw.startswith(b'"'):
        raise EventError("data_base64 must be a JSON string")
    text = raw[1:-1] if b"\\" not in raw else _scalar_string("data_base64", raw).encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise EventError(f"data_base64 is not Base64 (RFC 4648 4): {error}") from None


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]


def split_batch(body: bytes) -> list[Element]:
    """Elements of a batch (JSON format 4), each for `decode_element`. Raises EventError if the text is no array."""
    _text_checked(body)
    try:
        return _ARRAY.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise EventError(f"the batch is not a JSON array: {_reason(error)}") from None


def decode_element(element: Element) -> Event:
    """Event of one element of a batch. Raises EventError."""
    return _decode_object(bytes(element))


def encode_binary(event: Event) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers (Content-Type first) and body of a binary-mode request."""
    attributes = event.attributes
    content_type = attributes.get("datacontenttype")
    headers = [(b"content-type", (content_type or OCTETS_TYPE).encode("latin-1", "replace"))]
    if content_type is None and event.state is DataState.ABSENT:
        headers.clear()
    for name, value in attributes.items():
        if name != "datacontenttype":
            headers.append((b"ce-" + name.encode("ascii"), encode_header(value)))
    return headers, event.data


def encode_structured(event: Event) -> bytes:
    """JSON text of one event; data that is JSON by type and in fact goes in as the bytes that it is."""
    values: dict[str, object] = dict(event.attributes)
    for name, kind in event.types.items():
        text = event.attributes.get(name)
        if text is not None and kind == "b":
            values[name] = text == "true"
        elif text is not None and kind == "i":
            values[name] = int(text)
    head = _ENCODE(values)[:-1]
    if event.state is DataState.ABSENT:
        return head + b"}"
    if event.state is DataState.NULL:
        return head + b',"data":null}'
    media = media_kind(event.attributes.get("datacontenttype", ""))
    if media == "json" and is_json(event.data):
        return b"".join((head, b',"data":', event.data, b"}"))
    if media == "text":
        try:
            return b"".join((head, b',"data":', _ENCODE(event.data.decode("utf-8", "strict")), b"}"))
        except UnicodeDecodeError:
            pass  # Text in another charset travels as bytes.
    return b"".join((head, b',"data_base64":"', base64.b64encode(event.data), b'"}'))


def encode_request(event: Event, structured: bool) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of a delivery in the content mode that the subscription asked for."""
    if structured:
        return [(b"content-type", STRUCTURED_TYPE.encode() + b"; charset=utf-8")], encode_structured(event)
    return encode_binary(event)


def is_json(data: bytes) -> bool:
    """True if `data` is one JSON value in UTF-8."""
    try:
        _VALUE.decode(data)
        if not data.isascii():
            data.decode("utf-8", "strict")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
