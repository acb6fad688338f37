"""Gateways over groups with slots: leases, consumers and new rows are their slot's owner's, whatever groups each gateway sees."""

from __future__ import annotations

from typing import Any

from gantrymq.broker.tables.slot_table import HEAD, SLOTS_TABLE, slot_of
from gantrymq.cluster.group import ASK_MS
from gantrymq.cluster.port import ClusterPort
from gantrymq.cluster.slots.keeping import STOPPED_MS
from gantrymq.model.errors import ErrorCode, GantryError
from tests.cluster.site import Line
from tests.cluster.slots.slot_site import SlotSite, stopping


def name_of(site: SlotSite, owner: str, kind: str = "lease", prefix: str = "client") -> str:
    """A name whose owner is that group."""
    table = site.table()
    return next(
        name
        for number in range(10_000)
        if table.slots[slot_of(f"{kind}/{(name := f'{prefix}{number}')}")].owner == owner
    )


class Gateways:
    """Two gateways over `a`, `b` and `c`; what they lost."""

    def __init__(self) -> None:
        self.site = SlotSite("a", "b", "c")
        self.one, self.other = self.site.gateway(), self.site.gateway()
        self.lost: list[tuple[str, str]] = []

    def start_take(self, port: ClusterPort, name: str, force: bool = False) -> list[Any]:
        who = "one" if port is self.one else "other"
        box: list[Any] = []
        port.take_lease(
            name, force, lambda lost: self.lost.append((who, lost)), None, lambda _, result: box.append(result)
        )
        self.site.run()
        return box

    def take(self, port: ClusterPort, name: str, force: bool = False) -> Any:
        (result,) = self.start_take(port, name, force)
        return result

    def held_at(self, name: str) -> list[str]:
        """Groups where somebody holds it."""
        nodes = self.site.nodes.items()
        return [group for group, node in nodes if group not in self.site.away and not node.broker.leases.is_free(name)]


def code(result: Any) -> ErrorCode | None:
    return result.code if isinstance(result, GantryError) else None


def test_gateways_that_see_different_groups_give_one_lease() -> None:
    gateways = Gateways()
    site = gateways.site
    name = name_of(site, "b")
    site.line(gateways.other, "b").cut()
    site.run()
    next(group for group in gateways.other.groups if group.name == "b").registered = False
    gateways.other.members_changed()
    assert code(gateways.take(gateways.other, name)) is ErrorCode.UNAVAILABLE
    assert isinstance(gateways.take(gateways.one, name), int)
    assert code(gateways.take(gateways.other, name)) is ErrorCode.UNAVAILABLE
    assert gateways.held_at(name) == ["b"]
    assert site.call(gateways.one, "is_free", name) is False
    assert isinstance(gateways.take(gateways.other, name_of(site, "c")), int), "others go on"


def test_names_of_a_group_that_is_gone_wait_for_it() -> None:
    gateways = Gateways()
    site = gateways.site
    name = name_of(site, "b")
    disk = site.kill("b")
    assert code(gateways.take(gateways.one, name)) is ErrorCode.UNAVAILABLE
    site.start("b", disk)
    site.wait(1000)
    assert isinstance(gateways.take(gateways.one, name), int)
    assert code(gateways.take(gateways.other, name)) is ErrorCode.LEASE_HELD


def test_leases_move_with_their_slot() -> None:
    gateways = Gateways()
    site = gateways.site
    name = name_of(site, "b")
    epoch = gateways.take(gateways.one, name)
    slot = slot_of(f"lease/{name}")
    assert site.move("b", "c", [slot]) == [slot]
    site.wait(1000)
    assert gateways.held_at(name) == ["c"]
    assert gateways.lost == []
    assert code(gateways.take(gateways.other, name)) is ErrorCode.LEASE_HELD
    assert isinstance(gateways.take(gateways.other, name, True), int)
    assert gateways.lost == [("one", name)]
    gateways.one.drop_lease(name, epoch)
    site.run()
    assert gateways.held_at(name) == ["c"]


def test_a_gateway_that_does_not_reach_the_new_owner_loses_nothing_to_two() -> None:
    """It keeps what it has, and what it has counts nowhere: who comes to the new owner gets it, and the old one answers no more."""
    gateways = Gateways()
    site = gateways.site
    name = name_of(site, "b")
    gateways.take(gateways.one, name)
    site.line(gateways.one, "c").cut()
    slot = slot_of(f"lease/{name}")
    site.move("b", "c", [slot])
    site.wait(1000)
    assert gateways.held_at(name) == []
    assert isinstance(gateways.take(gateways.other, name), int)
    assert gateways.held_at(name) == ["c"]
    site.line(gateways.one, "c").mend()
    site.wait(1000)
    assert gateways.lost == [("one", name)]


