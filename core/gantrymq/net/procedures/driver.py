"""The driver of procedures: generators that yield calls and are sent their answers.

For what happens per connection, queue or subscription, never per message. A procedure yields a call, which takes `(token, on_done)`; the value of
the `yield` is the call's result, and a `GantryError` is raised there. Answers may come before the call returns: they are taken in a loop, not
on the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from gantrymq.model.errors import GantryError

Done = Callable[[Any, Any], None]
Call = Callable[[Any, Done], None]
Steps = Generator[Call, Any, Any]
"""A procedure."""


class _Run:
    """One procedure at work."""

    __slots__ = ("_answers", "_busy", "_failures", "_on_end", "_steps")

    def __init__(self, steps: Steps, on_end: Callable[[Any], None], failures: type[Exception]) -> None:
        self._steps = steps
        self._on_end = on_end
        self._failures = failures
        self._busy = False
        self._answers: list[Any] = []

    def answered(self, _token: Any, result: Any) -> None:
        self._answers.append(result)
        if self._busy:
            return
        self._busy = True
        try:
            while self._answers:
                self._step(self._answers.pop())
        finally:
            self._busy = False

    def _step(self, result: Any) -> None:
        try:
            call = self._steps.throw(result) if isinstance(result, GantryError) else self._steps.send(result)
        except StopIteration as end:
            self._on_end(end.value)
        except self._failures as error:
            self._on_end(error)
        else:
            call(None, self.answered)


def run(steps: Steps, on_end: Callable[[Any], None], failures: type[Exception] = GantryError) -> None:
    """Run a procedure; `on_end` gets what it returned, or the exception that ended it, once. Exceptions other than `failures` are raised to whoever
    brought the answer."""
    _Run(steps, on_end, failures).answered(None, None)


def call(method: Callable[..., None], *arguments: object) -> Call:
    """A port method with its arguments, waiting for token and on_done."""
    return lambda token, on_done: method(*arguments, token, on_done)


def pause(later: Callable[[Callable[[], None]], object]) -> Call:
    """A call that is answered later; `later` calls back in the next loop turn, or after some time."""

    def call(token: Any, on_done: Done) -> None:
        later(partial(on_done, token, None))

    return call


class Gathering:
    """Several calls at once: `on_done` gets the list of their results, in order, when the last one has answered."""

    __slots__ = ("_left", "_on_done", "_results")

    def __init__(self, calls: Sequence[Call], on_done: Callable[[list[Any]], None]) -> None:
        self._left = len(calls)
        self._results: list[Any] = [None] * len(calls)
        self._on_done = on_done
        if not calls:
            on_done(self._results)
        for index, each in enumerate(calls):
            each(index, self._answered)

    def _answered(self, index: int, result: Any) -> None:
        self._results[index] = result
        self._left -= 1
        if not self._left:
            self._on_done(self._results)


class InOrder:
    """Calls handed over one behind the other without waiting, up to one that fails at once: for whoever does them in the order in which he gets them.
    `on_done` gets the list of their results when all that were handed over have answered, or the first failure."""

    __slots__ = ("_left", "_on_done", "_results")

    def __init__(self, calls: Sequence[Call], token: Any, on_done: Done) -> None:
        self._left = 1
        self._results: list[Any] = []
        self._on_done = partial(on_done, token)
        for index, each in enumerate(calls):
            self._left += 1
            self._results.append(None)
            each(index, self._answered)
            if isinstance(self._results[index], GantryError):
                break
        self._end()

    def _answered(self, index: int, result: Any) -> None:
        self._results[index] = result
        self._end()

    def _end(self) -> None:
        self._left -= 1
        if not self._left:
            error = first_error(self._results)
            self._on_done(self._results if error is None else error)


def in_order(calls: Sequence[Call], without_waiting: bool) -> Steps:
    """Calls of which each counts only behind those before it. Returns their results."""
    if without_waiting:

        def call(token: Any, on_done: Done) -> None:
            InOrder(calls, token, on_done)

        results: list[Any] = yield call
        return results
    results = []
    for each in calls:
        result = yield each
        results.append(result)
    return results


def first_error(results: list[Any]) -> GantryError | None:
    """The first failure among results."""
    return next((result for result in results if isinstance(result, GantryError)), None)


def everywhere(calls: Sequence[Call], token: Any, on_done: Done) -> None:
    """All calls at once; `on_done` gets None or the first failure."""
    Gathering(calls, lambda results: on_done(token, first_error(results)))
