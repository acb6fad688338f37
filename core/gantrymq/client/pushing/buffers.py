"""Messages of one queue between the broker and a push consumer's handler: bounded, and knowing up to where everything is done."""

from __future__ import annotations

import asyncio
from typing import Final

from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.client.records import ReceivedMessage

MESSAGES_MAX: Final = 1000
"""Messages of a queue that wait or are being handled (pullThresholdForQueue): above, the queue is not pulled."""
BYTES_MAX: Final = 100 * 1024 * 1024
"""Their bodies and properties (pullThresholdSizeForQueue)."""
SPAN_MAX: Final = 2000
"""Offsets between the oldest that is not done and the newest (consumeConcurrentlyMaxSpan): one stuck message must not let the group repeat
without bound after a crash."""


class QueueBuffer:
    """One queue of a push consumer."""

    __slots__ = (
        "_pending", "_quiet", "_room", "busy", "bytes", "dropped", "last_pull_ms", "locked_until", "messages_max", "next_offset", "pulls",
        "queue", "reset_to",
    )  # fmt: skip

    def __init__(self, queue: MessageQueue, offset: int, messages_max: int = MESSAGES_MAX) -> None:
        self.queue = queue
        self.next_offset = offset
        """Where the next pull begins."""
        self.messages_max = messages_max
        self.bytes = 0
        self.busy = 0
        """Handler calls under way."""
        self.dropped = False
        """The queue is somebody else's now: nothing more of it is handled, nothing of it committed."""
        self.reset_to: int | None = None
        """Where the group goes on whatever is done here: set with `dropped`."""
        self.locked_until = 0.0
        """Orderly consumers: loop time up to which the broker's lock is sure."""
        self.last_pull_ms = 0
        """Milliseconds since the epoch."""
        self.pulls = 0
        self._pending: dict[int, int] = {}
        """Size by offset of what is not done, in the order of offsets."""
        self._room: asyncio.Event = asyncio.Event()
        self._quiet: asyncio.Event = asyncio.Event()

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, messages: list[ReceivedMessage]) -> None:
        """Take in what a pull brought."""
        pending, total = self._pending, 0
        for message in messages:
            pending[message.queue_offset] = size = len(message.raw_body) + len(message.properties)
            total += size
        self.bytes += total

    def done(self, offset: int) -> None:
        """A message needs nothing more: it was handled, or went back to the broker."""
        self.bytes -= self._pending.pop(offset, 0)
        if not self._room.is_set():
            self._room.set()

    def begin(self) -> None:
        """A handler call begins."""
        self.busy += 1

    def end(self) -> None:
        """A handler call ended."""
        self.busy -= 1
        if not self.busy:
            self._quiet.set()

    @property
    def floor(self) -> int:
        """Everything below this offset is done, or not wanted."""
        if self.reset_to is not None:
            return self.reset_to
        return next(iter(self._pending), self.next_offset)

    def is_full(self) -> bool:
        """Whether pulls pause."""
        if len(self._pending) >= self.messages_max or self.bytes >= BYTES_MAX:
            return True
        return bool(self._pending) and self.next_offset - self.floor > SPAN_MAX

    async def room(self) -> None:
        """Wait until another pull may begin."""
        while self.is_full() and not self.dropped:
            self._room.clear()
            await self._room.wait()

    async def quiet(self, timeout_s: float) -> bool:
        """Wait until no handler call is under way; False if that takes longer than `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.busy:
                    self._quiet.clear()
                    await self._quiet.wait()
        except TimeoutError:
            return False
        return True

    def drop(self, reset_to: int | None = None) -> None:
        """The queue goes to another member, or the group to another offset."""
        self.dropped = True
        self.reset_to = reset_to
        self._room.set()
