"""Pop requests: answers as RocketMQ's clients parse them, redelivery, receipts, long polling, order, limits."""

from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from gantrymq.broker.consuming.known.table import POP_PREFIX
from gantrymq.broker.pop import pops
from gantrymq.broker.topics import TopicConfig
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.server import broker_door
from gantrymq.remoting.server.pop import answers as pop_answers
from gantrymq.remoting.server.pop import polls as pop_polls
from gantrymq.remoting.server.pop.requests import HANDLERS
from gantrymq.store.cold import ColdReads
from gantrymq.store.log import record
from tests.broker.test_cold_reads import ColdDisk
from tests.remoting.bench import TOPIC, Bench, answers, ask, pull, request, send_frame
from tests.remoting.pop_client import (
    GROUP,
    ack,
    batch_ack,
    change,
    later,
    pop,
    pop_answer,
    pop_frame,
    popped,
)
from tests.remoting.server.pulling.test_pulls import bodies_of


def fill(bench: Bench, count: int = 5, queue: int = 0, first: int = 0, tags: str = "", **fields: Any) -> None:
    frames = [
        send_frame(b"m%d" % i, f"TAGS\x01{tags[i % len(tags)]}\x02" if tags else "", opaque=i, e=queue, **fields)
        for i in range(first, first + count)
    ]
    bench.connect().feed(b"".join(frames))


def bodies(messages: list[Any]) -> list[bytes]:
    return [message.body for message in messages]


def committed(bench: Bench, queue: int = 0) -> int:
    return bench.broker.offsets.query(GROUP, TOPIC, queue)


def pass_ms(bench: Bench, ms: int) -> None:
    bench.wheel.advance(ms)
    bench.turn.run_until_quiet()


def test_pop_and_acknowledge(bench: Bench) -> None:
    fill(bench)
    link = bench.connect()
    answer = pop_answer(link, maxMsgNums=3)
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert answer.fields == {
        "popTime": str(bench.clock.now_ms()), "invisibleTime": "10000", "reviveQid": "0", "restNum": "2",
        "startOffsetInfo": "0 0 0", "msgOffsetInfo": "0 0 0,1,2",
    }  # fmt: skip
    messages = popped(answer)
    assert bodies(messages) == [b"m0", b"m1", b"m2"]
    assert committed(bench) == 0
    assert ack(link, messages[1]).code == 0
    assert committed(bench) == 0
    assert ack(link, messages[0]).code == 0
    assert committed(bench) == 2
    assert bodies(pop(link)) == [b"m3", b"m4"]
    assert pop(link) == []


def test_what_is_not_acknowledged_comes_back_with_its_count(bench: Bench) -> None:
    fill(bench, 3)
    link = bench.connect()
    first = pop(link)
    ack(link, first[1])
    pass_ms(bench, 9_900)
    assert pop(link) == []
    pass_ms(bench, 200)
    again = pop(link)
    assert [(m.body, m.times, m.offset) for m in again] == [(b"m0", 1, 0), (b"m2", 1, 2)]
    pass_ms(bench, 10_100)
    assert [m.times for m in pop(link)] == [2, 2]


def test_receipt_of_an_earlier_delivery_does_nothing(bench: Bench) -> None:
    fill(bench, 1)
    link = bench.connect()
    (old,) = pop(link)
    pass_ms(bench, 10_100)
    (new,) = pop(link)
    assert new.pop_ms > old.pop_ms
    assert ack(link, old).code == 0
    assert change(link, old, 0).code == 0
    assert committed(bench) == 0
    assert pop(link) == []
    assert ack(link, new).code == 0
    assert committed(bench) == 1


def test_late_acknowledgement_counts_while_nobody_else_has_the_message(bench: Bench) -> None:
    fill(bench, 2)
    link = bench.connect()
    first, second = pop(link)
    pass_ms(bench, 10_100)
    assert ack(link, first).code == 0
    assert bodies(pop(link)) == [b"m1"]
    ack(link, second)
    assert committed(bench) == 1


