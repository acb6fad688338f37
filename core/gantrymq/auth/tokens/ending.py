"""A connection that came with a token ends with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

AGAIN_MS: Final = 50
"""Where the wall clock is behind: no connection ends before its token does."""


class Wheel(Protocol):
    """What is needed of `net.api.Wheel`."""

    def call_at(self, at_ms: int, callback: Callable[[int], None]) -> int: ...

    def cancel(self, handle: int) -> None: ...

    def now_ms(self) -> int: ...


class Lasting(Protocol):
    """What is needed of `Identity`."""

    @property
    def alive(self) -> bool: ...

    def ends_in_ms(self) -> int | None: ...


class Ending:
    """Of one connection."""

    __slots__ = ("_handle", "_identity", "_on_end", "_wheel")

    def __init__(self, wheel: Wheel, on_end: Callable[[], None]) -> None:
        self._wheel = wheel
        self._on_end = on_end
        self._identity: Lasting | None = None
        self._handle = 0

    def watch(self, identity: Lasting) -> None:
        """`on_end` once its token is over; a later call counts instead."""
        self.stop()
        self._identity = identity
        left_ms = identity.ends_in_ms()
        if left_ms is not None:
            self._handle = self._wheel.call_at(self._wheel.now_ms() + max(left_ms, AGAIN_MS), self._due)

    def stop(self) -> None:
        """No more."""
        self._wheel.cancel(self._handle)
        self._handle = 0
        self._identity = None

    def _due(self, now_ms: int) -> None:
        identity = self._identity
        if identity is None:
            return
        if identity.alive:
            self._handle = self._wheel.call_at(now_ms + AGAIN_MS, self._due)
        else:
            self._on_end()
