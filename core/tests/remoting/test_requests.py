"""Heartbeats, groups, locks, offsets, queries, topics: one request each over a door on a real store."""

import json
from pathlib import Path

import pytest

from gantrymq.administration import groups
from gantrymq.model import dialect
from gantrymq.net.testing import FakeLink
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.json_bodies import QueueName
from gantrymq.remoting.server.clients import locks
from gantrymq.remoting.server.clients import registry as clients
from gantrymq.store.log import record
from tests.remoting.bench import SUSPEND, Bench, answers, ask, pull, pull_frame, request, send


def beat(client: str, *consumers: str, tag: str = "*", version: int = 1, producer: str = "") -> bytes:
    subscription = {"topic": "T", "subString": tag, "subVersion": version}
    value = {
        "clientID": client,
        "producerDataSet": [{"groupName": producer}] if producer else [],
        "consumerDataSet": [{"groupName": name, "subscriptionDataSet": [subscription]} for name in consumers],
    }
    return json.dumps(value).encode()


def notices(link: FakeLink) -> list[str]:
    return [
        command.fields["consumerGroup"]
        for command in answers(link.take())
        if command.code == Code.NOTIFY_CONSUMER_IDS_CHANGED and command.is_oneway
    ]


def test_heartbeat_and_members(bench: Bench) -> None:
    one, two = bench.connect(), bench.connect()
    answer = ask(one, Code.HEART_BEAT, beat("c1", "CG", producer="PG"))
    assert (answer.code, answer.fields["IS_SUPPORT_HEART_BEAT_V2"]) == (0, "false")
    assert ask(two, Code.HEART_BEAT, beat("c2", "CG")).code == 0
    assert notices(one) == ["CG"]
    members = ask(one, Code.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="CG")
    assert json.loads(members.body) == {"consumerIdList": ["c1", "c2"]}
    ask(two, Code.HEART_BEAT, beat("c2", "CG"))
    assert notices(one) == []  # nothing new
    ask(two, Code.HEART_BEAT, beat("c2", "CG", tag="x", version=2))
    assert notices(one) == ["CG"]
    connections = json.loads(ask(one, Code.GET_CONSUMER_CONNECTION_LIST, consumerGroup="CG").body)
    assert [entry["clientId"] for entry in connections["connectionSet"]] == ["c1", "c2"]
    assert connections["subscriptionTable"]["T"]["subString"] == "x"
    assert ask(one, Code.GET_CONSUMER_CONNECTION_LIST, consumerGroup="X").code == Answer.CONSUMER_NOT_ONLINE
    two.lose()
    bench.turn.run_until_quiet()
    assert notices(one) == ["CG"]
    ask(one, Code.UNREGISTER_CLIENT, clientID="c1", consumerGroup="CG", producerGroup="PG")
    assert ask(one, Code.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="CG").code == Answer.SYSTEM_ERROR
    assert (bench.doors.clients.groups, bench.doors.clients.producers) == ({}, {})


def test_client_that_came_back_is_not_removed_with_its_old_connection(bench: Bench) -> None:
    old, new = bench.connect(), bench.connect()
    ask(old, Code.HEART_BEAT, beat("c1", "CG", producer="PG"))
    ask(new, Code.HEART_BEAT, beat("c1", "CG", producer="PG"))
    old.lose()
    assert bench.doors.clients.client_ids("CG") == ["c1"]
    assert list(bench.doors.clients.producers) == ["PG"]
    ask(new, Code.UNREGISTER_CLIENT, clientID="other", consumerGroup="CG")
    assert bench.doors.clients.client_ids("CG") == ["c1"]


def test_heartbeat_makes_group_and_retry_topic(bench: Bench) -> None:
    ask(bench.connect(), Code.HEART_BEAT, beat("c1", "CG", "TOOLS_CONSUMER"))
    assert list(bench.doors.groups.configs) == ["CG"]
    assert bench.broker.topics.get("%RETRY%CG") is not None
    assert bench.broker.topics.get("%RETRY%TOOLS_CONSUMER") is None


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", beat(""), beat("x" * 513), beat("c", "bad group"), beat("c", producer="bad group"),
     beat("c", *[f"g{i}" for i in range(1025)])],
)  # fmt: skip
def test_bad_heartbeats(bench: Bench, body: bytes) -> None:
    assert ask(bench.connect(), Code.HEART_BEAT, body).code in (Answer.SYSTEM_ERROR, Answer.INVALID_PARAMETER)
    assert bench.doors.clients.groups == {}