def test_change_of_invisible_time(bench: Bench) -> None:
    fill(bench, 3)
    link = bench.connect()
    first, second, third = pop(link)
    old = first.receipt
    pass_ms(bench, 1_000)
    answer = change(link, first, 30_000)
    assert answer.fields == {"popTime": str(bench.clock.now_ms()), "invisibleTime": "30000", "reviveQid": "0"}
    change(link, second, 0)
    (back,) = pop(link)
    assert (back.body, back.times) == (b"m1", 1)
    pass_ms(bench, 9_100)
    assert bodies(pop(link)) == [b"m2"]
    stale, first.receipt = first.receipt, old
    ack(link, first)
    assert committed(bench) == 0
    first.receipt = stale
    ack(link, first)
    assert committed(bench) == 1
    ack(link, third)
    assert committed(bench) == 1


def test_batch_acknowledgement(bench: Bench) -> None:
    fill(bench, 10)
    fill(bench, 3, queue=1, first=10)
    link = bench.connect()
    messages = pop(link, queueId=-1)
    assert len(messages) == 13
    assert batch_ack(link, [m for m in messages if m.body != b"m4"]).code == 0
    assert (committed(bench, 0), committed(bench, 1)) == (4, 3)
    pass_ms(bench, 10_100)
    (left,) = pop(link, queueId=-1)
    assert left.body == b"m4"
    batch_ack(link, [left])
    assert committed(bench) == 10
    assert not bench.broker.pops.leases.by_id
    assert bench.broker.pops.leases.entries == 0
    assert batch_ack(link, []).code == Answer.NO_MESSAGE
    assert ask(link, Code.BATCH_ACK_MESSAGE, b"{").code == Answer.SYSTEM_ERROR


def test_several_queues_in_one_answer(bench: Bench) -> None:
    for queue in range(4):
        fill(bench, 2, queue=queue, first=queue * 10)
    link = bench.connect()
    answer = pop_answer(link, queueId=-1, maxMsgNums=5)
    assert answer.fields["restNum"] == "3"
    assert len(popped(answer)) == 5
    rest = popped(pop_answer(link, queueId=-1))
    assert len(rest) == 3


def test_tag_filter_finishes_what_does_not_pass(bench: Bench) -> None:
    fill(bench, 10, tags="ab")
    link = bench.connect()
    messages = pop(link, exp="a", expType="TAG", maxMsgNums=3)
    assert bodies(messages) == [b"m0", b"m2", b"m4"]
    batch_ack(link, messages)
    assert committed(bench) == 5
    assert pop(link, exp="none") == []
    assert committed(bench) == 10
    assert pop_answer(link, exp="a > ", expType="SQL92").code == Answer.SUBSCRIPTION_PARSE_FAILED


def test_a_filter_looks_on_while_its_poll_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_answers.TagPick, "scan_max", 4)
    fill(bench, 30, tags="a")
    fill(bench, 1, first=30, tags="b")
    link = bench.connect()
    assert bodies(later(link.feed(pop_frame(exp="b", pollTime=15_000)))) == [b"m30"]
    assert committed(bench) == 30


def test_sql_filter(bench: Bench) -> None:
    link = bench.connect()
    for i in range(6):
        link.feed(send_frame(b"m%d" % i, f"n\x01{i}\x02"))
    messages = pop(link, exp="n >= 4", expType="SQL92")
    assert bodies(messages) == [b"m4", b"m5"]
    batch_ack(link, messages)
    assert committed(bench) == 6


def test_long_poll_is_answered_by_a_message(bench: Bench) -> None:
    fill(bench, 1, queue=3)
    link = bench.connect()
    assert bodies(pop(link, queueId=3)) == [b"m0"]
    assert link.feed(pop_frame(pollTime=15_000)) == b""
    assert link.feed(pop_frame(8, pollTime=15_000, queueId=-1)) == b""
    assert ask(link, Code.POLLING_INFO, consumerGroup=GROUP, topic=TOPIC, queueId=0).fields == {"pollingNum": "1"}
    fill(bench, 1, first=1)
    assert bodies(later(link.take())) == [b"m1"]
    fill(bench, 1, queue=2, first=2)
    assert bodies(later(link.take())) == [b"m2"]
    assert bench.doors.pops.polls.waiting == 0


