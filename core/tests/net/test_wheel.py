"""The timer wheel: against a model, and its rules about waking up."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from gantrymq.net.testing import ManualClock, ManualWheel
from gantrymq.net.wheel import TICK_MS, TimerWheel


class Timer:
    def __init__(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Timers:
    """`call_later` that only notes."""

    def __init__(self) -> None:
        self.made: list[Timer] = []

    def __call__(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        self.made.append(Timer(delay_s, callback))
        return self.made[-1]

    @property
    def live(self) -> list[Timer]:
        return [timer for timer in self.made if not timer.cancelled]


@given(
    st.lists(
        st.tuples(st.integers(-500, 5000), st.booleans(), st.integers(0, 700)),
        max_size=40,
    )
)
def test_everything_not_cancelled_runs_once_and_at_its_time(plan: list[tuple[int, bool, int]]) -> None:
    clock = ManualClock()
    wheel = ManualWheel(clock)
    ran: list[tuple[int, int, int]] = []
    expected: list[int] = []
    for number, (delay_ms, cancelled, wait_ms) in enumerate(plan):
        due_ms = max(clock.mono_ms + delay_ms, clock.mono_ms)
        handle = wheel.call_at(clock.mono_ms + delay_ms, lambda now, n=number, d=due_ms: ran.append((n, d, now)))  # type: ignore[misc]
        if cancelled:
            wheel.cancel(handle)
        else:
            expected.append(number)
        wheel.advance(wait_ms)
    wheel.advance(10_000)
    assert sorted(number for number, _, _ in ran) == expected
    for _, due_ms, now_ms in ran:
        assert due_ms <= now_ms <= due_ms + 2 * TICK_MS
    assert [now for _, _, now in ran] == sorted(now for _, _, now in ran)


def test_sleeps_to_the_next_deadline_with_one_timer() -> None:
    clock, timers = ManualClock(), Timers()
    wheel = TimerWheel(clock.monotonic_ms, timers)
    assert timers.made == []
    for _ in range(100):
        wheel.call_at(clock.mono_ms + 60_000, lambda now: None)
    assert [timer.delay_s for timer in timers.live] == [60.0]
    wheel.call_at(clock.mono_ms + 1_000, lambda now: None)
    assert [timer.delay_s for timer in timers.live] == [1.0]


def test_nothing_left_means_no_timer() -> None:
    clock, timers = ManualClock(), Timers()
    wheel = TimerWheel(clock.monotonic_ms, timers)
    for handle in [wheel.call_at(clock.mono_ms + 100 * n, lambda now: None) for n in range(1, 50)]:
        wheel.cancel(handle)
    clock.advance(100)
    timers.live[0].callback()
    assert len(timers.made) == 1  # one useless waking for all the cancelled ones


def test_clock_jump_runs_everything_in_order() -> None:
    clock, timers = ManualClock(), Timers()
    wheel = TimerWheel(clock.monotonic_ms, timers)
    ran: list[int] = []
    for delay_ms in (5_000, 1_000, 86_400_000, 3_000):
        wheel.call_at(clock.mono_ms + delay_ms, lambda now, d=delay_ms: ran.append(d))  # type: ignore[misc]
    clock.advance(10 * 86_400_000)
    timers.live[-1].callback()
    assert ran == [1_000, 3_000, 5_000, 86_400_000]


def test_timer_that_comes_early_is_set_again() -> None:
    clock, timers = ManualClock(), Timers()
    wheel = TimerWheel(clock.monotonic_ms, timers)
    ran: list[int] = []
    wheel.call_at(clock.mono_ms + 100, ran.append)
    clock.advance(99)
    timers.made[-1].callback()
    assert ran == []
    assert timers.made[-1].delay_s == 0.001


def test_one_callback_cancels_another_of_the_same_tick_and_asking_for_the_past_does_not_spin() -> None:
    clock = ManualClock()
    wheel = ManualWheel(clock)
    ran: list[str] = []
    handles: list[int] = []

    def first(now_ms: int) -> None:
        ran.append("first")
        wheel.cancel(handles[0])
        wheel.call_at(now_ms - 1000, lambda now: ran.append("past"))

    wheel.call_at(clock.mono_ms + 100, first)
    handles.append(wheel.call_at(clock.mono_ms + 100, lambda now: ran.append("cancelled")))
    wheel.advance(100)
    assert ran == ["first"]
    wheel.advance(TICK_MS)
    assert ran == ["first", "past"]


def test_a_deadline_that_raises_does_not_stop_the_others() -> None:
    clock = ManualClock()
    wheel = ManualWheel(clock)
    ran: list[int] = []

    def broken(now_ms: int) -> None:
        raise ValueError("broken")

    wheel.call_at(clock.mono_ms + 50, broken)
    wheel.call_at(clock.mono_ms + 50, ran.append)
    wheel.call_at(clock.mono_ms + 200, ran.append)
    wheel.advance(1000)
    assert len(ran) == 2


def test_unknown_handles_are_ignored() -> None:
    wheel = ManualWheel(ManualClock())
    wheel.cancel(0)
    wheel.cancel(1 << 70)
    handle = wheel.call_at(wheel.now_ms() + 1, lambda now: None)
    wheel.advance(100)
    wheel.cancel(handle)
