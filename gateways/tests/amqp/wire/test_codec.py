"""Frames, methods, tables: vectors as data, every kind of damage, and pamqp as the second opinion."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame

from gantrymq_gateways.amqp.wire import codec, values
from gantrymq_gateways.amqp.wire.constants import METHODS, Method
from gantrymq_gateways.amqp.wire.content import Properties, decode_properties, encode_properties
from gantrymq_gateways.amqp.wire.values import Field, MalformedError, Table, ValueTypeError, encode_table, read_table

# name, table, bytes after the length
TABLES: list[tuple[str, Table, str]] = [
    ("empty", [], ""),
    ("boolean", [("a", Field("t", True))], "0161 74 01"),
    ("signed octet", [("a", Field("b", -1))], "0161 62 ff"),
    ("octet", [("a", Field("B", 255))], "0161 42 ff"),
    ("short", [("a", Field("s", -2))], "0161 73 fffe"),
    ("unsigned short", [("a", Field("u", 65534))], "0161 75 fffe"),
    ("long", [("a", Field("I", -2))], "0161 49 fffffffe"),
    ("unsigned long", [("a", Field("i", 4294967294))], "0161 69 fffffffe"),
    ("long long", [("a", Field("l", -2))], "0161 6c fffffffffffffffe"),
    ("long long L", [("a", Field("L", -2))], "0161 4c fffffffffffffffe"),
    ("float", [("a", Field("f", 0.5))], "0161 66 3f000000"),
    ("double", [("a", Field("d", 0.5))], "0161 64 3fe0000000000000"),
    ("decimal", [("a", Field("D", (2, 314)))], "0161 44 02 0000013a"),
    ("text", [("a", Field("S", b"xy"))], "0161 53 00000002 7879"),
    ("binary", [("a", Field("x", b"\xff"))], "0161 78 00000001 ff"),
    ("timestamp", [("a", Field("T", 1))], "0161 54 0000000000000001"),
    ("void", [("a", Field("V", None))], "0161 56"),
    ("array", [("a", Field("A", [Field("V", None), Field("B", 7)]))], "0161 41 00000003 56 42 07"),
    ("table", [("a", Field("F", [("b", Field("t", False))]))], "0161 46 00000004 0162 74 00"),
    ("twice", [("a", Field("V", None)), ("a", Field("B", 1))], "0161 56 0161 42 01"),
]  # fmt: skip


def framed(hexadecimal: str) -> bytes:
    data = bytes.fromhex(hexadecimal)
    return struct.pack(">I", len(data)) + data


@pytest.mark.parametrize(("table", "wire"), [row[1:] for row in TABLES], ids=[row[0] for row in TABLES])
def test_tables(table: Table, wire: str) -> None:
    data = framed(wire)
    assert encode_table(table) == data
    assert read_table(data, 0, len(data)) == (table, len(data))
    for end in range(len(data)):
        with pytest.raises(MalformedError):
            read_table(data[:end], 0, end)


def nested(depth: int, kind: bytes) -> bytes:
    data = b""
    for _ in range(depth):
        inner = kind + struct.pack(">I", len(data)) + data
        data = inner if kind == b"A" else b"\x01a" + inner
    data = b"\x01a" + data if kind == b"A" else data
    return struct.pack(">I", len(data)) + data


@pytest.mark.parametrize("kind", [b"F", b"A"])
def test_nesting_is_limited(kind: bytes) -> None:
    data = nested(values.DEPTH_MAX, kind)
    read_table(data, 0, len(data))
    for depth in (values.DEPTH_MAX + 1, 20_000):
        data = nested(depth, kind)
        with pytest.raises(MalformedError, match="nested"):
            read_table(data, 0, len(data))


def test_unknown_type() -> None:
    data = framed("0161 7a")
    with pytest.raises(ValueTypeError):
        read_table(data, 0, len(data))


def test_length_beyond_the_table() -> None:
    data = framed("0161 53 ffffffff 78")
    with pytest.raises(MalformedError):
        read_table(data, 0, len(data))


def fields(depth: int = 2) -> st.SearchStrategy[Field]:
    simple = st.one_of(
        st.booleans().map(lambda v: Field("t", v)),
        st.integers(-128, 127).map(lambda v: Field("b", v)),
        st.integers(-(2**63), 2**63 - 1).map(lambda v: Field("l", v)),
        st.binary(max_size=20).map(lambda v: Field("S", v)),
        st.just(Field("V", None)),
    )
    if not depth:
        return simple
    return st.one_of(
        simple,
        st.lists(fields(depth - 1), max_size=3).map(lambda v: Field("A", v)),
        tables(depth - 1).map(lambda v: Field("F", v)),
    )


def tables(depth: int = 2) -> st.SearchStrategy[Table]:
    return st.lists(st.tuples(st.text(max_size=10).filter(lambda t: t.isascii()), fields(depth)), max_size=4)


@given(tables())
def test_table_round_trip(table: Table) -> None:
    data = encode_table(table)
    assert read_table(data, 0, len(data)) == (table, len(data))


@given(st.binary(max_size=60))
def test_any_bytes_as_a_table(data: bytes) -> None:
    try:
        read_table(data, 0, len(data))
    except ValueError:
        pass


SAMPLES: dict[str, Any] = {
    "o": 1,
    "h": 2,
    "l": 3,
    "q": 4,
    "s": "näme",
    "S": b"long",
    "t": True,
    "F": [("k", Field("S", b"v"))],
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_methods(method: Method) -> None:
    arguments = tuple(SAMPLES[letter] for letter in method.spec)
    payload = codec.encode_arguments(method.spec, arguments)
    assert codec.decode_arguments(method.spec, payload) == list(arguments)
    for end in range(len(payload)):
        with pytest.raises(MalformedError):
            codec.decode_arguments(method.spec, payload[:end])
    with pytest.raises(MalformedError):
        codec.decode_arguments(method.spec, payload + b"x")


def pamqp_value(letter: str) -> Any:
    return {"S": "long", "F": {"k": "v"}, "s": "name", "h": 2}.get(letter, SAMPLES[letter])


@pytest.mark.filterwarnings("ignore:This command is deprecated")
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_methods_as_pamqp_reads_them(method: Method) -> None:
    known = commands.INDEX_MAPPING.get(method.number)
    if known is None:
        assert method.class_id == 30
        return
    spec = method.spec
    values_ = [SAMPLES[letter] if letter != "s" else "name" for letter in spec]
    data = codec.method_frame(5, method, tuple(values_))
    size, channel, decoded = frame.unmarshal(data)
    assert (size, channel, type(decoded)) == (len(data), 5, known)
    expected = [pamqp_value(letter) for letter in spec]
    got = [getattr(decoded, slot) for slot in decoded.__slots__]
    assert [g.decode() if isinstance(g, bytes | bytearray) else g for g in got] == expected


def test_content_frames_as_pamqp_reads_them() -> None:
    properties = encode_properties(
        Properties(
            content_type="text/plain", headers=[("a", Field("S", b"b"))], delivery_mode=2, priority=3, message_id="m"
        )
    )
    data = codec.deliver_frames(3, codec.deliver_prefix("tag"), 9, True, b"\x01e\x01k", properties, b"body", 4096)
    size, channel, deliver = frame.unmarshal(data)
    assert (channel, deliver.consumer_tag, deliver.delivery_tag, deliver.redelivered) == (3, "tag", 9, True)
    assert (deliver.exchange, deliver.routing_key) == ("e", "k")
    data = data[size:]
    size, _, header = frame.unmarshal(data)
    assert header.body_size == 4
    assert (header.properties.content_type, header.properties.headers) == ("text/plain", {"a": "b"})
    assert (header.properties.delivery_mode, header.properties.priority, header.properties.message_id) == (2, 3, "m")
    _, _, body = frame.unmarshal(data[size:])
    assert body.value == b"body"


def test_acknowledgements_as_pamqp_reads_them() -> None:
    _, channel, ack = frame.unmarshal(codec.ack_frame(2, 7, True))
    assert (channel, ack.delivery_tag, ack.multiple) == (2, 7, True)
    _, channel, nack = frame.unmarshal(codec.nack_frame(2, 8, False))
    assert (channel, nack.delivery_tag, nack.multiple) == (2, 8, False)


@pytest.mark.parametrize("size", [0, 1, 87, 88, 89, 176, 177, 1000])
def test_bodies_are_cut_at_frame_max(size: int) -> None:
    body = bytes(range(256)) * 4
    data = codec.content_frames(1, b"\0\0", body[:size], 96)
    found = b""
    at = 22
    while at < len(data):
        _, _, length = codec.FRAME.unpack_from(data, at)
        assert 0 < length <= 88
        found += data[at + 7 : at + 7 + length]
        at += length + 8
    assert found == body[:size]


def shortstrs() -> st.SearchStrategy[str | None]:
    return st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


properties_ = st.builds(
    Properties,
    content_type=shortstrs(),
    content_encoding=shortstrs(),
    headers=st.none() | tables(1),
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    correlation_id=shortstrs(),
    reply_to=shortstrs(),
    expiration=shortstrs(),
    message_id=shortstrs(),
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=shortstrs(),
    user_id=shortstrs(),
    app_id=shortstrs(),
    cluster_id=shortstrs(),
)


@given(properties_)
def test_properties_round_trip(properties: Properties) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@given(st.binary(max_size=40))
def test_any_bytes_as_properties(data: bytes) -> None:
    try:
        decode_properties(data)
    except ValueError:
        pass
