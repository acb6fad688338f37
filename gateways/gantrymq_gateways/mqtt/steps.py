"""Procedures of several port calls in a row, written as generators and driven by the calls' own answers.

For what happens per connection or subscription, never per message. A procedure yields `call(port.method, arguments...)` and gets
the result back; a GantryError is raised at the yield. `Serial` runs the procedures of one client id one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from gantrymq.broker.port import Done
from gantrymq.model.errors import GantryError

Call = Callable[[object, Done], None]
Steps = Generator[Call, Any, None]


def call(method: Callable[..., None], *arguments: object) -> Call:
    """A port method with its arguments, waiting for token and on_done."""
    return lambda token, on_done: method(*arguments, token, on_done)


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


class Serial:
    """Procedures by name, one at a time per name, in the order they were handed over."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[Steps, Callable[[GantryError | None], None]]]] = {}

    def put(self, name: str, steps: Steps, on_end: Callable[[GantryError | None], None]) -> None:
        """Run now if nothing of that name runs, else after what does."""
        waiting = self._waiting.get(name)
        if waiting is not None:
            waiting.append((steps, on_end))
            return
        self._waiting[name] = deque()
        self._start(name, steps, on_end)

    def busy(self, name: str) -> bool:
        """True while a procedure of that name runs."""
        return name in self._waiting

    def _start(self, name: str, steps: Steps, on_end: Callable[[GantryError | None], None]) -> None:
        def ended(error: GantryError | None) -> None:
            try:
                on_end(error)
            finally:
                waiting = self._waiting[name]
                if waiting:
                    self._start(name, *waiting.popleft())
                else:
                    del self._waiting[name]

        run(steps, ended)
