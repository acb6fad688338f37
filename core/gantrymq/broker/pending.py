"""Batches that were accepted and whose acknowledgement waits for the disk: how much, and whether the disk moves at all.

Overload is answered early: what a sender would only hear of after its own timeout is refused at once, and it can go to another broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gantrymq.broker.timings import Timings

if TYPE_CHECKING:
    from gantrymq.broker.ackgate import AckGate
    from gantrymq.broker.config import BrokerConfig
    from gantrymq.broker.port import Done
    from gantrymq.model.message import Message


class Pending:
    """One broker's. Times: milliseconds of the wheel."""

    __slots__ = ("_moved", "bytes", "moved_ms", "refused", "times")

    def __init__(self) -> None:
        self.bytes = 0
        """Records, whole, that wait."""
        self.moved_ms = 0
        """When the disk was last seen to move: something was acknowledged, or the first of what waits came."""
        self._moved = False
        self.refused = 0
        """Messages answered BUSY."""
        self.times = Timings()

    def refuses(self, count: int, config: BrokerConfig, now_ms: int) -> bool:
        """Whether `count` more messages are too many; asked only while something waits."""
        if self._moved:
            self._moved = False
            self.moved_ms = now_ms
        full = self.bytes > config.pending_bytes_max or now_ms - self.moved_ms > config.pending_ms_max
        if full:
            self.refused += count
        return full

    def park(
        self,
        gate: AckGate,
        end: int,
        answer: tuple[Done, Any],
        results: list[Any],
        batch: Sequence[Message],
        now_ms: int,
    ) -> None:
        """Let the answer to a batch wait until `end` is on stable storage."""
        size = sum([message.size for message in batch])
        if not self.bytes:
            self.moved_ms, self._moved = now_ms, False
        self.bytes += size
        self.times.parked += 1
        gate.park(end, self._done, (*answer, size, self.times.begun), results, True)

    def _done(self, entry: tuple[Done, Any, int, float], results: Any) -> None:
        on_done, token, size, begun = entry
        self.bytes -= size
        self.times.send_seconds.observe(self.times.now() - begun)
        self._moved = True
        on_done(token, results)
