"""What Spark pushes down, by pyspark's own classes."""

from datetime import UTC, datetime
from typing import Any

import pytest

datasource = pytest.importorskip("pyspark.sql.datasource")

from gantrymq.spark.planning.filters import TIME_SLACK_MS, Narrowing  # noqa: E402
from gantrymq.spark.planning.options import parse  # noqa: E402

EqualTo, In, Not = datasource.EqualTo, datasource.In, datasource.Not
Less, LessOrEqual = datasource.LessThan, datasource.LessThanOrEqual
Greater, GreaterOrEqual = datasource.GreaterThan, datasource.GreaterThanOrEqual


def narrowed(*filters: Any) -> Narrowing:
    result = Narrowing()
    result.push(filters)
    return result


def test_places() -> None:
    found = narrowed(EqualTo(("topic",), "t"), In(("queue",), (1, 2, 3)), In(("partition",), (2, 3, 4)))
    assert (found.topics, found.queues, found.brokers) == (frozenset({"t"}), frozenset({2, 3}), None)


def test_ranges() -> None:
    found = narrowed(Greater(("offset",), 10), LessOrEqual(("offset",), 20), Less(("offset",), 99))
    assert (found.first, found.end) == (10, 21)
    assert (narrowed(EqualTo(("offset",), 5)).first, narrowed(EqualTo(("offset",), 5)).end) == (5, 6)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    found = narrowed(GreaterOrEqual(("storeTimestamp",), at), Less(("timestamp",), at))
    ms = int(at.timestamp() * 1000)
    assert (found.from_ms, found.until_ms) == (ms - TIME_SLACK_MS, ms + 1 + TIME_SLACK_MS)
    assert narrowed(GreaterOrEqual(("storeTimestamp",), at.replace(tzinfo=None))) == Narrowing()


@pytest.mark.parametrize(
    "kept",
    [
        Not(EqualTo(("queue",), 1)), EqualTo(("queue",), None), EqualTo(("tag",), None), EqualTo(("body",), b"x"),
        EqualTo(("queue",), True), In(("tag",), ("a", None)), Greater(("tag",), "a"), EqualTo(("bornTimestamp",), 5),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_left_to_spark(kept: Any) -> None:
    assert narrowed(kept) == Narrowing()


def test_tags_and_properties_are_filtered_by_the_broker() -> None:
    options = parse({"topic": "t"})
    assert narrowed(In(("tag",), ("b", "a"))).apply(options).tags == ("a", "b")
    site = EqualTo(("properties", "site"), "x")
    assert narrowed(site).apply(options).sql == "site IN ('x')"
    assert narrowed(site, EqualTo(("tag",), "a")).apply(options).sql == "TAGS IN ('a') AND site IN ('x')"
    for unsure in (
        EqualTo(("properties", "a-b"), "x"),
        EqualTo(("properties", "site"), "it's"),
        EqualTo(("tag",), "a||b"),
    ):
        assert narrowed(unsure).apply(options) == options
    assert narrowed(EqualTo(("tag",), "a"), EqualTo(("tag",), "b")).apply(options) == options
    own = parse({"topic": "t", "tags": "z"})
    assert narrowed(EqualTo(("tag",), "a")).apply(own) == own
