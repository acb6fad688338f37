"""Names what a queue or session still waited for when segments of the log were lost and somebody accepted that (`--accept-loss`)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from gantrymq.store.queues.consume_queue import HOLE_SIZE

if TYPE_CHECKING:
    from gantrymq.broker.consuming.cursors import Cursors
    from gantrymq.store.message_store import MessageStore

log = logging.getLogger(__name__)

UNITS_AT_ONCE: Final = 4096


def name_lost(cursors: Cursors, store: MessageStore) -> int:
    """A line for each queue with undelivered entries whose records are gone; returns how many entries. Waits for the disk: before the loop runs."""
    total, gaps = 0, store.lost
    for cursor in cursors.views() if gaps else ():
        if not cursor.light:
            continue
        offset, end, missing = cursor.window.floor, store.light_visible_end(cursor.light), 0
        while offset < end:
            units = store.light_units(cursor.light, offset, min(UNITS_AT_ONCE, end - offset))
            missing += sum(
                [
                    size != HOLE_SIZE and any(gap.start <= position < gap.end for gap in gaps)
                    for position, size, _ in units
                ]
            )
            offset += max(len(units), 1)
        if missing:
            log.error(
                "%s of %s: %d entries that were not acknowledged are lost with the log",
                cursor.queue,
                cursor.group,
                missing,
            )
        total += missing
    return total
