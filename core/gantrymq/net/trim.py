"""Memory that was held for peers goes back to the system when they have gone.

glibc gives back the end of its heap by itself, not the holes below what is still in use: when megabytes of bodies and answers had come and gone, a
few small objects made meanwhile kept all of them resident. `malloc_trim` gives back whole pages wherever they are. It runs on a thread, but
whoever wants memory meanwhile may wait for it (100 ms for 160 MB on a virtual machine with slow memory), so it runs seldom, and only
after much was held and is not any more. Keeping large blocks out of the heap (M_MMAP_THRESHOLD) was measured, too: there every body of 1 MiB
costs 0.5 ms more.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from threading import Thread
from typing import Final

from gantrymq.net.api import Wheel

log = logging.getLogger(__name__)

CHECK_MS: Final = 20_000
FREED_BYTES_MIN: Final = 16 * 1024 * 1024
"""So much less is held than at most since the last time: less than that is not worth a thread."""


def trim() -> None:
    """Give free pages back, where the C library can."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError) as error:  # not glibc: musl gives pages back by itself
        log.debug("malloc_trim: %s", error)


def on_thread() -> None:
    """`trim` without waiting."""
    Thread(target=trim, name="trim", daemon=True).start()


class Trimmer:
    """Looks at what is held while there is anything."""

    __slots__ = ("_armed", "_held_bytes", "_most_bytes", "_trim", "_wheel")

    def __init__(self, wheel: Wheel, held_bytes: Callable[[], int], trim: Callable[[], None] = on_thread) -> None:
        self._wheel = wheel
        self._held_bytes = held_bytes
        self._trim = trim
        self._most_bytes = 0
        self._armed = False

    def note(self) -> None:
        """Something large is held now."""
        self._most_bytes = max(self._most_bytes, self._held_bytes())
        if not self._armed and self._most_bytes >= FREED_BYTES_MIN:
            self._armed = True
            self._wheel.call_at(self._wheel.now_ms() + CHECK_MS, self._check)

    def _check(self, now_ms: int) -> None:
        held_bytes = self._held_bytes()
        self._armed = False
        if self._most_bytes - held_bytes >= FREED_BYTES_MIN:
            self._most_bytes = held_bytes
            self._trim()
        self.note()
