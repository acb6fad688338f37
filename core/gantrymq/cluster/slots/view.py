"""The slots as a gateway process sees them: of every group's copy the latest row counts. Requests go to a slot's owner, under its epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gantrymq.broker.tables.slot_table import HEAD, SlotTable, slot_of
from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    from gantrymq.broker.tables.slots import Under
    from gantrymq.services import Turn


class SlotView:
    """`on_changed` is called at the end of a turn in which slots got other owners or epochs."""

    def __init__(self, turn: Turn, on_changed: Callable[[], None]) -> None:
        self.table = SlotTable()
        self._turn = turn
        self._on_changed = on_changed
        self._told = False

    @property
    def known(self) -> bool:
        """The cluster has a table of slots."""
        return bool(self.table.slots)

    @property
    def members(self) -> set[str]:
        """Groups that were not forgotten, where there are slots."""
        return {*self.table.groups, *([self.table.head.keeper] if self.table.head is not None else [])}

    def refuse_another(self, name: str, rows: Mapping[str, bytes]) -> None:
        """Raise ILLEGAL_ARGUMENT if a group has a table that another metadata group keeps."""
        head, known = SlotTable({HEAD: rows[HEAD]} if HEAD in rows else {}).head, self.table.head
        if head is not None and known is not None and head.keeper != known.keeper:
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT,
                f"broker group {name} has slots of a table that {head.keeper} keeps, others of one that {known.keeper} keeps; "
                f"give all brokers the same broker.metadata_group",
            )

    def learn(self, key: str, value: bytes | None) -> None:
        """A row of some group's copy."""
        if self.table.apply(key, value) is not None and not self._told:
            self._told = True
            self._turn.at_deliver(self._tell)

    def _tell(self) -> None:
        self._told = False
        self._on_changed()

    def owner(self, name: str) -> str | None:
        """The group that decides about a name, which may be away; None where no copy that this process has seen has the name's slot."""
        found = self.table.slots.get(slot_of(name))
        return None if found is None else found.owner

    def under(self, name: str) -> Under | None:
        """What a request for it carries; None where there are no slots."""
        slot = slot_of(name)
        found = self.table.slots.get(slot)
        return None if found is None else (slot, found.epoch)
