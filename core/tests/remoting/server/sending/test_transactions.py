"""Transactions over the Remoting door: decisions, checks pushed to producers, resuming, the list for people."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gantrymq.broker.config import TransactionsConfig
from gantrymq.broker.transactions.half_messages import GIVEN_UP_TOPIC, HALF_TOPIC
from gantrymq.net.testing import FakeLink
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.overview_codes import LIST_TRANSACTIONS
from gantrymq.store.log import record
from tests.remoting.bench import Bench, answers, ask, pull, request, send
from tests.remoting.test_requests import beat

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


def half(link: FakeLink, unique: str, more: str = "", **fields: Any) -> Command:
    text = f"TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01{unique}\x02TAGS\x01t\x02{more}"
    answer = send(link, b"body of " + unique.encode(), text, **({"f": 4, "e": 1} | fields))
    assert answer.code == 0, answer.remark
    return answer


def decision(answer: Command, kind: int, **fields: Any) -> dict[str, Any]:
    given = {
        "producerGroup": "PG", "tranStateTableOffset": answer.fields["queueOffset"],
        "commitLogOffset": int(answer.fields["msgId"][16:], 16), "commitOrRollback": kind, "fromTransactionCheck": False,
        "msgId": "x", "transactionId": "x",
    }  # fmt: skip
    return given | fields


def decide(link: FakeLink, answer: Command, kind: int, **fields: Any) -> Command:
    return ask(link, Code.END_TRANSACTION, **decision(answer, kind, **fields))


def stored(link: FakeLink) -> list[bytes]:
    body = pull(link, queueId=1).body
    found, at = [], 0
    while at < len(body):
        message = record.decode(body, at)
        found.append(message.body)
        at += message.size
    return found


def checks(link: FakeLink) -> list[Command]:
    return [command for command in answers(link.take()) if command.code == Code.CHECK_TRANSACTION_STATE]


@pytest.mark.parametrize("unique", ["7F00000100002A9F", 'a "quoted" ü'])
def test_the_answer_to_a_half_message_names_the_transaction(bench: Bench, unique: str) -> None:
    """SendMessageProcessor.handlePutMessageResult; TransactionSendResult.getTransactionId of an application is this."""
    assert half(bench.connect(), unique).fields["transactionId"] == unique


def test_a_message_comes_with_its_commit(bench: Bench) -> None:
    link = bench.connect()
    answer = half(link, "u1")
    assert answer.fields["queueId"] == "1"  # the queue that the producer chose, as RocketMQ answers
    assert pull(link, queueId=1).code == Answer.PULL_NOT_FOUND
    assert decide(link, answer, COMMIT).code == 0
    assert stored(link) == [b"body of u1"]
    assert decide(link, half(link, "u2"), ROLLBACK).code == 0
    assert stored(link) == [b"body of u1"]


@pytest.mark.parametrize("young", [True, False])
def test_light_queues_of_a_client_are_entered_at_the_commit(bench: Bench, young: bool) -> None:
    link = bench.connect()
    answer = half(link, "u1", "INNER_MULTI_DISPATCH\x01%LMQ%x,%LMQ%y\x02")
    assert pull(link, topic="%LMQ%x").code != 0
    all_ = bench.broker.transactions
    if not young:
        all_.drop_message(all_.table[0])
    assert decide(link, answer, COMMIT).code == 0
    for topic in ("%LMQ%x", "%LMQ%y"):
        assert record.decode(pull(link, topic=topic).body).body == b"body of u1"
    (unit,) = bench.store.units("T", 1, 0, 9)
    (message,) = bench.store.get_many([unit[:2]])
    assert message is not None
    assert message.property("REAL_TOPIC") == "T"
    assert message.dispatch.count(b"INNER_MULTI_DISPATCH") == 1
    assert b"INNER_MULTI" not in message.properties


def test_no_answer_to_unknown_and_to_one_way(bench: Bench) -> None:
    link = bench.connect()
    answer = half(link, "u1")
    assert link.feed(request(Code.END_TRANSACTION, **decision(answer, UNKNOWN))) == b""
    assert ask(link, Code.END_TRANSACTION, **decision(answer, 5)).code == Answer.SYSTEM_ERROR
    assert link.feed(request(Code.END_TRANSACTION, flag=2, **decision(answer, COMMIT, producerGroup="other"))) == b""
    assert pull(link, queueId=1).code == Answer.PULL_NOT_FOUND
    assert link.feed(request(Code.END_TRANSACTION, flag=2, **decision(answer, COMMIT))) == b""
    assert stored(link) == [b"body of u1"]


def test_refusals(bench: Bench) -> None:
    link = bench.connect()
    first, second = (
        half(link, "u1"),
        half(link, "u2", "CHECK_IMMUNITY_TIME_IN_SECONDS\x018\x02", g=bench.clock.now_ms()),
    )
    for fields, remark in (
        ({"producerGroup": "X"}, "The producer group wrong"),
        ({"tranStateTableOffset": 7}, "The transaction state table offset wrong"),
        ({"commitLogOffset": 3}, "Find prepared transaction message failed"),
        ({"tranStateTableOffset": 99, "commitLogOffset": 1 << 61}, "Find prepared transaction message failed"),
    ):
        answer = decide(link, first, COMMIT, **fields)
        assert (answer.code, answer.remark) == (Answer.SYSTEM_ERROR, remark)
    assert ask(link, Code.END_TRANSACTION, producerGroup="PG").code == Answer.SYSTEM_ERROR
    bench.wheel.advance(8_001)
    assert decide(link, second, COMMIT).code == 604
    assert decide(link, second, COMMIT, fromTransactionCheck=True).code == 0
    assert decide(link, second, ROLLBACK, fromTransactionCheck=True).code == 604
    assert stored(link) == [b"body of u2"]


def test_a_check_says_which_one_it_is(bench: Bench) -> None:
    link = bench.connect()
    answer = half(link, "u1", "own\x01x\x02")
    ask(link, Code.HEART_BEAT, beat("c1", producer="PG"))
    for number in (1, 2):
        bench.wheel.advance(30_010)
        bench.turn.run_until_quiet()
        (check,) = checks(link)
        asked = record.decode(check.body)
        assert (asked.property("TRANSACTION_CHECK_TIMES"), asked.property("own")) == (str(number), "x")
    assert decide(link, answer, COMMIT).code == 0
    assert "TRANSACTION_CHECK_TIMES" not in record.decode(pull(link, queueId=1).body).property_map()


def test_one_producer_of_the_group_is_asked_at_a_time(bench: Bench) -> None:
    one, two, other = bench.connect(), bench.connect(), bench.connect()
    answer = half(one, "u1")
    ask(two, Code.HEART_BEAT, beat("c2", producer="PG"))
    ask(one, Code.HEART_BEAT, beat("c1", producer="PG"))
    ask(other, Code.HEART_BEAT, beat("c3", producer="other"))
    asked = []
    for _ in range(2):
        bench.wheel.advance(30_010)
        bench.turn.run_until_quiet()
        asked.append([len(checks(link)) for link in (one, two, other)])
    assert sorted(asked) == [[0, 1, 0], [1, 0, 0]]
    two.lose()
    bench.wheel.advance(30_010)
    bench.turn.run_until_quiet()
    (command,) = checks(one)
    assert command.is_oneway
    assert command.fields == {
        "topic": HALF_TOPIC, "tranStateTableOffset": "0", "commitLogOffset": str(int(answer.fields["msgId"][16:], 16)),
        "msgId": "u1", "transactionId": "u1", "offsetMsgId": answer.fields["msgId"], "bname": "broker-a",
    }  # fmt: skip
    message = record.decode(command.body)
    assert (message.topic, message.queue_id, message.body, message.tag) == ("T", 1, b"body of u1", "t")
    assert message.property("PGROUP") == "PG"
    sent = command.fields
    assert ask(one, Code.END_TRANSACTION, producerGroup="PG", tranStateTableOffset=sent["tranStateTableOffset"],
               commitLogOffset=sent["commitLogOffset"], commitOrRollback=COMMIT, fromTransactionCheck=True).code == 0  # fmt: skip
    assert stored(one) == [b"body of u1"]
    bench.wheel.advance(60_000)
    assert checks(one) == []


def test_what_was_given_up_is_resumed_once(bench: Bench) -> None:
    link = bench.connect()
    bench.broker.transactions.config = TransactionsConfig(check_max=1, timeout_ms=0, check_interval_ms=1_000)
    first = half(link, "u1")
    ask(link, Code.HEART_BEAT, beat("c1", producer="PG"))
    for _ in range(3):
        bench.wheel.advance(1_010)
        bench.turn.run_until_quiet()
    (quarantine,) = bench.store.query(GIVEN_UP_TOPIC, "u1", 9, 0, 1 << 60)
    id_ = f"{first.fields['msgId'][:16]}{quarantine.physical_offset:016X}"
    for wrong in (first.fields["msgId"], "x", "", "F" * 32):
        assert ask(link, Code.RESUME_CHECK_HALF_MESSAGE, msgId=wrong).code == Answer.SYSTEM_ERROR
    bench.broker.transactions.config = TransactionsConfig()
    both = [request(Code.RESUME_CHECK_HALF_MESSAGE, opaque=n, msgId=id_, topic=GIVEN_UP_TOPIC) for n in (1, 2)]
    codes = {answer.opaque: (answer.code, answer.remark) for answer in answers(link.feed(b"".join(both)))}
    assert codes[1][0] == 0, codes
    assert "being resumed already" in str(codes[2][1])
    assert "resumed already" in str(ask(link, Code.RESUME_CHECK_HALF_MESSAGE, msgId=id_).remark)
    ((again, count),) = bench.broker.transactions.undecided(0, 9)[0]
    assert (again.unique, count) == ("u1", 0)
    assert decide(link, first, COMMIT).code == 604  # the first half message was given up, and that is final
    assert decide(link, first, COMMIT, tranStateTableOffset=again.offset, commitLogOffset=again.position).code == 0
    assert stored(link) == [b"body of u1"]


def listed(link: FakeLink, **fields: Any) -> tuple[list[tuple[str, int]], int]:
    value = json.loads(ask(link, LIST_TRANSACTIONS, **fields).body)
    return [(row["transactionId"], row["producers"]) for row in value["transactions"]], value["next"]


def test_the_list_for_people(bench: Bench) -> None:
    link = bench.connect()
    assert listed(link) == ([], -1)
    for number in range(5):
        half(link, f"u{number}")
    assert listed(link) == ([(f"u{number}", 0) for number in range(5)], -1)
    ask(link, Code.HEART_BEAT, beat("c1", producer="PG"))
    assert listed(link, count=2) == ([("u0", 1), ("u1", 1)], 2)
    assert listed(link, count=2, start=4) == ([("u4", 1)], -1)
    assert listed(link, transactionId="u3") == ([("u3", 1)], -1)
    assert listed(link, group="X") == ([], -1)
    for number in range(5, 300):
        half(link, f"u{number}")
    rows, following = listed(link, count=100_000)
    assert (len(rows), following) == (256, 256)
    assert listed(link, start=following)[1] == -1


@pytest.mark.parametrize("kind", [COMMIT, ROLLBACK])
def test_an_answer_waits_for_the_flush(tmp_path: Any, kind: int) -> None:
    bench = Bench(tmp_path, sync=True)
    link = bench.connect()
    ask_half = request(Code.SEND_MESSAGE_V2, b"x", 1, **{
        "a": "PG", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 4, "g": 1, "h": 0, "j": 0, "k": False, "m": False,
        "i": "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01u\x02",
    })  # fmt: skip
    assert link.feed(ask_half) == b""
    bench.broker.gate.advance(bench.store.flush())
    bench.turn.run_until_quiet()
    (answer,) = answers(link.take())
    assert link.feed(request(Code.END_TRANSACTION, **decision(answer, kind))) == b""
    bench.broker.gate.advance(bench.store.flush())
    bench.turn.run_until_quiet()
    (done,) = answers(link.take())
    assert done.code == 0
    bench.close()


def test_half_messages_of_one_read_and_of_several(bench: Bench) -> None:
    """The records differ in nothing else than what was sent."""
    link = bench.connect()

    def frame(unique: str, prepared: bool, opaque: int) -> bytes:
        text = f"TAGS\x01t\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01{unique}\x02PGROUP\x01PG\x02"
        text += "TRAN_MSG\x01true\x02" if prepared else "TRAN_MSG\x01fals\x02"
        return request(Code.SEND_MESSAGE_V2, b"body of " + unique.encode(), opaque, **{
            "a": "PG", "b": "T", "c": "TBW102", "d": 4, "e": 1, "f": 4 if prepared else 0, "g": 1700000000000, "h": 0, "i": text, "j": 0,
        })  # fmt: skip

    found = []
    for first in (1, 5):
        frames = [frame(f"u{number}", number % 4 != 2, 10 + number) for number in range(first, first + 4)]
        found += answers(link.feed(frames[0] + frames[1])) + answers(link.feed(frames[2] + frames[3]))
    found += answers(link.feed(frame("u9", True, 19)))
    halves = [one for one in found if "transactionId" in one.fields]
    assert sorted(one.opaque for one in found) == list(range(11, 20))
    assert [(one.opaque, one.fields["transactionId"]) for one in sorted(halves, key=lambda one: one.opaque)] == [
        (10 + number, f"u{number}") for number in (1, 3, 4, 5, 7, 8, 9)
    ]
    assert {one.fields["queueId"] for one in found} == {"1"}
    assert stored(link) == [b"body of u2", b"body of u6"]
    units = bench.store.units(HALF_TOPIC, 0, 0, 9)
    records = [one for one in bench.store.get_many([unit[:2] for unit in units]) if one is not None]
    assert len(records) == 7
    for one in records:
        unique = one.property("UNIQ_KEY")
        expected = records[0].properties.replace(b"u1", unique.encode())
        assert (one.properties, one.body, one.tag) == (expected, b"body of " + unique.encode(), "t")
        assert (one.sys_flag, one.born_ms, one.flag, one.queue_id) == (0, 1700000000000, 0, 0)
        for key in (unique, "k1", "k2"):
            assert one.physical_offset in [
                hit.physical_offset for hit in bench.store.query(HALF_TOPIC, key, 9, 0, 1 << 60)
            ]
    for one in halves:
        assert decide(link, one, COMMIT).code == 0
    assert len(stored(link)) == 9
