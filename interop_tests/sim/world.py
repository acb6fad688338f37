"""What a simulation runs on: virtual time, one source of chance, and a log of events that is the same whenever the seed is.

Nothing here or in what uses it may look at a real clock, at `id()` or at the order of a set.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

WALL_MS = 1_700_000_000_000
MONOTONIC_MS = 1_000_000
SHOWN_EVENTS = 50
"""Events that a failure shows."""


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


class Clock:
    """The machine's clocks. `now` counts milliseconds from the begin of the simulation; the wall clock may be set."""

    def __init__(self) -> None:
        self.now = 0
        self._settings = [(0, 0)]
        """(since, shift): what somebody set the wall clock to."""

    def now_ms(self) -> int:
        """See `store.Clock`."""
        return WALL_MS + self.now + self._settings[-1][1]

    def monotonic_ms(self) -> int:
        """See `store.Clock`."""
        return MONOTONIC_MS + self.now

    def boot_ms(self) -> int:
        """See `store.Clock`."""
        return MONOTONIC_MS + self.now

    def jump(self, ms: int) -> None:
        """Somebody sets the wall clock."""
        self._settings.append((self.now, self._settings[-1][1] + ms))

    def set_right(self) -> None:
        """Somebody sets it to the latest that it ever showed: whatever had to wait for that is due soon."""
        self._settings.append((self.now, max(shift for _, shift in self._settings)))

    def jumped_since(self, then: int) -> bool:
        """The wall clock was set after that moment."""
        return self._settings[-1][0] >= then and len(self._settings) > 1

    def highest_wall_ms(self, since: int) -> int:
        """The latest wall time that was shown from that moment on."""
        highest = 0
        for place, (_, shift) in enumerate(self._settings):
            end = self._settings[place + 1][0] if place + 1 < len(self._settings) else self.now
            if end >= since:
                highest = max(highest, WALL_MS + end + shift)
        return highest


class Handle:
    """A planned event."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None] | None) -> None:
        self.call = call

    def cancel(self) -> None:
        """It does not happen."""
        self.call = None


class World:
    """Events in the order of their times; equal times in the order in which they were planned."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.lot = random.Random(seed)
        self.clock = Clock()
        self.steps = 0
        self.calm = False
        """Faults have stopped: nothing is late or lost any more."""
        self.last: deque[str] = deque(maxlen=SHOWN_EVENTS)
        self._digest = hashlib.blake2b(digest_size=16)
        self._events: list[tuple[int, int, Handle]] = []
        self._serial = 0

    @property
    def now(self) -> int:
        """Milliseconds since the begin."""
        return self.clock.now

    def later(self, delay_ms: int, call: Callable[[], None]) -> Handle:
        """Plan an event."""
        self._serial += 1
        handle = Handle(call)
        heappush(self._events, (self.clock.now + max(delay_ms, 0), self._serial, handle))
        return handle

    def step(self) -> bool:
        """The next event happens; False if there is none."""
        while self._events:
            at, _, handle = heappop(self._events)
            call = handle.call
            if call is None:
                continue
            self.clock.now = max(self.clock.now, at)
            self.steps += 1
            call()
            return True
        return False

    def note(self, text: str) -> None:
        """A line of the log of events."""
        line = f"step {self.steps} at {self.clock.now} ms: {text}"
        self.last.append(line)
        self._digest.update(line.encode())

    def chance(self, share: float) -> bool:
        """True in that share of the cases."""
        return self.lot.random() < share

    def digest(self) -> str:
        """Of all events so far."""
        return self._digest.copy().hexdigest()
