"""Rows packed in blocks: as a dict, whatever changes; what they take; copies that share blocks."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from gantrymq.model.indexes import packed as module
from gantrymq.model.indexes.packed import BLOCK_ROWS, PackedRows, packed


def rows(count: int) -> dict[str, bytes]:
    return {f"client-{number}": b'{"s":{"a/%d":[1,%d]}}' % (number, number) for number in range(count)}


def check(found: PackedRows, wanted: dict[str, bytes]) -> None:
    assert dict(found) == dict(found.items()) == wanted
    assert len(found) == len(wanted)
    assert sorted(found) == sorted(wanted)
    assert sorted(found.values()) == sorted(wanted.values())


@pytest.mark.parametrize("seed", range(20))
def test_they_are_as_a_dict(seed: int) -> None:
    draw = random.Random(seed)
    words = ["", "a", "ü", "\U0001f600", "z" * 40, "0", "\n"]
    keys = ["".join(draw.choices(words, k=draw.randrange(1, 5))) for _ in range(draw.randrange(1, 400))]
    wanted = {key: draw.randbytes(draw.randrange(4)) for key in keys}
    found = PackedRows(wanted)
    wanted = dict(wanted)
    check(found, wanted)
    for _ in range(600):
        key = draw.choice([*keys, "never", ""])
        assert found.get(key) == wanted.get(key)
        assert (key in found) == (key in wanted)
        step = draw.randrange(4)
        if step == 0:
            assert found.pop(key) == wanted.pop(key, None)
        elif step == 1:
            found[key] = wanted[key] = draw.randbytes(3)
        elif key in wanted:
            assert found[key] == wanted[key]
            if step == 2:
                del found[key], wanted[key]
        else:
            with pytest.raises(KeyError):
                found[key]
            with pytest.raises(KeyError):
                del found[key]
    check(found, wanted)


def test_a_copy_changes_by_itself() -> None:
    first = PackedRows(rows(100))
    first["client-1"] = b"first"
    other = first.copy()
    del first["client-2"]
    first["client-1"] = b"again"
    other["client-3"] = b"other"
    assert (first.get("client-2"), other.get("client-2")) == (None, rows(3)["client-2"])
    assert (first["client-1"], other["client-1"]) == (b"again", b"first")
    assert (first["client-3"], other["client-3"]) == (rows(4)["client-3"], b"other")
    assert (len(first), len(other)) == (99, 100)
    assert other._blocks is first._blocks


def test_a_place_is_the_rows_as_long_as_it_rests() -> None:
    found = PackedRows(rows(3 * BLOCK_ROWS + 5))
    del found["client-7"]
    places = {key: place for place, key, _ in found.placed()}
    assert [value for _, _, value in found.placed()] == [value for page in found.pages() for _, value in page]
    assert sorted(places) == sorted(rows(3 * BLOCK_ROWS + 5).keys() - {"client-7"})
    found["client-9"] = b"new"
    for key, place in places.items():
        assert found.at(place) == (key if key != "client-9" else None)
        assert found.rests(key) == (key != "client-9")
    assert not found.rests("client-7")
    assert not found.rests("nobody")


def test_a_row_costs_what_it_says_and_little_more() -> None:
    """A dict: 150 bytes more, with the objects of key and value."""
    tracemalloc.start()
    try:
        many = rows(20_000)
        says = sum([len(key) + len(value) for key, value in many.items()])
        before = tracemalloc.get_traced_memory()[0]
        found = PackedRows(many)
        took = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(found) == 20_000
    assert took < says + 12 * 20_000


def test_few_rows_are_a_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACKED_MIN", 10)
    few, many = rows(9), rows(10)
    assert type(packed(few)) is dict
    assert packed(few) == few
    assert packed(few) is not few
    found = packed(many)
    assert isinstance(found, PackedRows)
    again = packed(found)
    assert isinstance(again, PackedRows)
    assert again is not found
    assert dict(again) == many
