"""Values in SQL92 expressions as RocketMQ compares them: text of properties read as Java's numbers, and Java's order of doubles.

Properties are text. Next to a number of the expression the text must be a number of the same kind (Integer.valueOf, Long.valueOf,
Double.valueOf); text that is none ends the evaluation, and the record does not pass (ExpressionMessageFilter).
"""

from __future__ import annotations

import re
from typing import Final

INT_BITS: Final = 32
LONG_BITS: Final = 64

_DIGITS_MAX: Final = 40
"""Longer numbers lose their leading zeros before they are read: Python refuses to read more than 4300 digits."""

_DOUBLE: Final = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)\Z")
_HEX_DOUBLE: Final = re.compile(r"[+-]?0[xX](?:[0-9A-Fa-f]+\.?|[0-9A-Fa-f]*\.[0-9A-Fa-f]+)[pP][+-]?[0-9]+[fFdD]?\Z")
_JAVA_SPACE: Final = "".join(map(chr, range(33)))
"""What String.trim() removes."""


class EvaluationError(Exception):
    """The expression has no value for this record: RocketMQ's evaluation throws here, and the record does not pass."""


def to_int(text: str, bits: int) -> int:
    """Integer.valueOf (32 bits) or Long.valueOf (64): an optional sign and digits, within the range."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isdecimal() or (not digits.isascii() and max(digits) > "\uffff"):
        raise EvaluationError(f"{text[:40]!r} is not a whole number")
    if len(digits) > _DIGITS_MAX:
        digits = digits.lstrip("0") or "0"
        if len(digits) > _DIGITS_MAX:
            raise EvaluationError(f"{text[:40]!r} is out of range")
    value = -int(digits) if text[0] == "-" else int(digits)
    limit = 1 << (bits - 1)
    if not -limit <= value < limit:
        raise EvaluationError(f"{text[:40]!r} is out of range")
    return value


def to_double(text: str) -> float:
    """Double.valueOf: decimal or hexadecimal, `NaN`, `Infinity`, an f or d behind it, spaces around it."""
    text = text.strip(_JAVA_SPACE)
    if _DOUBLE.match(text):
        return float(text if text[-1] not in "fFdD" else text[:-1])
    if _HEX_DOUBLE.match(text):
        try:
            return float.fromhex(text if text[-1] not in "fFdD" else text[:-1])
        except OverflowError:
            return float("-inf") if text[0] == "-" else float("inf")
    raise EvaluationError(f"{text[:40]!r} is not a number")


def to_boolean(text: str) -> bool:
    """Boolean.valueOf: `true` in any case, all else is false."""
    return text.lower() == "true"


def order(left: float, right: float) -> int:
    """Double.compareTo: -0.0 before 0.0, NaN behind everything and equal to itself."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return _sign(left) - _sign(right) if left == 0.0 else 0
    return (left != left) - (right != right)


def _sign(zero: float) -> int:
    return 0 if str(zero)[0] == "-" else 1
