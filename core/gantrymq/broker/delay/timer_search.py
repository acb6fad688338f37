"""Recall of a timer whose key the index does not know (any more): its second of the wheel is searched, a slice per loop turn.

A slot may hold millions of entries, and a client may ask for keys that never were. One search runs at a time, the others wait.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.store.cold import Cold
from gantrymq.store.schedule import PRECISION_MS, number_of

if TYPE_CHECKING:
    from gantrymq.broker.delay.timer_slots import TimerSlots
    from gantrymq.broker.parts import Context
    from gantrymq.model.message import Message

log = logging.getLogger(__name__)

SEARCHES_MAX: Final = 64
"""Recalls that wait for their search; beyond it they are answered BUSY."""
CANDIDATES_MAX: Final = 10_000
"""Records looked at for one recall: those that are due in the same second. One in a more crowded second may not be found."""
READ_STEP: Final = 32
"""Records read in one slice."""

Reads = Callable[[Sequence[int]], "Sequence[Message | OSError | None]"]
OnFound = Callable[[list[int] | ErrorCode], None]
"""Gets the offsets that were found, or why they could not be looked for."""


def is_target(message: Message, topic: str, unique: str, out_ms: int) -> bool:
    """Whether an order for this key recalls it: same second, and no order itself."""
    return (
        message.property(props.REAL_TOPIC) == topic
        and message.property(props.UNIQ_KEY) == unique
        and number_of(message.property("TIMER_OUT_MS")) == out_ms
        and not message.property("TIMER_DEL_UNIQKEY")
    )


class Search:
    """One search; `step()` does a slice of it."""

    def __init__(
        self, slots: TimerSlots, out_ms: int, pending: Callable[[int], bool], read: Reads, wanted: Callable[[Message], bool]
    ) -> None:  # fmt: skip
        self._parts = slots.around(out_ms, out_ms + PRECISION_MS)
        self._near: dict[int, None] | None = {}
        self._left: deque[int] = deque()
        self._pending = pending
        self._read = read
        self._wanted = wanted
        self.found: list[int] = []

    def step(self) -> bool:
        """True: there is more. May raise `Cold`, with nothing changed."""
        near = self._near
        if near is not None:
            part = next(self._parts, None)
            if part is not None:
                near.update(dict.fromkeys([offset for offset in part if self._pending(offset)]))
            if part is None or len(near) >= CANDIDATES_MAX:
                self._left.extend(list(near)[:CANDIDATES_MAX])
                self._near = None
            return True
        some = [self._left[place] for place in range(min(READ_STEP, len(self._left)))]
        if not some:
            return False
        for offset, record in zip(some, self._read(some), strict=True):
            if record is not None and not isinstance(record, OSError) and self._wanted(record):
                self.found.append(offset)
            self._left.popleft()
        return True


class Searches:
    """The searches of one broker."""

    def __init__(self, broker: Context) -> None:
        self._broker = broker
        self._waiting: deque[tuple[Search, OnFound]] = deque()

    @property
    def full(self) -> bool:
        """No further search can wait."""
        return len(self._waiting) >= SEARCHES_MAX

    def begin(self, search: Search, on_found: OnFound) -> None:
        """Search in slices, then call back; never before this returns."""
        self._waiting.append((search, on_found))
        if len(self._waiting) == 1:
            self._broker.turn.at_deliver(self._turn)

    def _turn(self) -> None:
        search, on_found = self._waiting[0]
        if self._broker.closed:
            return
        result: list[int] | ErrorCode = search.found
        try:
            if search.step():
                self._broker.turn.at_deliver(self._turn)
                return
        except Cold as cold:
            self._broker.fetch(cold, search, self._again)
            return
        except (OSError, GantryError) as error:
            log.error("a recall cannot look for its message: %s", error)
            result = ErrorCode.UNAVAILABLE
        self._waiting.popleft()
        if self._waiting:
            self._broker.turn.at_deliver(self._turn)
        on_found(result)

    def _again(self, _search: Search) -> None:
        self._turn()
