"""Hashes of keys for the index (docs/formats/indexfile.md): Java's `hashCode` of `topic#key`.

A hash is a number in base 31 whose digits are the text's units, so that of many keys the hash of what all begin with is made once; and what is different of them
is computed in the lanes of one long integer, for all at once.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from struct import Struct
from typing import Final

from gantrymq.model.names import java_hash

HASH_MIN: Final = -0x80000000
"""The one hash without an absolute value; it counts as 0."""
HASH_MASK: Final = 0x7FFFFFFF
END_DIGITS: Final = 3
"""Hexadecimal digits at the end of an id whose hashes stand in a table."""
_ENDS: Final = 16**END_DIGITS
_NUMBER_DIGITS: Final = 12
_LANE: Final = 8
"""Bytes that a hash has in a long integer which holds many of them: what is done to it is done to all, a microsecond for a thousand."""
_END_LANES: Final = Struct(f"<{_ENDS}Q").pack(*[java_hash(f"{number:03X}") for number in range(_ENDS)])
WORD_MAX: Final = 64
"""Characters of a key that is hashed so."""
_BY_LANE: Final = 31**_LANE & 0xFFFFFFFF


def unsigned_hash(text: str) -> int:
    """`java_hash` as unsigned 32 bits."""
    return java_hash(text) & 0xFFFFFFFF


def key_hash(topic: str, key: str) -> int:
    """The stored hash of a key: |hashCode(topic + "#" + key)|, 0 for the value that has no absolute."""
    value = java_hash(f"{topic}#{key}")
    return abs(value) if value != HASH_MIN else 0


def id_hashes(topic: str, prefix: bytes, first: int, count: int) -> list[int]:
    """`key_hash` of ids that are 20 digits and 12 of a number, each one more than the one before (model/batch/block.py)."""
    found: list[int] = []
    while count > 0:
        high, low = divmod(first, _ENDS)
        ends = _END_LANES[low * _LANE : (low + count) * _LANE]
        here = len(ends) // _LANE
        begin = java_hash(f"{topic}#{prefix.decode()}{high:0{_NUMBER_DIGITS - END_DIGITS}X}")
        head = begin * 31**END_DIGITS & 0xFFFFFFFF
        found += _positive(int.from_bytes(ends, "little") + head * _ones(here), here)
        first += here
        count -= here
    return found


def hashes_of_each(topic: str, keys: list[str]) -> list[int]:
    """`key_hash` of each of the keys; empty if they are not ASCII words of `WORD_MAX` characters at most."""
    whole = "".join(keys)
    if not whole.isascii() or whole.split() != [whole] or not all(keys):
        return []
    longest = max(map(len, keys))
    if longest > WORD_MAX:
        return []
    count = len(keys)
    ones = _ones(count)
    every = ones * 0xFFFFFFFF
    # A hash begins with 0, so zeros before a key change nothing.
    columns = -(-longest // _LANE)
    words = array("Q", "".join([key.rjust(columns * _LANE, "\0") for key in keys]).encode())
    total = 0
    for column in range(columns):
        total = total * _BY_LANE + (_eight(words[column::columns].tobytes(), ones) & every) & every
    head = java_hash(f"{topic}#")
    heads = [head * 31**length & 0xFFFFFFFF for length in range(longest + 1)]
    before = Struct(f"<{count}Q").pack(*[heads[len(key)] for key in keys])
    return _positive(total + int.from_bytes(before, "little"), count)


def _eight(text: bytes, ones: int) -> int:
    """The hash of each eight characters, in a lane each: of two, of two such, of two of those. 43 bits."""
    lanes = int.from_bytes(text, "little")
    half = ones * 0x00FF00FF00FF00FF
    lanes = (lanes & half) * 31 + (lanes >> 8 & half)
    half = ones * 0x0000FFFF0000FFFF
    lanes = (lanes & half) * 31**2 + (lanes >> 16 & half)
    half = ones * 0xFFFFFFFF
    return (lanes & half) * 31**4 + (lanes >> 32 & half)


@lru_cache(maxsize=16)
def _ones(count: int) -> int:
    """1 in each of so many lanes."""
    return int.from_bytes((1).to_bytes(_LANE, "little") * count, "little")


def _positive(total: int, count: int) -> list[int]:
    """The hashes in so many lanes as the index has them: without sign, and 0 for the one that has no absolute value."""
    ones = _ones(count)
    sign = total >> 31 & ones
    total = (total & ones * 0xFFFFFFFF ^ sign * 0xFFFFFFFF) + sign & ones * HASH_MASK
    return list(Struct(f"<{count}Q").unpack(total.to_bytes(count * _LANE, "little")))
