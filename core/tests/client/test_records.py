"""Decoding stored records one by one."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.tests.client.fake_cluster import make_record
from gantrymq.client import records
from gantrymq.client.records import decode_records, inflate, readable_records
from gantrymq.model import sysflag
from gantrymq.model.errors import ErrorCode, GantryError

V6 = bytes(15) + b"\1" + (9876).to_bytes(4, "big")


@given(
    st.text(st.sampled_from("abc_%"), min_size=1, max_size=127),
    st.binary(max_size=50),
    st.dictionaries(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "ö"]), st.text("xyz ", min_size=1)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_round_trip(
    topic: str, body: bytes, pairs: dict[str, str], second: bool, born_v6: bool, store_v6: bool
) -> None:
    properties = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()
    hosts = {
        "born_host": V6 if born_v6 else b"\x0a\0\0\1\0\0\0\5",
        "store_host": V6 if store_v6 else b"\x0a\0\0\2\0\0\x2a\x9f",
    }
    record = make_record(
        topic, 7, 2**40, body, properties, physical=2**33, born_ms=5, store_ms=6, second=second, **hosts
    )
    first, message = decode_records(record + record, "b")
    assert repr(first) == repr(message)
    assert (message.topic, message.broker, message.queue_id, message.queue_offset) == (topic, "b", 7, 2**40)
    assert (message.body, message.physical_offset, message.born_ms, message.store_ms) == (body, 2**33, 5, 6)
    assert message.property_map() == pairs
    assert (message.tag, message.keys) == (pairs.get("TAGS", ""), pairs.get("KEYS", ""))
    assert message.born_host == ("[::1]:9876" if born_v6 else "10.0.0.1:5")
    assert message.store_host == ("[::1]:9876" if store_v6 else "10.0.0.2:10911")
    assert len(message.offset_message_id) == (56 if store_v6 else 32)
    assert message.message_id == pairs.get("UNIQ_KEY", message.offset_message_id)


def test_the_stores_own_properties_are_hidden() -> None:
    properties = b"a\x01b\x02INNER_MULTI_DISPATCH\x01%LMQ%~1\x02INNER_MULTI_QUEUE_OFFSET\x010\x02"
    (message,) = decode_records(make_record("t", 0, 0, b"", properties))
    assert message.property_map() == {"a": "b"}


@given(st.binary(max_size=200), st.data())
def test_damage_is_named(noise: bytes, data: st.DataObject) -> None:
    record = bytearray(make_record("topic", 0, 0, b"body", b"a\x01b\x02"))
    for _ in range(data.draw(st.integers(0, 3))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    errors: list[GantryError] = []
    for block in (noise, bytes(record), bytes(record[:-1]), bytes(record) + noise):
        try:
            decode_records(block)
        except GantryError as caught:
            errors.append(caught)
    assert all(error.code is ErrorCode.MESSAGE_ILLEGAL and error.text.startswith("byte ") for error in errors)


def test_bodies_are_inflated_up_to_a_limit() -> None:
    packed = zlib.compress(bytes(1000))
    for flag in (sysflag.COMPRESSED, sysflag.COMPRESSED | sysflag.COMPRESSION_ZLIB):
        (message,) = decode_records(make_record("t", 0, 0, packed, sys_flag=flag))
        assert message.body == bytes(1000)
        assert message.raw_body == packed
        assert inflate(packed, flag, 1000) == bytes(1000)
        with pytest.raises(GantryError, match="inflates to more than 999 bytes") as caught:
            inflate(packed, flag, 999)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        with pytest.raises(GantryError, match="cut short"):
            inflate(packed[:-4], flag)
        with pytest.raises(GantryError, match="broken"):
            inflate(b"x" + packed, flag)
    with pytest.raises(GantryError, match="compression type 7 is unknown"):
        inflate(packed, sysflag.COMPRESSED | sysflag.COMPRESSION_MASK)


@pytest.mark.parametrize(("codec", "flag"), [("lz4", sysflag.COMPRESSION_LZ4), ("zstd", sysflag.COMPRESSION_ZSTD)])
def test_other_compressions(codec: str, flag: int) -> None:
    pa = pytest.importorskip("pyarrow")
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, codec) as stream:
        stream.write(bytes(1000))
    packed = out.getvalue().to_pybytes()
    assert inflate(packed, sysflag.COMPRESSED | flag) == bytes(1000)
    with pytest.raises(GantryError, match="10 bytes") as caught:
        inflate(packed, sysflag.COMPRESSED | flag, 10)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(GantryError) as caught:
        inflate(b"no such thing", sysflag.COMPRESSED | flag)
    assert caught.value.code is ErrorCode.MESSAGE_ILLEGAL


def test_the_limit_is_above_what_a_broker_takes() -> None:
    from gantrymq.model.limits import BODY_BYTES_CEILING

    assert records.INFLATED_BYTES_MAX >= 2 * BODY_BYTES_CEILING


def test_a_record_that_cannot_be_read_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    good = [make_record("t", 0, number, b"%d" % number) for number in range(3)]
    magic = good[1][:4] + b"abcd" + good[1][8:]
    found = readable_records(good[0] + magic + good[2], "b", "t/b/0")
    assert [message.body for message in found] == [b"0", b"2"]
    assert "t/b/0: the record at queue offset 1 cannot be read" in caplog.text
    caplog.clear()
    endless = b"\xff" * 4 + good[1][4:]
    assert [message.body for message in readable_records(good[0] + endless + good[2], "b", "t/b/0")] == [b"0"]
    assert f"byte {len(good[0])} of an answer is no record" in caplog.text


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    readable_records(data, "b", "t/b/0")


def test_a_body_that_does_not_fit_its_crc_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    good = [make_record("t", 0, number, b"body%d" % number) for number in range(3)]
    data = good[0] + good[1].replace(b"body1", b"bodyX") + good[2]
    assert [message.body for message in decode_records(data)] == [b"body0", b"bodyX", b"body2"]
    with pytest.raises(GantryError, match="CRC of the body"):
        decode_records(data, check_crc=True)
    assert [message.body for message in readable_records(data, "b", "t/b/0", check_crc=True)] == [b"body0", b"body2"]
    assert "t/b/0: the record at queue offset 1 cannot be read and is left out" in caplog.text
    assert len(decode_records(b"".join(good), check_crc=True)) == 3
