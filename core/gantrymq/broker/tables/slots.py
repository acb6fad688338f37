"""What a broker knows of the slots: whether it is the one that decides about a name, under the epoch that a request has.

It starts with the copy of its own table, and answers for no slot before the metadata group has heard of its start (cluster/slots/keeping.py):
its slots may have been given away meanwhile. A slot that goes to another group is stopped here first; leases of it end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.port import row_name
from gantrymq.broker.tables.group_tables import GROUP_TABLES, LIGHT_BITS, LIGHTS_TABLE, STATE_TABLE, STAYING_TABLES, TAG
from gantrymq.broker.tables.slot_table import HEAD, SLOTS_TABLE, SlotTable, slot_of
from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    from gantrymq.broker.config import BrokerConfig
    from gantrymq.broker.consuming.leases import Leases
    from gantrymq.broker.tables.tables import Tables
    from gantrymq.services import Turn

Under = tuple[int, int]
"""A slot and its epoch, as whoever asks knows them."""

_FOREVER: Final = -1


class Slots:
    """See the module. `keeper`: the metadata group; empty: this broker knows of no slots."""

    def __init__(self, config: BrokerConfig, tables: Tables, turn: Turn, leases: Leases) -> None:
        self._tables = tables
        self._turn = turn
        self._leases = leases
        self.name = config.name
        self.keeper = config.metadata_group
        self.table = SlotTable()
        self.life = ""
        """This start, random; empty: nobody has begun to keep the table."""
        self.known = False
        """The metadata group has heard of this start."""
        self.waits = ""
        """Why the last attempt to take part failed, in a sentence."""
        self._had_table = False
        self._on_stopped: Callable[[], None] = lambda: None
        self._stopped: dict[int, int] = {}
        """Epochs under which slots are answered no more."""
        self._gone: set[int] = set()
        """Slots of other groups now, whose leases are to end in this turn."""
        tables.watch(SLOTS_TABLE, self.learn)

    def open(self) -> None:
        """As Part.open. Raises ILLEGAL_ARGUMENT where other groups have parts of the queues."""
        self._refuse_shared_queues()
        self.table = SlotTable(self._tables.rows(SLOTS_TABLE))
        self._had_table = self.table.head is not None

    @property
    def knows_groups(self) -> bool:
        """Whether it knows for whom it takes records: with a new directory not before it has the table."""
        keeps = self.keeper == self.name and self.table.head is not None
        return self.known or self._had_table or keeps or not self.keeper

    def _refuse_shared_queues(self) -> None:
        """Versions before had a part of a queue in each group (docs/decisions/0007). Who has had the table of slots has none of them."""
        if HEAD in self._tables.rows(SLOTS_TABLE):
            return
        inherited = {int(key[len(TAG) :]) for key in self._tables.rows(STATE_TABLE) if key.startswith(TAG)}
        shared = [light for light in self._tables.rows(LIGHTS_TABLE) if int(light) >> LIGHT_BITS not in inherited]
        if shared:
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT,
                f"broker {self.name} has parts of {len(shared)} queues that other broker groups made, and a queue lies in one group now: "
                f"drain the cluster to one broker with the version before (its gantry broker drain), then start that one with this version",
            )

    def close(self) -> None:
        """As Part.close."""

    def learn(self, key: str, value: bytes | None) -> None:
        """A row of the table, this group's own or the metadata group's."""
        slot = self.table.apply(key, value)
        if slot is None:
            return
        self._stopped.pop(slot, None)
        if self.table.slots[slot].owner != self.name:
            if not self._gone:
                self._turn.at_deliver(self._end)
            self._gone.add(slot)

    def _end(self) -> None:
        """Behind the rows that say so: who watches them knows the new owner when he hears that he lost a lease here."""
        gone, self._gone = {slot for slot in self._gone if self.table.slots[slot].owner != self.name}, set()
        self._leases.drop_slots(gone)

    def begin(self, life: str, on_stopped: Callable[[], None]) -> None:
        """Somebody keeps or follows the table from now on; `on_stopped` is called when slots were stopped."""
        self.life = life
        self._on_stopped = on_stopped

    def why_silent(self) -> str:
        """Why this broker answers for no slot; empty: it does for its own."""
        table = self.table
        if not self.keeper:
            return f"broker {self.name} has no broker.metadata_group"
        if table.head is None:
            return self.waits or f"broker {self.name} has no table of slots yet"
        if table.head.keeper != self.keeper:
            return f"broker {self.name} has broker.metadata_group={self.keeper}, and slots of a table that {table.head.keeper} keeps"
        if self.name != self.keeper:
            why = f" ({self.waits})" if self.waits else ""
            text = f"broker {self.name} has not reached its metadata group {self.keeper} since it started{why}"
            return "" if self.known else text
        missing = [name for name, seen in table.groups.items() if seen.met != self.life]
        if not self.life or table.head.life != self.life:
            return f"broker {self.name} is starting"
        if missing:
            return f"the metadata group {self.name} waits for {', '.join(sorted(missing))}, which may know later changes of the slots"
        return ""

    def check(self, under: Under) -> None:
        """Raise NOT_OWNER if this broker does not decide about the slot under that epoch."""
        why = self.why_silent()
        if why:
            raise GantryError(ErrorCode.NOT_OWNER, why)
        slot, epoch = under
        have = self.table.slots.get(slot)
        if have is None or have.epoch < epoch:
            raise GantryError(ErrorCode.NOT_OWNER, f"broker {self.name} has not heard yet who has slot {slot}")
        if have.epoch > epoch:
            raise GantryError(
                ErrorCode.NOT_OWNER, f"slot {slot} was asked for under an older epoch; it is {have.owner}'s now"
            )
        if have.owner != self.name:
            raise GantryError(ErrorCode.NOT_OWNER, f"slot {slot} is {have.owner}'s, not {self.name}'s")
        if self._stopped.get(slot, _FOREVER) == epoch:
            raise GantryError(ErrorCode.NOT_OWNER, f"slot {slot} is on its way to another broker group")

    def refuse_elsewhere(self, table: str, keys: Iterable[str]) -> None:
        """Raise NOT_OWNER for rows that this broker has not, of names of other groups' slots: a row that moved there must not come back here."""
        if not self.keeper or table in GROUP_TABLES or table in STAYING_TABLES:
            return
        rows = self._tables.rows(table)
        for key in keys:
            if key not in rows:
                slot = slot_of(row_name(table, key))
                have = self.table.slots.get(slot)
                if have is not None and have.owner != self.name:
                    raise GantryError(
                        ErrorCode.NOT_OWNER,
                        f"slot {slot} of a new row of table {table} is {have.owner}'s, not {self.name}'s",
                    )

    def stop(self, wanted: Sequence[Under], only_free: bool) -> tuple[str, list[int]]:
        """Answer no more for these slots, of which `only_free` takes those without leases; until a later epoch says whose they are.
        Returns this broker's start, and the slots. Raises NOT_OWNER."""
        why = self.why_silent()
        if why:
            raise GantryError(ErrorCode.NOT_OWNER, why)
        used = self._leases.slots() if only_free else set()
        found: list[int] = []
        for slot, epoch in wanted:
            have = self.table.slots.get(slot)
            if have is not None and have.owner == self.name and have.epoch == epoch and slot not in used:
                self._stopped[slot] = epoch
                found.append(slot)
        if found:
            self._on_stopped()
        return self.life, found

    def stopped(self) -> dict[int, int]:
        """Slots that are stopped, with their epochs."""
        return dict(self._stopped)

    def show(self) -> dict[str, Any]:
        """For people."""
        return {"keeper": self.keeper, "owned": len(self.table.owned_by(self.name)), "silent": self.why_silent()}
