"""Rows of tables and acknowledgements that a full disk refused and that nobody waits for.

They stand in memory already (a topic that was made, a group that a client brought along): nobody would come again with them, so the
broker does, in the order in which they were handed over, until the disk takes them. Of acknowledgements only the cursors are remembered.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gantrymq.broker.cursors import Cursors
from gantrymq.broker.deletions import decides
from gantrymq.broker.tables import Row, row_of
from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import Message
from gantrymq.net.api import Wheel
from gantrymq.store import record

if TYPE_CHECKING:
    from gantrymq.store.message_store import MessageStore

log = logging.getLogger(__name__)

FULL_RETRY_MS = 1_000
"""Rows that a full disk refused are handed to it again after this time, or with the next batch."""


class Refused:
    """When to come again; `again` asks for an append turn."""

    def __init__(self, wheel: Wheel, again: Callable[[], None], cursors: Cursors) -> None:
        self._wheel = wheel
        self._again = again
        self._cursors = cursors
        self._armed = False

    def keep(self, entries: Sequence[Sequence[Message]]) -> list[Row]:
        """Rows of what was refused (records of tables, in the order handed over), without those that a later entry replaces.

        So no more rows than the tables have keys, and the steps of one entry (a deletion's begin and end) stay as they were. What decides
        a deletion stays also where its end or a new row replaces it: the deletion's other rows must not be alone behind a crash. The first
        one does for all of its key: up to the last row no other is left.
        """
        newest_first: list[list[Row]] = []
        replaced: set[tuple[str, str]] = set()
        for entry in reversed(entries):
            rows = [row for row in map(row_of, entry) if row[:2] not in replaced or decides(*row)]
            replaced.update(row[:2] for row in rows)
            newest_first.append(rows)
        kept: list[Row] = []
        decided: set[tuple[str, str]] = set()
        for row in (row for rows in reversed(newest_first) for row in rows):
            if decides(*row):
                if row[:2] in decided:
                    continue
                decided.add(row[:2])
            kept.append(row)
        if kept:
            self._later()
        return kept

    def acknowledgements(self, bodies: Sequence[bytes]) -> None:
        """These records were refused: without them all that was settled would come again after a start."""
        if bodies:
            self._cursors.refused(bodies)
            self._later()

    def drain(self, write: Callable[[], None]) -> None:
        """At a stop: `write()` makes records of what is due. Until all is written, or nothing more of it can be."""
        cursors, more = self._cursors, True
        cursors.stop_marks()
        while more:
            left = cursors.unwritten()
            more = cursors.write_again()
            write()
            more = more and cursors.unwritten() < left

    def _later(self) -> None:
        if not self._armed:
            self._armed = True
            self._wheel.call_at(self._wheel.now_ms() + FULL_RETRY_MS, self._retry)

    def _retry(self, now_ms: int) -> None:
        self._armed = False
        if self._cursors.write_again():
            self._later()
        self._again()


def append_fit(
    store: MessageStore, messages: list[Message], lights: list[tuple[int, ...]], hits: list[Any], answers: list[Any]
) -> int:
    """`store.append`. Where a field of some message fits no record (a flag of 40 bits) the others are stored, and its sender gets
    MESSAGE_ILLEGAL: nobody looks for that beforehand, and one sender's mistake must not take the turn of all."""
    try:
        return store.append(messages, lights)
    except (struct.error, TypeError, ValueError, OverflowError) as error:
        unfit = {id(message) for message in messages if not record.fits(message)}
        if not unfit:
            raise
        log.warning("%d messages that fit no record were refused; the last error: %s", len(unfit), error)
    kept = [(message, targets) for message, targets in zip(messages, lights, strict=True) if id(message) not in unfit]
    messages[:] = [message for message, _ in kept]
    lights[:] = [targets for _, targets in kept]
    hits[:] = [found for found in hits if id(found[0]) not in unfit]
    for place, (token, on_done, results, batch, strict) in enumerate(answers):
        if any(id(message) in unfit for message in batch):
            results = [
                ErrorCode.MESSAGE_ILLEGAL if id(message) in unfit else result
                for message, result in zip(batch, results or [None] * len(batch), strict=True)
            ]
            answers[place] = (token, on_done, results, batch, strict)
    return store.append(messages, lights)
