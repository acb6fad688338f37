"""The broker groups of a cluster with slots, each for itself, as a command reaches them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.broker.tables.slot_table import SLOTS_TABLE
from gantrymq.cluster.slots.changes import Readable
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Steps, run

if TYPE_CHECKING:
    from gantrymq.broker.tables.slot_table import SlotTable
    from gantrymq.cli.mqtt.reach import Tables
    from gantrymq.cluster.group import Group

WITHOUT: str = "no broker here has broker.metadata_group: a broker that is alone needs none, several need the same"


class Reached:
    """The groups of a cluster with slots, as this command reaches them."""

    def __init__(self, reach: Tables) -> None:
        self.reach = reach
        self.groups: dict[str, Group] = {group.name: group for group in reach.port.groups}  # type: ignore[attr-defined]

    def at(self, name: str) -> Group:
        """Raises UNAVAILABLE."""
        group = self.groups.get(name)
        if group is None or not group.port.up:
            raise GantryError(ErrorCode.UNAVAILABLE, f"the broker group {name} does not answer")
        return group

    def is_there(self, name: str) -> bool:
        """It answers."""
        return name in self.groups and self.groups[name].port.up

    @property
    def keeper(self) -> str:
        """The metadata group. Raises NOT_FOUND."""
        head = self.reach.port.slots.table.head  # type: ignore[attr-defined]
        if head is None:
            raise GantryError(ErrorCode.NOT_FOUND, WITHOUT)
        return str(head.keeper)

    async def table(self) -> SlotTable:
        """As the metadata group has it."""
        rows: dict[str, bytes] = await self.reach.ask(self.at(self.keeper).port.watch_table, SLOTS_TABLE, None)
        return Readable(f"broker group {self.keeper}").table(rows)

    async def do(self, steps: Steps) -> Any:
        """A procedure, awaited."""
        return await self.reach.ask(lambda token, done: run(steps, partial(done, token)))
