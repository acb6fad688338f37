"""Hashes of many keys at once are those of each."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from gantrymq.store.index.key_hashes import hashes_of_each, id_hashes, key_hash

PREFIX = b"0123456789ABCDEF0123"


@given(st.text(max_size=20), st.integers(0, 16**12 - 10), st.integers(0, 9))
@example("größe", 4090, 9)
@example("T", 4095, 2)
def test_ids(topic: str, first: int, count: int) -> None:
    wanted = [key_hash(topic, f"{PREFIX.decode()}{number:012X}") for number in range(first, first + count)]
    assert id_hashes(topic, PREFIX, first, count) == wanted


def test_more_ids_than_the_table_has() -> None:
    wanted = [key_hash("T", f"{PREFIX.decode()}{number:012X}") for number in range(4000, 14000)]
    assert id_hashes("T", PREFIX, 4000, 10000) == wanted


@given(st.text(max_size=20), st.lists(st.text("abcXYZ019-_#~", min_size=1, max_size=40), min_size=1, max_size=9))
def test_words(topic: str, keys: list[str]) -> None:
    assert hashes_of_each(topic, keys) == [key_hash(topic, key) for key in keys]


@given(st.lists(st.text(max_size=4), min_size=1, max_size=3))
@example(["two words"])
@example(["", "a"])
@example(["a\n", "b"])
@example(["\x1c", "b"])
@example(["größe"])
@example(["x" * 65])
def test_what_is_no_word_is_left_to_others(keys: list[str]) -> None:
    words = [key.split() for key in keys]
    found = hashes_of_each("T", keys)
    if (
        all(one == [key] for one, key in zip(words, keys, strict=True))
        and all(map(str.isascii, keys))
        and max(map(len, keys)) <= 64
    ):
        assert found == [key_hash("T", key) for key in keys]
    else:
        assert found == []
