"""An acknowledgement that is told by its likeness says what the general way says, or is left to it."""

from __future__ import annotations

from itertools import pairwise, zip_longest
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.remoting import codec
from gantrymq.remoting.ack_shapes import Acks, AckShapes
from gantrymq.remoting.codec import Command, FrameReader, encode
from gantrymq.remoting.constants import VERSION
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.send_shapes import HEADER_BYTES_MAX
from gantrymq.remoting.shape_table import SHAPES_MAX, SHAPES_PER_LENGTH
from tests.remoting.bench import TOPIC, Bench, answers, request, send
from tests.remoting.pop_client import GROUP, Popped, pop, pop_frame, popped

HEAD = "40 1700000000000 60000 0 0 broker-a 1"
FIELDS = {"consumerGroup": "group", "topic": "topic", "queueId": "1", "extraInfo": f"{HEAD} 41", "offset": "41"}


@pytest.fixture(autouse=True)
def forget() -> None:
    """What other tests acknowledged."""
    codec._ack_shapes.forget()


def fields_of(offset: int, queue: int = 1, start: int = 40, pop_ms: int = 1700000000000) -> dict[str, str]:
    info = f"{start} {pop_ms} 60000 0 0 broker-a {queue} {offset}"
    return FIELDS | {"extraInfo": info, "offset": str(offset), "queueId": str(queue)}


def frame_of(fields: dict[str, str], opaque: int = 17, flag: int = 0, body: bytes = b"") -> bytes:
    return encode(Command(Code.ACK_MESSAGE, fields, body, opaque, flag, language=0))


def is_alike(first: bytes, second: bytes) -> bool:
    """Whether a reader that had `first` tells `second` from it."""
    reader = FrameReader(typed_sends=True)
    reader.read(first)
    (found,) = reader.read(second)
    return isinstance(found, Acks)


@pytest.mark.parametrize(
    "order", [("queueId", "offset", "extraInfo"), ("extraInfo", "consumerGroup", "offset", "queueId")]
)
def test_receipt_offset_queue_and_opaque_may_differ(order: tuple[str, ...]) -> None:
    def ordered(fields: dict[str, str]) -> dict[str, str]:
        return {name: fields[name] for name in (*order, *[name for name in fields if name not in order])}

    other = fields_of(43, 2, 42, 1700000000777)
    assert is_alike(frame_of(ordered(FIELDS)), frame_of(ordered(other), 99))
    reader = FrameReader(typed_sends=True)
    reader.read(frame_of(ordered(FIELDS)))
    (command,) = reader.feed(frame_of(ordered(other), 99))
    assert command == FrameReader().feed(frame_of(other, 99))[0]
    assert (command.opaque, command.code, command.version) == (99, 200051, VERSION)


@pytest.mark.parametrize(
    "more",
    [
        {"consumerGroup": "grouq"},
        {"topic": "topid"},
        {"offset": "42"},
        {"offset": "4_"},
        {"offset": " 1", "extraInfo": f"{HEAD}  1"},
        {"offset": "01", "extraInfo": f"{HEAD} 01"},
        {"queueId": "x"},
        {"queueId": "-1"},
        {"extraInfo": f"{HEAD[:-1]}x 41"},
        {"extraInfo": HEAD.replace(" 0 0 ", " 0 3 ") + " 41"},
        {"extraInfo": HEAD.replace("broker", "br\\u00") + " 41"},
        {"extraInfo": "x" * len(FIELDS["extraInfo"])},
    ],
)
def test_anything_else_goes_the_general_way(more: dict[str, str]) -> None:
    assert is_alike(frame_of(FIELDS), frame_of(fields_of(42)))
    assert not is_alike(frame_of(FIELDS), frame_of(FIELDS | more))


def test_one_way_acknowledgements_bodies_and_long_headers_are_not_learned() -> None:
    long = FIELDS | {"topic": "t" * HEADER_BYTES_MAX}
    for frame in (frame_of(FIELDS, flag=2), frame_of(FIELDS, body=b"x"), frame_of(long)):
        assert not is_alike(frame, frame)
    assert not is_alike(frame_of(FIELDS), frame_of(fields_of(42), body=b"x"))


@pytest.mark.parametrize("opaque", [b"07", b" 7", b"7 ", b"-7", b"1."])
def test_an_opaque_that_is_no_plain_number_goes_the_general_way(opaque: bytes) -> None:
    odd = frame_of(FIELDS).replace(b'"opaque":17', b'"opaque":' + opaque)
    reader = FrameReader(typed_sends=True)
    reader.read(frame_of(FIELDS))
    try:
        fresh: Any = FrameReader().feed(odd)[0].opaque
    except codec.FrameError:
        fresh = None
    try:
        assert reader.feed(odd)[0].opaque == fresh
    except codec.FrameError:
        assert fresh is None


