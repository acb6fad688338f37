"""Rows of tables and acknowledgements that a full disk refused and that nobody waits for.

They stand in memory already (a topic that was made, a group that a client brought along): nobody would come again with them, so the
broker does, in the order in which they were handed over, until the disk takes them. Of acknowledgements only the cursors are remembered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.broker.consuming.cursors import Cursors
from gantrymq.broker.deletion.deletions import decides
from gantrymq.broker.tables.tables import Row, row_of
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.net.api import Wheel
from gantrymq.store.log import record

if TYPE_CHECKING:
    from gantrymq.broker.port import Done
    from gantrymq.broker.turn.submitted import Sent
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
            self._cursors.settled.refused(bodies)
            self._later()

    def drain(self, write: Callable[[], None]) -> None:
        """At a stop: `write()` makes records of what is due. Until all is written, or nothing more of it can be."""
        cursors, more = self._cursors, True
        cursors.stop_marks()
        while more:
            left = cursors.settled.unwritten()
            more = cursors.settled.write_again()
            write()
            more = more and cursors.settled.unwritten() < left

    def _later(self) -> None:
        if not self._armed:
            self._armed = True
            self._wheel.call_at(self._wheel.now_ms() + FULL_RETRY_MS, self._retry)

    def _retry(self, now_ms: int) -> None:
        self._armed = False
        if self._cursors.settled.write_again():
            self._later()
        self._again()


def leave_out(
    error: Exception, sent: Sent, messages: list[Message], lights: list[tuple[int, ...]], matches: list[Any]
) -> None:
    """Looking at a batch raised: what of it stands at the ends of the lists goes out again, and all that is left of it is refused."""
    begin = sent.end
    log.error("%d messages were refused: %s: %s", len(sent.batch) - begin, type(error).__name__, error)
    log.debug("traceback", exc_info=error)
    own = {id(message) for message in sent.batch[begin:]}
    while messages and id(messages[-1]) in own:
        messages.pop()
        lights.pop()
    while matches and id(matches[-1][0]) in own:
        matches.pop()
    for index in range(begin, len(sent.batch)):
        sent.refuse(index, ErrorCode.MESSAGE_ILLEGAL)
    sent.end = len(sent.batch)


def as_refusal(error: Exception) -> GantryError:
    """What everybody of a turn is told whose append raised; a fault of ours is logged. Nothing of the turn was stored."""
    if isinstance(error, GantryError):
        return error
    log.error("an append failed and everybody in it is refused: %s: %s", type(error).__name__, error)
    log.debug("traceback", exc_info=error)
    return GantryError(ErrorCode.UNAVAILABLE, "the broker could not store this (its log says why); try again")


def append_fit(
    store: MessageStore,
    messages: list[Message],
    lights: list[tuple[int, ...]],
    matches: list[Any],
    taken: list[Sent],
    internal: list[Any],
) -> int:
    """`store.append`. Where a field of some message fits no record (a flag of 40 bits, a body that is no bytes) the others are stored, and
    its sender gets MESSAGE_ILLEGAL: nobody looks for that beforehand, and one sender's mistake must not take the turn of all. Rows that were
    handed over together are refused together."""
    try:
        return store.append(messages, lights)
    except GantryError:
        raise
    except Exception as error:
        unfit = {id(message) for message in messages if not record.fits(message)}
        if not unfit:
            raise
        text = f"{type(error).__name__}: {error}"
    for place, (rows, _, on_done, token) in enumerate(internal):
        if any(id(row) in unfit for row in rows):
            unfit.update(map(id, rows))
            internal[place] = ([], None, on_done and partial(_refuse_rows, on_done), token)
    for sent in taken:
        if sent.companions is not None:
            own = {id(message) for message in (*sent.companions.first, *sent.batch)}
            if not unfit.isdisjoint(own):
                unfit.update(own)
                sent.companions.unfit = True
    log.warning("%d records that have no place in the log were refused; the last error: %s", len(unfit), text)
    kept = [(message, targets) for message, targets in zip(messages, lights, strict=True) if id(message) not in unfit]
    messages[:] = [message for message, _ in kept]
    lights[:] = [targets for _, targets in kept]
    matches[:] = [found for found in matches if id(found[0]) not in unfit]
    for sent in taken:
        for index in range(sent.at, sent.end):
            if id(sent.batch[index]) in unfit:
                sent.refuse(index, ErrorCode.MESSAGE_ILLEGAL)
    return store.append(messages, lights)


def _refuse_rows(on_done: Done, token: Any, _result: object) -> None:
    on_done(token, GantryError(ErrorCode.ILLEGAL_ARGUMENT, "a row's key or value is of a type that no record holds"))
