"""The `x-` arguments of queue.declare: one table says type, range, what RabbitMQ answers, and which are compared when a queue is declared again.

What an argument does is in its queue's policy (`policy_of`), which the broker keeps; see docs/mapping/amqp.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gantrymq.model import properties as props
from gantrymq.model.queue_policy import Policy
from gantrymq_gateways.amqp.origin import KIND, full_name, own_prefix
from gantrymq_gateways.amqp.wire.constants import PRECONDITION_FAILED, AmqpError
from gantrymq_gateways.amqp.wire.values import ERLANG_TYPES, Field, Table, lookup, read_table, text_of

log = logging.getLogger(__name__)

INTEGERS: Final = frozenset("bBsuIilL")
EXPIRY_MS_MAX: Final = 0xFFFFFFFF
"""RabbitMQ: MAX_EXPIRY_TIMER."""
DELIVERY_LIMIT: Final = 20
"""Of a quorum queue that names none (RabbitMQ 4), where `amqp.delivery_limit` says nothing."""

SEGMENT_BYTES_MAX: Final = 3_000_000_000
"""RabbitMQ: MAX_STREAM_MAX_SEGMENT_SIZE."""
AGE_UNITS: Final = {
    "Y": 365 * 86_400_000, "M": 30 * 86_400_000, "D": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000,
}  # fmt: skip
"""Milliseconds of the units of an interval."""
AGE_DIGITS_MAX: Final = 9

DEDUPLICATED_BY: Final = props.foreign_name("x-deduplication-header")
"""A header of messages, as a native property."""
PRIORITIES_MAX: Final = 255
"""RabbitMQ: MAX_SUPPORTED_PRIORITY."""
PRIORITY_MAX: Final = 0x7FFFFFFF
"""Of a consumer, either way: what is beyond counts as this."""

Check = Callable[[Field, Table], str]
"""What is wrong with a value, as RabbitMQ writes it; empty: nothing."""


def _kind(field: Field) -> str:
    return ERLANG_TYPES[field.kind]


def _integer(field: Field, _all: Table) -> str:
    return "" if field.kind in INTEGERS else f'"expected integer, got {_kind(field)}"'


def _natural(field: Field, table: Table) -> str:
    wrong = _integer(field, table)
    return wrong or (f"{{value_negative,{field.value}}}" if field.value < 0 else "")


def _expiry(field: Field, table: Table) -> str:
    wrong = _natural(field, table)
    return wrong or (f"{{value_too_large,{field.value}}}" if field.value > EXPIRY_MS_MAX else "")


def _lifetime(field: Field, table: Table) -> str:
    wrong = _expiry(field, table)
    return wrong or ("{value_zero,0}" if not field.value else "")


def _highest(field: Field, table: Table) -> str:
    wrong = _natural(field, table)
    return wrong or (f"{{max_value_exceeded,{field.value}}}" if field.value > PRIORITIES_MAX else "")


def _text(field: Field, _all: Table) -> str:
    return "" if field.kind == "S" else f"{{unacceptable_type,{_kind(field)}}}"


def _exchange(_field: Field, _all: Table) -> str:
    return ""  # RabbitMQ looks at its type before, and has other words for it


def _dead_key(field: Field, table: Table) -> str:
    wrong = _text(field, table)
    missing = lookup(table, "x-dead-letter-exchange") is None
    return wrong or ("routing_key_but_no_dlx_defined" if missing else "")


def _flag(field: Field, _all: Table) -> str:
    return "" if field.kind == "t" else f"{{unacceptable_type,{_kind(field)}}}"


def interval_ms(text: str) -> int | None:
    """Milliseconds of `7D`, `12h` and the like; None for another text."""
    number, unit = text[:-1], text[-1:]
    if unit not in AGE_UNITS or not number.isascii() or not number.isdecimal() or len(number) > AGE_DIGITS_MAX:
        return None
    return int(number) * AGE_UNITS[unit] or None


def _age(field: Field, table: Table) -> str:
    wrong = _text(field, table)
    return wrong or ("" if interval_ms(text_of(field)) is not None else "invalid_max_age")


def _one_of(error: str, *allowed: str) -> Check:
    def check(field: Field, table: Table) -> str:
        wrong = _text(field, table)
        return wrong or ("" if text_of(field) in allowed else error.replace("%s", text_of(field)))

    return check


def _type(field: Field, table: Table) -> str:
    wrong = _text(field, table)
    return wrong or ("" if text_of(field) in _EVERY else f"\"unsupported queue type '{text_of(field)}'\"")


_EVERY: Final = frozenset(("classic", "quorum", "stream"))
"""Types of queues."""
_STREAM: Final = frozenset(("stream",))


@dataclass(frozen=True, slots=True)
class Argument:
    """`compared`: a declaration with another value is not the same queue's. `effect`: false where it changes nothing here. `on`: types of queues that
    may have it."""

    check: Check
    compared: bool = True
    effect: bool = True
    on: frozenset[str] = _EVERY - _STREAM


ARGUMENTS: Final[dict[str, Argument]] = {
    "x-message-ttl": Argument(_expiry),
    "x-expires": Argument(_lifetime),
    "x-max-length": Argument(_natural),
    "x-max-length-bytes": Argument(_natural, on=_EVERY),
    "x-overflow": Argument(_one_of("invalid_overflow", "drop-head", "reject-publish", "reject-publish-dlx")),
    "x-dead-letter-exchange": Argument(_exchange),
    "x-dead-letter-routing-key": Argument(_dead_key),
    "x-dead-letter-strategy": Argument(_one_of("invalid_dlx_strategy", "at-most-once", "at-least-once")),
    "x-delivery-limit": Argument(_integer),
    "x-queue-type": Argument(_type, on=_EVERY),
    "x-max-age": Argument(_age, on=_STREAM),
    "x-stream-max-segment-size-bytes": Argument(_natural, effect=False, on=_STREAM),
    "x-stream-filter-size-bytes": Argument(_natural, compared=False, effect=False, on=_STREAM),
    "x-initial-cluster-size": Argument(_natural, compared=False, effect=False, on=_STREAM),
    "x-single-active-consumer": Argument(_flag),
    "x-max-priority": Argument(_highest),
    "x-message-deduplication": Argument(_flag),
    "x-queue-mode": Argument(_one_of("\"unsupported queue mode '%s'\"", "default", "lazy"), effect=False),
    "x-queue-version": Argument(_natural, compared=False, effect=False),
    "x-queue-master-locator": Argument(_text, compared=False, effect=False),
    "x-queue-leader-locator": Argument(_text, compared=False, effect=False, on=_EVERY),
    "x-quorum-initial-group-size": Argument(_natural, compared=False, effect=False),
    "x-quorum-target-group-size": Argument(_natural, compared=False, effect=False),
    "x-max-in-memory-length": Argument(_natural, compared=False, effect=False),
    "x-max-in-memory-bytes": Argument(_natural, compared=False, effect=False),
    "x-consumer-timeout": Argument(_natural, on=_EVERY),
}
"""By name. Others are ignored, as RabbitMQ does."""


def check_arguments(name: str, arguments: Table, durable: bool, exclusive: bool, auto_delete: bool = False) -> None:
    """Of a queue that is new. Raises AmqpError with RabbitMQ's words."""
    _check_values(name, arguments)
    kind = type_of(arguments)
    for key, _ in arguments:
        if key in ARGUMENTS and kind not in ARGUMENTS[key].on:
            text = f"invalid arg '{key}' for queue '{name}' in vhost '/' of queue type rabbit_{kind}_queue"
            raise AmqpError(PRECONDITION_FAILED, text)
    if kind == "classic":
        return
    unfit = {"auto-delete": auto_delete, "exclusive-owner": exclusive, "non-durable": not durable}
    wrong = [each for each in unfit if unfit[each]]
    if wrong:
        raise AmqpError(PRECONDITION_FAILED, f"invalid property '{wrong[0]}' for queue '{name}' in vhost '/'")
    size = lookup(arguments, "x-stream-max-segment-size-bytes")
    if size is not None and size.value > SEGMENT_BYTES_MAX:
        raise AmqpError(PRECONDITION_FAILED, "Exceeded max value for x-stream-max-segment-size-bytes")


