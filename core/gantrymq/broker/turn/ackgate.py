"""AckGate: an acknowledgement waits for a position of the log, not for a return (DESIGN: one entry per batch).

With asynchronous flush the gate is already open. With synchronous flush (of the store, or of a topic that says so) entries wait, in
order, until the flushed position passes theirs; one call of `advance` per fdatasync answers all of them. A failed flush fails
every open entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from gantrymq.model.errors import GantryError
from gantrymq.net.turn import log_failed

Answer = Callable[[Any, Any], None]


def answer(on_done: Answer, token: Any, result: Any) -> None:
    """Call it. One that raises is logged: it must not cost those behind it their answer."""
    try:
        on_done(token, result)
    except Exception as error:
        log_failed(on_done, error)


class AckGate:
    """Entries in order of position."""

    __slots__ = ("_failed", "_open", "_parked", "released")

    def __init__(self, always_open: bool) -> None:
        self._open = always_open
        self._parked: deque[tuple[int, Answer, Any, Any]] = deque()
        self._failed: GantryError | None = None
        self.released = 0
        """Everything up to this position is as safe as the rule promises."""

    def park(self, position: int, on_done: Answer, token: Any, result: Any, strict: bool | None = None) -> bool:
        """Answer now if the gate is open at `position` (True), else when it is. `strict`: wait for the flush; None: the store's rule."""
        if self._failed is not None:
            answer(on_done, token, self._failed)
            return True
        if (self._open if strict is None else not strict) or position <= self.released:
            answer(on_done, token, result)
            return True
        self._parked.append((position, on_done, token, result))
        return False

    def passes(self, position: int, strict: bool) -> bool:
        """True if an entry at `position` would be answered at once, and well."""
        return self._failed is None and (not strict or position <= self.released)

    def set_open(self, always_open: bool) -> None:
        """Change the rule; what waits goes on waiting."""
        self._open = always_open

    def advance(self, position: int) -> None:
        """The promise holds up to `position`: answer all entries at or below it."""
        if position <= self.released:
            return
        self.released = position
        parked = self._parked
        while parked and parked[0][0] <= position:
            _, on_done, token, result = parked.popleft()
            answer(on_done, token, result)

    def fail(self, error: GantryError) -> None:
        """Nothing more can be promised: every open entry and every later one gets `error`."""
        self._failed = error
        parked, self._parked = self._parked, deque()
        for _, on_done, token, _ in parked:
            answer(on_done, token, error)

    def waiting(self) -> int:
        """Open entries."""
        return len(self._parked)
