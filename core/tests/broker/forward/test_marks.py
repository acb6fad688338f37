"""The property that says who wants a record: written, found, taken off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.broker.forward.marks import TEXT_BYTES_MAX, UNKNOWN, lights_for, mark_of, marked, split, without_mark
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.store.log.record import SENDER_PROPERTIES_MAX

NAMES = st.text("abcXYZ019_%|.-", min_size=1, max_size=20)
PAIRS = st.dictionaries(st.text("abc", min_size=1, max_size=5), st.text("xyz:;*,", min_size=1, max_size=5), max_size=4)


QUEUES = st.tuples(st.text("0123456789abcdef", min_size=16, max_size=16), st.sets(st.integers(1, 1 << 33), min_size=1))


@given(PAIRS, st.dictionaries(NAMES, st.none() | QUEUES, min_size=1, max_size=5))
def test_each_group_finds_its_queues(pairs: dict[str, str], wanted: dict[str, tuple[str, set[int]] | None]) -> None:
    own = props.encode(pairs)
    data = marked(own, mark_of(wanted), SENDER_PROPERTIES_MAX)
    for name, queues in wanted.items():
        assert lights_for(name, data) == (None if queues is None else (queues[0], tuple(sorted(queues[1]))))
    assert without_mark(data) == own
    assert split(data) == (own, data[len(own) :])
    assert props.decode(data).items() >= pairs.items()


def test_a_message_that_is_sent_again_has_one_mark():
    mark = mark_of({"a": ("s", [1, 2])})
    once = marked(b"k\x01v\x02", mark, SENDER_PROPERTIES_MAX)
    assert marked(once, mark, SENDER_PROPERTIES_MAX) == once
    twice = marked(once, mark_of({"a": ("s", [3])}), SENDER_PROPERTIES_MAX)
    assert lights_for("a", twice) == ("s", (3,))
    assert without_mark(twice) == b"k\x01v\x02"
    assert split(twice)[0] == b"k\x01v\x02"


def test_a_sender_cannot_say_where_its_message_goes():
    forged = b"GANTRY_FORWARD\x01b:s:7\x02"
    data = marked(forged, mark_of({"b": ("s", [1])}), SENDER_PROPERTIES_MAX)
    assert lights_for("b", data) == ("s", (1,))
    assert not without_mark(data)
    assert split(data)[0] == b""
    with pytest.raises(GantryError) as refused:
        lights_for("c", data)
    assert refused.value.code is ErrorCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("text", ["b:s:x", "b:s:", "b", "c:s:1", "b:s:1,,2", ":b:1"])
def test_a_mark_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(GantryError):
        lights_for("b", f"GANTRY_FORWARD\x01{text}\x02".encode())


def test_what_is_too_long_is_matched_by_the_owner():
    long = mark_of({"b": ("s", range(1_000_000, 1_000_000 + TEXT_BYTES_MAX // 7))})
    assert long == UNKNOWN
    full = b"k\x01" + b"v" * (SENDER_PROPERTIES_MAX - 4) + b"\x02"
    data = marked(full, mark_of({"b": ("s", [1])}), SENDER_PROPERTIES_MAX)
    assert data == full + UNKNOWN
    assert lights_for("b", data) is None
    assert without_mark(data) == full


def test_properties_that_end_without_a_mark_of_their_end_are_kept():
    data = marked(b"k\x01v", mark_of({"b": ("s", [1])}), SENDER_PROPERTIES_MAX)
    assert props.decode(data)["k"] == "v"
    assert lights_for("b", data) == ("s", (1,))
