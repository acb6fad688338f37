"""Time, turns and chance as this door needs them; tests play them by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gantrymq.net.api import Wheel


class DoorClock(Protocol):
    """What is needed of `Clock`."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def monotonic_ms(self) -> int:
        """Milliseconds of a clock that never goes back."""


class DoorTurn(Protocol):
    """What is needed of `Turn`."""

    def at_append(self, callback: Callable[[], None]) -> None:
        """First phase of a turn."""

    def in_slices(self, callback: Callable[[], None]) -> None:
        """See services.Turn."""

    def at_deliver(self, callback: Callable[[], None]) -> None:
        """Second phase of a turn."""


@dataclass(slots=True)
class Surroundings:
    """`chance` gives 0 <= x < 1."""

    clock: DoorClock
    turn: DoorTurn
    wheel: Wheel
    chance: Callable[[], float]
