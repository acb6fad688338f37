"""Requests of the broker to a client that have an answer: who is called, until when, and who waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.api import Wheel
from gantrymq.remoting.codec import Command

CALLS_MAX: Final = 64
"""Open calls to one client: tools ask one thing at a time, and a client that answers nothing must not pile them up."""

CALL_MS: Final = 10_000
"""RocketMQ's Broker2Client.callClient waits so long."""

OnAnswer = Callable[[Command | GantryError], None]
"""Called once, with the answer, or UNAVAILABLE (the client is gone), FLUSH_TIMEOUT (it did not answer in time)."""


class Calls:
    """Open calls of one connection, by opaque."""

    __slots__ = ("_max", "_open", "_wheel")

    def __init__(self, wheel: Wheel, open_max: int = 0) -> None:
        """`open_max`: 0 is `CALLS_MAX`."""
        self._wheel = wheel
        self._max = open_max
        self._open: dict[int, tuple[OnAnswer, int]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def check_room(self) -> None:
        """Raises LIMIT_REACHED."""
        limit = self._max or CALLS_MAX
        if len(self._open) >= limit:
            raise GantryError(ErrorCode.LIMIT_REACHED, f"{limit} requests to this client are not answered yet")

    def opened(self, opaque: int, timeout_ms: int, on_answer: OnAnswer) -> None:
        """A request is on its way."""

        def late(now_ms: int) -> None:
            self._end(opaque, GantryError(ErrorCode.FLUSH_TIMEOUT, f"the client did not answer within {timeout_ms} ms"))

        self._open[opaque] = (on_answer, self._wheel.call_at(self._wheel.now_ms() + timeout_ms, late))

    def answered(self, answer: Command) -> bool:
        """A response came; False: nobody waits for it here (any more)."""
        return self._end(answer.opaque, answer)

    def closed(self) -> None:
        """The client is gone."""
        for opaque in list(self._open):
            self._end(opaque, GantryError(ErrorCode.UNAVAILABLE, "the client closed its connection"))

    def _end(self, opaque: int, result: Command | GantryError) -> bool:
        found = self._open.pop(opaque, None)
        if found is None:
            return False
        on_answer, handle = found
        self._wheel.cancel(handle)
        on_answer(result)
        return True
