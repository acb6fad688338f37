"""Blocks: what is encoded is parsed again, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.model.batch import block
from gantrymq.model.errors import ErrorCode, GantryError

PREFIX = b"0123456789ABCDEF0123"
TEXT = st.text(st.characters(exclude_characters="\0\x01\x02", exclude_categories=("Cs",)), max_size=12)
ROW = st.tuples(st.binary(max_size=40), st.dictionaries(st.text("abc", min_size=1), TEXT), TEXT, TEXT)


def pairs_of(pairs: dict[str, str]) -> bytes:
    return "".join([f"{name}\x01{value}\x02" for name, value in pairs.items()]).encode()


def made(rows: list[tuple[bytes, dict[str, str], str, str]], first: int = 0) -> bytes:
    bodies = [row[0] for row in rows]
    pairs = [pairs_of(row[1]) for row in rows]
    return block.encode(
        PREFIX, first, bodies, pairs, [row[2].encode() for row in rows], [row[3].encode() for row in rows]
    )


ROWS: list[tuple[bytes, dict[str, str], str, str]] = [
    (b"one", {"site": "a"}, "red", "k1 k2"),
    (b"", {}, "", ""),
    (b"three", {"a": "1", "b": "2"}, "red", "k3"),
    (b"four", {}, "blue", ""),
]


@given(st.lists(ROW, min_size=1, max_size=8), st.integers(0, block.NUMBERS_MAX - 8))
def test_what_is_encoded_is_parsed(rows: list[tuple[bytes, dict[str, str], str, str]], first: int) -> None:
    columns = block.parse(made(rows, first), 8)
    found = list(columns.messages())
    assert columns.text_sizes() == [len(text) for _, text in found]
    assert [body for body, _ in found] == [row[0] for row in rows]
    for number, ((_, pairs, tag, keys), (_, text)) in enumerate(zip(rows, found, strict=True), first):
        wanted = pairs_of(pairs) + (f"TAGS\x01{tag}\x02" if tag else "").encode()
        wanted += (f"KEYS\x01{keys}\x02" if keys else "").encode()
        assert text == wanted + b"UNIQ_KEY\x01%b%012X\x02" % (PREFIX, number)


def test_every_cut_and_every_byte_more_is_noticed() -> None:
    data = made(ROWS)
    for end in range(len(data)):
        with pytest.raises(GantryError) as caught:
            block.parse(data[:end], 9)
        assert caught.value.code is ErrorCode.MESSAGE_ILLEGAL
    with pytest.raises(GantryError):
        block.parse(data + b"x", 9)


@pytest.mark.parametrize("at", range(block.HEAD.size + 4 * 10))
def test_a_changed_head_or_length_is_an_error_or_another_block(at: int) -> None:
    """Never another exception, and never texts that run into each other."""
    data = bytearray(made(ROWS))
    for value in (0, 1, 2, 127, 255):
        data[at] = value
        try:
            found = block.parse(bytes(data), 9)
        except GantryError:
            continue
        assert all(text.endswith(b"\x02") and b"\x02\x02" not in text for _, text in found.messages())


@pytest.mark.parametrize(
    "pairs",
    [b"site\x01a", b"a\x01\0\x02", b"TAGS\x01x\x02", b"a\x01b\x02KEYS\x01x\x02", b"a\x01b\x02UNIQ_KEY\x01x\x02"],
)
def test_pairs_that_are_none_or_have_columns(pairs: bytes) -> None:
    with pytest.raises(GantryError, match="block: properties that"):
        block.parse(block.encode(PREFIX, 0, [b"x", b"y"], [pairs, b""], [b"", b""], [b"", b""]), 9)
    fine = b"MYTAGS\x01x\x02MYUNIQ_KEY\x01y\x02"
    data = block.encode(PREFIX, 0, [b"x", b"y"], [b"", fine], [b"", b""], [b"", b""])
    assert block.parse(data, 9).pairs() == [b"", fine]


@pytest.mark.parametrize(
    ("tags", "keys", "text"),
    [
        ([b"a\x01b"], [b""], "its tags are none"),
        ([b"\0"], [b""], "its tags are none"),
        ([b""], [b"k\x02"], "its keys are none"),
        ([b""], [b"k\0"], "its keys are none"),
    ],
)
def test_separators_in_tags_and_keys(tags: list[bytes], keys: list[bytes], text: str) -> None:
    with pytest.raises(GantryError, match=text):
        block.parse(block.encode(PREFIX, 0, [b"x"], [b""], tags, keys), 9)


def test_limits_of_the_head() -> None:
    row = [b"x"], [b""], [b""], [b""]
    for prefix, first in ((b"\x02" * 20, 0), (PREFIX, block.NUMBERS_MAX)):
        with pytest.raises(GantryError, match="head"):
            block.parse(block.encode(prefix, first, *row), 9)
    with pytest.raises(GantryError, match="2 messages; 1 to 1 are allowed"):
        block.parse(block.encode(PREFIX, 0, *[column * 2 for column in row]), 1)
    with pytest.raises(GantryError, match="0 messages"):
        block.parse(block.encode(PREFIX, 0, [], [], [], []), 1)
