"""MultiMap: some items for each key. One item costs no table of its own, a few a tuple: of a hundred thousand keys most have one."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any, Final, Generic, TypeVar

FEW: Final = 4
"""So many items of a key are a tuple; more are the keys of a dict."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", int, str)


class MultiMap(Generic[K, V]):
    """Items of a key are different ones, in the order in which they came."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[K, Any] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, key: K) -> bool:
        return key in self._found

    def of(self, key: K) -> Collection[V]:
        """Those of a key; not to be changed, and not to be kept."""
        found = self._found.get(key)
        if found is None:
            return ()
        return found if type(found) in (tuple, dict) else (found,)

    def add(self, key: K, item: V) -> None:
        """Nothing happens if it is there."""
        items: Any = self.of(key)
        if item in items:
            return
        if not items:
            self._found[key] = item
        elif len(items) < FEW:
            self._found[key] = (*items, item)
        elif type(items) is tuple:
            self._found[key] = dict.fromkeys((*items, item))
        else:
            items[item] = None

    def discard(self, key: K, item: V) -> None:
        """Ignored if it is not there."""
        items: Any = self.of(key)
        if item not in items:
            return
        if len(items) > FEW:
            del items[item]
        elif len(items) > 1:
            left = tuple([each for each in items if each != item])
            self._found[key] = left if len(left) > 1 else left[0]
        else:
            del self._found[key]
