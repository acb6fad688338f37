"""Where entries of queues lie whose records were moved out of an old segment (store/moved.py).

The queues' own units are never changed: this table stands in front of them. It is made again at start from the records of
`rmq_sys_gantry_moved`; of several records with one place the last counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from gantrymq.store import record
from gantrymq.store.moved import MOVED_TOPIC, Place, places_of

log = logging.getLogger(__name__)

Unit = tuple[int, int, int]

MOVED_MAX = 1_000_000
"""Entries that may lie elsewhere than their queue says, at some 200 bytes each; beyond it nothing is moved and segments stay."""
REPLAY_STEP = 256
"""Units read at once at start."""
PRUNE_STEP = 256


class MovedReader(Protocol):
    """What the replay reads."""

    def max_offset(self, topic: str, queue_id: int) -> int: ...

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[Unit]: ...

    def read_records(self, units: list[Unit], bytes_max: int) -> tuple[list[bytes], int]: ...


class MovedPlaces:
    """Queue name to offset to unit."""

    def __init__(self) -> None:
        self.queues: dict[str, dict[int, Unit]] = {}
        self.count = 0

    def put(self, places: list[Place], unit: Unit) -> None:
        """These places show the record at `unit` from now on."""
        for name, offset in places:
            table = self.queues.setdefault(name, {})
            self.count += offset not in table
            table[offset] = unit

    def drop(self, name: str, offsets: list[int]) -> None:
        """Nobody needs these any more."""
        table = self.queues.get(name)
        if table is None:
            return
        for offset in offsets:
            self.count -= table.pop(offset, None) is not None
        if not table:
            del self.queues[name]

    def replay(self, reader: MovedReader, is_live: Callable[[str, int], bool]) -> None:
        """Read the topic; places that nobody needs are left out. The store waits for the disk here."""
        offset = reader.min_offset(MOVED_TOPIC, 0)
        end = reader.max_offset(MOVED_TOPIC, 0)
        while offset < end:
            units = reader.units(MOVED_TOPIC, 0, offset, REPLAY_STEP)
            if not units:
                return
            for unit in units:
                pieces, _ = reader.read_records([unit], unit[1])
                try:
                    places = places_of(record.decode(b"".join(pieces)))
                except record.RecordError as error:
                    log.error("%s: its entries are left out", error)
                    continue
                self.put([place for place in places if is_live(*place)], unit)
            offset += len(units)
