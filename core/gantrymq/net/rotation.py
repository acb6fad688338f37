"""Whose bytes are handed to their door next: what one peer sends never decides how long the others wait.

A connection has `SHARE_S` of a turn, all together have `READS_S`. What is left of a read waits in its pump, which is not read meanwhile. There are
two lines: those with little whose read could not begin, and behind them those with much. A neighbour with one small request
so stands behind nobody's megabyte, and what he sends is handed over in the turn in which it is read, however much of it the others had; at least
one of those with much has a share of each turn, so that nobody waits for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from gantrymq.net.turn import LoopTurn

SHARE_S: Final = 0.0008
"""Time of one connection in one turn; a slice more, which was longer than it promised to be."""
READS_S: Final = 0.002
"""Time of all connections in one turn: their messages take about as long again to be stored and answered."""
FRESH_S: Final = 0.001
"""...of which this is for what comes while others wait."""
SLICE_S: Final = 0.0004
"""What a slice should take."""
LITTLE_S: Final = 0.003
"""...and this, what others with much took included, for what is little: as much of it as a turn's answers are."""
SLICE_BYTES_MIN: Final = 512
"""The first slice of a connection, and its smallest: 256 of the smallest requests there are (MQTT PINGREQ), 0.7 ms."""
SLICE_BYTES_MAX: Final = 6 * 1024
"""Ordinary sends have 24 messages in it, so that what a batch costs is shared by enough of them; requests of two bytes take it 8 ms, once."""

BOUNDED_BYTES_MAX: Final = 32 * 1024
"""...of a door that bounds its work itself."""
LITTLE_BYTES_MAX: Final = 2 * 1024
"""A send with headers as applications have them, 700 bytes, must not stand behind those with much: of 256 connections with one each half did."""


class Waiting(Protocol):
    """A connection with bytes that were read and not handed over."""

    def go_on(self) -> None:
        """It has its share now."""


class Rotation:
    """One per loop."""

    __slots__ = ("_armed", "_few", "_much", "clock_s", "little_s_max", "reads_s_max", "turn")

    def __init__(self, turn: LoopTurn, clock_s: Callable[[], float]) -> None:
        self.turn = turn
        self.clock_s = clock_s
        self._armed = False
        self._few: deque[Waiting] = deque()
        self._much: deque[Waiting] = deque()
        self.reads_s_max = READS_S
        """When reads of this turn have taken so long, what is read now has to wait if it is much."""
        self.little_s_max = LITTLE_S
        """...and if it is little."""

    @staticmethod
    def is_little(size: int, slice_bytes: int) -> bool:
        """Whether so much of a reader whose slices have `slice_bytes` is little: one slice, and not a large one."""
        return size <= slice_bytes and size <= LITTLE_BYTES_MAX

    def has_to_wait(self, size: int, slice_bytes: int) -> bool:
        """Whether this turn has no time left for so many bytes that were just read. `slice_bytes`: as much of its reader takes about `SLICE_S`."""
        reads_s = self.turn.reads_s
        return (
            reads_s >= self.little_s_max if self.is_little(size, slice_bytes) else reads_s + SLICE_S > self.reads_s_max
        )

    def wait(self, reader: Waiting, much: bool) -> None:
        """`reader.go_on()` in some later turn. `much`: it stands behind all that have little."""
        if much:
            self._much.append(reader)
            self.reads_s_max = min(self.reads_s_max, FRESH_S)
        else:
            self._few.append(reader)
            self.reads_s_max = self.little_s_max = 0.0
        if not self._armed:
            self._armed = True
            self.turn.at_end(self._serve)

    def _serve(self) -> None:
        """The last thing of a turn is the first of the next one: what is submitted here is appended with what is read now."""
        self._armed = False
        few, much, turn = self._few, self._much, self.turn
        until_s = self.clock_s() + READS_S - FRESH_S
        for _ in range(len(few)):
            few.popleft().go_on()
            if self.clock_s() >= until_s:
                break
        for _ in range(len(much)):
            much.popleft().go_on()
            if (
                self.clock_s() + SLICE_S > until_s
            ):  # a share takes twice as long: the turn has two of them, one here and one as it comes
                break
        turn.reads_s = 0.0
        self.reads_s_max = 0.0 if few else FRESH_S if much else READS_S
        self.little_s_max = LITTLE_S + FRESH_S - READS_S if few else LITTLE_S
        if (few or much) and not self._armed:
            self._armed = True
            turn.at_end(self._serve)
