"""Types of exchanges, what their arguments mean, and what a binding of each may look like."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gantrymq_gateways.amqp.exchanges.graph import HASHED_PROPERTIES
from gantrymq_gateways.amqp.exchanges.hashing import WEIGHTS_MAX
from gantrymq_gateways.amqp.exchanges.headers import rule_of
from gantrymq_gateways.amqp.wire.constants import PRECONDITION_FAILED, AmqpError
from gantrymq_gateways.amqp.wire.values import ERLANG_TYPES, Field, Table, lookup, read_table, text_of

ROUTED_TYPES: Final = {
    "direct": "direct",
    "fanout": "fanout",
    "topic": "topic",
    "headers": "headers",
    "x-consistent-hash": "x-consistent-hash",
    "x-modulus-hash": "x-modulus-hash",
    "x-random": "x-random",
    "x-local-random": "x-random",
}
"""Type of an exchange to how its bindings are matched."""
DELAYED_TYPE: Final = "x-delayed-message"
TYPES: Final = frozenset({*ROUTED_TYPES, DELAYED_TYPE})

ALTERNATE: Final = "alternate-exchange"
_DELAYED_AS: Final = "x-delayed-type"
_HASH_HEADER: Final = "hash-header"
_HASH_PROPERTY: Final = "hash-property"


@dataclass(frozen=True, slots=True)
class Rules:
    """What type and arguments of an exchange mean. `routed`: how bindings are matched; `alternate`: empty for none."""

    routed: str
    delayed: bool = False
    alternate: str = ""
    hash_header: str = ""
    hash_property: str = ""


@lru_cache(maxsize=1024)
def rules_of(kind: str, arguments: bytes) -> Rules:
    """Of an exchange that exists."""
    table, _ = read_table(arguments, 0, len(arguments)) if arguments else ([], 0)
    delayed = kind == DELAYED_TYPE
    if delayed:
        kind = _text(table, _DELAYED_AS)
    header, hashed = _text(table, _HASH_HEADER), _text(table, _HASH_PROPERTY)
    return Rules(ROUTED_TYPES.get(kind, "direct"), delayed, _text(table, ALTERNATE), header, hashed)


def _text(table: Table, name: str) -> str:
    field = lookup(table, name)
    return text_of(field) if field is not None and field.kind == "S" else ""


def check_exchange(name: str, kind: str, arguments: Table) -> None:
    """A declaration of a new one. Raises AmqpError."""
    if kind == DELAYED_TYPE and _text(arguments, _DELAYED_AS) not in ROUTED_TYPES:
        raise AmqpError(PRECONDITION_FAILED, f"Invalid argument, '{_DELAYED_AS}' must be an existing exchange type")
    field = lookup(arguments, ALTERNATE)
    if field is not None and field.kind != "S":
        text = f"invalid arg '{ALTERNATE}' for exchange '{name}' in vhost '/': {{unacceptable_type,{ERLANG_TYPES[field.kind]}}}"
        raise AmqpError(PRECONDITION_FAILED, text)
    if kind == "x-consistent-hash":
        hashed = _text(arguments, _HASH_PROPERTY)
        if hashed and _text(arguments, _HASH_HEADER):
            raise AmqpError(PRECONDITION_FAILED, f'"{_HASH_PROPERTY}" and "{_HASH_HEADER}" are mutually exclusive')
        if hashed and hashed not in HASHED_PROPERTIES:
            raise AmqpError(PRECONDITION_FAILED, f"Unsupported property: {hashed}")


def check_same_arguments(name: str, received: Table, current: bytes) -> None:
    """A declaration of one that exists: RabbitMQ compares the alternate exchange and nothing else."""
    now = lookup(read_table(current, 0, len(current))[0], ALTERNATE) if current else None
    wanted = lookup(received, ALTERNATE)
    if wanted != now:
        text = f"inequivalent arg '{ALTERNATE}' for exchange '{name}' in vhost '/': received {_shown(wanted)} but current is {_shown(now)}"
        raise AmqpError(PRECONDITION_FAILED, text)


def _shown(field: Field | None) -> str:
    return "none" if field is None else f"the value '{text_of(field)}' of type '{ERLANG_TYPES[field.kind]}'"


def check_binding(routed: str, key: str, arguments: Table, others: Iterable[str]) -> None:
    """A new binding; `others`: keys of those that the exchange has. Raises AmqpError."""
    if routed == "headers":
        rule_of(arguments)
    elif routed == "x-consistent-hash":
        if not key.isdecimal() or not key.isascii() or not int(key):
            raise AmqpError(PRECONDITION_FAILED, f"The binding key must be an integer greater than 0: '{key}'")
        total = int(key) + sum([int(other) for other in others if other.isdecimal()])
        if total > WEIGHTS_MAX:
            text = f"the weights of an exchange's bindings are {total} together, at most {WEIGHTS_MAX} are allowed"
            raise AmqpError(PRECONDITION_FAILED, text)
