"""Exchanges that choose one of their bindings: `x-consistent-hash`, `x-modulus-hash`, `x-random`.

The same bindings give the same choice at every broker and after every restart, in whatever order they came. RabbitMQ's own choice among
them is another one; which queue gets a key is no promise of either, that it stays the same is.
"""

from __future__ import annotations

from bisect import bisect
from hashlib import blake2b
from typing import Final

POINTS_PER_WEIGHT: Final = 100
"""Places of a binding of weight 1 on the ring: shares differ by a tenth."""
WEIGHTS_MAX: Final = 1_000
"""Of all bindings of an exchange together: 100,000 places are sorted anew, in some 30 ms, when a binding comes or goes."""

_STEP: Final = 6364136223846793005
_SPACE: Final = (1 << 64) - 1


def hash_of(text: str) -> int:
    """64 bits, the same everywhere."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _points(identity: str, weight: int) -> list[int]:
    points: list[int] = []
    for number in range(0, weight * POINTS_PER_WEIGHT, 8):
        digest = blake2b(f"{number}:{identity}".encode("utf-8", "surrogatepass")).digest()
        points += [int.from_bytes(digest[at : at + 8], "big") for at in range(0, 64, 8)]
    return points[: weight * POINTS_PER_WEIGHT]


class Ring:
    """Consistent hash: a key belongs to the binding whose place comes next. A binding that goes gives its keys to the others, and theirs
    stay."""

    __slots__ = ("_owners", "_places", "_points")

    def __init__(self) -> None:
        self._points: dict[int, list[tuple[int, int]]] = {}
        self._places: list[int] = []
        self._owners: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._points)

    def add(self, number: int, identity: str, weight: int) -> None:
        """A binding; `identity` tells it from others."""
        self._points[number] = [(point, number) for point in _points(identity, weight)]
        self._places = []

    def remove(self, number: int) -> None:
        """Unknown ones are ignored."""
        if self._points.pop(number, None) is not None:
            self._places = []

    def choose(self, text: str) -> int:
        """Number of the binding that this belongs to."""
        if not self._places:
            merged = sorted([point for points in self._points.values() for point in points])
            self._places = [place for place, _ in merged]
            self._owners = [number for _, number in merged]
        return self._owners[bisect(self._places, hash_of(text)) % len(self._owners)]


class Choice:
    """Bindings in the order of their identities: one by the hash of a key modulo their number, or one at random."""

    __slots__ = ("_identities", "_order", "_state")

    def __init__(self) -> None:
        self._identities: dict[int, str] = {}
        self._order: list[int] = []
        self._state = 1

    def __bool__(self) -> bool:
        return bool(self._identities)

    def add(self, number: int, identity: str) -> None:
        """A binding."""
        self._identities[number] = identity
        self._order = []

    def remove(self, number: int) -> None:
        """Unknown ones are ignored."""
        if self._identities.pop(number, None) is not None:
            self._order = []

    def _ordered(self) -> list[int]:
        if not self._order:
            self._order = sorted(self._identities, key=lambda number: self._identities[number])
        return self._order

    def by_hash(self, text: str) -> int:
        """The same for the same text as long as the bindings are the same."""
        order = self._ordered()
        return order[hash_of(text) % len(order)]

    def any(self) -> int:
        """Each as often as the others (a linear congruential generator: nobody has to be unable to guess it)."""
        self._state = (self._state * _STEP + 1442695040888963407) & _SPACE
        order = self._ordered()
        return order[(self._state >> 33) % len(order)]
