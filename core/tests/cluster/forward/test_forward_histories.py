"""Several groups under one seed, with faults alone and in pairs: what was bound before it was sent is delivered, once and in order, and nothing else;
and whether the same seeds find faults that are planted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gantrymq.broker.forward.history import RouteHistory
from gantrymq.broker.forward.receiving import Receiving
from gantrymq.broker.forward.sending import Sending
from gantrymq.broker.routing.router import Router
from gantrymq.cluster.forward.following import LEASE_MS, Following
from gantrymq.net.testing import ManualClock
from gantrymq.store.log.forwarded import Forwarded
from tests.cluster.forward.play import KINDS, Play, Result

EVERYDAY = 4
CHANCE = 200
SEEDS_MAX = 100
"""A planted fault is found by then."""


def held(seed: int, *kinds: str) -> Result:
    result = Play(seed, kinds).run()
    assert not result.failure, "\n".join([f"seed {seed} {result.kinds}: {result.failure}", *result.log])
    return result


@pytest.mark.parametrize(
    "seed", [*range(EVERYDAY), *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(EVERYDAY, CHANCE)]]
)
def test_what_is_owed_is_delivered_and_nothing_else(seed: int) -> None:
    assert held(seed).publishes > 50


def test_the_same_seed_is_the_same_play() -> None:
    assert Play(1).run() == Play(1).run()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_alone(kind: str) -> None:
    for seed in range(3):
        held(seed, kind)


def present_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner matches by the routes that are in force when it takes a record."""
    monkeypatch.setattr(RouteHistory, "note", lambda *args: None)


def progress_of_any_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """One progress for a source, whichever its start."""
    progress, take = Receiving.progress, Receiving.take
    monkeypatch.setattr(Receiving, "progress", lambda self, source, life: progress(self, source, "any"))
    monkeypatch.setattr(
        Receiving, "take", lambda self, source, life, *args: take(self, source, "any", *args)
    )  # fmt: skip


def settled_before_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source forgets what its owner has stored, and not flushed."""
    monkeypatch.setattr(Receiving, "when_flushed", lambda self, on_done: on_done())


def leased_from_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source counts its lease from when the answer came."""
    leased = Sending.leased

    def late(self: Any, name: str, life: str, until_ms: int) -> None:
        leased(self, name, life, self._broker.clock.boot_ms() + LEASE_MS)

    monkeypatch.setattr(Sending, "leased", late)


def leased_while_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are counted on a clock that stands still while the machine sleeps."""
    monkeypatch.setattr(ManualClock, "boot_ms", ManualClock.monotonic_ms)


def forwarded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that was forwarded is matched by all routes, those of other groups included."""
    route = Router.route

    def matched(self: Any, topic: Any, message: Any) -> Any:
        if isinstance(message, Forwarded):
            match = route(self, topic, message)
            lights, mark, _ = self._elsewhere.sent(self.own_lights(message) | set(match.lights))
            return type(match)(tuple(sorted(lights)), match.taps, match.kinds, mark)
        return route(self, topic, message)

    monkeypatch.setattr(Router, "route", matched)


def answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bind is answered when it is stored."""
    monkeypatch.setattr(Receiving, "when_known", lambda self, on_done, adds: on_done)


def queues_of_another_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues that a source names are taken for those of the present start."""

    class Any_(dict[str, int]):
        def __contains__(self, key: object) -> bool:
            return True

        def __getitem__(self, key: str) -> int:
            return 1 << 62

    note = Receiving._note_start

    def noted(self: Any) -> None:
        note(self)
        self._ends = Any_()

    monkeypatch.setattr(Receiving, "_note_start", noted)


def never_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken over a connection that is lost is waited for on the next one."""

    def state(self: Any, up: bool) -> None:
        unflushed = self._unflushed
        original(self, up)
        self._unflushed = unflushed

    original = Following._state
    monkeypatch.setattr(Following, "_state", state)


PLANTED: dict[Callable[[pytest.MonkeyPatch], None], tuple[int, tuple[str, ...]]] = {
    present_routes: (0, ("isolate",)),
    progress_of_any_start: (0, ("kill",)),
    settled_before_flush: (1, ("power", "slow_disk")),
    leased_from_the_answer: (38, ("one_way",)),
    leased_while_asleep: (18, ("suspend", "slow_disk")),
    forwarded_twice: (0, ("kill",)),
    answered_at_once: (0, ("broken",)),
    queues_of_another_disk: (0, ("empty",)),
    never_settled: (0, ("kill", "slow_disk")),
}
"""Faults of the design, with kinds of faults that show them, and from which seed on to look."""


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    first, kinds = PLANTED[plant]
    assert any(Play(first + more, kinds).run().failure for more in range(SEEDS_MAX)), "no seed finds it"
