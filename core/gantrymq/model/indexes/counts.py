"""Counts: a number for each of very many ids that lie close together; 5 bytes each instead of a dict's 80."""

from __future__ import annotations

from array import array
from typing import Final

PAGE_SHIFT: Final = 6
PAGE: Final = 1 << PAGE_SHIFT
PAGE_MASK: Final = PAGE - 1
_EMPTY: Final = array("I", bytes(4 * PAGE))


class Counts:
    """By id, from 0 on."""

    __slots__ = ("_pages", "total")

    def __init__(self) -> None:
        self._pages: dict[int, array[int]] = {}
        self.total = 0
        """Of all ids."""

    def __getitem__(self, number: int) -> int:
        page = self._pages.get(number >> PAGE_SHIFT)
        return page[number & PAGE_MASK] if page is not None else 0

    def add(self, number: int, step: int) -> int:
        """Count up or down, not below 0: what it is then."""
        page = self._pages.get(number >> PAGE_SHIFT)
        if page is None:
            page = self._pages[number >> PAGE_SHIFT] = _EMPTY[:]
        before = page[number & PAGE_MASK]
        count = page[number & PAGE_MASK] = max(before + step, 0)
        self.total += count - before
        if not count and not any(page):
            del self._pages[number >> PAGE_SHIFT]
        return count

    def clear(self) -> None:
        """Begin anew."""
        self._pages.clear()
        self.total = 0
