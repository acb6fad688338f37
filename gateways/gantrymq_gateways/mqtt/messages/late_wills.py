"""Wills that wait for their Will Delay Interval (MQTT 5.0 3.1.3.2.2), in memory: a client that goes on with its session in time takes its will back."""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.net.api import Wheel
from gantrymq.services import Clock

Publish = Callable[[], None]


class LateWills:
    """One gateway's, by client id."""

    def __init__(self, clock: Clock, wheel: Wheel) -> None:
        self._clock = clock
        self._wheel = wheel
        self._waiting: dict[str, tuple[int, Publish]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, client_id: str, delay_ms: int, publish: Publish) -> None:
        """Publish later, unless the client returns [MQTT5-3.1.3-9]."""
        self.ended(client_id)
        at_ms = self._clock.monotonic_ms() + delay_ms
        handle = self._wheel.call_at(at_ms, lambda now_ms: self.ended(client_id))
        self._waiting[client_id] = handle, publish

    def resumed(self, client_id: str) -> None:
        """The session goes on: nobody was lost."""
        found = self._waiting.pop(client_id, None)
        if found is not None:
            self._wheel.cancel(found[0])

    def ended(self, client_id: str) -> None:
        """The session has ended, or its time is over: publish now [MQTT5-3.1.2-8]."""
        found = self._waiting.pop(client_id, None)
        if found is not None:
            self._wheel.cancel(found[0])
            found[1]()

    def stop(self) -> None:
        """The gateway stops: nobody else would publish them."""
        for client_id in list(self._waiting):
            self.ended(client_id)
