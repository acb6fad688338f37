"""What the door counts, for `/metrics` and for `GET /subscriptions/{id}`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from gantrymq.metrics import Metrics


class Came(StrEnum):
    """What came of one attempt to deliver an event."""

    DELIVERED = "delivered"
    RETRIED = "retried"
    """A failure; the event is tried again."""
    OVERLOADED = "overloaded"
    """429 or 503; tried again, at the sink's own pace if it asked for a pause."""
    UNSENT = "unsent"
    """It did not come to a request, for a reason of ours; tried again."""
    GIVEN_UP = "given_up"
    """The event goes to the dead letters."""
    GONE = "gone"
    """410: the subscription is disabled."""


ERROR_CHARS_MAX: Final = 300
"""Of what is shown of a failure."""

POSTS: Final = "gantry_cloudevents_posts_total"
ATTEMPTS: Final = "gantry_cloudevents_attempts_total"


class EventNumbers:
    """Of one process."""

    def __init__(self) -> None:
        self.posts: Counter[int] = Counter()
        """Answers to posted events, by status."""
        self.attempts: Counter[Came] = Counter()
        self.dead_letters = 0
        """Stored."""
        self._metrics: Metrics | None = None

    def posted(self, status: int) -> None:
        """A request to a topic was answered."""
        if not self.posts[status] and self._metrics is not None:
            self._show_status(self._metrics, status)
        self.posts[status] += 1

    def _show_status(self, metrics: Metrics, status: int) -> None:
        text = "Answers to posts of events, by HTTP status"
        metrics.read(POSTS, text, partial(self.posts.__getitem__, status), "counter", status=str(status))

    def show(self, metrics: Metrics) -> None:
        """Register what is counted."""
        self._metrics = metrics
        for status in {202, *self.posts}:
            self._show_status(metrics, status)
        for came in Came:
            text = "Attempts to deliver an event to a sink, by what came of them"
            metrics.read(ATTEMPTS, text, partial(self.attempts.__getitem__, came), "counter", outcome=came.value)
        text = "Events stored in %DLQ%<subscription>"
        metrics.read("gantry_cloudevents_dead_letters_total", text, lambda: self.dead_letters, "counter")


@dataclass(slots=True)
class LastAttempt:
    """The newest answer of a subscription's sink. `status` 0: none came, and `failure` says why. `at_ms`: since the epoch; 0: no attempt yet."""

    status: int = 0
    failure: str = ""
    at_ms: int = 0

    @property
    def error(self) -> str:
        """How it failed, in a line; empty: it did not."""
        if 200 <= self.status < 300 or not self.at_ms:
            return ""
        return self.failure[:ERROR_CHARS_MAX] if not self.status else f"HTTP {self.status}"
