"""AckWindow against a model that keeps plain sets."""

from __future__ import annotations

import sys

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gantrymq.broker.consuming.window import AckWindow


class WindowMachine(RuleBasedStateMachine):
    """Random acquire, done, give back, purge; order and floor must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.window = AckWindow(5)
        self.end = 5
        self.flight: set[int] = set()
        self.back: set[int] = set()
        self.finished: set[int] = set()
        self.next = 5

    @rule(count=st.integers(1, 40))
    def append(self, count: int) -> None:
        self.end += count

    @precondition(lambda self: self.back)
    @rule()
    def acquire_returned(self) -> None:
        taken = self.window.take_returned(1, 2)
        assert taken == sorted(self.back)[:2]
        self.back -= set(taken)
        self.flight |= set(taken)

    @precondition(lambda self: not self.back and self.next < self.end)
    @rule()
    def acquire_next(self) -> None:
        assert self.window.take_next(1) == self.next
        self.flight.add(self.next)
        self.next += 1

    @precondition(lambda self: self.flight)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.flight)))
        assert self.window.done(offset)
        assert not self.window.done(offset)
        self.flight.discard(offset)
        self.finished.add(offset)

    @precondition(lambda self: self.flight)
    @rule(data=st.data())
    def done_range(self, data: st.DataObject) -> None:
        first = data.draw(st.sampled_from(sorted(self.flight)))
        last = first + data.draw(st.integers(0, 40))
        while not set(range(first, last + 1)) <= self.flight:
            last -= 1
        self.window.done_range(first, last)
        self.flight -= set(range(first, last + 1))
        self.finished |= set(range(first, last + 1))

    @precondition(lambda self: self.flight)
    @rule(data=st.data(), delivered=st.booleans())
    def give_back(self, data: st.DataObject, delivered: bool) -> None:
        offset = data.draw(st.sampled_from(sorted(self.flight)))
        before = self.window.deliveries(offset, 0)
        assert self.window.give_back(offset, delivered)
        assert not self.window.give_back(offset, delivered)
        assert self.window.deliveries(offset, 0) == before + delivered
        self.flight.discard(offset)
        self.back.add(offset)

    @rule()
    def holder_gone(self) -> None:
        assert self.window.give_back_all(1) == sorted(self.flight)
        assert self.window.give_back_all(2) == []
        self.back |= self.flight
        self.flight.clear()

    @rule()
    def purge(self) -> None:
        assert self.window.skip_to(self.end) == len(self.back) + self.end - self.next
        self.finished |= self.back | set(range(self.next, self.end))
        self.back.clear()
        self.next = self.end

    @precondition(lambda self: self.next > 5)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.next = self.end = end = data.draw(st.integers(5, self.next))
        self.window.cut(end)
        for offsets in (self.flight, self.back, self.finished):
            offsets.intersection_update(range(end))

    @rule()
    def restart(self) -> None:
        self.window = AckWindow.load(self.window.dump())
        self.window.recover()
        self.back |= self.flight
        self.flight.clear()

    @invariant()
    def agrees(self) -> None:
        window = self.window
        assert window.next_offset == self.next
        assert window.returned == sorted(self.back)
        assert set(window.inflight) == self.flight
        assert window.ready(self.end) == len(self.back) + self.end - self.next
        for offset in range(5, self.next):
            assert window.is_done(offset) == (offset in self.finished)
        floor = 5
        while floor in self.finished:
            floor += 1
        assert window.floor == floor
        assert len(window._bits) <= (self.next - floor) // 8 + 2


TestWindow = WindowMachine.TestCase


def weight(offset: int) -> int:
    return 1 + offset % 7


class TakenOutMachine(RuleBasedStateMachine):
    """Entries that a policy takes out, one by one or many, and finishes in any order, beside consumers."""

    def __init__(self) -> None:
        super().__init__()
        self.window = AckWindow(5)
        self.window.weigh_by(weight)
        self.end = 5
        self.ready: set[int] = set()
        self.out: set[int] = set()
        self.flight: set[int] = set()

    @rule(count=st.integers(1, 60))
    def append(self, count: int) -> None:
        self.ready |= set(range(self.end, self.end + count))
        self.end += count

    @precondition(lambda self: self.end > 5)
    @rule(data=st.data(), count=st.integers(1, 40))
    def take_out(self, data: st.DataObject, count: int) -> None:
        first = data.draw(st.integers(5, self.end - 1))
        for offset in range(first, min(first + count, self.end)):
            assert self.window.take_out(offset) == (offset in self.ready)
            if offset in self.ready:
                self.ready.discard(offset)
                self.out.add(offset)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), count=st.integers(1, 40), backwards=st.booleans())
    def done_out(self, data: st.DataObject, count: int, backwards: bool) -> None:
        known = sorted(self.out)
        first = data.draw(st.integers(0, len(known) - 1))
        for offset in sorted(known[first : first + count], reverse=backwards):
            self.window.done_out(offset)
            self.out.discard(offset)

    @precondition(lambda self: self.ready)
    @rule()
    def acquire(self) -> None:
        if taken := self.window.take_returned(1, 1):
            assert taken == [min(self.ready)]
        else:
            while self.window.ahead and self.window.next_offset in self.window.ahead:
                self.window.pass_over()
            taken = [self.window.take_next(1)]
        self.ready.discard(taken[0])
        self.flight.add(taken[0])

    @precondition(lambda self: self.flight)
    @rule(data=st.data(), done=st.booleans())
    def answer(self, data: st.DataObject, done: bool) -> None:
        offset = data.draw(st.sampled_from(sorted(self.flight)))
        self.flight.discard(offset)
        if done:
            assert self.window.done(offset)
        else:
            assert self.window.give_back(offset, True)
            self.ready.add(offset)

    @invariant()
    def agrees(self) -> None:
        window = self.window
        assert {offset for offset in range(5, self.end) if window.is_ready(offset)} == self.ready
        assert window.ready(self.end) == len(self.ready)
        after = sum(map(weight, range(window.next_offset, self.end)))
        assert after + window.extra_bytes() == sum(map(weight, self.ready))
        assert (window.ahead or set()) >= {offset for offset in self.out if offset >= window.next_offset}


TestTakenOut = TakenOutMachine.TestCase


def test_one_stuck_entry_costs_one_bit_per_entry_behind_it() -> None:
    window = AckWindow(0)
    for _ in range(100_001):
        window.take_next(1)
    for offset in range(1, 100_001):
        window.done(offset)
    assert window.floor == 0
    assert len(window._bits) <= 100_001 // 8 + 1
    window.done(0)
    assert window.floor == 100_001
    assert not window._bits


def test_recovered_offsets_count_as_delivered_once() -> None:
    window = AckWindow(0)
    assert window.deliveries(3, recovered_below=10) == 1
    assert window.deliveries(10, recovered_below=10) == 0


def test_an_idle_window_has_no_table_and_nothing_enters_the_shared_ones() -> None:
    idle, other = AckWindow(0), AckWindow(7)
    assert sys.getsizeof(idle) < 200
    assert (idle.inflight, idle.counts, idle.returned) == ({}, {}, [])
    for write in (
        lambda: idle.inflight.__setitem__(1, 1),
        lambda: idle.inflight.update({1: 1}),
        lambda: idle.counts.setdefault(1, 1),
        lambda: idle.returned.append(1),
        lambda: idle.returned.extend([1]),
    ):
        with pytest.raises(TypeError, match="shared"):
            write()
    for number in range(20):
        assert idle.take_next(1) == number
    idle.take_run(2, 20)
    idle.done(3)
    idle.give_back(4, True)
    idle.give_back_all(1)
    assert idle.take_returned(3, 100) == [0, 1, 2, *range(4, 20)]
    assert (other.inflight, other.counts, other.returned, other.is_done(9)) == ({}, {}, [], False)
