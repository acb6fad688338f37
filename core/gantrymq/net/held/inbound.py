"""What is held of requests that are not whole: frames and bodies that have begun, and what was read and not handled yet.

A peer has `server.frame_timeout_ms` from the first byte of a frame or body to its last one, however it spreads them; what we do not read
meanwhile is not its fault. All peers together may make the process hold `server.inbound_bytes_process_max`: over it those whose bytes were
held longest, bytes times time, are shown out on their protocol's terms. So the place is taken from who trickles, not from who sends.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

log = logging.getLogger(__name__)

CHECKS: Final = 4
"""A frame is looked at so often in its time: one that takes too long ends after 1 to 1.25 of it."""
ROOM: Final = 16
"""At the bound a part of this is made free, so that who has to go is not looked for at each read."""


class Receiving(Protocol):
    """A connection of whose peer's requests something is held."""

    inbound_bytes: int

    def held_ms(self, now_ms: int) -> int:
        """For how long the same frame or body has been unfinished, at least 1."""

    def show_out(self, why: str, busy: bool) -> None:
        """End it on its protocol's terms, and hold nothing of it any more. `busy`: it is we who cannot hold it."""


class Inbound:
    """All that is held in a process."""

    __slots__ = ("bytes_max", "held_bytes", "receiving", "shown_out", "timeout_ms")

    def __init__(self, bytes_max: int, timeout_ms: int) -> None:
        self.bytes_max = bytes_max
        self.timeout_ms = timeout_ms
        self.held_bytes = 0
        self.receiving: set[Receiving] = set()
        self.shown_out = 0
        """Connections ended for what they did not finish."""

    def check_interval_ms(self) -> int:
        """Between two looks at the same connection."""
        return max(self.timeout_ms // CHECKS, 1)

    def bound_all(self, now_ms: int) -> None:
        """Keep what is held within the process's limit."""
        if self.held_bytes <= self.bytes_max:
            return
        floor = self.bytes_max - self.bytes_max // ROOM
        costs = [(one.inbound_bytes * one.held_ms(now_ms), one) for one in self.receiving]
        for _, one in sorted(costs, key=lambda cost: cost[0], reverse=True):
            if self.held_bytes <= floor:
                return
            why = f"{self.held_bytes} bytes of unfinished requests are held, over server.inbound_bytes_process_max"
            one.show_out(why, True)
