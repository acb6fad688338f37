"""Damaged records: the list of them with their waiting readers, and how to let these go on (docs/operations/store-tools.md)."""

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
    """Records that the broker could not read."""

    def __init__(self, store: MessageStore, cursors: Cursors, reading: Reading) -> None:
        self._store = store
        self._cursors = cursors
        self._reading = reading

    def rows(self) -> Steps[list[dict[str, Any]]]:
        """The list, by position. Each record is read once more: one that is whole again is delivered, and not listed."""
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
        """Let readers pass over the damaged record there; returns how many entries were skipped. `queue` (may be empty) and `offset` (-1: any) say which
        entry. Raises NOT_FOUND, and ILLEGAL_ARGUMENT where several entries match."""
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
