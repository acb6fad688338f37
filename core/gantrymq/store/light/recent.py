"""Messages that entered light queues a moment ago, as they were handed in: who reads such a queue as it is filled need not decode them again.

What is found here is what the record says, less the spelling of its properties' end; whoever gets it must not change it, as with a tap's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.model.message import PLAIN

if TYPE_CHECKING:
    from gantrymq.model.message import Message

RECENT_MAX: Final = 1_024
"""Messages kept at least, and twice as many and those of an append at most, unless they are large: readers that keep up are behind by what one or two turns append."""
RECENT_BYTES_MAX: Final = 1024 * 1024
"""Bytes of the log that they lie in, in the same way."""
RECENT_RECORD_MAX: Final = 32 * 1024
"""Bytes of a record that is kept: reading a larger one costs more than decoding it, and a few would hold many megabytes while nothing else comes."""
NOTHING: Final = 1 << 62
"""Behind every position."""


class Recent:
    """By position in the log. The older half goes when the newer one is full."""

    __slots__ = ("_older", "begin", "newer")

    def __init__(self) -> None:
        self.begin = NOTHING
        """Where the first one begins that is here."""
        self.newer: dict[int, Message] = {}
        """Takes records of at most RECENT_RECORD_MAX as they are stored."""
        self._older: dict[int, Message] = {}

    def appended(self, end: int) -> None:
        """An append came to its end there."""
        if not self.newer:
            return
        first = next(iter(self.newer))
        if len(self.newer) >= RECENT_MAX or end - first >= RECENT_BYTES_MAX:
            self._older, self.newer = self.newer, {}
            self.begin = first
        elif self.begin == NOTHING:
            self.begin = first

    def find(self, position: int, size: int) -> Message | None:
        """The message whose record of `size` bytes begins at `position`, if it is still here and still says so: it may have been handed in again."""
        message = self.newer.get(position) or self._older.get(position)
        if message is None or message.physical_offset != position or message.size != size:
            return None
        if message.kind != PLAIN or message.sys_flag or message.lmq:
            return None  # it gets its own topic back, or its record is none of the plain ones
        return message

    def clear(self) -> None:
        """Positions will be taken again."""
        self.begin = NOTHING
        self.newer.clear()
        self._older.clear()
