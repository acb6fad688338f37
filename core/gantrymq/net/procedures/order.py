"""Procedures that must not run beside each other, and how much one may do at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from gantrymq.model.errors import GantryError
from gantrymq.net.procedures.driver import Call, Done, Steps, run

TURN_WORK: Final = 2048
"""Units of about a microsecond that a procedure may do before the others have their turn: half of what the pump gives one peer (`TURN_S`)."""


class Work:
    """Counts what one procedure did in this loop turn. `if work.spend(units): yield pause` where much may be asked for at once."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = TURN_WORK

    def spend(self, units: int) -> bool:
        """Note work that was done; True when it is enough for one turn (then the next turn's begins)."""
        self._left -= units
        if self._left > 0:
            return False
        self._left = TURN_WORK
        return True


End = Callable[[GantryError | None], None]


class _Line:
    """Procedures of one name: one runs, the others wait."""

    __slots__ = ("error", "running", "waiting", "walking")

    def __init__(self) -> None:
        self.waiting: deque[tuple[Steps, End]] = deque()
        self.running = False
        self.walking = False
        """`Serial._walk` is below on the stack and goes on by itself."""
        self.error: GantryError | None = None


class Serial:
    """Procedures by name, one at a time per name, in the order they were handed over."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    def put(self, name: str, steps: Steps, on_end: End) -> None:
        """Run now if nothing of that name runs, else after what does."""
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line()
        line.waiting.append((steps, on_end))
        if not line.running and not line.walking:
            self._walk(name, line)

    def busy(self, name: str) -> bool:
        """True while a procedure of that name runs."""
        return name in self._lines

    def _walk(self, name: str, line: _Line) -> None:
        """Run procedures until one has to wait for an answer; a loop, so that many that need not wait never pile up."""
        line.walking = True
        while line.waiting:
            steps, on_end = line.waiting.popleft()
            line.running = True
            run(steps, partial(self._ended, name, line, on_end))
            if line.running:
                line.walking = False
                return
            if not line.waiting:
                # Over before its end is told, so that what is put then runs at once.
                del self._lines[name]
                on_end(line.error)
                return
            on_end(line.error)

    def _ended(self, name: str, line: _Line, on_end: End, error: GantryError | None) -> None:
        line.running = False
        line.error = error
        if line.walking:
            return
        if line.waiting:
            line.walking = True
            on_end(error)
            self._walk(name, line)
        else:
            del self._lines[name]
            on_end(error)


class Lock:
    """Lets one chain at a time work on a name; the others wait in order. Taken with `yield lock.take(name)`."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[Any, Done]]] = {}
        self._freed: deque[str] = deque()
        self._handing = False

    def take(self, name: str) -> Call:
        """A call that is answered when the name is free."""

        def call(token: Any, on_done: Done) -> None:
            waiting = self._waiting.get(name)
            if waiting is None:
                self._waiting[name] = deque()
                on_done(token, None)
            else:
                waiting.append((token, on_done))

        return call

    def free(self, name: str) -> None:
        """Hand the name to the next in line. In a loop: hundreds may wait, and each may be done, and free it, at once."""
        self._freed.append(name)
        if self._handing:
            return
        self._handing = True
        try:
            while self._freed:
                self._hand_over(self._freed.popleft())
        finally:
            self._handing = False

    def _hand_over(self, name: str) -> None:
        waiting = self._waiting[name]
        if waiting:
            token, on_done = waiting.popleft()
            on_done(token, None)
        else:
            del self._waiting[name]
