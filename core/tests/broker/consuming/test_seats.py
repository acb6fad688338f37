"""Consumers of one queue over several ports: who is alone, whose turn it is, who is served first."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.consuming import seats
from gantrymq.broker.consuming.seats import RANK_WAIT_MS
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import END, Terms
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.net.wheel import TICK_MS
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node

SINGLE, EXCLUSIVE, PLAIN = Terms(single=True), Terms(exclusive=True), Terms()


class Site:
    """Two ports over one cursor, as two gateway processes have them."""

    def __init__(self) -> None:
        self.node = Node(MemoryFileSystem(), sync=False)
        self.node.call("ensure_topic", "t", True)
        self.ports = (self.node.port, LocalBrokerPort(self.node.broker))
        self.cursor: int = self.node.call("open_cursor", "t/0", "g", END).cursor
        self.turns: list[tuple[int, bool]] = []
        self.woken: list[int] = []

    def take(self, port: int, terms: Terms) -> Any:
        box: list[Any] = []
        self.ports[port].take_seat(
            self.cursor, terms, lambda seat, active: self.turns.append((seat, active)), None,
            lambda token, result: box.append(result),
        )  # fmt: skip
        self.node.turn.run_until_quiet()
        return box[0].code if isinstance(box[0], GantryError) else box[0]

    def leave(self, port: int, seat: int) -> int:
        box: list[int] = []
        self.ports[port].leave_seat(self.cursor, seat, None, lambda token, result: box.append(result))
        self.node.turn.run_until_quiet()
        return box[0]

    def count(self) -> int:
        return int(self.node.call("stats", [self.cursor])[0].consumers)

    def watch(self) -> None:
        for number, port in enumerate(self.ports):
            port.watch(self.cursor, lambda cursor, number=number: self.woken.append(number))  # type: ignore[misc]

    def acquire(self, port: int, count: int) -> list[bytes]:
        box: list[Any] = []
        self.ports[port].acquire(self.cursor, 1, count, 1 << 20, None, lambda token, result: box.append(result))
        self.node.turn.run_until_quiet()
        return [delivery.message.body for delivery in box[0]]

    def put(self, *bodies: bytes) -> None:
        batch = [Message("t", body, queue_id=0) for body in bodies]
        self.node.call("submit", batch)


@pytest.fixture
def site() -> Site:
    return Site()


def test_an_exclusive_consumer_is_alone_over_all_ports(site: Site) -> None:
    seat, active = site.take(0, EXCLUSIVE)
    assert active
    assert site.take(1, PLAIN) is ErrorCode.LEASE_HELD
    assert site.take(1, EXCLUSIVE) is ErrorCode.LEASE_HELD
    assert site.leave(0, seat) == 0
    site.take(1, PLAIN)
    assert site.take(0, EXCLUSIVE) is ErrorCode.LEASE_HELD
    assert site.count() == 1


def test_the_turn_goes_to_whoever_waits_longest(site: Site) -> None:
    first, active = site.take(0, SINGLE)
    assert active
    second, third = site.take(1, SINGLE), site.take(0, SINGLE)
    assert (second[1], third[1]) == (False, False)
    assert site.take(0, Terms(True, True)) is ErrorCode.LEASE_HELD
    assert site.leave(0, third[0]) == 2
    assert site.turns == []
    assert site.leave(0, first) == 1
    assert site.turns == [(second[0], True)]


def test_the_turn_goes_to_the_highest_rank_first(site: Site) -> None:
    first = site.take(0, SINGLE)[0]
    site.take(0, SINGLE)
    high = site.take(1, Terms(single=True, rank=5))[0]
    site.leave(0, first)
    assert site.turns == [(high, True)]


def test_what_a_lost_port_held_is_free(site: Site) -> None:
    site.take(1, SINGLE)
    waiting = site.take(0, SINGLE)[0]
    site.ports[1].rank(site.cursor, 3)
    site.ports[1].close()
    site.node.turn.run_until_quiet()
    assert site.turns == [(waiting, True)]
    assert site.count() == 1
    assert site.leave(0, waiting) == 0
    assert site.node.broker.seats.count == 0
    assert site.node.broker.cursors.by_id[site.cursor].seats is None


def test_seats_of_others_and_unknown_ones_stay(site: Site) -> None:
    seat = site.take(0, PLAIN)[0]
    assert site.leave(1, seat) == 1
    assert site.leave(0, 999) == 1


def test_seats_go_with_their_cursor(site: Site) -> None:
    site.take(0, PLAIN)
    site.ports[1].rank(site.cursor, 3)
    site.node.call("delete_cursor", site.cursor)
    assert site.node.broker.seats.count == 0
    site.ports[1].close()


def test_seats_have_a_limit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "SEATS_MAX", 1)
    site.take(0, PLAIN)
    assert site.take(0, PLAIN) is ErrorCode.LIMIT_REACHED


def test_the_higher_rank_is_woken_and_the_other_gets_what_it_leaves(site: Site) -> None:
    site.watch()
    site.ports[1].rank(site.cursor, 7)
    site.put(b"1", b"2")
    assert site.woken == [1]
    assert site.acquire(1, 1) == [b"1"]
    assert site.woken == [1, 0], "it took what it wanted, and there is more"
    assert site.acquire(0, 9) == [b"2"]
    site.acquire(1, 1)
    site.put(b"3")
    assert site.woken == [1, 0, 1]


def test_a_higher_rank_that_takes_nothing_holds_up_nobody_for_long(site: Site) -> None:
    site.watch()
    site.ports[1].rank(site.cursor, 7)
    site.put(b"1")
    assert site.woken == [1]
    site.node.wheel.advance(RANK_WAIT_MS + TICK_MS)
    site.node.turn.run_until_quiet()
    assert site.woken == [1, 0]


def test_without_ranks_all_are_woken(site: Site) -> None:
    site.watch()
    site.ports[1].rank(site.cursor, 7)
    site.ports[1].rank(site.cursor, 0)
    site.put(b"1")
    assert sorted(site.woken) == [0, 1]
