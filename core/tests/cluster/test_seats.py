"""Consumers of one queue at several gateways over several broker groups."""

from __future__ import annotations

from typing import Any

from gantrymq.broker.port import END, Terms
from gantrymq.cluster.port import SETTLE_MS, ClusterPort
from gantrymq.model.errors import ErrorCode, GantryError
from tests.cluster.several import Several
from tests.cluster.site import Site, message, take
from tests.cluster.slots.slot_site import SlotSite

SINGLE = Terms(single=True)


class Consumers:
    """Gateways over broker groups `a` and `b`, which has the queue, and the turns that their consumers were told."""

    def __init__(self) -> None:
        self.site = Several("a", "b")
        self.one, self.other = self.site.gateway(), self.site.gateway()
        light, self.cursor = self.site.queue_at(self.one, "b")
        self.there = self.site.call(self.other, "open_cursor", f"~{light}", "g", END).cursor
        self.turns: list[tuple[str, bool | None]] = []

    def cursor_at(self, port: ClusterPort) -> int:
        return self.cursor if port is self.one else int(self.there)

    def take(self, port: ClusterPort, name: str, terms: Terms) -> Any:
        def turned(seat: int, active: bool | None) -> None:
            self.turns.append((name, active))

        found = self.site.call(port, "take_seat", self.cursor_at(port), terms, turned)
        return found.code if isinstance(found, GantryError) else found

    def count(self, port: ClusterPort) -> int:
        return int(self.site.call(port, "stats", [self.cursor_at(port)])[0].consumers)


def test_gateways_see_the_same_consumers() -> None:
    consumers = Consumers()
    seat, _ = consumers.take(consumers.one, "x", Terms(exclusive=True))
    assert consumers.take(consumers.other, "y", Terms()) is ErrorCode.LEASE_HELD
    assert consumers.count(consumers.other) == 1
    assert consumers.site.call(consumers.one, "leave_seat", consumers.cursor, seat) == 0
    assert consumers.take(consumers.other, "y", Terms())[1]
    assert consumers.count(consumers.one) == 1


def test_the_turn_passes_between_gateways() -> None:
    consumers = Consumers()
    seat, active = consumers.take(consumers.one, "x", SINGLE)
    assert active
    assert not consumers.take(consumers.other, "y", SINGLE)[1]
    consumers.site.call(consumers.one, "leave_seat", consumers.cursor, seat)
    assert consumers.turns == [("y", True)]


def test_consumers_go_on_while_the_home_is_away_and_are_registered_again() -> None:
    consumers = Consumers()
    site, one, other = consumers.site, consumers.one, consumers.other
    consumers.take(one, "x", SINGLE)
    consumers.take(other, "y", SINGLE)
    for port in (one, other):
        site.line(port, "b").cut()
    site.run()
    assert consumers.take(other, "z", SINGLE) is ErrorCode.UNAVAILABLE
    assert consumers.turns == []
    for port in (one, other):
        site.line(port, "b").mend()
        site.wait(200)
    assert consumers.count(one) == consumers.count(other) == 2
    assert consumers.turns == []


def test_who_left_while_the_group_was_away_is_not_registered_again() -> None:
    consumers = Consumers()
    site, one = consumers.site, consumers.one
    seat, _ = consumers.take(one, "x", Terms())
    consumers.take(one, "y", Terms())
    line = site.line(one, "b")
    line.cut()
    assert site.call(one, "leave_seat", consumers.cursor, seat) == 1, "of this process"
    line.mend()
    site.wait(200)
    assert consumers.count(consumers.other) == 1


def test_an_exclusive_consumer_that_came_meanwhile_is_the_only_one() -> None:
    consumers = Consumers()
    site, one = consumers.site, consumers.one
    consumers.take(one, "x", Terms())
    site.line(one, "b").cut()
    site.run()
    assert consumers.take(consumers.other, "y", Terms(exclusive=True))[1]
    site.line(one, "b").mend()
    site.wait(200)
    assert consumers.count(consumers.other) == 1
    assert consumers.turns == [("x", None)]


def test_a_consumer_is_registered_once_when_its_group_hangs_as_it_comes_back() -> None:
    consumers = Consumers()
    site, one = consumers.site, consumers.one
    consumers.take(one, "x", SINGLE)
    line = site.line(one, "b")
    line.cut()
    take_seat = line.take_seat

    def hang(*args: Any) -> None:
        line.hang()
        take_seat(*args)

    line.take_seat = hang  # type: ignore[attr-defined]
    line.mend()
    site.wait(1_000)
    del line.take_seat  # type: ignore[attr-defined]
    assert consumers.count(consumers.other) == 1, "it came too late, and nobody heard"
    line.thaw()
    site.wait(1_000)
    assert consumers.count(consumers.other) == 1
    assert consumers.turns == []
    assert consumers.take(consumers.other, "y", SINGLE)[1] is False


def test_a_rank_is_known_to_groups_that_come() -> None:
    consumers = Consumers()
    site, one, other = consumers.site, consumers.one, consumers.other
    woken: list[str] = []
    one.watch(consumers.cursor, lambda cursor: woken.append("one"))
    other.watch(consumers.there, lambda cursor: woken.append("other"))
    take(site, one, consumers.cursor)
    take(site, other, consumers.there)
    woken.clear()
    other.rank(consumers.there, 4)
    for name in ("a", "b"):
        site.line(other, name).cut()
        site.run()
        site.line(other, name).mend()
        site.wait(200)
    take(site, other, consumers.there)
    site.nodes["b"].call("ensure_topic", "t0", True)
    woken.clear()
    site.nodes["b"].call("submit", [message("t0", b"1")])
    site.run()
    assert woken == ["other"]


def test_a_lease_is_free_only_where_its_home_knows() -> None:
    site = Site("a")
    one, other = site.gateway(), site.gateway()
    assert site.call(other, "is_free", "x") is True
    site.call(one, "take_lease", "x", False, lambda name: None)
    assert site.call(one, "is_free", "x") is site.call(other, "is_free", "x") is False
    site = SlotSite("a", "b")
    one, other = site.gateway(), site.gateway()
    home = other.home("lease/x").name
    site.call(one, "take_lease", "x", False, lambda name: None)
    for port in (one, other):
        site.line(port, home).cut()
    site.run()
    assert site.call(other, "is_free", "x") is False
    site.line(other, home).mend()
    site.wait(1000)
    assert site.call(other, "is_free", "x") is False, "whoever held it may be on his way"
    site.line(one, home).mend()
    site.wait(SETTLE_MS)
    assert site.call(other, "is_free", "x") is False
    assert site.call(other, "is_free", "y") is True
