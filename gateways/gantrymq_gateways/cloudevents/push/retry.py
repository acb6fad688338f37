"""What an answer of a sink means, and when to try again. Pure functions: time and chance are arguments.

The status table is Knative's data plane, which the webhook specification leaves open.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final

from gantrymq_gateways.cloudevents.wire.constants import MAXATTEMPTS_CEILING

_RETRIED: Final = frozenset({404, 408, 409, 429})
_SECONDS = re.compile(rb"[0-9]{1,9}\Z")


class Verdict(Enum):
    """What became of an attempt."""

    DONE = "done"
    RETRY = "retry"
    FINAL = "final"
    """Never again for this event."""
    GONE = "gone"
    """Never again for this sink (webhook 2.2, 410)."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Back-off of deliveries."""

    first_ms: int = 1_000
    """Before the second attempt; doubled each time."""
    longest_ms: int = 60_000
    retry_after_max_ms: int = 600_000
    """A sink may ask for more than that; it is tried after this time all the same."""

    def delay_ms(self, attempts: int, chance: Callable[[], float]) -> int:
        """Milliseconds to wait after `attempts` failed ones; `chance` gives 0 <= x < 1. Half of it is jitter."""
        full = min(self.longest_ms, self.first_ms << min(attempts - 1, MAXATTEMPTS_CEILING))
        return full // 2 + int(full / 2 * chance())


def verdict_of(status: int) -> Verdict:
    """Verdict of a final response status (200 and up)."""
    if 200 <= status < 300:
        return Verdict.DONE
    if status == 410:
        return Verdict.GONE
    if status >= 500 or status in _RETRIED:
        return Verdict.RETRY
    return Verdict.FINAL  # Redirects too: they are not followed (webhook 2.2).


def retry_after_ms(value: bytes | None, now_ms: int, cap_ms: int) -> int | None:
    """Milliseconds that a Retry-After header asks for: seconds or an HTTP date (RFC 9110 10.2.3); None without one."""
    if value is None:
        return None
    value = value.strip()
    if _SECONDS.match(value) is not None:
        return min(int(value) * 1000, cap_ms)
    try:
        date = parsedate_to_datetime(value.decode("ascii"))
    except (ValueError, OverflowError):  # OverflowError: a number too long for a date
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return min(max(int(date.timestamp() * 1000) - now_ms, 0), cap_ms)
