"""Pulls: codes and offsets as RocketMQ's, filters, long polling, limits."""

import errno
import struct
from typing import Any

import pytest

from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.server import broker_door, filters
from gantrymq.remoting.server.pulling import pulls
from gantrymq.store.log import record
from tests.broker.node import compaction_of
from tests.broker.retention.test_compaction import Hand
from tests.remoting.bench import SUSPEND, TOPIC, Bench, answers, ask, pull, pull_frame, request, send, send_frame


def bodies_of(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        message = record.decode(data, at)
        found.append(message.body)
        at += message.size
    return found


def fill(bench: Bench, count: int = 10, tags: str = "") -> None:
    link = bench.connect()
    frames = [
        send_frame(b"m%d" % i, f"TAGS\x01{tags[i % len(tags)]}\x02" if tags else "", opaque=i) for i in range(count)
    ]
    link.feed(b"".join(frames))


def offsets(answer: object) -> tuple[int, int, int]:
    fields = answer.fields  # type: ignore[attr-defined]
    assert fields["suggestWhichBrokerId"] == "0"
    return int(fields["nextBeginOffset"]), int(fields["minOffset"]), int(fields["maxOffset"])


def test_found(bench: Bench) -> None:
    fill(bench)
    answer = pull(bench.connect(), queueOffset=2, maxMsgNums=5)
    assert (answer.code, answer.remark, offsets(answer)) == (0, "FOUND", (7, 0, 10))
    assert bodies_of(answer.body) == [b"m%d" % i for i in range(2, 7)]


@pytest.mark.parametrize("waiting", [False, True])
def test_what_many_slow_readers_of_a_record_wait_for_is_held_once(bench: Bench, waiting: bool) -> None:
    """Each answer has its own head, and the very object that the others have as its record."""
    links = [bench.connect() for _ in range(20)]
    written: list[Any] = []
    for link in links:
        link.door.data_to_send = keep(link.door.data_to_send, written)  # type: ignore[method-assign, union-attr]
    fill(bench, 1)
    if waiting:
        for link in links:
            link.feed(pull_frame(opaque=1, queueOffset=1, **SUSPEND))
    send(bench.connect(), b"x" * 100_000)
    if not waiting:
        for link in links:
            link.feed(pull_frame(opaque=1, queueOffset=1))
    large = [piece for pieces in written if isinstance(pieces, list) for piece in pieces if len(piece) > 100_000]
    assert len(large) == len(links)
    assert len(set(map(id, large))) == 1
    assert bodies_of(large[0]) == [b"x" * 100_000]


def keep(call: Any, written: list[Any]) -> Any:
    def kept() -> Any:
        written.append(call())
        return written[-1]

    return kept


def test_lite_pull_is_the_same(bench: Bench) -> None:
    fill(bench)
    wanted = pull(bench.connect())
    fields = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 20,
              "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}  # fmt: skip
    assert ask(bench.connect(), Code.LITE_PULL_MESSAGE, **fields).body == wanted.body


OUTSIDE = {
    "at the end": (10, Answer.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 10),
    "behind the end": (99, Answer.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 10),
    "negative": (-1, Answer.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_outside(bench: Bench, name: str) -> None:
    offset, code, remark, following = OUTSIDE[name]
    fill(bench)
    answer = pull(bench.connect(), queueOffset=offset)
    assert (answer.code, answer.remark, offsets(answer)) == (code, remark, (following, 0, 10))


def test_empty_queue(bench: Bench) -> None:
    fill(bench)
    link = bench.connect()
    answer = pull(link, queueId=1)
    assert (answer.code, offsets(answer)) == (Answer.PULL_NOT_FOUND, (0, 0, 0))
    answer = pull(link, queueId=1, queueOffset=5)
    assert (answer.code, offsets(answer)) == (Answer.PULL_OFFSET_MOVED, (0, 0, 0))


def test_limits_of_one_answer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bench, 100)
    link = bench.connect()
    size = len(pull(link, maxMsgNums=1).body)
    assert len(bodies_of(pull(link, maxMsgNums=1000).body)) == 100
    assert len(bodies_of(pull(link, maxMsgNums=0).body)) == 1
    assert len(bodies_of(pull(link, maxMsgNums=100, maxMsgBytes=size * 3 + 10).body)) == 3
    assert len(bodies_of(pull(link, maxMsgNums=100, maxMsgBytes=1).body)) == 1
    monkeypatch.setattr(pulls, "COUNT_MAX", 7)
    assert len(bodies_of(pull(link, maxMsgNums=100).body)) == 7
    monkeypatch.setattr(pulls, "BYTES_MAX", size * 2 + 5)
    assert len(bodies_of(pull(link, maxMsgNums=100, maxMsgBytes=2**31 - 1).body)) == 2


def test_tag_filter(bench: Bench) -> None:
    fill(bench, 10, "abc")
    link = bench.connect()
    answer = pull(link, subscription="a")
    assert (bodies_of(answer.body), offsets(answer)) == ([b"m0", b"m3", b"m6", b"m9"], (10, 0, 10))
    answer = pull(link, subscription="a || c", maxMsgNums=3)
    assert (bodies_of(answer.body), offsets(answer)) == ([b"m0", b"m2", b"m3"], (4, 0, 10))
    answer = pull(link, subscription="none")
    assert (answer.code, answer.remark, offsets(answer)) == (
        Answer.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", (10, 0, 10),
    )  # fmt: skip
    size = len(pull(link, maxMsgNums=1).body)
    answer = pull(link, subscription="b", maxMsgBytes=size * 2)
    assert (bodies_of(answer.body), offsets(answer)) == ([b"m1", b"m4"], (7, 0, 10))


def test_filtered_scan_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "SCAN_MAX", 4)
    monkeypatch.setattr(filters, "SCAN_STEP", 3)
    fill(bench, 10, "abc")
    answer = pull(bench.connect(), subscription="none", queueOffset=1)
    assert (answer.code, offsets(answer)[0]) == (Answer.PULL_RETRY_IMMEDIATELY, 5)


REFUSED = {
    "unknown topic": ({"topic": "X"}, Answer.TOPIC_NOT_EXIST, "apply first"),
    "own topic": ({"topic": "rmq_sys_gantry_topic"}, Answer.NO_PERMISSION, "belongs"),
    "queue": ({"queueId": 4}, Answer.INVALID_PARAMETER, "readQueueNums:[4]"),
    "SQL": ({"expressionType": "SQL92", "subscription": "a > "}, Answer.SUBSCRIPTION_PARSE_FAILED, "character 5"),
    "no SQL": (
        {"expressionType": "SQL92", "subscription": ""},
        Answer.SUBSCRIPTION_PARSE_FAILED,
        "needs an expression",
    ),
    "type": ({"expressionType": "SQL99", "subscription": "a"}, Answer.SUBSCRIPTION_PARSE_FAILED, "SQL99"),
    "no tag": ({"subscription": " || "}, Answer.SUBSCRIPTION_PARSE_FAILED, "no tag"),
    "no subscription": ({"sysFlag": 0}, Answer.SUBSCRIPTION_NOT_EXIST, "heartbeat"),
    "too many tags": ({"subscription": "||".join(map(str, range(4097)))}, Answer.SUBSCRIPTION_PARSE_FAILED, "4096"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(bench: Bench, name: str) -> None:
    fields, code, remark = REFUSED[name]
    fill(bench)
    answer = pull(bench.connect(), **fields)
    assert answer.code == code
    assert remark in (answer.remark or "")


def test_topic_without_read_permission(bench: Bench) -> None:
    link = bench.connect()
    ask(link, 17, topic="T", readQueueNums=1, writeQueueNums=1, perm=2)
    assert pull(link).code == Answer.NO_PERMISSION


def test_subscription_of_the_heartbeat_is_used(bench: Bench) -> None:
    fill(bench, 4, "ab")
    link = bench.connect()
    body = (
        b'{"clientID":"c","consumerDataSet":[{"groupName":"CG","subscriptionDataSet":'
        b'[{"topic":"T","subString":"b","subVersion":1}]}]}'
    )
    ask(link, Code.HEART_BEAT, body)
    assert bodies_of(pull(link, sysFlag=0).body) == [b"m1", b"m3"]


def test_commit_offset_flag(bench: Bench) -> None:
    fill(bench)
    pull(bench.connect(), sysFlag=5, commitOffset=4)
    assert bench.broker.offsets.query("CG", "T", 0) == 4


# Long polling


def test_poll_is_answered_by_an_append(bench: Bench) -> None:
    fill(bench, 3)
    link, producer = bench.connect(), bench.connect()
    assert link.feed(pull_frame(queueOffset=3, **SUSPEND)) == b""
    assert bench.doors.pulls.waiting == 1
    send(producer, b"new")
    (answer,) = answers(link.take())
    assert (answer.code, bodies_of(answer.body), offsets(answer)) == (0, [b"new"], (4, 0, 4))
    assert bench.doors.pulls.waiting == 0
    bench.wheel.advance(60_000)
    assert link.take() == b""


def test_poll_is_answered_once_for_a_batch_of_appends(bench: Bench) -> None:
    fill(bench, 1)
    link, producer = bench.connect(), bench.connect()
    link.feed(pull_frame(queueOffset=1, **SUSPEND))
    producer.feed(b"".join(send_frame(b"n%d" % i, opaque=i) for i in range(5)))
    (answer,) = answers(link.take())
    assert len(bodies_of(answer.body)) == 5


def test_poll_runs_out(bench: Bench) -> None:
    fill(bench, 3)
    link = bench.connect()
    link.feed(pull_frame(queueOffset=3, **SUSPEND))
    bench.wheel.advance(14_900)
    assert link.take() == b""
    bench.wheel.advance(200)
    bench.turn.run_until_quiet()
    (answer,) = answers(link.take())
    assert (answer.code, offsets(answer)) == (Answer.PULL_NOT_FOUND, (3, 0, 3))


def test_filtered_poll_waits_on_and_then_says_how_far_it_looked(bench: Bench) -> None:
    fill(bench, 3)
    link, producer = bench.connect(), bench.connect()
    link.feed(pull_frame(queueOffset=3, subscription="x", **SUSPEND))
    send(producer, b"no", "TAGS\x01y\x02")
    assert link.take() == b""
    send(producer, b"yes", "TAGS\x01x\x02")
    (answer,) = answers(link.take())
    assert (bodies_of(answer.body), offsets(answer)) == ([b"yes"], (5, 0, 5))
    link.feed(pull_frame(queueOffset=5, subscription="x", **SUSPEND))
    send(producer, b"no", "TAGS\x01y\x02")
    bench.wheel.advance(16_000)
    bench.turn.run_until_quiet()
    (answer,) = answers(link.take())
    assert (answer.code, offsets(answer)[0]) == (Answer.PULL_RETRY_IMMEDIATELY, 6)


def test_lost_connection_waits_no_more(bench: Bench) -> None:
    fill(bench, 1)
    link = bench.connect()
    for queue in range(3):
        link.feed(pull_frame(queueOffset=int(queue == 0), queueId=queue, **SUSPEND))
    assert bench.doors.pulls.waiting == 3
    link.lose()
    assert bench.doors.pulls.waiting == 0
    topic = bench.broker.topics.get("T")
    assert topic is not None
    assert topic.waiters == {}
    bench.wheel.advance(60_000)


def test_waiting_connection_is_not_idle(bench: Bench) -> None:
    fill(bench, 1)
    link = bench.connect()
    link.feed(pull_frame(queueOffset=1, sysFlag=6, suspendTimeoutMillis=10**9))
    bench.wheel.advance(250_000)
    bench.turn.run_until_quiet()
    assert link.closed_by is None
    bench.wheel.advance(60_000)
    bench.turn.run_until_quiet()
    assert len(answers(link.take())) == 1


def test_waiters_are_limited(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.doors.pulls.waiting_max = 2
    fill(bench, 1)
    link = bench.connect()
    for opaque in (1, 2):
        assert link.feed(pull_frame(opaque, queueOffset=1, **SUSPEND)) == b""
    (answer,) = answers(link.feed(pull_frame(3, queueOffset=1, **SUSPEND)))
    assert answer.code == Answer.SYSTEM_BUSY
    assert "broker.waiting_pulls_max" in (answer.remark or "")
    monkeypatch.setattr(pulls, "WAITERS_MAX", 2)
    (answer,) = answers(bench.connect().feed(pull_frame(3, queueOffset=1, **SUSPEND)))
    assert answer.code == Answer.SYSTEM_BUSY


def test_a_slow_reader_gets_no_more_until_it_reads(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bench, 100)
    link = bench.connect()
    size = len(pull(link, maxMsgNums=100).body)
    monkeypatch.setattr(broker_door, "PULLED_BYTES_MAX", size)
    link.waiting = size + 1
    frames = b"".join(pull_frame(i, maxMsgNums=100) for i in range(10))
    assert link.feed(frames) == b""
    assert isinstance(link.door, broker_door.BrokerConnection)
    assert len(link.door.deferred) == 10
    link.drain()
    found = answers(link.take())
    assert [answer.opaque for answer in found] == list(range(10))
    assert not link.door.deferred


def test_many_pulls_of_one_read_are_spread_over_turns(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bench, 100)
    link = bench.connect()
    size = len(pull(link, maxMsgNums=100).body)
    monkeypatch.setattr(broker_door, "PULLED_BYTES_MAX", size + 1)
    writes = link.writes
    found = answers(link.feed(b"".join(pull_frame(i, maxMsgNums=100) for i in range(10))))
    assert [answer.opaque for answer in found] == list(range(10))
    assert link.writes - writes == 5
    monkeypatch.setattr(broker_door, "DEFERRED_MAX", 3)
    found = answers(link.feed(b"".join(pull_frame(i, maxMsgNums=100) for i in range(10))))
    assert Answer.SYSTEM_BUSY in [answer.code for answer in found]


def test_oneway_pull_is_ignored(bench: Bench) -> None:
    fill(bench, 1)
    assert bench.connect().feed(request(11, flag=2, topic="T")) == b""


def test_deleted_topic_ends_with_its_waiters(bench: Bench) -> None:
    fill(bench, 1)
    link = bench.connect()
    link.feed(pull_frame(queueOffset=1, **SUSPEND))
    ask(bench.connect(), Code.DELETE_TOPIC_IN_BROKER, topic="T")
    bench.wheel.advance(16_000)
    bench.turn.run_until_quiet()
    assert len(answers(link.take())) == 1
    assert pull(link).code == Answer.TOPIC_NOT_EXIST


def test_topic_created_again_does_not_show_old_records(bench: Bench) -> None:
    fill(bench, 3)
    link = bench.connect()
    ask(link, Code.DELETE_TOPIC_IN_BROKER, topic="T")
    send(link, b"new")
    answer = pull(link, queueOffset=0)
    assert (answer.code, offsets(answer)) == (Answer.PULL_OFFSET_MOVED, (3, 3, 4))
    assert bodies_of(pull(link, queueOffset=3).body) == [b"new"]


def test_header_of_the_template_is_a_header(bench: Bench) -> None:
    fill(bench, 1)
    data = bench.connect().feed(pull_frame(opaque=-5))
    total, marker = struct.unpack_from(">II", data)
    assert total + 4 == len(data)
    assert marker >> 24 == 0
    assert answers(data)[0].version == 479


def test_compacted_topic_is_pulled_over_its_gaps(bench: Bench) -> None:
    link = bench.connect()
    create = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
              "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}  # fmt: skip
    assert ask(link, Code.UPDATE_AND_CREATE_TOPIC, **create, attributes="+cleanup.policy=COMPACTION").code == 0
    refused = ask(link, Code.UPDATE_AND_CREATE_TOPIC, **create, attributes="-cleanup.policy")
    assert refused.code != 0
    assert "cannot be changed" in (refused.remark or "")
    assert send(link, b"x").code == Answer.MESSAGE_ILLEGAL
    tags = ["A", "B"]
    for number in range(300):
        assert send(link, b"%d" % number, f"KEYS\x01k{number % 3}\x02TAGS\x01{tags[number % 2]}\x02").code == 0
    hand = Hand()
    compaction = compaction_of(bench.broker, hand)
    compaction.begin(force=True)
    while compaction.busy:
        bench.store.flush()
        hand.run()
    assert send(link, b"new", "KEYS\x01k0\x02TAGS\x01A\x02").code == 0
    answer = pull(link)
    assert (answer.code, offsets(answer)) == (0, (301, 0, 301))
    assert bodies_of(answer.body) == [b"297", b"298", b"299", b"new"]
    answer = pull(link, subscription="A")
    assert bodies_of(answer.body) == [b"298", b"new"]
    answer = pull(link, maxMsgNums=1)
    assert (bodies_of(answer.body), offsets(answer)[0]) == ([b"297"], 298)


def unreadable(*_arguments: Any) -> Any:
    raise OSError(errno.EIO, "Input/output error")


def test_a_pull_of_what_the_disk_cannot_read_is_refused_and_the_connection_stays(
    bench: Bench,
) -> None:
    link = bench.connect()
    send(link)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.store, "read_queue", unreadable)
        answer = pull(link)
        assert (answer.code, "cannot read" in (answer.remark or "")) == (Answer.SYSTEM_ERROR, True)
    assert pull(link).code == 0
    assert link.closed_by is None


def test_a_poll_that_is_woken_by_what_the_disk_cannot_read_is_answered(bench: Bench) -> None:
    link, other = bench.connect(), bench.connect()
    send(other)
    assert link.feed(pull_frame(opaque=9, queueOffset=1, **SUSPEND)) == b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.store, "read_queue", unreadable)
        assert send(other).code == 0
        bench.turn.run_until_quiet()
    (answer,) = answers(link.take())
    assert (answer.code, answer.opaque) == (Answer.SYSTEM_ERROR, 9)
    assert bench.doors.pulls.waiting == 0
    assert pull(link, queueOffset=1).code == 0
