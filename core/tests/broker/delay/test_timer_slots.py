"""The wheel of arrays against a sorted list."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.broker.delay import timer_slots
from gantrymq.broker.delay.timer_slots import MOVE_STEP, NEVER, SCAN_STEP, SORT_MAX, TimerSlots

NOW = 1_700_000_000_000
YEAR_MS = 366 * 86_400_000


def drain(slots: TimerSlots, now_ms: int) -> list[int]:
    """Everything that is due, as `Timers` takes it."""
    found: list[int] = []
    while slots.next_ms() <= now_ms:
        found += slots.due(now_ms, 50)
    return found


@settings(max_examples=150, deadline=None)
@given(
    delays=st.lists(
        st.one_of(st.integers(-5_000, 5_000), st.integers(0, 3_000_000), st.integers(0, 9 * YEAR_MS)), max_size=60
    ),
    steps=st.lists(st.one_of(st.integers(0, 2_000), st.integers(0, 4_000_000), st.integers(0, YEAR_MS)), max_size=25),
)
def test_every_entry_comes_once_and_never_early(delays: list[int], steps: list[int]) -> None:
    slots = TimerSlots(NOW)
    waiting = {}
    for offset, delay in enumerate(delays):
        if offset % 2 == 0:
            slots.add(NOW + delay, offset)
            waiting[offset] = NOW + delay
    now = NOW
    for number, step in enumerate([*steps, 10 * YEAR_MS]):
        now += step
        if number == 1:
            for offset, delay in enumerate(delays):
                if offset % 2:
                    slots.add(now + delay, offset)
                    waiting[offset] = now + delay
        for offset in drain(slots, now):
            assert waiting.pop(offset) <= now
        assert slots.count == len(waiting)
        late = {offset: at for offset, at in waiting.items() if at <= now - 1024}  # far ones are kept to a second
        assert not late
    assert set(drain(slots, now + 20 * YEAR_MS)) == set(waiting)
    assert slots.next_ms() == NEVER


def test_near_ones_keep_their_millisecond_and_order() -> None:
    slots = TimerSlots(NOW)
    for offset, at in enumerate((900, 300, 300, 650, 5_000)):
        slots.add(NOW + at, offset)
    assert drain(slots, NOW + 299) == []
    assert slots.next_ms() == NOW + 300
    assert drain(slots, NOW + 300) == [1, 2]
    assert drain(slots, NOW + 900) == [3, 0]
    slots.add(NOW + 10, 7)  # late already
    slots.add(NOW + 901, 8)
    assert drain(slots, NOW + 950) == [7, 8]
    assert drain(slots, NOW + 5_000) == [4]


def test_one_call_moves_a_bounded_number() -> None:
    slots = TimerSlots(NOW)
    at = NOW + 3_600_000
    for offset in range(3 * MOVE_STEP):
        slots.add(at, offset)
    moved = []
    original = slots._put

    def count(at_ms: int, offset: int) -> None:
        moved.append(offset)
        original(at_ms, offset)

    slots._put = count  # type: ignore[method-assign]
    assert slots.due(at - 1, 10) == []
    assert len(moved) == MOVE_STEP
    del slots._put  # type: ignore[method-assign]
    assert sorted(drain(slots, at + 1024)) == list(range(3 * MOVE_STEP))


def test_a_crowded_second_is_not_sorted_and_comes_at_its_end() -> None:
    slots = TimerSlots(NOW)
    for offset in range(SORT_MAX + 1):
        slots.add(NOW + 2_000, offset)
    assert slots.next_ms() <= NOW + 2_000 + 1024
    assert drain(slots, NOW + 2_000 + 1024) == list(range(SORT_MAX + 1))


def test_the_clock_goes_back() -> None:
    slots = TimerSlots(NOW)
    slots.add(NOW + 1_000, 1)
    slots.add(NOW + 1_100, 3)
    assert drain(slots, NOW + 1_000) == [1]
    slots.add(NOW - 50_000, 2)
    assert drain(slots, NOW - 50_001) == []
    assert drain(slots, NOW - 50_000) == [2]
    assert drain(slots, NOW + 1_099) == []
    assert drain(slots, NOW + 1_100) == [3]


def near(slots: TimerSlots, first_ms: int, last_ms: int) -> list[int]:
    return [offset for part in slots.around(first_ms, last_ms) for offset in part]


DISTANCES_MS = (200, 40_000, 2_000_000, 40 * 86_400_000, 2 * YEAR_MS)


def test_entries_around_a_time_are_found_at_every_distance() -> None:
    for delay in DISTANCES_MS:
        slots = TimerSlots(NOW)
        slots.add(NOW + delay, 5)
        slots.add(NOW + delay + 10_000_000, 6)
        assert 5 in near(slots, NOW + delay - 500, NOW + delay + 500)
        assert 6 not in near(slots, NOW + delay - 500, NOW + delay + 500)


@pytest.mark.parametrize("delay", DISTANCES_MS)
def test_around_looks_in_small_steps_and_misses_nothing_that_moves_meanwhile(delay: int) -> None:
    slots = TimerSlots(NOW)
    at_ms = NOW + delay
    wanted = set(range(0, 3 * SCAN_STEP, 7))
    for offset in range(3 * SCAN_STEP):
        slots.add(at_ms if offset in wanted else at_ms + 900_000 + offset, offset)
    found: set[int] = set()
    now_ms = NOW
    for part in slots.around(at_ms - 1, at_ms + 1):
        assert len(part) <= max(SCAN_STEP, SORT_MAX)
        found.update(part)
        now_ms = max(now_ms, min(at_ms - 1, now_ms + delay // 4))  # time passes: slots are taken apart
        taken = slots.due(now_ms, 1)
        assert not taken
    assert wanted <= found


def test_an_entry_takes_eight_bytes() -> None:
    slots = TimerSlots(NOW)
    for offset in range(200_000):
        slots.add(NOW + 3_600_000 + offset * 1000, offset)
    size = sum([sys.getsizeof(slot) for slot in (*slots._middle.values(), *slots._far.values())])
    assert size < 200_000 * 10
    assert timer_slots.OFFSET_BITS == 44
