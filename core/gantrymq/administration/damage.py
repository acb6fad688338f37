"""Damaged records: who waits for them, and that he shall wait no more (docs/operations/store-tools.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gantrymq.administration.reading import patiently
from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    from gantrymq.administration.reading import Reading, Steps
    from gantrymq.broker.consuming.cursors import Cursors
    from gantrymq.store.message_store import MessageStore

WAITING_MAX: Final = 100
"""Names of those who wait for one record: more fill no screen."""


class Damage:
    """What the broker has met that cannot be read."""

    def __init__(self, store: MessageStore, cursors: Cursors, reading: Reading) -> None:
        self._store = store
        self._cursors = cursors
        self._reading = reading

    def rows(self) -> Steps[list[dict[str, Any]]]:
        """By position; each is looked at once more, and what is whole again is delivered and left out."""
        store, cursors = self._store, self._cursors
        rows = []
        for entry in list(store.damage.entries.values()):
            if (yield from patiently(self._reading, lambda reading: reading.store.is_mended(entry))):  # noqa: B023 (called at once)
                store.damage.forget(entry)
                cursors.end_waiting(entry.key, deliver=True)
                continue
            waiting = cursors.waiting_for(entry.key)
            rows.append({
                "position": entry.position, "bytes": entry.size, "queue": entry.queue, "offset": entry.offset, "unit": entry.is_unit,
                "what": entry.what, "found": entry.found_ms, "skipped": entry.skipped, "waits": len(waiting),
                "waiting": [
                    {"queue": cursor.queue, "group": cursor.group, "offset": offset} for cursor, offset in waiting[:WAITING_MAX]
                ],
            })  # fmt: skip
            yield None
        return sorted(rows, key=lambda row: row["position"])

    def skip(self, position: int, queue: str, offset: int) -> int:
        """Whoever waits for what is damaged there shall wait no more; returns how many entries that was. Raises NOT_FOUND, and ILLEGAL_ARGUMENT where
        several entries lie there and neither queue nor offset (-1: not said) names one."""
        entries = self._store.damage.at(position, queue, offset)
        if not entries:
            raise GantryError(
                ErrorCode.NOT_FOUND,
                f"no such damaged record at position {position} is listed (gantry store damage list)",
            )
        entries = [entry for entry in entries if not entry.skipped] or entries
        if len({(entry.queue, entry.offset) for entry in entries}) > 1:
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT,
                f"{len(entries)} entries with position {position} are listed: name queue and offset, too",
            )
        skipped = 0
        for entry in entries:
            skipped += self._cursors.end_waiting(entry.key, deliver=False)
            self._store.damage.skip(entry)
        return skipped
