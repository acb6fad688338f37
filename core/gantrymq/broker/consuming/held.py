"""Settlements that are decided and wait for the batch that writes them: applied when it is stored, taken back when it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gantrymq.broker.consuming.acks import RECORD_BYTES_MAX, AckKind, encode_offsets
from gantrymq.broker.port import Outcome

if TYPE_CHECKING:
    from gantrymq.broker.consuming.cursors import Cursors
    from gantrymq.broker.consuming.known.table import Cursor

_DONE = frozenset({Outcome.ACK, Outcome.DROP})


class Held:
    """Entries that were in flight, out of their holder's hands: releasing the holder does not bring them back any more."""

    __slots__ = ("_cursors", "_entries")

    def __init__(self, cursors: Cursors, items: Sequence[tuple[int, int, Outcome]]) -> None:
        self._cursors = cursors
        self._entries: list[tuple[Cursor, int, Outcome, int]] = []
        """Cursor, offset, outcome, and who had it."""
        for cursor_id, offset, outcome in items:
            cursor = cursors.by_id.get(cursor_id)
            holder = cursor.window.inflight.pop(offset, None) if cursor is not None else None
            if cursor is not None and holder is not None:
                self._entries.append((cursor, offset, outcome, holder))

    def bodies(self) -> list[bytes]:
        """Bodies of the acknowledgement records that say so."""
        by_cursor: dict[tuple[int, AckKind], list[int]] = {}
        for cursor, offset, outcome, _ in self._alive():
            if outcome is Outcome.DROP and cursor.managed is not None:
                continue
            if outcome is not Outcome.RELEASE:
                kind = AckKind.LIST if outcome in _DONE else AckKind.BACK
                by_cursor.setdefault((cursor.id, kind), []).append(offset)
        bodies: list[bytes] = []
        part = b""
        for (cursor_id, kind), offsets in by_cursor.items():
            for entry in encode_offsets(kind, cursor_id, sorted(offsets)):
                if part and len(part) + len(entry) > RECORD_BYTES_MAX:
                    bodies.append(part)
                    part = b""
                part += entry
        return [*bodies, part] if part else bodies

    def apply(self) -> None:
        """Those records are in the log. What is rejected and has a dead letter to come goes its own way from here."""
        for cursor, offset, outcome, holder in self._alive():
            if outcome is Outcome.DROP and cursor.managed is not None:
                cursor.window.hold((offset,), holder)
                self._cursors.settle([(cursor.id, offset, outcome)])
            elif outcome in _DONE:
                cursor.window.done(offset)
            else:
                self._give_back(cursor, offset, outcome is Outcome.REQUEUE, holder)
        self._entries = []

    def take_back(self) -> None:
        """Nothing of it was stored: who had them has them again, or, where he is gone, they come back."""
        for cursor, offset, _, holder in self._alive():
            if self._cursors.has(holder, cursor):
                cursor.window.hold((offset,), holder)
            else:
                self._give_back(cursor, offset, True, holder)
                self._cursors.settled.note_back(cursor.id, [offset])
        self._entries = []

    def _alive(self) -> list[tuple[Cursor, int, Outcome, int]]:
        known = self._cursors.by_id
        return [entry for entry in self._entries if known.get(entry[0].id) is entry[0]]

    def _give_back(self, cursor: Cursor, offset: int, delivered: bool, holder: int) -> None:
        cursor.window.hold((offset,), holder)
        cursor.window.give_back(offset, delivered)
        if cursor.managed is not None:
            cursor.managed.came_back([offset])
        self._cursors.fire(cursor)
