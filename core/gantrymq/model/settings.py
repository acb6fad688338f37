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
) -> T:
    """A dataclass field. `least` and `most` are allowed values themselves; `set_as`: the setting of another section that it comes from.

    Without `help` the docstring below the field says what it is.
    """
    told = {"help": help, "min": least, "max": most, "allowed": allowed, "set_as": set_as}
    metadata = {key: value for key, value in told.items() if value not in (None, "")}
    if isinstance(default, list):
        return field(default_factory=partial(copy, default), metadata=metadata)
    return field(default=default, metadata=metadata)
