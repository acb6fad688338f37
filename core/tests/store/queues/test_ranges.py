"""Ranges against a set of the offsets themselves."""

from hypothesis import given
from hypothesis import strategies as st

from gantrymq.store.queues import ranges
from gantrymq.store.queues.ranges import Ranges

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=16)


@given(SPANS, st.integers(0, 60), st.integers(1, 12))
def test_what_was_added_is_covered_and_nothing_else(spans: list[tuple[int, int]], first: int, size: int) -> None:
    known, offsets = Ranges(), set[int]()
    for begin, count in spans:
        known.add(begin, begin + count)
        offsets |= set(range(begin, begin + count))
    assert known.covers(first, first + size) == (set(range(first, first + size)) <= offsets)


def test_the_shortest_is_forgotten_but_never_the_newest() -> None:
    known = Ranges()
    for place in range(ranges.RANGES_MAX):
        known.add(100 * place, 100 * place + 20 + place)
    known.add(5000, 5001)
    assert known.covers(5000, 5001)
    assert not known.covers(0, 1)
    assert all(known.covers(100 * place, 100 * place + 20 + place) for place in range(1, ranges.RANGES_MAX))
