"""Many queue units looked at at once, as the five words of 32 bits that each of them has (consume_queue.py).

      0  upper half of the physical offset | lower half | record size | upper half of the tag code | lower half

What is wanted of all units is one slice of the words: no unit is taken apart.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

Spans = tuple[Sequence[int], Sequence[int], int]
"""Places of records, their sizes, and what is to be added to each place."""


def spans_of(data: bytes) -> Spans | None:
    """Where the records of these units lie; None: on both sides of a multiple of 4 GiB."""
    words = array("I", data)
    if sys.byteorder == "little":
        words.byteswap()
    high = words[::5]
    if high[0] != high[-1]:
        return None
    return words[1::5], words[2::5], high[0] << 32


def tag_words(codes: frozenset[int]) -> frozenset[int]:
    """Tag codes as `ConsumeQueue.select` compares them: the lower half (a tag's hash has 32 bits) read in this machine's order."""
    return frozenset([int.from_bytes((code & 0xFFFFFFFF).to_bytes(4, "big"), sys.byteorder) for code in codes])


def matching(data: bytes, words: frozenset[int]) -> tuple[list[int], list[int], list[int]]:
    """Of these units those whose tag word is one of `words`: their places, their records' positions and sizes."""
    table = array("I", data)
    tags = table[4::5]
    places: list[int] = []
    if len(words) == 1:
        packed = tags.tobytes()
        (word,) = words
        wanted = word.to_bytes(4, sys.byteorder)
        at = packed.find(wanted)
        while at >= 0:
            if not at & 3:
                places.append(at >> 2)
            at = packed.find(wanted, at + 1)
    else:
        places = [place for place, word in enumerate(tags) if word in words]
    if not places:
        return [], [], []
    if sys.byteorder == "little":
        table.byteswap()
    high, low, sizes = table[::5], table[1::5], table[2::5]
    positions = [high[place] << 32 | low[place] for place in places]
    return places, positions, [sizes[place] for place in places]
