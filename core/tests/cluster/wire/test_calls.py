"""The gateway wire checks what it is given: types, ranges, and records that contradict themselves."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.cluster.wire.calls import ARGUMENTS, DECODERS, KNOWN_BYTES, KNOWN_MAX, OURS, Checked, Sent, decode_call
from gantrymq.cluster.wire.codec import GatewayCode, encode_body, pack_sent, unpack_error
from gantrymq.cluster.wire.server import GatewaySession
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import DELAYED, PLAIN, Message
from gantrymq.remoting.codec import Command, FrameReader
from gantrymq.remoting.gateway_codes import FIRST_CODE, LAST_CODE
from tests.broker.test_port import Bench

NOTICES = {code for code in GatewayCode if code.name.startswith("NOTICE")}


def row(**changes: Any) -> list[Any]:
    """A row of SUBMIT that is fine but for `changes`."""
    message = Message(
        "t",
        b"body",
        props.encode([(props.TAGS, "a"), (props.UNIQ_KEY, "u"), (props.KEYS, "k l")]),
        "a",
        ("u", "k", "l"),
    )
    columns = dict(zip(Sent.__struct_fields__, pack_sent([message])[0], strict=True))
    return list((columns | changes).values())


def stored(bench: Bench) -> list[Message]:
    return [message for message in bench.store.log if message.topic == "t"]


class Gateway:
    """A connection that says what it likes."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.frames: list[bytes] = []
        self.session = GatewaySession(bench.broker, "10.0.0.9:1", self.frames.append)

    def ask(self, code: int, body: bytes) -> Command | None:
        self.session.handle(Command(code, None, body, 7))
        self.bench.quiet()
        answers = FrameReader().feed(b"".join(self.frames))
        self.frames.clear()
        return next((answer for answer in answers if answer.opaque == 7 and answer.is_response), None)

    def refusal(self, code: int, *arguments: Any) -> GantryError | None:
        answer = self.ask(code, encode_body(list(arguments)))
        assert answer is not None
        return unpack_error(answer.body, "") if answer.code else None


def test_every_call_has_its_arguments() -> None:
    bench = Bench()
    assert set(ARGUMENTS) == set(GatewayCode) - NOTICES == set(Gateway(bench).session._calls)


def test_what_a_gateway_sends_is_taken() -> None:
    gateway = Gateway(Bench())
    assert gateway.refusal(GatewayCode.SUBMIT, [row()], 0) is None
    (message,) = stored(gateway.bench)
    assert (message.tag, message.property(props.KEYS), message.body) == ("a", "k l", b"body")


@pytest.mark.parametrize(
    "changes",
    [
        {"properties": 1}, {"properties": None}, {"properties": "text"}, {"tag": 1}, {"tag": None}, {"tag": []},
        {"body": None}, {"body": 1}, {"queue_id": None}, {"queue_id": "0"}, {"queue_id": -2}, {"queue_id": 1 << 31},
        {"topic": 1}, {"topic": b"t"}, {"sharding_key": 1}, {"keys": [1, 2]}, {"keys": "u"}, {"born_ms": -1},
        {"born_ms": 1 << 63}, {"flag": 1 << 31}, {"sys_flag": -(1 << 31) - 1}, {"exchange": 1}, {"demand_route": None},
        {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, {"topic": "SCHEDULE_TOPIC_XXXX"},
        {"tag": "b"}, {"tag": ""}, {"keys": ["u", "k"]}, {"keys": ["u", "k", "other"]}, {"keys": []},
        {"sys_flag": -1}, {"sys_flag": 4}, {"sys_flag": 12}, {"sys_flag": 0x80},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_row_is_refused_and_nobody_else_notices(changes: dict[str, Any]) -> None:
    bench = Bench()
    gateway = Gateway(bench)
    answers: list[Any] = []
    bench.broker.submit([Message("t", b"neighbour", queue_id=0)], None, lambda token, result: answers.append(result))
    error = gateway.refusal(GatewayCode.SUBMIT, [row(), row(**changes)], 0)
    assert error is not None
    assert error.code in (ErrorCode.ILLEGAL_ARGUMENT, ErrorCode.NO_PERMISSION)
    assert answers == [[0]]
    assert [message.body for message in stored(bench)] == [b"neighbour"]


def test_widths_of_hosts_are_not_the_gateways_to_say() -> None:
    gateway = Gateway(Bench())
    assert gateway.refusal(GatewayCode.SUBMIT, [row(sys_flag=0x33)], 0) is None
    (message,) = stored(gateway.bench)
    assert message.sys_flag == 3


@pytest.mark.parametrize("code", [code for code in range(FIRST_CODE, LAST_CODE + 1) if code not in DECODERS])
def test_unknown_codes_are_refused(code: int) -> None:
    with pytest.raises(GantryError) as raised:
        decode_call(code, encode_body([]))
    assert raised.value.code is ErrorCode.NOT_SUPPORTED


def test_the_error_says_what_is_wrong() -> None:
    with pytest.raises(GantryError, match=r"SUBMIT cannot be read: Expected `str`, got `int`.*\[0\]\[0\]\[3\]"):
        decode_call(GatewayCode.SUBMIT, encode_body([[row(tag=1)], 0]))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=13) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=30,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(set(GatewayCode))), st.lists(ANYTHING, max_size=6), st.binary(max_size=30), st.booleans())
