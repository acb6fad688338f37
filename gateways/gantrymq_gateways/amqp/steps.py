"""Steps: a chain of port calls written as a generator, for the rare operations that need several answers in a row.

Each `yield` hands over a call that takes `(token, on_done)`; the value of the `yield` is its result, and a `GantryError` is raised
there. Answers may come before the call returns. Nothing on the path of a message uses this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from gantrymq.broker.port import Done
from gantrymq.model.errors import GantryError

Call = Callable[[Any, Done], None]
Steps = Generator[Call, Any, Any]


class Runner:
    """Drives one generator to its end, then calls `finished(error)` with the exception that ended it, or None."""

    __slots__ = ("_answer", "_answered", "_finished", "_running", "_steps")

    def __init__(self, steps: Steps, finished: Callable[[Exception | None], None]) -> None:
        self._steps = steps
        self._finished = finished
        self._running = False
        self._answered = True
        self._answer: Any = None

    def run(self) -> None:
        """Start, or go on after an answer. Answers that come at once are taken in a loop, not on the stack."""
        self._running = True
        while self._answered:
            self._answered = False
            answer, self._answer = self._answer, None
            try:
                steps = self._steps
                call = steps.throw(answer) if isinstance(answer, GantryError) else steps.send(answer)
            except StopIteration:
                self._finished(None)
                return
            except Exception as error:  # handed to the caller, which answers on the wire
                self._finished(error)
                return
            call(None, self._done)
        self._running = False

    def _done(self, _token: Any, result: Any) -> None:
        self._answer = result
        self._answered = True
        if not self._running:
            self.run()


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
