"""Bytes of the bodies of a queue's entries, as running sums: any range in one subtraction, 8 bytes an entry."""

from __future__ import annotations

from array import array
from typing import Final

TRIM_MIN: Final = 4096
"""Entries below the floor that are dropped together."""


class Sums:
    """Of the entries from `base` on, in order."""

    __slots__ = ("_totals", "base")

    def __init__(self, base: int) -> None:
        self.base = base
        self._totals = array("Q", (0,))

    def end(self) -> int:
        """The next offset to be added."""
        return self.base + len(self._totals) - 1

    def add(self, size: int) -> None:
        """The next entry."""
        self._totals.append(self._totals[-1] + size)

    def between(self, first: int, end: int) -> int:
        """Bytes of `first..end-1`, as far as they are known."""
        last = len(self._totals) - 1
        return self._totals[min(max(end - self.base, 0), last)] - self._totals[min(max(first - self.base, 0), last)]

    def trim(self, floor: int) -> None:
        """Nobody asks for what lies below."""
        if floor - self.base >= TRIM_MIN and floor <= self.end():
            del self._totals[: floor - self.base]
            self.base = floor


class BodyBytes:
    """A queue's: `old`, which a start reads again bit by bit, and what entered since."""

    __slots__ = ("new", "old")

    def __init__(self, floor: int, end: int) -> None:
        self.old = Sums(floor)
        self.new = Sums(end)

    def between(self, first: int, end: int) -> int:
        """As Sums.between."""
        return self.old.between(first, end) + self.new.between(first, end)

    def trim(self, floor: int) -> None:
        """As Sums.trim."""
        self.old.trim(floor)
        self.new.trim(floor)
