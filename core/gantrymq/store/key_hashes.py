"""Hashes of keys for the index (docs/formats/indexfile.md): Java's `hashCode` of `topic#key`, made from those of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.model.names import java_hash

if TYPE_CHECKING:
    from collections.abc import Iterable

HASH_MIN: Final = -0x80000000
"""The one hash without an absolute value; it counts as 0."""
PART_CHARS: Final = 3
"""Of the middle and of the tail of a key: few enough that digits and hexadecimal ones are all remembered soon."""
MIDDLE_POWER: Final = 31**PART_CHARS
HEAD_POWER: Final = 31 ** (2 * PART_CHARS)
HEAD: Final = slice(None, -2 * PART_CHARS)
MIDDLE: Final = slice(-2 * PART_CHARS, -PART_CHARS)
TAIL: Final = slice(-PART_CHARS, None)
"""Of a key. Made once: making them takes longer than cutting."""
HASHES_MAX: Final = 65_536
"""Parts of keys remembered, of each kind, about 10 MiB each; forgotten when there are more."""
HEAD_CHARS_MAX: Final = 64
"""Of a head that is remembered; longer ones are hardly shared."""
_MASK: Final = 0xFFFFFFFF


def key_hash(topic: str, key: str) -> int:
    """The stored hash of a key: |hashCode(topic + "#" + key)|, 0 for the value that has no absolute."""
    value = java_hash(f"{topic}#{key}")
    return abs(value) if value != HASH_MIN else 0


class KeyHashes:
    """Hashes of many keys. A hash is a number in base 31, so that of a text follows from those of its parts. Keys end in counters, numbers or
    random digits, and what stands before those is one of few: a key is cut into head, middle and tail, and each part is looked up."""

    def __init__(self) -> None:
        self._heads: dict[str, dict[str, int]] = {}
        self.middles: dict[str, int] = {}
        """Hashes of the characters before the last ones, as they count in the whole."""
        self.tails: dict[str, int] = {}
        """Hashes of last characters."""
        self._cached = 0

    def run(self, records: Iterable[tuple[str, tuple[str, ...], int, int]]) -> list[tuple[int, int, int]]:
        """(Java's hash of `topic#key` as unsigned 32 bits, physical offset, store ms) per key."""
        made: list[tuple[int, int, int]] = []
        for topic, keys, position, store_ms in records:
            heads = self.heads_of(topic)
            for key in keys:
                head, middle, tail = heads.get(key[HEAD]), self.middles.get(key[MIDDLE]), self.tails.get(key[TAIL])
                if head is None or middle is None or tail is None:
                    hashed = self.make(topic, key, heads)
                else:
                    hashed = head + middle + tail & _MASK
                made.append((hashed, position, store_ms))
        return made

    def heads_of(self, topic: str) -> dict[str, int]:
        """Hashes of `topic#` and all but the last characters of a key, as they count in the whole."""
        if self._cached > HASHES_MAX:
            self._heads.clear()
            self._cached = 0
        heads = self._heads.get(topic)
        if heads is None:
            heads = self._heads[topic] = {}
            self._cached += 1
        return heads

    def make(self, topic: str, key: str, heads: dict[str, int]) -> int:
        """The hash as unsigned 32 bits; its parts are remembered where others can share them."""
        if len(key) < 2 * PART_CHARS or not key.isascii():  # a character may be two units of UTF-16
            return java_hash(f"{topic}#{key}") & _MASK
        first, between, last = key[HEAD], key[MIDDLE], key[TAIL]
        tail = self.tails.get(last)
        if tail is None:
            if len(self.tails) >= HASHES_MAX:
                self.tails.clear()
            tail = self.tails[last] = java_hash(last)
        middle = self.middles.get(between)
        if middle is None:
            if len(self.middles) >= HASHES_MAX:
                self.middles.clear()
            middle = self.middles[between] = java_hash(between) * MIDDLE_POWER
        head = heads.get(first)
        if head is None:
            head = java_hash(f"{topic}#{first}") * HEAD_POWER & _MASK
            if len(first) <= HEAD_CHARS_MAX:
                if self._cached > 2 * HASHES_MAX:  # very many in one batch
                    heads.clear()
                heads[first] = head
                self._cached += 1
        return head + middle + tail & _MASK
