"""`$from/<when>/<filter>`: a subscription that begins in the past. `<when>`: `earliest`, milliseconds since the epoch, or a time as ISO 8601 writes it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from gantrymq.broker.port import EARLIEST, Start
from gantrymq.model.errors import ErrorCode, GantryError

PREFIX: Final = "$from/"

MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, as far as ISO 8601 goes."""


def is_past(text: str) -> bool:
    """Whether a filter is such a subscription, a well-formed one or not."""
    return text.startswith(PREFIX) or text == PREFIX[:-1]


def split_past(text: str) -> tuple[Start, str]:
    """(where it begins, the filter). Raises GantryError(NAME_INVALID)."""
    when, _, wanted = text.removeprefix(PREFIX).partition("/")
    why = ""
    start = EARLIEST
    if when != "earliest":
        at_ms = _milliseconds(when)
        start = Start("time", at_ms)
        if at_ms < 0:
            why = (
                f"{when[:40]!r} is neither earliest nor milliseconds since 1970 nor a time such as 2026-01-31T12:00:00Z"
            )
    first_level = wanted.partition("/")[0]
    if not wanted:
        why = why or "no topic filter follows the time"
    elif first_level in ("+", "#"):
        why = why or "the first level of its filter must have no wildcard"
    elif first_level.startswith("$"):
        why = why or "topics that begin with $ have no past here"
    if why:
        raise GantryError(ErrorCode.NAME_INVALID, f"filter {text[:128]!r}: {why}")
    return start, wanted


def _milliseconds(when: str) -> int:
    """Since the epoch; -1 for what is no time. Without an offset it is UTC."""
    if when.isascii() and when.isdigit():
        return int(when) if len(when) <= 15 and int(when) <= MS_MAX else -1
    try:
        at = datetime.fromisoformat(when)
    except ValueError:
        return -1
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(-1, int(at.timestamp() * 1000))
