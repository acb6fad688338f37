"""A record that enters more light queues than one turn should fill: it is in the log, whole, and its queues get it a few at a time.

Its offset in every queue was settled, and written with it, when it was appended. So nothing else may enter a queue that has not got it yet: whoever
appends a record that does makes all of the rest go first (`Appender`). Records from its position on are not dispatched while it lasts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantrymq.model.message import Message
    from gantrymq.store.light.queues import LightQueues


class Spread:
    """One such record. Loop thread only."""

    __slots__ = ("_at", "_unit", "forced", "left", "message", "position", "targets")

    def __init__(self, message: Message, targets: tuple[int, ...]) -> None:
        self.message = message
        self.targets = targets
        self.left = set(targets)
        """Queues that have not got it."""
        self.position = -1
        """Where it begins in the log; negative: it is not there (yet)."""
        self.forced: tuple[int, ...] = ()
        """Queues that got it all at once, because another record was about to enter one of them."""
        self._at = 0
        self._unit = (0, 0, 0)

    def begin(self, unit: tuple[int, int, int]) -> None:
        """It is written: the queue unit of every entry."""
        self._unit = unit
        self.position = unit[0]

    def step(self, lights: LightQueues, count: int) -> tuple[int, ...]:
        """The next queues get it, `count` of them at most; returns which. Those that were deleted since (`forget`) are left out."""
        left = self.left
        part = tuple([light for light in self.targets[self._at : self._at + count] if light in left])
        self._at += count
        lights.add_all(part, *self._unit)
        left.difference_update(part)
        return part

    def force(self, lights: LightQueues) -> None:
        """All that have not got it do."""
        self.forced = self.step(lights, len(self.targets))

    def forget(self, light: int) -> None:
        """The queue is deleted."""
        self.left.discard(light)

    def take_back(self) -> None:
        """The append that began it failed."""
        self.position = -1
