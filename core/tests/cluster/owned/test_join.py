"""Groups that come (again) where the cluster has slots: nothing is copied, what was open there is opened again."""

from __future__ import annotations

from typing import Any

from gantrymq.broker.port import END, Route, Terms
from gantrymq.broker.tables.group_tables import GONE_TABLE, LIGHTS_TABLE
from gantrymq.cluster.slots.keeping import tell_gateways
from gantrymq.model.errors import ErrorCode
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node
from tests.cluster.owned.test_queues import Owners
from tests.cluster.site import Line, message, take
from tests.cluster.slots.slot_site import SlotSite, node_of
from tests.cluster.slots.test_view import code

TABLES = ("light", "cursor", "route", LIGHTS_TABLE, GONE_TABLE)


def test_a_group_that_comes_gets_nothing_of_the_others() -> None:
    owners = Owners()
    site, one = owners.site, owners.one
    before = {table: owners.rows(table) for table in TABLES}
    site.start("d", MemoryFileSystem())
    for port, lines in site.gateways:
        lines["d"] = Line(site.nodes["d"])
        port.add_group("d", lines["d"])  # type: ignore[arg-type]
    site.wait(1000)
    assert [group.name for group in one.ready_groups()] == ["a", "b", "c", "d"]
    assert not any(group.missed for group in one.groups)
    assert {table: owners.rows(table) for table in TABLES} == before
    assert not site.nodes["d"].broker.router.routes


def test_a_group_that_was_away_is_waited_for_by_nobody() -> None:
    """It missed what was added and removed elsewhere, which is none of its business."""
    owners = Owners()
    site, one = owners.site, owners.one
    disk = site.kill("b")
    light = owners.make("c")
    assert owners.call(one, "open_cursor", f"~{light}", "g", END).ready == 0
    assert owners.call(one, "add_route", Route("r2", "prefix", None, "a", light)) is None
    for name in ("a", "c"):
        site.line(one, name).cut()
    site.run()
    assert not one.up
    site.start("b", disk)
    site.wait(1000)
    assert one.up
    assert [group.name for group in one.ready_groups()] == ["b"]
    assert (owners.rows("route"), owners.rows("light")) == ({"b": 1, "c": 1}, {"b": 1, "c": 1})
    assert code(owners.call(one, "delete_light", light)) is ErrorCode.UNAVAILABLE


def test_what_was_open_at_the_owner_is_opened_again_there() -> None:
    owners = Owners()
    site, one = owners.site, owners.one
    light = owners.make("c")
    cursor = owners.call(one, "open_cursor", f"~{light}", "g", END).cursor
    ready: list[int] = []
    one.watch(owners.cursor, ready.append)
    site.nodes["b"].call("ensure_topic", "t0", True)
    site.run()
    assert take(site, one, owners.cursor) == []
    site.start("b", site.kill("b"))
    site.wait(1000)
    site.nodes["b"].call("submit", [message("t0", b"x")])
    site.run()
    assert ready == [owners.cursor]
    assert take(site, one, owners.cursor) == [b"x"]
    assert take(site, one, cursor) == []
    assert owners.rows("cursor") == {"b": 1, "c": 1}


def test_a_queue_that_was_deleted_meanwhile_holds_up_nobody() -> None:
    owners = Owners()
    site, one, other = owners.site, owners.one, owners.other
    site.line(one, "b").cut()
    site.run()
    assert owners.call(other, "delete_light", owners.light) is None
    site.line(one, "b").mend()
    site.wait(1000)
    assert [group.name for group in one.ready_groups()] == ["a", "b", "c"]
    assert code(owners.call(one, "purge", owners.cursor)) is ErrorCode.QUEUE_NOT_FOUND
    assert take(site, one, owners.cursor) == []
    assert owners.call(one, "delete_cursor", owners.cursor) is None
    assert owners.rows("cursor") == {}
    assert code(owners.call(one, "take_seat", owners.cursor, Terms(), lambda seat, active: None)) is ErrorCode.NOT_FOUND


def test_a_group_that_is_to_have_the_table_is_not_used_before() -> None:
    """Else its queues would be merged with the others' until it has it."""
    site = SlotSite("a")
    site.nodes["b"] = node_of("b", MemoryFileSystem())
    tell_gateways(site.nodes["b"].broker)
    site.run()
    port: Any = site.gateway("a")
    line = Line(site.nodes["b"])
    site.gateways[0][1]["b"] = line
    group = port.add_group("b", line)
    site.wait(1000)
    assert not group.ready
    assert "waits for its metadata group a" in group.complaint
    site.start("b", MemoryFileSystem())
    site.wait(6000)
    assert group.ready


def test_a_broker_without_the_setting_is_not_used_beside_those_that_have_slots() -> None:
    site = SlotSite("a")
    port: Any = site.gateway("a")
    site.nodes["z"] = Node(MemoryFileSystem(), False)
    group = port.add_group("z", Line(site.nodes["z"]))
    site.wait(1000)
    assert not group.ready
    assert "every broker needs the same broker.metadata_group" in group.complaint
    assert port.up
