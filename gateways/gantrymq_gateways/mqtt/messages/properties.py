"""Properties of an MQTT 5.0 publication <-> properties of a message (docs/mapping/mqtt.md).

What other doors know has one native name for all of them; user properties are native properties of their own name, in order. What native
properties cannot tell exactly (repeated names, empty values, binary correlation data) stands once more in `GANTRY_MQTT_REST`, for this door.
User properties that make a CloudEvent (its MQTT binding) are stored as one.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Final

from gantrymq.model import properties as props
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.properties import Properties, decode_properties, encode_list, encode_one
from gantrymq_gateways.mqtt.wire.text import MalformedPacket, encode_length

FORMAT: Final = "GANTRY_MQTT_FORMAT"
"""Payload Format Indicator: `1` for UTF-8 text."""
REST: Final = "GANTRY_MQTT_REST"
"""Base64 of an exact property list, where the other properties do not tell it."""

_CE_NEEDED: Final = frozenset({"specversion", "id", "source", "type"})
_CE_CONTENT: Final = "datacontenttype"
_CE_EXPIRY: Final = "CE_expirytime"
_NOT_PASSED_ON: Final = (p.MESSAGE_EXPIRY, p.WILL_DELAY, p.TOPIC_ALIAS, p.SUBSCRIPTION_ID)
"""Said anew to each receiver, or to none."""


def to_native(properties: Properties, now_ms: int) -> tuple[bytes, tuple[str, ...], str]:
    """(encoded native properties, keys, sharding key) of a publication's properties."""
    pairs: list[tuple[str, str]] = []
    exact = True
    expiry_s = properties.get(p.MESSAGE_EXPIRY)
    if expiry_s is not None:
        pairs.append((props.EXPIRES_AT, str(now_ms + expiry_s * 1000)))
    if properties.get(p.PAYLOAD_FORMAT):
        pairs.append((FORMAT, "1"))
    exact = properties.get(p.PAYLOAD_FORMAT) != 0
    for identifier, name in ((p.CONTENT_TYPE, props.CONTENT_TYPE), (p.RESPONSE_TOPIC, props.REPLY_TO)):
        if identifier in properties:
            exact = _add(pairs, name, properties[identifier]) and exact
    if p.CORRELATION_DATA in properties:
        exact = _add(pairs, props.CORRELATION_ID, _text_of(properties[p.CORRELATION_DATA])) and exact
    user: list[tuple[str, str]] = properties.get(p.USER, [])
    keys: tuple[str, ...] = ()
    sharding_key = ""
    if user:
        exact = len({name for name, _ in user}) == len(user) and exact
        event = _event_of(user)
        for name, value in user:
            native = props.CE_PREFIX + name if event and is_attribute(name) else props.foreign_name(name)
            exact = _add(pairs, native, value) and exact
        if event:
            exact = _CE_CONTENT not in event and exact
            keys = (event["id"].replace(" ", "%20"),)
            pairs.append((props.KEYS, keys[0]))
            sharding_key = event.get("partitionkey", "")
            _add(pairs, props.SHARDING_KEY, sharding_key)
            _add(pairs, props.CE_PREFIX + _CE_CONTENT, properties.get(p.CONTENT_TYPE, ""))
    encoded = props.encode(pairs)
    if not exact:
        told = {identifier: value for identifier, value in properties.items() if identifier not in _NOT_PASSED_ON}
        encoded += props.encode([(REST, base64.b64encode(encode_list(told)).decode())])
    return encoded, keys, sharding_key


def passed_on(properties: Properties, now_ms: int) -> tuple[bytes, int]:
    """(property list, when it expires, 0: never) of a publication that is retained or delivered without a record."""
    told = {identifier: value for identifier, value in properties.items() if identifier not in _NOT_PASSED_ON}
    expiry_s = properties.get(p.MESSAGE_EXPIRY)
    return encode_list(told), 0 if expiry_s is None else now_ms + expiry_s * 1000


def _add(pairs: list[tuple[str, str]], name: str, value: str) -> bool:
    """False: native properties cannot hold it."""
    if not value or "\x01" in value or "\x02" in value:
        return False
    pairs.append((name, value))
    return True


def _text_of(data: bytes) -> str:
    """Empty if it is no text."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return ""


def is_attribute(name: str) -> bool:
    """Whether a CloudEvents attribute may have that name."""
    return name.isascii() and name.isalnum() and name == name.lower()


def _event_of(user: list[tuple[str, str]]) -> dict[str, str]:
    """The attributes, if the user properties are those of an event in binary mode (CloudEvents MQTT binding 3.1)."""
    attributes = dict(user)
    if attributes.get("specversion") != "1.0" or not all(attributes.get(name) for name in _CE_NEEDED):
        return {}
    return attributes


def expiry_of(properties: bytes) -> int:
    """When the message expires by any door's rule, ms since the epoch; 0: not at all."""
    found = props.find(properties, props.EXPIRES_AT)
    if found.isascii() and found.isdigit() and len(found) < 20:
        return int(found)
    found = props.find(properties, _CE_EXPIRY)
    if found:
        try:
            at = datetime.fromisoformat(found)
            return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
        except (ValueError, OverflowError):
            pass  # No time: an event with any text there does not expire.
    return 0


def may_expire(properties: bytes) -> bool:
    """A quick look that spares most messages `expiry_of`."""
    return b"GANTRY_EXPIRES_AT\x01" in properties or b"CE_expirytime\x01" in properties


def from_native(properties: bytes) -> bytes:
    """The MQTT property list, without expiry and subscription identifiers, of a message's properties."""
    pairs = props.decode(properties)
    rest = pairs.get(REST)
    if rest is not None:
        exact = _checked(rest)
        if exact is not None:
            return exact
    listed: list[bytes] = []
    if pairs.get(FORMAT) == "1":
        listed.append(encode_one(p.PAYLOAD_FORMAT, 1))
    content_type = pairs.get(props.CONTENT_TYPE) or pairs.get(props.CE_PREFIX + _CE_CONTENT)
    if content_type:
        _list(listed, p.CONTENT_TYPE, content_type)
    reply_to = pairs.get(props.REPLY_TO)
    if reply_to and not {"+", "#"} & set(reply_to):
        _list(listed, p.RESPONSE_TOPIC, reply_to)
    correlation = pairs.get(props.CORRELATION_ID)
    if correlation:
        _list(listed, p.CORRELATION_DATA, correlation)
    for name, value in pairs.items():
        if name.startswith(props.CE_PREFIX):
            foreign: str | None = name[len(props.CE_PREFIX) :]
            if foreign == _CE_CONTENT:
                continue
        else:
            foreign = props.foreign_name_of(name)
        if foreign is not None and "\0" not in foreign and "\0" not in value:
            _list(listed, p.USER, [(foreign, value)])
    return b"".join(listed)


def _list(listed: list[bytes], identifier: int, value: object) -> None:
    """What no string of MQTT can hold, over 65,535 bytes or a surrogate, is left out."""
    try:
        listed.append(encode_one(identifier, value))
    except ValueError:
        return


def _checked(rest: str) -> bytes | None:
    """A stored list if it is one: a native client may write what it likes."""
    try:
        listed = base64.b64decode(rest, validate=True)
        data = encode_length(len(listed)) + listed
        found, _ = decode_properties(data, 0, len(data), c.PUBLISH)
    except (binascii.Error, ValueError, MalformedPacket):
        return None
    return None if any(identifier in found for identifier in _NOT_PASSED_ON) else listed
