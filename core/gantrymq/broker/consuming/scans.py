"""Reading a queue without taking anything from it: whoever reads keeps his place himself (AMQP streams)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from gantrymq.broker.consuming.cursors import ACQUIRE_MAX, Cursors
from gantrymq.broker.consuming.entries.shared_bodies import SHARED_BYTES_MIN
from gantrymq.broker.consuming.known.table import Cursor
from gantrymq.broker.port import Delivery, Scanned
from gantrymq.store.checked import NOT_READ

if TYPE_CHECKING:
    from gantrymq.broker.consuming.roles import QueueReader

DAMAGED_MAX = 64
"""Records that cannot be read, one after the other, before a search by time takes the place behind them."""


class Scans:
    """See the module. Every method may raise `Cold` (store/cold.py) and changes nothing."""

    def __init__(self, cursors: Cursors, reader: QueueReader) -> None:
        self._cursors = cursors
        self._reader = reader

    def scan(self, cursor: Cursor, offset: int, count_max: int, bytes_max: int) -> Scanned:
        """Entries from `offset` on, of those that the cursor is not done with: one at least, whatever its size. What is damaged or gone is passed over.
        OSError where the disk can read none of it."""
        cursors = self._cursors
        first = max(offset, cursor.window.floor)
        units = cursors.units(cursor, first, max(min(count_max, ACQUIRE_MAX), 0))
        del units[cursors.within(units, bytes_max) :]
        offsets = range(first, first + len(units))
        found = self._reader.get_many([(unit[0], unit[1]) for unit in units], [])
        bad = {entry[0]: entry[2] for entry in cursors.quarantined.damaged(cursor, offsets, units, found)}
        if bad and len(bad) == len(units) and all(what == NOT_READ for what in bad.values()):
            raise OSError(errno.EIO, f"Input/output error in {cursor.queue}, at each of {len(bad)} records")
        deliveries = []
        for at, message in zip(offsets, found, strict=True):
            if message is None or at in bad:
                continue
            if len(message.body) >= SHARED_BYTES_MIN:
                message.body = cursors.share(message.physical_offset, message.body)
            deliveries.append(Delivery(message, at, 1))
        following = first + len(units)
        return Scanned(deliveries, following, following >= cursors.end(cursor))

    def by_time(self, cursor: Cursor, at_ms: int) -> int:
        """The first entry stored at that time or later, of those that the cursor is not done with; the queue's maximum offset if there is none."""
        low, high = cursor.window.floor, self._cursors.end(cursor)
        while low < high:
            middle = (low + high) // 2
            place, store_ms = self._stored(cursor, middle, high)
            if store_ms is None or store_ms >= at_ms:
                high = middle
            else:
                low = place + 1
        return low

    def _stored(self, cursor: Cursor, offset: int, end: int) -> tuple[int, int | None]:
        """The next entry from `offset` on with a record that can be read, and when it was stored; None: none is near."""
        for at in range(offset, min(end, offset + DAMAGED_MAX)):
            units = self._cursors.units(cursor, at, 1)
            found = self._reader.get_many([(units[0][0], units[0][1])], []) if units else [None]
            if found[0] is not None:
                return at, found[0].store_ms
        return offset, None
