"""Simulations under seeds; the checker finds what is planted; a seed replays to the last event."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from interop_tests.sim import planted
from interop_tests.sim.__main__ import main, told
from interop_tests.sim.node import Plant
from interop_tests.sim.simulation import Simulation
from tests.store.crash_states import LyingFiles

ROOT = Path(__file__).resolve().parent.parent
STEPS = 2_000
SHORT = 800
EVERYDAY_SEEDS = (1, 2, 3)
CRASH_SEEDS = range(1_000, 1_020)
SLOW_SEEDS = range(35, 56)
SLOW_BOX_S = 30.0
SEEDS_MAX = 8
"""A planted fault is found by one of so many seeds."""


@pytest.mark.parametrize("seed", EVERYDAY_SEEDS)
def test_invariants_hold(seed: int) -> None:
    result = Simulation(seed, STEPS).run()
    assert not result.failure, "\n".join([*result.events, told(result), result.failure])
    assert result.acks > 10
    assert result.deliveries > 50


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(180)
def test_invariants_hold_under_many_seeds() -> None:
    results = []
    for seed in CRASH_SEEDS:
        result = Simulation(seed).run()
        assert not result.failure, "\n".join([*result.events, told(result), result.failure])
        results.append(result)
    assert sum(result.crashes - result.losses for result in results) > 10, "hardly any process was killed"
    assert sum(result.losses for result in results) > 10, "hardly any power was lost"
    assert {result.sync for result in results} == {True, False}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_invariants_hold_under_more_seeds() -> None:
    """Whole runs of fixed seeds, as many as half a minute takes: each is the same in every run."""
    begun = time.monotonic()
    for seed in SLOW_SEEDS:
        result = Simulation(seed).run()
        assert not result.failure, "\n".join([*result.events, told(result), result.failure])
        if time.monotonic() - begun > SLOW_BOX_S:
            break


def test_a_seed_replays_to_the_last_event() -> None:
    """Also in a process whose sets have another order."""
    here = told(Simulation(7, SHORT).run())
    assert here == told(Simulation(7, SHORT).run())
    command = [sys.executable, "-m", "interop_tests.sim", "7", "--steps", str(SHORT)]
    order = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    found = subprocess.run(
        command, cwd=ROOT, env={"PYTHONHASHSEED": order}, capture_output=True, text=True, timeout=200, check=False
    )
    assert here in found.stdout, found.stdout + found.stderr


def test_other_seeds_are_other_runs() -> None:
    assert Simulation(1, 500).run().digest != Simulation(2, 500).run().digest


PLANTED: list[tuple[Plant, str, tuple[str, ...]]] = [
    (planted.forgotten_acknowledgements, "I3", ("kill",)),
    (planted.turned_fates, "I8", ("cut",)),
    (planted.twice_committed, "I3", ("cut",)),
    (planted.visible_halves, "I8", ("cut",)),
    (planted.no_delay, "delay", ("cut",)),
    (planted.changed_bodies, "I2", ("cut",)),
    (planted.unwritten, "I1 I3 I4 I5", ("cut",)),
    (planted.two_holders, "I5", ("cut", "leave")),
    (planted.hasty_offsets, "I1 I5", ("crash",)),
    (planted.short_leases, "I3", ("cut",)),
]


@pytest.mark.parametrize(("plant", "invariants", "faults"), PLANTED, ids=[entry[0].__name__ for entry in PLANTED])
def test_what_is_planted_is_found(plant: Plant, invariants: str, faults: tuple[str, ...]) -> None:
    for seed in range(SEEDS_MAX):
        failure = Simulation(seed, STEPS, plant, faults=faults).run().failure
        if failure:
            assert failure.partition(":")[0] in invariants.split(), failure
            return
    pytest.fail(f"{SEEDS_MAX} seeds found nothing")


def test_a_disk_that_lies_is_found() -> None:
    for seed in range(SEEDS_MAX):
        failure = Simulation(seed, STEPS, sync=True, files=LyingFiles, faults=("power",)).run().failure
        if failure:
            assert failure.startswith("I1"), failure
            return
    pytest.fail(f"{SEEDS_MAX} seeds found nothing")


def test_a_failure_is_shown_with_its_seed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("interop_tests.sim.ledger.Ledger.consumed", lambda self, group, sent: 1 / 0)
    assert main(["3", "--steps", "500"]) == 1
    shown = capsys.readouterr().out
    assert "FAILED at step" in shown
    assert "replay: ./run sim 3 --steps 500" in shown
    assert main(["--seeds", "2", "--steps", "500"]) == 1
    assert "replay: ./run sim 0 --steps 500" in capsys.readouterr().out