def _check_values(name: str, arguments: Table) -> None:
    letters = lookup(arguments, "x-dead-letter-exchange")
    if letters is not None and letters.kind != "S":
        text = f"invalid type '{_kind(letters)}' for arg 'x-dead-letter-exchange' in queue '{name}' in vhost '/'"
        raise AmqpError(PRECONDITION_FAILED, text)
    for key, field in arguments:
        known = ARGUMENTS.get(key)
        if known is None or not known.effect:
            if key.startswith("x-"):
                log.info("amqp: queue %r: argument %s changes nothing here and is ignored", name, key)
            if known is None:
                continue
        if wrong := known.check(field, arguments):
            raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{key}' for queue '{name}' in vhost '/': {wrong}")


def check_same(name: str, received: Table, current: bytes) -> None:
    """Of a queue that exists: RabbitMQ compares what it knows. Raises AmqpError."""
    now = parse(current)
    for key, argument in ARGUMENTS.items():
        wanted, found = lookup(received, key), lookup(now, key)
        if argument.compared and _value(key, wanted) != _value(key, found):
            same_type = wanted is not None and found is not None and _type_class(wanted) == _type_class(found)
            show = _said if same_type else _shown
            text = f"received {show(wanted)} but current is {show(found)}"
            raise AmqpError(PRECONDITION_FAILED, f"inequivalent arg '{key}' for queue '{name}' in vhost '/': {text}")


