"""AMQP messages as native ones and back (docs/mapping/amqp.md).

In: exchange and routing key become topic and tag, shared properties and text headers native properties; the exact property list is
kept only where those cannot rebuild it. Out: the same backwards, and messages of other doors as AMQP shows them. Pure functions;
`publish.py` and `consumers.py` cache their results.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Final

from gantrymq.model import names
from gantrymq.model import properties as props
from gantrymq.model.compression import inflate
from gantrymq.model.errors import GantryError
from gantrymq.model.limits import BODY_BYTES_CEILING, PROPERTIES_BYTES_MAX
from gantrymq.model.message import Message
from gantrymq_gateways.amqp.constants import DIRECT_REPLY_TO, FRAME_ERROR, PRECONDITION_FAILED, AmqpError
from gantrymq_gateways.amqp.content import Properties, decode_properties, encode_properties
from gantrymq_gateways.amqp.routes import DEFAULT_EXCHANGE, DIRECT_TOPIC
from gantrymq_gateways.amqp.values import SHORTSTR_BYTES_MAX, Field, Table, shortstr

HEADER_BYTES_MAX: Final = 16 * 1024
"""An exact property list above this is refused: base64 makes it 22 KiB of the 32 KiB that a record has for properties."""

NATIVE_BYTES_MAX: Final = PROPERTIES_BYTES_MAX - 4096
"""Room for the dispatch list of up to 64 queues stays free."""

TTL_MS_MAX: Final = 0xFFFFFFFF
"""RabbitMQ's largest expiration: 32 bits."""

NUMBER_DIGITS_MAX: Final = 18
"""Digits of a number in a property: milliseconds of any time that a client can name, and always 63 bits."""

KEY: Final = "GANTRY_AMQP_KEY"
"""Routing key of a message to the default exchange whose topic is a shortened name, which cannot be turned back."""

_INTEGER: Final = re.compile(r"-?[0-9]{1,20}\Z")
_CE_HEADER: Final = "ce-"
_EXPIRES: Final = props.EXPIRES_AT.encode()
_SHARED: Final = (
    ("content_type", props.CONTENT_TYPE),
    ("correlation_id", props.CORRELATION_ID),
    ("reply_to", props.REPLY_TO),
    ("message_id", props.MESSAGE_ID),
)
_REFUSED_HEADERS: Final = ("CC", "BCC")
"""Headers that ask RabbitMQ for further routing keys: not kept yet, so not accepted."""


@dataclass(slots=True)
class Content:
    """A property list as native properties. `ttl_ms`: lifetime after storing, -1 without end."""

    native: bytes
    ttl_ms: int


@dataclass(slots=True)
class Rendered:
    """A message as basic.deliver shows it. `tail`: exchange and routing key as shortstrs; `properties`: flags and fields;
    `expires_at_ms`: 0 for never."""

    tail: bytes
    properties: bytes
    expires_at_ms: int


def read_content(raw: bytes, user: str) -> Content:
    """Native properties for a property list. Raises AmqpError where RabbitMQ refuses a message, and for what is not kept yet."""
    try:
        properties = decode_properties(raw)
    except ValueError as error:
        raise AmqpError(FRAME_ERROR, f"content header is not understood: {error}", connection=True) from None
    if properties.user_id is not None and properties.user_id != user:
        text = f"user_id property set to '{properties.user_id}' but authenticated user was '{user}'"
        raise AmqpError(PRECONDITION_FAILED, text)
    if properties.reply_to == DIRECT_REPLY_TO:
        raise AmqpError(PRECONDITION_FAILED, "fast reply consumer does not exist")
    ttl_ms = -1
    if properties.expiration is not None:
        ttl_ms = _ttl(properties.expiration)
    for name, field in properties.headers or ():
        if name in _REFUSED_HEADERS:
            if field.kind != "A":
                kind = "longstr" if field.kind == "S" else field.kind
                raise AmqpError(
                    PRECONDITION_FAILED, f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}'
                )
            raise AmqpError(PRECONDITION_FAILED, f"header '{name}' is not supported")
    pairs = _native_pairs(properties)
    if encode_properties(_from_pairs(dict(pairs), properties.expiration)) != raw:
        if len(raw) > HEADER_BYTES_MAX:
            text = f"content header of {len(raw)} octets is larger than {HEADER_BYTES_MAX}"
            raise AmqpError(PRECONDITION_FAILED, text)
        pairs.append((props.AMQP_HEADER, base64.b64encode(raw).decode()))
    native = props.encode(pairs)
    if len(native) > NATIVE_BYTES_MAX:
        text = f"message properties of {len(native)} octets are larger than {NATIVE_BYTES_MAX}"
        raise AmqpError(PRECONDITION_FAILED, text)
    return Content(native, ttl_ms)


def _ttl(expiration: str) -> int:
    if _INTEGER.match(expiration) is None:
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{expiration}': no_integer")
    ttl_ms = int(expiration)
    if ttl_ms < 0:
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{expiration}': {{value_negative,{ttl_ms}}}")
    if ttl_ms > TTL_MS_MAX:
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{expiration}': {{value_too_big,{ttl_ms}}}")
    return ttl_ms