def test_limits_of_heartbeats(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "SUBSCRIPTIONS_MAX", 0)
    assert ask(bench.connect(), Code.HEART_BEAT, beat("c", "g")).code == Answer.SYSTEM_ERROR
    monkeypatch.undo()
    monkeypatch.setattr(groups, "GROUPS_MAX", 1)
    link = bench.connect()
    assert ask(link, Code.HEART_BEAT, beat("c", "g1")).code == 0
    assert ask(link, Code.HEART_BEAT, beat("c", "g2")).code == Answer.SYSTEM_BUSY


def test_check_client(bench: Bench) -> None:
    def body(kind: str, text: str) -> bytes:
        data = {"topic": "T", "subString": text, "expressionType": kind}
        return json.dumps({"clientId": "c", "group": "g", "subscriptionData": data}).encode()

    link = bench.connect()
    assert ask(link, Code.CHECK_CLIENT_CONFIG, body("TAG", "a || b")).code == 0
    assert ask(link, Code.CHECK_CLIENT_CONFIG, body("SQL92", "a > 1")).code == 0
    answer = ask(link, Code.CHECK_CLIENT_CONFIG, body("SQL92", "a > 'b'"))
    assert (answer.code, "SQL92" in (answer.remark or "")) == (Answer.SUBSCRIPTION_PARSE_FAILED, True)


def test_locks(bench: Bench) -> None:
    def body(client: str, *queues: int) -> bytes:
        queue_set = [{"topic": "T", "brokerName": "broker-a", "queueId": queue} for queue in queues]
        return json.dumps({"consumerGroup": "G", "clientId": client, "mqSet": queue_set}).encode()

    def lock(client: str, *queues: int) -> list[int]:
        answer = ask(link, Code.LOCK_BATCH_MQ, body(client, *queues))
        return [queue["queueId"] for queue in json.loads(answer.body)["lockOKMQSet"]]

    link = bench.connect()
    assert lock("c1", 0, 1) == [0, 1]
    assert lock("c2", 1, 2) == [2]
    bench.wheel.advance(30_000)
    ask(link, Code.HEART_BEAT, beat("c1"))
    assert lock("c1", 0) == [0]
    bench.wheel.advance(40_000)
    assert lock("c2", 0, 1) == [1]  # 1 was not renewed for a minute, 0 was
    ask(link, Code.UNLOCK_BATCH_MQ, body("c2", 0, 1))
    assert lock("c3", 0, 1) == [1]
    many = ask(link, Code.LOCK_BATCH_MQ, body("c1", *range(10_001)))
    assert many.code == Answer.SYSTEM_ERROR


def test_lock_table_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCKS_MAX", 2)
    table = locks.QueueLocks()
    queues = [QueueName("T", "b", i) for i in range(3)]
    assert table.lock("G", "c", queues, 0) == queues[:2]
    assert table.lock("G", "c", queues[2:], locks.LOCK_MS + 1) == queues[2:]


# Offsets


def test_consumer_offsets(bench: Bench, tmp_path: Path) -> None:
    link = bench.connect()
    place = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    send(link)
    assert ask(link, Code.QUERY_CONSUMER_OFFSET, **place).fields == {"offset": "0"}
    asked = ask(link, Code.QUERY_CONSUMER_OFFSET, **place, setZeroIfNotFound=False)
    assert asked.code == Answer.QUERY_NOT_FOUND
    empty = place | {"queueId": 1}
    assert ask(link, Code.QUERY_CONSUMER_OFFSET, **empty, setZeroIfNotFound=False).code == Answer.QUERY_NOT_FOUND
    assert ask(link, Code.UPDATE_CONSUMER_OFFSET, **place, commitOffset=1).code == 0
    assert link.feed(request(Code.UPDATE_CONSUMER_OFFSET, flag=2, **place, commitOffset=5)) == b""
    assert ask(link, Code.QUERY_CONSUMER_OFFSET, **place).fields == {"offset": "5"}
    for wrong in ({"topic": "X"}, {"queueId": 4}, {"queueId": -1}, {"consumerGroup": "a b"}, {"commitOffset": -1}):
        assert ask(link, Code.UPDATE_CONSUMER_OFFSET, **place | {"commitOffset": 1} | wrong).code != 0
    assert ask(link, Code.QUERY_CONSUMER_OFFSET, **place).fields == {"offset": "5"}


