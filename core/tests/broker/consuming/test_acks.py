"""Acknowledgement records: what is encoded is what is replayed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.broker.consuming.acks import (
    BITS_BYTES_MAX,
    AckKind,
    cursors_in,
    decode,
    encode_offsets,
    encode_one,
    encode_range,
    encode_state,
)
from gantrymq.broker.consuming.window import AckWindow


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
    body = encode_one(AckKind.MARK, 3, 99) + encode_range(4, 1, 2) + encode_one(AckKind.CUT, 5, 7)
    assert list(decode(body)) == [(AckKind.MARK, 3, [99]), (AckKind.RANGE, 4, [1, 2]), (AckKind.CUT, 5, [7])]
    assert cursors_in(body) == {3, 4, 5}


@pytest.mark.parametrize("cut", [1, 5, 9, 12, 16])
def test_a_cut_record_is_an_error(cut: int) -> None:
    body = encode_offsets(AckKind.LIST, 7, [4, 9])[0]
    with pytest.raises(ValueError, match="acknowledgement record"):
        list(decode(body[:cut]))


@given(
    st.integers(0, 50),
    st.lists(st.integers(0, 400), max_size=300),
    st.dictionaries(st.integers(0, 400), st.integers(1, 9), max_size=20),
)
def test_state_alone_makes_the_window_again(start: int, done: list[int], counts: dict[int, int]) -> None:
    """Also when it is applied behind what it holds."""
    window = AckWindow(start)
    for offset in done:
        window.done(offset)
    window.counts = {offset: count for offset, count in counts.items() if not window.is_done(offset)}
    window.marked = max(window.marked, window.next_offset)
    entries = encode_state(5, window)
    assert cursors_in(b"".join(entries)) <= {5}
    for before in (False, True):
        copy = AckWindow(start)
        for offset in done if before else ():
            copy.done(offset)
        for kind, cursor, offsets in decode(b"".join(entries)):
            assert cursor == 5
            if kind is AckKind.RANGE:
                copy.done_range(offsets[0], offsets[1])
            elif kind is AckKind.LIST:
                for offset in offsets:
                    copy.done(offset)
            elif kind is AckKind.COUNT:
                copy.count(offsets[0], offsets[1])
            else:
                copy.marked = max(copy.marked, offsets[0])
        assert [copy.is_done(offset) for offset in range(450)] == [window.is_done(offset) for offset in range(450)]
        assert (copy.floor, copy.marked, copy.counts) == (window.floor, window.marked, window.counts)


def test_many_bits_are_split() -> None:
    window = AckWindow(0)
    for offset in range(1, BITS_BYTES_MAX * 8 * 2, 2):
        window.done(offset)
    entries = encode_state(1, window)
    assert len(entries) == 2
    assert max(map(len, entries)) < BITS_BYTES_MAX + 64
