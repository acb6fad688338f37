"""Offsets as text, resolving options, dividing a batch."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.spark.offsets import OptionError, cap, from_document, parse_offsets, resolve, to_document

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
        parse_offsets("startingOffsets", text)


def test_resolve() -> None:
    queues = [MessageQueue("t", "b", n) for n in range(3)]
    ends = {"earliest": dict.fromkeys(queues, 10), "latest": dict.fromkeys(queues, 20)}.__getitem__
    assert resolve("o", "latest", "earliest", queues, ends) == dict.fromkeys(queues, 20)
    wanted = parse_offsets("o", '{"t": {"b": {"0": 12, "1": -1}}}')
    assert resolve("o", wanted, "earliest", queues, ends) == {queues[0]: 12, queues[1]: 20, queues[2]: 10}
    assert resolve("o", wanted, "latest", queues, ends)[queues[2]] == 20
    with pytest.raises(OptionError, match="o names t/b/7"):
        resolve("o", {MessageQueue("t", "b", 7): 1}, "earliest", queues, ends)
