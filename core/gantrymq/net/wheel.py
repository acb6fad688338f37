"""Every deadline of the process behind one timer: keep-alives, retries, long polls, stalled readers.

A deadline falls into a tick of 50 ms. Inserting and cancelling are dictionary operations; a heap orders the *ticks* in use,
not the deadlines. The timer sleeps to the next tick that has a deadline, so an idle process does not wake up.
It knows no event loop: the timer and the clock are arguments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, Protocol

log = logging.getLogger(__name__)

TICK_MS: Final = 50
"""Deadlines are kept to this; finer would wake the process more often, and no protocol here asks for more."""

SERIAL_BITS: Final = 40
"""A handle is `tick << SERIAL_BITS | serial`: cancelling finds the slot without another table."""

SERIAL_MASK: Final = (1 << SERIAL_BITS) - 1

Callback = Callable[[int], None]


class Timer(Protocol):
    """What `call_later` returns."""

    def cancel(self) -> None:
        """Do not fire."""


CallLater = Callable[[float, Callable[[], None]], Timer]
"""`call_later(seconds, callback)`, as the event loop's."""


class TimerWheel:
    """`Wheel` over a monotonic clock and one timer."""

    __slots__ = ("_call_later", "_clock", "_done", "_running", "_serial", "_slots", "_ticks", "_timer", "_timer_tick")

    def __init__(self, clock_ms: Callable[[], int], call_later: CallLater) -> None:
        self._clock = clock_ms
        self._call_later = call_later
        self._slots: dict[int, dict[int, Callback]] = {}
        self._ticks: list[int] = []
        """Heap of the keys of `_slots`, each once."""
        self._serial = 0
        self._done = clock_ms() // TICK_MS
        """Ticks up to this one have been run."""
        self._timer: Timer | None = None
        self._timer_tick = 0
        self._running = False

    def now_ms(self) -> int:
        """The monotonic clock."""
        return self._clock()

    def call_at(self, at_ms: int, callback: Callback) -> int:
        """`callback(now_ms)` once, at or shortly after `at_ms`; a time that has passed means the next tick, never now: a
        callback that asks for the past again and again does not hold up the loop. Returns a handle."""
        tick = -(-at_ms // TICK_MS)
        if tick <= self._done:
            tick = self._done + 1
        self._serial = serial = (self._serial + 1) & SERIAL_MASK
        handle = tick << SERIAL_BITS | serial
        slot = self._slots.get(tick)
        if slot is not None:
            slot[handle] = callback
            if self._timer is not None:
                return handle
        else:
            self._slots[tick] = {handle: callback}
            heappush(self._ticks, tick)
        if not self._running and (self._timer is None or tick < self._timer_tick):
            self._arm()
        return handle

    def cancel(self, handle: int) -> None:
        """Unknown handles are ignored. The timer stays as it is: waking once for nothing is cheaper than setting it anew."""
        slot = self._slots.get(handle >> SERIAL_BITS)
        if slot is not None:
            slot.pop(handle, None)

    def close(self) -> None:
        """Forget every deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._slots.clear()
        self._ticks.clear()

    def _arm(self) -> None:
        """Set the timer to the first tick that still has a deadline; drop the ticks whose deadlines were all cancelled."""
        ticks, slots = self._ticks, self._slots
        while ticks and not slots[ticks[0]]:
            del slots[heappop(ticks)]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if ticks:
            self._timer_tick = ticks[0]
            delay_ms = self._timer_tick * TICK_MS - self._clock()
            self._timer = self._call_later(max(delay_ms, 0) / 1000.0, self.fire)

    def fire(self) -> None:
        """Run what is due. A clock that jumped ahead makes many ticks due at once: they run in order; a timer that came
        early runs nothing and is set again."""
        self._timer = None
        self._running = True
        now_ms = self._clock()
        now_tick = now_ms // TICK_MS
        ticks, slots = self._ticks, self._slots
        if now_tick > self._done:
            self._done = now_tick
        while ticks and ticks[0] <= now_tick:
            tick = heappop(ticks)
            slot = slots[tick]
            # The slot stays in the table while it runs, so that one callback can cancel another of the same tick.
            for handle in list(slot):
                callback = slot.pop(handle, None)
                if callback is not None:
                    run_one(callback, now_ms)
            del slots[tick]
        self._running = False
        self._arm()


def run_one(callback: Callback, now_ms: int) -> None:
    """Run it; a failure is logged and ends with it."""
    try:
        callback(now_ms)
    except Exception as error:
        log.error("deadline %r failed: %s: %s", callback, type(error).__name__, error)
        log.debug("traceback", exc_info=True)