def _native_pairs(properties: Properties) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, native in _SHARED:
        value = getattr(properties, name)
        if value and _fits(value):
            pairs.append((native, value))
    if properties.priority is not None:
        pairs.append((props.PRIORITY, str(properties.priority)))
    if properties.delivery_mode == 1:
        pairs.append((props.QOS, "0"))
    for name, field in properties.headers or ():
        if field.kind == "S":
            try:
                value = bytes(field.value).decode()
            except UnicodeDecodeError:
                continue
            if value and _fits(value):
                pairs.append((props.foreign_name(name), value))
    return pairs


def _number(text: str) -> int:
    """A property's number, -1 for what is none: native producers write what they like, and `int` itself refuses 4,301 digits."""
    return int(text) if len(text) <= NUMBER_DIGITS_MAX and text.isascii() and text.isdecimal() else -1


def _fits(value: str) -> bool:
    return "\x01" not in value and "\x02" not in value


def _from_pairs(native: dict[str, str], expiration: str | None) -> Properties:
    """Properties that native ones stand for: an absent QoS is delivery mode 2."""
    headers: Table = []
    for name, value in native.items():
        foreign = props.foreign_name_of(name)
        if foreign is None:
            if not name.startswith(props.CE_PREFIX):
                continue
            foreign = _CE_HEADER + name[len(props.CE_PREFIX) :]
        if len(foreign.encode()) <= SHORTSTR_BYTES_MAX:
            headers.append((foreign, Field("S", value.encode())))
    priority = _number(native.get(props.PRIORITY, ""))
    return Properties(
        content_type=_short(native.get(props.CONTENT_TYPE) or native.get(props.CE_PREFIX + "datacontenttype")),
        headers=headers or None,
        delivery_mode=1 if native.get(props.QOS) == "0" else 2,
        priority=priority if 0 <= priority < 256 else None,
        correlation_id=_short(native.get(props.CORRELATION_ID)),
        reply_to=_short(native.get(props.REPLY_TO)),
        expiration=expiration,
        message_id=_short(native.get(props.MESSAGE_ID)),
    )


def _short(text: str | None) -> str | None:
    """At most 255 bytes, cut at a character."""
    if text is None or len(text) <= SHORTSTR_BYTES_MAX // 4:
        return text
    return text.encode("utf-8", "replace")[:SHORTSTR_BYTES_MAX].decode("utf-8", "ignore")


def native_target(exchange: str, tag: str, key: str) -> bytes:
    """Properties that say where an AMQP message was published to; `key`: only where topic and tag do not tell it."""
    return props.encode(
        ((props.TAGS, tag), (props.EXCHANGE, exchange or DEFAULT_EXCHANGE), (props.ORIGIN, "amqp"), (KEY, key))
    )


def expires_at(at_ms: int) -> bytes:
    """The property for an absolute expiry."""
    return b"%s\x01%d\x02" % (_EXPIRES, at_ms)


def render(message: Message, exchange_of: dict[str, str]) -> Rendered:
    """How AMQP shows a message. `exchange_of`: names of exchanges by topic, for topics whose name was shortened."""
    native = message.property_map()
    topic = message.topic
    expires_at_ms = max(_number(native.get(props.EXPIRES_AT, "")), 0)
    # A record that was read from the log has its exchange in the properties only.
    origin = message.exchange or native.get(props.EXCHANGE)
    if origin == DEFAULT_EXCHANGE:
        exchange = ""
        key = native.get(KEY) or names.decode_escapes(message.tag if topic == DIRECT_TOPIC else topic, "")
    else:
        exchange = origin or exchange_of.get(topic) or names.decode_escapes(topic, "")
        key = names.decode_escapes(message.tag, ".")
    tail = shortstr(_short(exchange) or "") + shortstr(_short(key) or "")
    exact = _exact(native.get(props.AMQP_HEADER))
    if exact is not None:
        return Rendered(tail, exact, expires_at_ms)
    expiration = str(max(expires_at_ms - message.born_ms, 0)) if expires_at_ms else None
    return Rendered(tail, encode_properties(_from_pairs(native, expiration)), expires_at_ms)


def _exact(text: str | None) -> bytes | None:
    """The property list that an AMQP publisher sent. Any native producer can write that property, so what no client could read
    (AMQP 4.2.6.1) does not count: it would end the connection of every consumer that it is delivered to."""
    if not text:
        return None
    try:
        exact = base64.b64decode(text, validate=True)
        decode_properties(exact)
    except ValueError:  # binascii.Error, MalformedError, Utf8Error and ValueTypeError are all one
        return None
    return exact if len(exact) <= HEADER_BYTES_MAX else None


def body_of(message: Message, bytes_max: int = BODY_BYTES_CEILING) -> bytes:
    """The data bytes: compressed bodies of RocketMQ clients inflated; broken and larger ones, and those that need a package which is
    not installed (extra `compression`), as they are."""
    try:
        return inflate(message.body, message.sys_flag, bytes_max)
    except GantryError:
        return message.body


def topic_of(name: str) -> str:
    """Native topic of an exchange's or queue's name. Raises AmqpError for U+0000."""
    try:
        return names.encode_topic(name)
    except GantryError as error:
        raise AmqpError(PRECONDITION_FAILED, error.text) from error
