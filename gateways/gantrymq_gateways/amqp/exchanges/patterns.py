"""Binding keys of topic exchanges: `*` is one word, `#` any number."""

from __future__ import annotations

from gantrymq.model import names


def pattern_of(key: str) -> tuple[str, ...]:
    """Words of a topic binding key, encoded; `#` next to `#` says nothing new."""
    words: list[str] = []
    for word in key.split(".") if key else []:
        if word == "#":
            if not words or words[-1] != "#":
                words.append(word)
        else:
            words.append(word if word == "*" else names.encode_word(word))
    return tuple(words)


class Pattern:
    """A pattern as an automaton whose states are the bits of one number: bit n says that n words of the pattern (`#` not counted) have
    found theirs. Each word of a key is one step, however many `#` there are."""

    __slots__ = ("_by_word", "_end", "_loops", "_stars")

    def __init__(self, words: tuple[str, ...]) -> None:
        at = self._loops = self._stars = 0
        self._by_word: dict[str, int] = {}
        for word in words:
            if word == "#":
                self._loops |= 1 << at
                continue
            if word == "*":
                self._stars |= 1 << at
            else:
                self._by_word[word] = self._by_word.get(word, 0) | 1 << at
            at += 1
        self._end = 1 << at

    def matches(self, words: list[str]) -> bool:
        """Whether the words of a tag match."""
        state = 1
        for word in words:
            state = (state & (self._stars | self._by_word.get(word, 0))) << 1 | state & self._loops
            if not state:
                return False
        return bool(state & self._end)
