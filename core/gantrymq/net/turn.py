"""One loop turn as three phases: append, deliver, write.

Everything that arrives in one turn of the loop is appended to the log as one batch, delivered together and written with one
write per connection. `LoopTurn` is armed by the first callback handed over and runs all phases in one `call_soon`; without
work it costs nothing. It knows no event loop: arming is an argument, and tests drive `net.testing.ManualTurn` by hand.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

Callback = Callable[[], None]


class LoopTurn:
    """`Turn` over `arm`, which calls its argument soon, outside of the current call (`loop.call_soon`).

    During a phase, a callback handed over for a later phase runs in the same turn; for the same or an earlier phase, in the
    next turn, so that a callback that hands itself over again never starves the sockets.
    """

    __slots__ = ("_append", "_arm", "_armed", "_deliver", "_write", "hold")

    def __init__(self, arm: Callable[[Callback], object]) -> None:
        self._arm = arm
        self.hold: Callable[[], bool] = lambda: False
        """Asked before a turn that appends. True: the turn comes after one more look at the sockets (`Gather`)."""
        self._armed = False
        self._append: list[Callback] = []
        self._deliver: list[Callback] = []
        self._write: list[Callback] = []

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

    def at_write(self, callback: Callback) -> None:
        """Last phase: one write per connection."""
        self._write.append(callback)
        if not self._armed:
            self._armed = True
            self._arm(self.run)

    def run(self) -> None:
        """One turn. `_armed` stays set meanwhile, so what a phase hands over never arms a second turn beside this one."""
        callbacks = self._append
        if callbacks:
            if self.hold():
                self._arm(self.run)
                return
            self._append = []
            run_all(callbacks)
        callbacks = self._deliver
        if callbacks:
            self._deliver = []
            run_all(callbacks)
        callbacks = self._write
        if callbacks:
            self._write = []
            run_all(callbacks)
        if self._append or self._deliver or self._write:
            self._arm(self.run)
        else:
            self._armed = False


def run_all(callbacks: list[Callback]) -> None:
    """Run each; one that fails is logged and does not keep the others from running."""
    for callback in callbacks:
        try:
            callback()
        except Exception as error:
            log.error("callback %r failed: %s: %s", callback, type(error).__name__, error)
            log.debug("traceback", exc_info=True)
