"""The columnar decoder against the plain one, message by message."""

import struct
import zlib
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.tests.client.fake_cluster import make_record

pa = pytest.importorskip("pyarrow")

from gantrymq.client.records import ReceivedMessage, decode_records  # noqa: E402
from gantrymq.model.errors import ErrorCode, GantryError  # noqa: E402
from gantrymq.spark.decoding import columns  # noqa: E402
from gantrymq.spark.decoding.columns import Decoder, Queue  # noqa: E402

MAPS = pa.map_(pa.string(), pa.string())
FULL = pa.schema(
    {
        "topic": pa.string(),
        "broker": pa.string(),
        "queue": pa.int32(),
        "offset": pa.int64(),
        "tag": pa.string(),
        "keys": pa.string(),
        "body": pa.binary(),
        "bornTimestamp": pa.timestamp("us", "UTC"),
        "storeTimestamp": pa.timestamp("us", "UTC"),
        "properties": MAPS,
    }
)
QUEUE = Queue("telemetry", "broker-a", 3)


def rows(batches: Sequence[pa.RecordBatch]) -> list[dict[str, object]]:
    result = []
    for batch in batches:
        batch.validate(full=True)
        for row in batch.cast(_numbers(batch.schema)).to_pylist():
            if "properties" in row:
                row["properties"] = dict(row["properties"])
            result.append(row)
    return result


def _numbers(schema: pa.Schema) -> pa.Schema:
    """Timestamps as numbers: Python's cannot hold all of them."""
    return pa.schema([(f.name, pa.int64() if pa.types.is_timestamp(f.type) else f.type) for f in schema])


def expected(message: ReceivedMessage) -> dict[str, object]:
    return {
        "topic": "telemetry",
        "broker": "broker-a",
        "queue": 3,
        "offset": message.queue_offset,
        "tag": message.property_map().get("TAGS"),
        "keys": message.property_map().get("KEYS"),
        "body": message.body,
        "bornTimestamp": message.born_ms * 1000,
        "storeTimestamp": message.store_ms * 1000,
        "properties": message.property_map(),
    }


NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "a", "größe"])
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=8)
NEAT = st.lists(st.tuples(NAMES, VALUES.filter(bool)), max_size=5).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
)
CUT = NEAT.map(lambda data: data.removesuffix(b"\x02"))
WILD = st.lists(st.sampled_from([b"\x00", b"\x01", b"\x02", b"a", b"TAGS", b"\xff", "ö".encode()]), max_size=8).map(
    b"".join
)
HOST = st.sampled_from([b"\x7f\0\0\1\0\0\0\1", bytes(15) + b"\1" + b"\0\0\0\2"])


@st.composite
def record_lists(draw: st.DrawFn) -> list[bytes]:
    records = []
    offset = draw(st.integers(0, 2**40))
    properties = draw(st.sampled_from([NEAT | CUT, NEAT | CUT | WILD]))
    for _ in range(draw(st.integers(0, 12))):
        body = draw(st.binary(max_size=40))
        packed = draw(st.booleans()) and draw(st.booleans())
        records.append(
            make_record(
                draw(st.sampled_from(["telemetry", "t", "x" * 127])),
                3,
                offset,
                zlib.compress(body) if packed else body,
                draw(properties),
                physical=draw(st.integers(0, 2**60)),
                born_ms=draw(st.integers(-(2**50), 2**50)),
                store_ms=draw(st.integers(0, 2**50)),
                sys_flag=draw(st.sampled_from([0x1, 0x301])) if packed else 0,
                born_host=draw(HOST),
                store_host=draw(HOST),
                second=draw(st.booleans()),
            )
        )
        offset += draw(st.integers(1, 3))
    return records


@settings(max_examples=100, deadline=None)
@given(record_lists(), st.data())
def test_equals_the_plain_decoder(records: list[bytes], data: st.DataObject) -> None:
    messages = decode_records(b"".join(records))
    cut = data.draw(st.integers(0, len(records)))
    low = data.draw(st.sampled_from([0, *[m.queue_offset for m in messages]]))
    high = data.draw(st.sampled_from([2**62, *[m.queue_offset for m in messages]]))
    tags = data.draw(st.sampled_from([(), ("a",), ("a", "TAGS")]))
    bodies = [body for body in (b"".join(records[:cut]), b"".join(records[cut:])) if body]
    batches, offsets = Decoder(QUEUE, FULL, tags).decode(bodies, low, high)
    assert offsets.tolist() == [message.queue_offset for message in messages]
    inside = [expected(message) for message in messages if low <= message.queue_offset < high]
    assert rows(batches) == [row for row in inside if not tags or row["tag"] in tags]


@settings(max_examples=30, deadline=None)
@given(record_lists(), st.lists(st.sampled_from(FULL.names), unique=True, min_size=1))
def test_a_projection_is_a_selection(records: list[bytes], names: list[str]) -> None:
    schema = pa.schema([FULL.field(name) for name in names])
    batches, _ = Decoder(QUEUE, schema).decode([b"".join(records)], 0, 2**62)
    assert all(batch.schema.equals(schema) for batch in batches)
    messages = decode_records(b"".join(records))
    assert rows(batches) == [{name: expected(message)[name] for name in names} for message in messages]


