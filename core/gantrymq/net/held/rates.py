"""What each address and each user takes of a process in a second: connections, requests and bytes; and how many connections a user has.

Requests and bytes above a rate are not refused: reading pauses until they are paid, and the peer's own network holds it up. A connection
above one is refused. This machine and trusted networks have no limits of address; users have theirs wherever they are.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

log = logging.getLogger(__name__)

IDLE_MAX: Final = 10_000
"""Names without a connection whose rates are remembered, some 500 bytes each; the oldest go, which gives each of them one second's worth."""


class Bucket:
    """Tokens that come at a rate, and pile up for one second. `take` may go below zero: who took more waits until it is paid."""

    __slots__ = ("_at_ms", "_left", "_rate")

    def __init__(self, rate: float, now_ms: int) -> None:
        self._rate = rate
        self._left = rate
        self._at_ms = now_ms

    def take(self, count: float, now_ms: int) -> int:
        """Take tokens; the ms until as many have come as were taken."""
        self._left = min(self._rate, self._left + (now_ms - self._at_ms) * self._rate / 1000) - count
        self._at_ms = now_ms
        return 0 if self._left >= 0 else int(-self._left * 1000 / self._rate) + 1

    def give_back(self, count: float) -> None:
        """What was taken was not used."""
        self._left += count


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Of one name each; 0: any number."""

    connections_max: int = 0
    connects_per_s: int = 0
    requests_per_s: int = 0
    bytes_per_s: int = 0

    @property
    def are_any(self) -> bool:
        """Something is bounded."""
        return bool(self.connections_max or self.connects_per_s or self.requests_per_s or self.bytes_per_s)


NO_RATES: Final = RateLimits()


class Meter:
    """Of one name."""

    __slots__ = ("_bytes", "_connects", "_limits", "_requests", "connections", "refusing")

    def __init__(self, limits: RateLimits, now_ms: int) -> None:
        self._limits = limits
        self._connects = Bucket(limits.connects_per_s, now_ms) if limits.connects_per_s else None
        self._requests = Bucket(limits.requests_per_s, now_ms) if limits.requests_per_s else None
        self._bytes = Bucket(limits.bytes_per_s, now_ms) if limits.bytes_per_s else None
        self.connections = 0
        self.refusing = False
        """A refusal was logged, and none of its connections was let in since."""

    def come(self, now_ms: int) -> str:
        """One more connection; or which setting is in its way."""
        limits = self._limits
        if limits.connections_max and self.connections >= limits.connections_max:
            return f"connections_max ({limits.connections_max})"
        if self._connects is not None and self._connects.take(1, now_ms):
            self._connects.give_back(1)  # else whoever tries without an end never comes in
            return f"connects_per_s ({limits.connects_per_s})"
        self.connections += 1
        self.refusing = False
        return ""

    def took(self, requests: int, size: int, now_ms: int) -> int:
        """Ms for which nothing more is to be read."""
        wait_ms = self._requests.take(requests, now_ms) if self._requests is not None else 0
        return max(wait_ms, self._bytes.take(size, now_ms) if self._bytes is not None else 0)


class Meters:
    """Of a process: all addresses, or all users."""

    def __init__(self, limits: RateLimits, now_ms: Callable[[], int], what: str) -> None:
        """`what`: how the settings begin (`server.address`, `auth.user`)."""
        self._limits = limits
        self._now_ms = now_ms
        self._what = what
        self._here: dict[str, Meter] = {}
        self._idle: OrderedDict[str, Meter] = OrderedDict()
        self.refused = 0
        self.are_any = limits.are_any

    def come(self, name: str, peer: str) -> tuple[Meter | None, str]:
        """A connection of this name: its meter, to be given to `went`; or None and why not."""
        meter = self._here.get(name) or self._idle.pop(name, None) or Meter(self._limits, self._now_ms())
        setting = meter.come(self._now_ms())
        if not setting:
            self._here[name] = meter
            return meter, ""
        if not meter.connections:
            self._rest(name, meter)
        self.refused += 1
        why = f"{self._what}_{setting} is reached"
        if not meter.refusing:
            meter.refusing = True
            log.warning("%s: %s: refused, %s; so are others from now on", peer, name, why)
        return None, why

    def went(self, name: str, meter: Meter) -> None:
        """One less."""
        meter.connections -= 1
        if not meter.connections:
            self._here.pop(name, None)
            self._rest(name, meter)

    def _rest(self, name: str, meter: Meter) -> None:
        """What it has taken is remembered while it is away: to come again pays nothing."""
        self._idle[name] = meter
        while len(self._idle) > IDLE_MAX:
            self._idle.popitem(last=False)


class Account:
    """What one connection pays from: its address and its user, where they are bounded."""

    __slots__ = ("_parts", "spent")

    def __init__(self) -> None:
        self._parts: list[tuple[Meters, str, Meter]] = []
        self.spent = 0
        """Requests since the last `pay`."""

    def add(self, meters: Meters, name: str, peer: str) -> str:
        """It is a connection of this name, too, where none of these meters has it; why it is refused."""
        if not meters.are_any or any(known is meters for known, _, _ in self._parts):
            return ""
        meter, why = meters.come(name, peer)
        if meter is not None:
            self._parts.append((meters, name, meter))
        return why

    def pay(self, size: int, now_ms: int) -> int:
        """For what was read just now, and the requests in what was read before; ms for which nothing more is to be read."""
        requests, self.spent = self.spent, 0
        return max([meter.took(requests, size, now_ms) for _, _, meter in self._parts], default=0)

    def leave(self) -> None:
        """It has ended, or is somebody else's."""
        for meters, name, meter in self._parts:
            meters.went(name, meter)
        self._parts.clear()