def test_long_poll_is_answered_by_what_comes_back(bench: Bench) -> None:
    fill(bench, 1)
    link = bench.connect()
    (message,) = pop(link)
    link.feed(pop_frame(pollTime=30_000))
    pass_ms(bench, 10_100)
    (again,) = later(link.take())
    assert (again.body, again.times) == (message.body, 1)
    link.feed(pop_frame(pollTime=30_000))
    pass_ms(bench, 10_100)
    assert [m.times for m in later(link.take())] == [2]


def test_long_poll_ends(bench: Bench) -> None:
    fill(bench, 1)
    link = bench.connect()
    ack(link, pop(link)[0])
    assert link.feed(pop_frame(pollTime=1_000)) == b""
    pass_ms(bench, 1_100)
    (answer,) = answers(link.take())
    assert (answer.code, answer.remark) == (Answer.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
    assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= set(answer.fields)
    old = pop_answer(link, bornTime=bench.clock.now_ms() - 20_000, pollTime=15_000)
    assert old.code == Answer.POLLING_TIMEOUT
    assert bench.doors.pops.polls.waiting == 0


def test_limit_of_polls(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_polls, "POLLS_PER_KEY_MAX", 2)
    fill(bench, 0)
    bench.broker.topics.create(TopicConfig(TOPIC, 4, 4))
    link = bench.connect()
    for opaque in (1, 2):
        assert link.feed(pop_frame(opaque, pollTime=15_000)) == b""
    assert pop_answer(link, pollTime=15_000).code == Answer.POLLING_FULL
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "pollTime": 15_000, "bornTime": 0}
    assert ask(link, Code.NOTIFICATION, **fields).fields == {"hasMsg": "false", "pollingFull": "true"}
    link.lose("gone")
    assert bench.doors.pops.polls.waiting == 0
    assert not bench.broker.topics.topics[TOPIC].waiters


def test_one_message_answers_one_of_many_polls(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.broker.topics.create(TopicConfig(TOPIC, 4, 4))
    links = [bench.connect(f"127.0.0.1:{50000 + i}") for i in range(20)]
    for link in links:
        link.feed(pop_frame(pollTime=15_000, queueId=-1))
    checks = 0
    select = bench.broker.pops.select

    def counted(*arguments: Any) -> Any:
        nonlocal checks
        checks += 1
        return select(*arguments)

    monkeypatch.setattr(bench.broker.pops, "select", counted)
    fill(bench, 1)
    taken = [link.take() for link in links]
    assert [bool(data) for data in taken] == [True] + [False] * 19
    assert checks <= 8


def test_notification_and_peek(bench: Bench) -> None:
    bench.broker.topics.create(TopicConfig(TOPIC, 4, 4))
    link = bench.connect()
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "pollTime": 0, "bornTime": 0}
    assert ask(link, Code.NOTIFICATION, **fields).fields == {"hasMsg": "false", "pollingFull": "false"}
    peeked = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 2}
    assert ask(link, Code.PEEK_MESSAGE, **peeked).code == Answer.PULL_NOT_FOUND
    fill(bench, 3)
    assert ask(link, Code.NOTIFICATION, **fields).fields["hasMsg"] == "true"
    for _ in range(2):
        answer = ask(link, Code.PEEK_MESSAGE, **peeked)
        assert (answer.code, answer.fields["restNum"], bodies_of(answer.body)) == (0, "3", [b"m0", b"m1"])
    assert committed(bench) == -1
    pop(link)
    assert ask(link, Code.NOTIFICATION, **fields).fields["hasMsg"] == "false"
    assert ask(link, Code.PEEK_MESSAGE, **peeked).code == Answer.PULL_NOT_FOUND


def test_new_group_begins_at_its_committed_offset(bench: Bench) -> None:
    fill(bench, 5)
    bench.broker.commits.commit(GROUP, TOPIC, 0, 3)
    assert bodies(pop(bench.connect())) == [b"m3", b"m4"]


