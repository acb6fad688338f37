"""MultiMap against a plain dict of lists."""

from __future__ import annotations

import sys
from random import Random

import pytest

from gantrymq.model.indexes.multimap import FEW, MultiMap


@pytest.mark.parametrize("seed", range(20))
def test_it_holds_what_a_dict_of_lists_holds(seed: int) -> None:
    chance = Random(seed)
    found: MultiMap[str, int] = MultiMap()
    model: dict[str, list[int]] = {}
    for _ in range(2_000):
        key, item = chance.choice("abc"), chance.randrange(3 * FEW)
        items = model.setdefault(key, [])
        if chance.random() < (0.6 if seed % 2 else 0.4):
            found.add(key, item)
            if item not in items:
                items.append(item)
        else:
            found.discard(key, item)
            if item in items:
                items.remove(item)
        if not items:
            del model[key]
        assert {key: list(found.of(key)) for key in "abc" if key in found} == model
        assert len(found) == len(model)


def test_one_item_costs_no_table() -> None:
    found: MultiMap[int, int] = MultiMap()
    found.add(1, 1)
    assert sys.getsizeof(found._found[1]) < 64
    assert list(found.of(2)) == []
