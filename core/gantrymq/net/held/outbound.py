"""What is held for slow readers: everything handed to transports of which the kernel has not taken the last byte yet, counted as memory.

A transport keeps a write whole until its last byte is taken, so a write counts whole. A large payload that many readers get is one object,
and counts once, until the last of them has taken it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

LARGE_BYTES: Final = 32 * 1024
"""A piece of so many bytes is written as it is; joining it to its neighbours would be a copy for each reader, worth more than a piece of a write."""

Piece = bytes | memoryview
"""Some bytes, or a part of some: what is held then is the whole."""
Pieces = bytes | list[Piece]
"""One write."""


def gathered(outbox: Sequence[Piece]) -> Pieces:
    """An outbox as one write: what is small is joined, large pieces stay the objects that they are. The list is not kept."""
    if not outbox:
        return b""
    if max(map(len, outbox)) < LARGE_BYTES:
        return b"".join(outbox)
    pieces: list[Piece] = []
    small: list[Piece] = []
    for piece in outbox:
        if len(piece) < LARGE_BYTES:
            small.append(piece)
            continue
        if small:
            pieces.append(b"".join(small))
            small = []
        pieces.append(piece)
    if small:
        pieces.append(b"".join(small))
    return pieces


class Ledger:
    """All that is held in a process."""

    __slots__ = ("_payloads", "held_bytes")

    def __init__(self) -> None:
        self.held_bytes = 0
        self._payloads: dict[int, tuple[bytes, int]] = {}
        """By identity, with the number of writes that hold it."""

    def take(self, payload: bytes) -> None:
        """One more write holds it."""
        _, count = self._payloads.get(id(payload), (payload, 0))
        self._payloads[id(payload)] = payload, count + 1
        if not count:
            self.held_bytes += len(payload)

    def leave(self, payload: bytes) -> None:
        """One write less holds it."""
        _, count = self._payloads.pop(id(payload))
        if count > 1:
            self._payloads[id(payload)] = payload, count - 1
        else:
            self.held_bytes -= len(payload)

    def share(self, payload: bytes) -> int:
        """Its bytes for one of those who hold it."""
        return len(payload) // self._payloads[id(payload)][1]


class Held:
    """What one connection's transport holds."""

    __slots__ = ("_ledger", "_writes")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._writes: deque[tuple[int, int, Iterable[bytes]]] = deque()
        """Each with the position of its end in the stream, the bytes that are its own, and its large payloads."""

    def wrote_before(self, end: int, size: int) -> None:
        """What was written up to `end`."""
        self._ledger.held_bytes += size
        self._writes.append((end, size, ()))

    def wrote(self, end: int, data: Pieces) -> None:
        """A write that ends at `end`."""
        own_bytes = 0
        large: dict[int, bytes] = {}
        if isinstance(data, list):
            for piece in data:
                if len(piece) < LARGE_BYTES:
                    own_bytes += len(piece)
                else:
                    payload: Any = piece.obj if isinstance(piece, memoryview) else piece
                    large[id(payload)] = payload
        else:
            own_bytes = len(data)  # nobody else has it
        for payload in large.values():
            self._ledger.take(payload)
        self._ledger.held_bytes += own_bytes
        self._writes.append((end, own_bytes, large.values()))

    def taken(self, upto: int) -> bool:
        """The kernel took the stream up to here. False: nothing is held any more."""
        writes = self._writes
        while writes and writes[0][0] <= upto:
            _, own_bytes, large = writes.popleft()
            self._ledger.held_bytes -= own_bytes
            for piece in large:
                self._ledger.leave(piece)
        return bool(writes)

    def clear(self) -> None:
        """The connection is gone."""
        if self._writes:
            self.taken(self._writes[-1][0])

    def share_bytes(self) -> int:
        """Its part of what is held."""
        share = self._ledger.share
        return sum([own_bytes + sum(map(share, large)) for _, own_bytes, large in self._writes])
