"""A window that hands out entries of a higher priority first, those of one priority in their order.

Entries without a priority are the window's as ever. Those with one are remembered by level, and out of the ordinary order (`AckWindow.ahead`) until they are
done: taking, giving back, dropping and finishing them is the same for whoever calls.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from gantrymq.broker.consuming.window import AckWindow

PRIORITIZED_MAX: Final = 1_000_000
"""Entries of a broker with a priority that are not done, some 250 bytes each. Those beyond are served as if they had none."""


class Room:
    """What all windows of a broker share: entries with a priority."""

    def __init__(self) -> None:
        self.used = 0


class _Level:
    """Ready entries of one priority. Some are ready no more: whoever comes there passes over them."""

    __slots__ = ("back", "fresh")

    def __init__(self) -> None:
        self.back: list[int] = []
        """Came back, sorted; served before the others."""
        self.fresh: deque[int] = deque()

    def trim(self, live: set[int]) -> None:
        """Forget those before the first that is ready."""
        gone = next((at for at, offset in enumerate(self.back) if offset in live), len(self.back))
        del self.back[:gone]
        while self.fresh and self.fresh[0] not in live:
            self.fresh.popleft()


class PriorityWindow(AckWindow):
    """See the module. `highest`: priorities above it count as this."""

    __slots__ = ("_levels", "_live", "_priorities", "_room", "_swept", "_taken", "highest")

    def __init__(self, old: AckWindow, highest: int, room: Room) -> None:
        super().__init__(old.floor)
        for name in AckWindow.__slots__:
            setattr(self, name, getattr(old, name))
        self.highest = highest
        self._room = room
        self._levels: dict[int, _Level] = {}
        self._priorities: dict[int, int] = {}
        """Of entries with one that are not done."""
        self._live: set[int] = set()
        """Those that are ready."""
        self._swept = self.next_offset
        self._taken = 0
        """One above the highest entry that was ever handed out of its order."""

    def close(self) -> None:
        """The queue is gone."""
        self._room.used -= len(self._priorities)

    def put(self, offset: int, priority: int) -> None:
        """An entry that entered, or was there before, and is not in flight, has this priority."""
        if priority <= 0 or offset in self._priorities or self._room.used >= PRIORITIZED_MAX:
            return
        if offset < self.next_offset:
            if not self.recall(offset):
                return
        elif self.ahead is None:
            self.ahead = {offset}
            self._count_out(offset)
        elif offset in self.ahead:
            return
        else:
            self.ahead.add(offset)
            self._count_out(offset)
        level = min(priority, self.highest)
        self._priorities[offset] = level
        self._room.used += 1
        self._live.add(offset)
        self._count_in(offset)
        found = self._levels.get(level)
        if found is None:
            self._levels[level] = found = _Level()
            self._levels = dict(sorted(self._levels.items(), reverse=True))
        if found.fresh and offset < found.fresh[-1]:
            insort(found.back, offset)
        else:
            found.fresh.append(offset)

    def urgent(self, count: int) -> list[int]:
        """See AckWindow."""
        found: list[int] = []
        live = self._live
        if not live:
            return found
        for level in self._levels.values():
            level.trim(live)
            for entries in (level.back, level.fresh):
                found += islice((offset for offset in entries if offset in live), count - len(found))
            if len(found) >= count:
                break
        return found

    def take_urgent(self, holder: int, offsets: Sequence[int]) -> None:
        """What `urgent` has just named, now in flight."""
        self._live.difference_update(offsets)
        if self.weigh is not None:
            for offset in offsets:
                self._count_out(offset)
        self.hold(offsets, holder)
        for level in {self._priorities[offset] for offset in offsets}:
            self._levels[level].trim(self._live)
        self._taken = max(self._taken, max(offsets) + 1)

    def ready(self, queue_end: int) -> int:
        """See AckWindow."""
        return super().ready(queue_end) + len(self._live)

    def _weighed(self) -> int:
        return super()._weighed() + (sum(map(self.weigh, self._live)) if self.weigh is not None else 0)

    def is_ready(self, offset: int) -> bool:
        """See AckWindow."""
        return offset in self._live or super().is_ready(offset)

    def take_out(self, offset: int) -> bool:
        """See AckWindow."""
        if offset in self._live:
            self._live.discard(offset)
            self._count_out(offset)
            return True
        return offset not in self._priorities and super().take_out(offset)

    def done(self, offset: int) -> bool:
        """See AckWindow; entries before it are still to come."""
        following = self.next_offset
        was_open = super().done(offset)
        if offset >= following:
            self.next_offset = max(following, self.floor)
            self._taken = max(self._taken, offset + 1)
            self._passed(following)
            if offset >= self.next_offset:
                self.ahead = self.ahead or set()
                if offset not in self.ahead:
                    self.ahead.add(offset)
                    self._count_out(offset)
        if self._priorities.pop(offset, None) is not None:
            self._room.used -= 1
            if offset in self._live:
                self._live.discard(offset)
                self._count_out(offset)
        return was_open

    def give_back(self, offset: int, delivered: bool) -> bool:
        """See AckWindow."""
        level = self._priorities.get(offset)
        if level is None:
            return super().give_back(offset, delivered)
        if self.inflight.pop(offset, None) is None:
            return False
        if delivered:
            self.count(offset, self.counts.get(offset, 0) + 1)
        insort(self._levels[level].back, offset)
        self._live.add(offset)
        self._count_in(offset)
        return True

    def give_back_many(self, offsets: list[int]) -> None:
        """See AckWindow."""
        for offset in offsets:
            self.give_back(offset, True)

    def give_back_all(self, holder: int) -> list[int]:
        """See AckWindow."""
        offsets = sorted([offset for offset, by in self.inflight.items() if by == holder])
        self.give_back_many(offsets)
        return offsets

    def acquired_end(self) -> int:
        """See AckWindow."""
        return max(super().acquired_end(), self._taken)

    def ready_below(self, queue_end: int) -> list[int]:
        """Every ready entry."""
        fresh = [at for at in range(self.next_offset, queue_end) if not self.ahead or at not in self.ahead]
        return sorted([*self.returned, *fresh, *self._live])

    def _passed(self, since: int) -> None:
        """Forget what lies below the next offset, each once."""
        if self.ahead is not None:
            for offset in range(min(self._swept, since), self.next_offset):
                if offset in self.ahead:
                    self.ahead.discard(offset)
                    self._count_in(offset)
        self._swept = max(self._swept, self.next_offset)
