"""Messages with properties that ask the broker for something: `CC`, `BCC`, `x-delay`, and a reply without a queue.

They are rare, so their property list is taken apart, changed and put together again; all others pass as bytes (`properties/reading.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gantrymq.model import properties as props
from gantrymq.model.errors import GantryError
from gantrymq_gateways.amqp.origin import tag_of
from gantrymq_gateways.amqp.properties.reading import Content, PropertyReader
from gantrymq_gateways.amqp.wire.constants import DIRECT_REPLY_TO, FRAME_ERROR, PRECONDITION_FAILED, AmqpError
from gantrymq_gateways.amqp.wire.content import decode_properties, encode_properties
from gantrymq_gateways.amqp.wire.values import ERLANG_TYPES, Field, Table, lookup

DELAY: Final = "x-delay"
DELAY_MS_MAX: Final = 0xFFFFFFFF
"""RabbitMQ's plug-in takes 32 bits; longer ones are delivered at once there and refused here."""
KEYS_MAX: Final = 256
"""CC and BCC together: each is looked up when the message is routed."""

_INTEGERS: Final = frozenset("bBsuIilL")


@dataclass(slots=True)
class Special:
    """`content`: what is stored; `keys`: further routing keys; `delay_ms`: 0 for none."""

    content: Content
    keys: list[str]
    delay_ms: int


class SpecialReader:
    """Reads such lists for one user."""

    def __init__(self, user: str) -> None:
        self._reader = PropertyReader(user, special=True)

    def read(self, raw: bytes, reply_queue: str, delayed: bool) -> Special:
        """`reply_queue`: of the channel's consumer of direct replies, empty without one; `delayed`: the exchange keeps `x-delay`. Raises
        AmqpError."""
        try:
            properties = decode_properties(raw)
        except ValueError as error:
            raise AmqpError(FRAME_ERROR, f"content header is not understood: {error}", connection=True) from None
        headers = properties.headers or []
        keys = _keys(headers, "CC") + _keys(headers, "BCC")
        if len(keys) > KEYS_MAX:
            raise AmqpError(PRECONDITION_FAILED, f"CC and BCC have {len(keys)} keys, at most {KEYS_MAX} are allowed")
        delay_ms = _delay(headers) if delayed else 0
        if keys or delay_ms:
            properties.headers = [_kept(name, field, delay_ms) for name, field in headers if name != "BCC"]
        if properties.reply_to == DIRECT_REPLY_TO:
            if not reply_queue:
                raise AmqpError(PRECONDITION_FAILED, "fast reply consumer does not exist")
            properties.reply_to = reply_queue
        return Special(self._reader.read(encode_properties(properties)), keys, delay_ms)


def _kept(name: str, field: Field, delay_ms: int) -> tuple[str, Field]:
    """As the plug-in does: who gets the message sees a negative delay, so that publishing it again does not delay it again."""
    return name, Field("l", -delay_ms) if name == DELAY and delay_ms else field


def _keys(headers: Table, name: str) -> list[str]:
    field = lookup(headers, name)
    if field is None:
        return []
    if field.kind != "A" or any(item.kind != "S" for item in field.value):
        kind = ERLANG_TYPES[field.kind]
        text = f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}'
        raise AmqpError(PRECONDITION_FAILED, text)
    return [bytes(item.value).decode("utf-8", "replace") for item in field.value]


def _delay(headers: Table) -> int:
    field = lookup(headers, DELAY)
    if field is None:
        return 0
    if field.kind in _INTEGERS or (field.kind == "S" and bytes(field.value).isdigit() and len(field.value) < 20):
        delay_ms = int(field.value)
    else:
        return 0
    if delay_ms > DELAY_MS_MAX:
        raise AmqpError(PRECONDITION_FAILED, f"invalid {DELAY} {delay_ms}: at most {DELAY_MS_MAX} milliseconds")
    return max(delay_ms, 0)


def origin_keys(keys: list[str]) -> str:
    """Value of `props.ORIGIN_KEYS`. Raises AmqpError for a key that no tag can hold."""
    try:
        return " ".join(["=" + tag_of(key) for key in keys])
    except GantryError as error:
        raise AmqpError(PRECONDITION_FAILED, error.text) from error


def delay_property(delay_ms: int) -> bytes:
    """What keeps a message until then."""
    return b"TIMER_DELAY_MS\x01%d\x02" % delay_ms


def keys_property(text: str) -> bytes:
    """The property of further keys."""
    return props.encode({props.ORIGIN_KEYS: text})
