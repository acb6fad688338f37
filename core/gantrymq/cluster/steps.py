"""Chains of port calls written as generators: `result = yield partial(port.call, argument)`; a failed call raises its GantryError."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from gantrymq.broker.port import Done
from gantrymq.model.errors import GantryError
from gantrymq.net.api import Wheel

Steps = Generator[Callable[[Any, Done], None], Any, Any]


class _Run:
    """One chain at work. Answers that come before the call returns are taken in a loop, not on the stack."""

    __slots__ = ("_answer", "_busy", "_on_done", "_steps")

    def __init__(self, steps: Steps, on_done: Callable[[Any], None]) -> None:
        self._steps = steps
        self._on_done = on_done
        self._busy = False
        self._answer: list[Any] = []

    def answered(self, _token: Any, result: Any) -> None:
        self._answer.append(result)
        if self._busy:
            return
        self._busy = True
        try:
            while self._answer:
                self._step(self._answer.pop())
        finally:
            self._busy = False

    def _step(self, result: Any) -> None:
        try:
            call = self._steps.throw(result) if isinstance(result, GantryError) else self._steps.send(result)
        except StopIteration as end:
            self._on_done(end.value)
        except GantryError as error:
            self._on_done(error)
        else:
            call(None, self.answered)


def run_steps(steps: Steps, on_done: Callable[[Any], None]) -> None:
    """Run a chain; `on_done` gets its return value or the GantryError that ended it, once."""
    _Run(steps, on_done).answered(None, None)


class Gathering:
    """Several calls at once: `on_done` gets the list of their results, in order, when the last one has answered."""

    __slots__ = ("_left", "_on_done", "_results")

    def __init__(self, calls: Sequence[Callable[[Any, Done], None]], on_done: Callable[[list[Any]], None]) -> None:
        self._left = len(calls)
        self._results: list[Any] = [None] * len(calls)
        self._on_done = on_done
        if not calls:
            on_done(self._results)
        for index, call in enumerate(calls):
            call(index, self._answered)

    def _answered(self, index: int, result: Any) -> None:
        self._results[index] = result
        self._left -= 1
        if not self._left:
            self._on_done(self._results)


def first_error(results: list[Any]) -> GantryError | None:
    """The first failure among results."""
    return next((result for result in results if isinstance(result, GantryError)), None)


def everywhere(calls: Sequence[Callable[[Any, Done], None]], token: Any, on_done: Done) -> None:
    """All calls at once; `on_done` gets None or the first failure."""
    Gathering(calls, lambda results: on_done(token, first_error(results)))


def pause(wheel: Wheel, ms: int) -> Callable[[Any, Done], None]:
    """A step that takes so long."""

    def call(token: Any, on_done: Done) -> None:
        wheel.call_at(wheel.now_ms() + ms, lambda now_ms: on_done(token, None))

    return call
