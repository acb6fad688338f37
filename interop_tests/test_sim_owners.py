"""The model of owners, slots and forward queues: invariants hold, and each fault of the design that is planted is found."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from interop_tests.sim.__main__ import main
from interop_tests.sim.owners.simulation import ClusterSimulation

EVERYDAY_SEEDS = 24
SEEDS_MAX = 40
"""A planted fault is found by some of so many seeds."""

FOUND = {
    338: "power was lost between the rows of `forget`",
    454: "a disk came back after an older one: the owner read a part of its forward queue again",
    897: "an old disk began behind the marker of a move to it, and got the slot without what came after",
    904: "order: as 1142, without isolation",
    1142: "a disk came back after an older one: its records follow those stored meanwhile",
    1332: "a forgotten group had rows that the metadata group's old disk has not",
    1646: "a source took its knowledge of a group's routes for those of a slot on its way there",
    1918: "as 1646",
    2058: "a slot's epoch was used again when its rows were lost with every disk",
    4604: "checker: an empty disk of the metadata group took the table with it, and the queue was at a forgotten group",
    9286: "checker: an owner had not heard that the metadata group's newer disk had given its slot away",
    6445: "a record stored before a move was taken for the next owner's, though he had been forgotten since",
    2971: "as 1332, of a group that is not forgotten: two tables went on from one row",
}
"""Seeds that once did not hold, and what they showed."""


FOUND_WITH = {
    (26, ("cut", "slow")): "as 1646",
    (61, ("old", "empty", "forget")): "as 897, of records behind the marker",
    (203, ("old", "empty", "forget")): "a group stayed apart from a table that the metadata group had no longer",
}
"""The same, with kinds of faults that were not drawn."""


def hold(seeds: Iterable[int]) -> tuple[int, int, int]:
    """Sums of deliveries that were due, of those that were not, of moves."""
    due = forbidden = moves = 0
    for seed in seeds:
        result = ClusterSimulation(seed).run()
        assert not result.failure, "\n".join([*result.events, f"seed {seed}, faults {result.faults}", result.failure])
        due += result.due
        forbidden += result.forbidden
        moves += result.moves
    return due, forbidden, moves


def hold_densely(seeds: range) -> None:
    """They hold, and something happened in them."""
    due, forbidden, moves = hold(seeds)
    assert due > 200 * len(seeds)
    assert forbidden > 100 * len(seeds)
    assert moves > len(seeds) // 3


def test_invariants_hold() -> None:
    hold_densely(range(EVERYDAY_SEEDS))


def test_seeds_that_once_found_something_hold() -> None:
    hold(FOUND)
    for seed, faults in FOUND_WITH:
        assert ClusterSimulation(seed, faults=faults).run().failure == ""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", [0, 1000])
def test_invariants_hold_under_many_seeds(first: int) -> None:
    hold_densely(range(first, first + 200))


PLANTED = [
    ("present", {"due", "wrong"}, ("cut", "slow")),
    ("epochless", {"due"}, ("power",)),
    ("written", {"due"}, ("power",)),
    ("unmarked", {"due", "once"}, ("slow",)),
    ("monotonic", {"due", "wrong"}, ("suspend",)),
    ("answer", {"due", "wrong"}, ("slow", "stop")),
    ("twice", {"once"}, ("kill",)),
]


@pytest.mark.parametrize(("planted", "invariants", "faults"), PLANTED, ids=[entry[0] for entry in PLANTED])
def test_what_is_planted_is_found_by_the_invariants_it_breaks(
    planted: str, invariants: set[str], faults: tuple[str, ...]
) -> None:
    found: dict[str, int] = {}
    for seed in range(SEEDS_MAX):
        failure = ClusterSimulation(seed, frozenset({planted}), faults).run().failure
        if failure:
            assert failure.partition(":")[0] in invariants, failure
            found.setdefault(failure.partition(":")[0], seed)
        if found.keys() == invariants:
            break
    assert found.keys() == invariants
    for seed in found.values():
        assert ClusterSimulation(seed, faults=faults).run().failure == ""


@pytest.mark.parametrize(
    ("planted", "seed", "invariant"),
    [
        ("torn", 338, "settled"),
        ("lastly", 454, "once"),
        ("unready", 897, "due"),
        ("merged", 2971, "due"),
        ("leased", 1646, "due"),
        ("leased", 1918, "due"),
    ],
)
def test_a_rule_left_out_is_found_by_the_seed_that_taught_it(planted: str, seed: int, invariant: str) -> None:
    assert ClusterSimulation(seed, frozenset({planted})).run().failure.partition(":")[0] == invariant


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
