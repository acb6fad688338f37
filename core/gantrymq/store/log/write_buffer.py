"""`store.transient_pool`: records gather in memory and go to the log's file in large writes, from a thread.

A read finds them here until they are written. What is here when the process ends without `MessageStore.close` is lost, as is what
RocketMQ's transientStorePool holds: only an acknowledgement under synchronous flush promises more (docs/operations/durability.md).
"""

from __future__ import annotations

from bisect import bisect_right
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

BUFFER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes that wait in memory; at the limit the append that would pass it writes them itself. Bounds what a crash loses, too."""
WRITE_BYTES: Final = 4 * 1024 * 1024
"""From so many on the thread is woken before its time."""


class WriteBuffer:
    """Pieces of the log in order of position. `add` and `read` on the loop, `write` on any thread (one at a time)."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._writing = Lock()
        self._starts: list[int] = []
        self._pieces: list[bytes] = []
        self.bytes = 0

    def add(self, at: int, data: bytes) -> None:
        with self._lock:
            self._starts.append(at)
            self._pieces.append(data)
            self.bytes += len(data)

    def read(self, at: int, count: int) -> tuple[int, bytes]:
        """(begin, bytes) of the part of [at, at + count) that waits here, which is its end or nothing; begin may be below `at`."""
        with self._lock:
            if not self._starts or at + count <= self._starts[0]:
                return at + count, b""
            first = max(bisect_right(self._starts, at) - 1, 0)
            last = bisect_right(self._starts, at + count - 1)
            return self._starts[first], b"".join(self._pieces[first:last])

    def cut(self, at: int) -> None:
        """Forget pieces from `at` on: their batch failed."""
        with self._writing, self._lock:
            while self._starts and self._starts[-1] >= at:
                self._starts.pop()
                self.bytes -= len(self._pieces.pop())

    def write(self, write: Callable[[int, list[bytes]], None], file_size: int) -> None:
        """Hand over everything that waits, in one call per segment; it is dropped here when its call has returned."""
        with self._writing:
            with self._lock:
                starts, pieces = list(self._starts), list(self._pieces)
            first = 0
            while first < len(starts):
                stop = first + 1
                while stop < len(starts) and starts[stop] // file_size == starts[first] // file_size:
                    stop += 1
                write(starts[first], pieces[first:stop])
                with self._lock:
                    self.bytes -= sum([len(piece) for piece in pieces[first:stop]])
                    del self._starts[: stop - first], self._pieces[: stop - first]
                first = stop
