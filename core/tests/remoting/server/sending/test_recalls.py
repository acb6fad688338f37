"""Delayed sends over the wire, and their recall."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from gantrymq.broker.config import TimerConfig
from gantrymq.model.message import LOOPBACK_HOST
from gantrymq.remoting.codec import Command, encode
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.server.sending.recalls import ILLEGAL_OPERATION, Handle, parse_handle
from gantrymq.store.schedule import TIMER_TOPIC
from tests.remoting.bench import TOPIC, Bench, answers, ask, pull, send, send_frame

NOW = 1_700_000_000_000


def wait(bench: Bench, ms: int) -> None:
    for _ in range(0, ms, 50):
        bench.wheel.advance(50)
        bench.turn.run_until_quiet()


def props(**pairs: Any) -> str:
    return "".join([f"{name}\x01{value}\x02" for name, value in pairs.items()])


def timer(link: Any, body: bytes, delay_ms: int = 60_000, unique: str = "U1", **fields: Any) -> Command:
    return send(link, body, props(UNIQ_KEY=unique, TIMER_DELIVER_MS=NOW + delay_ms), **fields)


def recall(link: Any, handle: str, topic: str = TOPIC) -> Command:
    return ask(link, RequestCode.RECALL_MESSAGE, producerGroup="PG", topic=topic, recallHandle=handle)


def test_the_answer_to_a_timer_has_rocketmqs_handle(bench: Bench) -> None:
    answer = timer(bench.connect(), b"x", 2_500, e=3)
    assert answer.code == ResponseCode.SUCCESS
    words = base64.urlsafe_b64decode(answer.fields["recallHandle"]).decode().split(" ")
    assert words == ["v1", TOPIC, "broker-a", str(NOW + 2_001), "U1"]
    assert answer.fields["queueId"] == "3"
    assert answer.fields["queueOffset"] == "0"
    position = bench.store.units(TIMER_TOPIC, 0, 0, 1)[0][0]
    assert answer.fields["msgId"] == f"{(LOOPBACK_HOST[:4] + (10911).to_bytes(4, 'big')).hex().upper()}{position:016X}"


@pytest.mark.parametrize("code", [10, 310])
@pytest.mark.parametrize("binary", [False, True])
def test_every_kind_of_send_can_wait(bench: Bench, code: int, binary: bool) -> None:
    link = bench.connect()
    text = props(UNIQ_KEY="U1", DELAY=1)
    if code == 310:
        answer = send(link, b"x", text, binary=binary)
    else:
        fields = {
            "producerGroup": "PG", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
            "sysFlag": "0", "bornTimestamp": str(NOW), "flag": "0", "properties": text, "reconsumeTimes": "0",
        }  # fmt: skip
        (answer,) = answers(link.feed(encode(Command(10, fields, b"x", 7, 0, language=0), binary)))
    assert answer.code == ResponseCode.SUCCESS
    assert "recallHandle" not in answer.fields
    wait(bench, 950)
    assert pull(link).code == ResponseCode.PULL_NOT_FOUND
    wait(bench, 100)
    assert pull(link).code == ResponseCode.SUCCESS


def test_delayed_and_plain_sends_of_one_read_are_answered_each(bench: Bench) -> None:
    link = bench.connect()
    frames = [
        send_frame(b"0", opaque=0),
        send_frame(b"1", props(UNIQ_KEY="a", DELAY=1), opaque=1),
        send_frame(b"2", opaque=2),
        send_frame(b"3", props(UNIQ_KEY="b", TIMER_DELAY_SEC="soon"), opaque=3),
        send_frame(b"4", props(UNIQ_KEY="c", TIMER_DELAY_MS=700), opaque=4),
        send_frame(b"5", props(UNIQ_KEY="d", DELAY=1), opaque=5, flag=2),
    ]
    found = {answer.opaque: answer for answer in answers(link.feed(b"".join(frames)))}
    assert {opaque: answer.code for opaque, answer in found.items()} == {0: 0, 1: 0, 2: 0, 3: 13, 4: 0}
    assert "259200000" in found[3].remark
    assert [found[opaque].fields["queueOffset"] for opaque in (0, 2, 1, 4)] == ["0", "1", "0", "0"]
    assert "recallHandle" in found[4].fields
    wait(bench, 1_050)
    assert bench.store.max_offset(TOPIC, 0) == 5


def test_a_recalled_message_never_comes(bench: Bench) -> None:
    link = bench.connect()
    handle = timer(link, b"x").fields["recallHandle"]
    timer(link, b"y", unique="U2")
    answer = recall(link, handle)
    assert (answer.code, answer.fields["msgId"]) == (ResponseCode.SUCCESS, "U1")
    assert bench.broker.delays.timers.pending() == 1
    again = recall(link, handle)
    assert again.code == ILLEGAL_OPERATION
    assert "does not wait" in again.remark
    wait(bench, 61_000)
    units = bench.store.units(TOPIC, 0, 0, 9)
    assert [message.body for message in bench.store.get_many([u[:2] for u in units]) if message] == [b"y"]
    order = bench.store.get_many([bench.store.units(TIMER_TOPIC, 0, 2, 1)[0][:2]])[0]
    assert order is not None
    assert order.property("TIMER_DEL_UNIQKEY") == f"{TOPIC}+U1"  # a real broker on this directory finds it, too
    assert order.property("TIMER_OUT_MS") == str(NOW + 59_000)


def test_a_message_sent_twice_is_recalled_with_its_copy(bench: Bench) -> None:
    link = bench.connect()
    handle = timer(link, b"x").fields["recallHandle"]
    timer(link, b"x")
    assert recall(link, handle).code == ResponseCode.SUCCESS
    assert bench.broker.delays.timers.pending() == 0


def test_a_delivered_message_is_not_recalled(bench: Bench) -> None:
    link = bench.connect()
    handle = timer(link, b"x", 2_900).fields["recallHandle"]
    wait(bench, 2_000)
    assert recall(link, handle).code == ResponseCode.SUCCESS
    handle = timer(link, b"y", 4_100, unique="U2").fields["recallHandle"]
    wait(bench, 3_000)
    answer = recall(link, handle)
    assert (answer.code, "timestamp invalid" in answer.remark) == (ILLEGAL_OPERATION, True)


def test_a_client_of_before_the_handles_can_send_the_order_itself(bench: Bench) -> None:
    link = bench.connect()
    timer(link, b"x")
    order = props(UNIQ_KEY="U9", TIMER_DELIVER_MS=NOW + 60_000, TIMER_DEL_UNIQKEY=f"{TOPIC}+U1")
    assert send(link, b"0", order).code == ResponseCode.SUCCESS
    assert bench.broker.delays.timers.pending() == 0
    wait(bench, 61_000)
    assert bench.store.max_offset(TOPIC, 0) == 0


@pytest.mark.parametrize(
    ("handle", "topic", "code", "remark"),
    [
        ("", TOPIC, 604, "handle is invalid"),
        ("%%%", TOPIC, 604, "handle is invalid"),
        (base64.urlsafe_b64encode(b"v2 T broker-a 1 u").decode(), TOPIC, 604, "handle is invalid"),
        (base64.urlsafe_b64encode(b"v1 T broker-a 1").decode(), TOPIC, 604, "handle is invalid"),
        ("A" * 5000, TOPIC, 604, "handle is invalid"),
        (Handle("other", "broker-a", NOW + 9_000, "u").text(), TOPIC, 604, "topic not match"),
        (Handle(TOPIC, "broker-b", NOW + 9_000, "u").text(), TOPIC, 604, "broker service not available"),
        (Handle(TOPIC, "broker-a", NOW, "u").text(), TOPIC, 604, "timestamp invalid"),
        (Handle(TOPIC, "broker-a", NOW + 4 * 86_400_000, "u").text(), TOPIC, 604, "timestamp invalid"),
        (Handle(TOPIC, "broker-a", NOW + 9_000, "u").text(), TOPIC, 604, "does not wait"),
        (Handle("none", "broker-a", NOW + 9_000, "u").text(), "none", 17, "not exist"),
    ],
)
def test_what_cannot_be_recalled_is_refused(bench: Bench, handle: str, topic: str, code: int, remark: str) -> None:
    link = bench.connect()
    send(link)
    answer = recall(link, handle, topic)
    assert answer.code == code
    assert remark in answer.remark


def test_recall_can_be_switched_off(bench: Bench) -> None:
    link = bench.connect()
    handle = timer(link, b"x").fields["recallHandle"]
    bench.broker.delays.config = TimerConfig(recall=False)
    assert recall(link, handle).code == ResponseCode.NO_PERMISSION


def test_a_handle_with_or_without_padding_is_read() -> None:
    handle = Handle("T", "broker-a", 5, "u1")
    assert parse_handle(handle.text()) == parse_handle(handle.text().rstrip("=")) == handle


def test_a_full_store_refuses_the_order_and_the_message_still_comes(bench: Bench) -> None:
    link = bench.connect()
    handle = timer(link, b"x", 5_000).fields["recallHandle"]
    bench.broker.full = "disk"
    assert recall(link, handle).code == ResponseCode.SERVICE_NOT_AVAILABLE
    bench.broker.full = ""
    wait(bench, 5_100)
    assert bench.store.max_offset(TOPIC, 0) == 1
