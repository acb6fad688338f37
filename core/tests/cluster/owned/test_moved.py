"""Queues that go to another broker group while gateways use them."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.port import EARLIEST, FIND, Outcome, Route, Terms
from gantrymq.broker.tables.group_tables import MOVED_TABLE
from gantrymq.cluster.names import split_light
from gantrymq.cluster.port import ClusterPort
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.model.queue_policy import Policy
from tests.cluster.forward.forward_site import ForwardSite


class Gateways:
    """Two gateways over three groups, and a queue with a consumer at one of them."""

    def __init__(self) -> None:
        self.site = ForwardSite("a", "b", "c")
        self.ports = [self.site.gateway() for _ in range(2)]
        self.port = self.ports[0]
        self.site.wait(500)
        self.light: int = self.ask("create_light")
        self.cursor: int = self.ask("open_cursor", f"~{self.light}", "g", EARLIEST).cursor
        assert self.ask("add_route", Route(f"r/{self.light}", "prefix", None, "a", self.light)) is None
        self.source = self.where()
        self.ready: list[int] = []

    def ask(self, method: str, *args: Any, port: ClusterPort | None = None) -> Any:
        box: list[Any] = []
        getattr(port or self.port, method)(*args, None, lambda token, result: box.append(result))
        for _ in range(100):
            if box:
                break
            self.site.wait(50)
        assert box, method
        return box[0]

    def where(self) -> str:
        """The group that has it, as the gateway sees it."""
        return next(group.name for group in self.port.groups if group.local_light(self.light))

    def move(self, target: str) -> Any:
        group = next(group for group in self.port.groups if group.name == self.where())
        return self.site.ask(target, "take_queues", group.name, [(group.local_light(self.light), self.light)])

    def publish(self, *bodies: bytes) -> None:
        results = self.ask("submit", [Message("t", body, b"TAGS\x01a\x02", "a") for body in bodies])
        assert all(isinstance(result, int) for result in results)
        self.site.wait(200)

    def taken(self) -> list[bytes]:
        found: list[bytes] = []
        while deliveries := self.ask("acquire", self.cursor, 1, 100, 1 << 20):
            found += [each.message.body for each in deliveries]
            self.port.settle([(self.cursor, each.offset, Outcome.ACK) for each in deliveries])
            self.site.wait(50)
        return found


@pytest.fixture
def gateways() -> Gateways:
    return Gateways()


def others(gateways: Gateways) -> list[str]:
    return [name for name in ("a", "b", "c") if name != gateways.source]


def test_consumers_go_on_where_it_is_now(gateways: Gateways) -> None:
    gateways.publish(b"1", b"2")
    gateways.port.watch(gateways.cursor, gateways.ready.append)
    held = gateways.ask("acquire", gateways.cursor, 1, 10, 1 << 20)
    gateways.site.wait(50)
    assert gateways.ask("acquire", gateways.cursor, 1, 10, 1 << 20) == []
    gateways.ready.clear()
    target = others(gateways)[0]
    assert gateways.move(target) is None
    gateways.site.wait(200)
    assert gateways.where() == target
    assert gateways.ready, "nobody was called"
    gateways.port.settle([(gateways.cursor, held[0].offset, Outcome.ACK)])
    gateways.publish(b"3")
    found = gateways.ask("acquire", gateways.cursor, 1, 10, 1 << 20)
    assert [(each.message.body, each.count) for each in found] == [(b"1", 2), (b"2", 2), (b"3", 1)]
    assert gateways.move(others(gateways)[1]) is None
    gateways.site.wait(200)
    assert gateways.move(gateways.source) is None
    gateways.site.wait(200)
    assert gateways.taken() == [b"1", b"2", b"3"]
    gateways.publish(b"4")
    assert gateways.taken() == [b"4"]


def test_its_seats_are_taken_again(gateways: Gateways) -> None:
    seat, active = gateways.ask("take_seat", gateways.cursor, Terms(exclusive=True), lambda seat, active: None)
    assert active
    assert gateways.move(others(gateways)[0]) is None
    gateways.site.wait(200)
    other = gateways.ask("open_cursor", f"~{gateways.light}", "g", EARLIEST, port=gateways.ports[1])
    refused = gateways.ask("take_seat", other.cursor, Terms(), lambda seat, active: None, port=gateways.ports[1])
    assert isinstance(refused, GantryError)
    assert gateways.ask("stats", [gateways.cursor])[0].consumers == 1
    assert gateways.ask("leave_seat", gateways.cursor, seat) == 0


@pytest.mark.parametrize("which", range(6))
def test_what_is_asked_while_it_is_frozen_waits_for_it(gateways: Gateways, which: int) -> None:
    gateways.publish(b"1")
    target = others(gateways)[0]
    _, own = split_light(gateways.light)
    node = gateways.site.nodes[gateways.source]
    node.call("freeze_lights", [(own, gateways.light)], target, "m")
    box: list[Any] = []
    method, args = [
        ("set_policy", (gateways.cursor, Policy("q"))),
        ("purge", (gateways.cursor,)),
        ("add_route", (Route("r/2", "prefix", None, "b", gateways.light),)),
        ("remove_routes", ([f"r/{gateways.light}"],)),
        ("open_cursor", (f"~{gateways.light}", "h", EARLIEST)),
        ("take_seat", (gateways.cursor, Terms(), lambda seat, active: None)),
    ][which]
    getattr(gateways.port, method)(*args, None, lambda token, result: box.append(result))
    gateways.site.wait(300)
    assert not box
    assert gateways.ask("acquire", gateways.cursor, 1, 10, 1 << 20) == []
    node.call("end_freeze", [own], "m", False)
    assert gateways.move(target) is None
    gateways.site.wait(500)
    assert box
    assert not isinstance(box[0], GantryError)


def test_it_is_unavailable_while_its_group_is_away_and_gone_when_that_is_forgotten(gateways: Gateways) -> None:
    target = next(name for name in others(gateways) if name != "a")
    assert gateways.move(target) is None
    gateways.site.wait(200)
    gateways.site.kill(target)
    gateways.site.wait(200)
    found = gateways.ask("open_cursor", f"~{gateways.light}", "g", FIND, port=gateways.ports[1])
    assert isinstance(found, GantryError)
    assert found.code is ErrorCode.UNAVAILABLE
    gateways.site.forget(target)
    next(group for group in gateways.ports[1].groups if group.name == target).registered = False
    gateways.site.wait(6_000)
    found = gateways.ask("open_cursor", f"~{gateways.light}", "g", FIND, port=gateways.ports[1])
    assert isinstance(found, GantryError)
    assert found.code in (ErrorCode.QUEUE_NOT_FOUND, ErrorCode.UNAVAILABLE)


def test_a_queue_that_is_deleted_leaves_nothing_behind(gateways: Gateways) -> None:
    assert gateways.move(others(gateways)[0]) is None
    assert gateways.move(others(gateways)[1]) is None
    gateways.site.wait(200)
    assert gateways.ask("delete_light", gateways.light) is None
    gateways.site.wait(2_000)
    assert not any(node.broker.tables.rows(MOVED_TABLE) for node in gateways.site.nodes.values())


def test_one_that_ends_by_itself_leaves_nothing_either(gateways: Gateways) -> None:
    target = others(gateways)[0]
    assert gateways.move(target) is None
    gateways.site.wait(200)
    assert gateways.ask("set_policy", gateways.cursor, Policy("q", expires_ms=1_000)) is None
    gateways.site.wait(3_000)
    assert not any(node.broker.tables.rows(MOVED_TABLE) for node in gateways.site.nodes.values())
