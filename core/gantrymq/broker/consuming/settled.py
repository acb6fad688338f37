"""What cursors settled and no acknowledgement record tells yet: it is noted by cursor, and made records once a turn.

What a full disk refused is not kept one by one: of each cursor the whole state is written when the disk has room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from gantrymq.broker.consuming.acks import RECORD_BYTES_MAX, AckKind, cursors_in, decode, encode_offsets, encode_one

STATES_AT_ONCE = 64
"""Cursors whose whole state one turn writes, where single acknowledgements were refused."""


class Settled:
    """`on_dirty()` asks for `take_bodies` in the next append phase; `state_of(cursor)`: entries that make a cursor's state again, none for
    one that is gone."""

    def __init__(self, on_dirty: Callable[[], None], state_of: Callable[[int], list[bytes]]) -> None:
        self._on_dirty = on_dirty
        self._state_of = state_of
        self.acked: dict[int, list[int]] = {}
        """Done offsets by cursor; a cursor's list comes in with `note`."""
        self._back: dict[int, list[int]] = {}
        self._runs: list[bytes] = []
        """Entries for whole runs, and for marks that went back."""
        self._unwritten: dict[int, None] = {}
        """Cursors with acknowledgements that a full disk refused: their whole state is written when it has room. No more of them than
        there are cursors, whatever is settled meanwhile."""
        self._due: list[int] = []
        """...of these, those whose turn it is."""
        self._cut: dict[int, int] = {}
        """By cursor, where its queue's end cut it, until that is handed over to be written. Only what records were lost of."""
        self._cutting: set[int] = set()
        """Cut at this start, and handed over at least once."""

    def note(self, cursor_id: int) -> list[int]:
        """The list that takes the cursor's done offsets."""
        acked = self.acked.get(cursor_id)
        if acked is None:
            self._ask()
            acked = self.acked[cursor_id] = []
        return acked

    def note_back(self, cursor_id: int, offsets: Iterable[int]) -> None:
        """They were given back after a delivery."""
        self._ask()
        self._back.setdefault(cursor_id, []).extend(offsets)

    def note_run(self, entry: bytes) -> None:
        """An entry for a whole run of offsets."""
        self._ask()
        self._runs.append(entry)

    def note_cut(self, cursor_id: int, end: int) -> None:
        """At start: the cursor was beyond its queue's end, and was cut to it."""
        self._cut[cursor_id] = end
        self._due.append(cursor_id)

    def note_stop(self, entry: bytes) -> None:
        """At a stop, which takes the bodies itself."""
        self._runs.append(entry)

    def _ask(self) -> None:
        if not self.acked and not self._back and not self._runs:
            self._on_dirty()

    def knows(self, cursor_id: int) -> bool:
        """Whether something of the cursor is still to be written."""
        tables = (self.acked, self._back, self._unwritten, self._cut, self._cutting, self._due)
        return any(cursor_id in table for table in tables)

    def forget(self, cursor_id: int) -> None:
        """The cursor is gone."""
        for table in (self.acked, self._back, self._unwritten, self._cut):
            table.pop(cursor_id, None)

    def take_bodies(self) -> list[bytes]:
        """Bodies of the records for everything settled since the last call."""
        if not (self._runs or self._back or self.acked or self._due):
            return []  # asked once per turn
        entries, self._runs = self._runs, []
        for kind, changed in ((AckKind.BACK, self._back), (AckKind.LIST, self.acked)):
            for cursor_id, offsets in changed.items():
                entries.extend(encode_offsets(kind, cursor_id, offsets))
            changed.clear()
        due, self._due = self._due, []
        for cursor_id in due:  # behind the entries above, which are in the state
            state = self._state_of(cursor_id)
            if cursor_id in self._cut:  # in one piece with the begin of the state, lest a crash leave the cut alone
                self._cutting.add(cursor_id)
                state[:1] = [b"".join([encode_one(AckKind.CUT, cursor_id, self._cut.pop(cursor_id)), *state[:1]])]
            entries += state
        bodies: list[bytes] = []
        part: list[bytes] = []
        size = 0
        for entry in entries:
            if size + len(entry) > RECORD_BYTES_MAX and part:
                bodies.append(b"".join(part))
                part = []
                size = 0
            part.append(entry)
            size += len(entry)
        if part:
            bodies.append(b"".join(part))
        return bodies

    def refused(self, bodies: Sequence[bytes]) -> None:
        """These records did not come into the log: `write_again` when it may have room."""
        for body in bodies:
            found = cursors_in(body)
            self._unwritten.update(dict.fromkeys(found))
            if not self._cutting.isdisjoint(found):
                self._cut.update({at: offsets[0] for kind, at, offsets in decode(body) if kind is AckKind.CUT})

    def write_again(self) -> bool:
        """The next `take_bodies` has the state of some cursors with refused records; True: there are more of them."""
        self._due += islice(self._unwritten, STATES_AT_ONCE)
        for cursor_id in self._due:
            self._unwritten.pop(cursor_id, None)
        return bool(self._unwritten)

    def unwritten(self) -> int:
        """Cursors with refused records whose turn has not come."""
        return len(self._unwritten)
