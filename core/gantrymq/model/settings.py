"""One field of a section of settings (`gantrymq.config` reads them): its default, what it may be, and what it is in words."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from dataclasses import field
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


def setting(
    default: T,
    help: str = "",
    *,
    least: float | None = None,
    most: float | None = None,
    allowed: Collection[Any] | None = None,
    set_as: str = "",
    secret: bool = False,
) -> T:
    """A dataclass field. Without `help` the docstring below it says what it is.

    `least` and `most` are allowed values themselves; `set_as`: the setting of another section that it comes from; `secret`: shown nowhere.
    """
    told: dict[str, Any] = {
        "help": help,
        "min": least,
        "max": most,
        "allowed": allowed,
        "set_as": set_as,
        "secret": secret,
    }
    metadata = {key: value for key, value in told.items() if value is not None and value is not False and value != ""}
    if isinstance(default, list):
        return field(default_factory=partial(copy, default), metadata=metadata)
    return field(default=default, repr=not secret, metadata=metadata)


def is_part(section: type) -> bool:
    """Whether a section's dataclass (its `PART` says so) has only some keys of the section: another service has all of them."""
    return bool(getattr(section, "PART", False))
