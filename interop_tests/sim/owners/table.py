"""The slot table: rows in order of their versions, kept by the metadata group, copied by everybody.

A slot is at one owner, or on its way (rows of one slot):

    owner --moving--> moving --frozen--> frozen --committed--> owner (the other, a new epoch)
                        |                  |
                        +----aborted-------+--------> owner (as before)

`moving` binds nobody but the owner, who freezes the slot. `frozen` is written when that freeze is on the owner's disk: from its row on
sources send what may be for the slot to both, and the last row says whose it was.
"""

from __future__ import annotations

from dataclasses import dataclass

OWNER, MOVING, FROZEN, COMMITTED, ABORTED, FORGOTTEN = "owner", "moving", "frozen", "committed", "aborted", "forgotten"
UNKNOWN = 1 << 60
"""No version of a table, later than all."""


@dataclass(frozen=True, slots=True)
class Row:
    """`slot` is -1 and `source` the group in a row FORGOTTEN; the rows that give its slots away follow as OWNER."""

    version: int
    kind: str
    slot: int
    source: str
    target: str
    life: int = 0
    """Epoch of the metadata group that wrote it: two tables with the same life at a version are the same up to there."""


@dataclass(slots=True)
class Place:
    """Where a slot is."""

    owner: str
    epoch: tuple[int, int] = (0, 0)
    """(version, life) of the row that gave it to its owner: never used again, also when rows are lost with their disks."""
    state: str = OWNER
    target: str = ""
    since: int = 0
    """Version of the row MOVING that began this move: its number."""
    frozen: int = 0
    """Version of its row FROZEN."""


class SlotTable:
    """A copy."""

    def __init__(self, groups: list[str], slots: int) -> None:
        self.groups = list(groups)
        self.rows: list[Row] = []
        self.places = [Place(groups[slot % len(groups)]) for slot in range(slots)]
        self._first = [place.owner for place in self.places]
        self._of_slot: list[list[Row]] = [[] for _ in range(slots)]

    @property
    def version(self) -> int:
        """Of the last row."""
        return len(self.rows)

    def lives(self) -> tuple[int, ...]:
        """Of each row."""
        return tuple(row.life for row in self.rows)

    def apply(self, row: Row) -> None:
        """The next row."""
        assert row.version == self.version + 1
        self.rows.append(row)
        if row.kind == FORGOTTEN:
            self.groups.remove(row.source)
            return
        self._of_slot[row.slot].append(row)
        place = self.places[row.slot]
        if row.kind == MOVING:
            place.state, place.target, place.since = MOVING, row.target, row.version
        elif row.kind == FROZEN:
            place.state, place.frozen = FROZEN, row.version
        else:
            if row.kind != ABORTED:
                place.owner = row.target
                place.epoch = (row.version, row.life)
            place.state, place.target = OWNER, ""

    def owner_at(self, slot: int, version: int) -> str:
        """Whose a record is that was stored under that version; empty while that is not decided."""
        owner = self._first[slot]
        frozen = decided = False
        for row in self._of_slot[slot]:
            past = row.version <= version
            if decided and row.kind != OWNER:
                continue
            if row.kind == FROZEN:
                frozen |= past
            elif row.kind == OWNER and row.source == owner:
                # A forgotten owner: who has not heard of it sends for the one who came after.
                owner, frozen = row.target, False
            elif row.kind == COMMITTED and (past or frozen):
                owner, frozen = row.target, False
            elif row.kind == ABORTED:
                frozen = False
            decided |= not past and not frozen and row.kind == COMMITTED
        return "" if frozen else owner

    def concerned(self, slot: int, group: str) -> bool:
        """The slot is at that group or on its way to it."""
        place = self.places[slot]
        return group in (place.owner, place.target)

    def needed(self, group: str) -> int:
        """Version that the group's routes must be of: the last that gave it a slot; none will do while it may be given one."""
        last = 0
        for slot, place in enumerate(self.places):
            if place.state == FROZEN and place.target == group:
                return UNKNOWN
            for row in self._of_slot[slot]:
                if row.kind in (COMMITTED, OWNER) and row.target == group:
                    last = max(last, row.version)
        return last
