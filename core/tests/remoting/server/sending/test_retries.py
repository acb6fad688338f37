"""Messages sent back: where they go, what they carry, when they are dead, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.model.groups import GroupConfig
from gantrymq.model.message import DELAYED, Message
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.json_bodies import LockRequest, QueueName, encode
from tests.remoting.bench import Bench, answers, ask, request, send, send_frame
from tests.remoting.server.sending.test_sends import stored

LEVELS: list[tuple[str, str]] = []
RETRY, DEAD = "%RETRY%g", "%DLQ%g"


@pytest.fixture(autouse=True)
def at_once(bench: Bench) -> None:
    """Delayed messages are noted and enter their topic without a delay."""
    LEVELS.clear()

    def redirect(message: Message) -> None:
        LEVELS.append((message.topic, message.property("DELAY")))

    bench.broker.redirects[DELAYED] = redirect  # type: ignore[assignment]


def back(bench: Bench, message: Message, level: int = 0, **fields: Any) -> Command:
    known = {"offset": message.physical_offset, "group": "g", "delayLevel": level, "originTopic": message.topic}
    return ask(bench.connect(), Code.CONSUMER_SEND_MSG_BACK, **known | fields)


def one(bench: Bench, text: str = "UNIQ_KEY\x01U\x02TAGS\x01red\x02KEYS\x01k1 k2\x02", **fields: Any) -> Message:
    assert send(bench.connect("10.1.2.3:4"), b"hello", text, h="5", **fields).code == 0
    return stored(bench)[-1]


def test_first_retry(bench: Bench) -> None:
    origin = one(bench)
    assert back(bench, origin).code == 0
    (message,) = stored(bench, RETRY)
    assert LEVELS == [(RETRY, "3")]
    assert (message.body, message.tag, message.flag, message.reconsume_times) == (b"hello", "red", 5, 1)
    assert (message.born_ms, message.born_host) == (origin.born_ms, origin.born_host)
    assert message.property_map() == {
        "UNIQ_KEY": "U", "TAGS": "red", "KEYS": "k1 k2", "CLUSTER": "DefaultCluster", "RETRY_TOPIC": "T", "WAIT": "false",
        "DELAY": "3", "ORIGIN_MESSAGE_ID": f"7F00000100002A9F{origin.physical_offset:016X}",
    }  # fmt: skip
    for key in ("U", "k1", "k2"):
        assert len(bench.store.query(RETRY, key, 9, 0, 1 << 60)) == 1
    topic = bench.broker.topics.get(RETRY)
    assert topic is not None
    assert (topic.config.read_queues, topic.config.write_queues, topic.config.perm) == (1, 1, 6)


def test_each_retry_waits_a_level_longer_and_keeps_where_it_came_from(bench: Bench) -> None:
    origin = one(bench)
    message = origin
    for times in range(1, 17):
        assert back(bench, message).code == 0
        message = stored(bench, RETRY)[-1]
        assert message.reconsume_times == times
        assert message.property("RETRY_TOPIC") == "T"
        assert message.property("ORIGIN_MESSAGE_ID").endswith(f"{origin.physical_offset:016X}")
    assert [level for _, level in LEVELS] == [str(level) for level in range(3, 19)]
    assert back(bench, message).code == 0
    (dead,) = stored(bench, DEAD)
    assert (dead.reconsume_times, dead.property("DELAY"), dead.queue_id) == (17, "0", 0)
    assert len(LEVELS) == 16
    assert (bench.doors.sends.retries.value, bench.doors.sends.dead_letters.value) == (16, 1)


def test_dead_after_one_retry_carries_two(bench: Bench) -> None:
    assert back(bench, one(bench), maxReconsumeTimes=1).code == 0
    assert back(bench, stored(bench, RETRY)[0], maxReconsumeTimes=1).code == 0
    assert [message.reconsume_times for message in stored(bench, DEAD)] == [2]


def test_negative_level_is_dead_at_once(bench: Bench) -> None:
    assert back(bench, one(bench), level=-1).code == 0
    (dead,) = stored(bench, DEAD)
    assert (dead.reconsume_times, dead.property("RETRY_TOPIC")) == (1, "T")
    topic = bench.broker.topics.get(DEAD)
    assert topic is not None
    assert (topic.config.read_queues, topic.config.write_queues) == (1, 1)


def test_the_client_chooses_the_level(bench: Bench) -> None:
    assert back(bench, one(bench), level=7).code == 0
    assert LEVELS == [(RETRY, "7")]


def test_a_timed_message_waits_for_its_level_and_not_for_its_time_again(bench: Bench) -> None:
    origin = one(bench, "UNIQ_KEY\x01U\x02TIMER_DELIVER_MS\x0199\x02REAL_TOPIC\x01T\x02REAL_QID\x013\x02")
    assert back(bench, origin).code == 0
    found = stored(bench, RETRY)[0].property_map()
    assert (found["DELAY"], "TIMER_DELIVER_MS" in found, "REAL_TOPIC" in found) == ("3", False, False)


def test_compressed_body_and_ipv6_sender_stay(bench: Bench) -> None:
    send(bench.connect("[2001:db8::1]:77"), b"zipped", f="769")
    (origin,) = stored(bench)
    assert back(bench, origin).code == 0
    (message,) = stored(bench, RETRY)
    assert (message.body, message.sys_flag, message.born_host) == (b"zipped", 769 | 16, origin.born_host)


def test_a_group_without_retry_queues_wants_no_retries(bench: Bench) -> None:
    bench.doors.groups.set(GroupConfig("g", retry_queue_nums=0))
    assert back(bench, one(bench)).code == 0
    assert bench.broker.topics.get(RETRY) is None


def test_retry_queues_and_limit_of_the_group(bench: Bench) -> None:
    bench.doors.groups.set(GroupConfig("g", retry_queue_nums=3, retry_max_times=0))
    message = one(bench)
    assert back(bench, message, maxReconsumeTimes=5).code == 0
    topic = bench.broker.topics.get(RETRY)
    assert topic is not None
    assert topic.write_queues == 3
    assert back(bench, message).code == 0
    assert len(stored(bench, DEAD)) == 1


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"group": "a b"}, Answer.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group not exist, a b"),
        ({"group": "g" * 255}, Answer.SYSTEM_ERROR, "its name is too long"),
        ({"offset": 7}, Answer.SYSTEM_ERROR, "look message by offset failed, 7"),
        ({"offset": -1}, Answer.SYSTEM_ERROR, "look message by offset failed"),
        ({"offset": 1 << 60}, Answer.SYSTEM_ERROR, "look message by offset failed"),
        ({"offset": "x"}, Answer.SYSTEM_ERROR, "offset"),
    ],
)
def test_refused(bench: Bench, fields: dict[str, Any], code: int, remark: str) -> None:
    answer = back(bench, one(bench), **fields)
    assert answer.code == code
    assert remark in (answer.remark or "")
    assert stored(bench, RETRY) == []


@pytest.mark.parametrize("own", ["U", "7F0000010BAD2A139A550000000000AB"])
def test_a_place_where_another_message_stands_by_now(bench: Bench, own: str) -> None:
    """The consumer's message was lost with the machine's power, and its place was written again: its client, which knows what it had, is told."""
    message = one(bench, f"UNIQ_KEY\x01{own}\x02")
    other = "V" if own == "U" else own[:-1] + "C"
    answer = back(bench, message, originMsgId=other)
    assert answer.code == Answer.SYSTEM_ERROR
    assert "look message by offset failed" in (answer.remark or "")
    assert stored(bench, RETRY) == []
    place = f"7F00000100002A9F{message.physical_offset:016x}"
    for name in (own, place, place.upper(), "", "some id of a client that makes its own"):
        assert back(bench, message, originMsgId=name).code == 0
    assert len(stored(bench, RETRY)) == 5


def test_records_of_the_broker_are_not_sent_back(bench: Bench) -> None:
    one(bench)
    own = bench.store.units("rmq_sys_gantry_topic", 0, 0, 1)[0][0]
    answer = ask(bench.connect(), Code.CONSUMER_SEND_MSG_BACK, offset=own, group="g", delayLevel=-1)
    assert (answer.code, answer.remark) == (Answer.SYSTEM_ERROR, f"look message by offset failed, {own}")


def test_a_closed_retry_topic(bench: Bench) -> None:
    message = one(bench)
    back(bench, message)
    topic = bench.broker.topics.get(RETRY)
    assert topic is not None
    topic.config.perm = 4
    answer = back(bench, message)
    assert answer.code == Answer.NO_PERMISSION


def test_long_group_names_have_retry_topics_too(bench: Bench) -> None:
    group = "g" * 200
    message = one(bench)
    assert back(bench, message, group=group).code == 0
    assert [found.body for found in stored(bench, "%RETRY%" + group)] == [b"hello"]


def test_oneway(bench: Bench) -> None:
    message = one(bench)
    data = request(36, b"", 7, 2, offset=message.physical_offset, group="g", delayLevel=0)
    assert bench.connect().feed(data) == b""
    assert len(stored(bench, RETRY)) == 1


# Clients that send to the retry topic themselves, because 36 failed or because they consume in order.


def test_straight_to_the_retry_topic(bench: Bench) -> None:
    text = "UNIQ_KEY\x01U\x02RETRY_TOPIC\x01T\x02DELAY\x014\x02"
    assert send(bench.connect(), b"x", text, b=RETRY, j="16", l="16").code == 0
    assert LEVELS == [(RETRY, "4")]
    assert [message.reconsume_times for message in stored(bench, RETRY)] == [16]
    answer = send(bench.connect(), b"x", text, b=RETRY, j="17", l="16")
    assert answer.code == 0, answer.remark
    (dead,) = stored(bench, DEAD)
    assert (dead.reconsume_times, dead.property("DELAY"), dead.property("RETRY_TOPIC")) == (17, "-1", "T")
    assert len(LEVELS) == 1


def test_straight_to_the_retry_topic_of_a_group_that_consumes_in_order(bench: Bench) -> None:
    link = bench.connect()
    body = encode(LockRequest("g", "client", [QueueName("T", "broker-a", 0)]))
    assert ask(link, Code.LOCK_BATCH_MQ, body).code == 0
    assert send(link, b"x", "DELAY\x013\x02", b=RETRY, j="1", l="16").code == 0
    assert len(stored(bench, DEAD)) == 1
    bench.clock.advance(60_001)
    assert send(link, b"x", "DELAY\x013\x02", b=RETRY, j="1", l="16").code == 0
    assert len(stored(bench, RETRY)) == 1


def test_retry_topic_comes_into_being_where_others_do_not(bench: Bench) -> None:
    assert send(bench.connect(), b=RETRY, c="Unknown").code == 0
    topic = bench.broker.topics.get(RETRY)
    assert topic is not None
    assert topic.write_queues == 1


def test_straight_to_the_retry_topic_of_an_illegal_group(bench: Bench) -> None:
    answer = send(bench.connect(), b="%RETRY%")
    assert answer.code == Answer.SUBSCRIPTION_GROUP_NOT_EXIST


def test_half_message_of_an_old_client_that_is_retried(bench: Bench) -> None:
    assert send(bench.connect(), b"x", "TRAN_MSG\x01true\x02DELAY\x013\x02", b=RETRY, j="1").code == 0
    assert LEVELS == [(RETRY, "3")]


def test_a_record_of_light_queues_can_be_retried_with_all_its_properties(bench: Bench) -> None:
    text = "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%~1\x02INNER_MULTI_QUEUE_OFFSET\x014,5\x02DELAY\x013\x02"
    assert send(bench.connect(), b"x", text, b=RETRY, j="1").code == 0
    (message,) = stored(bench, RETRY)
    assert "INNER_MULTI" not in str(message.property_map())
    assert bench.store.max_offset("%LMQ%a", 0) == 0


def test_several_sends_of_one_read_are_answered_in_their_order(bench: Bench) -> None:
    found = answers(bench.connect().feed(send_frame(opaque=1, b=RETRY) + send_frame(opaque=2)))
    assert sorted(answer.opaque for answer in found) == [1, 2]
    assert {answer.code for answer in found} == {0}


# With the real delays.


def test_a_retry_arrives_after_its_level(bench: Bench) -> None:
    bench.broker.redirects[DELAYED] = bench.broker.delays.redirect
    origin = one(bench)
    assert back(bench, origin).code == 0
    assert stored(bench, RETRY) == []
    bench.wheel.advance(9_000)
    bench.turn.run_until_quiet()
    assert stored(bench, RETRY) == []
    bench.wheel.advance(2_000)
    bench.turn.run_until_quiet()
    (message,) = stored(bench, RETRY)
    assert (message.body, message.reconsume_times, message.property("RETRY_TOPIC")) == (b"hello", 1, "T")
    assert message.property("ORIGIN_MESSAGE_ID").endswith(f"{origin.physical_offset:016X}")
    assert back(bench, message).code == 0
    bench.wheel.advance(31_000)
    bench.turn.run_until_quiet()
    assert [found.reconsume_times for found in stored(bench, RETRY)] == [1, 2]


def test_a_delayed_message_enters_its_light_queues_with_its_topic(bench: Bench) -> None:
    bench.broker.redirects[DELAYED] = bench.broker.delays.redirect
    assert send(bench.connect(), b"x", "INNER_MULTI_DISPATCH\x01%LMQ%a\x02DELAY\x011\x02").code == 0
    assert bench.store.max_offset("%LMQ%a", 0) == 0
    bench.wheel.advance(2_000)
    bench.turn.run_until_quiet()
    assert bench.store.max_offset("%LMQ%a", 0) == 1
    assert bench.store.units("%LMQ%a", 0, 0, 1) == bench.store.units("T", 0, 0, 1)
