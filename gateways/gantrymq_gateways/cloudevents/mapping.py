"""Events to messages of the native model and back (docs/mapping/cloudevents.md).

A message of another door becomes an event by the rules for messages that were none; nothing here knows HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from gantrymq.broker.port import POSITION_MASK
from gantrymq.model import names, sysflag
from gantrymq.model import properties as props
from gantrymq.model.compression import inflate
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import PROPERTIES_BYTES_MAX
from gantrymq.model.message import Message
from gantrymq_gateways.cloudevents.wire.constants import (
    ATTRIBUTE_TYPES,
    DATA_STATE,
    DLQ_ATTEMPTS,
    DLQ_REASON,
    DLQ_STATUS,
    OCTETS_TYPE,
    ORIGIN,
    REQUIRED,
    SPECVERSION,
)
from gantrymq_gateways.cloudevents.wire.event import DataState, Event, is_name, is_of_type, is_string, media_kind

_PREFIX: Final = props.CE_PREFIX
_PREFIX_LENGTH: Final = len(_PREFIX)
_CACHED_TYPE_MAX: Final = 256
"""Longer event types are encoded each time, so that the cache has a bound in bytes."""
_NO_NAMES: Final[Mapping[str, str]] = {}
LATE_ATTRIBUTES: Final = frozenset({"id", "time"})
"""Of a message that was no event these are known when it is stored, not before."""
_NOT_COPIED: Final = frozenset({props.EXCHANGE, props.RETAIN, DLQ_REASON, DLQ_STATUS, DLQ_ATTEMPTS})
"""Properties that a dead letter must not carry on: an exchange of origin would route it again, retain would keep it."""


@lru_cache(maxsize=4096)
def _tag(event_type: str) -> str:
    return names.encode_tag(event_type.split("."))


def tag_of(event_type: str) -> str:
    """Native tag of an event type: its words at `.`, so that AMQP patterns and MQTT levels see them."""
    if len(event_type) > _CACHED_TYPE_MAX:
        return _tag.__wrapped__(event_type)
    return _tag(event_type)


def to_message(event: Event, topic: str, born_ms: int) -> Message:
    """The message that stores `event` in native topic `topic`. Raises GantryError (names and properties too long)."""
    attributes = event.attributes
    tag = tag_of(attributes["type"])
    key = attributes["id"].replace(" ", "%20")  # Blanks separate keys (RocketMQ KEY_SEPARATOR).
    content_type = attributes.get("datacontenttype")
    sharding_key = attributes.get("partitionkey", "")
    pairs = [f"TAGS\x01{tag}\x02KEYS\x01{key}\x02GANTRY_ORIGIN\x01{ORIGIN}\x02"]
    if sharding_key:
        pairs.append(f"__SHARDINGKEY\x01{sharding_key}\x02")
    if content_type:
        pairs.append(f"GANTRY_CONTENT_TYPE\x01{content_type}\x02")
    if event.state is not DataState.PRESENT:
        pairs.append(f"{DATA_STATE}\x01{event.state.value}\x02")
    if event.types:
        types = " ".join([f"{name}={kind}" for name, kind in event.types.items()])
        pairs.append(f"{ATTRIBUTE_TYPES}\x01{types}\x02")
    for name, value in attributes.items():
        if value:
            pairs.append(f"CE_{name}\x01{value}\x02")
    properties = "".join(pairs).encode("utf-8")
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise GantryError(
            ErrorCode.PROPERTIES_TOO_LARGE,
            f"the attributes take {len(properties)} bytes, at most {PROPERTIES_BYTES_MAX} are allowed",
        )
    message = Message(topic, event.data, properties, tag, (key,), born_ms=born_ms)
    message.sharding_key = sharding_key
    return message


def from_message(message: Message, source: str, long_topics: Mapping[str, str] = _NO_NAMES) -> Event:
    """The event of a message: as it was posted, or a synthetic one of `source` if it was none.

    `long_topics`: foreign names of native ones that are digests.

    Raises GantryError (MESSAGE_ILLEGAL, MESSAGE_TOO_LARGE, NOT_SUPPORTED) for a compressed body that cannot be inflated.
    """
    pairs = props.decode(message.properties)
    body = inflated(message)
    attributes = _posted(pairs)
    if attributes is None:
        return Event(_synthetic(message, pairs, source, long_topics) | _late(message, pairs), body)
    types: dict[str, str] = {}
    for item in pairs.get(ATTRIBUTE_TYPES, "").split():
        name, _, kind = item.partition("=")
        if name in attributes and is_of_type(attributes[name], kind):
            types[name] = kind
    state = pairs.get(DATA_STATE)
    if body or state is None:
        return Event(attributes, body, DataState.PRESENT, types)
    return Event(attributes, body, DataState.NULL if state == DataState.NULL.value else DataState.ABSENT, types)


def attributes_before(
    message: Message, source: str, long_topics: Mapping[str, str] = _NO_NAMES
) -> tuple[dict[str, str], bool]:
    """The attributes of `from_message` for a message that is being stored, and whether those of `LATE_ATTRIBUTES` are still to come: of
    a message that was no event they are known behind the append."""
    pairs = props.decode(message.properties)
    attributes = _posted(pairs)
    if attributes is not None:
        return attributes, False
    return _synthetic(message, pairs, source, long_topics), True


def _posted(pairs: dict[str, str]) -> dict[str, str] | None:
    """Attributes of an event as it was posted; None: it was none."""
    attributes = {
        name[_PREFIX_LENGTH:]: value
        for name, value in pairs.items()
        # A native producer names its properties as it likes; what no attribute may be called (spec.md, Naming) is left out.
        if name.startswith(_PREFIX) and is_name(name[_PREFIX_LENGTH:])
    }
    if any(name not in attributes for name in REQUIRED) or attributes["specversion"] != SPECVERSION:
        return None
    for item in pairs.get(ATTRIBUTE_TYPES, "").split():
        name, _, kind = item.partition("=")
        if kind == "e" and is_name(name):
            attributes.setdefault(name, "")
    content_type = attributes.get("datacontenttype")
    if content_type is not None and media_kind(content_type) is None:
        del attributes["datacontenttype"]  # Written by a native client: not to be put into a header.
    return attributes


def _late(message: Message, pairs: dict[str, str]) -> dict[str, str]:
    """`LATE_ATTRIBUTES` of a message that was no event."""
    return {"id": pairs.get(props.UNIQ_KEY) or offset_message_id(message), "time": timestamp(message.store_ms)}


def _synthetic(message: Message, pairs: dict[str, str], source: str, long_topics: Mapping[str, str]) -> dict[str, str]:
    attributes = {
        "specversion": SPECVERSION,
        "source": source,
        "type": type_of_tag(message.tag) or "message",
    }
    subject = _subject(message, pairs.get(props.ORIGIN, ""), long_topics)
    if subject:
        attributes["subject"] = subject
    content_type = pairs.get(props.CONTENT_TYPE, "")
    attributes["datacontenttype"] = content_type if media_kind(content_type) is not None else OCTETS_TYPE
    sharding_key = pairs.get(props.SHARDING_KEY, "")
    if sharding_key and is_string(sharding_key):
        attributes["partitionkey"] = sharding_key
    return attributes


@lru_cache(maxsize=1024)
def type_of_tag(tag: str) -> str:
    """Event type of a native tag, the way back of `tag_of`; a `.` inside a word stays escaped."""
    text = ".".join([names.decode_escapes(word, ".") for word in tag.split(".")])
    return text if text and is_string(text) else tag


def _subject(message: Message, origin: str, long_topics: Mapping[str, str]) -> str:
    words = message.tag.split(".") if message.tag else []
    if origin == "mqtt":
        first = long_topics.get(message.topic) or names.decode_escapes(message.topic, "/+#")
        text = "/".join([first, *[names.decode_escapes(word, "/+#") for word in words]])
    elif origin == "amqp":
        text = type_of_tag(message.tag)
    else:
        return ""
    return text if is_string(text) else f"{message.topic}/{message.tag}"


def offset_message_id(message: Message) -> str:
    """RocketMQ's offset message id: store host and physical offset in upper-case hexadecimal digits."""
    return (message.store_host + (message.physical_offset & POSITION_MASK).to_bytes(8, "big")).hex().upper()


