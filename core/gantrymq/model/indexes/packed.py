"""PackedRows: rows of a large table, packed in blocks while they rest, where a dict takes 150 bytes of each beside what it says.

A block is some rows in the order of their keys, one piece of MessagePack, and never changes. A row that changes leaves its block for
good, of which a bit says so, and stands in a dict from then on. One of a block is found in 3 us. Copies share the blocks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from itertools import islice
from typing import Final, TypeVar, overload

import msgspec

T = TypeVar("T")

BLOCK_ROWS: Final = 32
"""As many as the bits of what says which are gone."""
PACKED_MIN: Final = 4_096
"""Fewer rows are a dict: what that takes more is less than a megabyte."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class PackedRows(Mapping[str, bytes]):
    """Values by key: first those at rest in the order of their keys, then the others in the order in which they came."""

    __slots__ = ("_block", "_blocks", "_firsts", "_gone", "_key", "_number", "_place", "awake", "resting")

    def __init__(self, rows: Mapping[str, bytes]) -> None:
        """All of them rest."""
        keys = iter(sorted(rows))
        self._blocks: list[bytes] = []
        self._firsts: list[str] = []
        while page := list(islice(keys, BLOCK_ROWS)):
            # Copies: what the encoder gives has room behind its end, and the key lies among those that are given back now.
            self._blocks.append(bytes(memoryview(_encode({key: rows[key] for key in page}))))
            self._firsts.append(page[0].encode().decode())
        self._gone = array("I", bytes(4 * len(self._blocks)))
        self.resting = len(rows)
        self.awake: dict[str, bytes] = {}
        """Rows that have changed since, not to be changed but by what is below."""
        self._number = -1
        self._block: dict[str, bytes] = {}
        """The block that was looked at last, read."""
        self._key: str | None = None
        self._place: tuple[int, int] | None = None
        """What was looked for last, and where it rests."""

    def copy(self) -> PackedRows:
        """The same rows; they change each by itself from now on."""
        other = PackedRows({})
        other._blocks, other._firsts, other._gone = self._blocks, self._firsts, self._gone[:]
        other.resting, other.awake = self.resting, dict(self.awake)
        return other

    def _find(self, key: str) -> tuple[int, int] | None:
        """Number of the block where a row rests, and its place there."""
        if key == self._key:
            return self._place  # who comes asks for the same one several times
        self._key, self._place = key, None
        number = bisect_right(self._firsts, key) - 1
        if number >= 0 and key in self._read(number):
            place = list(self._block).index(key)
            if not self._gone[number] >> place & 1:
                self._place = number, place
        return self._place

    def _read(self, number: int) -> dict[str, bytes]:
        if number != self._number:
            self._number, self._block = number, _decode(self._blocks[number])
        return self._block

    def rests(self, key: str) -> bool:
        """Whether the row has not changed since all were packed."""
        return key not in self.awake and self._find(key) is not None

    def __getitem__(self, key: str) -> bytes:
        value = self.awake.get(key)
        if value is not None:
            return value
        found = self._find(key)
        if found is None:
            raise KeyError(key)
        return self._read(found[0])[key]

    @overload
    def get(self, key: str) -> bytes | None: ...

    @overload
    def get(self, key: str, default: T) -> bytes | T: ...

    def get(self, key: str, default: T | None = None) -> bytes | T | None:
        """As of a dict."""
        value = self.awake.get(key)
        if value is not None:
            return value
        found = self._find(key)
        return default if found is None else self._read(found[0])[key]

    def __contains__(self, key: object) -> bool:
        return key in self.awake or (isinstance(key, str) and self._find(key) is not None)

    def __len__(self) -> int:
        return self.resting + len(self.awake)

    def __setitem__(self, key: str, value: bytes) -> None:
        if key not in self.awake:
            self._leave(key)
        self.awake[key] = value

    def __delitem__(self, key: str) -> None:
        if self.pop(key) is None:
            raise KeyError(key)

    def pop(self, key: str, default: None = None) -> bytes | None:
        """Take a row out, if it is there."""
        value = self.awake.pop(key, None)
        return self._leave(key) if value is None else value

    def _leave(self, key: str) -> bytes | None:
        """The row does not rest any more, if it did: what it was."""
        found = self._find(key)
        if found is None:
            return None
        self._gone[found[0]] |= 1 << found[1]
        self.resting -= 1
        self._place = None
        return self._read(found[0])[key]

    def pages(self) -> Iterator[list[tuple[str, bytes]]]:
        """Rows at rest, a block at a time; they may change meanwhile."""
        for number, data in enumerate(self._blocks):
            page = list(_decode(data).items())
            gone = self._gone[number]
            yield page if not gone else [row for place, row in enumerate(page) if not gone >> place & 1]

    def placed(self) -> Iterator[tuple[int, str, bytes]]:
        """Rows at rest with their places, for `at`."""
        for number, data in enumerate(self._blocks):
            gone = self._gone[number]
            for place, (key, value) in enumerate(_decode(data).items()):
                if not gone >> place & 1:
                    yield number * BLOCK_ROWS + place, key, value

    def at(self, place: int) -> str | None:
        """Key of the row that was at this place of all when they were packed; None: it has left."""
        number, place = divmod(place, BLOCK_ROWS)
        if self._gone[number] >> place & 1:
            return None
        return list(self._read(number))[place]

    def walk(self) -> Iterator[tuple[str, bytes]]:
        """Keys and values."""
        for page in self.pages():
            yield from page
        yield from self.awake.items()

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.walk())

    def items(self) -> ItemsView[str, bytes]:
        """As of a dict."""
        return _Items(self)

    def values(self) -> ValuesView[bytes]:
        """As of a dict."""
        return _Values(self)


class _Items(ItemsView[str, bytes]):
    def __init__(self, rows: PackedRows) -> None:
        super().__init__(rows)
        self._packed = rows

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return self._packed.walk()


class _Values(ValuesView[bytes]):
    def __init__(self, rows: PackedRows) -> None:
        super().__init__(rows)
        self._packed = rows

    def __iter__(self) -> Iterator[bytes]:
        return (value for _, value in self._packed.walk())


RowMap = dict[str, bytes] | PackedRows
"""Of one table."""


def packed(rows: Mapping[str, bytes]) -> RowMap:
    """Rows of one's own: packed, where there are many."""
    if isinstance(rows, PackedRows):
        return rows.copy()
    return PackedRows(rows) if len(rows) >= PACKED_MIN else dict(rows)
