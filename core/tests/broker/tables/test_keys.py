"""Keys of a table in pages: a walk meets every row that was there all the time, whatever comes and goes meanwhile."""

from __future__ import annotations

import random

import pytest

from gantrymq.broker.tables.keys import DEAD_MIN, PAGE_KEYS, TableKeys
from gantrymq.broker.tables.tables import Tables


class Table:
    def __init__(self, count: int = 0) -> None:
        self.rows = {f"k{number}": b"" for number in range(count)}
        self.keys = TableKeys(self.rows)

    def put(self, key: str) -> None:
        if key not in self.rows:
            self.keys.added(key)
        self.rows[key] = b""

    def remove(self, key: str) -> None:
        if self.rows.pop(key, None) is not None:
            self.keys.removed(key)

    def all(self) -> list[str]:
        return [key for page in self.keys.walk() for key in page]


@pytest.mark.parametrize("count", [0, 1, PAGE_KEYS, PAGE_KEYS + 1, 5 * PAGE_KEYS])
def test_every_key_once(count: int) -> None:
    table = Table(count)
    assert table.all() == list(table.rows)
    assert sorted(table.all()) == sorted(table.rows)


def test_deleted_and_back_again_stands_once() -> None:
    table = Table(3)
    table.remove("k1")
    table.put("k1")
    table.remove("k2")
    assert table.keys.dead == 1
    assert table.all() == ["k0", "k1"]
    assert table.keys.dead == 0
    table.put("k2")
    assert table.all() == ["k0", "k1", "k2"]


def test_dead_keys_are_swept_without_a_walk() -> None:
    table = Table()
    for number in range(20 * DEAD_MIN):  # sessions that come and go
        table.put(f"s{number}")
        table.remove(f"s{number}")
        assert table.keys.dead <= DEAD_MIN + 1
    assert sum([len(page) for page in table.keys._pages]) <= DEAD_MIN + PAGE_KEYS
    assert table.all() == []


def test_a_new_walk_ends_an_older_one_and_misses_nothing() -> None:
    table = Table(10 * PAGE_KEYS)
    first = table.keys.walk()
    assert len(next(first)) == PAGE_KEYS
    assert len(next(first)) == PAGE_KEYS
    second = table.keys.walk()
    got = set(next(second))
    assert list(first) == []
    for page in second:
        got |= set(page)
    assert got == set(table.rows)
    assert sorted(table.all()) == sorted(table.rows)


def test_a_walk_that_is_given_up_gives_its_pages_back() -> None:
    table = Table(10 * PAGE_KEYS)
    walk = table.keys.walk()
    next(walk)
    walk.close()  # type: ignore[attr-defined]
    assert sorted(table.all()) == sorted(table.rows)


@pytest.mark.parametrize("seed", range(8))
def test_changes_during_walks(seed: int) -> None:
    lot = random.Random(seed)
    table = Table(lot.choice([0, 3_000]))
    names = [f"k{number}" for number in range(6_000)]
    for _ in range(6):
        kept, met = set(table.rows), set()
        for page in table.keys.walk():
            assert len(page) <= PAGE_KEYS
            assert set(page) <= table.rows.keys()
            met |= set(page)
            for _ in range(lot.choice([1, 600])):
                key = lot.choice(names)
                if lot.random() < 0.5:
                    table.put(key)
                else:
                    table.remove(key)
                    kept.discard(key)
        assert kept <= met
        got = table.all()
        assert len(got) == len(set(got))
        assert set(got) == table.rows.keys()


def test_tables_keep_them_up_to_date() -> None:
    tables = Tables()
    tables.load({"x": {"a": b"1", "b": b"2"}})
    tables.apply("x", "b", None)
    tables.apply("x", "c", b"")
    tables.apply("x", "c", b"3")
    tables.apply("y", "only", b"")
    assert [key for page in tables.walk("x") for key in page] == ["a", "c"]
    assert [key for page in tables.walk("y") for key in page] == ["only"]
    assert list(tables.walk("unknown")) == []
