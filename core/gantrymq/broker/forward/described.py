"""What a group says of a light queue that goes to another one: who stands where in it, and what leads to it. It travels as msgpack."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from gantrymq.model.errors import ErrorCode, GantryError

_Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Place(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A cursor in the queue. `state`: acknowledgement entries that make its window; `delivered`: entries below it were possibly delivered;
    `policy`: its row of table `queue`."""

    group: str
    state: bytes
    delivered: _Natural
    policy: bytes | None


class Described(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """`end`: its maximum offset. `moves`: how often it has moved. `routes`: rows of table `route`. `row`: table, key and value of its door's row, which goes with it.
    `consumed`: it goes with its last consumer, and had one when it was frozen."""

    light: _Natural
    end: _Natural
    moves: _Natural
    places: list[Place]
    routes: list[tuple[str, bytes]]
    row: tuple[str, str, bytes] | None
    consumed: bool = False


_decode: Final = msgspec.msgpack.Decoder(Described).decode
_encode: Final = msgspec.msgpack.Encoder().encode


def described_to(described: Described) -> bytes:
    """For the wire."""
    return _encode(described)


def described_from(data: bytes) -> Described:
    """Back. Raises ILLEGAL_ARGUMENT."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"the description of a queue cannot be read: {error}") from None


class Offsets:
    """Which offset in the new queue an entry of the old one has. Entries whose records are gone were not copied; the others keep their order."""

    __slots__ = ("_runs", "end")

    def __init__(self) -> None:
        self._runs: list[list[int]] = []
        """Old first offset, new first offset, number."""
        self.end = 0
        """Entries so far."""

    def add(self, old: int) -> None:
        """An entry was copied, behind all others."""
        last = self._runs[-1] if self._runs else None
        if last is not None and last[0] + last[2] == old:
            last[2] += 1
        else:
            self._runs.append([old, self.end, 1])
        self.end += 1

    def up_to(self, old: int) -> int:
        """How many of those below the old offset were copied."""
        low, high = 0, len(self._runs)
        while low < high:
            middle = (low + high) // 2
            if self._runs[middle][0] < old:
                low = middle + 1
            else:
                high = middle
        if not low:
            return 0
        first, new, count = self._runs[low - 1]
        return new + min(old - first, count)

    def has(self, old: int) -> bool:
        """Whether that entry was copied."""
        return self.up_to(old) < self.up_to(old + 1)
