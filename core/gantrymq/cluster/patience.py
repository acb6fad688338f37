"""How long a consumer waits for the groups that its turn falls on: a group that hangs is passed over until it answers again.

Its connection is given up some ten seconds later (`wire/dial.py`); until then nobody should wait for it behind whom other groups
have something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gantrymq.cluster.group import Group
    from gantrymq.net.api import Wheel

PATIENCE_MS: Final = 1_000
"""A first question that is open for so long: a broker answers in a millisecond, one that reads a cold disk in some hundred."""

PATIENCE_MAX_MS: Final = 8_000
"""Twice as long after each answer that came too late, so that a broker that is slow for good is waited for in the end. Less than
what ends a connection."""


class _Group:
    """`open`: time and `on_answer` of each question, the oldest first."""

    __slots__ = ("armed", "group", "open", "patience_ms")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.open: dict[int, tuple[int, Callable[[Any], None]]] = {}
        self.patience_ms = PATIENCE_MS
        self.armed = False


class Patience:
    """Questions to groups; keeps `Group.hangs`. `on_answers_again(group)`: it was passed over, and may be asked again."""

    def __init__(self, wheel: Wheel, on_answers_again: Callable[[Group], None]) -> None:
        self._wheel = wheel
        self._on_answers_again = on_answers_again
        self._groups: dict[int, _Group] = {}
        self._number = 0

    def ask(
        self,
        group: Group,
        question: Callable[[Any, Callable[[Any, Any], None]], None],
        on_answer: Callable[[Any], None],
        on_late: Callable[[Any], None],
    ) -> None:
        """`question(token, on_done)`; `on_answer` gets the result, or an empty one if it takes too long, and
        then `on_late` gets it."""
        known = self._groups.get(group.index)
        if known is None:
            known = self._groups[group.index] = _Group(group)
        self._number += 1
        now_ms = self._wheel.now_ms()
        known.open[self._number] = (now_ms, on_answer)
        if not known.armed:
            self._arm(known, now_ms)

        def answered(number: Any, result: Any) -> None:
            asked = known.open.pop(number, None)
            if asked is not None:
                known.patience_ms = PATIENCE_MS
                asked[1](result)
                return
            on_late(result)
            if group.hangs:
                group.hangs = False
                self._on_answers_again(group)

        question(self._number, answered)

    def _arm(self, known: _Group, asked_ms: int) -> None:
        known.armed = True
        self._wheel.call_at(asked_ms + known.patience_ms, lambda now_ms: self._check(known, now_ms))

    def _check(self, known: _Group, now_ms: int) -> None:
        known.armed = False
        if not known.open:
            return
        oldest_ms = next(iter(known.open.values()))[0]
        if now_ms - oldest_ms < known.patience_ms:
            self._arm(known, oldest_ms)
            return
        waiting, known.open = known.open, {}
        known.group.hangs = True
        known.patience_ms = min(2 * known.patience_ms, PATIENCE_MAX_MS)
        for _, on_answer in waiting.values():
            on_answer([])