def timestamp(at_ms: int) -> str:
    """RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def inflated(message: Message) -> bytes:
    """The body, decompressed if the record says so; the size is capped at `BODY_BYTES_CEILING`. Raises as `compression.inflate`."""
    return inflate(message.body, message.sys_flag)


def lane_of(message: Message) -> str:
    """What is delivered one at a time, in order: the sharding key, else the whole tag."""
    return message.sharding_key or message.property(props.SHARDING_KEY) or message.tag


def dead_letter(message: Message, subscription: str, reason: str, status: int, attempts: int) -> Message:
    """Copy of `message` for `%DLQ%<subscription>`, with why, the last HTTP status (0: no answer) and the attempts.

    The additions are left out where they do not fit beside the properties of the original.
    """
    kept = [(name, value) for name, value in props.decode(message.properties).items() if name not in _NOT_COPIED]
    added = [
        ("DLQ_ORIGIN_TOPIC", message.topic),
        ("DLQ_ORIGIN_MESSAGE_ID", offset_message_id(message)),
        (DLQ_REASON, "".join([c for c in reason[:256] if c.isprintable()])),
        (DLQ_STATUS, str(status)),
        (DLQ_ATTEMPTS, str(attempts)),
    ]
    properties = props.encode([*kept, *added])
    if len(properties) > PROPERTIES_BYTES_MAX:
        properties = props.encode(kept)
    copy = Message(
        names.DLQ_PREFIX + subscription,
        message.body,
        properties,
        message.tag,
        props.index_keys(properties),
        born_ms=message.born_ms,
    )
    copy.born_host = message.born_host
    copy.flag = message.flag
    copy.sys_flag = message.sys_flag & (
        sysflag.COMPRESSED | sysflag.COMPRESSION_MASK | sysflag.BORN_HOST_V6 | sysflag.MULTI_TAGS
    )
    copy.sharding_key = message.sharding_key
    return copy
