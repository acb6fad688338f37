"""Many connections that send a little each: a turn of the loop waits a moment, so that it has more of them.

What a turn takes whoever sends in it (going to sleep and waking up, `epoll_wait`, one write into the log, and Python's way through all of that) is
more than one message takes, and where each of many connections sends one message at a time, a turn finds two or three. So does a network card with
packets: above some rate it holds its interrupts back (interrupt moderation). Measured: docs/decisions/0009-sends-that-come-alone.md.

A sender alone, or few, or many that send seldom, never wait: they would only wait longer for their answers.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, sleep
from typing import Final

PERIOD_S: Final = 0.01
"""How long reads are counted before it is decided anew: long against a turn, so that a burst decides nothing."""

CONNECTIONS_MIN: Final = 32
"""Connections that sent in a period. Less than these wait for their answers more than for us: each pause would cost them throughput."""

READS_PER_S_MIN: Final = 10_000
"""Below it a pause would bring two or three messages."""

READS_ENOUGH: Final = 16
"""A turn that read so many sockets already goes on at once: a sixteenth of what it takes is less than a message."""

PAUSE_S: Final = 0.00025
"""At 20,000 messages/s five of them and more come meanwhile; a twentieth of what a push consumer may wait at most (5 ms)."""


PAUSE_MAX_S: Final = 0.001
"""A pause that took longer (other work has the processor, or the kernel's timers are coarse) is the last one of its period."""


class Gather:
    """One per loop. `hold` is asked at the start of a turn that appends; `reads` and `active` are counted by the pumps."""

    __slots__ = (
        "_begun_s",
        "_clock",
        "_held",
        "_many",
        "_reads_before",
        "_sleep",
        "active",
        "held",
        "held_s",
        "period",
        "reads",
    )

    def __init__(self, clock: Callable[[], float] = perf_counter, pause: Callable[[float], object] = sleep) -> None:
        """`clock`: seconds, never goes back. `pause`: sleeps so many seconds, holding nobody but the loop up."""
        self._clock = clock
        self._sleep = pause
        self._begun_s = clock()
        self._many = False
        """The period before had many connections that sent often."""
        self._held = False
        self._reads_before = 0
        """Reads of this period before this turn."""
        self.period = 1
        """Number of the period; a connection that was read in it has noted it."""
        self.active = 0
        """Connections that were read in this period."""
        self.reads = 0
        """Their reads."""
        self.held = 0
        """Turns that waited, since the start."""
        self.held_s = 0.0
        """How long, all together."""

    def hold(self) -> bool:
        """True: it waited; look at the sockets once more, then take the turn."""
        if self._held:
            self._held = False
            self._reads_before = self.reads
            return False
        now_s = self._clock()
        took_s = now_s - self._begun_s
        if took_s >= PERIOD_S:
            self._many = self.active >= CONNECTIONS_MIN and self.reads >= READS_PER_S_MIN * took_s
            self._begun_s = now_s
            self.period += 1
            self._reads_before -= self.reads
            self.active = self.reads = 0
        if not self._many or self.reads - self._reads_before >= READS_ENOUGH:
            self._reads_before = self.reads
            return False
        self._held = True
        self._sleep(PAUSE_S)
        paused_s = self._clock() - now_s
        self._many = paused_s <= PAUSE_MAX_S
        self.held += 1
        self.held_s += paused_s
        return True
