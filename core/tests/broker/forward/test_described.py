"""What travels with a queue, and where its entries are afterwards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.broker.forward.described import Described, Offsets, Place, described_from, described_to
from gantrymq.model.errors import ErrorCode, GantryError


def test_a_description_comes_back() -> None:
    place = Place("g", b"\x00", 7, b"{}")
    described = Described(3, 9, 1, [place, Place("h", b"", 0, None)], [("r", b"[]")], ("amqp_queue", "q", b"{}"))
    assert described_from(described_to(described)) == described


@pytest.mark.parametrize("data", [b"", b"\x93\x01\x02\x03", b"\xff", b"\x96\x01\x02\xff\x90\x90\xc0"])
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(GantryError) as error:
        described_from(data)
    assert error.value.code is ErrorCode.ILLEGAL_ARGUMENT


@given(st.sets(st.integers(0, 200)))
def test_offsets_are_those_of_the_entries_that_were_copied(copied: set[int]) -> None:
    offsets, order = Offsets(), sorted(copied)
    for old in order:
        offsets.add(old)
    assert offsets.end == len(order)
    for old in range(202):
        assert offsets.up_to(old) == len([each for each in order if each < old])
        assert offsets.has(old) == (old in copied)
