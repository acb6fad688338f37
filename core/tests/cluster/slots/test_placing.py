"""Which queues lie elsewhere than where their names are decided about."""

from __future__ import annotations

import json
from typing import Any

from gantrymq.broker.tables.slot_table import Slot, SlotTable
from gantrymq.cluster.names import cluster_light
from gantrymq.cluster.slots.placing import QUEUES_AT_ONCE, Go, goes
from gantrymq.net.procedures.driver import run


class Group:
    """A broker group with these tables."""

    def __init__(self, name: str, tag: int, **tables: dict[str, bytes]) -> None:
        self.name, self.tag, self.tables = name, tag, tables
        self.port: Any = self

    def watch_table(self, table: str, on_change: Any, token: Any, on_done: Any) -> None:
        on_done(token, self.tables.get(table, {}))


def planned(group: Group, owners: dict[int, str], staying: list[str], leaves: bool = False) -> list[Go]:
    table = SlotTable()
    table.slots.update({slot: Slot(owner, 1) for slot, owner in owners.items()})
    box: list[Any] = []
    run(goes(group, table, staying, leaves), box.append)
    found: list[Go] = box[0]
    return found


def light(slot: int) -> bytes:
    return json.dumps({"slot": slot}).encode()


def test_queues_go_where_their_slots_are() -> None:
    lights = {"next": b"9", "1": light(1), "2": light(2), "3": light(2), "4": b"{}", "5": light(3), "6": light(4)}
    group = Group("a", 7, light=lights, forward={"to/b/x": b"5"}, cluster_moved={"99": b"3 2", "98": b"0 1"})
    owners = {1: "a", 2: "b", 3: "b", 4: "z"}
    assert planned(group, owners, ["a", "b"]) == [Go("a", "b", [(2, cluster_light(7, 2)), (3, 99)])]


def test_who_leaves_keeps_none() -> None:
    lights = {"next": b"9", "1": light(1), "2": light(2), "4": b"{}"}
    found = planned(Group("a", 0, light=lights), {1: "a", 2: "b"}, ["b", "c"], leaves=True)
    assert sorted(own for go in found for own, _ in go.queues) == [1, 2, 4]
    assert next(go.target for go in found if (2, 2) in go.queues) == "b"


def test_not_all_go_at_once() -> None:
    lights = {str(number): light(1) for number in range(1, 2 * QUEUES_AT_ONCE + 2)}
    found = planned(Group("a", 0, light=lights), {1: "b"}, ["a", "b"])
    assert [len(go.queues) for go in found] == [QUEUES_AT_ONCE, QUEUES_AT_ONCE, 1]