def test_no_call_costs_anybody_else_anything(code: int, arguments: list[Any], noise: bytes, raw: bool) -> None:
    bench = Bench()
    gateway = Gateway(bench)
    answers: list[Any] = []
    bench.broker.submit([Message("t", b"1", queue_id=0)], None, lambda token, result: answers.append(result))
    gateway.ask(code, noise if raw else encode_body(arguments))
    bench.broker.submit([Message("t", b"2", queue_id=0)], None, lambda token, result: answers.append(result))
    bench.quiet()
    assert answers == [[0], [1]]


def test_an_ordinary_row_is_decoded_as_it_was_packed(caplog: pytest.LogCaptureFixture) -> None:
    (rows, sent_in) = decode_call(GatewayCode.SUBMIT, encode_body([[row()], 3]))
    assert sent_in == 3
    assert pack_sent(Checked().messages_of(rows)) == [tuple(tuple(c) if isinstance(c, list) else c for c in row())]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("name", OURS)
def test_what_the_store_writes_behind_a_senders_properties_is_refused(name: str) -> None:
    properties = props.encode([(props.TAGS, "a"), (name, "x")])
    with pytest.raises(GantryError, match="are the broker's to write"):
        Checked().messages_of(
            decode_call(GatewayCode.SUBMIT, encode_body([[row(properties=properties, keys=[])], 3]))[0]
        )


PLAIN_TEXT = b"TAGS\x01a\x02ext\x01x\x02"


def message_of(checked: Checked, **changes: Any) -> Message:
    return checked.messages_of(decode_call(GatewayCode.SUBMIT, encode_body([[row(**changes)], 3]))[0])[0]


def test_properties_that_were_found_right_are_not_taken_for_those_of_another_row() -> None:
    checked = Checked()
    for _ in range(2):
        assert message_of(checked, properties=PLAIN_TEXT, keys=[]).tag == "a"
    with pytest.raises(GantryError, match="tag 'b' is not that"):
        message_of(checked, properties=PLAIN_TEXT, keys=[], tag="b")
    with pytest.raises(GantryError, match="the keys are not those"):
        message_of(checked, properties=PLAIN_TEXT, keys=["k"])
    with pytest.raises(GantryError, match="has bits that a gateway may not set"):
        message_of(checked, properties=PLAIN_TEXT, keys=[], sys_flag=1 << 30)
    with pytest.raises(GantryError, match="belongs to the broker"):
        message_of(checked, properties=PLAIN_TEXT, keys=[], topic="SCHEDULE_TOPIC_XXXX")


def test_what_is_delayed_is_so_each_time() -> None:
    checked = Checked()
    properties = PLAIN_TEXT + b"TIMER_DELAY_MS\x011000\x02"
    kinds = [message_of(checked, properties=text, keys=[]).kind for text in (properties, PLAIN_TEXT) * 2]
    assert kinds == [DELAYED, PLAIN, DELAYED, PLAIN]


def test_properties_that_are_kept_are_bounded() -> None:
    checked = Checked()
    for number in range(KNOWN_MAX + 10):
        message_of(checked, properties=PLAIN_TEXT + b"n\x01%d\x02" % number, keys=[])
        assert len(checked._known) <= KNOWN_MAX
    assert checked._known
    before = len(checked._known)
    message_of(checked, properties=PLAIN_TEXT + b"n\x01" + b"x" * KNOWN_BYTES + b"\x02", keys=[])
    message_of(checked)
    assert len(checked._known) == before  # neither one that is too long, nor one with keys


@pytest.mark.parametrize("text", ["UNIQ_KEY\x01u\x02", "KEYS\x01k\x02", "TAGS\x01a\x02KEYS\x01 k l \x02"])
def test_keys_that_the_row_does_not_say_are_refused(text: str) -> None:
    changes = {"properties": text.encode(), "keys": [], "tag": "a" if "TAGS" in text else ""}
    with pytest.raises(GantryError, match="the keys are not those"):
        Checked().messages_of(decode_call(GatewayCode.SUBMIT, encode_body([[row(**changes)], 3]))[0])
