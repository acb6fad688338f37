"""Records with more queue entries than a turn takes: written in one turn, dispatched over several, answered after the last entry.

One at a time: its sender's share of each turn fills some of its queues. Meanwhile records that go to queues which have not got it wait, as does the
next wide one; a batch that must be stored in one piece does not wait: then the store fills the rest of the queues at once (store/light/spread.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.broker.matches import RouteMatch
from gantrymq.broker.turn.submitted import ENTRIES_PER_TURN, MESSAGE_ENTRIES
from gantrymq.model.errors import ErrorCode

if TYPE_CHECKING:
    from gantrymq.broker.turn.submitted import Sent
    from gantrymq.model.message import Message
    from gantrymq.store.light.spread import Spread
    from gantrymq.store.message_store import MessageStore

WRITTEN_ENTRIES: Final = 8
"""So many entries of such a record are written in the time that one takes to enter its queue."""

Lights = list[tuple[int, ...]]
Matches = list[tuple["Message", RouteMatch]]


class WideRecords:
    """One broker's."""

    __slots__ = ("_index", "_spread", "_store", "above", "sent")

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._spread: Spread | None = None
        self._index = 0
        self.above = ENTRIES_PER_TURN
        """Entries of a record that is not wide, at most."""
        self.sent: Sent | None = None
        """The batch whose wide record is under way."""

    def keeps(self, match: RouteMatch) -> bool:
        """Whether a record that goes there has to wait for the one under way."""
        spread = self._spread
        return spread is not None and (len(match.lights) > self.above or not spread.left.isdisjoint(match.lights))

    def takes(self, sent: Sent, message: Message) -> bool:
        """Whether it may be dispatched over several turns: none is under way, it is not half done already, nothing must be whole with it."""
        return self.sent is None and not message.kind and not (sent.whole and len(sent.batch) > 1)

    def begin(self, sent: Sent, index: int, message: Message, match: RouteMatch) -> RouteMatch:
        """The record is about to be appended; of its batch nothing behind it is taken until all its queues have it. Returns where it goes at once."""
        self.sent, self._index = sent, index
        self._spread = self._store.begin_spread(message, match.lights)
        return RouteMatch((), match.taps, match.kinds)

    def go_on(self, entries: int, matches: Matches) -> tuple[int, int]:
        """As `submitted.Prepare` for `sent`: so many of its queues get it."""
        sent, spread = self.sent, self._spread
        assert sent is not None
        assert spread is not None
        if spread.left:
            if spread.position < 0:  # this very turn is to append it
                return MESSAGE_ENTRIES, 0
            part = self._store.spread_some(entries)
            matches.append((spread.message, RouteMatch(part, (), frozenset())))
            sent.entries += len(part)
            if spread.left:
                return max(len(part), 1), 0
        sent.end = self._index + 1
        self.sent = self._spread = None
        return MESSAGE_ENTRIES, 0

    def stored(self, matches: Matches) -> None:
        """The turn's append is in the log. If it made the rest of the queues get the record, say so where it stands, or in front of all that is new."""
        spread = self._spread
        if spread is not None and self.sent is not None and spread.position < 0:  # what fits no record was left out
            self.sent.refuse(self._index, ErrorCode.MESSAGE_ILLEGAL)
            spread.left.clear()
            self._store.end_spread()
        if spread is None or not spread.forced:
            return
        entered, spread.forced = RouteMatch(spread.forced, (), frozenset()), ()
        place = next((place for place, (message, _) in enumerate(matches) if message is spread.message), 0)
        matches.insert(place, (spread.message, entered))

    def abandon(self, matches: Matches) -> Matches:
        """The turn failed, or the broker stops: all its queues get a record that is in the log, and nobody waits for that any more. Its sender is told
        that it was not stored, as with everything that may be there after a failure. Returns who has got it and was not told yet."""
        spread, self.sent, self._spread = self._spread, None, None
        if spread is None:
            return []
        told = [found for found in matches if found[0] is spread.message] if spread.position >= 0 else []
        if spread.forced:
            told.append((spread.message, RouteMatch(spread.forced, (), frozenset())))
        if spread.position >= 0 and spread.left:
            told.append((spread.message, RouteMatch(self._store.spread_some(len(spread.targets)), (), frozenset())))
        self._store.end_spread()
        return told
