"""Parts of a SQL92 expression as closures over a record's encoded properties.

A part is one of four kinds, known when it is built: so is what must be converted to compare two of them (RocketMQ's
ComparisonExpression finds that out for each record). At run time a property is text or None, a boolean part True, False or None
(unknown); EvaluationError where Java throws.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from gantrymq.model.sql.values import INT_BITS, EvaluationError, order, to_boolean, to_double, to_int

Run = Callable[[bytes], Any]
Value = str | bool | int | float | None

CONSTANT: Final = "constant"
PROPERTY: Final = "property"
BOOLEAN: Final = "boolean"
NOTHING: Final = "nothing"
"""Minus before what is no number: always unknown."""


class ExpressionError(ValueError):
    """The text is no expression; the message says where and why."""


class Node:
    """A part. `literal`: a constant as written; a negated number is a constant that is not checked like one (as in Java)."""

    __slots__ = ("bits", "depth", "kind", "literal", "run", "value")

    def __init__(
        self, kind: str, run: Run, depth: int = 0, value: Value = None, bits: int = INT_BITS, literal: bool = False
    ) -> None:
        self.kind = kind
        self.run = run
        self.depth = depth
        self.value = value
        self.bits = bits
        self.literal = literal

    def __str__(self) -> str:
        if self.kind == CONSTANT:
            return repr(self.value)[:40] if self.value is not None else "NULL"
        return f"a {self.kind}"


Make = Callable[[Node, Node], Node]


def _is_number(value: Value) -> bool:
    return type(value) is int or type(value) is float


def constant(value: Value, bits: int = INT_BITS) -> Node:
    """A literal; `bits` of a whole number: 32 or 64."""
    return Node(CONSTANT, lambda data: value, 0, value, bits, True)


def prop(name: str) -> Node:
    """A property: its text, or None where it is missing or empty. Of a repeated name the last one counts."""
    first = f"{name}\x01".encode()
    mark = b"\x02" + first
    length = len(mark)

    def run(data: bytes) -> str | None:
        at = data.rfind(mark)
        if at < 0:
            if not data.startswith(first):
                return None
            at = -1
        at += length
        end = data.find(b"\x02", at)
        value = data[at:end] if end >= 0 else data[at:]
        return value.decode("utf-8", "replace") if value else _before(data, first)

    return Node(PROPERTY, run)


def _before(data: bytes, first: bytes) -> str | None:
    """A pair without a value does not count (MessageDecoder.string2messageProperties): an earlier one may."""
    for pair in reversed(data.split(b"\x02")):
        if pair.startswith(first) and len(pair) > len(first):
            return pair[len(first) :].decode("utf-8", "replace")
    return None


def boolean(node: Node) -> Node:
    """The part as a condition: a property alone is text, and so false or unknown."""
    if node.kind == BOOLEAN or (node.kind == CONSTANT and node.literal and type(node.value) in (bool, type(None))):
        return node
    if node.kind != PROPERTY:
        raise ExpressionError(f"{node} is no condition")
    read = node.run
    return Node(BOOLEAN, lambda data: None if read(data) is None else False, node.depth + 1)


def all_of(parts: list[Node]) -> Node:
    """AND of conditions: false as soon as one is, unknown if one is."""
    runs = [part.run for part in parts]
    depth = 1 + max([part.depth for part in parts])
    if len(runs) == 2:
        first, second = runs

        def both(data: bytes) -> bool | None:
            left = first(data)
            if left is False:
                return False
            right = second(data)
            if right is False:
                return False
            return None if left is None or right is None else True

        return Node(BOOLEAN, both, depth)

    def run(data: bytes) -> bool | None:
        known: bool | None = True
        for part in runs:
            value = part(data)
            if value is False:
                return False
            if value is None:
                known = None
        return known

    return Node(BOOLEAN, run, depth)


def any_of(parts: list[Node]) -> Node:
    """OR of conditions: true as soon as one is, unknown if one is."""
    runs = [part.run for part in parts]

    def run(data: bytes) -> bool | None:
        known: bool | None = False
        for part in runs:
            value = part(data)
            if value is True:
                return True
            if value is None:
                known = None
        return known

    return Node(BOOLEAN, run, 1 + max([part.depth for part in parts]))


def inverted(node: Node) -> Node:
    """NOT of a condition."""
    inner = node.run

    def run(data: bytes) -> bool | None:
        value = inner(data)
        return None if value is None else not value

    return Node(BOOLEAN, run, node.depth + 1)


def negated(node: Node) -> Node:
    """Minus: a number, or unknown for all else."""
    value = node.value
    if node.kind == CONSTANT and _is_number(value):
        minus = -value  # type: ignore[operator]
        return Node(CONSTANT, lambda data: minus, 0, minus, node.bits)
    inner = node.run

    def run(data: bytes) -> None:
        inner(data)  # may have no value at all

    return Node(NOTHING, run, node.depth + 1)


# Equality.


def equal(left: Node, right: Node) -> Node:
    """`=`; NULL is compared by IS NULL alone."""
    for node in (left, right):
        if node.kind == CONSTANT and node.value is None:
            raise ExpressionError("NULL cannot be compared: use IS NULL")
    if left.literal and right.literal and type(left.value) is bool and type(right.value) is not bool:
        raise ExpressionError(f"{left} cannot be compared with {right}")
    return Node(BOOLEAN, _equality(left, right), 1 + max(left.depth, right.depth))


def not_equal(left: Node, right: Node) -> Node:
    """`<>`."""
    return inverted(equal(left, right))


def is_null(node: Node, negative: bool) -> Node:
    """IS NULL, IS NOT NULL."""
    inner = node.run
    if negative:
        return Node(BOOLEAN, lambda data: inner(data) is not None, node.depth + 1)
    return Node(BOOLEAN, lambda data: inner(data) is None, node.depth + 1)


def _equality(left: Node, right: Node) -> Run:
    if left.kind == PROPERTY and right.kind == CONSTANT:
        read, wanted = left.run, right.value
        if type(wanted) is str:

            def is_text(data: bytes) -> bool | None:
                text = read(data)
                return None if text is None else text == wanted

            return is_text
        if type(wanted) is not bool:
            return _number_test(read, operator.eq, right)
    first, second = left.run, right.run
    same = _same(left, right)

    def run(data: bytes) -> bool | None:
        one, other = first(data), second(data)
        if other is None:
            return one is None
        return None if one is None else same(one, other)

    return run


def _same(left: Node, right: Node) -> Callable[[Any, Any], bool]:
    """How two values that are there are compared (ComparisonExpression.__compare)."""
    kinds = (_sort(left), _sort(right))
    if kinds[0] == "text":
        if kinds[1] == "text":
            return operator.eq
        if kinds[1] == "boolean":
            return lambda text, value: to_boolean(text) is value
        if kinds[1] == "number":
            return _text_and_number(right.value, right.bits)
    elif kinds[0] == "boolean":
        if kinds[1] == "boolean":
            return operator.is_
        if kinds[1] == "text":
            return _no_value  # Java casts the boolean to a String here
    elif kinds[0] == "number":
        if kinds[1] == "text":
            test = _text_and_number(left.value, left.bits)
            return lambda number, text: test(text, number)
        if kinds[1] == "number":
            answer = _order_numbers(left.value, right.value) == 0
            return lambda one, other: answer
    return lambda one, other: False


def _sort(node: Node) -> str:
    if node.kind == PROPERTY or type(node.value) is str:
        return "text"
    if node.kind == BOOLEAN or type(node.value) is bool:
        return "boolean"
    return "number" if node.kind == CONSTANT else NOTHING


def _no_value(one: Any, other: Any) -> bool:
    raise EvaluationError("a condition cannot be compared with text")


def _text_and_number(number: Value, bits: int) -> Callable[[Any, Any], bool]:
    if type(number) is float:
        return lambda text, value: order(to_double(text), number) == 0
    return lambda text, value: to_int(text, bits) == number


def _order_numbers(left: Any, right: Any) -> int:
    if type(left) is int and type(right) is int:
        return (left > right) - (left < right)
    return order(float(left), float(right))


# Order.


def _number_test(read: Run, test: Callable[[Any, Any], bool], number: Node) -> Run:
    """A property against a number. No double of an expression is zero, so Python's order is Java's but for NaN."""
    wanted = number.value
    if type(wanted) is float:
        of_nan = test(1, 0)  # NaN is behind every number

        def is_double(data: bytes) -> bool | None:
            text = read(data)
            if text is None:
                return None
            value = to_double(text)
            return test(value, wanted) if value == value else of_nan

        return is_double
    bits = number.bits

    def is_int(data: bytes) -> bool | None:
        text = read(data)
        if text is None:
            return None
        value = int(text) if len(text) < 10 and text.isdigit() and text.isascii() else to_int(text, bits)
        return test(value, wanted)

    return is_int


def _ordering(test: Callable[[Any, Any], bool], mirrored: Callable[[Any, Any], bool]) -> Make:
    def make(left: Node, right: Node) -> Node:
        for node in (left, right):
            if node.kind == BOOLEAN or (node.literal and not _is_number(node.value)):
                raise ExpressionError(f"{node} cannot be compared by <, <=, > and >=: only properties and numbers can")
        depth = 1 + max(left.depth, right.depth)
        if left.kind == PROPERTY and right.kind == CONSTANT:
            return Node(BOOLEAN, _number_test(left.run, test, right), depth)
        if left.kind == CONSTANT and right.kind == PROPERTY:
            return Node(BOOLEAN, _number_test(right.run, mirrored, left), depth)
        if left.kind == CONSTANT and right.kind == CONSTANT:
            answer = test(_order_numbers(left.value, right.value), 0)
            return Node(BOOLEAN, lambda data: answer, depth)
        first, second = left.run, right.run

        def run(data: bytes) -> bool | None:
            one = first(data)
            if one is None:
                return None
            other = second(data)
            # Two texts: as doubles. (All other pairs have a constant, or a part that is unknown.)
            return None if other is None else test(order(to_double(one), to_double(other)), 0)

        return Node(BOOLEAN, run, depth)

    return make


_greater: Final = _ordering(operator.gt, operator.lt)
_greater_or_equal: Final = _ordering(operator.ge, operator.le)
_less: Final = _ordering(operator.lt, operator.gt)
_less_or_equal: Final = _ordering(operator.le, operator.ge)

ORDERINGS: Final[dict[str, Make]] = {
    ">": _greater, ">=": _greater_or_equal, "<": _less, "<=": _less_or_equal,
}  # fmt: skip


def between(value: Node, low: Node, high: Node, negative: bool) -> Node:
    """BETWEEN and NOT BETWEEN; the bounds of BETWEEN must be in order if both are written out."""
    if negative:
        return any_of([_less(value, low), _greater(value, high)])
    written = low.literal and high.literal and _is_number(low.value) and _is_number(high.value)
    if written and _order_numbers(high.value, low.value) < 0:
        raise ExpressionError(f"BETWEEN {low} AND {high}: the first must not be above the second")
    return all_of([_greater_or_equal(value, low), _less_or_equal(value, high)])


# Text.


def text_test(kind: str, node: Node, wanted: str, negative: bool) -> Node:
    """CONTAINS, STARTSWITH, ENDSWITH and their negations: false for what is no text and for an empty string."""
    depth = node.depth + 1
    if not wanted:
        return Node(BOOLEAN, lambda data: False, depth)
    read = node.run

    def run(data: bytes) -> bool:
        text = read(data)
        if type(text) is not str:
            return False
        if kind == "CONTAINS":
            return (wanted in text) is not negative
        return (text.startswith(wanted) if kind == "STARTSWITH" else text.endswith(wanted)) is not negative

    return Node(BOOLEAN, run, depth)


def is_in(node: Node, wanted: frozenset[str], negative: bool) -> Node:
    """IN and NOT IN: unknown for a property that is missing."""
    read = node.run

    def run(data: bytes) -> bool | None:
        text = read(data)
        return None if text is None else (text in wanted) is not negative

    return Node(BOOLEAN, run, node.depth + 1)
