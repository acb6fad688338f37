"""When a group is asked for its records: at once, then together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gantrymq.cluster.forward.pulls import APART_S, EACH_S, Pulls


class Later:
    """A clock and calls that wait for it."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.calls.append((self.now_s + delay_s, call))

    def pulls(self) -> Pulls:
        return Pulls(lambda: self.now_s, self.call_later)


def test_who_was_not_asked_for_long_is_asked_at_once() -> None:
    later, asked = Later(), []
    assert later.pulls().wait(0, lambda: asked.append(1)) == later.now_s
    assert asked == [1]
    assert not later.calls


def test_the_same_group_is_asked_again_a_moment_later() -> None:
    later, asked = Later(), []
    pulls = later.pulls()
    last_s = pulls.wait(0, lambda: asked.append(1))
    at_s = pulls.wait(last_s, lambda: asked.append(2))
    assert asked == [1]
    assert at_s == pytest.approx(last_s + APART_S)
    assert later.calls[0][0] == pytest.approx(at_s)
    later.calls[0][1]()
    assert asked == [1, 2]


def test_a_thousand_questions_a_second_to_all_groups_together() -> None:
    later = Later()
    pulls = later.pulls()
    times = [pulls.wait(0, lambda: None) for _ in range(64)]
    assert times == pytest.approx([later.now_s + number * EACH_S for number in range(64)])
