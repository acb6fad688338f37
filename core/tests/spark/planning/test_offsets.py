"""Offsets as text, resolving options, dividing a batch."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.spark.planning.offsets import (
    OptionError,
    cap,
    from_document,
    marks_of,
    name_queues,
    parse_offsets,
    parse_times,
    to_document,
)
from gantrymq.spark.planning.progress import metrics

QUEUES = st.builds(MessageQueue, st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]), st.integers(0, 12))
OFFSETS = st.dictionaries(QUEUES, st.integers(0, 2**62), max_size=8)


@given(OFFSETS, st.randoms())
def test_the_text_does_not_depend_on_order(offsets: dict[MessageQueue, int], random: object) -> None:
    items = list(offsets.items())
    random.shuffle(items)
    text = json.dumps(to_document(dict(items)))
    assert text == json.dumps(to_document(offsets)) == json.dumps(json.loads(text), sort_keys=True)
    assert from_document(json.loads(text)) == offsets


@given(st.dictionaries(QUEUES, st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=8), st.integers(1, 500))
def test_a_capped_batch(lags: dict[MessageQueue, tuple[int, int]], rows_max: int) -> None:
    start = {queue: first for queue, (first, _) in lags.items()}
    end = {queue: first + lag for queue, (first, lag) in lags.items()}
    capped = cap(start, end, rows_max)
    assert capped.keys() == end.keys()
    assert all(start[queue] <= capped[queue] <= end[queue] for queue in end)
    taken = sum(capped[queue] - start[queue] for queue in end)
    assert taken == min(rows_max, sum(lag for _, lag in lags.values()))


def test_a_capped_batch_is_proportional() -> None:
    long, short = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)
    assert cap({long: 0, short: 0}, {long: 900, short: 100}, 100) == {long: 90, short: 10}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "[]",
        "5",
        '{"t": 5}',
        '{"t": {"b": {"x": 1}}}',
        '{"t": {"b": {"0": -3}}}',
        '{"t": {"b": {"0": true}}}',
    ],
)
def test_bad_offsets_say_what_is_allowed(text: str) -> None:
    with pytest.raises(OptionError, match=r"startingOffsets.*allowed (is|are)"):
        parse_offsets("startingOffsets", text, "earliest")
    with pytest.raises(OptionError, match=r"startingOffsetsByTimestamp.*allowed (is|are)"):
        parse_times("startingOffsetsByTimestamp", text, "earliest")


def test_queues_without_a_broker() -> None:
    """Kafka's form: the queue of that number, whatever its broker."""
    x0, y0, y1 = MessageQueue("t", "x", 0), MessageQueue("t", "y", 0), MessageQueue("t", "y", 1)
    wanted = parse_offsets("o", '{"t": {"0": -1, "1": 7}}', "earliest").offsets
    assert name_queues("o", wanted, [x0, y0, y1]) == {x0: -1, y0: -1, y1: 7}
    wanted = parse_offsets("o", '{"t": {"0": 5}}', "earliest").offsets
    with pytest.raises(OptionError, match=r'o names queue 0 of t, which x, y have: name the broker, like \{"t": \{"x"'):
        name_queues("o", wanted, [x0, y0])
    assert name_queues("o", wanted, [x0, y0], same=True) == {x0: 5, y0: 5}
    with pytest.raises(OptionError, match="o names t/0, which does not exist; topic 't' has t/y/1"):
        name_queues("o", wanted, [y1])
    with pytest.raises(OptionError, match="o names t/b/7"):
        name_queues("o", {MessageQueue("t", "b", 7): 1}, [x0])


def test_marks_stand_beside_the_offsets() -> None:
    queue = MessageQueue("t", "b", 3)
    document = to_document({queue: 5}, {queue: 1_700_000_000_000})
    assert document == {"@": {"t": {"b": {"3": 1_700_000_000_000}}}, "t": {"b": {"3": 5}}}
    assert list(document) == ["@", "t"]
    assert (from_document(document), marks_of(document)) == ({queue: 5}, {queue: 1_700_000_000_000})
    assert to_document({queue: 5}, {}) == {"t": {"b": {"3": 5}}}
    assert marks_of({"t": {"b": {"3": 5}}}) == {}


def test_metrics_have_the_names_of_kafkas_source() -> None:
    source = {"endOffset": {"@": {}, "t": {"b": {"0": 5, "1": 9}}}, "latestOffset": '{"t": {"b": {"0": 9, "1": 9}}}'}
    found = metrics({"sources": [source], "sink": {"numOutputRows": 7}})
    assert found == {
        "minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 4, "avgOffsetsBehindLatest": 2, "rowsWritten": 7,
    }  # fmt: skip
    assert metrics({"sources": [{"endOffset": "5"}], "sink": {"numOutputRows": -1}}) == {}
