"""A header that is decoded by its likeness says what the general way says, or is left to it."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.remoting.binary_sends import LAYOUT_BYTES_MAX, LAYOUTS_MAX, BinarySends
from gantrymq.remoting.codec import Command, FrameReader, encode
from gantrymq.remoting.headers import SendHeaderV2, parse

FIELDS = {
    "a": "group", "b": "topic", "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "1700000000000", "h": "0",
    "i": "UNIQ_KEY\x01AB\x02", "j": "0", "k": "false", "m": "false",
}  # fmt: skip


def begin_of(fields: Mapping[str, str]) -> tuple[bytes, int]:
    """A binary header, and where its fields begin."""
    frame = encode(Command(310, dict(fields), b"", 7), binary=True)
    return frame[8:], struct.calcsize(">hBhiii") + 4


def parsed(fields: Mapping[str, str]) -> SendHeaderV2:
    return parse(dict(fields), SendHeaderV2)


def learned(fields: Mapping[str, str] = FIELDS) -> BinarySends:
    known = BinarySends()
    known.learn(*begin_of(fields), parsed(fields))
    return known


def test_queue_birth_and_properties_may_differ() -> None:
    other = FIELDS | {"e": "1", "g": "1799999999999", "i": "UNIQ_KEY\x01CD\x02"}
    assert learned().find(*begin_of(other)) == parsed(other)


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in "egi"])
def test_any_other_difference_goes_the_general_way(name: str) -> None:
    value = FIELDS[name]
    other = FIELDS | {name: value[:-1] + chr(ord(value[-1]) + 1)}
    assert learned().find(*begin_of(other)) is None


@pytest.mark.parametrize("text", ["-1", " 1", "1_", "+1", "\u00b2"])
def test_numbers_that_are_no_digits_go_the_general_way(text: str) -> None:
    two = FIELDS | {"e": "10"}
    assert learned(two).find(*begin_of(two | {"e": text})) is None


VALUES = st.fixed_dictionaries(
    {
        "a": st.sampled_from(["g", "group", "other"]), "b": st.sampled_from(["t", "topic", "\u00fcber"]), "c": st.just("TBW102"),
        "d": st.sampled_from(["4", "8"]), "e": st.sampled_from(["0", "3", "12", "-1", "x", ""]), "f": st.sampled_from(["0", "1"]),
        "g": st.sampled_from(["1700000000000", "0", "9" * 19, "x"]), "h": st.sampled_from(["0", "7"]),
        "i": st.sampled_from(["", "a\x01b\x02", "a\x01c\x02", "\u00e9\x01\u00e9\x02", "k\x01\x00\x02"]),
    },
    optional={"j": st.sampled_from(["0", "2"]), "l": st.just("16"), "m": st.sampled_from(["true", "false"]), "n": st.just("b")},
)  # fmt: skip


@given(st.lists(VALUES, min_size=2, max_size=12), st.booleans())
def test_a_reader_gives_what_a_fresh_one_gives(many: list[dict[str, str]], backwards: bool) -> None:
    reader = FrameReader(typed_sends=True)
    for fields in many:
        if backwards:
            fields = dict(reversed(fields.items()))
        (command,) = reader.feed(encode(Command(310, fields, b"body", 7), binary=True))
        try:
            expected: SendHeaderV2 | None = parse(fields, SendHeaderV2)
        except ValueError:
            expected = None
        if expected is not None and not fields["i"]:
            assert command.send is not None
            assert not command.send.properties
            continue
        assert command.send == expected
        assert (command.code, command.opaque, command.body) == (310, 7, b"body")


def test_a_field_that_comes_twice_is_not_learned() -> None:
    header, begin = begin_of(FIELDS)
    twice = struct.pack(">h", 1) + b"e" + struct.pack(">i", 1) + b"9"
    known = BinarySends()
    known.learn(header + twice, begin, parsed(FIELDS))
    assert known.find(header + twice, begin) is None


def test_long_constant_parts_are_not_kept() -> None:
    long = FIELDS | {"b": "t" * LAYOUT_BYTES_MAX}
    assert learned(long).find(*begin_of(long)) is None


def test_layouts_are_bounded() -> None:
    assert LAYOUTS_MAX == 1024
    known = BinarySends()
    many = [FIELDS | {"a": f"group{number}"} for number in range(LAYOUTS_MAX + 1)]
    for fields in many[:-1]:
        known.learn(*begin_of(fields), parsed(fields))
    assert known.find(*begin_of(many[0])) is not None
    known.learn(*begin_of(many[-1]), parsed(many[-1]))
    assert known.find(*begin_of(many[0])) is None
    assert known.find(*begin_of(many[-1])) is not None
