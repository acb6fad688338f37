"""Counts by id: as a dict of those that are not 0, and small where ids lie close together."""

from __future__ import annotations

import random
import tracemalloc

from gantrymq.model.indexes.counts import PAGE, Counts


def test_they_are_as_a_dict() -> None:
    draw, counts, wanted = random.Random(1), Counts(), {}
    numbers = [0, 1, PAGE - 1, PAGE, 5 * PAGE, 7 << 40]
    for _ in range(2_000):
        number, step = draw.choice(numbers), draw.choice((-1, 1, 1))
        wanted[number] = max(wanted.get(number, 0) + step, 0)
        assert counts.add(number, step) == wanted[number] == counts[number]
        assert counts.total == sum(wanted.values())
    for number in numbers:
        while counts[number]:
            counts.add(number, -1)
    assert (counts.total, len(counts._pages)) == (0, 0)
    assert counts[3] == 0
    counts.add(3, 1)
    counts.clear()
    assert (counts.total, counts[3]) == (0, 0)


def test_an_id_costs_a_few_bytes() -> None:
    tracemalloc.start()
    try:
        counts = Counts()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(50_000):
            counts.add(number, 1)
        took = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert took < 10 * 50_000
