"""Deliveries that nobody answers: their channel is closed (RabbitMQ: consumer_timeout), and what it holds is delivered again.

No time is kept per delivery: a channel notes from time to time which tag comes next, and what lies below an old note is as old.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gantrymq_gateways.amqp.wire.constants import PRECONDITION_FAILED, AmqpError

if TYPE_CHECKING:
    from gantrymq.net.api import Wheel
    from gantrymq_gateways.amqp.messages.consumers import Consumer, Queue

PERIOD_MS_MAX: Final = 60_000
"""As often as RabbitMQ looks (channel_tick_interval)."""
PERIOD_MS_MIN: Final = 250
"""More often is not worth it: a timeout is exact to a quarter, or to this."""
MARKS_MAX: Final = 256
"""Notes of one channel; of more every second one goes, and what is younger than the rest is noticed later."""


class Ages:
    """How old the deliveries of a channel are, by tag."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: list[tuple[int, int]] = []
        """(milliseconds, next tag then): rising."""

    def overdue(
        self, open_: dict[int, tuple[Queue, int, Consumer | None]], next_tag: int, now_ms: int
    ) -> tuple[int, Queue] | None:
        """The first delivery (tag, queue) that has waited longer than its queue allows."""
        marks = self._marks
        first = next(iter(open_), next_tag)
        while marks and marks[0][1] <= first:
            del marks[0]
        found = self._first(open_, now_ms)
        if open_ and (not marks or marks[-1][1] != next_tag):
            marks.append((now_ms, next_tag))
            if len(marks) > MARKS_MAX:
                self._marks = marks[::2]
        return found

    def _first(self, open_: dict[int, tuple[Queue, int, Consumer | None]], now_ms: int) -> tuple[int, Queue] | None:
        marks, at = self._marks, 0
        for tag, (queue, _, _) in open_.items():
            while at < len(marks) and marks[at][1] <= tag:
                at += 1
            if at == len(marks):
                return None
            if queue.timeout_ms and now_ms - marks[at][0] >= queue.timeout_ms:
                return tag, queue
        return None


def timed_out(channel: int, timeout_ms: int) -> AmqpError:
    """As RabbitMQ says it."""
    text = f"delivery acknowledgement on channel {channel} timed out. Timeout value used: {timeout_ms} ms. "
    return AmqpError(
        PRECONDITION_FAILED, text + "This timeout value can be configured, see consumers doc guide to learn more"
    )


class Clockwork:
    """Calls `check(now_ms)` often enough for the shortest timeout that was asked for."""

    def __init__(self, wheel: Wheel, check: Callable[[int], None]) -> None:
        self._wheel = wheel
        self._check = check
        self._period_ms = 0
        self._handle = 0

    def need(self, timeout_ms: int) -> None:
        """Somebody consumes with this timeout; 0: without."""
        period_ms = max(min(timeout_ms // 4, PERIOD_MS_MAX), PERIOD_MS_MIN)
        if timeout_ms and (not self._period_ms or period_ms < self._period_ms):
            if self._period_ms:
                self._wheel.cancel(self._handle)
            self._period_ms = period_ms
            self._arm()

    def stop(self) -> None:
        """Nobody needs it any more."""
        if self._period_ms:
            self._wheel.cancel(self._handle)
        self._period_ms = 0

    def _arm(self) -> None:
        self._handle = self._wheel.call_at(self._wheel.now_ms() + self._period_ms, self._tick)

    def _tick(self, now_ms: int) -> None:
        self._check(now_ms)
        if self._period_ms:
            self._arm()
