"""The audit trail where segments go early: its events stay for the time that the store keeps, wherever their segment is.

A cursor that nobody acquires from has every event that is not too old yet, so what is alive in a segment that goes includes them, and they are
shown from where they were written again. It is made when a segment could go early, and stays.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from gantrymq.broker.consuming.known.table import KEEPER
from gantrymq.broker.consuming.scans import Scans
from gantrymq.broker.due.waiting import put_cursor
from gantrymq.broker.slices import Slices, patient
from gantrymq.model.names import AUDIT_TOPIC
from gantrymq.store.retention.rules import HOUR_MS

if TYPE_CHECKING:
    from gantrymq.broker.broker import Broker

QUEUE: Final = f"{AUDIT_TOPIC}/0"
AGE_US: Final = 500
"""To find what is too old: a search by time."""


def keep_trail(broker: Broker, make: bool) -> Slices[None]:
    """Be done with events that are too old. `make`: from now on there is a cursor, if there is an event."""
    cursors, store = broker.cursors, broker.store
    cursor = cursors.find(QUEUE, KEEPER)
    if cursor is None:
        if not make or 0 not in store.queues_of(AUDIT_TOPIC):
            return
        cursor, rows = cursors.create(QUEUE, KEEPER, store.min_offset(AUDIT_TOPIC, 0))
        put_cursor(broker, cursor, rows)
    limit_ms = broker.clock.now_ms() - store.config.file_reserved_hours * HOUR_MS
    scans = Scans(cursors, store)
    young = yield from patient(partial(scans.by_time, cursor, limit_ms))
    if young > cursor.window.floor:
        cursors.skip(cursor, cursor.window.floor, young - 1)
    yield AGE_US
