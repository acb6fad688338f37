"""Which queues lie elsewhere than where their names are decided about, and in which goes they move there."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from gantrymq.broker.tables.forward_table import TABLE as FORWARD_TABLE
from gantrymq.broker.tables.forward_table import door_queues
from gantrymq.broker.tables.group_tables import MOVED_TABLE, moved_from
from gantrymq.cluster.names import cluster_light, home_of
from gantrymq.net.procedures.driver import Steps

if TYPE_CHECKING:
    from gantrymq.broker.tables.slot_table import SlotTable
    from gantrymq.cluster.slots.changes import SlotPort

QUEUES_AT_ONCE: Final = 16
"""They are frozen together: some milliseconds for each."""


class Holder(Protocol):
    """A broker group."""

    @property
    def name(self) -> str: ...

    @property
    def tag(self) -> int: ...

    @property
    def port(self) -> SlotPort: ...


class Go(NamedTuple):
    """Queues that go from one group to another together: number there, id in the cluster."""

    source: str
    target: str
    queues: list[tuple[int, int]]


def goes(group: Holder, table: SlotTable, staying: Collection[str], leaves: bool) -> Steps:
    """What is to go from a group to its owners among `staying`; `leaves`: all that it has. A queue of no known name (one of before slots were noted)
    goes only then. Returns a list of `Go`."""
    lights: dict[str, bytes] = yield partial(group.port.watch_table, "light", None)
    forward: dict[str, bytes] = yield partial(group.port.watch_table, FORWARD_TABLE, None)
    moved: dict[str, bytes] = yield partial(group.port.watch_table, MOVED_TABLE, None)
    names = {light: int(name) for name, value in moved.items() if (light := moved_from(value).light)}
    by_target: dict[str, list[tuple[int, int]]] = {}
    for key in sorted(door_queues(lights, forward), key=int):
        light = int(key)
        name = names.get(light) or cluster_light(group.tag, light)
        target = _owner(lights[key], table)
        if leaves and (target not in staying or target == group.name):
            target = home_of(f"light/{name}", staying)
        if target != group.name and target in staying:
            by_target.setdefault(target, []).append((light, name))
    return [
        Go(group.name, target, queues[first : first + QUEUES_AT_ONCE])
        for target, queues in sorted(by_target.items())
        for first in range(0, len(queues), QUEUES_AT_ONCE)
    ]


def _owner(row: bytes, table: SlotTable) -> str:
    """Of the slot that a queue was made for; empty: it is not known."""
    found: Mapping[str, int] = json.loads(row)
    slot = table.slots.get(found.get("slot", -1))
    return slot.owner if slot is not None else ""
