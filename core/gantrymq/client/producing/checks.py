"""What a message may be made of: the one place where a producer's arguments are looked at, before anything is sent.

Everything is typed, but not every caller checks types; and what separates properties on the wire would change the message unseen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import BODY_BYTES_CEILING, TAG_BYTES_MAX
from gantrymq.model.names import check_topic

if TYPE_CHECKING:
    from gantrymq.client.messages import OutMessage

DELAY_LEVELS: Final = 18
"""Levels of RocketMQ's messageDelayLevel: 1s 5s 10s 30s 1m ... 10m 20m 30m 1h 2h."""
TAG_BAR: Final = "||"

_RESERVED: Final = frozenset({props.MULTI_DISPATCH, props.MULTI_QUEUE_OFFSET})
_SEPARATORS: Final = ("\x01", "\x02")
_WHOLE: Final = ("flag", "born_ms", "delay_level", "deliver_at_ms", "priority")


def check_message(message: OutMessage) -> None:
    """Raise NAME_INVALID, ILLEGAL_ARGUMENT or MESSAGE_TOO_LARGE for what no broker takes, naming the parameter and what to do."""
    if not hasattr(message, "sharding_key"):
        raise _refused("message", message, "must be an OutMessage: OutMessage(topic, body)")
    if not isinstance(message.topic, str):
        raise _refused("topic", message.topic, "must be a str: the topic's name")
    check_topic(message.topic)
    if not hasattr(message.body, "hex"):  # bytes and what is like them
        raise _refused("body", message.body, "must be bytes: encode it")
    if len(message.body) > BODY_BYTES_CEILING:
        text = f"body: it has {len(message.body)} bytes, at most {BODY_BYTES_CEILING} are allowed"
        raise GantryError(ErrorCode.MESSAGE_TOO_LARGE, text)
    if message.tag or message.tag is None:
        check_tag(message.tag)
    if message.keys or message.keys is None:
        _check_keys(message)
    if message.properties:
        _check_properties(message.properties)
    if message.sharding_key or message.sharding_key is None:
        check_text("sharding_key", message.sharding_key)
    _check_rest(message)


def check_tag(tag: object) -> None:
    """Raise NAME_INVALID or ILLEGAL_ARGUMENT for what cannot be a message's tag."""
    text = check_text("tag", tag)
    if TAG_BAR in text:
        raise GantryError(
            ErrorCode.NAME_INVALID,
            f"tag {text!r}: a message has one tag, and `a || b` is how consumers ask for several; send it with one of them, or use keys or properties",
        )
    if len(text.encode("utf-8", "surrogatepass")) > TAG_BYTES_MAX:
        raise GantryError(ErrorCode.NAME_INVALID, f"tag: it has over {TAG_BYTES_MAX} bytes")


def check_text(name: str, value: object) -> str:
    """`value`, which must be a text without the separators of properties. `name`: the parameter. Raises ILLEGAL_ARGUMENT."""
    if not isinstance(value, str):
        raise _refused(name, value, 'must be a str: str(...), or "" for none')
    for separator in _SEPARATORS:
        if separator in value:
            text = f"{name} {value!r}: it holds U+000{ord(separator)}, which separates properties; take it out, or put the text into the body"
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
    return value


def _check_keys(message: OutMessage) -> None:
    keys: object = message.keys
    if isinstance(keys, str):
        check_text("keys", keys)
        return
    if isinstance(keys, bytes) or not isinstance(keys, Iterable):
        raise _refused("keys", keys, "must be a str, or several in a list")
    message.keys = tuple(keys)  # an iterator has them once, and a message may be sent again
    check_keys(message.keys)


def check_keys(keys: Iterable[object]) -> None:
    """Raise ILLEGAL_ARGUMENT for what cannot be one of a message's keys."""
    for key in keys:
        text = check_text("keys", key)
        if not text or text.split() != [text]:
            why = f"keys: {key!r} in a list is empty or holds a space, which separates keys; replace it"
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, why)


def _check_properties(pairs: object) -> None:
    if not isinstance(pairs, Mapping):
        raise _refused("properties", pairs, 'must be a dict of texts: {"name": "value"}')
    for name, value in pairs.items():
        if not isinstance(name, str):
            raise _refused(f"properties: the name {name!r}", name, "must be a str")
        if not isinstance(value, str):
            raise _refused(f"properties[{name!r}]", value, f'must be a str: "{value}"')
        check_text("properties: the name", name)
        check_text(f"properties[{name!r}]", value)
        if name in _RESERVED:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"property {name!r} is the store's own and cannot be sent")


def _check_rest(message: OutMessage) -> None:
    for name in _WHOLE:
        if not isinstance(getattr(message, name), int):
            raise _refused(name, getattr(message, name), "must be an int")
    if not isinstance(message.deliver_after_s, int | float):
        raise _refused("deliver_after_s", message.deliver_after_s, "must be a number of seconds")
    if message.queue is not None and not isinstance(message.queue, MessageQueue):
        raise _refused("queue", message.queue, "must be a MessageQueue: MessageQueue(topic, broker, number)")
    if message.queue is not None and message.queue.topic != message.topic:
        text = f"queue {message.queue}: it is of another topic than the message, {message.topic!r}"
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
    delays = (message.delay_level, message.deliver_at_ms, message.deliver_after_s)
    if any(delays) and (sum(map(bool, delays)) > 1 or min(delays) < 0 or message.delay_level > DELAY_LEVELS):
        text = f"delay_level, deliver_at_ms, deliver_after_s {delays}: allowed is one of them, a level of 1 to {DELAY_LEVELS}"
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)


def _refused(name: str, value: object, fix: str) -> GantryError:
    kind = "None" if value is None else f"{type(value).__name__} {value!r:.40}"
    return GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"{name} is {kind}: it {fix}")
