"""Addresses of sinks' names: one look-up per name at a time, shared by all who wait for it, and kept for a while.

A look-up holds a thread until the system's resolver comes back, and that may be long after its deadline. So names that
answered last time have threads of their own: names that hang take the others'. No I/O of its own: whoever starts a look-up
is an argument.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gantrymq.net.api import Wheel

LOOKUP_MS: Final = 5_000
"""Deadline of one look-up from its start; a resolver that is well answers in a tenth of that."""
ADDRESSES_MS: Final = 30_000
"""Addresses are kept for this long: the system's resolver does not tell their TTL, and failover by DNS counts on about this."""
FAILURE_MS_MIN: Final = 5_000
FAILURE_MS_MAX: Final = 60_000
"""A failure is kept for as long as it took, within these: a name that hangs has a thread half of the time at most."""
THREADS_PER_LANE: Final = 16
"""Look-ups at work, of names that answered last time and of all others; a thread that waits costs some 100 KB."""
THREADS_MAX: Final = 64
"""Threads in all: names that used to answer and now hang go over to the others, whatever room there is."""
QUEUE_MAX: Final = 1_024
"""Names that wait for a thread, per lane; as many subscriptions as there may be by default."""
NAMES_MAX: Final = 4_096
"""Names remembered; more than can wait or be at work, so that there is always one to forget."""

Found = tuple[str, ...] | OSError
"""Addresses in their text form, or why there are none."""
StartLookup = Callable[[str, Callable[[Found], None]], None]
"""Looks a name up elsewhere and calls back in this thread, later, exactly once."""


class NoThreadError(OSError):
    """The look-up was not begun; that says nothing about the name."""


class Lookup:
    """One who waits for a name."""

    __slots__ = ("_name", "_on_found")

    def __init__(self, name: _Name, on_found: Callable[[Found], None]) -> None:
        self._name = name
        self._on_found: Callable[[Found], None] | None = on_found

    @property
    def is_queued(self) -> bool:
        """No thread has taken it up so far."""
        return self._on_found is not None and self._name.lane is not None and not self._name.is_running

    def cancel(self) -> None:
        """Do not call back."""
        self._on_found = None
        if self in self._name.waiting:
            self._name.waiting.remove(self)

    def tell(self, found: Found) -> None:
        """Call back, once."""
        on_found, self._on_found = self._on_found, None
        if on_found is not None:
            on_found(found)


class _Lane:
    """Names that wait for one kind of thread."""

    __slots__ = ("queue", "threads")

    def __init__(self) -> None:
        self.queue: deque[_Name] = deque()
        self.threads = 0


class _Name:
    """What is known of a name. `lane`: where it waits or runs; None while it does neither."""

    __slots__ = (
        "answered",
        "found",
        "is_overdue",
        "is_running",
        "kept_until_ms",
        "lane",
        "since_ms",
        "text",
        "timer",
        "waiting",
    )

    def __init__(self, text: str) -> None:
        self.text = text
        self.waiting: list[Lookup] = []
        self.found: Found = NoThreadError("not looked up yet")
        self.kept_until_ms = 0
        self.answered = False
        """Its last look-up brought addresses in time."""
        self.lane: _Lane | None = None
        self.is_running = False
        self.is_overdue = False
        self.since_ms = 0
        self.timer = 0

    def tell(self, found: Found) -> None:
        """All who wait have their answer."""
        waiting, self.waiting = self.waiting, []
        for lookup in waiting:
            lookup.tell(found)


class Resolver:
    """See the module."""

    def __init__(self, wheel: Wheel, start: StartLookup) -> None:
        self._wheel = wheel
        self._start = start
        self._names: dict[str, _Name] = {}
        """Least recently used first."""
        self._answered = _Lane()
        self._others = _Lane()

    def resolve(self, text: str, on_found: Callable[[Found], None]) -> Lookup:
        """Addresses of a name; `on_found` is called at once if they are known."""
        name = self._names.pop(text, None) or _Name(text)
        self._names[text] = name
        lookup = Lookup(name, on_found)
        lane = self._answered if name.answered else self._others
        if name.is_overdue or (name.lane is None and self._wheel.now_ms() < name.kept_until_ms):
            lookup.tell(name.found)
        elif name.lane is not None:
            name.waiting.append(lookup)
        elif len(lane.queue) >= QUEUE_MAX:
            lookup.tell(NoThreadError(f"{QUEUE_MAX} other names wait to be looked up"))
        else:
            name.waiting.append(lookup)
            name.lane = lane
            lane.queue.append(name)
            self._go_on()
        if len(self._names) > NAMES_MAX:
            del self._names[next(text for text, name in self._names.items() if name.lane is None)]
        return lookup

    def _go_on(self) -> None:
        for lane in (self._answered, self._others):
            while lane.queue and lane.threads < THREADS_PER_LANE and self._threads() < THREADS_MAX:
                name = lane.queue.popleft()
                if name.waiting:
                    self._begin(name, lane)
                else:
                    name.lane = None  # Nobody wants to know any more.

    def _threads(self) -> int:
        return self._answered.threads + self._others.threads

    def _begin(self, name: _Name, lane: _Lane) -> None:
        lane.threads += 1
        name.is_running = True
        name.since_ms = self._wheel.now_ms()
        name.timer = self._wheel.call_at(name.since_ms + LOOKUP_MS, lambda now_ms: self._overdue(name))
        self._start(name.text, lambda found: self._done(name, found))

    def _overdue(self, name: _Name) -> None:
        """Nobody waits longer; the thread is still held, from now on one of those for names that hang."""
        name.timer = 0
        name.is_overdue = True
        name.answered = False
        if name.lane is not None:
            name.lane.threads -= 1
        name.lane = self._others
        name.lane.threads += 1
        name.found = TimeoutError(f"the name was not looked up within {LOOKUP_MS} ms")
        name.tell(name.found)
        self._go_on()

    def _done(self, name: _Name, found: Found) -> None:
        now_ms = self._wheel.now_ms()
        if name.timer:
            self._wheel.cancel(name.timer)
            name.timer = 0
        if name.lane is not None:
            name.lane.threads -= 1
        failed = isinstance(found, OSError)
        name.found = found
        name.answered = not failed and not name.is_overdue
        failure_ms = min(max(now_ms - name.since_ms, FAILURE_MS_MIN), FAILURE_MS_MAX)
        name.kept_until_ms = now_ms + (failure_ms if failed else ADDRESSES_MS)
        name.lane = None
        name.is_running = name.is_overdue = False
        name.tell(found)
        self._go_on()


def lookup_in_thread(loop: asyncio.AbstractEventLoop) -> StartLookup:
    """A thread per look-up: the loop's own pool has few, which others need. Daemons, or a name that hangs would hold up the exit."""

    def start(text: str, on_found: Callable[[Found], None]) -> None:
        def run() -> None:
            found: Found
            try:
                entries = socket.getaddrinfo(text, None, type=socket.SOCK_STREAM)
                found = tuple(dict.fromkeys([str(entry[4][0]) for entry in entries]))
            except OSError as error:
                found = error
            except ValueError as error:  # UnicodeError: a name that IDNA cannot write
                found = OSError(str(error))
            with suppress(RuntimeError):  # The loop was closed meanwhile: nobody waits.
                loop.call_soon_threadsafe(on_found, found)

        try:
            threading.Thread(target=run, name="gantry-look-up", daemon=True).start()
        except RuntimeError as error:  # The system has no thread for us.
            loop.call_soon(on_found, NoThreadError(str(error)))

    return start
