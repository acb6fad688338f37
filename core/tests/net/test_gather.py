"""Pauses before turns that many connections share, and none for anybody else."""

from __future__ import annotations

import pytest

from gantrymq.metrics import Metrics
from gantrymq.net.gather import (
    CONNECTIONS_MIN,
    PAUSE_MAX_S,
    PAUSE_S,
    PERIOD_S,
    READS_ENOUGH,
    READS_PER_S_MIN,
    Gather,
)
from gantrymq.net.pump import Traffic

PER_PERIOD = round(READS_PER_S_MIN * PERIOD_S)


class Site:
    """A gather whose time is told, with pumps that are read."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.pauses: list[float] = []
        self.late_s = 0.0
        self.noted: dict[int, int] = {}
        self.gather = Gather(lambda: self.now_s, self.pause)

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds + self.late_s

    def read(self, connection: int) -> None:
        """What a pump counts."""
        self.gather.reads += 1
        if self.noted.get(connection) != self.gather.period:
            self.noted[connection] = self.gather.period
            self.gather.active += 1

    def turn(self, *connections: int) -> int:
        """A turn in which these are read; returns how often it paused."""
        for connection in connections:
            self.read(connection)
        before = len(self.pauses)
        if self.gather.hold():
            assert not self.gather.hold()
        return len(self.pauses) - before

    def period(self, connections: int, reads: int) -> None:
        """A period with so many of both, and the begin of the next one."""
        for number in range(reads):
            self.read(number % connections)
        self.now_s += PERIOD_S
        self.turn()


def test_many_connections_that_send_often_are_waited_for_once_a_turn() -> None:
    site = Site()
    site.period(CONNECTIONS_MIN, PER_PERIOD + 1)
    pauses = len(site.pauses)
    assert [site.turn(1), site.turn(2, 3), site.turn()] == [1, 1, 1]
    assert site.pauses[pauses:] == [PAUSE_S] * 3


@pytest.mark.parametrize(
    ("connections", "reads"), [(1, 1000), (CONNECTIONS_MIN - 1, 1000), (CONNECTIONS_MIN, PER_PERIOD - 1)]
)
def test_few_connections_and_rare_sends_never_wait(connections: int, reads: int) -> None:
    site = Site()
    for _ in range(3):
        site.period(connections, reads)
        assert site.turn(1) == 0
    assert site.pauses == []


def test_a_turn_that_has_enough_goes_on_at_once() -> None:
    site = Site()
    site.period(CONNECTIONS_MIN, PER_PERIOD + 1)
    assert site.turn(*range(READS_ENOUGH)) == 0
    assert site.turn(*range(READS_ENOUGH - 1)) == 1
    for number in range(READS_ENOUGH):  # what came during the pause belongs to the turn that waited
        site.read(number)
    assert site.turn(1) == 0


def test_what_came_during_a_pause_does_not_count_for_the_next_turn() -> None:
    site = Site()
    site.period(CONNECTIONS_MIN, PER_PERIOD + 1)
    site.read(1)
    assert site.gather.hold()
    for number in range(READS_ENOUGH * 2):
        site.read(number)
    assert not site.gather.hold()
    assert site.turn(1) == 1


def test_it_ends_with_the_period_in_which_they_stopped() -> None:
    site = Site()
    site.period(CONNECTIONS_MIN, PER_PERIOD + 1)
    assert site.turn(1) == 1
    site.now_s += 3600
    assert site.turn(1) == 0
    site.now_s += PERIOD_S
    assert site.turn(1) == 0


def test_a_turn_across_the_end_of_a_period_knows_what_it_read() -> None:
    site = Site()
    site.period(CONNECTIONS_MIN, PER_PERIOD + 1)
    for _ in range(8):  # enough for this period, too
        site.turn(*range(READS_ENOUGH))
    site.now_s += PERIOD_S / 8
    site.turn(*range(CONNECTIONS_MIN))
    site.now_s = site.gather._begun_s + PERIOD_S
    assert site.turn(*range(READS_ENOUGH)) == 0
    assert site.turn(*range(READS_ENOUGH - 1)) == 1


def test_no_more_pauses_in_a_period_where_one_took_long() -> None:
    site = Site()
    site.period(CONNECTIONS_MIN, PER_PERIOD + 1)
    site.late_s = PAUSE_MAX_S
    assert [site.turn(1), site.turn(2)] == [1, 0]
    site.late_s = 0.0
    site.period(CONNECTIONS_MIN, PER_PERIOD * 2)
    assert site.turn(1) == 1


def test_what_was_held_is_counted() -> None:
    site = Site()
    traffic = Traffic()
    traffic.gather = site.gather
    metrics = Metrics()
    traffic.show(metrics)
    assert "gantry_turns_held_total 0" in metrics.render()
    site.period(CONNECTIONS_MIN, PER_PERIOD + 1)
    site.turn(1)
    site.late_s = PAUSE_MAX_S
    site.turn(1)
    found = dict(line.rsplit(" ", 1) for line in metrics.render().splitlines() if line.startswith("gantry_turns"))
    assert int(found["gantry_turns_held_total"]) == len(site.pauses) > 1
    held_s = float(found["gantry_turns_held_seconds_total"])
    assert held_s == pytest.approx(sum(site.pauses) + PAUSE_MAX_S)