@pytest.mark.parametrize("made_again", [False, True])
def test_a_new_group_gets_what_comes_into_an_empty_queue_after_it_asked(bench: Bench, made_again: bool) -> None:
    """A client that is told QUERY_NOT_FOUND asks for the end of the queue next, and what came meanwhile would lie before it."""
    link = bench.connect()
    send(link)
    if made_again:
        assert ask(link, Code.DELETE_TOPIC_IN_BROKER, topic="T").code == 0
        assert ask(link, Code.UPDATE_AND_CREATE_TOPIC, **CREATE | {"topic": "T"}).code == 0
    place = {"consumerGroup": "G", "topic": "T", "queueId": 0 if made_again else 1}
    told = ask(link, Code.QUERY_CONSUMER_OFFSET, **place)
    assert told.fields == {"offset": "1" if made_again else "0"}
    send(link, e=place["queueId"])
    answer = pull(link, queueId=place["queueId"], queueOffset=told.fields["offset"])
    assert (answer.code, answer.fields["nextBeginOffset"]) == (0, "2" if made_again else "1")


def test_a_new_group_is_told_nothing_of_its_empty_retry_topic(bench: Bench) -> None:
    """Clients begin there at 0 by themselves; what they are told they commit, and `consumerProgress` would show it."""
    link = bench.connect()
    ask(link, Code.UPDATE_AND_CREATE_TOPIC, **CREATE | {"topic": "%RETRY%G"})
    answer = ask(link, Code.QUERY_CONSUMER_OFFSET, consumerGroup="G", topic="%RETRY%G", queueId=0)
    assert answer.code == Answer.QUERY_NOT_FOUND


