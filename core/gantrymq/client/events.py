"""CloudEvents over the native client: events as messages, messages as events (docs/mapping/cloudevents.md).

What is sent here is stored as if the CloudEvents door had taken it: webhooks get it, and what was posted there is read here. Events are objects
of the `cloudevents` package.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.exceptions import CloudEventValidationError
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from gantrymq.client.messages import OutMessage
from gantrymq.client.records import ReceivedMessage
from gantrymq.model import names
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError

__all__ = ["CloudEvent", "event_of", "message_of"]

SPECVERSION: Final = "1.0"
REQUIRED: Final = ("specversion", "id", "source", "type")
ORIGIN: Final = "cloudevents"
DATA_STATE: Final = "GANTRY_CE_DATA"
TYPES: Final = "GANTRY_CE_TYPES"
INT32: Final = range(-0x80000000, 0x80000000)
FORMAT: Final = JSONFormat()


def message_of(event: BaseCloudEvent, topic: str) -> OutMessage:
    """The message to send for `event`: `await producer.send(message_of(event, "orders"))`.

    The event's type becomes the tag, its id the key, `partitionkey` the sharding key. Data that is a dict is written as JSON, a str as UTF-8, bytes
    as they are. Raises ILLEGAL_ARGUMENT for an attribute that CloudEvents 1.0 does not have, NOT_SUPPORTED for another version.
    """
    attributes = dict(event.get_attributes())
    if attributes.get("specversion") != SPECVERSION:
        raise GantryError(
            ErrorCode.NOT_SUPPORTED, f"specversion {attributes.get('specversion')!r}: events are of {SPECVERSION}"
        )
    data = event.get_data()
    if isinstance(data, dict):
        attributes.setdefault("datacontenttype", JSONFormat.DEFAULT_CONTENT_TYPE)
    pairs, types = {props.ORIGIN: ORIGIN}, []
    for name, value in attributes.items():
        if value is None:
            continue
        text, kind = _text_of(name, value)
        if kind:
            types.append(f"{name}={kind}")
        if text:
            pairs[props.CE_PREFIX + name] = text
    content_type = attributes.get("datacontenttype")
    if content_type:
        pairs[props.CONTENT_TYPE] = content_type
    if data is None:
        pairs[DATA_STATE] = "absent"
    if types:
        pairs[TYPES] = " ".join(types)
    return OutMessage(
        topic,
        FORMAT.write_data(data, content_type),
        names.encode_tag(event.get_type().split(".")),
        event.get_id().replace(" ", "%20"),
        pairs,
        pairs.get(props.CE_PREFIX + "partitionkey", ""),
    )


def event_of(message: ReceivedMessage, source: str = "//gantrymq") -> CloudEvent:
    """The event of a message: as it was sent, or, of a message that was none, a new one of `source` with the tag as its type.

    JSON data is parsed, text is a str, anything else bytes, no data None. Raises MESSAGE_ILLEGAL for what is no event of CloudEvents 1.0 after
    all (a native producer wrote attributes that it does not have), and as `ReceivedMessage.body`.
    """
    attributes: dict[str, Any] = {
        name.removeprefix(props.CE_PREFIX): value
        for name, value in message.property_map().items()
        if name.startswith(props.CE_PREFIX)
    }
    if any(not attributes.get(name) for name in REQUIRED) or attributes["specversion"] != SPECVERSION:
        attributes = _attributes_of_other(message, source)
    timeless = "time" not in attributes
    data = FORMAT.read_data(message.body, attributes.get("datacontenttype"))
    try:
        for item in message.property(TYPES).split():
            name, _, kind = item.partition("=")
            if (kind in _READ and name in attributes) or kind == "e":
                attributes[name] = _READ[kind](attributes.get(name, ""))
        if not timeless:
            attributes["time"] = datetime.fromisoformat(attributes["time"])
        event = CloudEvent(attributes, data)
    except (CloudEventValidationError, ValueError) as error:
        raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"{message!r} is no event of CloudEvents 1.0: {error}") from None
    if timeless:
        del attributes["time"]  # the package set it to now in these same attributes; the event has none
    return event


_READ: Final[dict[str, Callable[[str], Any]]] = {"i": int, "b": lambda text: text == "true", "e": str}
"""What `TYPES` says of an attribute: Integer, Boolean, empty string."""


def _text_of(name: str, value: object) -> tuple[str, str]:
    """Canonical text of an attribute's value (CloudEvents 1.0, Type System), and its kind where the text does not tell."""
    if isinstance(value, str):
        return value, "" if value else "e"
    if isinstance(value, bool):
        return str(value).lower(), "b"
    if isinstance(value, int) and value in INT32:
        return str(value), "i"
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat().replace("+00:00", "Z"), ""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode(), ""
    text = f"attribute {name} = {value!r}: allowed are str, bool, datetime, bytes, and int of 32 bits"
    raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)


def _attributes_of_other(message: ReceivedMessage, source: str) -> dict[str, Any]:
    """As the door makes them for webhooks."""
    tag = message.tag
    attributes = {
        "specversion": SPECVERSION,
        "id": message.message_id,
        "source": source,
        "type": _words(tag, ".", ".") or "message",
        "time": datetime.fromtimestamp(message.store_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "datacontenttype": message.property(props.CONTENT_TYPE) or "application/octet-stream",
    }
    origin = message.property(props.ORIGIN)
    if origin == "mqtt":
        levels = [names.decode_escapes(message.topic, "/+#"), *([_words(tag, "/+#", "/")] if tag else [])]
        attributes["subject"] = "/".join(levels)
    elif origin == "amqp" and tag:
        attributes["subject"] = _words(tag, ".", ".")
    if sharding_key := message.property(props.SHARDING_KEY):
        attributes["partitionkey"] = sharding_key
    return attributes


def _words(tag: str, standing: str, joined: str) -> str:
    return joined.join([names.decode_escapes(word, standing) for word in tag.split(".")]) if tag else ""
