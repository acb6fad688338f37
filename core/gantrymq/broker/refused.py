"""Rows of tables that a full disk refused and that nobody waits for.

They stand in memory already (a topic that was made, a group that a client brought along): nobody would come again with them, so the
broker does, in the order in which they were handed over, until the disk takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gantrymq.broker.tables import Row, row_of
from gantrymq.model.message import Message
from gantrymq.net.api import Wheel

FULL_RETRY_MS = 1_000
"""Rows that a full disk refused are handed to it again after this time, or with the next batch."""


class Refused:
    """When to come again; `again` asks for an append turn."""

    def __init__(self, wheel: Wheel, again: Callable[[], None]) -> None:
        self._wheel = wheel
        self._again = again
        self._armed = False

    def keep(self, records: Iterable[Message]) -> list[Row]:
        """The last change of every key among records of tables, in their order: no more rows than the tables have keys."""
        rows: dict[tuple[str, str], Row] = {}
        for row in map(row_of, records):
            rows.pop(row[:2], None)
            rows[row[:2]] = row
        if rows and not self._armed:
            self._armed = True
            self._wheel.call_at(self._wheel.now_ms() + FULL_RETRY_MS, self._retry)
        return list(rows.values())

    def _retry(self, now_ms: int) -> None:
        self._armed = False
        self._again()
