"""The layout of a record: bytes worked out by hand, and round trips."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.model import properties as props
from gantrymq.model.message import Message
from gantrymq.store.log import record

GOLDEN = bytes.fromhex(
    "00000068"  # size 104 = 88 + 5 + 1 + 1 + 2 + 7
    "daa320a7"  # magic V1
    "3610a686"  # CRC-32 of "hello"
    "00000003"  # queue id
    "00000007"  # flag
    "0000000000000005"  # queue offset
    "00000000000000c8"  # physical offset 200
    "00000000"  # sysFlag
    "0000018bcfe56800"  # born 1700000000000
    "7f000001" "00002a9f"  # born host 127.0.0.1:10911
    "0000018bcfe56801"  # stored 1700000000001
    "0a000001" "00002a9f"  # store host 10.0.0.1:10911
    "00000002"  # reconsume times
    "0000000000000000"  # prepared offset
    "00000005" "68656c6c6f"  # body
    "01" "54"  # topic "T"
    "0007" "54414753014102"  # properties TAGS 0x01 A 0x02
)  # fmt: skip

FIELDS = inspect.signature(Message).parameters.keys() | {
    "born_host", "demand_route", "dispatch", "exchange", "flag", "kind", "lmq", "physical_offset", "prepared_offset", "queue_offset",
    "reconsume_times", "sharding_key", "size", "store_host", "store_ms", "sys_flag",
}  # fmt: skip
"""All of a message's (a compiled class has no `__slots__`)."""


def golden_message() -> Message:
    message = Message("T", b"hello", b"TAGS\x01A\x02", "A", (), 3, 1_700_000_000_000)
    message.flag = 7
    message.queue_offset = 5
    message.physical_offset = 200
    message.born_host = bytes.fromhex("7f00000100002a9f")
    message.store_host = bytes.fromhex("0a00000100002a9f")
    message.store_ms = 1_700_000_000_001
    message.reconsume_times = 2
    return message


def test_golden_record() -> None:
    assert record.encode(golden_message()) == GOLDEN
    message = record.decode(GOLDEN)
    expected = golden_message()
    expected.size = 104
    for name in FIELDS:
        assert getattr(message, name) == getattr(expected, name), name


def test_magic_numbers() -> None:
    assert record.MAGIC_V1 & 0xFFFFFFFF == 0xDAA320A7
    assert record.MAGIC_V2 & 0xFFFFFFFF == 0xDAA320AB
    assert record.blank(77) == bytes.fromhex("0000004dcbd43194")
    assert record.RECORD_SIZE_MIN == 91


