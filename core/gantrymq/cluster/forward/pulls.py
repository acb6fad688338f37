"""When this process asks other groups for their records: what comes within a moment comes together, however many groups there are.

A question and its answer cost as much as ten records. So one group is not asked twice within `APART_S`, nor all of them together more often than every
`EACH_S`; who was not asked for long is asked at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

APART_S: Final = 0.003
"""Between two questions to one group: half of it is what a record waits at most rates."""
EACH_S: Final = 0.001
"""Between two questions to any groups: 1,000 a second."""


class Pulls:
    """One process's. `now_s()`: a clock that is not set; `call_later(seconds, call)`: as the event loop's."""

    def __init__(self, now_s: Callable[[], float], call_later: Callable[[float, Callable[[], None]], object]) -> None:
        self._now_s = now_s
        self._call_later = call_later
        self._taken_s = 0.0
        """When the last question is due that has its time."""

    def wait(self, last_s: float, go_on: Callable[[], None]) -> float:
        """`go_on()` when a group may be asked that was asked last at `last_s`; returns when that is. May call before it returns."""
        now_s = self._now_s()
        at_s = max(now_s, last_s + APART_S, self._taken_s + EACH_S)
        self._taken_s = at_s
        if at_s > now_s:
            self._call_later(at_s - now_s, go_on)
        else:
            go_on()
        return at_s
