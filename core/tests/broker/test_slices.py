"""Jobs in slices, with a store whose disk is the test's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantrymq.broker.slices import HELD, Sliced, Slices, patient
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.store.cold import Cold


class Bench:
    """`fetches`: what the disk still has to bring; `full`: it takes no more."""

    def __init__(self, job: Slices[None]) -> None:
        self.fetches: list[Callable[[], None]] = []
        self.full = False
        self.pauses: list[Callable[[], None]] = []
        self.went_on = 0
        self.failures: list[Exception] = []
        self.sliced = Sliced(self, self.go_on, self.pauses.append, self.failures.append)  # type: ignore[arg-type]
        self.sliced.job = job

    def fetch(self, cold: Cold, token: Sliced, done: Callable[[Sliced], None]) -> None:
        if self.full:
            raise GantryError(ErrorCode.BUSY, "full")
        self.fetches.append(lambda: done(token))

    def go_on(self) -> None:
        self.went_on += 1


def test_a_step_takes_its_budget_and_says_whether_there_is_more() -> None:
    bench = Bench(part for part in (400, 700, 100))
    assert bench.sliced.step(1_000)
    assert not bench.sliced.step(1_000)
    assert bench.sliced.job is None
    assert not bench.sliced.step(1_000)


def test_a_job_that_is_held_waits_for_whoever_wakes_it() -> None:
    bench = Bench(part for part in (HELD, 10))
    for _ in range(2):
        assert not bench.sliced.step(1_000)
        assert bench.sliced.waiting
    bench.sliced.wake()
    assert (bench.went_on, bench.pauses) == (1, [])
    assert not bench.sliced.step(1_000)
    assert bench.sliced.job is None


@pytest.mark.parametrize("full", [False, True])
def test_cold_data_is_waited_for(full: bool) -> None:
    answers: list[Any] = [Cold([(Path("x"), 0, 1)]), b"there"]
    got: list[bytes] = []

    def read() -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, Cold):
            raise answer
        return bytes(answer)

    def job() -> Slices[None]:
        got.append((yield from patient(read)))

    bench = Bench(job())
    bench.full = full
    assert not bench.sliced.step(1_000)
    (wake,) = bench.pauses if full else bench.fetches
    assert not bench.sliced.step(1_000)
    assert got == []
    wake()
    assert bench.went_on == 1
    assert not bench.sliced.step(1_000)
    assert (got, bench.sliced.job) == ([b"there"], None)


@pytest.mark.parametrize("error", [GantryError(ErrorCode.STORE_FULL), OSError("disk"), ValueError("record")])
def test_what_ends_a_job_is_told(error: Exception) -> None:
    def job() -> Slices[None]:
        yield 1
        raise error

    bench = Bench(job())
    assert not bench.sliced.step(1_000)
    assert bench.failures == [error]
    assert bench.sliced.job is None
