"""Procedures of several port calls in a row, written as generators and driven by the calls' own answers.

For what happens per connection or subscription, never per message. A procedure yields `call(port.method, arguments...)` and gets
the result back; a GantryError is raised at the yield. `Serial` runs the procedures of one client id one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final

from gantrymq.broker.port import Done
from gantrymq.model.errors import GantryError

Call = Callable[[object, Done], None]
Steps = Generator[Call, Any, None]


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


def call(method: Callable[..., None], *arguments: object) -> Call:
    """A port method with its arguments, waiting for token and on_done."""
    return lambda token, on_done: method(*arguments, token, on_done)


def pause(later: Callable[[Callable[[], None]], None]) -> Call:
    """A call that is answered in the next loop turn; `later` hands a callback to it."""
    return lambda token, on_done: later(partial(on_done, token, None))


class _Run:
    __slots__ = ("_answered", "_inside", "_on_end", "_result", "_steps")

    def __init__(self, steps: Steps, on_end: Callable[[GantryError | None], None]) -> None:
        self._steps = steps
        self._on_end = on_end
        self._inside = False
        self._answered = False
        self._result: Any = None

    def done(self, token: object, result: Any) -> None:
        if self._inside:
            # Answered before the call returned: `advance` goes on in its loop, so that nothing recurses.
            self._answered = True
            self._result = result
        else:
            self.advance(result)

    def advance(self, result: Any) -> None:
        self._inside = True
        ended: GantryError | None = None
        while True:
            try:
                failed = isinstance(result, GantryError)
                following = self._steps.throw(result) if failed else self._steps.send(result)
            except StopIteration:
                break
            except GantryError as error:
                ended = error
                break
            self._answered = False
            following(None, self.done)
            if not self._answered:
                self._inside = False
                return
            result = self._result
        self._on_end(ended)


def run(steps: Steps, on_end: Callable[[GantryError | None], None]) -> None:
    """Run a procedure; `on_end` gets the error that it let through, or None."""
    _Run(steps, on_end).advance(None)


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
