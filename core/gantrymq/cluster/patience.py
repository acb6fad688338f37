"""How long anybody waits for a group that hangs: consumers pass over it, and names that it decides about are refused, until it answers again.

Its connection is given up some seconds later (`wire/dial.py`); until then nobody should wait for it behind whom other groups
have something, nor a client for what cannot be decided.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    from gantrymq.broker.port import Done
    from gantrymq.cluster.group import Cluster, Group
    from gantrymq.net.api import Wheel
    from gantrymq.net.procedures.driver import Call

PATIENCE_MS: Final = 1_000
"""A first question that is open for so long: a broker answers in a millisecond, one that reads a cold disk in some hundred."""

PATIENCE_MAX_MS: Final = 8_000
"""Twice as long after each answer that came too late, so that a broker that is slow for good is waited for in the end. Less than
what ends a connection."""


SILENCE_MS: Final = 800
"""A group that is asked to decide and says nothing at all for so long, to nobody, hangs: its clients are to hear so within a second."""

CHECK_EVERY_MS: Final = 100
"""How often it is looked whether it says something."""


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


class _Asked:
    """A question to a group: `on_done` is answered once, in time or not."""

    __slots__ = ("at_ms", "late", "on_done", "token", "undo")

    def __init__(self, at_ms: int, token: Any, on_done: Done, undo: Callable[[Any], None]) -> None:
        self.at_ms = at_ms
        self.token = token
        self.on_done = on_done
        self.undo = undo
        self.late = False


class _Silence:
    """What one group was asked. `heard_ms`: when it said something last, as far as was looked."""

    __slots__ = ("armed", "group", "heard", "heard_ms", "open")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.open: dict[int, _Asked] = {}
        self.armed = False
        self.heard = 0
        self.heard_ms = 0


class Decisions:
    """Questions that one group alone can answer; keeps `Group.hangs` as `Patience` does. A group that is busy, and answers somebody, is waited for."""

    def __init__(self, cluster: Cluster, on_answers_again: Callable[[Group], None]) -> None:
        self._cluster = cluster
        self._wheel = cluster.wheel
        self._on_answers_again = on_answers_again
        self._groups: dict[int, _Silence] = {}
        self._number = 0

    def ask(self, group: Group, question: Call, undo: Callable[[Any], None] = lambda result: None) -> Call:
        """The question, answered with UNAVAILABLE if the group says nothing for `SILENCE_MS` and is not the only one. `undo` gets what it says
        after that, if it did what it was asked."""
        return partial(self._ask, group, question, undo) if len(self._cluster.groups) > 1 else question

    def _ask(self, group: Group, question: Call, undo: Callable[[Any], None], token: Any, on_done: Done) -> None:
        known = self._groups.get(group.index)
        if known is None:
            known = self._groups[group.index] = _Silence(group)
        self._number += 1
        now_ms = self._wheel.now_ms()
        known.open[self._number] = asked = _Asked(now_ms, token, on_done, undo)
        if not known.armed:
            known.heard, known.heard_ms = group.port.heard, now_ms
            self._arm(known, now_ms)
        question(self._number, partial(self._answered, known, asked))

    def _answered(self, known: _Silence, asked: _Asked, number: Any, result: Any) -> None:
        if not asked.late:
            del known.open[number]
            asked.on_done(asked.token, result)
            return
        if not isinstance(result, GantryError):
            asked.undo(result)
        if known.group.hangs:
            known.group.hangs = False
            self._on_answers_again(known.group)

    def _arm(self, known: _Silence, now_ms: int) -> None:
        known.armed = True
        self._wheel.call_at(now_ms + CHECK_EVERY_MS, lambda now_ms: self._check(known, now_ms))

    def _check(self, known: _Silence, now_ms: int) -> None:
        known.armed = False
        if not known.open:
            return
        heard = known.group.port.heard
        if heard != known.heard:
            known.heard, known.heard_ms = heard, now_ms
        since_ms = max(known.heard_ms, next(iter(known.open.values())).at_ms)
        if now_ms - since_ms < SILENCE_MS:
            self._arm(known, now_ms)
            return
        waiting, known.open = known.open, {}
        known.group.hangs = True
        for asked in waiting.values():
            asked.late = True
            asked.on_done(asked.token, hangs(known.group))


def hangs(group: Group) -> GantryError:
    """What is answered for a group that says nothing."""
    return GantryError(ErrorCode.UNAVAILABLE, f"the broker group {group.name} does not answer")
