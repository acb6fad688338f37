"""What a gateway registers so that the broker can route without knowing its rules.

Entry-point group `gantrymq.routes`: name = kind, value = a class without constructor arguments that satisfies `RouteSet`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gantrymq.model.message import Message


class RouteSet(Protocol):
    """All routes of one kind, indexed for matching. Pure data structure: no clock, no I/O."""

    kind: str
    read_more: bool
    """Whether the last `match` depended on more of the message than topic, exchange and tag, so that its result must not be remembered."""

    def add(self, number: int, topic: str | None, expression: str) -> bool:
        """Add route `number` (unique, any int). True if it reads more of the message than topic, exchange and tag, so that
        results for its topic must not be cached. Raises GantryError(ILLEGAL_ARGUMENT) for a bad expression."""

    def home(self, expression: str) -> str | None:
        """Topic that a route without one is about all the same, so that the topic is not unused; None: none in particular."""

    def leading_to(self, topic: str) -> Iterable[str]:
        """Other topics whose matches go on with the routes of this one (an exchange bound to an exchange)."""

    def remove(self, number: int) -> None:
        """Forget a route; unknown numbers are ignored."""

    def match(self, message: Message) -> Iterable[int]:
        """Numbers of the routes that `message` matches; duplicates are allowed. Reads `topic`, `exchange`, `tag`, and the
        properties only if some route's `add` returned True or `read_more` says so afterwards."""
