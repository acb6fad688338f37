"""An event between wire and log: canonical attribute strings, data bytes, and the checks of CloudEvents 1.0.

It knows neither HTTP nor messages; `codec.py` and `mapping.py` do.
"""

from __future__ import annotations

import calendar
import re
from enum import Enum
from functools import lru_cache
from typing import Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq_gateways.cloudevents.wire.constants import REQUIRED, SPECVERSION


class EventError(GantryError):
    """An event breaks CloudEvents 1.0; the text names the attribute and the rule."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.MESSAGE_ILLEGAL, text)


class DataState(Enum):
    """Whether an event has data: absent, null and empty are three things (JSON format 3.1)."""

    PRESENT = ""
    ABSENT = "absent"
    NULL = "null"


class Event:
    """One event.

    `attributes`: name to canonical string, required ones and extensions alike, `datacontenttype` included.
    `types`: `i` (Integer), `b` (Boolean) or `e` (empty string) for extensions that are no non-empty strings.
    `data`: the raw bytes.
    """

    __slots__ = ("attributes", "data", "state", "types")

    def __init__(
        self,
        attributes: dict[str, str],
        data: bytes = b"",
        state: DataState = DataState.PRESENT,
        types: dict[str, str] | None = None,
    ) -> None:
        self.attributes = attributes
        self.data = data
        self.state = state
        self.types: dict[str, str] = types if types is not None else {}

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Event)
            and self.attributes == other.attributes
            and self.data == other.data
            and self.state is other.state
            and self.types == other.types
        )

    def __hash__(self) -> int:
        return hash((self.attributes.get("source"), self.attributes.get("id")))

    def __repr__(self) -> str:
        return f"Event({self.attributes!r}, {self.data[:64]!r}, {self.state.name}, {self.types!r})"


_ATTRIBUTE_NAME = re.compile(r"[a-z0-9]+\Z")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,9})\Z")
# spec.md, Type System: String without U+0000-1F, U+007F-9F, noncharacters and lone surrogates.
_NOT_IN_STRINGS = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff"
    + "".join([chr(plane + 0xFFFE) + chr(plane + 0xFFFF) for plane in range(0x10000, 0x110000, 0x10000)])
    + "]"
)
_PCHAR: Final = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})"
# RFC 3986 appendix A; a relative path must not have a colon in its first segment.
_URI = re.compile(
    rf"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*:)?"
    rf"(?P<authority>//(?:[A-Za-z0-9\-._~!$&'()*+,;=:@\[\]]|%[0-9A-Fa-f]{{2}})*)?"
    rf"(?P<path>{_PCHAR}*(?:/{_PCHAR}*)*)"
    rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?\Z"
)
_TIMESTAMP = re.compile(
    r"(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt ]"
    r"(?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)\Z",
    re.ASCII,
)
_TOKEN: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
# RFC 9110 8.3.1; the grammar also keeps line ends out of the Content-Type that is sent to sinks.
_MEDIA_TYPE = re.compile(
    rf"({_TOKEN})/({_TOKEN})"
    rf'((?:[ \t]*;[ \t]*(?:{_TOKEN}=(?:{_TOKEN}|"(?:[^"\\\x00-\x1f\x7f]|\\[\x20-\x7e])*"))?)*)\Z'
)
_CACHED_LENGTH_MAX: Final = 128
"""Longer values are checked each time, so that the caches have a bound in bytes."""


def check_name(name: str) -> None:
    """Raise EventError unless `name` may name an attribute."""
    # spec.md, Naming: lower-case letters and digits of ASCII; 20 characters are a SHOULD.
    if _ATTRIBUTE_NAME.match(name) is None:
        raise EventError(f"attribute name {name[:64]!r}: only lower-case letters and digits are allowed")
    if name in ("data", "data_base64"):
        raise EventError("an attribute must not be named 'data'")


def is_name(name: str) -> bool:
    """True if `name` may name an attribute."""
    return _ATTRIBUTE_NAME.match(name) is not None and name != "data"


def is_of_type(value: str, kind: str) -> bool:
    """True if the canonical string `value` is of the type that `Event.types` calls `kind` (spec.md, Type System)."""
    if kind == "i":
        return _INTEGER.match(value) is not None and -(2**31) <= int(value) < 2**31
    return value in ("true", "false") if kind == "b" else kind == "e" and not value


def is_string(value: str) -> bool:
    """True if CloudEvents allows `value` as a String."""
    return (value.isascii() and value.isprintable()) or _NOT_IN_STRINGS.search(value) is None


def is_uri_reference(value: str) -> bool:
    """True for an RFC 3986 URI-reference that is not empty."""
    return _is_uri_reference(value) if len(value) <= _CACHED_LENGTH_MAX else _is_uri_reference.__wrapped__(value)


@lru_cache(maxsize=1024)
def _is_uri_reference(value: str) -> bool:
    match = _URI.match(value)
    if match is None or not value:
        return False
    if match["scheme"] or match["authority"] is not None:
        return match["authority"] is None or not match["path"] or match["path"].startswith("/")
    return ":" not in match["path"].partition("/")[0]


def is_absolute_uri(value: str) -> bool:
    """True for a URI with a scheme; a fragment is let pass (schemas are named by it)."""
    match = _URI.match(value)
    return match is not None and match["scheme"] is not None and is_uri_reference(value)


def is_timestamp(value: str) -> bool:
    """True for an RFC 3339 date-time that exists in the calendar."""
    match = _TIMESTAMP.match(value)
    if match is None or value[10] == " ":
        return False
    day = int(match[3])
    return day <= 28 or day <= calendar.monthrange(int(match[1]) or 4, int(match[2]))[1]


@lru_cache(maxsize=1024)
def _media_kind(value: str) -> str | None:
    match = _MEDIA_TYPE.match(value)
    if match is None:
        return None
    major, minor = match[1].lower(), match[2].lower()
    if minor == "json" or minor.endswith("+json"):
        return "json"
    if major == "text" or minor == "xml" or minor.endswith("+xml") or "charset=utf-8" in match[3].lower():
        return "text"
    return "binary"


def media_kind(value: str) -> str | None:
    """`json`, `text`, `binary`, or None if `value` is no media type; case does not count (spec.md)."""
    if len(value) > _CACHED_LENGTH_MAX:
        return _media_kind.__wrapped__(value)
    return _media_kind(value)


def check(attributes: dict[str, str]) -> None:
    """Raise EventError unless the attributes, of names already checked, make an event of CloudEvents 1.0."""
    missing = [name for name in REQUIRED if not attributes.get(name)]
    if missing:
        raise EventError(f"missing or empty: {', '.join(missing)}; every event has {', '.join(REQUIRED)}")
    if attributes["specversion"] != SPECVERSION:
        version = attributes["specversion"][:16]
        raise EventError(f"specversion {version!r} is not supported; send '{SPECVERSION}'")
    for name, value in attributes.items():
        if not (value.isascii() and value.isprintable()) and not is_string(value):
            raise EventError(f"{name} holds a control character, a noncharacter or half a surrogate pair")
    if not is_uri_reference(attributes["source"]):
        raise EventError(f"source {attributes['source'][:128]!r} is not a URI-reference (RFC 3986)")
    time = attributes.get("time")
    if time is not None and not is_timestamp(time):
        raise EventError(f"time {time[:64]!r} is not an RFC 3339 timestamp")
    content_type = attributes.get("datacontenttype")
    if content_type is not None and media_kind(content_type) is None:
        raise EventError(f"datacontenttype {content_type[:64]!r} is not a media type (RFC 2046)")
    if attributes.get("subject") == "":
        raise EventError("subject is empty; leave it out or give it a value")
    schema = attributes.get("dataschema")
    if schema is not None and not is_absolute_uri(schema):
        raise EventError(f"dataschema {schema[:128]!r} is not an absolute URI (RFC 3986)")
