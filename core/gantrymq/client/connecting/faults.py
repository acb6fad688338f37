"""Brokers to avoid for a while because they failed or were slow: RocketMQ's MQFaultStrategy, with its table."""

from __future__ import annotations

from typing import Final

LEVELS: Final[tuple[tuple[int, int], ...]] = (
    (15_000, 30_000),
    (5_000, 10_000),
    (3_000, 6_000),
    (1_800, 5_000),
    (550, 2_000),
)
"""(latency of one send, how long the broker is avoided), milliseconds; below the last nothing happens (latencyMax, notAvailableDuration)."""
FAILED_MS: Final = 10_000
"""A failed send counts as one that took this long: the broker is avoided for as many seconds."""
BROKERS_MAX: Final = 10_000
"""Brokers that are remembered; the oldest go first. More than a cluster has."""


class BrokerFaults:
    """Until when a broker is avoided, by its name. Times: milliseconds of any one clock."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def sent(self, broker: str, latency_ms: float, now_ms: float) -> None:
        """A send was answered after `latency_ms`."""
        if LEVELS and latency_ms >= LEVELS[-1][0]:
            avoid = next(avoid for latency, avoid in LEVELS if latency_ms >= latency)
            self._avoid(broker, now_ms + avoid)
            return
        if self._until:  # a quick answer: it is well again
            self._until.pop(broker, None)

    def failed(self, broker: str, now_ms: float) -> None:
        """A send failed in a way that another broker might not have."""
        self.sent(broker, FAILED_MS, now_ms)

    def _avoid(self, broker: str, until_ms: float) -> None:
        self._until.pop(broker, None)
        if len(self._until) >= BROKERS_MAX:
            self._until.pop(next(iter(self._until)))
        self._until[broker] = until_ms

    @property
    def any(self) -> bool:
        """Some broker may have to be avoided."""
        return bool(self._until)

    def is_available(self, broker: str, now_ms: float) -> bool:
        """Whether `broker` may be chosen; where none may, all may."""
        if not self._until:
            return True
        return self._until.get(broker, 0.0) <= now_ms
