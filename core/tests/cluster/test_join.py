"""Groups that come (again): several need a table of slots; nothing is copied, what was open there is opened again."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.port import END, Route, Terms
from gantrymq.broker.tables.group_tables import LIGHTS_TABLE, STATE_TABLE
from gantrymq.cluster.port import ClusterPort
from gantrymq.cluster.slots.keeping import SlotKeeper, tell_gateways
from gantrymq.model.errors import ErrorCode
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node
from tests.cluster.owned.test_queues import Owners
from tests.cluster.site import Line, Site, message, publish, queue, take
from tests.cluster.slots.slot_site import SlotSite, node_of
from tests.cluster.slots.test_view import code

TABLES = ("light", "cursor", "route", LIGHTS_TABLE)


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
    assert "broker group z has no table of slots, which the cluster has: give all brokers the same" in group.complaint
    assert port.up


ALONE = "give all brokers the same broker.metadata_group (docs/operations/cluster.md)"


def without_slots(*names: str) -> tuple[Site, Any]:
    """Brokers that know of no slots, and a gateway that is not connected to any yet."""
    site = Site(*names)
    port: Any = ClusterPort(site.turn, site.wheel, "g")
    lines: dict[str, Line] = {}
    for name, node in site.nodes.items():
        lines[name] = line = Line(node)
        line.cut()
        port.add_group(name, line)
    port.complete_now()
    site.gateways.append((port, lines))
    site.run()
    return site, port


def used(port: Any) -> list[str]:
    return [group.name for group in port.ready_groups()]


def test_a_second_group_without_slots_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    site = Site("a")
    port: Any = site.gateway()
    _, cursor = queue(site, port)
    site.add_node("b")
    assert used(port) == ["a"]
    text = f"broker group b has no table of slots, nor has a, which is in use: {ALONE}"
    assert (port.groups[1].complaint, port.why()) == (text, text)
    assert caplog.text.count(text) == 1
    assert not site.nodes["b"].broker.tables.rows(STATE_TABLE)
    bodies = publish(site, port, 5, 10)
    assert take(site, port, cursor) == bodies
    assert site.call(port, "remove_routes", ["r0", "none"]) is None, "the other one has none"
    for number in range(5):
        assert site.call(port, "take_lease", f"x{number}", False, lambda name: None) > 0
    assert used(site.gateway()) == ["a"], "a gateway that comes later says the same"


def test_of_two_new_groups_without_slots_none_is_used(caplog: pytest.LogCaptureFixture) -> None:
    site, port = without_slots("a", "b")
    for name in ("a", "b"):
        site.line(port, name).mend()
    site.wait(10_000)
    assert (used(port), port.up) == ([], False)
    for one, other in (("a", "b"), ("b", "a")):
        text = f"broker group {one} has no table of slots, and {other} is registered, too: {ALONE}"
        assert caplog.text.count(text) == 1
        assert text.removesuffix(f": {ALONE}") in port.why()
    assert port.why().count(ALONE) == 1, "what is to be done is said once"
    assert site.call(port, "submit", [message("t", b"")]) == [ErrorCode.UNAVAILABLE]
    refused = site.call(port, "take_lease", "x", False, lambda name: None)
    assert code(refused) is ErrorCode.UNAVAILABLE
    assert port.why() in refused.text
    assert not any(node.broker.tables.rows(STATE_TABLE) for node in site.nodes.values())
    port.groups[1].registered = False
    site.wait(10_000)
    assert (used(port), port.up) == (["a"], True), "it is the only one"


def test_of_several_groups_without_slots_the_first_of_the_cluster_is_used() -> None:
    site = Site("a", "b")
    site.gateway("b")
    late, port = without_slots("a", "b")
    late.nodes = site.nodes
    for name in ("a", "b"):
        line = late.line(port, name)
        line.node = site.nodes[name]
        line.mend()
    late.wait(1_000)
    assert used(port) == ["b"]
    assert "nor has b, which is in use" in port.why()


def test_a_group_without_slots_that_was_in_use_is_used_again() -> None:
    """Its disk was replaced, and says nothing of earlier times."""
    site, port = without_slots("a")
    site.line(port, "a").mend()
    site.add_node("b")
    assert used(port) == ["a"]
    line = site.line(port, "a")
    line.cut()
    site.wait(10_000)
    assert used(port) == [], "the other one was never used, and this one is registered"
    line.node = site.nodes["a"] = Node(MemoryFileSystem(), False)
    line.mend()
    site.wait(1_000)
    assert used(port) == ["a"]


def test_a_group_with_slots_is_refused_beside_one_that_is_in_use_without() -> None:
    """What is in use goes on as it was."""
    slots = SlotSite("a")
    site = Site("z")
    port: Any = site.gateway()
    site.nodes["a"] = slots.nodes["a"]
    group = port.add_group("a", Line(slots.nodes["a"]))
    site.wait(1_000)
    assert used(port) == ["z"]
    assert group.complaint == f"broker group a has a table of slots, and z, which is in use, has none: {ALONE}"
    assert not port.slots.known
    assert site.call(port, "take_lease", "x", False, lambda name: None) > 0
    site.line(port, "z").cut()
    site.wait(10_000)
    assert used(port) == ["a"]
    site.line(port, "z").mend()
    site.wait(1_000)
    assert used(port) == ["a"]
    assert port.groups[0].complaint == f"broker group z has no table of slots, which the cluster has: {ALONE}"


def test_a_broker_alone_that_gets_slots_is_used_with_them() -> None:
    site, port = without_slots("a")
    site.line(port, "a").mend()
    site.run()
    light, _ = queue(site, port)
    assert not port.slots.known
    site.line(port, "a").cut()
    site.nodes["a"].flush()
    node = node_of("a", site.nodes["a"].files.after_process_crash())
    SlotKeeper(node.broker, None, lambda bits: 7).start()
    site.line(port, "a").node = site.nodes["a"] = node
    site.line(port, "a").mend()
    site.wait(1_000)
    assert (used(port), port.slots.known) == (["a"], True)
    assert site.call(port, "take_lease", "x", False, lambda name: None) > 0
    assert site.call(port, "open_cursor", f"~{light}", "g", END).ready == 0
