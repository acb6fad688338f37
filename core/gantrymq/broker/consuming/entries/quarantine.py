"""Entries whose record is damaged: nobody gets them, and nobody loses them, until a better disk or somebody who skips them.

They are neither in flight nor returned nor done: the queue holds them, and a start brings them back, perhaps to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gantrymq.model.message import Message
from gantrymq.model.names import LMQ_PREFIX, light_name
from gantrymq.store.checked import NO_ENTRY
from gantrymq.store.damage import Key as DamageKey
from gantrymq.store.damage import key as damage_key
from gantrymq.store.log.record import is_entry

QUARANTINED_MAX = 100_000
"""Entries with a damaged record that are known by name, at some 500 bytes each. What is more is not settled either, but nobody can skip it before
a restart has brought it back."""

Bad = tuple[int, tuple[int, int, int], str, bool]
"""Offset and unit of an entry whose record is damaged, what is wrong with it, and whether the unit is."""


class Faults(Protocol):
    """What the store knows of its damage."""

    def fault(self, unit: tuple[int, int, int]) -> tuple[str, bool]: ...

    def is_fresh(self, position: int) -> bool: ...

    def note_damage(self, unit: tuple[int, int, int], queue: str, offset: int, what: str, is_unit: bool) -> None: ...


class Place(Protocol):
    """A cursor, as far as its entries are looked at."""

    id: int
    queue: str
    light: int
    topic: str


class Quarantine:
    """The damaged entries of all cursors, by cursor and by damage."""

    def __init__(self, reader: Faults) -> None:
        self._reader = reader
        self.by_cursor: dict[int, dict[int, DamageKey]] = {}
        """Offsets, with what the list of damage calls each."""
        self._waiting: dict[DamageKey, dict[tuple[int, int], None]] = {}
        """The same by damage: cursor and offset."""
        self.count = 0

    def damaged(
        self, place: Place, offsets: Sequence[int], units: Sequence[tuple[int, int, int]], found: Sequence[Message | None]
    ) -> list[Bad]:  # fmt: skip
        """Which of these entries have a damaged record, or one of another place. Changes nothing. May raise `Cold`."""
        bad: list[Bad] = []
        light = light_name(place.light) if place.light else place.topic if place.topic.startswith(LMQ_PREFIX) else ""
        topic = "" if light else place.topic
        for offset, unit, message in zip(offsets, units, found, strict=True):
            if message is None:
                what, is_unit = self._reader.fault(unit)
                if what:
                    bad.append((offset, unit, what, is_unit))
            elif topic and (message.queue_offset != offset or message.topic != topic):
                other = f"{message.topic}/{message.queue_id}, offset {message.queue_offset}"
                bad.append((offset, unit, f"the unit names the record of {other}", True))
            elif light and not self._reader.is_fresh(unit[0]) and not is_entry(message.dispatch, light, offset):
                bad.append((offset, unit, NO_ENTRY, True))
        return bad

    def add(self, place: Place, bad: Sequence[Bad]) -> None:
        """They wait; the list of damage has them."""
        for offset, unit, what, is_unit in bad:
            self._reader.note_damage(unit, place.queue, offset, what, is_unit)
            known = self.by_cursor.get(place.id, {})
            if offset not in known and self.count < QUARANTINED_MAX:
                key = damage_key(unit[0], place.queue, offset, is_unit)
                self.by_cursor.setdefault(place.id, known)[offset] = key
                self._waiting.setdefault(key, {})[place.id, offset] = None
                self.count += 1

    def waiting_for(self, damage: DamageKey) -> list[tuple[int, int]]:
        """Who waits for a damaged record or unit (`Damaged.key`): cursor and offset."""
        return list(self._waiting.get(damage, ()))

    def offsets(self, cursor_id: int) -> list[int]:
        """Those of one cursor."""
        return list(self.by_cursor.get(cursor_id, ()))

    def release(self, cursor_id: int, offset: int) -> None:
        """It waits no longer."""
        known = self.by_cursor[cursor_id]
        key = known.pop(offset)
        del self._waiting[key][cursor_id, offset]
        if not self._waiting[key]:
            del self._waiting[key]
        self.count -= 1
        if not known:
            del self.by_cursor[cursor_id]
