"""A session with all its filters, wherever their rows are, as one procedure reads and changes it.

The first filters stand in the session's own row; each further one has a row of its own, so that a change of one costs the same beside ten
thousand others. Nothing here is written: see sessions/rows.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Final

from gantrymq_gateways.mqtt.tables import StoredFilter, StoredSession, decode_filter
from gantrymq_gateways.mqtt.topics.shared import stands_apart

INLINE_MAX: Final = 32
"""Filters in the session's row, 1 KiB: most sessions have so few, and one row more would double what they cost in memory and log."""

KEY_FILTER_BYTES_MAX: Final = 3_800
"""A longer filter stands in the session's row whatever else does: with the client id it would be too long for a key."""


class Filters(MutableMapping[str, StoredFilter]):
    """Filters of a session. `inline`: those of its row, changed in place; `rows`: the others' rows, which stay as they are."""

    def __init__(self, inline: dict[str, StoredFilter], rows: Mapping[str, bytes]) -> None:
        self.inline = inline
        self.rows = rows
        self._touched: dict[str, StoredFilter | None] = {}
        """What was read or changed of those with rows; None: ended."""
        self._count = len(rows) - sum([text in rows for text in inline])

    def __len__(self) -> int:
        return len(self.inline) + self._count

    def _in_rows(self, text: str) -> bool:
        touched = self._touched.get(text)
        return touched is not None or (text in self.rows and text not in self._touched)

    def __contains__(self, text: object) -> bool:
        return text in self.inline or (isinstance(text, str) and self._in_rows(text))

    def __iter__(self) -> Iterator[str]:
        yield from list(self.inline)
        for text in list(self.rows):
            if text not in self.inline and self._in_rows(text):
                yield text
        for text, kept in list(self._touched.items()):
            if kept is not None and text not in self.rows and text not in self.inline:
                yield text

    def __getitem__(self, text: str) -> StoredFilter:
        kept = self.inline.get(text)
        if kept is None:
            kept = self._touched.get(text)
        if kept is None:
            if text in self._touched:
                raise KeyError(text)
            kept = self._touched[text] = decode_filter(self.rows[text])
        return kept

    def __setitem__(self, text: str, kept: StoredFilter) -> None:
        if text in self.inline:
            self.inline[text] = kept
        elif self._in_rows(text):
            self._touched[text] = kept
        elif len(self.inline) < INLINE_MAX or _is_long(text):
            self.inline[text] = kept
        else:
            self._touched[text] = kept
            self._count += 1

    def __delitem__(self, text: str) -> None:
        is_inline = self.inline.pop(text, None) is not None
        if self._in_rows(text):
            self._touched[text] = None
            self._count -= not is_inline
        elif not is_inline:
            raise KeyError(text)

    def spread(self) -> None:
        """Give rows to those that are too many for the session's: it is one of an earlier version."""
        for text in list(self.inline):
            if len(self.inline) <= INLINE_MAX:
                return
            if not _is_long(text):
                self._touched[text] = self.inline.pop(text)
                self._count += 1

    def changes(self) -> list[tuple[str, bytes | None]]:
        """(filter, row or None) of what differs from `rows`."""
        found: list[tuple[str, bytes | None]] = []
        for text, kept in self._touched.items():
            value = None if kept is None else kept.encode()
            if value != self.rows.get(text):
                found.append((text, value))
        return found


class Draft:
    """A session. `row`: its own."""

    __slots__ = ("filters", "row")

    def __init__(self, row: StoredSession, rows: Mapping[str, bytes]) -> None:
        self.row = row
        self.filters = Filters(row.filters, rows)

    def end(self, text: str) -> None:
        """The filter is none of the session's any more; its place in the light queue is still to be given back."""
        ended = self.filters.pop(text, None)
        if ended is not None and not stands_apart(text):  # the place in a group's queue is the group's
            self.row.ending.append(ended.light)


def _is_long(text: str) -> bool:
    return len(text) > KEY_FILTER_BYTES_MAX // 4 and len(text.encode()) > KEY_FILTER_BYTES_MAX