def test_commit_of_a_pulling_client_moves_the_group_on(bench: Bench) -> None:
    fill(bench, 5)
    link = bench.connect()
    pop(link, maxMsgNums=2)
    bench.broker.commits.commit(GROUP, TOPIC, 0, 4)
    assert bodies(pop(link)) == [b"m4"]
    bench.broker.commits.commit(GROUP, TOPIC, 0, 1)
    pass_ms(bench, 10_100)
    assert bodies(pop(link)) == [b"m4"]
    assert bench.broker.pops.leases.entries == 1


@pytest.mark.parametrize(("mode", "first"), [(0, [b"m0", b"m1", b"m2"]), (1, [b"m2"])])
def test_init_mode(bench: Bench, monkeypatch: pytest.MonkeyPatch, mode: int, first: list[bytes]) -> None:
    monkeypatch.setattr(pops, "IN_MEMORY_BYTES", 1)
    fill(bench, 3)
    assert bodies(pop(bench.connect(), initMode=mode)) == first


def test_init_mode_of_a_young_queue_is_its_first_message(bench: Bench) -> None:
    fill(bench, 3)
    assert len(pop(bench.connect(), initMode=1)) == 3


def test_dead_letter_after_the_groups_retries(bench: Bench) -> None:
    link = bench.connect()
    config = bench.doors.groups.ensure(GROUP)
    config.retry_max_times = 2
    bench.doors.groups.set(config)
    fill(bench, 2)
    for times in range(3):
        messages = pop(link, queueId=0)
        assert [m.times for m in messages] == [times] * (2 if not times else 1)
        if not times:
            ack(link, messages[1])
        pass_ms(bench, 10_100)
    assert pop(link) == []
    assert committed(bench) == 2
    dead = pull(link, topic=f"%DLQ%{GROUP}")
    assert bodies_of(dead.body) == [b"m0"]
    letter = record.decode(dead.body)
    assert letter.property("RETRY_TOPIC") == TOPIC
    assert letter.reconsume_times == 3


def test_ordered_pop_waits_for_the_batch_before(bench: Bench) -> None:
    fill(bench, 6)
    link = bench.connect()
    answer = pop_answer(link, order=True, maxMsgNums=2, attemptId="a")
    assert (answer.fields["reviveQid"], answer.fields["orderCountInfo"]) == ("999", "0 0 0")
    first = popped(answer)
    assert pop(link, order=True, attemptId="b") == []
    ack(link, first[0])
    assert pop(link, order=True, attemptId="b") == []
    link.feed(pop_frame(order=True, attemptId="b", pollTime=15_000, maxMsgNums=2))
    found = [answer for answer in answers(link.feed(ack_frame(first[1]))) if "popTime" in answer.fields]
    assert bodies(popped(found[0])) == [b"m2", b"m3"]
    assert committed(bench) == 2


def ack_frame(one: Any) -> bytes:
    parts = one.receipt.split()
    return request(Code.ACK_MESSAGE, b"", 99, consumerGroup=GROUP, topic=one.topic, queueId=parts[6],
                   extraInfo=one.receipt, offset=parts[7])  # fmt: skip


def test_ordered_pop_again_after_its_time(bench: Bench) -> None:
    fill(bench, 3)
    link = bench.connect()
    messages = pop(link, order=True, maxMsgNums=2, attemptId="a")
    ack(link, messages[0])
    pass_ms(bench, 10_100)
    answer = pop_answer(link, order=True, maxMsgNums=2, attemptId="b")
    assert answer.fields["orderCountInfo"] == "0 qo0%1 1;0 0 0"
    assert [(m.body, m.times) for m in popped(answer)] == [(b"m1", 1), (b"m2", 0)]


def test_ordered_pop_of_the_same_attempt_gets_the_same(bench: Bench) -> None:
    fill(bench, 3)
    link = bench.connect()
    first = pop(link, order=True, maxMsgNums=2, attemptId="a")
    second = pop(link, order=True, maxMsgNums=2, attemptId="a")
    assert bodies(second) == bodies(first) == [b"m0", b"m1"]
    assert [m.times for m in second] == [0, 0]
    ack(link, first[0])
    assert committed(bench) == 0
    ack(link, second[0])
    assert committed(bench) == 1


