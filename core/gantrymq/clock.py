"""The process's clock: wall time for records, monotonic time for deadlines.

Everything that needs time takes a `Clock` (see `services.py`); this is the one that reads the machine's. Tests use
`net.testing.ManualClock`.
"""

from __future__ import annotations

from time import CLOCK_BOOTTIME, clock_gettime_ns, monotonic_ns, time_ns


class SystemClock:
    """`Clock` over the operating system."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Milliseconds since the epoch; may jump when the machine's time is set."""
        return time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment; never goes back."""
        return monotonic_ns() // 1_000_000

    def boot_ms(self) -> int:
        """The same, but that it goes on while the machine sleeps."""
        return clock_gettime_ns(CLOCK_BOOTTIME) // 1_000_000
