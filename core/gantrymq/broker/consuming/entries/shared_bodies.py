"""A large body that many queues hold is one object for all of them: a record that went into 600 queues is read 600 times, once for each, and what
their slow readers wait for would be 600 copies of it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from gantrymq.net.api import Wheel

SHARED_BYTES_MIN: Final = 32 * 1024
"""Smaller bodies are copied into a write anyway (`net.outbound.LARGE_BYTES`)."""
KEPT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Kept to be found again: one largest body, or four of ordinary size. Queues that a record entered read it one after the other."""
KEPT_MS: Final = 2_000
"""Then all is forgotten here; who has a body keeps it."""


class SharedBodies:
    """The bodies read last."""

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._kept: dict[Hashable, bytes] = {}
        self._kept_bytes = 0

    def shared(self, position: Hashable, body: bytes) -> bytes:
        """`body`, of the record at `position` or of whatever else has that name, or the equal one that was read before."""
        known = self._kept.get(position)
        if known == body:
            return known
        if known is not None or len(body) > KEPT_BYTES_MAX:
            return body
        if not self._kept:
            self._wheel.call_at(self._wheel.now_ms() + KEPT_MS, self._forget)
        while self._kept_bytes + len(body) > KEPT_BYTES_MAX:
            self._kept_bytes -= len(self._kept.pop(next(iter(self._kept))))
        self._kept[position] = body
        self._kept_bytes += len(body)
        return body

    def _forget(self, now_ms: int) -> None:
        self._kept.clear()
        self._kept_bytes = 0
