"""Bodies begun and not complete: how many bytes of them a connection, and all of a process together, may hold.

Clients send the frames of several channels in turns, so that all bodies of a connection may be begun at a time; only what has come counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ASSEMBLING_BYTES_MAX: Final = 64 * 1024 * 1024
"""What a connection may always hold, all its channels together: 2,047 channels could begin 8 GiB."""

ASSEMBLING_BODIES_MAX: Final = 64
"""Largest bodies that a connection may hold while the process has room: as many channels as a busy client publishes on."""

PROCESS_BYTES_MAX: Final = 1024 * 1024 * 1024
"""All connections together; beyond it those over ASSEMBLING_BYTES_MAX lose channels. One may hold 64 bodies of 15 MiB, the largest."""


@dataclass(slots=True)
class Total:
    """What all connections of a process hold."""

    size: int = 0


class Assembling:
    """What one connection holds."""

    __slots__ = ("_bytes_max", "_total", "size")

    def __init__(self, total: Total, body_bytes_max: int) -> None:
        self._total = total
        self._bytes_max = max(ASSEMBLING_BYTES_MAX, ASSEMBLING_BODIES_MAX * body_bytes_max)
        self.size = 0

    def add(self, size: int) -> None:
        """Bytes came (or, negative, are free again)."""
        self.size += size
        self._total.size += size

    def exceeded(self) -> int:
        """The limit that the connection is beyond; 0: none."""
        limit = self._bytes_max if self._total.size <= PROCESS_BYTES_MAX else ASSEMBLING_BYTES_MAX
        return limit if self.size > limit else 0
