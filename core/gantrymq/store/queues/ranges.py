"""Which offsets of a queue are known: a few ranges, joined where they touch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

RANGES_MAX: Final = 16
"""Ranges remembered of one queue: so many readers of different parts of it, each going on behind what it knows. Beyond, the shortest is forgotten."""


class Ranges:
    """Half-open ranges of offsets, ascending and apart from each other; at most `RANGES_MAX`."""

    __slots__ = ("_begins", "_ends")

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, first: int, end: int) -> None:
        """The offsets `first` to `end` (exclusive) are known."""
        if first >= end:
            return
        low = bisect_left(self._ends, first)  # ranges before this end before it
        high = bisect_right(self._begins, end)  # ranges from this on begin behind it
        if low < high:
            first, end = min(first, self._begins[low]), max(end, self._ends[high - 1])
        self._begins[low:high] = [first]
        self._ends[low:high] = [end]
        if len(self._begins) > RANGES_MAX:
            sizes = [end - begin for begin, end in zip(self._begins, self._ends, strict=True)]
            shortest = min((size, place) for place, size in enumerate(sizes) if place != low)[1]
            del self._begins[shortest], self._ends[shortest]

    def covers(self, first: int, end: int) -> bool:
        """Whether all these offsets are known."""
        place = bisect_right(self._begins, first) - 1
        return place >= 0 and end <= self._ends[place]
