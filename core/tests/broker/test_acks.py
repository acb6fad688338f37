"""Acknowledgement records: what is encoded is what is replayed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.broker.acks import AckKind, decode, encode_offsets, encode_one, encode_range


@given(
    st.lists(st.integers(0, 2**62), min_size=1, max_size=50),
    st.integers(1, 2**60),
    st.sampled_from([AckKind.LIST, AckKind.BACK]),
)
def test_offsets_round_trip(offsets: list[int], cursor: int, kind: AckKind) -> None:
    seen = []
    for found, number, values in decode(b"".join(encode_offsets(kind, cursor, offsets))):
        assert number == cursor
        seen.extend(range(values[0], values[1] + 1) if found is AckKind.RANGE else values)
    assert seen == offsets


def test_a_run_without_holes_is_one_range() -> None:
    assert list(decode(encode_offsets(AckKind.LIST, 7, [4, 5, 6])[0])) == [(AckKind.RANGE, 7, [4, 6])]
    assert list(decode(encode_offsets(AckKind.LIST, 7, [4, 6, 5, 7])[0])) == [(AckKind.LIST, 7, [4, 6, 5, 7])]


def test_mark_and_range() -> None:
    body = encode_one(AckKind.MARK, 3, 99) + encode_range(4, 1, 2)
    assert list(decode(body)) == [(AckKind.MARK, 3, [99]), (AckKind.RANGE, 4, [1, 2])]


@pytest.mark.parametrize("cut", [1, 5, 9, 12, 16])
def test_a_cut_record_is_an_error(cut: int) -> None:
    body = encode_offsets(AckKind.LIST, 7, [4, 9])[0]
    with pytest.raises(ValueError, match="acknowledgement record"):
        list(decode(body[:cut]))
