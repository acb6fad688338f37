"""Frames: every split, trailing bytes, round trips in both header forms, and what must be refused."""

import json
import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.model.limits import FRAME_BYTES_MAX
from gantrymq.remoting import codec
from gantrymq.remoting.codec import Command, FrameError, FrameReader, encode
from gantrymq.remoting.constants import BINARY_CODE_MAX, Language, RequestCode
from gantrymq.remoting.headers import (
    AckHeader,
    EndTransactionHeader,
    HeaderError,
    PopHeader,
    PullHeader,
    SendHeaderV2,
    parse,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
COMMANDS = st.builds(
    Command,
    code=st.integers(-1, BINARY_CODE_MAX),
    fields=st.dictionaries(TEXT, TEXT, max_size=6),
    body=st.binary(max_size=60),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(0, 3),
    remark=st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
    language=st.integers(0, 13),
    version=st.integers(0, 500),
)

# Written by hand from RocketMQ's source: name, frame without its length, command.
SEND_FIELDS = {"a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1700000000000",
               "h": "0", "i": "UNIQ_KEY\x01AB\x02TAGS\x01t\x02", "j": "0", "k": "false", "m": "false"}  # fmt: skip
JAVA_SEND = (
    b'{"code":310,"extFields":{"a":"PG","b":"T","c":"TBW102","d":"4","e":"2","f":"0","g":"1700000000000","h":"0",'
    b'"i":"UNIQ_KEY\\u0001AB\\u0002TAGS\\u0001t\\u0002","j":"0","k":"false","m":"false"},"flag":0,"language":"JAVA",'
    b'"opaque":7,"serializeTypeCurrentRPC":"JSON","version":479}'
)


def split_everywhere(data: bytes) -> list[list[Command]]:
    results = []
    for cut in range(len(data) + 1):
        reader = FrameReader()
        results.append(reader.feed(data[:cut]) + reader.feed(data[cut:]))
        assert reader.pending_bytes == 0
    return results


@pytest.mark.parametrize("binary", [False, True])
def test_split_at_every_byte(binary: bool) -> None:
    commands = [
        Command(11, {"topic": "T"}, b"", 1, language=0),
        Command(310, SEND_FIELDS, b"body", 2, remark="why"),
        Command(0, {}, b"x" * 9, -3, 1),
    ]
    data = b"".join(encode(command, binary) for command in commands)
    for result in split_everywhere(data):
        assert result == commands


@given(st.lists(COMMANDS, max_size=5), st.booleans(), st.lists(st.integers(1, 50), max_size=30))
def test_round_trip_in_any_chunks(commands: list[Command], binary: bool, chunks: list[int]) -> None:
    data = b"".join(encode(command, binary) for command in commands)
    reader, out, at = FrameReader(), [], 0
    for size in chunks:
        out += reader.feed(data[at : at + size])
        at += size
    out += reader.feed(data[at:])
    assert out == commands


def test_trailing_bytes_wait_for_the_rest() -> None:
    data = encode(Command(34, opaque=5))
    reader = FrameReader()
    assert [c.opaque for c in reader.feed(data + data[:11])] == [5]
    assert reader.pending_bytes == 11
    assert [c.opaque for c in reader.feed(data[11:])] == [5]


def test_large_frame_in_small_chunks_is_not_parsed_again_and_again() -> None:
    data = encode(Command(310, body=bytes(300_000)))
    reader, out = FrameReader(), []
    for at in range(0, len(data), 1000):
        out += reader.feed(data[at : at + 1000])
    assert len(out) == 1
    assert len(out[0].body) == 300_000


@pytest.mark.parametrize("typed", [False, True])
def test_java_send_frame(typed: bool) -> None:
    data = struct.pack(">II", 4 + len(JAVA_SEND) + 4, len(JAVA_SEND)) + JAVA_SEND + b"body"
    (command,) = FrameReader(typed=typed).feed(data)
    assert (command.code, command.opaque, command.language, command.version, command.body) == (
        310,
        7,
        0,
        479,
        b"body",
    )
    if typed:
        send = command.header
        assert isinstance(send, SendHeaderV2)
        assert (send.topic, send.queue_id, send.born_ms, send.properties) == (
            "T", 2, 1700000000000, "UNIQ_KEY\x01AB\x02TAGS\x01t\x02",
        )  # fmt: skip
        assert send == parse(SEND_FIELDS, SendHeaderV2)
    else:
        assert command.header is None
        assert command.fields == SEND_FIELDS
        again = encode(command)
        assert again == data


def test_typed_sends_fall_back_to_fields_when_something_is_missing() -> None:
    header = b'{"code":310,"extFields":{"b":"T","e":"two"},"flag":0,"language":"JAVA","opaque":7,"version":1}'
    (command,) = FrameReader(typed=True).feed(codec.frame(header))
    assert command.header is None
    assert command.fields == {"b": "T", "e": "two"}


def test_keys_in_any_order_and_unknown_keys() -> None:
    header = b'{"version":1,"x":[1],"opaque":9,"language":"KLINGON","extFields":null,"remark":null,"code":34}'
    (command,) = FrameReader(typed=True).feed(codec.frame(header))
    assert (command.code, command.opaque, command.language, command.fields) == (34, 9, Language.OTHER, {})


def test_numbers_and_nulls_in_fields_become_text() -> None:
    header = json.dumps({"code": 11, "opaque": 1, "extFields": {"a": 1, "b": True, "c": None, "d": "x"}}).encode()
    (command,) = FrameReader().feed(codec.frame(header))
    assert command.fields == {"a": "1", "b": "true", "d": "x"}


BAD = {
    "frame over the limit": struct.pack(">II", FRAME_BYTES_MAX - 3, 2),
    "limit seen in four bytes": struct.pack(">I", FRAME_BYTES_MAX - 3),
    "negative": b"\xff\xff\xff\xff\0\0\0\0",
    "shorter than its marker": struct.pack(">I", 3),
    "header longer than frame": struct.pack(">II", 6, 9) + b"{}",
    "unknown serialize type": struct.pack(">II", 6, 2 << 24 | 2) + b"{}",
    "no JSON": codec.frame(b"{]"),
    "JSON of another shape": codec.frame(b"[1]"),
    "no code": codec.frame(b'{"opaque":1}'),
    "code too large": codec.frame(b'{"code":99999999999,"opaque":1}'),
    "not UTF-8": codec.frame(b'{"code":1,"remark":"\xff"}'),
    "deep nesting": codec.frame(b'{"code":1,"x":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "binary: short": codec.frame(b"\0\x01", kind=1),
    "binary: remark too long": codec.frame(struct.pack(">hBhiii", 1, 0, 0, 0, 0, 99) + bytes(8), kind=1),
    "binary: remark negative": codec.frame(struct.pack(">hBhiii", 1, 0, 0, 0, 0, -1) + bytes(8), kind=1),
    "binary: fields too long": codec.frame(struct.pack(">hBhiiii", 1, 0, 0, 0, 0, 0, 9) + bytes(8), kind=1),
    "binary: fields negative": codec.frame(struct.pack(">hBhiiii", 1, 0, 0, 0, 0, 0, -9) + bytes(8), kind=1),
    "binary: name too long": codec.frame(struct.pack(">hBhiiiih", 1, 0, 0, 0, 0, 0, 8, 90) + bytes(6), kind=1),
    "binary: value too long": codec.frame(struct.pack(">hBhiiiihi", 1, 0, 0, 0, 0, 0, 6, 0, 7), kind=1),
    "binary: not UTF-8": codec.frame(struct.pack(">hBhiii", 1, 0, 0, 0, 0, 1) + b"\xff" + bytes(4), kind=1),
    "binary: too many fields": codec.frame(
        struct.pack(">hBhiiii", 1, 0, 0, 0, 0, 0, 1025 * 8)
        + b"".join(struct.pack(">h2si", 2, bytes([65 + i // 64, 65 + i % 64]), 0) for i in range(1025)),
        kind=1,
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed(name: str) -> None:
    with pytest.raises(FrameError) as info:
        FrameReader(typed=True).feed(BAD[name])
    assert str(info.value)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"GET / HTTP/1.1\r\n", "like HTTP"),
        (b"HTTP/1.1 400 Bad Request\r\n", "answer of an HTTP server"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (b"AMQP\0\0\x09\x01", "AMQP"),
    ],
)
def test_other_protocols_are_named(data: bytes, what: str) -> None:
    with pytest.raises(FrameError, match=what):
        FrameReader().feed(data)


def test_commands_before_a_bad_frame_are_not_lost() -> None:
    good = encode(Command(34, opaque=5))
    with pytest.raises(FrameError) as info:
        FrameReader().feed(good + codec.frame(b"nonsense"))
    assert [command.opaque for command in info.value.commands] == [5]


@settings(max_examples=300)
@given(st.binary(max_size=200), st.booleans())
def test_fuzz_never_raises_anything_else(data: bytes, typed: bool) -> None:
    try:
        FrameReader(typed).feed(data)
    except FrameError:
        pass


@settings(max_examples=300)
@given(COMMANDS, st.booleans(), st.data())
def test_fuzz_flipped_bytes(command: Command, binary: bool, data: st.DataObject) -> None:
    frame = bytearray(encode(command, binary))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(4, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        FrameReader(typed=True).feed(bytes(frame))
    except FrameError:
        pass


def test_pop_codes_need_the_json_header() -> None:
    command = Command(int(RequestCode.POP_MESSAGE))
    with pytest.raises(ValueError, match="16 bits"):
        encode(command, binary=True)
    assert FrameReader().feed(encode(command)) == [command]


def test_frame_over_the_limit_is_not_written() -> None:
    with pytest.raises(ValueError, match="at most"):
        encode(Command(310, body=bytes(FRAME_BYTES_MAX)))
    body = bytes(FRAME_BYTES_MAX - 8 - len(codec.encode_header(Command(310))))
    assert len(FrameReader().feed(encode(Command(310, body=body)))) == 1


@given(st.integers(0, 2**62), st.integers(0, 1000), st.integers(0, 2**62), st.integers(-(2**31), 2**31 - 1))
def test_send_response_template(physical: int, queue: int, offset: int, opaque: int) -> None:
    responses = codec.SendResponses(b"\x7f\0\0\x01\0\0\x2a\x9f", 'a"%d')
    (command,) = FrameReader().feed(responses.frame(opaque, physical, queue, offset))
    assert command.is_response
    assert command.opaque == opaque
    assert command.fields == {
        "MSG_REGION": 'a"%d', "TRACE_ON": "true", "msgId": f"7F00000100002A9F{physical:016X}",
        "queueId": str(queue), "queueOffset": str(offset),
    }  # fmt: skip


PULL_FIELDS = {"consumerGroup": "G", "topic": "T", "queueId": "3", "queueOffset": "12345", "maxMsgNums": "32", "sysFlag": "4",
               "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
               "maxMsgBytes": "2147483647"}  # fmt: skip
VALUES = [
    "",
    "0",
    " 1",
    "1 ",
    "+1",
    "-1",
    "1.0",
    "1.5",
    "1e3",
    "true",
    "0x1",
    "007",
    "9" * 30,
    "\u0661",
    None,
    True,
    1,
    1.0,
    1.5,
    -1,
    10**30,
]


POP_FIELDS = {"consumerGroup": "G", "topic": "T", "queueId": "3", "maxMsgNums": "32", "invisibleTime": "60000", "pollTime": "15000",
              "bornTime": "1700000000000", "initMode": "0", "expType": "TAG", "exp": "*", "order": "false", "attemptId": "a"}  # fmt: skip


def read_header(command: Command, of: type[msgspec.Struct]) -> msgspec.Struct | str:
    if isinstance(command.header, PopHeader):
        command.header.order = bool(command.header.order)  # null is false
    try:
        return codec.header_of(command, of)
    except HeaderError as error:
        return str(error)


ACK_FIELDS = {
    "consumerGroup": "G",
    "topic": "T",
    "queueId": "3",
    "extraInfo": "5 1700000000000 60000 0 0 broker-a 3 7",
    "offset": "7",
}
END_FIELDS = {"producerGroup": "G", "tranStateTableOffset": "7", "commitLogOffset": "99", "commitOrRollback": "8", "fromTransactionCheck": "false",
              "msgId": "AB", "transactionId": "AB", "topic": "T"}  # fmt: skip
PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


@pytest.mark.parametrize(
    ("name", "whole", "codes", "of"),
    [
        *[(name, PULL_FIELDS, PULLS, PullHeader) for name in (*PULL_FIELDS, "unknown")],
        *[(name, POP_FIELDS, (RequestCode.POP_MESSAGE,), PopHeader) for name in (*POP_FIELDS, "unknown")],
        *[(name, ACK_FIELDS, (RequestCode.ACK_MESSAGE,), AckHeader) for name in (*ACK_FIELDS, "unknown")],
        *[
            (name, END_FIELDS, (RequestCode.END_TRANSACTION,), EndTransactionHeader)
            for name in (*END_FIELDS, "unknown")
        ],
    ],
)
def test_requests_mean_the_same_read_in_one_pass(
    name: str, whole: dict[str, str], codes: tuple[int, ...], of: type[msgspec.Struct]
) -> None:
    for fields in (
        {key: whole[key] for key in whole if key != name},
        *[whole | {name: value} for value in VALUES],
    ):
        for code in codes:
            header = {
                "code": int(code),
                "extFields": fields,
                "flag": 2,
                "language": "GO",
                "opaque": 5,
                "remark": "r",
                "version": 9,
            }
            data = codec.frame(json.dumps(header, separators=(",", ":")).encode(), b"body")
            (general,) = FrameReader().feed(data)
            (typed,) = FrameReader(typed=True).feed(data)
            assert read_header(typed, of) == read_header(general, of)
            fields_of_both = [
                (c.code, c.opaque, c.flag, c.language, c.remark, c.version, c.body) for c in (typed, general)
            ]
            assert fields_of_both[0] == fields_of_both[1]


@pytest.mark.parametrize(
    ("code", "whole", "of"),
    [
        (310, SEND_FIELDS, SendHeaderV2), (320, SEND_FIELDS, SendHeaderV2), (11, PULL_FIELDS, PullHeader), (361, PULL_FIELDS, PullHeader),
        (200050, POP_FIELDS, PopHeader), (200051, ACK_FIELDS, AckHeader), (37, END_FIELDS, EndTransactionHeader),
    ],
)  # fmt: skip
def test_a_request_is_read_in_one_pass_only_where_it_is_one(
    code: int, whole: dict[str, str], of: type[msgspec.Struct]
) -> None:
    text = json.dumps({"code": code, "extFields": whole, "opaque": 1}, separators=(",", ":"))
    (command,) = FrameReader(typed=True).feed(codec.frame(text.encode()))
    assert type(command.header) is of
    assert command.fields == {}
    for other in (
        text[:-1] + ',"code":12}',
        text[:-1] + f',"code":{200050 if code != 200050 else 11}}}',
        text.replace('"opaque":1', '"opaque":-1'),
        text.replace('"code"', ' "code"'),
    ):
        (command,) = FrameReader(typed=True).feed(codec.frame(other.encode()))
        assert (command.header, command.fields) == (None, whole)