@settings(max_examples=100, deadline=None)
@given(record_lists().filter(bool), st.data())
def test_damage_is_an_error_or_the_same_as_the_plain_decoder(records: list[bytes], data: st.DataObject) -> None:
    block = bytearray(b"".join(records))
    for _ in range(data.draw(st.integers(1, 4))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    damaged = bytes(block[: data.draw(st.integers(1, len(block)))])
    schema = pa.schema([FULL.field(name) for name in ("offset", "tag", "properties")])
    try:
        messages = decode_records(damaged)
    except GantryError:
        messages = None
    error = None
    try:
        batches, offsets = Decoder(QUEUE, schema).decode([damaged], 0, 2**62)
    except GantryError as caught:
        error = caught
    if error is not None:
        assert str(error).startswith("queue 3 of topic 'telemetry' on broker 'broker-a': ")
        return
    assert messages is not None
    assert offsets.tolist() == [message.queue_offset for message in messages]
    assert len(rows(batches)) == sum(1 for message in messages if message.queue_offset >= 0)


def test_of_a_repeated_name_the_last_counts() -> None:
    pairs = b"UNIQ_KEY\x01own\x02TAGS\x01t\x02UNIQ_KEY\x01batch\x02"
    records = b"".join(make_record("t", 3, n, b"", pairs) for n in range(3))
    batches, _ = Decoder(QUEUE, FULL).decode([records], 0, 9)
    assert [row["properties"] for row in rows(batches)] == [{"UNIQ_KEY": "batch", "TAGS": "t"}] * 3


def test_more_names_than_bits() -> None:
    records = b"".join(make_record("t", 3, n, b"", b"name%d\x01v\x02name%d\x01w\x02" % (n, n)) for n in range(100))
    batches, _ = Decoder(QUEUE, FULL).decode([records], 0, 100)
    assert [row["properties"] for row in rows(batches)] == [{f"name{n}": "w"} for n in range(100)]


def test_inflated_bodies_end_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "INFLATED_BATCH_BYTES", 1000)
    bodies = [bytes([n]) * (400 if n % 2 else 5) for n in range(20)]
    records = [
        make_record("t", 3, n, zlib.compress(body) if n % 2 else body, sys_flag=n % 2) for n, body in enumerate(bodies)
    ]
    batches, _ = Decoder(QUEUE, FULL).decode([b"".join(records)], 0, 99)
    assert len(batches) == 5
    assert [row["body"] for row in rows(batches)] == bodies


def test_broken_bodies_name_the_offset() -> None:
    record = make_record("t", 3, 17, b"no zlib", sys_flag=1)
    with pytest.raises(GantryError, match=r"queue 3 of topic 'telemetry'.*offset 17: the compressed body is broken"):
        Decoder(QUEUE, FULL).decode([record], 0, 99)
    offsets = pa.schema([FULL.field("offset")])
    batches, _ = Decoder(QUEUE, offsets).decode([record], 0, 99)  # nobody asked for the body
    assert rows(batches) == [{"offset": 17}]


def test_offsets_must_rise() -> None:
    with pytest.raises(GantryError, match="queue offsets do not rise"):
        Decoder(QUEUE, FULL).decode([make_record("t", 3, 5, b"") * 2], 0, 99)


SIZES = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from([1, 2, 63, 64, 65, 500, 1023, 1024, 1025, 3000])), max_size=8
)


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(-4, 4))
def test_records_of_one_size_and_of_many(runs: list[tuple[int, int]], cut: int) -> None:
    """Runs of one size are hopped over at once, others one by one; a block that does not end with a record is refused either way."""
    sizes = [91 + more for more, count in runs for _ in range(count)]
    block = bytearray(b"".join([struct.pack(">I", size) + bytes([0xFF]) * (size - 4) for size in sizes]))
    end = max(len(block) + (cut if sizes else 0), 0)
    block = block[:end] + bytes(max(end - len(block), 0) + 4)
    if cut and sizes:
        with pytest.raises(GantryError, match=r"behind the block|a record of 0 bytes"):
            columns.record_starts(block, end)
        return
    starts = [0, *accumulate(sizes)][:-1]
    assert columns.record_starts(block, end).tolist() == starts


def test_a_size_that_is_wrong_behind_many_that_are_right() -> None:
    block = bytearray((struct.pack(">I", 91) + bytes(87)) * 3000 + struct.pack(">I", 90) + bytes(90))
    with pytest.raises(GantryError, match="byte 273000: a record of 90 bytes"):
        columns.record_starts(block, len(block) - 4)


def test_blocks_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BLOCK_BYTES_MAX", 1000)
    with pytest.raises(GantryError) as caught:
        Decoder(QUEUE, FULL).decode([make_record("t", 3, 5, bytes(1000))], 0, 99)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_timestamp_out_of_range_is_the_nearest() -> None:
    record = make_record("t", 3, 0, b"", born_ms=2**62)
    batches, _ = Decoder(QUEUE, FULL).decode([record], 0, 9)
    assert rows(batches)[0]["bornTimestamp"] > 2**62


def test_the_oracle_writes_what_the_layout_says() -> None:
    record = make_record("t", 3, 5, b"body")
    assert struct.unpack_from(">I", record)[0] == len(record) == 88 + 4 + 1 + 1 + 2