def test_v2_topic_length_is_read() -> None:
    data = GOLDEN.replace(b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab").replace(b"hello\x01T", b"hello\x00\x01T")
    data = (105).to_bytes(4, "big") + data[4:]
    assert record.decode(data).topic == "T"


@pytest.mark.parametrize("place", range(len(GOLDEN)))
def test_a_wrong_byte_never_goes_unnoticed_where_it_matters(place: int) -> None:
    data = bytearray(GOLDEN)
    data[place] ^= 0xFF
    try:
        message = record.decode(bytes(data))
    except record.RecordError:
        return
    assert message.body == b"hello"


ODD = {
    (36, b"\x01"): "sysFlag 0x1",
    (37, b"\x80"): "sysFlag 0x80",
    (52, b"\x01"): "a host's port is above 65535",
    (53, b"\x01"): "a host's port is above 65535",
    (56, b"\x80"): "store time -",
    (57, b"\x01"): "store time 2",
    (58, b"\x10"): "store time 1",
    (68, b"\x01"): "a host's port is above 65535",
    (69, b"\xff"): "a host's port is above 65535",
    (76, b"\xff"): "prepared offset -",
    (77, b"\x01"): "prepared offset 2",
}
"""Byte and its new value, and how the answer begins."""


@pytest.mark.parametrize("head", [0, 0x10, 0x30])
@pytest.mark.parametrize(("place", "byte"), ODD)
def test_a_field_that_no_broker_writes(place: int, byte: bytes, head: int) -> None:
    message = Message("T", b"body", b"k\x01v\x02", queue_id=3)
    message.queue_offset, message.physical_offset, message.sys_flag, message.store_ms = 5, 1000, head, 1_700_000_000_000
    for name, bit in (("born_host", 0x10), ("store_host", 0x20)):
        setattr(message, name, bytes([9] * (16 if head & bit else 4)) + (40_000).to_bytes(4, "big"))
    data = record.encode(message)
    size = len(data)
    assert record.fault(data, size) == record.oddness(record.decode(data)) == ""
    assert record.is_at(data, size, 1000, b"T", 3, 5) is not bool(head)
    moved = 12 * ((place >= 52 and bool(head & 0x10)) + (place >= 68 and bool(head & 0x20)))
    odd = data[: place + moved] + byte + data[place + moved + 1 :]
    assert record.fault(odd, size).startswith(ODD[place, byte])
    assert record.oddness(record.decode(odd)) == record.fault(odd, size)
    assert not record.is_at(odd, size, 1000, b"T", 3, 5)


def test_zeros_in_properties_are_damage_from_four_on() -> None:
    for zeros, wrong in ((3, ""), (4, record.ZEROS_FOUND)):
        message = Message("T", b"bo\0\0\0\0dy", b"k\x01%b\x02" % bytes(zeros), queue_id=0)
        message.queue_offset = message.physical_offset = 0
        data = record.encode(message)
        assert record.fault(data, len(data)) == record.oddness(record.decode(data)) == wrong
        assert record.is_at(data, len(data), 0, b"T", 0, 0) is not bool(wrong)


@pytest.mark.parametrize("length", range(len(GOLDEN)))
def test_cut_off_record_is_refused(length: int) -> None:
    with pytest.raises(record.RecordError):
        record.decode(GOLDEN[:length])


texts = st.text(st.characters(blacklist_characters="\x00\x01\x02", blacklist_categories=("Cs",)), max_size=20)
pairs = st.dictionaries(texts.filter(bool), texts.filter(bool), max_size=5)


@given(
    body=st.binary(max_size=300), pairs=pairs, tag=texts, topic=st.text("abcXYZ_%", min_size=1, max_size=127),
    flags=st.sampled_from([0, 1, 0x10, 0x20, 0x30, 8]), numbers=st.tuples(*[st.integers(0, 2**31 - 1)] * 6),
    dispatch=st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, 10**12)), max_size=5),
)  # fmt: skip
def test_round_trip(
    body: bytes, pairs: dict[str, str], tag: str, topic: str, flags: int, numbers: tuple[int, ...],
    dispatch: list[tuple[int, int]],
) -> None:  # fmt: skip
    if tag:
        pairs[props.TAGS] = tag
    tag = pairs.get(props.TAGS, "")
    message = Message(topic, body, props.encode(pairs), tag, (), numbers[0], numbers[1])
    message.sys_flag = flags
    message.flag, message.queue_offset, message.physical_offset, message.store_ms = numbers[2:]
    message.born_host = b"b" * (20 if flags & 0x10 else 8)
    message.store_host = b"s" * (20 if flags & 0x20 else 8)
    if dispatch:
        names = ",".join(f"%LMQ%~{light:x}" for light, _ in dispatch)
        offsets = ",".join(str(offset) for _, offset in dispatch)
        message.dispatch = f"INNER_MULTI_DISPATCH\x01{names}\x02INNER_MULTI_QUEUE_OFFSET\x01{offsets}\x02".encode()
    message.size = record.record_size(message)
    data = record.encode(message)
    assert len(data) == message.size
    back = record.decode(b"xyz" + data + b"more", 3)
    for name in FIELDS:
        assert getattr(back, name) == getattr(message, name), name
    assert record.decode(memoryview(data)).body == body


def test_dispatch_pairs_in_the_middle_and_without_end_mark() -> None:
    own, dispatch = record.split_dispatch(
        b"A\x01b\x02INNER_MULTI_DISPATCH\x01%LMQ%x,%LMQ%~1z\x02C\x01d\x02INNER_MULTI_QUEUE_OFFSET\x017,8"
    )
    assert own == b"A\x01b\x02C\x01d\x02"
    assert record.dispatch_of(dispatch) == ([("%LMQ%x", 7), ("%LMQ%~1z", 8)], 0)


def test_damaged_dispatch_is_no_dispatch() -> None:
    assert record.dispatch_of(b"INNER_MULTI_DISPATCH\x01%LMQ%x\x02INNER_MULTI_QUEUE_OFFSET\x01seven\x02") == ([], 0)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_record_error_only(data: bytes) -> None:
    with pytest.raises(record.RecordError):
        record.decode(data)
