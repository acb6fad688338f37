"""Hashes of keys for the index (docs/formats/indexfile.md): Java's `hashCode` of `topic#key`."""

from __future__ import annotations

from typing import Final

from gantrymq.model.names import java_hash

HASH_MIN: Final = -0x80000000
"""The one hash without an absolute value; it counts as 0."""


def unsigned_hash(text: str) -> int:
    """`java_hash` as unsigned 32 bits."""
    return java_hash(text) & 0xFFFFFFFF


def key_hash(topic: str, key: str) -> int:
    """The stored hash of a key: |hashCode(topic + "#" + key)|, 0 for the value that has no absolute."""
    value = java_hash(f"{topic}#{key}")
    return abs(value) if value != HASH_MIN else 0
