"""Attributes of topics: what tools may set, and to what."""

from __future__ import annotations

import pytest

from gantrymq.administration.topics import change_attributes
from gantrymq.model.errors import GantryError


@pytest.mark.parametrize(
    "item", ["keep.records=true", "keep.records=false", "reserve.time=3600000", "reserve.time=-1", "flush=sync"]
)
def test_what_is_set_is_there_until_it_is_taken_away(item: str) -> None:
    name, _, value = item.partition("=")
    attributes = {"queue.type": "SimpleCQ"}
    change_attributes(attributes, f"+{item}")
    assert attributes == {"queue.type": "SimpleCQ", name: value}
    change_attributes(attributes, f"-{name}")
    assert attributes == {"queue.type": "SimpleCQ"}


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("keep.records=no", "keep.records may be true, false"),
        ("reserve.time=1h", "reserve.time may be milliseconds, -1"),
        ("reserve.time=-2", "reserve.time may be milliseconds, -1"),
        ("keep.record=true", "known: .*keep.records, reserve.time"),
    ],
)
def test_what_is_not_understood_is_refused(item: str, said: str) -> None:
    attributes: dict[str, str] = {}
    with pytest.raises(GantryError, match=said):
        change_attributes(attributes, f"+{item}")
    assert not attributes
