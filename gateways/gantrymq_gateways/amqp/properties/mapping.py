"""AMQP messages as native ones and back (docs/mapping/amqp.md): exchange, routing key, expiry and body.

Property lists have modules of their own: `reading.py` on the way in, `writing.py` on the way out.
"""

from __future__ import annotations

from typing import Final

from gantrymq.model import names
from gantrymq.model import properties as props
from gantrymq.model.compression import inflate
from gantrymq.model.errors import GantryError
from gantrymq.model.limits import BODY_BYTES_CEILING
from gantrymq.model.message import Message
from gantrymq_gateways.amqp.origin import DEFAULT_EXCHANGE
from gantrymq_gateways.amqp.wire.constants import PRECONDITION_FAILED, AmqpError

KEY: Final = "GANTRY_AMQP_KEY"
"""Routing key of a message to the default exchange whose topic is a shortened name, which cannot be turned back."""

_EXPIRES: Final = props.EXPIRES_AT.encode()


def native_target(exchange: str, tag: str, key: str) -> bytes:
    """Properties that say where an AMQP message was published to; `key`: only where topic and tag do not tell it."""
    return props.encode(
        ((props.TAGS, tag), (props.EXCHANGE, exchange or DEFAULT_EXCHANGE), (props.ORIGIN, "amqp"), (KEY, key))
    )


def expires_at(at_ms: int) -> bytes:
    """The property for an absolute expiry."""
    return b"%s\x01%d\x02" % (_EXPIRES, at_ms)


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
