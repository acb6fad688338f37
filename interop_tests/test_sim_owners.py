"""The model of owners, slots and forward queues: invariants hold, and each fault of the design that is planted is found."""

from __future__ import annotations

import pytest

from interop_tests.sim.__main__ import main
from interop_tests.sim.owners.simulation import ClusterSimulation

EVERYDAY_SEEDS = 24
SLOW_SEEDS = 200
SEEDS_MAX = 40
"""A planted fault is found by one of so many seeds."""


def hold(seeds: range) -> None:
    due = forbidden = moves = 0
    for seed in seeds:
        result = ClusterSimulation(seed).run()
        assert not result.failure, "\n".join([*result.events, f"seed {seed}, faults {result.faults}", result.failure])
        due += result.due
        forbidden += result.forbidden
        moves += result.moves
    assert due > 200 * len(seeds)
    assert forbidden > 100 * len(seeds)
    assert moves > len(seeds) // 3


def test_invariants_hold() -> None:
    hold(range(EVERYDAY_SEEDS))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_invariants_hold_under_many_seeds() -> None:
    hold(range(SLOW_SEEDS))


PLANTED = [
    ("present", "due wrong", ("cut", "slow")),
    ("epochless", "due once settled", ("power",)),
    ("written", "due", ("power",)),
    ("unmarked", "due order once", ("slow",)),
    ("monotonic", "due wrong", ("suspend",)),
    ("answer", "due wrong", ("slow", "suspend")),
    ("twice", "once settled", ("kill",)),
]


@pytest.mark.parametrize(("planted", "invariants", "faults"), PLANTED, ids=[entry[0] for entry in PLANTED])
def test_what_is_planted_is_found(planted: str, invariants: str, faults: tuple[str, ...]) -> None:
    for seed in range(SEEDS_MAX):
        failure = ClusterSimulation(seed, frozenset({planted}), faults).run().failure
        if failure:
            assert failure.partition(":")[0] in invariants.split(), failure
            return
    pytest.fail(f"{SEEDS_MAX} seeds found nothing")


def test_a_seed_replays_to_the_last_event() -> None:
    first, second = ClusterSimulation(5).run(), ClusterSimulation(5).run()
    assert first == second
    assert first.digest != ClusterSimulation(6).run().digest


def test_a_failure_is_shown_with_its_seed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cluster", "1", "--from", "5"]) == 0
    assert "1 seeds" in capsys.readouterr().out
    monkeypatch.setattr("interop_tests.sim.owners.state.State.keys", lambda self, version: frozenset())
    assert main(["--cluster", "5"]) == 1
    shown = capsys.readouterr().out
    assert "FAILED: due" in shown
    assert "replay: ./run sim --cluster 1 --from" in shown
