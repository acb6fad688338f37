"""What an address or user takes in a second, and what becomes of more."""

from __future__ import annotations

import logging

import pytest

from gantrymq.net.held.rates import IDLE_MAX, Account, Meters, RateLimits

A, B = "192.0.2.1", "192.0.2.2"


class World:
    def __init__(self, limits: RateLimits) -> None:
        self.now_ms = 0
        self.meters = Meters(limits, lambda: self.now_ms, "server.address")

    def come(self, name: str = A) -> tuple[Account, str]:
        account = Account()
        return account, account.add(self.meters, name, f"{name}:1")


def test_connections_of_one_name_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    world = World(RateLimits(connections_max=2))
    with caplog.at_level(logging.WARNING):
        first, _ = world.come()
        assert [world.come()[1] for _ in range(3)] == ["", *["server.address_connections_max (2) is reached"] * 2]
        assert world.come(B)[1] == ""
    assert len(caplog.records) == 1, "said once"
    assert world.meters.refused == 2
    first.leave()
    assert world.come()[1] == ""
    assert world.come()[1]


def test_the_rate_of_connections_is_bounded_also_of_those_that_leave_at_once() -> None:
    world = World(RateLimits(connects_per_s=3))
    let_in = 0
    for _ in range(100):
        world.now_ms += 10  # for a second
        account, why = world.come()
        let_in += not why
        account.leave()
    assert let_in == 3 + 2, "one second's worth, and what came meanwhile; who tries on is let in at the rate"


def test_what_is_over_a_rate_waits() -> None:
    world = World(RateLimits(requests_per_s=100, bytes_per_s=1_000))
    first, second = world.come()[0], world.come()[0]
    assert first.pay(1_000, 0) == 0
    assert second.pay(500, 0) == 501, "both of one name"
    first.spent += 300
    assert first.pay(0, 501) == 2_001
    assert first.pay(0, 501 + 2_001) == 0
    other, _ = world.come(B)
    assert other.pay(1_000, 501) == 0


def test_coming_again_pays_nothing() -> None:
    world = World(RateLimits(bytes_per_s=1_000))
    account, _ = world.come()
    account.pay(5_000, 0)
    account.leave()
    assert world.come()[0].pay(0, 0) == 4_001


def test_names_that_are_remembered_are_bounded() -> None:
    world = World(RateLimits(bytes_per_s=1_000))
    for number in range(IDLE_MAX + 5):
        world.come(f"192.0.2.{number}")[0].leave()
    assert len(world.meters._idle) == IDLE_MAX
    assert not world.meters._here


def test_nothing_is_kept_where_nothing_is_bounded() -> None:
    world = World(RateLimits())
    account, why = world.come()
    assert not why
    assert account.pay(10**9, 0) == 0
    assert not world.meters._here
