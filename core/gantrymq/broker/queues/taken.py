"""Entries that a queue's policy took out, finished by the batch that stores their copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gantrymq.broker.consuming.acks import AckKind, encode_offsets

if TYPE_CHECKING:
    from gantrymq.broker.consuming.cursors import Cursors
    from gantrymq.broker.consuming.known.table import Cursor


class TakenOut:
    """As `consuming.held.Held`; where the batch is refused they stay out, and whoever took them tries again."""

    __slots__ = ("_cursor", "_cursors", "_offsets")

    def __init__(self, cursors: Cursors, cursor: Cursor, offsets: Sequence[int]) -> None:
        self._cursors = cursors
        self._cursor = cursor
        self._offsets = sorted(offsets)

    def bodies(self) -> list[bytes]:
        """Bodies of the acknowledgement records that say so."""
        if self._cursors.by_id.get(self._cursor.id) is not self._cursor or not self._offsets:
            return []
        return [b"".join(encode_offsets(AckKind.LIST, self._cursor.id, self._offsets))]

    def apply(self) -> None:
        """They are in the log."""
        for offset in self._offsets:
            self._cursor.window.done_out(offset)

    def take_back(self) -> None:
        """They are not."""
