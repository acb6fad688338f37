"""When which entry of a queue is due: a wheel of arrays, 8 bytes per entry, for millions of entries and years ahead.

Three levels of slots: of a second for the next half hour, of 17 minutes for the next fortnight, of 12 days beyond. A slot is an
array of 64-bit numbers: time within the slot 20 bits | queue offset 44 bits. Entries move to the finer level ahead of time, a few
at a call. Pure: no clock. Nothing is removed before its time; whoever takes an entry asks whether it is still wanted.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

OFFSET_BITS: Final = 44
"""17 million million entries of one queue."""
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1
FINE_BITS: Final = 10
"""Slots of 1.024 s at the finest level; inside, entries are sorted to the millisecond."""
MIDDLE_BITS: Final = 20
FAR_BITS: Final = 30
_FINE_MASK: Final = (1 << FINE_BITS) - 1
_MIDDLE_MASK: Final = (1 << MIDDLE_BITS) - 1
_FAR_MASK: Final = (1 << FAR_BITS) - 1
LEAD_MS: Final = 1 << 18
"""A slot of 17 minutes is taken apart so long before it begins (4 minutes): a million entries at MOVE_STEP a call are done by then."""
FAR_LEAD_MS: Final = 1 << 27
"""The same for a slot of 12 days: a day and a half."""
MOVE_STEP: Final = 2_000
"""Entries moved by one call: under a millisecond."""
SORT_MAX: Final = 4_096
"""A slot with more entries is not sorted, which would take milliseconds: it is due as a whole at its end, a second late at most."""
SCAN_STEP: Final = 2_000
"""Entries looked at by one step of `around`: a third of a millisecond."""
NEVER: Final = 1 << 62


def _between(slot: array[int], low: int, high: int) -> Iterator[list[int]]:
    """Entries of a slot whose time within it is from `low` to `high`."""
    for first in range(0, len(slot), SCAN_STEP):
        yield [
            packed & OFFSET_MASK for packed in slot[first : first + SCAN_STEP] if low <= packed >> OFFSET_BITS <= high
        ]


class TimerSlots:
    """See the module. Times in milliseconds of the wall clock; `now_ms`: where the levels begin."""

    def __init__(self, now_ms: int) -> None:
        self.count = 0
        self._fine: dict[int, array[int]] = {}
        self._fine_keys: list[int] = []
        """Heap of the keys of `_fine`, each once."""
        self._middle: dict[int, array[int]] = {}
        self._middle_min = NEVER
        self._far: dict[int, array[int]] = {}
        self._far_min = NEVER
        self._fine_until = (now_ms + LEAD_MS >> MIDDLE_BITS) + 1 << MIDDLE_BITS
        """Times below go to the finest level."""
        self._middle_until = (now_ms + FAR_LEAD_MS >> FAR_BITS) + 1 << FAR_BITS
        self._moving: array[int] | None = None
        """A slot that is being taken apart: how many of it are moved, its begin, and whether it is one of the far ones."""
        self._moved = 0
        self._moving_from = 0
        self._moving_far = False
        self._run: list[int] = []
        """The slot that is due now, sorted."""
        self._run_key = -1
        self._run_large: array[int] | None = None
        """In its place a large one, taken in its order."""
        self._large_at = 0

    def add(self, at_ms: int, offset: int) -> None:
        """Entry `offset` is due at `at_ms`."""
        self.count += 1
        self._put(at_ms, offset)

    def _put(self, at_ms: int, offset: int) -> None:
        if at_ms < self._fine_until:
            key = at_ms >> FINE_BITS
            packed = (at_ms & _FINE_MASK) << OFFSET_BITS | offset
            if key == self._run_key:
                insort(self._run, packed)
                return
            slot = self._fine.get(key)
            if slot is None:
                slot = self._fine[key] = array("Q")
                heappush(self._fine_keys, key)
            slot.append(packed)
        elif at_ms < self._middle_until:
            key = at_ms >> MIDDLE_BITS
            slot = self._middle.get(key)
            if slot is None:
                slot = self._middle[key] = array("Q")
                self._middle_min = min(self._middle_min, key)
            slot.append((at_ms & _MIDDLE_MASK) << OFFSET_BITS | offset)
        else:
            at_ms = (at_ms + _FINE_MASK) & ~_FINE_MASK  # never early
            key = at_ms >> FAR_BITS
            slot = self._far.get(key)
            if slot is None:
                slot = self._far[key] = array("Q")
                self._far_min = min(self._far_min, key)
            slot.append((at_ms & _FAR_MASK) >> FINE_BITS << OFFSET_BITS | offset)

    def next_ms(self) -> int:
        """When `due` has something to do; `NEVER` while it is empty. In the past: now."""
        if self._moving is not None or self._run_large is not None:
            return 0
        at = (self._run_key << FINE_BITS) + (self._run[0] >> OFFSET_BITS) if self._run else NEVER
        if self._fine_keys and (not self._run or self._fine_keys[0] < self._run_key):
            key = self._fine_keys[0]
            large = len(self._fine[key]) > SORT_MAX
            at = (key + large) << FINE_BITS
        if self._middle:
            at = min(at, (self._middle_min << MIDDLE_BITS) - LEAD_MS)
        if self._far:
            at = min(at, (self._far_min << FAR_BITS) - FAR_LEAD_MS)
        return at

    def due(self, now_ms: int, count_max: int) -> list[int]:
        """Take up to `count_max` entries that are due, in order of time and offset within a slot. Does a step of the work ahead, too."""
        self._move(now_ms)
        found: list[int] = []
        while len(found) < count_max:
            if self._run_large is not None:
                self._take_large(found, count_max)
                continue
            if self._run and self._fine_keys and self._fine_keys[0] < self._run_key:
                self._put_back()
            run = self._run
            if not run:
                if not self._next_run(now_ms):
                    break
                continue
            limit = min(max(now_ms - (self._run_key << FINE_BITS), -1), _FINE_MASK) + 1 << OFFSET_BITS
            taken = 0
            for packed in run:
                if packed >= limit or len(found) >= count_max:
                    break
                found.append(packed & OFFSET_MASK)
                taken += 1
            if not taken:
                break
            del run[:taken]
        self.count -= len(found)
        return found

    def _take_large(self, found: list[int], count_max: int) -> None:
        slot = self._run_large
        assert slot is not None
        end = min(len(slot), self._large_at + count_max - len(found))
        found += [packed & OFFSET_MASK for packed in slot[self._large_at : end]]
        self._large_at = end
        if end == len(slot):
            self._run_large = None
            self._run_key = -1

    def _next_run(self, now_ms: int) -> bool:
        """Make the oldest slot the run if its time has come."""
        if not self._fine_keys:
            return False
        key = self._fine_keys[0]
        slot = self._fine[key]
        large = len(slot) > SORT_MAX
        if (key + large) << FINE_BITS > now_ms:
            return False
        heappop(self._fine_keys)
        del self._fine[key]
        if large:
            self._run_large, self._large_at, self._run_key = slot, 0, -1
        else:
            self._run, self._run_key = sorted(slot), key
        return True

    def _put_back(self) -> None:
        """An older slot came: entries whose time had passed already, or the clock went back."""
        self._fine[self._run_key] = array("Q", self._run)
        heappush(self._fine_keys, self._run_key)
        self._run, self._run_key = [], -1

    def around(self, first_ms: int, last_ms: int) -> Iterator[list[int]]:
        """Entries due between two times, not taken yet; looks at `SCAN_STEP` entries for each list that it yields. Entries may be added
        and taken meanwhile. What moves meanwhile moves to a finer level, which is looked at later: it may come twice."""
        span = (first_ms, last_ms)
        yield from self._of_level(self._far, FAR_BITS, FINE_BITS, *span)
        yield from self._of_moving(*span)
        yield from self._of_level(self._middle, MIDDLE_BITS, 0, *span)
        yield from self._of_moving(*span)
        yield from self._of_level(self._fine, FINE_BITS, 0, *span)
        yield [packed & OFFSET_MASK for packed in self._run]
        slot = self._run_large
        if slot is not None:
            yield from _between(slot, 0, _FINE_MASK)

    def _of_level(
        self, slots: dict[int, array[int]], bits: int, unit: int, first_ms: int, last_ms: int
    ) -> Iterator[list[int]]:
        late = last_ms + (1 << unit) - 1
        for key in range(first_ms >> bits, (late >> bits) + 1):
            slot = slots.get(key)
            if slot is not None:
                yield from _between(slot, first_ms - (key << bits) >> unit, late - (key << bits) >> unit)

    def _of_moving(self, first_ms: int, last_ms: int) -> Iterator[list[int]]:
        slot = self._moving
        if slot is not None:
            unit = FINE_BITS if self._moving_far else 0
            late = last_ms + (1 << unit) - 1
            yield from _between(slot, first_ms - self._moving_from >> unit, late - self._moving_from >> unit)

    def _move(self, now_ms: int) -> None:
        """A step of taking coarse slots apart."""
        if self._moving is None and not self._begin(now_ms):
            return
        slot = self._moving
        assert slot is not None
        start = self._moving_from
        for packed in slot[self._moved : self._moved + MOVE_STEP]:
            inside = packed >> OFFSET_BITS
            self._put(start + (inside << FINE_BITS if self._moving_far else inside), packed & OFFSET_MASK)
        self._moved += MOVE_STEP
        if self._moved >= len(slot):
            self._moving = None

    def _begin(self, now_ms: int) -> bool:
        """Choose the next slot to take apart; False: none is near enough. Moves the borders between the levels."""
        middle_until = (now_ms + FAR_LEAD_MS >> FAR_BITS) + 1 << FAR_BITS
        if middle_until > self._middle_until:
            self._middle_until = middle_until
        fine_until = (now_ms + LEAD_MS >> MIDDLE_BITS) + 1 << MIDDLE_BITS
        if fine_until > self._fine_until:
            self._fine_until = fine_until
        if self._far and self._far_min << FAR_BITS < self._middle_until:
            key = self._far_min
            self._moving = self._far.pop(key)
            self._moving_from, self._moving_far = key << FAR_BITS, True
            self._far_min = min(self._far, default=NEVER)
        elif self._middle and self._middle_min << MIDDLE_BITS < self._fine_until:
            key = self._middle_min
            self._moving = self._middle.pop(key)
            self._moving_from, self._moving_far = key << MIDDLE_BITS, False
            self._middle_min = min(self._middle, default=NEVER)
        else:
            return False
        self._moved = 0
        return True
