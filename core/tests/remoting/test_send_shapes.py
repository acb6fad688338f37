"""A header that is decoded by its likeness says what the general way says, or is left to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.model.message import Message
from gantrymq.remoting import codec
from gantrymq.remoting.codec import Command, FrameReader, encode
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.headers import SendHeaderV2, parse
from gantrymq.remoting.send_shapes import (
    HEADER_BYTES_MAX,
    QUEUE_IDS,
    SHAPES_MAX,
    SHAPES_PER_START,
    START,
    SendShapes,
    header_of,
)
from tests.remoting.bench import Bench, send

FIELDS = {
    "a": "group", "b": "topic", "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "1700000000000", "h": "0",
    "i": "UNIQ_KEY\x01AB12\x02TAGS\x01t\x02", "j": "0", "k": "false", "m": "false",
}  # fmt: skip
BOTH = pytest.mark.parametrize("binary", [False, True])


def frame_of(fields: dict[str, str], opaque: int = 7, binary: bool = False, flag: int = 0) -> bytes:
    return encode(Command(310, fields, b"body", opaque, flag, language=0), binary)


def is_alike(first: bytes, second: bytes) -> bool:
    """Whether a reader that had `first` tells `second` from it."""
    reader = FrameReader(typed_sends=True)
    reader.read(first)
    (found,) = reader.read(second)
    return not isinstance(found, Command)


def stored(bench: Bench, queue: int = 0) -> list[Message]:
    units = bench.store.units("T", queue, 0, 1000)
    return [message for message in bench.store.get_many([(at, size) for at, size, _ in units]) if message is not None]


@pytest.fixture(autouse=True)
def forget() -> None:
    """What other tests sent."""
    codec._send_shapes.forget()


@BOTH
def test_queue_birth_unique_key_and_opaque_may_differ(binary: bool) -> None:
    other = FIELDS | {"e": "1", "g": "1799999999999", "i": "UNIQ_KEY\x01cd34\x02TAGS\x01t\x02"}
    assert is_alike(frame_of(FIELDS, 7, binary), frame_of(other, 9, binary))
    reader = FrameReader(typed_sends=True)
    reader.read(frame_of(FIELDS, 7, binary))
    (command,) = reader.feed(frame_of(other, 9, binary))
    assert command.send == parse(other, SendHeaderV2)
    assert (command.opaque, command.body, command.code, command.flag) == (9, b"body", 310, 0)
    assert (command.language, command.version) == (0, codec.VERSION)


@BOTH
@pytest.mark.parametrize("name", [name for name in FIELDS if name not in "eg"])
def test_any_other_difference_goes_the_general_way(name: str, binary: bool) -> None:
    value = FIELDS[name]
    other = FIELDS | {name: value[:-1] + chr(ord(value[-1]) + 1)}
    assert not is_alike(frame_of(FIELDS, 7, binary), frame_of(other, 7, binary))


@BOTH
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("e", "-1"),
        ("e", " 1"),
        ("e", "1_"),
        ("e", "01"),
        ("g", "170000000000_"),
        ("i", "UNIQ_KEY\x01A_12\x02TAGS\x01t\x02"),
    ],
)
def test_values_that_may_mean_more_go_the_general_way(name: str, value: str, binary: bool) -> None:
    two = FIELDS | {"e": "10"}
    assert is_alike(frame_of(two, 7, binary), frame_of(two | {"e": "11"}, 7, binary))
    assert not is_alike(frame_of(two, 7, binary), frame_of(two | {name: value}, 7, binary))


@pytest.mark.parametrize("opaque", [b"07", b" 7", b"7 ", b"-7", b"1."])
def test_an_opaque_that_is_no_plain_number_goes_the_general_way(opaque: bytes) -> None:
    two = frame_of(FIELDS, 17)
    assert is_alike(two, frame_of(FIELDS, 18))
    reader = FrameReader(typed_sends=True)
    reader.read(two)
    assert reader.read(two[:-1]) == []
    odd = two.replace(b'"opaque":17', b'"opaque":' + opaque)
    try:
        fresh: Any = FrameReader().feed(odd)[0].opaque
    except codec.FrameError:
        fresh = None
    reader = FrameReader(typed_sends=True)
    reader.read(two)
    try:
        assert reader.feed(odd)[0].opaque == fresh
    except codec.FrameError:
        assert fresh is None


def test_an_opaque_beyond_32_bits_is_refused_as_ever() -> None:
    reader = FrameReader(typed_sends=True)
    reader.read(frame_of(FIELDS, 2_000_000_000))
    assert is_alike(frame_of(FIELDS, 2_000_000_000), frame_of(FIELDS, 2_000_000_001))
    with pytest.raises(codec.FrameError, match="32-bit"):
        reader.read(frame_of(FIELDS, 2_000_000_000).replace(b"2000000000", b"3000000000"))


@BOTH
def test_one_way_sends_and_batches_are_not_learned(binary: bool) -> None:
    assert not is_alike(frame_of(FIELDS, 7, binary, flag=2), frame_of(FIELDS, 8, binary, flag=2))
    batch = encode(Command(320, FIELDS, b"body", 7, language=0), binary)
    assert not is_alike(batch, batch)


@BOTH
@pytest.mark.parametrize(
    "more",
    [{"i": "TAGS\x01t\x02"}, {"i": "UNIQ_KEY\x01A\x02UNIQ_KEY\x01B\x02"}, {"i": ""}, {"b": "t" * HEADER_BYTES_MAX}],
)
def test_headers_that_are_not_worth_it_or_not_clear_are_not_learned(more: dict[str, str], binary: bool) -> None:
    frame = frame_of(FIELDS | more, 7, binary)
    assert not is_alike(frame, frame)


def test_a_field_that_stands_twice_or_elsewhere_is_not_learned() -> None:
    header = frame_of(FIELDS)[8:-4]
    twice = header.replace(b'"e":"3",', b'"e":"9","e":"3",')
    elsewhere = header.replace(b'"e":"3",', b"").replace(b'"flag"', b'"x":{"e":"3"},"flag"')
    spaced = header.replace(b'"e":"3",', b'"e": "3",').replace(b'"flag"', b'"x":{"e":"3"},"flag"')
    for odd in (twice, elsewhere, spaced):
        frame = codec.frame(odd, b"body")
        reader = FrameReader(typed_sends=True)
        assert all(isinstance(reader.read(frame)[0], Command) for _ in range(4))


def test_the_opaque_may_stand_before_the_fields_but_not_among_them() -> None:
    header = frame_of(FIELDS, 17)[8:-4]
    for place, alike in ((b'"extFields"', True), (b'"f":"0"', False)):
        moved = header.replace(b'"opaque":17,', b"").replace(place, b'"opaque":17,' + place, 1)
        frame = codec.frame(moved, b"body")
        reader = FrameReader(typed_sends=True)
        found = reader.read(frame) + reader.read(frame.replace(b'"opaque":17', b'"opaque":18'))
        assert isinstance(found[1], Command) is not alike
        if alike:
            assert codec.as_command(found[1]).opaque == 18


@BOTH
def test_two_tags_of_one_producer_are_both_known(binary: bool) -> None:
    frames = [frame_of(FIELDS | {"i": f"UNIQ_KEY\x01AB12\x02TAGS\x01{tag}\x02"}, 7, binary) for tag in "xyz"]
    reader = FrameReader(typed_sends=True)
    for frame in frames[:2]:
        reader.read(frame)
    assert all(not isinstance(reader.read(frame)[0], Command) for frame in frames[:2] * 2)
    assert SHAPES_PER_START == 2
    other = FrameReader(typed_sends=True)
    other.read(frames[2])
    assert not isinstance(other.read(frames[1])[0], Command)
    assert isinstance(FrameReader(typed_sends=True).read(frames[0])[0], Command)  # the oldest is forgotten


def test_a_sender_whose_headers_all_differ_is_learned_ever_less_often() -> None:
    reader = FrameReader(typed_sends=True)
    for number in range(64):
        (found,) = reader.read(frame_of(FIELDS | {"i": f"UNIQ_KEY\x01AB12\x02KEYS\x01{number:06}\x02"}, 7))
        assert isinstance(found, Command)
    ((shape, *_),) = [shapes[-1:] for shapes in codec._send_shapes._starts.values()]
    assert shape.after == "\x02KEYS\x01000063\x02"  # the 64th


def test_shapes_are_bounded() -> None:
    assert SHAPES_MAX == 1024
    known = SendShapes()
    for number in range(SHAPES_MAX + 2):
        frame = frame_of(FIELDS | {"a": f"group{number:04}"})
        header = frame[8:-4]
        send = parse(FIELDS | {"a": f"group{number:04}"}, SendHeaderV2)

        def decode(probe: bytes) -> tuple[SendHeaderV2 | None, int]:
            command = codec._decode_typed_send(probe, b"")
            assert command is not None
            return command.send, command.opaque

        known.learn(len(header), header, send, (0, 0), decode)
    assert len(known._starts) == 2
    assert len(QUEUE_IDS) == 1024
    assert START.stop < HEADER_BYTES_MAX


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("more", "rest"),
    [
        ({}, "TAGS\x01red\x02"),
        ({}, "TAGS\x01red"),
        ({"f": "1", "h": "5", "j": "2"}, "WAIT\x01true\x02KEYS\x01k1 k2\x02own\x01\u00fc\x02"),
        ({}, "_own\x01x\x02"),
        ({}, "__SHARDINGKEY\x01s\x02"),
        ({}, "DELAY\x010\x02"),
        ({}, "POP_CK\x01x\x02"),
    ],
)
def test_sends_that_are_like_an_earlier_one_are_stored_like_it(
    bench: Bench, binary: bool, more: dict[str, str], rest: str
) -> None:
    link = bench.connect("[::1]:99" if more else "127.0.0.1:50000")
    for number in range(4):
        text = f"UNIQ_KEY\x01ABC{number}\x02{rest}"
        answer = send(link, b"body", text, opaque=number + 1, e=str(number), binary=binary, **more)
        assert (answer.code, answer.fields["queueId"]) == (0, str(number))
        assert len(bench.store.query("T", f"ABC{number}", 10, 0, 1 << 60)) == 1
    first, *others = [stored(bench, queue=number)[0] for number in range(4)]
    for number, message in enumerate(others, 1):
        for name in (
            "body",
            "tag",
            "born_host",
            "born_ms",
            "flag",
            "sys_flag",
            "reconsume_times",
            "sharding_key",
            "topic",
        ):
            assert getattr(message, name) == getattr(first, name)
        assert message.properties == first.properties.replace(b"ABC0", b"ABC%d" % number)


@pytest.mark.parametrize("binary", [False, True])
def test_what_changed_of_a_topic_counts_for_sends_like_earlier_ones(bench: Bench, binary: bool) -> None:
    link = bench.connect()
    text = "UNIQ_KEY\x01ABC\x02"
    for number in range(3):
        assert send(link, b"", text, opaque=number + 1, binary=binary).code == 0
    assert send(link, b"", text, opaque=8, e="9", binary=binary).code == Answer.INVALID_PARAMETER
    bench.broker.topics.topics["T"].takes = "DELAY"
    refused = send(link, b"", text, opaque=9, binary=binary)
    assert refused.code != 0
    assert "DELAY" in (refused.remark or "")
    assert len(stored(bench)) == 3
    bench.broker.delete_topic("T")
    bench.turn.run_until_quiet()
    bench.broker.topics_config = replace(bench.broker.topics_config, auto_create=False)
    assert send(link, b"", text, opaque=9, binary=binary).code == Answer.TOPIC_NOT_EXIST


@pytest.mark.parametrize("binary", [False, True])
def test_sends_like_earlier_ones_are_refused_as_any(bench: Bench, binary: bool) -> None:
    link = bench.connect()
    text = "UNIQ_KEY\x01ABC\x02"
    for number in range(3):
        assert send(link, b"", text, opaque=number + 1, binary=binary).code == 0
    bench.broker.full = "no room"
    refused = send(link, b"", text, opaque=9, binary=binary)
    assert (refused.code, refused.opaque) == (Answer.SERVICE_NOT_AVAILABLE, 9)


VALUES = st.fixed_dictionaries(
    {
        "a": st.sampled_from(["g", "group", "other"]), "b": st.sampled_from(["t", "topic", "\u00fcber"]), "c": st.just("TBW102"),
        "d": st.sampled_from(["4", "8"]), "e": st.sampled_from(["0", "3", "12", "-1", "x", ""]), "f": st.sampled_from(["0", "1"]),
        "g": st.sampled_from(["1700000000000", "0", "9" * 19, "x"]), "h": st.sampled_from(["0", "7"]),
        "i": st.sampled_from(["", "a\x01b\x02", "UNIQ_KEY\x01A1\x02", "UNIQ_KEY\x01B2\x02", "UNIQ_KEY\x01B2\x02TAGS\x01\u00e9\"\x02",
                              "UNIQ_KEY\x01C3\x02TAGS\x01\u00e9\"\x02", "a\x01\"e\":\"3\"\x02UNIQ_KEY\x01B2\x02", "UNIQ_KEY\x01\u00e9\x02"]),
    },
    optional={"j": st.sampled_from(["0", "2"]), "l": st.just("16"), "m": st.sampled_from(["true", "false"]), "n": st.just("b")},
)  # fmt: skip


@BOTH
@given(st.lists(st.tuples(VALUES, st.integers(0, 2**31 - 1)), min_size=2, max_size=12), st.booleans())
def test_a_reader_gives_what_a_fresh_one_gives(
    binary: bool, many: list[tuple[dict[str, str], int]], backwards: bool
) -> None:
    reader = FrameReader(typed_sends=True)
    for fields, opaque in many:
        if backwards:
            fields = dict(reversed(fields.items()))
        data = frame_of(fields, opaque, binary)
        for _ in range(2):
            (command,) = reader.feed(data)
            (general,) = FrameReader().feed(data)
            try:
                expected: SendHeaderV2 | None = parse(general.fields, SendHeaderV2)
            except ValueError:
                expected = None
            assert command.send == expected
            assert (command.code, command.opaque, command.body) == (310, opaque, b"body")
            assert (command.flag, command.language, command.version) == (general.flag, 0, general.version)


@pytest.mark.parametrize(
    ("more", "planned"),
    [
        ("TRAN_MSG\x01true\x02PGROUP\x01g\x02", True),
        ("TRAN_MSG\x01true\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x018\x02", True),
        ("DELAY\x013\x02KEYS\x01k1 k2\x02", True),
        ("TIMER_DELAY_MS\x01500\x02MY_NAME\x01x\x02", True),
        ("TIMER_DELIVER_MS\x011900000000000\x02", True),
        ("TRAN_MSG\x01fals\x02", False),
        ("MY_NAME\x01x\x02", False),
        ("DELAY\x010\x02", False),
        ("DELAY\x013\x02__SHARDINGKEY\x01s\x02", False),
        ("DELAY\x013\x02POP_CK\x011 2\x02", False),
        ("TRAN_MSG\x01true\x02INNER_MULTI_DISPATCH\x01%LMQ%x\x02", False),
        ("TIMER_DELAY_MS\x01500\x02GANTRY_DISPATCH_MORE\x011\x02", False),
        ("TIMER_DELAY_MS\x01500\x02REPLY_TO_CLIENT\x01c\x02", False),
        ("TIMER_DELAY_MS\x01500\x02_SYS_MSG_PRIORITY_\x011\x02", False),
    ],
)
def test_messages_that_wait_elsewhere_are_built_as_the_general_way_builds_them(
    bench: Bench, more: str, planned: bool
) -> None:
    send(bench.connect(), b"makes the topic")
    sends, host = bench.doors.sends, bytes(8)
    reader = FrameReader(typed_sends=True)
    flag = "4" if "true" in more else "0"
    fields = [FIELDS | {"b": "T", "f": flag, "i": f"UNIQ_KEY\x01u{n}\x02TAGS\x01t\x02{more}"} for n in range(4)]
    reader.read(frame_of(fields[0]))
    for row in fields[1:]:
        (found,) = reader.read(frame_of(row))
        assert isinstance(found, tuple)
        sends.aside = False
        message = sends.message_like(found, host, 0)
        assert sends.aside is (message.intake != 0)
        general = sends.message(header_of(found), b"body", host, 0)
        for name in dir(general):
            if not name.startswith("_") and not callable(getattr(general, name)):
                assert getattr(message, name) == getattr(general, name), name
        assert (found[0].plan is not None) is planned