def test_ordered_change_keeps_the_pop_time(bench: Bench) -> None:
    fill(bench, 2)
    link = bench.connect()
    messages = pop(link, order=True, maxMsgNums=1)
    pass_ms(bench, 1_000)
    before = messages[0].pop_ms
    answer = change(link, messages[0], 20_000)
    assert (int(answer.fields["popTime"]), answer.fields["invisibleTime"]) == (before, "21000")
    pass_ms(bench, 15_000)
    assert pop(link, order=True) == []
    ack(link, messages[0])
    assert bodies(pop(link, order=True)) == [b"m1"]
    beyond = messages[0]
    beyond.receipt = beyond.receipt.rsplit(" ", 1)[0] + " 2"
    assert ack(link, beyond).code == Answer.MESSAGE_ILLEGAL


def test_retry_topic_of_a_real_broker(bench: Bench) -> None:
    fill(bench, 1)
    bench.broker.topics.create(TopicConfig(f"%RETRY%{GROUP}_{TOPIC}", 1, 1))
    link = bench.connect()
    link.feed(send_frame(b"again", "TAGS\x01x\x02", b=f"%RETRY%{GROUP}_{TOPIC}", j="2"))
    messages = {m.body: m for m in pop(link, queueId=-1)}
    again = messages[b"again"]
    assert (again.topic, again.times, again.receipt.split()[4]) == (TOPIC, 2, "1")
    assert ack(link, again).code == 0
    assert bench.broker.offsets.query(GROUP, f"%RETRY%{GROUP}_{TOPIC}", 0) == 1
    batch_ack(link, [messages[b"m0"]])
    link.feed(pop_frame(pollTime=15_000, queueId=-1))
    bench.connect().feed(send_frame(b"more", b=f"%RETRY%{GROUP}_{TOPIC}", j="1"))
    assert bodies(later(link.take())) == [b"more"]


