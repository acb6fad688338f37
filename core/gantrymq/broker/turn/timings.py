"""How long batches take from their arrival to their answer, and how large they are: one observation per turn of the loop, or per answer
that waited for the disk; never per message."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gantrymq.metrics import COUNTS, SECONDS, Histogram

if TYPE_CHECKING:
    from gantrymq.metrics import Metrics


class Timings:
    """One broker's. `now`: seconds of a clock that never goes back."""

    __slots__ = ("batch_messages", "begun", "now", "send_seconds")

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.begun = 0.0
        """When the first batch of this turn was submitted."""
        self.send_seconds = Histogram(SECONDS)
        self.batch_messages = Histogram(COUNTS)

    def begin(self) -> None:
        """The first batch of a turn was submitted."""
        self.begun = self.now()

    def show(self, metrics: Metrics) -> None:
        """Register them."""
        text = "Time from the submission of a batch of messages to its answer, flush included where it waits for one"
        metrics.show("gantry_send_latency_seconds", text, self.send_seconds)
        metrics.show("gantry_append_batch_messages", "Records that one turn of the loop appended", self.batch_messages)
