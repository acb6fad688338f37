"""Records that belong together, whose tail a crash must not tear off: all of them are in the log after a start, or none (docs/formats/commitlog.md).

Two kinds: a record with its continuation records, and the records behind a *head*, a record of the dispatch topic that says how many follow
(continuation records of theirs not counted; blanks are no records). One append writes a group, so a flush never ends inside of one.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from gantrymq.model.message import Message
from gantrymq.store.log import record

DISPATCH_TOPIC: Final = "rmq_sys_gantry_dispatch"
CONTINUATION: Final = Struct(">qi")
"""Head of a continuation record's body: position and size of the record whose entries follow as (light 8, offset 8)."""
PAIR: Final = Struct(">qq")
GROUP_ORIGIN: Final = -2
"""In the place of that position: the body is a group's head, and the size is the number of records that follow."""


def group_head(records: int) -> Message:
    """The record that stands before `records` others of one append and makes them one group."""
    return Message(DISPATCH_TOPIC, CONTINUATION.pack(GROUP_ORIGIN, records), queue_id=0)


def origin_of(message: Message) -> int:
    """Position of the record that a continuation record belongs to, negative if it names none."""
    return int(CONTINUATION.unpack_from(message.body)[0]) if len(message.body) >= CONTINUATION.size else -1


def continuation_pairs(message: Message) -> list[tuple[int, int]]:
    """(light, offset) pairs of a continuation record."""
    return list(PAIR.iter_unpack(message.body[CONTINUATION.size :]))


class OpenGroup:
    """Walking over the log: which group the last record is of, and whether more of it is to come."""

    __slots__ = ("_pairs", "_record", "_records", "begin")

    def __init__(self) -> None:
        self.begin = -1
        """Position of the group's first record; every record is in a group, most of them alone."""
        self._record = -1
        self._pairs = 0
        """Light queue entries in continuation records to come."""
        self._records = 0
        """Records behind the head to come."""

    def is_open(self) -> bool:
        """More belongs to it."""
        return self._pairs > 0 or self._records > 0

    def has_head(self) -> bool:
        """More records than continuations belong to it: each has to be looked at."""
        return self._records > 0

    def alone(self, at: int) -> None:
        """An ordinary record at that position: a group of its own. Only where `has_head` says no."""
        self.begin = self._record = at
        self._pairs = 0

    def saw(self, message: Message, at: int) -> None:
        """The next record."""
        dispatch = message.topic == DISPATCH_TOPIC
        if self._pairs > 0 and dispatch and origin_of(message) == self._record:
            self._pairs -= (len(message.body) - CONTINUATION.size) // PAIR.size
            return
        if self._records:
            self._records -= 1
        else:
            self.begin = at
            if dispatch and origin_of(message) == GROUP_ORIGIN:
                self._records = int(CONTINUATION.unpack_from(message.body)[1])
        self._record = at
        self._pairs = record.dispatch_of(message.dispatch)[1] if message.dispatch else 0

    def forget(self) -> None:
        """Something damaged, which is not the torn tail: what belonged to it stays as it is."""
        self._pairs = self._records = 0
