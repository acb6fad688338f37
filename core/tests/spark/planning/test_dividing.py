"""Cutting ranges: nothing is lost, nothing read twice."""

from hypothesis import given
from hypothesis import strategies as st

from gantrymq.spark.planning.dividing import QueueRange, divide

RANGES = st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 5000)), max_size=8)


@given(RANGES, st.integers(0, 40), st.integers(0, 700))
def test_parts_are_the_whole(spans: list[tuple[int, int]], parts_min: int, rows_max: int) -> None:
    whole = [QueueRange("t", "b", number, start, start + rows, "a:1") for number, (start, rows) in enumerate(spans)]
    parts = divide(whole, parts_min, rows_max)
    assert all(part.start < part.end for part in parts)
    if rows_max:
        assert max([part.end - part.start for part in parts], default=0) <= rows_max
    assert len(parts) >= min(parts_min, sum(rows for _, rows in spans))
    for each in whole:
        mine = [part for part in parts if part.queue == each.queue]
        assert [mine[0].start, *(part.end for part in mine)] == [*(part.start for part in mine), each.end]
        assert mine[0].start == each.start
    if not rows_max and parts_min <= len(whole):
        assert parts == whole
