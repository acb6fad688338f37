"""Replies: pushed to the requesting client, stored beside it, and refused when that client is gone."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.net.testing import FakeLink
from gantrymq.remoting.codec import Command, response
from gantrymq.remoting.codec import encode as encode_frame
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.json_bodies import Heartbeat, ProducerData, encode
from gantrymq.remoting.server.clients.calls import CALL_MS
from gantrymq.remoting.server.sending import replies as reply_requests
from gantrymq.remoting.server.sending.replies import Requesters
from tests.remoting.bench import SEND, Bench, answers, ask, request, send
from tests.remoting.server.sending.test_sends import stored

TOPIC = "DefaultCluster_REPLY_TOPIC"
TEXT = "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c1\x02REPLY_TO_CLIENT\x01asker@1\x02TTL\x013000\x02"


def asker(bench: Bench, client_id: str = "asker@1", group: str = "askers") -> FakeLink:
    link = bench.connect("10.0.0.9:1")
    beat = encode(Heartbeat(client_id, [ProducerData(group)]))
    assert ask(link, Code.HEART_BEAT, beat).code == 0
    return link


def take_push(link: FakeLink, code: int = 0) -> Command:
    """The client gets a reply, and answers."""
    (push,) = answers(link.take())
    assert (push.code, push.flag) == (Code.PUSH_REPLY_MESSAGE_TO_CLIENT, 0)
    link.feed(response(push, code, "no" if code else None))
    return push


def begin(bench: Bench, text: str = TEXT, body: bytes = b"answer", code: int = 325, **fields: Any) -> FakeLink:
    """The connection of a replier that waits."""
    link = bench.connect("10.0.0.2:50")
    wanted = SEND | {"b": TOPIC, "i": text, "e": "-1"} | fields
    link.sent += link.feed(request(code, body, 7, **wanted))
    return link


def reply(bench: Bench, asked: FakeLink | None = None, text: str = TEXT, **fields: Any) -> Command:
    """The answer to a reply; `asked`: the client takes it."""
    replier = begin(bench, text, **fields)
    if asked is not None:
        assert not replier.sent, "the replier hears when the client has answered"
        take_push(asked)
    (answer,) = answers(replier.take())
    return answer


@pytest.mark.parametrize("old", [False, True])
def test_reply_is_pushed_and_stored(bench: Bench, old: bool) -> None:
    link = asker(bench)
    if old:
        names = {
            "producerGroup": "PG", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
            "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0", "properties": TEXT, "reconsumeTimes": "0",
            "unitMode": "false",
        }  # fmt: skip
        replier = bench.connect("10.0.0.2:50")
        assert replier.feed(encode_frame(Command(324, names, b"answer"))) == b""
    else:
        replier = begin(bench, e="0")
    (message,) = stored(bench, TOPIC)
    assert (message.body, message.property("CORRELATION_ID")) == (b"answer", "c1")
    now = str(bench.clock.now_ms())
    push = take_push(link)
    assert push.body == b"answer"
    assert push.fields == {
        "bornHost": "10.0.0.2:50", "storeHost": "127.0.0.1:10911", "storeTimestamp": now, "producerGroup": "PG",
        "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0",
        "bornTimestamp": "1700000000000", "flag": "0", "properties": f"{TEXT}PUSH_REPLY_TIME\x01{now}\x02",
        "unitMode": "false", "reconsumeTimes": "0",
    }  # fmt: skip
    (answer,) = answers(replier.take())
    assert answer.code == 0, answer.remark
    assert answer.fields["msgId"] == f"7F00000100002A9F{message.physical_offset:016X}"
    assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("0", "0")


def test_reply_is_not_stored_where_that_is_off(bench: Bench) -> None:
    bench.doors.table[Code.SEND_REPLY_MESSAGE_V2].services.store_replies = False
    answer = reply(bench, asker(bench))
    assert (answer.code, answer.fields["msgId"], answer.fields["queueOffset"]) == (0, "0", "0")
    assert stored(bench, TOPIC) == []


@pytest.mark.parametrize("how", ["refuses", "says nothing", "goes"])
def test_the_replier_hears_that_the_client_did_not_take_it(bench: Bench, how: str) -> None:
    link = asker(bench)
    replier = begin(bench)
    if how == "refuses":
        take_push(link, Answer.SYSTEM_ERROR)
    elif how == "goes":
        link.lose()
    else:
        bench.wheel.advance(CALL_MS - 100)
        assert not replier.take()
        bench.wheel.advance(200)
    bench.turn.run_until_quiet()
    (answer,) = answers(replier.take())
    assert answer.code == Answer.SYSTEM_ERROR
    assert (answer.remark or "").startswith("push reply message to asker@1 fail")
    if how == "says nothing":
        link.feed(response(answers(link.take())[0]))  # late
        assert not replier.take()
    assert len(stored(bench, TOPIC)) == 1


def test_a_client_is_sent_only_so_many_replies_that_it_does_not_confirm(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_requests, "PUSHED_MAX", 2)
    link = asker(bench)
    repliers = [begin(bench) for _ in range(3)]
    assert [bool(replier.take()) for replier in repliers[:2]] == [False, False]
    (refused,) = answers(repliers[2].take())
    assert refused.code == Answer.SYSTEM_ERROR
    assert "2 requests" in (refused.remark or "")
    first, _ = answers(link.take())
    link.feed(response(first))
    assert answers(repliers[0].take())[0].code == 0
    assert begin(bench).sent == b"", "there is room again"


def test_a_replier_that_is_gone_when_its_client_answers(bench: Bench) -> None:
    link = asker(bench)
    replier = begin(bench)
    replier.lose()
    take_push(link)
    assert replier.take() == b""


@pytest.mark.parametrize("how", ["never", "closed", "unregistered", "other id"])
def test_client_is_gone(bench: Bench, how: str) -> None:
    if how != "never":
        link = asker(bench, "asker@2" if how == "other id" else "asker@1")
        assert how == "other id" or reply(bench, link).code == 0
        link.take()
        if how == "closed":
            link.lose()
        elif how == "unregistered":
            ask(link, Code.UNREGISTER_CLIENT, clientID="asker@1", producerGroup="askers")
    before = bench.store.max_offset(TOPIC, 0)
    answer = reply(bench, e="0")
    assert answer.code == Answer.SYSTEM_ERROR
    assert answer.remark == "push reply message fail, channel of <asker@1> not found."
    assert bench.store.max_offset(TOPIC, 0) == before + 1  # kept all the same, as RocketMQ does


def test_without_a_client(bench: Bench) -> None:
    answer = reply(bench, None, "CORRELATION_ID\x01c1\x02")
    assert (answer.code, answer.remark) == (Answer.SYSTEM_ERROR, "reply message properties[REPLY_TO_CLIENT] is null")


def test_client_that_does_not_read(bench: Bench) -> None:
    link = asker(bench)
    assert link.door is not None
    link.door.full = lambda: True  # type: ignore[attr-defined]
    answer = reply(bench)
    assert answer.code == Answer.SYSTEM_ERROR
    assert "does not read" in (answer.remark or "")


def test_replier_that_guesses_the_queue(bench: Bench) -> None:
    """Its client has no route of the topic yet and takes that of TBW102."""
    link = asker(bench)
    bench.broker.ensure_topic(TOPIC, True, 1)
    answer = reply(bench, link, e="3")
    assert (answer.code, answer.fields["queueId"]) == (0, "0")


def test_oneway_reply(bench: Bench) -> None:
    link = asker(bench)
    assert bench.connect().feed(request(325, b"x", 7, 2, **SEND | {"b": TOPIC, "i": TEXT})) == b""
    assert len(answers(link.take())) == 1


def test_refused_reply_is_not_pushed(bench: Bench) -> None:
    link = asker(bench)
    assert reply(bench, b="SCHEDULE_TOPIC_XXXX").code == Answer.NO_PERMISSION
    assert link.take() == b""


def test_a_request_makes_the_topic_of_replies(bench: Bench) -> None:
    assert send(bench.connect(), b"x", "UNIQ_KEY\x01u\x02REPLY_TO_CLIENT\x01asker@1\x02").code == 0
    topic = bench.broker.topics.get(TOPIC)
    assert topic is not None
    assert (topic.config.read_queues, topic.config.write_queues) == (1, 1)


def test_requesters_are_found_again_after_changing_groups(bench: Bench) -> None:
    requesters = Requesters(bench.doors.clients)
    first = asker(bench, group="one")
    assert requesters.find("asker@1") is first.door
    ask(first, Code.UNREGISTER_CLIENT, clientID="asker@1", producerGroup="one")
    assert requesters.find("asker@1") is None
    second = asker(bench, group="two")
    assert requesters.find("asker@1") is second.door
