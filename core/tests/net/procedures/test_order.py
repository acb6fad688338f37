"""Procedures of one name run one after the other, in the order they came."""

from __future__ import annotations

from typing import Any

from gantrymq.model.errors import GantryError
from gantrymq.net.procedures.driver import Done, Steps, run
from gantrymq.net.procedures.order import TURN_WORK, Lock, Serial, Work

MANY = 5_000


def test_one_at_a_time_per_name() -> None:
    serial, waiting, heard = Serial(), [], []

    def steps(name: str) -> Steps:
        heard.append(f"{name} begins")
        yield lambda token, on_done: waiting.append((token, on_done))
        heard.append(f"{name} ends")

    def ended(error: GantryError | None) -> None:
        heard.append("told")

    for name in ("one", "two"):
        serial.put("client", steps(name), ended)
    serial.put("other", steps("beside"), ended)
    assert heard == ["one begins", "beside begins"]
    token, on_done = waiting.pop(0)
    on_done(token, None)
    assert heard[2:] == ["one ends", "told", "two begins"]
    assert serial.busy("client")
    token, on_done = waiting.pop()
    on_done(token, None)
    assert not serial.busy("client")


def test_many_that_need_not_wait_take_no_stack() -> None:
    serial, count, held = Serial(), [], []

    def waits() -> Steps:
        yield lambda token, on_done: held.append((token, on_done))

    def steps() -> Steps:
        count.append(1)
        return
        yield

    serial.put("client", waits(), lambda error: None)
    for _ in range(MANY):
        serial.put("client", steps(), lambda error: None)
    assert not count
    token, on_done = held.pop()
    on_done(token, None)
    assert len(count) == MANY


def test_a_lock_is_handed_on_in_order() -> None:
    lock = Lock()
    heard: list[int] = []
    held: list[tuple[Any, Done]] = []

    def steps(number: int) -> Steps:
        yield lock.take("queue")
        try:
            heard.append(number)
            if not number:
                yield lambda token, on_done: held.append((token, on_done))
        finally:
            lock.free("queue")

    for number in range(MANY):
        run(steps(number), lambda result: None)
    assert heard == [0]
    token, on_done = held.pop()
    on_done(token, None)
    assert heard == list(range(MANY))


def test_work_is_counted_by_turns() -> None:
    work = Work()
    assert [work.spend(TURN_WORK // 2) for _ in range(4)] == [False, True, False, True]