def _value(key: str, field: Field | None) -> Any:
    """What is compared: integers of any type; no queue type is `classic`."""
    if field is None:
        return b"classic" if key == "x-queue-type" else None
    return bytes(field.value) if field.kind == "S" else field.value


def _type_class(field: Field) -> str:
    """RabbitMQ names the types only where these differ."""
    return "integer" if field.kind in INTEGERS else field.kind


def _said(field: Field | None) -> str:
    return "none" if field is None else f"'{text_of(field)}'"


def _shown(field: Field | None) -> str:
    return "none" if field is None else f"the value '{text_of(field)}' of type '{_kind(field)}'"


def parse(arguments: bytes) -> Table:
    """As they were stored."""
    return read_table(arguments, 0, len(arguments))[0] if arguments else []


def is_single(arguments: Table) -> bool:
    """Whether one of its consumers at a time is served."""
    field = lookup(arguments, "x-single-active-consumer")
    return field is not None and field.value is True


def is_unique(arguments: Table) -> bool:
    """Whether messages with a key that is in the queue do not enter."""
    field = lookup(arguments, "x-message-deduplication")
    return field is not None and field.value is True


def consumer_priority(queue: str, arguments: Table) -> int:
    """`x-priority` of basic.consume; whatever else is there changes nothing, as with RabbitMQ. Raises AmqpError."""
    field = lookup(arguments, "x-priority")
    if field is None:
        return 0
    if wrong := _integer(field, arguments):
        text = f"invalid arg 'x-priority' for queue '{queue}' in vhost '/': {wrong}"
        raise AmqpError(PRECONDITION_FAILED, text)
    return max(-PRIORITY_MAX, min(int(field.value), PRIORITY_MAX))


def consumer_timeout(arguments: bytes) -> int | None:
    """Milliseconds that a delivery may wait for its answer; 0: for ever; None: the queue does not say."""
    field = lookup(parse(arguments), "x-consumer-timeout")
    return int(field.value) if field is not None else None


def type_of(arguments: Table) -> str:
    """`classic`, `quorum` or `stream`."""
    field = lookup(arguments, "x-queue-type")
    return text_of(field) if field is not None else "classic"


def is_quorum(arguments: Table) -> bool:
    """Whether it counts deliveries."""
    return type_of(arguments) == "quorum"


def is_stream(arguments: Table) -> bool:
    """Whether its messages stay when they are read."""
    return type_of(arguments) == "stream"


def policy_of(
    name: str, arguments: bytes, table: str, auto_delete: bool = False, delivery_limit: int = DELIVERY_LIMIT
) -> Policy | None:
    """What the broker does for the queue; None: nothing. `table`: where its row is; `auto_delete`: others than its own connection consume from it;
    `delivery_limit`: of a quorum queue that names none, below 0 for none."""
    values = parse(arguments)

    def number(key: str) -> int | None:
        field = lookup(values, key)
        return int(field.value) if field is not None else None

    def text(key: str) -> str | None:
        field = lookup(values, key)
        return text_of(field) if field is not None else None

    if is_stream(values):
        age, row = text("x-max-age"), (table, name)
        age_ms = interval_ms(age) if age is not None else None
        return Policy(name=name, message_ttl_ms=age_ms, max_bytes=number("x-max-length-bytes"), stream=True, row=row)
    limit = number("x-delivery-limit")
    if limit is None and is_quorum(values):
        limit = delivery_limit
    exchange = text("x-dead-letter-exchange")
    if exchange:
        exchange = full_name(own_prefix(name), exchange)
    policy = Policy(
        name=name,
        message_ttl_ms=number("x-message-ttl"),
        expires_ms=number("x-expires"),
        max_length=number("x-max-length"),
        max_bytes=number("x-max-length-bytes"),
        overflow=text("x-overflow") or "drop-head",  # type: ignore[arg-type]
        priorities=number("x-max-priority") or None,
        delivery_limit=limit if limit is not None and limit >= 0 else None,
        dead_kind=KIND if exchange is not None else "",
        dead_target={"exchange": exchange, "key": text("x-dead-letter-routing-key")} if exchange is not None else {},
        auto_delete=auto_delete,
        unique_by=DEDUPLICATED_BY if is_unique(values) else "",
        dead_keep=text("x-dead-letter-strategy") == "at-least-once" and text("x-overflow") == "reject-publish",
        row=(table, name),
    )
    return None if policy == Policy(name=name, row=policy.row) else policy