def test_an_opaque_beyond_32_bits_is_refused_as_ever() -> None:
    reader = FrameReader(typed_sends=True)
    reader.read(frame_of(FIELDS, 2_000_000_000))
    (found,) = reader.read(frame_of(FIELDS, 2_147_483_647))
    assert isinstance(found, Acks)
    with pytest.raises(codec.FrameError, match="32-bit"):
        reader.read(frame_of(FIELDS, 2_147_483_648))


def test_one_read_gives_a_run_per_delivery_with_its_offsets_ascending() -> None:
    reader = FrameReader(typed_sends=True)
    reader.read(frame_of(FIELDS))
    later = fields_of(45, pop_ms=1700000000001)
    rows = [fields_of(41), fields_of(43), fields_of(44), fields_of(42), fields_of(43, 2), fields_of(44, 2), later]
    found = reader.read(b"".join([frame_of(row, 50 + at) for at, row in enumerate(rows)]))
    runs = [(one.queue_id, one.pop_ms, one.offsets, one.opaques) for one in found if isinstance(one, Acks)]
    assert runs == [
        (1, 1700000000000, [41, 43, 44], [b"50", b"51", b"52"]),
        (1, 1700000000000, [42], [b"53"]),
        (2, 1700000000000, [43, 44], [b"54", b"55"]),
        (1, 1700000000001, [45], [b"56"]),
    ]
    assert len(found) == len(runs)


@given(
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 2), st.integers(8, 12), st.integers(0, 110), st.booleans()), max_size=12),
    st.lists(st.integers(1, 4000), max_size=4),
)  # fmt: skip
def test_any_stream_means_the_same_whatever_was_before(
    rows: list[tuple[int, int, int, int, bool]], cuts: list[int]
) -> None:
    frames = []
    for offset, queue, start, opaque, other in rows:
        fields = {"topic": "topic", "subscription": "*"} if other else fields_of(offset, queue, start)
        frames.append(
            encode(Command(Code.PULL_MESSAGE if other else Code.ACK_MESSAGE, fields, b"", opaque, language=0))
        )
    data = b"".join(frames)
    edges = sorted({0, len(data), *[cut for cut in cuts if cut < len(data)]})
    reader = FrameReader(typed_sends=True)
    found = [one for begin, end in pairwise(edges) for one in reader.feed(data[begin:end])]
    assert found == FrameReader().feed(data)


Run = tuple[int, int, int, int, int, bool]
"""Of acknowledgements: first offset, count, step of the offsets, first opaque, step of the opaques, receipt before or behind the opaque."""


def frames_of(run: Run) -> list[bytes]:
    first, count, step, opaque, opaque_step, behind = run
    frames = []
    for number in range(count):
        fields = fields_of(first + number * step, 1, first)
        frame = frame_of(fields, opaque + number * opaque_step)
        if behind:
            tail = frame.partition(b'"extFields":{')[2]
            values, end, rest = tail.partition(b"}")
            header = b'{"code":200051' + rest[:-1] + b',"extFields":{' + values + end + b"}"
            frame = codec.frame(header)
        frames.append(frame)
    return frames


def decoded(reader: FrameReader, data: bytes) -> object:
    try:
        return reader.feed(data)
    except codec.FrameError as error:
        return [str(error), error.commands]


runs = st.tuples(
    st.sampled_from([1, 8, 9, 40, 95, 990, 998, 12_345, 99_990, 10**12]),
    st.integers(1, 70),
    st.sampled_from([1, 1, 1, 2]),
    st.sampled_from([0, 8, 1 << 20, 2_147_483_600, 2_147_483_647]),
    st.sampled_from([0, 0, 1, 3]),
    st.booleans(),
)


@given(st.lists(runs, min_size=1, max_size=4), st.booleans())
def test_offsets_that_count_up_mean_the_same_compared_at_once(rows: list[Run], mixed: bool) -> None:
    lists = [frames_of(run) for run in rows]
    frames = [frame for some in lists for frame in some]
    if mixed:  # those of two deliveries by turns
        frames = [frame for pair in zip_longest(*lists, fillvalue=b"") for frame in pair]
    data = b"".join(frames)
    reader = FrameReader(typed_sends=True)
    decoded(reader, lists[0][0])
    assert decoded(reader, data) == decoded(FrameReader(), data)


