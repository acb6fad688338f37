"""Hashes of keys for the index (docs/formats/indexfile.md): Java's `hashCode` of `topic#key`, made from those of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.model.names import java_hash

if TYPE_CHECKING:
    from collections.abc import Iterable

HASH_MIN: Final = -0x80000000
"""The one hash without an absolute value; it counts as 0."""
TAIL_CHARS: Final = 3
TAIL_POWER: Final = 31**TAIL_CHARS
HEAD: Final = slice(None, -TAIL_CHARS)
TAIL: Final = slice(-TAIL_CHARS, None)
"""Of a key. Made once: making them takes longer than cutting."""
HASHES_MAX: Final = 65_536
"""Parts of keys remembered, of either kind, about 10 MiB each; forgotten when there are more."""


def key_hash(topic: str, key: str) -> int:
    """The stored hash of a key: |hashCode(topic + "#" + key)|, 0 for the value that has no absolute."""
    value = java_hash(f"{topic}#{key}")
    return abs(value) if value != HASH_MIN else 0


class KeyHashes:
    """Hashes of many keys. A hash is a number in base 31, so that of a text follows from those of its parts: a `UNIQ_KEY` ends in a
    counter, and what stands before its last characters is the same for nearly all that a client made in a millisecond."""

    def __init__(self) -> None:
        self._heads: dict[str, dict[str, int]] = {}
        self.tails: dict[str, int] = {}
        """Hashes of last characters."""
        self._cached = 0

    def run(self, records: Iterable[tuple[str, tuple[str, ...], int, int]]) -> list[tuple[int, int, int]]:
        """(Java's hash of `topic#key` as unsigned 32 bits, physical offset, store ms) per key."""
        made: list[tuple[int, int, int]] = []
        add, tails, last = made.append, self.tails, None
        heads: dict[str, int] = {}
        for topic, keys, position, store_ms in records:
            if topic is not last:
                heads = self.heads_of(topic)
                last = topic
            for key in keys:
                tail = tails.get(key[-TAIL_CHARS:])
                head = heads.get(key[:-TAIL_CHARS])
                if head is None or tail is None:
                    head, tail = self.make(topic, key, heads)
                add(((head + tail) & 0xFFFFFFFF, position, store_ms))
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

    def make(self, topic: str, key: str, heads: dict[str, int]) -> tuple[int, int]:
        """Two numbers whose sum is the key's hash; remembered where others can share them."""
        first, last = key[:-TAIL_CHARS], key[-TAIL_CHARS:]
        if not last.isascii() or not first:  # a character may be two units of UTF-16
            return java_hash(f"{topic}#{key}"), 0
        tail = self.tails.get(last)
        if tail is None:
            if len(self.tails) >= HASHES_MAX:
                self.tails.clear()
            tail = self.tails[last] = java_hash(last)
        head = heads.get(first)
        if head is None:
            if self._cached > 2 * HASHES_MAX:  # very many in one batch
                heads.clear()
            head = heads[first] = java_hash(f"{topic}#{first}") * TAIL_POWER
            self._cached += 1
        return head, tail