def test_a_request_waits_for_the_end_of_a_move() -> None:
    gateways = Gateways()
    site = gateways.site
    name = name_of(site, "b")
    slot = slot_of(f"lease/{name}")
    site.do(stopping(Line(site.nodes["b"]), [(slot, site.table().slots[slot].epoch)]))
    box = gateways.start_take(gateways.one, name)
    assert box == []
    site.wait(ASK_MS + 200)
    assert code(box[0]) is ErrorCode.UNAVAILABLE
    assert "on its way" in box[0].text
    site.wait(STOPPED_MS - ASK_MS)
    box = gateways.start_take(gateways.one, name)
    site.wait(2 * STOPPED_MS)
    assert isinstance(box[0], int)


def test_a_gateway_with_an_older_table_is_refused_and_learns() -> None:
    """Its links to those who know are cut while the slot moves; the owner that it asks has not forgotten."""
    gateways = Gateways()
    site = gateways.site
    name = name_of(site, "b")
    slot = slot_of(f"lease/{name}")
    for group in ("a", "c"):
        site.line(gateways.one, group).cut()
    held = site.line(gateways.one, "b")
    held.hang()
    site.move("b", "c", [slot])
    box = gateways.start_take(gateways.one, name)
    held.thaw()
    site.wait(ASK_MS + 200)
    assert code(box[0]) is ErrorCode.UNAVAILABLE
    assert gateways.held_at(name) == []
    for group in ("a", "c"):
        site.line(gateways.one, group).mend()
    site.wait(1000)
    assert isinstance(gateways.take(gateways.one, name), int)
    assert gateways.held_at(name) == ["c"]


def test_a_new_gateway_learns_from_any_copy() -> None:
    gateways = Gateways()
    site = gateways.site
    slots = site.table().owned_by("a")[:50]
    site.move("a", "c", slots)
    site.kill("a")
    port = site.gateway("b", "c")
    assert port.slots.table.owned_by("c") == site.table("c").owned_by("c")
    assert isinstance(gateways.take(port, name_of(site, "c")), int)
    assert code(gateways.take(port, name_of(site, "a"))) is ErrorCode.UNAVAILABLE


def test_new_rows_lie_at_the_owner() -> None:
    gateways = Gateways()
    site = gateways.site
    for number in range(60):
        assert site.call(gateways.one if number % 2 else gateways.other, "put", "t", [(f"k{number}", b"v")]) is None
    for name, node in site.nodes.items():
        for key in node.broker.tables.rows("t"):
            assert site.table().slots[slot_of(f"t/{key}")].owner == name
    site.kill("b")
    refused = site.call(gateways.one, "put", "t", [(name_of(site, "b", "t", "new"), b"v")])
    assert code(refused) is ErrorCode.UNAVAILABLE


def test_a_group_of_another_table_is_not_used() -> None:
    site = SlotSite("a", "b")
    port = site.gateway("a")
    other = SlotSite("a")
    rows = other.nodes["a"].broker.tables.rows(SLOTS_TABLE)
    other.nodes["a"].broker.put(SLOTS_TABLE, [(HEAD, rows[HEAD].replace(b'"keeper":"a"', b'"keeper":"z"'))], None, None)
    other.run()
    line = Line(other.nodes["a"])
    site.nodes["z"] = other.nodes["a"]
    group = port.add_group("z", line)  # type: ignore[arg-type]
    site.run()
    assert not group.ready
    assert "give all brokers the same broker.metadata_group" in group.complaint


def test_a_name_whose_slot_no_copy_has_waits_for_it_and_others_go_on() -> None:
    gateways = Gateways()
    site, one = gateways.site, gateways.one
    name = name_of(site, "b")
    slot = slot_of(f"lease/{name}")
    gap = one.slots.table.slots.pop(slot)
    refused = gateways.take(one, name)
    assert code(refused) is ErrorCode.UNAVAILABLE
    assert f"no connected broker group has a row of slot {slot}, that of lease/{name}" in refused.text
    assert isinstance(gateways.take(one, name_of(site, "c")), int)
    one.slots.table.slots[slot] = gap
    assert isinstance(gateways.take(one, name), int)