@given(st.integers(4, 32), st.integers(0, 1), st.integers(0, 12_000), st.integers(0, 255), st.booleans())
def test_a_byte_that_is_other_is_seen_among_many(count: int, step: int, at: int, byte: int, behind: bool) -> None:
    frames = frames_of((12_345, count, 1, 1 << 20, step, behind))
    data = bytearray(b"".join(frames))
    data[at % len(data)] = byte
    reader = FrameReader(typed_sends=True)
    decoded(reader, frames[0])
    assert decoded(reader, bytes(data)) == decoded(FrameReader(), bytes(data))


def test_a_whole_delivery_is_one_run() -> None:
    frames = frames_of((12_980, 32, 1, 1 << 20, 1, False))
    reader = FrameReader(typed_sends=True)
    reader.read(frames[0])
    (run,) = reader.read(b"".join(frames))
    assert isinstance(run, Acks)
    assert run.offsets == list(range(12_980, 13_012))
    assert run.opaques == [b"%d" % number for number in range(1 << 20, (1 << 20) + 32)]


def test_shapes_are_bounded() -> None:
    assert (SHAPES_MAX, SHAPES_PER_LENGTH) == (1024, 8)
    known = AckShapes()

    def decode(probe: bytes) -> tuple[dict[str, str], int]:
        command = codec.decode_json_header(probe, b"")
        return command.fields, command.opaque

    def learn(fields: dict[str, str]) -> None:
        known.learn(frame_of(fields)[8:], fields, (0, 0), decode)

    for number in range(SHAPES_PER_LENGTH + 2):
        learn(FIELDS | {"consumerGroup": f"group{number:02}"})
    assert [len(shapes) for shapes in known._shapes.values()] == [SHAPES_PER_LENGTH]
    for size in range(1, 200):
        for number in range(SHAPES_PER_LENGTH):
            learn(FIELDS | {"topic": f"t{number}".ljust(size + 2, "t"), "consumerGroup": "g"})
    assert sum(map(len, known._shapes.values())) <= SHAPES_MAX


def ack_frame(one: Popped, opaque: int) -> bytes:
    parts = one.receipt.split()
    fields: dict[str, Any] = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": parts[6],
        "extraInfo": one.receipt,
        "offset": parts[7],
    }
    return request(Code.ACK_MESSAGE, b"", opaque, **fields)


def test_acknowledgements_of_one_read_are_done_and_answered(bench: Bench) -> None:
    link = bench.connect()
    for number in range(12):
        send(link, b"%d" % number)
    for begin in (0, 4, 8):
        taken = pop(link, maxMsgNums=4)
        found = answers(link.feed(b"".join([ack_frame(one, 20 + at) for at, one in enumerate(taken)])))
        assert [(one.code, one.opaque) for one in found] == [(0, 20), (0, 21), (0, 22), (0, 23)]
        assert bench.broker.offsets.query(GROUP, TOPIC, 0) == begin + 4
    (place,) = bench.broker.pops._places[GROUP, TOPIC].values()
    assert not place.cursor.window.inflight
    assert not bench.broker.pops.leases.by_id


def test_one_that_counts_no_more_does_not_keep_the_others_from_counting(bench: Bench) -> None:
    link = bench.connect()
    for number in range(5):
        send(link, b"%d" % number)
    taken = pop(link)
    assert answers(link.feed(ack_frame(taken[1], 10)))[0].code == 0
    found = answers(link.feed(b"".join([ack_frame(one, 20 + at) for at, one in enumerate(taken[:4])])))
    assert [(one.code, one.opaque) for one in found] == [(0, 20), (0, 21), (0, 22), (0, 23)]
    assert bench.broker.offsets.query(GROUP, TOPIC, 0) == 4
    bad = Popped.__new__(Popped)
    bad.receipt = taken[4].receipt.rpartition(" ")[0] + " 9"
    found = answers(link.feed(ack_frame(taken[4], 30) + ack_frame(bad, 31)))
    assert [one.code for one in found] == [0, 208]  # the second names an offset that the queue does not have
    assert bench.broker.offsets.query(GROUP, TOPIC, 0) == 5


def test_an_ordered_pop_behind_its_acknowledgements_in_one_read_is_answered(bench: Bench) -> None:
    link = bench.connect()
    for number in range(4):
        send(link, b"%d" % number)
    taken = pop(link, maxMsgNums=2, order=True)
    link.feed(ack_frame(taken[0], 19))
    found = answers(link.feed(ack_frame(taken[1], 20) + pop_frame(21, maxMsgNums=2, order=True)))
    assert [one.code for one in found] == [0, 0]
    assert [one.body for one in popped(found[1])] == [b"2", b"3"]
