"""Changes of the table of slots, at the metadata group: each is one piece, and holds only if nobody changed the table since it was read.

A group's start changes it, too. So nothing is given away of a group that stopped a slot, and was started again before the change: it
may answer for that slot once more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from gantrymq.broker.tables.slot_table import GROUP, HEAD, SLOTS_TABLE, Items, RandomBits, SlotTable, why_unreadable
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gantrymq.broker.port import Done
    from gantrymq.broker.tables.slots import Under

log = logging.getLogger(__name__)

TRIES: Final = 100
"""Each means that another change came between: a start of a group, or another move."""
AT_ONCE: Final = 64
"""Slots that are stopped and given away in one go: names of them wait for two answers and a write."""
TOLD_MAX: Final = 100
"""Rows that cannot be read, of which the log tells."""


class SlotPort(Protocol):
    """What is asked of a broker group: see GroupPort."""

    def watch_table(
        self, table: str, on_change: Callable[[str, bytes | None], None] | None, token: object, on_done: Done
    ) -> None: ...

    def put_together(
        self, table: str, key: str, expected: bytes | None, items: Sequence[tuple[str, bytes | None]], token: object, on_done: Done
    ) -> None: ...  # fmt: skip

    def stop_slots(self, wanted: Sequence[Under], only_free: bool, token: object, on_done: Done) -> None: ...

    def watch_state(self, on_state: Callable[[bool], None]) -> None: ...


class Move(NamedTuple):
    """One slot that its owner has stopped under `epoch`; `life`: that start of the owner."""

    slot: int
    epoch: int
    life: str
    target: str


class Readable:
    """Rows of the table of slots that another group has sent: one that nobody can read is left out, and told once. `whose`: that group."""

    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._told: set[tuple[str, bytes | None]] = set()

    def rows(self, rows: Iterable[tuple[str, bytes | None]]) -> Items:
        """Those that can be read."""
        return [row for row in rows if self._is_readable(*row)]

    def _is_readable(self, key: str, value: bytes | None) -> bool:
        why = why_unreadable(key, value) if value is not None else ""
        if why and (key, value) not in self._told and len(self._told) < TOLD_MAX:
            self._told.add((key, value))
            log.error("%s: row %.80r of table %s is left out: %.200s", self._whose, key, SLOTS_TABLE, why)
        return not why

    def known(self, rows: Mapping[str, bytes]) -> dict[str, bytes]:
        """Of a whole table."""
        return {key: value for key, value in rows.items() if self._is_readable(key, value)}

    def table(self, rows: Mapping[str, bytes]) -> SlotTable:
        """What they say."""
        return SlotTable(self.known(rows))


def change(keeper: SlotPort, decide: Callable[[SlotTable], Items], readable: Readable | None = None) -> Steps:
    """`decide(table)`: the rows to write, with the next head; none: nothing is to be done. Returns the table as it was read before the
    change."""
    readable = readable or Readable("the metadata group")
    for _ in range(TRIES):
        rows: dict[str, bytes] = yield partial(keeper.watch_table, SLOTS_TABLE, None)
        table = readable.table(rows)
        items = decide(table)
        if not items:
            return table
        done: bool = yield partial(keeper.put_together, SLOTS_TABLE, HEAD, rows[HEAD], items)
        if done:
            return table
    raise GantryError(ErrorCode.BUSY, f"the table of slots changed {TRIES} times while it was to be changed")


def commit(keeper: SlotPort, moves: list[Move], random_bits: RandomBits) -> Steps:
    """Give stopped slots to their targets. Returns those that went."""
    went: list[int] = []

    def decide(table: SlotTable) -> Items:
        went.clear()
        owners = {move.slot: move.target for move in moves if _holds(table, move)}
        went.extend(owners)
        return table.gives(owners, random_bits) if owners else []

    yield from change(keeper, decide)
    return went


def _holds(table: SlotTable, move: Move) -> bool:
    slot = table.slots.get(move.slot)
    if slot is None or slot.epoch != move.epoch:
        return False
    seen = table.groups.get(slot.owner)
    life = seen.life if seen is not None else table.head.life if table.head is not None else ""
    return life == move.life


def move(
    keeper: SlotPort, source: SlotPort, table: SlotTable, targets: Mapping[int, str], random_bits: RandomBits, only_free: bool
) -> Steps:  # fmt: skip
    """Slots of one group to others: stopped there, then given away. Returns those that went. Cut short in between, the source takes them back
    after some seconds."""
    wanted = [(slot, table.slots[slot].epoch) for slot in targets]
    life, stopped = yield partial(source.stop_slots, wanted, only_free)
    if not stopped:
        return []
    moves = [Move(slot, table.slots[slot].epoch, life, targets[slot]) for slot in stopped]
    return (yield from commit(keeper, moves, random_bits))


def forget(
    keeper: SlotPort, name: str, plan: Callable[[SlotTable], Mapping[int, str]], random_bits: RandomBits
) -> Steps:
    """A group is gone for good: its slots go to others in one piece, and nobody waits for it. Returns the slots that it had."""
    gone: dict[int, str] = {}

    def decide(table: SlotTable) -> Items:
        gone.clear()
        gone.update(plan(table))
        if not gone and name not in table.groups:
            return []
        return [*table.gives(gone, random_bits), (GROUP + name, None)]

    yield from change(keeper, decide)
    return list(gone)
