"""Queues that go from group to group all the time, under the faults of `test_forward_histories.py`; and whether the same seeds find faults of the moves that are planted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gantrymq.broker.forward.holding import Holding
from gantrymq.broker.forward.receiving import Receiving
from tests.cluster.forward.moving_play import MovingPlay
from tests.cluster.forward.play import Result

EVERYDAY = 2
CHANCE = 30
SEEDS_MAX = 10
"""A planted fault is found by then."""


def played(seed: int, *kinds: str) -> tuple[Result, int]:
    play = MovingPlay(seed, kinds)
    return play.run(), play.moves


@pytest.mark.parametrize(
    "seed", [*range(EVERYDAY), *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(EVERYDAY, CHANCE)]]
)
def test_queues_move_and_nothing_is_lost_or_doubled(seed: int) -> None:
    result, _ = played(seed)
    assert not result.failure, "\n".join([f"seed {seed} {result.kinds}: {result.failure}", *result.log])


def test_they_move() -> None:
    result, moves = played(3, "none")
    assert not result.failure
    assert moves > 3


def nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups store what may be the queue's while it is decided where it is."""
    monkeypatch.setattr(Holding, "keeps", lambda self, sent: False)


def not_read_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is taken to have what others have for it."""
    monkeypatch.setattr(Receiving, "await_progress", lambda self, source, life, offset, on_done: on_done(True))


PLANTED: dict[Callable[[pytest.MonkeyPatch], None], tuple[int, tuple[str, ...]]] = {
    nothing_waits: (0, ("none",)),
    not_read_to_the_end: (0, ("none",)),
}
"""Faults of the design, with kinds of faults that show them, and from which seed on to look."""


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    first, kinds = PLANTED[plant]
    assert any(played(first + more, *kinds)[0].failure for more in range(SEEDS_MAX)), "no seed finds it"
