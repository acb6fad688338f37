"""Batches that were accepted and whose acknowledgement waits for the disk: how much, and whether the disk moves at all.

Overload is answered early: what a sender would only hear of after its own timeout is refused at once, and it can go to another broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gantrymq.broker.turn.submitted import ENTRY_BYTES
from gantrymq.broker.turn.timings import Timings

if TYPE_CHECKING:
    from gantrymq.broker.config import BrokerConfig
    from gantrymq.broker.port import Done
    from gantrymq.broker.turn.ackgate import AckGate
    from gantrymq.broker.turn.submitted import Sent


class Pending:
    """One broker's. Times: milliseconds of the wheel."""

    __slots__ = ("_now_ms", "bytes", "lasted_ms", "moved_ms", "refused", "times")

    def __init__(self, now_ms: Callable[[], int], now_s: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self.bytes = 0
        """Records, whole, that wait, and `ENTRY_BYTES` for each of their queue entries."""
        self.moved_ms = 0
        """When the disk was last seen to move: something was acknowledged, or the first of what waits came."""
        self.lasted_ms = 0
        """How long it took the disk to move the last time: about as long as a flush."""
        self.refused = 0
        """Messages answered BUSY."""
        self.times = Timings(now_s)

    def refuses(self, count: int, config: BrokerConfig, now_ms: int) -> bool:
        """Whether `count` more messages are too many; asked only while something waits. What comes while nothing waits is taken, and finds out
        whether a slow disk is quicker now."""
        limit_ms = config.pending_ms_max
        full = (
            self.bytes > config.pending_bytes_max
            or now_ms - self.moved_ms > limit_ms
            or self.lasted_ms >= limit_ms  # a flush that takes so long: whoever waits for the next has given up
        )
        if full:
            self.refused += count
        return full

    def park(
        self,
        gate: AckGate,
        end: int,
        answer: tuple[Done, Any, float],
        results: list[Any],
        sent: Sent,
        now_ms: int,
    ) -> None:
        """Let the answer to a batch wait until `end` is on stable storage. `answer`: callback, token, when it was submitted."""
        size = sum([message.size for message in sent.batch]) + sent.entries * ENTRY_BYTES
        if not self.bytes:
            self.moved_ms = now_ms
        self.bytes += size
        gate.park(end, self._done, (*answer, size), results, True)

    def _done(self, entry: tuple[Done, Any, float, int], results: Any) -> None:
        on_done, token, begun, size = entry
        self.bytes -= size
        self.times.send_seconds.observe(self.times.now() - begun)
        now_ms = self._now_ms()
        if now_ms > self.moved_ms:  # the others of this flush are no second one
            self.lasted_ms, self.moved_ms = now_ms - self.moved_ms, now_ms
        on_done(token, results)
