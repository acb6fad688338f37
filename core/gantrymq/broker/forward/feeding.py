"""What another group is answered that asks for the records of its forward queue over one connection.

It says from which offset on, so nothing is kept here of what it was given; a question that finds nothing waits until there is something. What is on its
disk it settles by one number.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.broker.port import Delivery, Scanned
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.store.checked import NOT_READ

if TYPE_CHECKING:
    from gantrymq.broker.consuming.cursors import Cursors
    from gantrymq.broker.consuming.entries.quarantine import Bad
    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.broker.forward.sending import Sending
    from gantrymq.broker.port import Done
    from gantrymq.broker.turn.wakes import Wakes
    from gantrymq.net.api import Wheel
    from gantrymq.store.message_store import MessageStore

RECORDS_AT_ONCE: Final = 1_000
BYTES_AT_ONCE: Final = 1 << 20
TRY_AGAIN_MS: Final = 5_000
"""A question that waits is looked at again so often: its queue may have gone."""

Found = tuple[Scanned, "Sequence[Bad]"]
Read = Callable[[Callable[[Any], Found], Callable[[Found], None], Any, "Done"], None]


class Source(Protocol):
    """This broker."""

    cursors: Cursors
    sending: Sending
    store: MessageStore
    wakes: Wakes
    wheel: Wheel


class Feeding:
    """See the module. `number`: of the connection's port; `read`: as `LocalBrokerPort._read`."""

    def __init__(self, broker: Source, number: int, read: Read) -> None:
        self._broker = broker
        self._number = number
        self._read = read
        self._waiting: dict[int, Callable[[], None]] = {}
        """Questions that wait, by cursor."""
        self._retries = False

    def ask(self, cursor: int, offset: int, token: Any, on_done: Done) -> None:
        """Result: entries of the forward queue from `offset` on. `at_end`: it is one of an earlier start, and there are no more; of the present one an
        answer waits for one entry at least. NOT_OWNER: a later connection reads it."""
        found = partial(self._found, cursor, offset, token, on_done)
        self._read(lambda store: self._entries(cursor, offset), found, token, on_done)

    def close(self) -> None:
        """Nobody waits any more."""
        self._waiting.clear()

    def settle(self, cursor: int, end: int) -> None:
        """All below that offset is on the owner's disk."""
        broker = self._broker
        found = broker.cursors.awake(cursor)
        if found is None or broker.sending.readers.get(cursor) != self._number:
            return
        floor, end = found.window.floor, min(end, broker.cursors.end(found))
        if end > floor:
            broker.cursors.skip(found, floor, end - 1)

    def _cursor(self, cursor: int) -> Cursor:
        if self._broker.sending.readers.get(cursor) != self._number:
            raise GantryError(ErrorCode.NOT_OWNER, f"cursor {cursor} is not read over this connection")
        return self._broker.cursors.get(cursor)

    def _entries(self, number: int, offset: int) -> Found:
        """As `Scans.scan`: what is damaged or gone is passed over. Changes nothing. May raise `Cold`, and OSError."""
        cursors, cursor = self._broker.cursors, self._cursor(number)
        first = max(offset, cursor.window.floor)
        units = cursors.units(cursor, first, RECORDS_AT_ONCE)
        if not units:
            return Scanned([], first, not self._broker.sending.is_open(cursor.light)), ()
        del units[cursors.within(units, BYTES_AT_ONCE) :]
        offsets = range(first, first + len(units))
        found = self._broker.store.get_entries([(unit[0], unit[1]) for unit in units])
        bad = cursors.quarantined.damaged(cursor, offsets, units, found)
        if bad and len(bad) == len(units) and all(entry[2] == NOT_READ for entry in bad):
            raise OSError(errno.EIO, f"Input/output error in {cursor.queue}, at each of {len(bad)} records")
        passed = {entry[0] for entry in bad}
        deliveries = [
            Delivery(message, at, 1)
            for at, message in zip(offsets, found, strict=True)
            if message is not None and at not in passed
        ]
        return Scanned(deliveries, first + len(units), False), bad

    def _found(self, cursor: int, offset: int, token: Any, on_done: Done, both: Found) -> None:
        found, bad = both
        if bad:
            self._broker.cursors.quarantine(self._broker.cursors.get(cursor), bad)
        if found.deliveries or found.at_end or found.following > offset:
            on_done(token, found)
            return
        broker = self._broker
        self._waiting[cursor] = partial(self.ask, cursor, offset, token, on_done)
        broker.wakes.wait(broker.cursors.get(cursor), partial(self._go_on, cursor))
        if not self._retries:
            self._retries = True
            broker.wheel.call_at(broker.wheel.now_ms() + TRY_AGAIN_MS, self._try_again)

    def _go_on(self, cursor: int) -> None:
        question = self._waiting.pop(cursor, None)
        if question is not None:
            question()

    def _try_again(self, now_ms: int) -> None:
        self._retries = False
        for cursor in list(self._waiting):
            self._go_on(cursor)
