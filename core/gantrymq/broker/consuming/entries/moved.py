"""Where entries of queues lie whose records were moved out of an old segment (store/log/moved.py).

The queues' own units are never changed: this table stands in front of them. It is made again at start from the newest snapshot and
the records of `rmq_sys_gantry_moved` since; of several records with one place the last counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from gantrymq.store.log import record
from gantrymq.store.log.moved import MOVED_TOPIC, Place, places_of

log = logging.getLogger(__name__)

Unit = tuple[int, int, int]

MOVED_MAX = 1_000_000
"""Entries that may lie elsewhere than their queue says, at some 200 bytes each; beyond it nothing is moved and segments stay."""
REPLAY_STEP = 256
"""Units read at once at start."""
WALKS_MAX = 8
"""Times that a walk begins anew because the table changed meanwhile; then it is copied in one call. Retention alone changes it."""


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
        self._changes = 0
        """Entries that came or went since the start."""

    def put(self, places: list[Place], unit: Unit) -> None:
        """These places show the record at `unit` from now on."""
        for name, offset in places:
            table = self.queues.setdefault(name, {})
            if offset not in table:
                self.count += 1
                self._changes += 1
            table[offset] = unit

    def drop(self, name: str, offsets: list[int]) -> None:
        """Nobody needs these any more."""
        table = self.queues.get(name)
        if table is None:
            return
        for offset in offsets:
            if table.pop(offset, None) is not None:
                self.count -= 1
                self._changes += 1
        if not table:
            del self.queues[name]

    def walk(self, name: str, count: int) -> Iterator[list[tuple[int, Unit]]]:
        """Every entry of a queue, `count` at a time; the table may change meanwhile, then some come twice."""
        for attempt in range(WALKS_MAX + 1):
            table = self.queues.get(name, {})
            items = iter(table.items() if attempt < WALKS_MAX else list(table.items()))
            changes = self._changes
            while step := list(islice(items, count)):
                yield step
                if self._changes != changes and attempt < WALKS_MAX:
                    break  # also where the iterator would not notice: it may pass over entries of a dict made anew
            else:
                return

    def load(
        self, queues: Sequence[tuple[str, list[tuple[int, Unit]]]], log_begin: int, is_live: Callable[[str, int], bool]
    ) -> None:
        """Take over what a snapshot has, but for what nobody needs: what lies below `log_begin` was moved once more, or is done."""
        for name, entries in queues:
            for offset, unit in entries:
                if unit[0] >= log_begin and is_live(name, offset):
                    self.put([(name, offset)], unit)

    def replay(self, reader: MovedReader, is_live: Callable[[str, int], bool], begin: int = 0) -> None:
        """Read the topic from `begin` on; places that nobody needs are left out. The store waits for the disk here."""
        offset = max(begin, reader.min_offset(MOVED_TOPIC, 0))
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
