"""Whether a client id is still this gateway's."""

from __future__ import annotations

from typing import Final

NO_FILTERS: Final[dict[str, bytes]] = {}
"""Of a client id that has claimed no row; never added to."""


class Hold:
    """A client id that this gateway has, until somebody else takes it: from then on its row and its places are theirs to change."""

    __slots__ = ("_lost", "filters", "given_back", "row")

    def __init__(self) -> None:
        self._lost = False
        self.row: bytes | None = None
        """The session's row since it was claimed (rows.py)..."""
        self.filters = NO_FILTERS
        """... and by filter those of filters that have their own."""
        self.given_back: frozenset[int] = frozenset()
        """Light queues that the row says the session gives its place in back, and where that is done."""

    def lose(self, name: str) -> None:
        """The lease was taken away."""
        self._lost = True

    def is_lost(self) -> bool:
        return self._lost
