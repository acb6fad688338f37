"""Commits of consumer groups' offsets: in memory at once (`ConsumerOffsets`), and soon as records of the log."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gantrymq.broker.consuming.offsets import FLUSH_MS, STEP_EVERY_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.broker.consuming.offsets import ConsumerOffsets
    from gantrymq.net.api import Wheel


class OffsetCommits:
    """`put_rows(rows, token, on_done)`: as `Broker.put_rows`."""

    def __init__(self, offsets: ConsumerOffsets, wheel: Wheel, put_rows: Callable[..., None]) -> None:
        self.offsets = offsets
        self._wheel = wheel
        self._put_rows = put_rows
        self._armed = False

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set a group's offset; a record of it follows within a second."""
        if self.offsets.commit(group, topic, queue_id, offset):
            self.arm()

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """As `commit`, for a tool: the group's consumer is sent there at its next pull."""
        if self.offsets.reset(group, topic, queue_id, offset):
            self.arm()

    def arm(self, after_ms: int = FLUSH_MS) -> None:
        """There are offsets to write."""
        if not self._armed:
            self._armed = True
            self._wheel.call_at(self._wheel.now_ms() + after_ms, partial(self.write, everything=False))

    def write(self, _now_ms: int = 0, everything: bool = True) -> None:
        """Make the changed offsets records of the log: all of them, or a slice now and the others soon."""
        self._armed = False
        if rows := self.offsets.take_dirty(everything):
            self._put_rows(rows, self.arm, partial(self.offsets.written, rows))
        if self.offsets.dirty:
            self.arm(STEP_EVERY_MS)
