"""Java's String.hashCode, which queue units and the index store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.model.names import java_hash


def plain(text: str) -> int:
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@pytest.mark.parametrize(
    ("text", "value"), [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -(1 << 31))]
)
def test_known_values(text: str, value: int) -> None:
    assert java_hash(text) == value


@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    assert java_hash(text) == plain(text)


@pytest.mark.parametrize("length", [511, 512, 513, 1024, 4096, 40_000])
def test_long_texts(length: int) -> None:
    for unit in ("Ab", "\xe9z", "\u4e2d\U0001f600"):
        assert java_hash(unit * length) == plain(unit * length)
