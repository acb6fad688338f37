"""The table of slots: which broker group decides about which names, under which epoch (docs/decisions/0013).

One group, the metadata group, changes it; every group has a copy. Rows: `head`, `group/NAME`, and one for each slot, by number. A slot's
epoch is the table's version above 32 random bits, so that no epoch comes twice, also when rows were lost with a disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from gantrymq.model.errors import ErrorCode, GantryError

SLOTS: Final = 1024
SLOTS_TABLE: Final = "cluster_slot"
FORMAT: Final = 1
HEAD: Final = "head"
GROUP: Final = "group/"
RANDOM_BITS: Final = 32
VERSION_MAX: Final = (1 << 31) - 1
_DIGITS_MAX: Final = len(str(SLOTS))

RandomBits = Callable[[int], int]
Items = list[tuple[str, bytes | None]]


class Slot(NamedTuple):
    """Who decides, and since which change of the table."""

    owner: str
    epoch: int


class Head(NamedTuple):
    """`keeper`: the metadata group. `life`: its last start, random."""

    version: int
    keeper: str
    life: str


class Seen(NamedTuple):
    """A group's last start, and the start of the metadata group that heard of it."""

    life: str
    met: str


def slot_of(name: str) -> int:
    """The slot of a name: its kind, `/`, and the name itself. Names that differ in one part only have nothing to do with each other here (with a CRC
    the slots of a client id's lease and session would differ in the same bits for all ids of a length)."""
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") % SLOTS


def version_of(epoch: int) -> int:
    """The version of the table that gave a slot this epoch."""
    return epoch >> RANDOM_BITS


def check_row(key: str, value: bytes) -> None:
    """Raise ValueError, TypeError or KeyError for a row that nobody can read."""
    SlotTable().apply(key, value)


def why_unreadable(key: str, value: bytes) -> str:
    """What is wrong with a row; empty: nothing."""
    try:
        check_row(key, value)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _natural(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number")
    return value


def _pack(**fields: object) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


class SlotTable:
    """A copy. Slots never go back to an older epoch, whatever rows come."""

    def __init__(self, rows: Mapping[str, bytes] | None = None) -> None:
        self.head: Head | None = None
        self.slots: dict[int, Slot] = {}
        self.groups: dict[str, Seen] = {}
        for key, value in (rows or {}).items():
            self.apply(key, value)

    def apply(self, key: str, value: bytes | None) -> int | None:
        """A row changed. Returns the slot that changed its owner or epoch, if one did."""
        if key.startswith(GROUP):
            if value is None:
                self.groups.pop(key[len(GROUP) :], None)
            else:
                row = json.loads(value)
                self.groups[key[len(GROUP) :]] = Seen(str(row["life"]), str(row["met"]))
            return None
        if value is None:
            return None
        row = json.loads(value)
        if key == HEAD:
            if row["format"] != FORMAT:
                raise ValueError(f"the table of slots has format {row['format']}, this version reads {FORMAT}")
            head = Head(_natural(row["version"]), str(row["keeper"]), str(row["life"]))
            if self.head is None or head.version >= self.head.version:
                self.head = head
            return None
        if not key.isascii() or not key.isdecimal() or len(key) > _DIGITS_MAX or int(key) >= SLOTS:
            raise ValueError(f"there is no slot {key:.80}")
        number, slot = int(key), Slot(str(row["owner"]), _natural(row["epoch"]))
        old = self.slots.get(number)
        if old is not None and old.epoch >= slot.epoch:
            return None
        self.slots[number] = slot
        return number

    def owned_by(self, name: str) -> list[int]:
        """The slots of a group, in order."""
        return sorted([number for number, slot in self.slots.items() if slot.owner == name])

    def newer_than(self, other: SlotTable) -> dict[int, Slot]:
        """Slots of which this copy knows a later epoch."""
        slots = other.slots
        return {
            number: slot
            for number, slot in self.slots.items()
            if number not in slots or slots[number].epoch < slot.epoch
        }

    def is_later_than(self, other: SlotTable) -> bool:
        """Whether this copy has a change that the other has not: that one is of an older disk."""
        return self.head is not None and other.head is not None and other.head.version < self.head.version

    def gives(self, owners: Mapping[int, str], random_bits: RandomBits) -> Items:
        """Rows of the next version, in which these slots have these owners. The rows of a change are written in one piece, if `head` is as it was."""
        head = self.next_head()
        epoch = head.version << RANDOM_BITS | random_bits(RANDOM_BITS)
        return [head_row(head), *[slot_row(number, Slot(owner, epoch)) for number, owner in sorted(owners.items())]]

    def next_head(self, life: str | None = None) -> Head:
        """The head of the next version. Raises NOT_FOUND where there is no table, LIMIT_REACHED."""
        if self.head is None:
            raise GantryError(ErrorCode.NOT_FOUND, "there is no table of slots")
        if self.head.version >= VERSION_MAX:
            raise GantryError(ErrorCode.LIMIT_REACHED, f"the table of slots has version {self.head.version}")
        return Head(self.head.version + 1, self.head.keeper, self.head.life if life is None else life)


def head_row(head: Head) -> tuple[str, bytes]:
    """Key and value."""
    return HEAD, _pack(format=FORMAT, version=head.version, keeper=head.keeper, life=head.life)


def slot_row(number: int, slot: Slot) -> tuple[str, bytes]:
    """Key and value."""
    return str(number), _pack(owner=slot.owner, epoch=slot.epoch)


def group_row(name: str, seen: Seen) -> tuple[str, bytes]:
    """Key and value."""
    return GROUP + name, _pack(life=seen.life, met=seen.met)


def founded(keeper: str, life: str, random_bits: RandomBits) -> Items:
    """The rows of a new table: its keeper has all slots."""
    epoch = 1 << RANDOM_BITS | random_bits(RANDOM_BITS)
    slots = [slot_row(number, Slot(keeper, epoch)) for number in range(SLOTS)]
    return [head_row(Head(1, keeper, life)), *slots]


def balanced(table: SlotTable, staying: Sequence[str]) -> dict[int, str]:
    """The fewest changes after which each of `staying` has as many slots as another, or one more, and nobody else has any."""
    if not staying:
        return {}
    have = {name: table.owned_by(name) for name in sorted(staying)}
    spare = [number for number, slot in sorted(table.slots.items()) if slot.owner not in have]
    least, more = divmod(len(table.slots), len(have))
    # Who has most keeps one more.
    order = sorted(have, key=lambda name: (-len(have[name]), name))
    shares = {name: least + (place < more) for place, name in enumerate(order)}
    for name in order:
        spare += have[name][shares[name] :]
    changes: dict[int, str] = {}
    for name in order:
        for _ in range(shares[name] - min(len(have[name]), shares[name])):
            changes[spare.pop()] = name
    return changes


def given_away(table: SlotTable, name: str, staying: Iterable[str]) -> dict[int, str]:
    """New owners for the slots of a group that is gone: the others in turn, those with fewest slots first."""
    order = sorted(staying, key=lambda other: (len(table.owned_by(other)), other))
    return {number: order[place % len(order)] for place, number in enumerate(table.owned_by(name))} if order else {}