def test_offsets_and_groups_survive_a_restart(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    link = bench.connect()
    send(link)
    ask(link, Code.HEART_BEAT, beat("c", "G"))
    ask(link, Code.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=1)
    bench.close()
    bench = Bench(tmp_path)
    link = bench.connect()
    assert ask(link, Code.QUERY_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0).fields == {"offset": "1"}
    assert list(bench.doors.groups.configs) == ["G"]
    bench.close()


def test_ends_and_times_of_a_queue(bench: Bench) -> None:
    link = bench.connect()
    times = []
    for _ in range(3):
        times.append(bench.clock.now_ms())
        send(link)
        bench.clock.advance(1000)
    place = {"topic": "T", "queueId": 0}
    assert ask(link, Code.GET_MAX_OFFSET, **place).fields == {"offset": "3"}
    assert ask(link, Code.GET_MIN_OFFSET, **place).fields == {"offset": "0"}
    assert ask(link, Code.GET_EARLIEST_MSG_STORETIME, **place).fields == {"timestamp": str(times[0])}
    assert ask(link, Code.GET_EARLIEST_MSG_STORETIME, topic="T", queueId=1).fields == {"timestamp": "-1"}

    def at(ms: int, **more: str) -> str:
        return ask(link, Code.SEARCH_OFFSET_BY_TIMESTAMP, **place, timestamp=ms, **more).fields["offset"]

    assert [at(0), at(times[1]), at(times[1] + 1), at(times[2] + 1)] == ["0", "1", "2", "3"]
    assert at(times[1] + 1, boundaryType="upper") == "1"
    for code in (Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET):
        assert ask(link, code, topic="X", queueId=0).code == Answer.TOPIC_NOT_EXIST
        assert ask(link, code, topic="T", queueId=9).code == Answer.INVALID_PARAMETER


def test_view_and_query(bench: Bench) -> None:
    link = bench.connect()
    answer = send(link, b"hello", "UNIQ_KEY\x01U1\x02KEYS\x01k1 k2\x02")
    send(link, b"again", "UNIQ_KEY\x01U2\x02KEYS\x01k1\x02")
    offset = int(answer.fields["msgId"][16:], 16)
    seen = ask(link, Code.VIEW_MESSAGE_BY_ID, offset=offset)
    assert record.decode(seen.body).body == b"hello"
    for wrong in (offset + 1, -1, 1 << 60):
        assert ask(link, Code.VIEW_MESSAGE_BY_ID, offset=wrong).code == Answer.SYSTEM_ERROR
    assert ask(link, Code.VIEW_MESSAGE_BY_ID, offset=0).code == Answer.SYSTEM_ERROR  # the topic table's record
    wanted = {"topic": "T", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    found = ask(link, Code.QUERY_MESSAGE, key="k1", **wanted)
    first = record.decode(found.body)
    second = record.decode(found.body, first.size)
    assert {first.body, second.body} == {b"hello", b"again"}
    assert found.fields["indexLastUpdateTimestamp"] == str(bench.clock.now_ms())
    one = ask(link, Code.QUERY_MESSAGE, key="U1", _UNIQUE_KEY_QUERY="true", **wanted)
    assert record.decode(one.body).body == b"hello"
    assert ask(link, Code.QUERY_MESSAGE, key="none", **wanted).code == Answer.QUERY_NOT_FOUND
    assert ask(link, Code.QUERY_MESSAGE, key="k", **wanted | {"topic": "rmq_sys_gantry_topic"}).code == 16


# Topics and groups

CREATE = {"topic": "New", "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6,
          "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}  # fmt: skip


def test_topics(bench: Bench) -> None:
    link = bench.connect()
    assert ask(link, Code.UPDATE_AND_CREATE_TOPIC, **CREATE, attributes="+message.type=FIFO").code == 0
    body = json.loads(ask(link, Code.GET_TOPIC_CONFIG, topic="New").body)
    assert body == {
        "topicName": "New", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6, "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0, "order": False, "attributes": {"message.type": "FIFO"},
    }  # fmt: skip
    assert ask(link, Code.UPDATE_AND_CREATE_TOPIC, **CREATE | {"perm": 4}, attributes="-message.type").code == 0
    table = json.loads(ask(link, Code.GET_ALL_TOPIC_CONFIG).body)
    assert table["topicConfigTable"]["New"]["perm"] == 4
    assert table["topicConfigTable"]["New"]["attributes"] == {}
    assert table["dataVersion"]["counter"] == bench.broker.topics.version
    assert ask(link, Code.DELETE_TOPIC_IN_BROKER, topic="New").code == 0
    assert ask(link, Code.DELETE_TOPIC_IN_BROKER, topic="New").code == 0
    assert ask(link, Code.GET_TOPIC_CONFIG, topic="New").code == Answer.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    "change",
    [{"topic": "rmq_sys_gantry_x"}, {"topic": "a b"}, {"topic": "TBW102"}, {"topic": ""}, {"perm": 8},
     {"readQueueNums": 0}, {"writeQueueNums": 100_000}, {"attributes": "+queue.type=BatchCQ"},
     {"attributes": "+cleanup.policy=BOTH"}, {"attributes": "+other=1"}, {"attributes": "message.type=FIFO"}],
)  # fmt: skip
def test_bad_topics(bench: Bench, change: dict[str, object]) -> None:
    answer = ask(bench.connect(), Code.UPDATE_AND_CREATE_TOPIC, **CREATE | change)
    assert answer.code in (Answer.INVALID_PARAMETER, Answer.NO_PERMISSION)
    assert answer.remark
    assert bench.broker.topics.configs() == []


@pytest.mark.parametrize("name", ["rmq_sys_gantry_topic", "SCHEDULE_TOPIC_XXXX"])
def test_topics_that_nobody_deletes(bench: Bench, name: str) -> None:
    assert ask(bench.connect(), Code.DELETE_TOPIC_IN_BROKER, topic=name).code != 0


@pytest.mark.parametrize(("name", "queues"), [("DefaultCluster", 16), ("broker-a", 1)])
def test_topics_of_cluster_and_broker_belong_to_rocketmq(bench: Bench, name: str, queues: int) -> None:
    """Tools find brokers by their routes, and neither change nor delete them (TopicValidator.isSystemTopic)."""
    link = bench.connect()
    assert bench.broker.topics.configs() == []
    table = json.loads(dialect.standard(ask(link, Code.GET_TOPIC_STATS_INFO, topic=name).body))["offsetTable"]
    assert len(table) == queues
    assert ask(link, Code.UPDATE_AND_CREATE_TOPIC, **CREATE | {"topic": name}).code == Answer.INVALID_PARAMETER
    assert ask(link, Code.DELETE_TOPIC_IN_BROKER, topic=name).code == Answer.INVALID_PARAMETER
    assert [config.name for config in bench.broker.topics.configs()] == [name]


def test_topic_stats(bench: Bench) -> None:
    link = bench.connect()
    send(link)
    answer = ask(link, Code.GET_TOPIC_STATS_INFO, topic="T")
    table = json.loads(dialect.standard(answer.body))["offsetTable"]
    assert len(table) == 4
    queue, offset = next(iter(table.items()))
    assert json.loads(queue) == {"topic": "T", "brokerName": "broker-a", "queueId": 0}
    assert offset == {"minOffset": 0, "maxOffset": 1, "lastUpdateTimestamp": bench.clock.now_ms()}


def test_consume_stats(bench: Bench) -> None:
    link = bench.connect()
    for _ in range(3):
        send(link)
    ask(link, Code.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=2)
    answer = ask(link, Code.GET_CONSUME_STATS, consumerGroup="G")
    table = json.loads(dialect.standard(answer.body))["offsetTable"]
    lags = [
        (json.loads(queue)["queueId"], value["brokerOffset"] - value["consumerOffset"])
        for queue, value in table.items()
    ]
    assert lags == [(0, 1), (1, 0), (2, 0), (3, 0)]
    none = ask(link, Code.GET_CONSUME_STATS, consumerGroup="G", topic="X")
    assert json.loads(none.body)["offsetTable"] == {}


@pytest.mark.parametrize("parked", [False, True])
def test_messages_that_were_pulled_and_not_committed_are_in_flight(bench: Bench, parked: bool) -> None:
    """RocketMQ: OffsetWrapper.pullOffset (ConsumerOffsetManager.commitPullOffset): consumerProgress shows what is between it and the commit."""

    def in_flight() -> tuple[int, int]:
        body = json.loads(dialect.standard(ask(link, Code.GET_CONSUME_STATS, consumerGroup="CG").body))
        found = [value["pullOffset"] - value["consumerOffset"] for value in body["offsetTable"].values()]
        totals = json.loads(dialect.standard(ask(link, Code.GET_BROKER_CONSUME_STATS, isOrder=False).body))
        return sum(found), totals["totalInflightDiff"]

    link, reader = bench.connect(), bench.connect()
    bench.doors.groups.ensure("CG")
    send(link)
    mine = {"consumerGroup": "CG", "topic": "T", "queueId": 0}
    ask(link, Code.UPDATE_CONSUMER_OFFSET, **mine, commitOffset=0)
    if parked:
        assert reader.feed(pull_frame(queueOffset=1, **SUSPEND)) == b""
    send(link)
    if not parked:
        reader.feed(pull_frame(queueOffset=0))
    assert in_flight() == (2, 2)
    ask(link, Code.UPDATE_CONSUMER_OFFSET, **mine, commitOffset=1)
    assert in_flight() == (1, 1)
    ask(link, Code.UPDATE_CONSUMER_OFFSET, **mine, commitOffset=2)
    assert in_flight() == (0, 0)
    assert ask(link, Code.DELETE_SUBSCRIPTIONGROUP, groupName="CG", cleanOffset=True).code == 0
    ask(link, Code.UPDATE_CONSUMER_OFFSET, **mine, commitOffset=0)
    assert in_flight()[0] == 0


def test_groups(bench: Bench) -> None:
    link = bench.connect()
    body = b'{"groupName":"G","retryMaxTimes":3}'
    assert ask(link, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).code == 0
    table = json.loads(ask(link, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert table["subscriptionGroupTable"]["G"]["retryMaxTimes"] == 3
    assert json.loads(ask(link, Code.GET_SUBSCRIPTIONGROUP_CONFIG, group="G").body)["retryQueueNums"] == 1
    send(link)
    ask(link, Code.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=1)
    assert json.loads(ask(link, Code.QUERY_TOPIC_CONSUME_BY_WHO, topic="T").body) == {"groupList": ["G"]}
    assert ask(link, Code.DELETE_SUBSCRIPTIONGROUP, groupName="G", cleanOffset=True).code == 0
    assert ask(link, Code.GET_SUBSCRIPTIONGROUP_CONFIG, group="G").code == Answer.SUBSCRIPTION_GROUP_NOT_EXIST
    assert bench.broker.offsets.query("G", "T", 0) == -1
    assert ask(link, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"a b"}').code == Answer.INVALID_PARAMETER


def test_runtime_info_and_system_topics(bench: Bench) -> None:
    link = bench.connect()
    table = json.loads(ask(link, Code.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert table["brokerVersionDesc"] == "V5_3_3"
    assert table["commitLogMaxOffset"] == str(bench.store.written_position)
    assert "TBW102" in json.loads(ask(link, Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body)["topicList"]
