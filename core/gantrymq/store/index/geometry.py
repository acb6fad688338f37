"""How many slots an IndexFile has. Its bytes do not say: 40 + 4 S + 20 N may be split in many ways.

Every used entry must be reachable from the slot |hash| mod S of its own hash; that holds for one S and, with more than a few
entries, for no other. Reads only.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gantrymq.store.files import ReadFiles

HEADER: Final = Struct(">qqqqii")
ENTRY: Final = Struct(">iqii")
SLOT_SIZE: Final = 4
ROCKETMQ_SLOTS: Final = 5_000_000
CANDIDATES_MAX: Final = 200_000
"""Numbers of slots that are tried one by one where nothing else tells: files of up to 4 MB."""
_RUN: Final = 8192
"""Entries read at once."""
_WINDOW: Final = 1024 * 1024


class IndexBytes:
    """One IndexFile as it lies on disk."""

    def __init__(self, files: ReadFiles, handle: int) -> None:
        self._files = files
        self._handle = handle
        self.length = files.size(handle)
        data = files.pread(handle, HEADER.size, 0).ljust(HEADER.size, b"\0")
        (
            self.begin_ms, self.end_ms, self.begin_position, self.end_position, self.used_slots, next_entry,
        ) = HEADER.unpack(data)  # fmt: skip
        self.used: int = max(next_entry - 1, 0)
        """Entries that the header counts."""

    def entries_of(self, slots: int) -> int:
        """Room for entries with so many slots, entry 0 included; 0 if the length cannot be."""
        rest = self.length - HEADER.size - slots * SLOT_SIZE
        return rest // ENTRY.size if rest > 0 and rest % ENTRY.size == 0 else 0

    def entries(self, slots: int, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
        """Entries `first`..`last`: hash, physical offset, seconds, previous."""
        start = HEADER.size + slots * SLOT_SIZE
        for entry in range(first, last + 1, _RUN):
            count = min(_RUN, last + 1 - entry)
            data = self._files.pread(self._handle, count * ENTRY.size, start + entry * ENTRY.size)
            yield from ENTRY.iter_unpack(data[: len(data) // ENTRY.size * ENTRY.size])

    def slot_table(self, slots: int) -> array[int]:
        """All slots."""
        table = array("i", self._files.pread(self._handle, slots * SLOT_SIZE, HEADER.size))
        table.byteswap()
        return table

    def last_used_byte(self) -> int:
        """Place of the last byte that is not zero, -1 if there is none."""
        stop = self.length
        while stop > 0:
            start = max(stop - _WINDOW, 0)
            data = self._files.pread(self._handle, stop - start, start).rstrip(b"\0")
            if data:
                return start + len(data) - 1
            stop = start
        return -1


def unreachable(index: IndexBytes, slots: int, entries_max: int = -1, tell: Callable[[int], None] | None = None) -> int:
    """Used entries that a query would not find, 0: all is well. With `entries_max` only the first ones are looked at, and not the slots.

    `tell(entries done)` now and then.
    """
    room = index.entries_of(slots)
    if not room or index.used >= room:
        return max(index.used, 1)
    last = index.used if entries_max < 0 else min(index.used, entries_max)
    if entries_max >= 0:
        return first_unreachable(index, slots, last)
    heads = array("i", bytes(slots * SLOT_SIZE))
    lost = entry = 0
    for entry, (hashed, _, _, previous) in enumerate(index.entries(slots, 1, last), 1):
        if hashed < 0:
            lost += 1
            continue
        slot = hashed % slots
        if previous != heads[slot]:
            lost += 1
        heads[slot] = entry
        if tell is not None and entry % _RUN == 0:
            tell(entry)
    stored = index.slot_table(slots)
    if stored != heads:
        lost += sum(
            [1 for slot in range(slots) if heads[slot] and not _leads_to(index, slots, stored[slot], heads[slot])]
        )
    return int(lost + last - entry)


def first_unreachable(index: IndexBytes, slots: int, last: int) -> int:
    newest: dict[int, int] = {}
    for entry, (hashed, _, _, previous) in enumerate(index.entries(slots, 1, last), 1):
        if hashed < 0 or previous != newest.get(hashed % slots, 0):
            return 1
        newest[hashed % slots] = entry
    return 0


def _leads_to(index: IndexBytes, slots: int, entry: int, wanted: int) -> bool:
    """True if a slot's chain comes to `wanted`: a process killed between slots and header leaves slots that are ahead of it."""
    while entry > wanted:
        found = list(index.entries(slots, entry, entry))
        if not found or found[0][3] >= entry:
            return False
        entry = found[0][3]
    return bool(entry == wanted)


def find_slots(index: IndexBytes, hints: Iterable[int], entries_max: int = -1) -> int:
    """The number of slots, 0 if none fits. `hints`: likely ones, tried first; `entries_max` as in `unreachable`."""
    fitting = [slots for slots in dict.fromkeys(hints) if slots > 0 and index.entries_of(slots) > index.used]
    if not index.used:
        return fitting[0] if fitting else 0
    for slots in (*fitting, *_by_last_byte(index)):
        if not unreachable(index, slots, entries_max):
            return slots
    most = (index.length - HEADER.size - 2 * ENTRY.size) // SLOT_SIZE
    first = (index.length - HEADER.size) // SLOT_SIZE % 5 or 5
    if most // 5 <= CANDIDATES_MAX and (index.length - HEADER.size) % SLOT_SIZE == 0:
        for slots in range(first, most + 1, 5):
            if not unreachable(index, slots, 64) and not unreachable(index, slots):
                return slots
    return 0


def cut_short(index: IndexBytes, slots: int, entries: int) -> bool:
    """True if the file has this geometry but a crash left it shorter."""
    room = index.entries_of(slots)
    if index.length >= HEADER.size + slots * SLOT_SIZE + entries * ENTRY.size:
        return False
    return not room or not first_unreachable(index, slots, min(index.used, room - 1))


def _by_last_byte(index: IndexBytes) -> list[int]:
    """Numbers of slots for which the last byte in use is one of the last entry's: one, as entries have 20 bytes and slots 4."""
    last = index.last_used_byte()
    found = []
    for end in range(last + 1, last + ENTRY.size + 1):
        rest = end - HEADER.size - (index.used + 1) * ENTRY.size
        if rest > 0 and rest % SLOT_SIZE == 0 and index.entries_of(rest // SLOT_SIZE):
            found.append(rest // SLOT_SIZE)
    return found
