"""The keys of a table in pages, so that it can be walked in slices while it changes.

A dict cannot: an iterator over one ends with the first key that comes or goes, and a list of a million keys takes 20 ms in one call.
Here every key stands once, in one page. One that is deleted stays in its page as a dead one until a walk or a sweep comes by; if
it comes back before that, it lives again in its old place. Costs 8 bytes per row.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE_KEYS: Final = 512
"""A walk or sweep looks at so many keys in one piece: some 20 us."""
DEAD_MIN: Final = 1024
"""Dead keys begin to be swept when there are more than this, and more than there are rows."""


class TableKeys:
    """Of one table. `rows`: the table itself, never changed here."""

    def __init__(self, rows: dict[str, bytes]) -> None:
        self._rows = rows
        self._dead: set[str] = set()
        self._walked: list[list[str]] = []
        """Pages that the walk under way is done with."""
        self._walks = 0
        self._walking = 0
        """Number of the walk under way."""
        keys = iter(rows)
        self._pages: deque[list[str]] = deque()
        while page := list(islice(keys, PAGE_KEYS)):
            self._pages.append(page)

    @property
    def dead(self) -> int:
        """Keys without a row that still stand in a page."""
        return len(self._dead)

    def added(self, key: str) -> None:
        """The key has a row and had none before."""
        if key in self._dead:
            self._dead.discard(key)
        elif self._pages and len(self._pages[-1]) < PAGE_KEYS:
            self._pages[-1].append(key)
        else:
            self._pages.append([key])

    def removed(self, key: str) -> None:
        """The key has no row any more."""
        self._dead.add(key)
        if len(self._dead) > DEAD_MIN and len(self._dead) > len(self._rows) and self._pages and not self._walking:
            self._keep(self._live(self._pages.popleft()), self._pages)

    def walk(self) -> Iterator[list[str]]:
        """Every key that has a row from now to the walk's end, a page at a time; others may come too. A new walk ends an older one."""
        self._finish_walk()
        number = self._walking = self._walks = self._walks + 1
        try:
            for _ in range(len(self._pages)):
                page = self._live(self._pages.popleft())
                self._keep(page, self._walked)
                yield list(page)
                if self._walking != number:
                    return
        finally:
            if self._walking == number:
                self._finish_walk()

    def _finish_walk(self) -> None:
        self._pages.extend(self._walked)
        self._walked = []
        self._walking = 0

    def _live(self, page: list[str]) -> list[str]:
        dead = self._dead
        if not dead:
            return page
        live = [key for key in page if key not in dead]
        if len(live) < len(page):
            dead.difference_update(page)
        return live

    @staticmethod
    def _keep(page: list[str], pages: deque[list[str]] | list[list[str]]) -> None:
        if pages and len(pages[-1]) + len(page) <= PAGE_KEYS:
            pages[-1] += page
        elif page:
            pages.append(page)
