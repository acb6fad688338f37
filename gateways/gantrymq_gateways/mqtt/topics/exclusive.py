"""Names of exclusive subscriptions: `$exclusive/<filter>`, which one client has at a time."""

from __future__ import annotations

from typing import Final

from gantrymq.model.errors import ErrorCode, GantryError

PREFIX: Final = "$exclusive/"


def is_exclusive(text: str) -> bool:
    """Whether a filter is that of an exclusive subscription, a well-formed one or not."""
    return text.startswith(PREFIX) or text == PREFIX[:-1]


def check_exclusive(text: str) -> None:
    """Raise GantryError(NAME_INVALID) for one that is none."""
    wanted = text.removeprefix(PREFIX)
    if wanted == text or not wanted:
        raise GantryError(ErrorCode.NAME_INVALID, f"filter {text[:128]!r}: no topic filter follows $exclusive/")
    if wanted.startswith("$"):
        raise GantryError(ErrorCode.NAME_INVALID, f"filter {text[:128]!r}: topics that begin with $ are not exclusive")


def plain(text: str) -> str:
    """The topic filter of an exclusive subscription; any other text as it is."""
    return text.removeprefix(PREFIX)
