"""Requests of tools: offsets, clients that the broker asks, statistics, settings; one door each on a real store."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.broker.consuming import offsets as offsets_module
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.testing import FakeLink
from gantrymq.remoting import java_properties
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.codec import Command, encode
from gantrymq.remoting.constants import FLAG_RESPONSE, Language
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.server import jobs
from gantrymq.remoting.server.admin import groups as admin_groups
from gantrymq.remoting.server.admin import topics as admin_topics
from gantrymq.remoting.server.clients import calls
from tests.remoting.bench import Bench, answers, ask, pull, request, send
from tests.remoting.test_requests import beat


def group(bench: Bench, name: str = "CG") -> None:
    ask(bench.connect(), Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json.dumps({"groupName": name}).encode())


def fill(bench: Bench, link: FakeLink, count: int = 4) -> None:
    """`count` messages in queue 0 of T, a second apart."""
    for _ in range(count):
        send(link)
        bench.clock.advance(1000)


def offsets_in(answer: Command) -> dict[int, int]:
    table = bodies.read_json(answer.body)["offsetTable"]
    return {json.loads(queue)["queueId"]: offset for queue, offset in table.items()}


def requests_to(link: FakeLink) -> list[Command]:
    """What the broker asked the client behind a link."""
    return [command for command in answers(link.take()) if not command.is_response]


def reply(link: FakeLink, asked: Command, body: bytes = b"", code: int = 0) -> None:
    link.feed(encode(Command(code, {}, body, asked.opaque, FLAG_RESPONSE, None, Language.JAVA)))


# Offsets.


def test_reset_on_the_server(bench: Bench) -> None:
    link = bench.connect()
    begin_ms = bench.clock.now_ms()
    fill(bench, link)
    answer = ask(link, Code.INVOKE_BROKER_TO_RESET_OFFSET, group="CG", topic="T", timestamp=0, isForce=True)
    assert answer.code == Answer.SUBSCRIPTION_GROUP_NOT_EXIST
    group(bench)
    ask(link, Code.UPDATE_CONSUMER_OFFSET, consumerGroup="CG", topic="T", queueId=0, commitOffset=4)
    reset = {"group": "CG", "topic": "T", "isForce": True}
    answer = ask(link, Code.INVOKE_BROKER_TO_RESET_OFFSET, **reset, timestamp=begin_ms + 1500)
    assert offsets_in(answer) == {0: 2, 1: 0, 2: 0, 3: 0}
    query = {"consumerGroup": "CG", "topic": "T", "queueId": 0}
    assert ask(link, Code.QUERY_CONSUMER_OFFSET, **query).fields == {"offset": "2"}
    # Until it has heard of it, the consumer's own commits do not count.
    ask(link, Code.UPDATE_CONSUMER_OFFSET, **query, commitOffset=4)
    assert ask(link, Code.QUERY_CONSUMER_OFFSET, **query).fields == {"offset": "2"}
    told = pull(link, queueOffset=4)
    assert (told.code, told.fields["nextBeginOffset"]) == (Answer.PULL_OFFSET_MOVED, "2")
    assert pull(link, queueOffset=2).code == 0
    ask(link, Code.UPDATE_CONSUMER_OFFSET, **query, commitOffset=3)
    assert ask(link, Code.QUERY_CONSUMER_OFFSET, **query).fields == {"offset": "3"}


def test_reset_of_one_queue(bench: Bench) -> None:
    link = bench.connect()
    fill(bench, link)
    group(bench)
    one = {"group": "CG", "topic": "T", "isForce": True, "timestamp": -1}
    assert offsets_in(ask(link, Code.INVOKE_BROKER_TO_RESET_OFFSET, **one, queueId=0, offset=3)) == {0: 3}
    assert offsets_in(ask(link, Code.INVOKE_BROKER_TO_RESET_OFFSET, **one, queueId=0)) == {0: 4}
    assert offsets_in(ask(link, Code.INVOKE_BROKER_TO_RESET_OFFSET, **one))[0] == 4
    for wrong in ({"queueId": 0, "offset": 5}, {"queueId": 9, "offset": 0}):
        answer = ask(link, Code.INVOKE_BROKER_TO_RESET_OFFSET, **one, **wrong)
        assert (answer.code, bool(answer.remark)) == (Answer.SYSTEM_ERROR, True)
    unknown = ask(link, Code.INVOKE_BROKER_TO_RESET_OFFSET, **one | {"topic": "X"})
    assert unknown.code == Answer.TOPIC_NOT_EXIST


def test_reset_survives_a_restart_and_resets_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    link = bench.connect()
    fill(bench, link)
    group(bench)
    ask(link, Code.INVOKE_BROKER_TO_RESET_OFFSET, group="CG", topic="T", isForce=True, timestamp=-1)
    bench.close()
    again = Bench(tmp_path)
    assert again.broker.offsets.query("CG", "T", 0) == 4
    ask(again.connect(), Code.UPDATE_CONSUMER_OFFSET, consumerGroup="CG", topic="T", queueId=0, commitOffset=1)
    assert again.broker.offsets.query("CG", "T", 0) == 4, "the consumer has not heard of the reset"
    told = pull(again.connect(), queueOffset=1)
    assert (told.code, told.fields["nextBeginOffset"]) == (Answer.PULL_OFFSET_MOVED, "4")
    again.close()
    again = Bench(tmp_path)
    assert pull(again.connect(), queueOffset=1).code == 0, "once"
    told = pull(again.connect(), queueOffset=1, queueId=1)
    assert (told.code, told.fields["nextBeginOffset"]) == (Answer.PULL_OFFSET_MOVED, "0"), (
        "of the other queues nobody has heard"
    )
    monkeypatch.setattr(offsets_module, "RESETS_MAX", 1)
    answer = ask(again.connect(), Code.INVOKE_BROKER_TO_RESET_OFFSET, group="CG", topic="T", isForce=True, timestamp=0)
    assert answer.code == Answer.SYSTEM_BUSY
    again.close()


@pytest.mark.parametrize("of_topic", [True, False])
def test_a_reset_goes_with_its_topic_or_group(tmp_path: Path, of_topic: bool) -> None:
    bench = Bench(tmp_path)
    link = bench.connect()
    fill(bench, link)
    group(bench)
    ask(link, Code.INVOKE_BROKER_TO_RESET_OFFSET, group="CG", topic="T", isForce=True, timestamp=-1)
    assert bench.broker.tables.rows("reset") == {"T@CG": b'{"0":4,"1":0,"2":0,"3":0}'}
    if of_topic:
        assert ask(link, Code.DELETE_TOPIC_IN_BROKER, topic="T").code == 0
    else:
        assert ask(link, Code.DELETE_SUBSCRIPTIONGROUP, groupName="CG", cleanOffset=True).code == 0
    bench.close()
    again = Bench(tmp_path)
    assert again.broker.tables.rows("reset") == {}
    assert again.broker.offsets.resets == {}
    again.close()


def test_reset_at_the_clients(bench: Bench) -> None:
    link, consumer = bench.connect(), bench.connect()
    fill(bench, link)
    assert ask(link, Code.UPDATE_BROKER_CONFIG, b"useServerSideResetOffset=false").code == 0
    reset = {"group": "CG", "topic": "T", "timestamp": 0}
    assert ask(link, Code.INVOKE_BROKER_TO_RESET_OFFSET, **reset, isForce=True).code == Answer.SYSTEM_ERROR
    for queue in range(4):
        bench.broker.commits.commit("CG", "T", queue, 3)
    assert ask(link, Code.INVOKE_BROKER_TO_RESET_OFFSET, **reset, isForce=True).code == Answer.CONSUMER_NOT_ONLINE
    consumer.feed(encode(Command(Code.HEART_BEAT, {}, beat("c1", "CG"), 1, 0, None, 0, version=1)))
    assert ask(link, Code.INVOKE_BROKER_TO_RESET_OFFSET, **reset, isForce=True).code == Answer.SYSTEM_ERROR  # too old
    consumer.feed(encode(Command(Code.HEART_BEAT, {}, beat("c1", "CG"), 1, 0, None, 0, version=479)))
    consumer.take()
    answer = ask(link, Code.INVOKE_BROKER_TO_RESET_OFFSET, **reset, isForce=True)
    assert offsets_in(answer) == {0: 0, 1: 0, 2: 0, 3: 0}
    (told,) = requests_to(consumer)
    assert (told.code, told.is_oneway) == (Code.RESET_CONSUMER_CLIENT_OFFSET, True)
    assert offsets_in(told) == {0: 0, 1: 0, 2: 0, 3: 0}
    assert bench.broker.offsets.query("CG", "T", 0) == 3  # the client commits
    kept = ask(link, Code.INVOKE_BROKER_TO_RESET_OFFSET, **reset | {"timestamp": -1}, isForce=False)
    assert offsets_in(kept)[0] == 3  # not forced: never forward


def test_clone_and_correction(bench: Bench) -> None:
    link = bench.connect()
    fill(bench, link, 8)
    for name, offset in (("a", 2), ("b", 5), ("c", 7)):
        bench.broker.commits.commit(name, "T", 0, offset)
    assert ask(link, Code.CLONE_GROUP_OFFSET, srcGroup="b", destGroup="d", topic="T").code == 0
    assert ask(link, Code.CLONE_GROUP_OFFSET, srcGroup="c", destGroup="e").code == 0  # every topic
    query = bench.broker.offsets.query
    assert (query("d", "T", 0), query("e", "T", 0)) == (5, 7)
    lowest = {"correctionOffsets": {"0": 2}}
    assert json.loads(ask(link, Code.QUERY_CORRECTION_OFFSET, compareGroup="b", topic="T").body) == lowest
    filtered = ask(link, Code.QUERY_CORRECTION_OFFSET, compareGroup="b", topic="T", filterGroups="a,b,d")
    assert json.loads(filtered.body)["correctionOffsets"] == {"0": 2**63 - 1}
    everything = json.loads(ask(link, Code.GET_ALL_CONSUMER_OFFSET).body)["offsetTable"]
    assert everything["T@d"] == {"0": 5}
    assert ask(link, Code.CLONE_GROUP_OFFSET, srcGroup="b", destGroup="../x", topic="T").code != 0


def test_time_spans_and_units(bench: Bench) -> None:
    link = bench.connect()
    begin_ms = bench.clock.now_ms()
    fill(bench, link)
    bench.broker.commits.commit("CG", "T", 0, 2)
    spans = json.loads(ask(link, Code.QUERY_CONSUME_TIME_SPAN, topic="T", group="CG").body)["consumeTimeSpanSet"]
    assert [span["messageQueue"]["queueId"] for span in spans] == [0, 1, 2, 3]
    first = spans[0]
    assert (first["minTimeStamp"], first["maxTimeStamp"]) == (begin_ms, begin_ms + 3000)
    assert (first["consumeTimeStamp"], first["delayTime"]) == (begin_ms + 1000, 2000)
    assert (spans[1]["minTimeStamp"], spans[1]["delayTime"]) == (-1, 0)
    found = json.loads(ask(link, Code.QUERY_CONSUME_QUEUE, topic="T", queueId=0, index=1, count=2).body)
    assert (found["minQueueIndex"], found["maxQueueIndex"], len(found["queueData"])) == (0, 4, 2)
    beyond = ask(link, Code.QUERY_CONSUME_QUEUE, topic="T", queueId=0, index=9, count=2)
    assert (beyond.code, "Index 9" in (beyond.remark or "")) == (0, True)
    assert ask(link, Code.QUERY_CONSUME_QUEUE, topic="T", queueId=9, index=0, count=1).code == Answer.SYSTEM_ERROR
    assert ask(link, Code.QUERY_CONSUME_TIME_SPAN, topic="X", group="CG").code == Answer.TOPIC_NOT_EXIST


# Clients.


def test_producers(bench: Bench) -> None:
    link = bench.connect()
    link.feed(encode(Command(Code.HEART_BEAT, {}, beat("p1", producer="PG"), 1, 0, None, 0, version=479)))
    (found,) = json.loads(ask(link, Code.GET_PRODUCER_CONNECTION_LIST, producerGroup="PG").body)["connectionSet"]
    assert found == {"clientId": "p1", "clientAddr": "127.0.0.1:50000", "language": "JAVA", "version": 479}
    everyone = json.loads(ask(link, Code.GET_ALL_PRODUCER_INFO).body)["data"]
    assert everyone["PG"][0]["lastUpdateTimestamp"] == bench.clock.now_ms()
    assert ask(link, Code.GET_PRODUCER_CONNECTION_LIST, producerGroup="X").code == Answer.SYSTEM_ERROR


def test_who_consumes_what(bench: Bench) -> None:
    link = bench.connect()
    send(link)
    ask(link, Code.HEART_BEAT, beat("c1", "CG", tag="x"))
    bench.broker.commits.commit("CG", "T", 0, 1)
    assert json.loads(ask(link, Code.QUERY_TOPICS_BY_CONSUMER, group="CG").body)["topicList"] == ["T"]
    found = json.loads(ask(link, Code.QUERY_SUBSCRIPTION_BY_CONSUMER, group="CG", topic="T").body)
    assert found["subscriptionData"]["subString"] == "x"
    assert "subscriptionData" not in json.loads(
        ask(link, Code.QUERY_SUBSCRIPTION_BY_CONSUMER, group="CG", topic="U").body
    )


RUNNING = {"consumerGroup": "CG", "clientId": "c1", "jstackEnable": "false"}


def test_running_info_is_the_clients_answer(bench: Bench) -> None:
    tool, consumer = bench.connect(), bench.connect()
    offline = ask(tool, Code.GET_CONSUMER_RUNNING_INFO, **RUNNING)
    assert (offline.code, "not online" in (offline.remark or "")) == (Answer.SYSTEM_ERROR, True)
    consumer.feed(request(Code.HEART_BEAT, beat("c1", "CG")))
    consumer.take()
    assert tool.feed(request(Code.GET_CONSUMER_RUNNING_INFO, opaque=5, **RUNNING)) == b""
    (asked,) = requests_to(consumer)
    assert (asked.code, asked.is_oneway, asked.fields) == (Code.GET_CONSUMER_RUNNING_INFO, False, RUNNING)
    reply(consumer, asked, b'{"properties":{}}')
    (answer,) = answers(tool.take())
    assert (answer.code, answer.opaque, answer.body) == (0, 5, b'{"properties":{}}')
    reply(consumer, asked, b"again")  # nobody waits for it any more
    assert tool.take() == b""


def test_a_client_that_does_not_answer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, consumer = bench.connect(), bench.connect()
    consumer.feed(request(Code.HEART_BEAT, beat("c1", "CG")))
    tool.feed(request(Code.GET_CONSUMER_RUNNING_INFO, opaque=1, **RUNNING))
    bench.wheel.advance(calls.CALL_MS)
    bench.turn.run_until_quiet()
    (late,) = answers(tool.take())
    assert (late.code, late.opaque) == (Answer.CONSUME_MSG_TIMEOUT, 1)
    monkeypatch.setattr(calls, "CALLS_MAX", 2)
    for opaque in (2, 3):
        assert tool.feed(request(Code.GET_CONSUMER_RUNNING_INFO, opaque=opaque, **RUNNING)) == b""
    assert ask(tool, Code.GET_CONSUMER_RUNNING_INFO, **RUNNING).code == Answer.SYSTEM_BUSY
    consumer.lose()
    bench.turn.run_until_quiet()
    assert [(each.code, each.opaque) for each in answers(tool.take())] == [(1, 2), (1, 3)]


def test_a_tool_that_is_gone_gets_no_answer(bench: Bench) -> None:
    tool, consumer = bench.connect(), bench.connect()
    consumer.feed(request(Code.HEART_BEAT, beat("c1", "CG")))
    consumer.take()
    tool.feed(request(Code.GET_CONSUMER_RUNNING_INFO, **RUNNING))
    (asked,) = requests_to(consumer)
    tool.lose()
    reply(consumer, asked)
    assert tool.take() == b""


def test_consume_directly_sends_the_record(bench: Bench) -> None:
    tool, consumer = bench.connect(), bench.connect()
    sent = send(tool, b"the body")
    consumer.feed(request(Code.HEART_BEAT, beat("c1", "CG")))
    consumer.take()
    wanted = {"consumerGroup": "CG", "clientId": "c1", "msgId": sent.fields["msgId"], "topic": "T"}
    tool.feed(request(Code.CONSUME_MESSAGE_DIRECTLY, **wanted))
    (asked,) = requests_to(consumer)
    assert b"the body" in asked.body
    assert (asked.fields["brokerName"], asked.fields["topicSysFlag"]) == ("broker-a", "0")
    reply(consumer, asked, b'{"consumeResult":"CR_SUCCESS"}')
    assert answers(tool.take())[0].body == b'{"consumeResult":"CR_SUCCESS"}'
    for wrong in ("x", "0" * 31 + "G", "F" * 32, "0" * 32):
        answer = ask(tool, Code.CONSUME_MESSAGE_DIRECTLY, **wanted | {"msgId": wrong})
        assert (answer.code, bool(answer.remark)) == (Answer.SYSTEM_ERROR, True)


def test_consumer_status_gathers_all_members(bench: Bench) -> None:
    tool, one, two = bench.connect(), bench.connect(), bench.connect()
    wanted = {"topic": "T", "group": "CG"}
    assert ask(tool, Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **wanted).code == Answer.SYSTEM_ERROR
    for client, link in (("c1", one), ("c2", two)):
        link.feed(request(Code.HEART_BEAT, beat(client, "CG")))
    one.take(), two.take()
    tool.feed(request(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **wanted))
    (first,), (second,) = requests_to(one), requests_to(two)
    assert first.code == Code.GET_CONSUMER_STATUS_FROM_CLIENT
    reply(one, first, b'{"messageQueueTable":{{"topic":"T","brokerName":"broker-a","queueId":0}:7}}')
    assert tool.take() == b""
    reply(two, second, b"nonsense")
    (answer,) = answers(tool.take())
    table = bodies.read_json(answer.body)["consumerTable"]
    assert list(table) == ["c1"]
    assert list(table["c1"].values()) == [7]


# Topics and groups.


def test_lists_of_topics_and_groups(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    link = bench.connect()
    topics = [{"topicName": name, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6} for name in ("A", "B")]
    body = json.dumps({"topicConfigList": topics}).encode()
    assert ask(link, Code.UPDATE_AND_CREATE_TOPIC_LIST, body).code == 0
    version = bench.broker.topics.version
    assert ask(link, Code.UPDATE_AND_CREATE_TOPIC_LIST, body).code == 0
    assert bench.broker.topics.version == version  # the same again is no change
    bad = json.dumps({"topicConfigList": [{"topicName": "C"}, {"topicName": "../x"}]}).encode()
    assert ask(link, Code.UPDATE_AND_CREATE_TOPIC_LIST, bad).code == Answer.INVALID_PARAMETER
    assert [config.name for config in bench.broker.topics.configs()] == ["A", "B"]  # all or none
    groups = json.dumps({"groupConfigList": [{"groupName": "G1"}, {"groupName": "G2"}]}).encode()
    assert ask(link, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, groups).code == 0
    table = json.loads(ask(link, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert sorted(table["subscriptionGroupTable"]) == ["G1", "G2"]
    monkeypatch.setattr(admin_topics, "TOPICS_PER_REQUEST_MAX", 1)
    monkeypatch.setattr(admin_groups, "GROUPS_PER_REQUEST_MAX", 1)
    assert ask(link, Code.UPDATE_AND_CREATE_TOPIC_LIST, body).code == Answer.INVALID_PARAMETER
    assert ask(link, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, groups).code != 0


def test_changes_are_answered_when_they_are_flushed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    link = bench.connect()
    create = {"topic": "New", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    for code, body, fields in (
        (Code.UPDATE_AND_CREATE_TOPIC, b"", create),
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"G"}', {}),
        (Code.DELETE_SUBSCRIPTIONGROUP, b"", {"groupName": "G", "cleanOffset": True}),
        (Code.DELETE_TOPIC_IN_BROKER, b"", {"topic": "New"}),
        (Code.UPDATE_BROKER_CONFIG, b"fileReservedTime=24", {}),
    ):
        assert link.feed(request(code, body, **fields)) == b""
        bench.broker.gate.advance(bench.store.flush())
        bench.turn.run_until_quiet()
        (answer,) = answers(link.take())
        assert answer.code == 0
    bench.broker.gate.fail(GantryError(ErrorCode.STORE_FAILED, "disk"))
    assert ask(link, Code.UPDATE_AND_CREATE_TOPIC, **create).code == Answer.SERVICE_NOT_AVAILABLE
    bench.close()


@pytest.mark.parametrize("name", ["a/../b", "..", "a.b", "a\x00b", "a\nb", "/etc/passwd", "x" * 256, "ä"])
def test_names_never_reach_the_file_system(bench: Bench, tmp_path: Path, name: str) -> None:
    link = bench.connect()
    before = sorted(tmp_path.rglob("*"))
    create = {"topic": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    for code, body, fields in (
        (Code.UPDATE_AND_CREATE_TOPIC, b"", create),
        (Code.UPDATE_AND_CREATE_TOPIC_LIST, json.dumps({"topicConfigList": [{"topicName": name}]}).encode(), {}),
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json.dumps({"groupName": name}).encode(), {}),
        (Code.GET_TOPIC_STATS_INFO, b"", {"topic": name}),
        (Code.QUERY_CONSUME_QUEUE, b"", {"topic": name, "queueId": 0, "index": 0, "count": 1}),
        (Code.INVOKE_BROKER_TO_RESET_OFFSET, b"", {"group": name, "topic": name, "timestamp": 0, "isForce": True}),
        (Code.SEARCH_OFFSET_BY_TIMESTAMP, b"", {"topic": name, "queueId": 0, "timestamp": 0}),
    ):
        assert ask(link, code, body, **fields).code != 0, code
    ask(link, Code.DELETE_TOPIC_IN_BROKER, topic=name)
    ask(link, Code.DELETE_SUBSCRIPTIONGROUP, groupName=name, cleanOffset=True)
    assert sorted(tmp_path.rglob("*")) == before
    assert bench.broker.topics.configs() == []


def test_long_answers_come_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_topics, "TOPICS_PER_STEP", 2)
    link = bench.connect()
    for number in range(7):
        ask(link, Code.UPDATE_AND_CREATE_TOPIC, topic=f"T{number}", readQueueNums=1, writeQueueNums=1, perm=6)
    assert len(json.loads(ask(link, Code.GET_ALL_TOPIC_CONFIG).body)["topicConfigTable"]) == 7
    door = link.door
    assert door is not None
    door.received(request(Code.GET_ALL_TOPIC_CONFIG))
    assert bench.doors.jobs.running == 1
    monkeypatch.setattr(jobs, "JOBS_MAX", 1)
    door.received(request(Code.GET_ALL_TOPIC_CONFIG, opaque=8))
    assert link.feed(b"") != b""
    link.take()
    assert bench.doors.jobs.running == 0
    door.received(request(Code.GET_ALL_TOPIC_CONFIG))
    link.lose()
    bench.turn.run_until_quiet()
    assert bench.doors.jobs.running == 0


def test_a_long_answer_that_cannot_be_read_is_an_error_and_makes_room(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps(*_arguments: object) -> Iterator[None]:
        yield None
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(admin_topics, "_all_topics", steps)
    answer = ask(bench.connect(), Code.GET_ALL_TOPIC_CONFIG)
    assert (answer.code, answer.remark) == (1, "[Errno 5] Input/output error")
    assert bench.doors.jobs.running == 0


def test_request_modes_are_listed(bench: Bench) -> None:
    link = bench.connect()
    send(link)
    mode = {"topic": "T", "consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 1}
    assert ask(link, Code.SET_MESSAGE_REQUEST_MODE, json.dumps(mode).encode()).code == 0
    listed = json.loads(ask(link, Code.GET_ALL_MESSAGE_REQUEST_MODE).body)["messageRequestModeMap"]
    assert listed == {"T": {"CG": mode}}
    ask(link, Code.DELETE_TOPIC_IN_BROKER, topic="T")
    assert json.loads(ask(link, Code.GET_ALL_MESSAGE_REQUEST_MODE).body) == {"messageRequestModeMap": {}}


# Statistics and settings.


def test_statistics(bench: Bench) -> None:
    link = bench.connect()
    bench.store.on_units_written(bench.broker.stats.stored)
    fill(bench, link, 3)
    bench.store.flush_derived()
    assert pull(link).code == 0
    found = json.loads(ask(link, Code.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="T").body)
    assert [found[name]["sum"] for name in ("statsMinute", "statsHour", "statsDay")] == [3, 3, 3]
    got = json.loads(ask(link, Code.VIEW_BROKER_STATS_DATA, statsName="GROUP_GET_NUMS", statsKey="T@CG").body)
    assert (got["statsDay"]["sum"], got["statsDay"]["avgpt"]) == (3, 3.0)
    unknown = ask(link, Code.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="X")
    assert (unknown.code, unknown.remark) == (Answer.SYSTEM_ERROR, "The stats <TOPIC_PUT_NUMS> <X> not exist")
    group(bench)
    bench.broker.commits.commit("CG", "T", 0, 1)
    lag = bodies.read_json(ask(link, Code.GET_BROKER_CONSUME_STATS, isOrder=False).body)
    assert lag["totalDiff"] == 2
    assert lag["consumeStatsList"][0]["CG"][0]["consumeTps"] > 0
    table = json.loads(ask(link, Code.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("3", "3")
    assert len(table["putTps"].split()) == len(table["getTransferredTps"].split()) == 3
    assert int(table["earliestMessageTimeStamp"]) > 0
    assert table["commitLogDirCapacity"].startswith("Total : ")
    ha = json.loads(ask(link, Code.GET_BROKER_HA_STATUS).body)
    assert (ha["master"], ha["haConnectionInfo"]) == (True, [])
    assert ask(link, Code.GET_BROKER_EPOCH_CACHE).code == Answer.SYSTEM_ERROR
    for code in (Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.CLEAN_UNUSED_TOPIC, Code.DELETE_EXPIRED_COMMITLOG):
        assert ask(link, code).code == 0


def test_settings_are_records(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    link = bench.connect()
    changed = b"autoCreateTopicEnable=false\nfileReservedTime=48\nbrokerPermission=4\nflushDiskType=SYNC_FLUSH\n"
    assert link.feed(request(Code.UPDATE_BROKER_CONFIG, changed)) == b""  # from now on it waits for the flush
    bench.broker.gate.advance(bench.store.flush())
    bench.turn.run_until_quiet()
    assert answers(link.take())[0].code == 0
    bench.close()
    again = Bench(tmp_path)
    answer = ask(again.connect(), Code.GET_BROKER_CONFIG)
    values = java_properties.read(answer.body)
    assert "counter" in answer.fields["version"]
    assert {name: values[name] for name in ("autoCreateTopicEnable", "fileReservedTime", "flushDiskType")} == {
        "autoCreateTopicEnable": "false", "fileReservedTime": "48", "flushDiskType": "SYNC_FLUSH",
    }  # fmt: skip
    assert (values["brokerName"], values["brokerClusterName"], values["listenPort"]) == (
        "broker-a", "DefaultCluster", "10911",
    )  # fmt: skip
    assert again.broker.settings.topics_config.auto_create is False
    assert again.store.config.file_reserved_hours == 48
    assert again.broker.topics.strict
    again.close()


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"configBlackList=x", Answer.NO_PERMISSION), (b"brokerConfigPath=/etc/passwd", Answer.NO_PERMISSION),
     (b"brokerName=other", Answer.INVALID_PARAMETER), (b"nonsense=1", Answer.INVALID_PARAMETER),
     (b"fileReservedTime=many", Answer.INVALID_PARAMETER), (b"fileReservedTime=48\ndefaultTopicQueueNums=0", Answer.INVALID_PARAMETER),
     (b"\xff\xfe", Answer.INVALID_PARAMETER), (b"a" * (java_properties.TEXT_BYTES_MAX + 1), Answer.INVALID_PARAMETER)],
)  # fmt: skip
def test_settings_that_are_refused(bench: Bench, body: bytes, code: Answer) -> None:
    answer = ask(bench.connect(), Code.UPDATE_BROKER_CONFIG, body)
    assert (answer.code, bool(answer.remark)) == (code, True)
    assert bench.broker.tables.rows("setting") == {}
    assert bench.store.config.file_reserved_hours == 72


@pytest.mark.parametrize(
    ("text", "values"),
    [(b"a=1\nb = 2\n# c=3\n! d=4\n\ne:5\nf 6", {"a": "1", "b": "2", "e": "5", "f": "6"}),
     (b"long=one \\\n   two\r\nx=\\u00e4\\t\\n\\\\", {"long": "one two", "x": "ä\t\n\\"}),
     (b"a\\=b=c\nempty=\nlonely", {"a=b": "c", "empty": "", "lonely": ""})],
)  # fmt: skip
def test_java_properties(text: bytes, values: dict[str, str]) -> None:
    assert java_properties.read(text) == values


def test_java_properties_there_and_back() -> None:
    values = {"plain": "value", "path": "C:\\x", "lines": "a\nb", "spaces": " in front"}
    assert java_properties.read(java_properties.write(values)) == values
