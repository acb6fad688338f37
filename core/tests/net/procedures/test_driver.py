"""The driver of procedures: answers now and later, failures where they are waited for, and no stack however many answers come at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Done, Gathering, Steps, call, everywhere, first_error, in_order, pause, run

BUSY = GantryError(ErrorCode.BUSY, "later")


def at_once(result: Any, token: Any, on_done: Done) -> None:
    on_done(token, result)


def test_answers_that_come_at_once_take_no_stack() -> None:
    def steps() -> Steps:
        total = 0
        for number in range(20_000):
            total += yield call(at_once, number)
        return total

    ends: list[Any] = []
    run(steps(), ends.append)
    assert ends == [sum(range(20_000))]


def test_a_later_answer_goes_on_where_it_is_waited_for() -> None:
    waiting: list[tuple[Any, Done]] = []
    seen: list[Any] = []

    def steps() -> Steps:
        for _ in range(3):
            answer = yield lambda token, on_done: waiting.append((token, on_done))
            seen.append(answer)

    ends: list[Any] = []
    run(steps(), ends.append)
    for number in range(3):
        token, on_done = waiting.pop()
        on_done(token, number)
    assert (seen, ends, waiting) == ([0, 1, 2], [None], [])


def test_a_failure_is_raised_at_its_call() -> None:
    def steps(again: bool) -> Steps:
        try:
            yield call(at_once, BUSY)
        except GantryError as error:
            if again:
                raise
            return error.code

    ends: list[Any] = []
    run(steps(False), ends.append)
    run(steps(True), ends.append)
    assert ends == [ErrorCode.BUSY, BUSY]


def test_other_exceptions_end_it_only_where_asked_for() -> None:
    def steps() -> Steps:
        yield call(at_once, 1)
        raise ValueError("wrong")

    ends: list[Any] = []
    with pytest.raises(ValueError, match="wrong"):
        run(steps(), ends.append)
    assert ends == []
    run(steps(), ends.append, Exception)
    assert [str(end) for end in ends] == ["wrong"]


def test_a_pause_is_answered_later() -> None:
    later: list[Callable[[], None]] = []

    def steps() -> Steps:
        yield pause(later.append)
        return "over"

    ends: list[Any] = []
    run(steps(), ends.append)
    assert ends == []
    later.pop()()
    assert ends == ["over"]


def test_calls_beside_each_other() -> None:
    waiting: list[tuple[Any, Done]] = []
    found: list[list[Any]] = []
    Gathering([lambda token, on_done: waiting.append((token, on_done))] * 2, found.append)
    Gathering([], found.append)
    for (token, on_done), result in zip(reversed(waiting), (BUSY, "first"), strict=True):
        on_done(token, result)
    assert found == [[], ["first", BUSY]]
    assert first_error(found[1]) is BUSY
    ends: list[Any] = []
    everywhere([call(at_once, 1), call(at_once, BUSY)], "token", lambda token, result: ends.append((token, result)))
    everywhere([call(at_once, 1)], "token", lambda token, result: ends.append((token, result)))
    assert ends == [("token", BUSY), ("token", None)]


@pytest.mark.parametrize("without_waiting", [True, False])
def test_calls_in_their_order_end_with_the_first_that_fails(without_waiting: bool) -> None:
    begun: list[int] = []
    waiting: list[tuple[Any, Done]] = []

    def begin(number: int, result: Any, token: Any, on_done: Done) -> None:
        begun.append(number)
        if result is None:
            waiting.append((token, on_done))
        else:
            on_done(token, result)

    ends: list[Any] = []
    run(in_order([call(begin, 1, None), call(begin, 2, "two"), call(begin, 3, None)], without_waiting), ends.append)
    assert begun == ([1, 2, 3] if without_waiting else [1])
    while waiting:
        token, on_done = waiting.pop()
        on_done(token, "late")
    assert ends.pop() == ["late", "two", "late"]
    begun.clear()
    run(in_order([call(begin, 1, "one"), call(begin, 2, BUSY), call(begin, 3, "three")], without_waiting), ends.append)
    assert (begun, ends.pop()) == ([1, 2], BUSY)
    run(in_order([], without_waiting), ends.append)
    assert ends == [[]]
