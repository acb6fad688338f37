"""Phases of a loop turn."""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.net.testing import ManualTurn
from gantrymq.net.turn import LoopTurn


def test_phases_run_in_order_whatever_the_order_of_handing_over() -> None:
    turn, seen = ManualTurn(), list[str]()
    turn.at_write(lambda: seen.append("write"))
    turn.at_deliver(lambda: seen.append("deliver"))
    turn.at_append(lambda: seen.append("append"))
    turn.run()
    assert seen == ["append", "deliver", "write"]
    assert not turn.pending


def test_what_may_wait_comes_behind_the_writes() -> None:
    turn, seen = ManualTurn(), list[str]()
    turn.in_slices(lambda: seen.append("slice"))
    turn.at_end(lambda: seen.append("end"))
    turn.at_end(lambda: turn.at_end(lambda: seen.append("next end")))
    turn.at_write(lambda: seen.append("write"))
    turn.run()
    assert seen == ["write", "slice", "end"]
    turn.run()
    assert seen[3:] == ["next end"]
    assert not turn.pending


def test_later_phase_is_the_same_turn_and_earlier_or_same_phase_the_next() -> None:
    turn, seen = ManualTurn(), list[str]()

    def deliver() -> None:
        seen.append("deliver")
        turn.at_append(lambda: seen.append("append 2"))
        turn.at_deliver(lambda: seen.append("deliver 2"))
        turn.at_write(lambda: seen.append("write"))

    turn.at_deliver(deliver)
    turn.run()
    assert seen == ["deliver", "write"]
    turn.run()
    assert seen[2:] == ["append 2", "deliver 2"]
    assert not turn.pending


def test_one_arming_per_turn() -> None:
    armed: list[Callable[[], None]] = []
    turn = LoopTurn(armed.append)
    for _ in range(3):
        turn.at_write(lambda: turn.at_deliver(lambda: None))
    turn.at_append(lambda: None)
    assert len(armed) == 1
    armed.pop()()
    assert len(armed) == 1  # for the deliveries handed over during the write phase
    armed.pop()()
    assert armed == []
    turn.at_append(lambda: None)
    assert len(armed) == 1


def test_a_callback_that_raises_does_not_stop_the_others() -> None:
    turn, seen = ManualTurn(), list[str]()

    def broken() -> None:
        raise ValueError("broken")

    turn.at_append(broken)
    turn.at_append(lambda: seen.append("append"))
    turn.at_write(lambda: seen.append("write"))
    turn.run()
    assert seen == ["append", "write"]


def test_long_work_shares_a_part_of_each_turn() -> None:
    """Whoever has a thousand slices to do stands behind the one with one, and the write phase comes in each turn."""
    now = [0.0]
    armed: list[Callable[[], None]] = []
    turn = LoopTurn(armed.append, lambda: now[0])
    done: list[str] = []
    took: list[float] = []
    turn.observe = took.append

    def long(name: str, left: int) -> None:
        now[0] += 0.0009
        done.append(name)
        turn.at_write(lambda: None)
        if left:
            turn.in_slices(lambda: long(name, left - 1))

    for name in "abcdef":
        turn.in_slices(lambda name=name: long(name, 4))  # type: ignore[misc]
    while armed:
        armed.pop()()
    assert done == list("abcdef") * 5
    assert max(took) < 0.004
    assert len(took) == turn.number


def test_many_writes_take_some_turns_and_who_comes_later_does_not_stand_behind_them() -> None:
    now = [0.0]
    armed: list[Callable[[], None]] = []
    turn = LoopTurn(armed.append, lambda: now[0])
    written: list[int] = []
    took: list[float] = []
    turn.observe = took.append

    def write(number: int) -> None:
        now[0] += 0.000_02
        written.append(number)

    for number in range(1_000):
        turn.at_write(lambda number=number: write(number))  # type: ignore[misc]
    armed.pop()()
    assert len(written) < 200
    turn.at_write(lambda: write(-1))
    before = len(written)
    armed.pop()()
    assert written[before] == -1
    while armed:
        armed.pop()()
    assert [number for number in written if number >= 0] == list(range(1_000))
    assert max(took) < 0.004