REFUSED = {
    "unknown topic": ({"topic": "X"}, Answer.TOPIC_NOT_EXIST),
    "own topic": ({"topic": "rmq_sys_gantry_topic"}, Answer.NO_PERMISSION),
    "queue": ({"queueId": 4}, 29),
    "too many": ({"maxMsgNums": 33}, 29),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(bench: Bench, name: str) -> None:
    fill(bench, 1)
    fields, code = REFUSED[name]
    assert pop_answer(bench.connect(), **fields).code == code


def test_refused_acknowledgements(bench: Bench) -> None:
    fill(bench, 1)
    link = bench.connect()
    (one,) = pop(link)
    assert ack(link, one, topic="X").code == Answer.TOPIC_NOT_EXIST
    assert ack(link, one, queueId=9).code == Answer.MESSAGE_ILLEGAL
    assert ack(link, one, offset=7).code == Answer.NO_MESSAGE
    assert ack(link, one, extraInfo="x").code == Answer.SYSTEM_ERROR
    assert ack(link, one, consumerGroup="other").code == 0
    assert change(link, one, 1000, offset=1).code == Answer.NO_MESSAGE
    assert committed(bench) == 0


def test_limit_of_leases(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pops, "LEASED_MAX", 3)
    fill(bench, 5)
    link = bench.connect()
    held = pop(link, maxMsgNums=3)
    assert pop_answer(link).code == Answer.SYSTEM_BUSY
    ack(link, held[0])
    assert pop_answer(link).code == Answer.SYSTEM_BUSY
    batch_ack(link, held)
    assert len(pop(link)) == 2


def test_limit_of_one_queue(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pops, "INFLIGHT_MAX", 4)
    fill(bench, 6)
    link = bench.connect()
    held = pop(link, maxMsgNums=4)
    assert pop(link) == []
    pass_ms(bench, 10_100)
    assert bodies(pop(link)) == [b"m0", b"m1", b"m2", b"m3"]
    batch_ack(link, held)
    assert committed(bench) == 0


def test_deleted_topic_and_group_take_their_places_along(bench: Bench) -> None:
    fill(bench, 3)
    link = bench.connect()
    pop(link)
    bench.broker.delete_topic(TOPIC)
    bench.turn.run_until_quiet()
    assert not [c for c in bench.broker.cursors.views() if c.group.startswith(POP_PREFIX)]
    assert bench.broker.pops.leases.entries == 0
    fill(bench, 1, first=7)
    assert bodies(pop(link)) == [b"m7"]


def test_binary_headers_reach_the_handlers_by_their_low_bits() -> None:
    assert HANDLERS[3442] is HANDLERS[200050]
    assert HANDLERS[3543] is HANDLERS[200151]


def test_priority_topic_reads_its_highest_queue_first(bench: Bench) -> None:
    bench.broker.topics.create(TopicConfig(TOPIC, 4, 4, attributes={"message.type": "PRIORITY"}))
    for queue in range(4):
        fill(bench, 1, queue=queue, first=queue)
    assert bodies(pop(bench.connect(), queueId=-1)) == [b"m3", b"m2", b"m1", b"m0"]


LMQ = "%LMQ%own"


def test_light_queue_of_a_client(bench: Bench) -> None:
    fill(bench, 3, queue=2)
    bench.broker.topics.create(TopicConfig(LMQ, 1, 1))
    link = bench.connect()
    for i in range(2):
        link.feed(send_frame(b"l%d" % i, f"INNER_MULTI_DISPATCH\x01{LMQ}\x02", e=2))
    answer = pop_answer(link, topic=LMQ)
    assert (answer.code, answer.fields["msgOffsetInfo"]) == (0, "0 0 0,1")
    assert bodies_of(answer.body) == [b"l0", b"l1"]
    pass_ms(bench, 10_100)
    again = popped(pop_answer(link, topic=LMQ))
    assert [(m.topic, m.queue_id, m.offset, m.times) for m in again] == [(LMQ, 0, 0, 1), (LMQ, 0, 1, 1)]
    assert batch_ack(link, again).code == 0
    assert bench.broker.offsets.query(GROUP, LMQ, 0) == 2


def test_a_poll_waits_for_a_peer_that_takes_no_answers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bench, 0)
    bench.broker.topics.create(TopicConfig(TOPIC, 4, 4))
    link = bench.connect()
    link.feed(pop_frame(pollTime=15_000))
    full = True
    monkeypatch.setattr(broker_door.BrokerConnection, "full", lambda door: full)
    fill(bench, 1)
    assert link.take() == b""
    assert bench.doors.pops.polls.waiting == 0
    full = False
    link.door.writable()
    bench.turn.run_until_quiet()
    assert bodies(later(link.take())) == [b"m0"]


def test_cold_records_are_leased_when_they_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.remoting.bench.Files", ColdDisk)
    bench = Bench(tmp_path)
    fill(bench, 3)
    bench.close()
    bench = Bench(tmp_path)
    posted: SimpleQueue[tuple[Callable[[Any], None], Any]] = SimpleQueue()
    reads = ColdReads(bench.store.files, lambda callback, value: posted.put((callback, value)))
    bench.store.read_without_waiting(reads)
    link = bench.connect()

    def arrive() -> bytes:
        """Let the disk answer until the consumer is answered."""
        for _ in range(20):
            data = link.take()
            if data:
                return data
            callback, value = posted.get(timeout=30)
            callback(value)
            bench.turn.run_until_quiet()
        raise AssertionError("no answer")

    assert link.feed(pop_frame(maxMsgNums=2)) == b""
    assert bench.broker.pops.leases.entries == 0
    assert bodies(later(arrive())) == [b"m0", b"m1"]
    assert link.feed(pop_frame(maxMsgNums=1)) == b""
    assert bodies(later(arrive())) == [b"m2"]
    assert bench.broker.pops.leases.entries == 3
    assert link.feed(pop_frame(pollTime=15_000)) == b""
    pass_ms(bench, 10_100)
    assert bodies(later(arrive())) == [b"m0", b"m1", b"m2"]
    bench.close()
    reads.stop()


@pytest.mark.parametrize("code", [200056, 200056 & 0xFFFF])
def test_rollback_of_the_pop_store_has_nothing_to_do(bench: Bench, code: int) -> None:
    assert ask(bench.connect(), code).code == 0
