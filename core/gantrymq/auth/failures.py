"""Failed logins, and how long the next one waits for them: of a user from an address, twice as long after each; and of an address whoever it says
it is, once it has failed often, so that nobody tries one password with every name.

A login that was right makes its user's next failure there the first again, and takes nothing from the address: else somebody with one account
could try all others.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

REMEMBERED_MAX: Final = 10_000
"""(User, address) and addresses whose failures are remembered, each; the oldest are forgotten."""

FORGOTTEN_MS: Final = 600_000
"""After the last one of a user from an address."""

ADDRESS_FORGOTTEN_MS: Final = 30_000
"""One failure of an address is forgotten in each such time: people behind one router mistype, too."""

SHIFT_MAX: Final = 20
"""Doubled no more often: over the largest delay that may be set."""


class Failures:
    """Of one process."""

    __slots__ = ("_address_free", "_addresses", "_first_ms", "_most_ms", "_pairs")

    def __init__(self, delay_ms: int, delay_max_ms: int, address_free: int) -> None:
        """`address_free`: failures of an address after which all logins from there wait."""
        self._first_ms, self._most_ms = delay_ms, delay_max_ms
        self._address_free = address_free
        self._pairs: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        """(User, address): failures in a row, and when the last one was."""
        self._addresses: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """Failures that are not forgotten, and when that was so."""

    def note(self, user: str, address: str, now_ms: int) -> None:
        """One more."""
        count, _ = self._pairs.pop((user, address), (0, 0))
        _trim(self._pairs)
        self._pairs[user, address] = (count + 1, now_ms)
        failures = self.of_address(address, now_ms)
        self._addresses.pop(address, None)
        _trim(self._addresses)
        self._addresses[address] = (failures + 1, now_ms)

    def forget(self, user: str, address: str) -> None:
        """The user's next one from there is its first."""
        self._pairs.pop((user, address), None)

    def of_address(self, address: str, now_ms: int) -> float:
        """Those that are not forgotten."""
        count, at_ms = self._addresses.get(address, (0.0, now_ms))
        return max(count - (now_ms - at_ms) / ADDRESS_FORGOTTEN_MS, 0.0)

    def delay_ms(self, user: str, address: str, now_ms: int) -> int:
        """How long the next login waits."""
        count, last_ms = self._pairs.get((user, address), (0, 0))
        own = count if now_ms - last_ms <= FORGOTTEN_MS else 0
        others = int(self.of_address(address, now_ms)) - self._address_free + 1
        most = max(own, others)
        return min(self._first_ms << min(most - 1, SHIFT_MAX), self._most_ms) if most > 0 else 0


def _trim(known: OrderedDict[str, tuple[float, int]] | OrderedDict[tuple[str, str], tuple[int, int]]) -> None:
    while len(known) >= REMEMBERED_MAX:
        known.popitem(last=False)
