"""Leases of pop consumers: which offsets one pop gave out, and until when. In memory only.

What a consumer holds across a crash is known from the log (the delivered mark and the acknowledgements); who held it and until
when is not: everything unacknowledged comes back at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from gantrymq.broker.consuming.known.table import Cursor

if TYPE_CHECKING:
    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.net.api import Wheel


class Place:
    """A group's place in one queue. `attempt`: id of the ordered pop that holds the batch; `committed`: offset that was committed last
    on behalf of this place."""

    __slots__ = ("attempt", "committed", "cursor", "entered", "group", "ordered", "queue_id", "topic")

    def __init__(self, cursor: Cursor, group: str) -> None:
        self.cursor = cursor
        self.group = group
        self.topic = cursor.topic
        self.queue_id = cursor.queue_id
        self.attempt = ""
        self.committed = -1
        self.entered = False
        """`Pops` knows it; else it was made to look, and is forgotten."""
        self.ordered = False
        """The last pop was an ordered one: the next batch waits until nothing is leased."""


TICK_MS: Final = 50
"""Deadlines are kept to this, as the wheel keeps them."""

EXPIRED_MAX: Final = 2048
"""Leased entries that come back in one go: some 0.5 us each, so that the loop is not held up."""


class Lease:
    """Entries of one queue given out by one pop. `left`: how many of them it still holds; `pop_ms`: the receipt's pop time,
    by which a receipt of an earlier delivery is told from this one."""

    __slots__ = ("id", "left", "offsets", "place", "pop_ms", "tick")

    def __init__(self, lease_id: int, place: Place, offsets: Sequence[int], pop_ms: int, due_ms: int) -> None:
        self.id = lease_id
        self.place = place
        self.offsets = offsets
        self.left = len(offsets)
        self.pop_ms = pop_ms
        self.tick = -(-due_ms // TICK_MS)


class Leases:
    """All leases by id and by deadline, behind one entry of the wheel: the earliest deadline. `on_due(lease)`: its time is over;
    it is forgotten already."""

    def __init__(self, wheel: Wheel, on_due: Callable[[Lease], None], on_end: Callable[[], None]) -> None:
        """`on_end()`: a pass over what was due is over."""
        self._wheel = wheel
        self._on_due = on_due
        self._on_end = on_end
        self._slots: dict[int, dict[int, Lease]] = {}
        self._ticks: list[int] = []
        """Heap of the keys of `_slots`, each once."""
        self._armed = 0
        """Tick that the wheel's entry is for; 0: none."""
        self._handle = 0
        self._next_id = 1
        self.by_id: dict[int, Lease] = {}
        self.entries = 0
        """Offsets of all leases, acknowledged ones included: what the memory is bounded by."""

    def add(self, place: Place, offsets: Sequence[int], pop_ms: int, due_ms: int) -> Lease:
        """A new lease. `due_ms`: the wheel's time."""
        lease = Lease(self._next_id, place, offsets, pop_ms, due_ms)
        self._next_id += 1
        self.by_id[lease.id] = lease
        self.entries += len(offsets)
        tick = lease.tick
        slot = self._slots.get(tick)
        if slot is None:
            self._slots[tick] = {lease.id: lease}
            heappush(self._ticks, tick)
            if not self._armed or tick < self._armed:
                self._arm()
        else:
            slot[lease.id] = lease
        return lease

    def end(self, lease: Lease) -> None:
        """It holds nothing any more."""
        if self.by_id.pop(lease.id, None) is not None:
            self.entries -= len(lease.offsets)
            slot = self._slots.get(lease.tick)
            if slot is not None:
                slot.pop(lease.id, None)

    def _arm(self) -> None:
        if self._handle:
            self._wheel.cancel(self._handle)
            self._handle = self._armed = 0
        while self._ticks and not self._slots[self._ticks[0]]:
            del self._slots[heappop(self._ticks)]
        if self._ticks:
            self._armed = self._ticks[0]
            self._handle = self._wheel.call_at(self._armed * TICK_MS, self._due)

    def _due(self, now_ms: int) -> None:
        self._handle = self._armed = 0
        now_tick = now_ms // TICK_MS
        room = EXPIRED_MAX
        while self._ticks and self._ticks[0] <= now_tick and room > 0:
            slot = self._slots[self._ticks[0]]
            while slot and room > 0:
                lease = slot[next(iter(slot))]
                room -= len(lease.offsets)
                self.end(lease)
                self._on_due(lease)
            if not slot:
                del self._slots[heappop(self._ticks)]
        try:
            self._on_end()
        finally:
            self._arm()
