"""One loop turn as three phases: append, deliver, write.

Everything that arrives in one turn of the loop is appended to the log as one batch, delivered together and written with one
write per connection. `LoopTurn` is armed by the first callback handed over and runs all phases in one `call_soon`; without
work it costs nothing. It knows no event loop: arming is an argument, and tests drive `net.testing.ManualTurn` by hand.

What may wait comes behind the writes: slices of long work, and the rest of large reads (`net.rotation`), so that no answer waits for it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

SLICES_S: Final = 0.001
SLICES_MAX: Final = 32
"""Slices of long work in one turn: so long, and so many."""

WRITES_S: Final = 0.003
"""Writes of one turn: 200 connections. Those of a message to 1,500 receivers have eight turns, and nobody's answer stands behind all of them."""

Callback = Callable[[], None]


class LoopTurn:
    """`Turn` over `arm`, which calls its argument soon, outside of the current call (`loop.call_soon`).

    During a phase, a callback handed over for a later phase runs in the same turn; for the same or an earlier phase, in the
    next turn, so that a callback that hands itself over again never starves the sockets.
    """

    __slots__ = (
        "_append",
        "_arm",
        "_armed",
        "_clock_s",
        "_deliver",
        "_end",
        "_slices",
        "_unwritten",
        "_write",
        "number",
        "observe",
        "reads_s",
    )

    def __init__(
        self,
        arm: Callable[[Callback], object],
        clock_s: Callable[[], float] = lambda: 0.0,
        observe: Callable[[float], None] = lambda took_s: None,
    ) -> None:
        self._arm = arm
        self._clock_s = clock_s
        self.number = 0
        """Turns so far."""
        self.reads_s = 0.0
        """What doors took in this turn to handle what was read; kept by the pumps."""
        self.observe = observe
        """Told how long each turn took, its reads included."""
        self._armed = False
        self._append: list[Callback] = []
        self._deliver: list[Callback] = []
        self._write: list[Callback] = []
        self._unwritten: deque[Callback] = deque()
        """Writes for which earlier turns had no time."""
        self._slices: deque[Callback] = deque()
        self._end: list[Callback] = []

    def at_append(self, callback: Callback) -> None:
        """First phase: one append batch for everything submitted in this turn."""
        self._append.append(callback)
        if not self._armed:
            self._armed = True
            self._arm(self.run)

    def at_deliver(self, callback: Callback) -> None:
        """Second phase: watchers, taps, long polls."""
        self._deliver.append(callback)
        if not self._armed:
            self._armed = True
            self._arm(self.run)

    def in_slices(self, callback: Callback) -> None:
        """One slice of long work, a millisecond at most, in some turn soon: all of them together take `SLICES_S` of a turn, in the order in which
        they were handed over, so that whoever hands over his next slice stands behind the others."""
        self._slices.append(callback)
        if not self._armed:
            self._armed = True
            self._arm(self.run)

    def at_write(self, callback: Callback) -> None:
        """Last phase: one write per connection. More than `WRITES_S` of them take some turns."""
        self._write.append(callback)
        if not self._armed:
            self._armed = True
            self._arm(self.run)

    def at_end(self, callback: Callback) -> None:
        """Behind the last phase: what this turn's answers need not wait for."""
        self._end.append(callback)
        if not self._armed:
            self._armed = True
            self._arm(self.run)

    def run(self) -> None:
        """One turn. `_armed` stays set meanwhile, so what a phase hands over never arms a second turn beside this one."""
        begun_s = self._clock_s()
        reads_s, self.reads_s = self.reads_s, 0.0
        callbacks = self._append
        if callbacks:
            self._append = []
            run_all(callbacks)
        callbacks = self._deliver
        if callbacks:
            self._deliver = []
            run_all(callbacks)
        if self._write or self._unwritten:
            self._write_some()
        self.number += 1
        if self._slices:
            run_some(self._slices, min(len(self._slices), SLICES_MAX), self._clock_s, SLICES_S)
        callbacks = self._end
        if callbacks:
            self._end = []
            run_all(callbacks)
        self.observe(self._clock_s() - begun_s + reads_s)
        if self._append or self._deliver or self._slices or self._write or self._end or self._unwritten:
            self._arm(self.run)
        else:
            self._armed = False

    def _write_some(self) -> None:
        """This turn's writes first: they leave half of the time to those that wait."""
        fresh, self._write = deque(self._write), []
        late = self._unwritten
        budget_s = WRITES_S / 2 if late else WRITES_S
        if fresh:
            run_some(fresh, len(fresh), self._clock_s, budget_s)
        if late:
            run_some(late, len(late), self._clock_s, budget_s)
        late.extend(fresh)


def run_all(callbacks: list[Callback]) -> None:
    """Run each; one that fails is logged and does not keep the others from running."""
    for callback in callbacks:
        try:
            callback()
        except Exception as error:
            log_failed(callback, error)


def run_some(callbacks: deque[Callback], count: int, clock_s: Callable[[], float], budget_s: float) -> int:
    """As `run_all` for the first ones, at most `count` and about so long, but at least one; those are taken out. Returns how many."""
    until_s = clock_s() + budget_s
    done = 0
    while callbacks and done < count:
        done += 1
        callback = callbacks.popleft()
        try:
            callback()
        except Exception as error:
            log_failed(callback, error)
        if clock_s() > until_s:
            break
    return done


def log_failed(callback: object, error: Exception) -> None:
    """What a callback raised, where nobody but the log can be told."""
    log.error("callback %r failed: %s: %s", callback, type(error).__name__, error)
    log.debug("traceback", exc_info=error)
