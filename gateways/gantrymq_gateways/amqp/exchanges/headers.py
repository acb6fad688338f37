"""Bindings of headers exchanges: which tables of headers match (RabbitMQ: rabbit_exchange_type_headers)."""

from __future__ import annotations

from typing import Any, Final

from gantrymq_gateways.amqp.wire.constants import PRECONDITION_FAILED, AmqpError
from gantrymq_gateways.amqp.wire.values import Field, Table, lookup, text_of

MATCH: Final = "x-match"
_RULES: Final = ("all", "any", "all-with-x", "any-with-x")
_KINDS: Final = {**dict.fromkeys("bBsuIilL", "integer"), **dict.fromkeys("fdD", "float")}
"""Numbers of different sizes are the same; an integer is no float, and a text no number."""


def comparable(field: Field) -> tuple[str, Any]:
    """What is compared of a value."""
    value = field.value
    if field.kind == "A":
        value = tuple([comparable(item) for item in value])
    elif field.kind == "F":
        value = tuple([(name, comparable(item)) for name, item in value])
    return _KINDS.get(field.kind, field.kind), value


def rule_of(arguments: Table) -> str:
    """`x-match`; without one `all`. Raises AmqpError as RabbitMQ does."""
    field = lookup(arguments, MATCH)
    if field is None:
        return "all"
    if field.kind != "S":
        kind = "signedint" if field.kind in "Ii" else field.kind
        raise AmqpError(
            PRECONDITION_FAILED, f"Invalid x-match field type {kind} (value {text_of(field)}); expected longstr"
        )
    rule = text_of(field)
    if rule not in _RULES:
        text = f'Invalid x-match field value <<"{rule}">>; expected all, any, all-with-x, or any-with-x'
        raise AmqpError(PRECONDITION_FAILED, text)
    return rule


class HeadersMatch:
    """What a binding's arguments ask for. A void value asks for the name alone."""

    __slots__ = ("_any", "_wanted")

    def __init__(self, arguments: Table) -> None:
        rule = rule_of(arguments)
        self._any = rule.startswith("any")
        with_x = rule.endswith("-with-x")
        self._wanted = [
            (name, None if field.kind == "V" else comparable(field))
            for name, field in arguments
            if name != MATCH and (with_x or not name.startswith("x-"))
        ]

    def matches(self, headers: dict[str, tuple[str, Any]]) -> bool:
        """`headers`: by name, `comparable`. `all` of nothing is true, `any` of nothing is not."""
        for name, wanted in self._wanted:
            found = headers.get(name)
            agrees = found is not None and (wanted is None or found == wanted)
            if agrees is self._any:
                return self._any
        return not self._any
