"""Chance against the Remoting door: no crash, no unbounded memory, the connection closed or the request answered (issue: Proof)."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.remoting.codec import FRAME_BYTES_MAX, PREFIX, FrameError, FrameReader
from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.headers import HeaderError, fields_of, parse
from tests.remoting.bench import TOPIC, Bench, ask, request, send
from tests.remoting.fuzzing import HEADERS, LENGTHS, NUMBERS, Fuzz


@pytest.mark.parametrize("seed", range(4))
def test_requests_by_chance(tmp_path: Path, seed: int) -> None:
    fuzz = Fuzz(tmp_path, seed)
    try:
        fuzz.run(200)
        assert fuzz.answered > 100
    finally:
        fuzz.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_requests_by_chance(tmp_path: Path, seed: int) -> None:
    fuzz = Fuzz(tmp_path, seed)
    try:
        fuzz.run(2000)
        assert fuzz.answered > 1000
    finally:
        fuzz.close()


def test_every_header_class_is_among_them() -> None:
    assert {"SendHeaderV2", "PullHeader", "QueryMessageHeader"} <= {each.__name__ for each in HEADERS}
    assert len(HEADERS) > 20


texts = st.one_of(st.text(max_size=8), st.sampled_from(NUMBERS), st.sampled_from(["true", "false"]))


@settings(max_examples=20, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("shape", HEADERS, ids=lambda shape: shape.__name__)
def test_any_fields(shape: type[msgspec.Struct], data: st.DataObject) -> None:
    """A header, or HeaderError; what was understood goes back to the wire and is understood again."""
    names = [field.encode_name for field in msgspec.structs.fields(shape)]
    fields = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys([*names, "unknown"], texts)))
    try:
        header = parse(fields, shape)
    except HeaderError:
        return
    assert parse(fields_of(header), shape) == header


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.tuples(st.sampled_from(LENGTHS), st.sampled_from(LENGTHS)).map(lambda pair: PREFIX.pack(*pair)),
            st.tuples(st.sampled_from([0, 1, 2, 255]), st.binary(max_size=60), st.binary(max_size=20)).map(
                lambda parts: (
                    PREFIX.pack(4 + len(parts[1]) + len(parts[2]), parts[0] << 24 | len(parts[1])) + parts[1] + parts[2]
                )
            ),
        ),
        max_size=5,
    ).map(b"".join),
    st.integers(1, 7),
)
def test_any_bytes(data: bytes, step: int) -> None:
    """Commands or FrameError, alike whole and in pieces (once a whole prefix is there); never more is held than came."""
    data += bytes(12)
    outcomes = []
    for size in (max(len(data), 1), step):
        reader, commands, failed = FrameReader(), 0, False
        try:
            for at in range(0, len(data), size):
                commands += len(reader.feed(data[at : at + size]))
                assert reader.pending_bytes <= len(data)
        except FrameError as error:
            commands += len(error.commands)
            failed = True
        outcomes.append((commands, failed))
    assert outcomes[0] == outcomes[1]


HUGE = {
    "JSON lists": b'{"code":34,"extFields":' + b"[" * 1_000_000,
    "JSON objects": b'{"code":' * 200_000,
    "JSON fields": b'{"code":105,"extFields":{' + b",".join([b'"%d":"x"' % n for n in range(100_000)]) + b"}}",
    "a long text": b'{"code":105,"remark":"' + b"x" * 4_000_000 + b'"}',
}


@pytest.mark.parametrize("name", HUGE)
def test_a_huge_header_takes_memory_in_proportion(bench: Bench, name: str) -> None:
    header = HUGE[name]
    data = PREFIX.pack(4 + len(header), len(header)) + header
    link = bench.connect()
    tracemalloc.start()
    try:
        answer = link.feed(data)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(data) + 2_000_000
    finally:
        tracemalloc.stop()
    assert answer or link.closed_by
    assert len(answer) < 10_000


def test_a_frame_that_never_ends_is_held_up_to_its_limit(bench: Bench) -> None:
    link = bench.connect()
    link.feed(PREFIX.pack(FRAME_BYTES_MAX - 4, 100))
    assert link.closed_by is None
    other = bench.connect()
    assert other.feed(PREFIX.pack(FRAME_BYTES_MAX - 3, 100))
    assert other.closed_by == "close"


# What chance found.


def test_a_pop_that_ends_while_its_topic_is_deleted_leaves_no_waiter(bench: Bench) -> None:
    link, admin = bench.connect(), bench.connect()
    assert send(admin).code == 0
    fields = {"consumerGroup": "G", "topic": TOPIC, "queueId": -1, "maxMsgNums": 1, "invisibleTime": 60_000, "pollTime": 15_000,
              "bornTime": bench.clock.now_ms(), "initMode": 1, "expType": "TAG", "exp": "none"}  # fmt: skip
    link.feed(request(RequestCode.POP_MESSAGE, **fields))
    topic = bench.broker.topics.topics[TOPIC]
    assert topic.waiters
    assert ask(admin, RequestCode.DELETE_TOPIC_IN_BROKER, topic=TOPIC).code == 0
    link.lose()
    assert send(admin, e=3).code == 0
    assert bench.broker.topics.topics[TOPIC].waiters == {}
