"""Who consumes how: QUERY_ASSIGNMENT and SET_MESSAGE_REQUEST_MODE."""

import json
from typing import Any

from gantrymq.broker.topics import TopicConfig
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.json_bodies import QueueName
from gantrymq.remoting.server.pop.modes import averagely, for_pop
from tests.remoting.bench import TOPIC, Bench, ask
from tests.remoting.pop_client import GROUP

MODE = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 0}


def heartbeat(client: str) -> bytes:
    return json.dumps(
        {"clientID": client, "consumerDataSet": [{"groupName": GROUP, "subscriptionDataSet": []}]}
    ).encode()


def assignment(link: Any, client: str, **fields: Any) -> list[tuple[int, str]] | None:
    body = {
        "topic": TOPIC,
        "consumerGroup": GROUP,
        "clientId": client,
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    }
    answer = ask(link, Code.QUERY_ASSIGNMENT, json.dumps(body | fields).encode())
    found = json.loads(answer.body).get("messageQueueAssignments")
    return None if found is None else [(one["messageQueue"]["queueId"], one["mode"]) for one in found]


def test_assignment(bench: Bench) -> None:
    bench.broker.topics.create(TopicConfig(TOPIC, 5, 5))
    links = [bench.connect(), bench.connect()]
    assert assignment(links[0], "a") is None
    for link, name in zip(links, "ab", strict=True):
        ask(link, Code.HEART_BEAT, heartbeat(name))
    assert assignment(links[0], "a") == [(0, "PULL"), (1, "PULL"), (2, "PULL")]
    assert assignment(links[1], "b") == [(3, "PULL"), (4, "PULL")]
    assert assignment(links[1], "b", strategyName="AVG_BY_CIRCLE") == [(1, "PULL"), (3, "PULL")]
    assert assignment(links[0], "a", strategyName="X") is None
    assert assignment(links[0], "a", topic="X") is None
    assert len(assignment(links[0], "a", messageModel="BROADCASTING") or []) == 5
    assert ask(links[0], Code.SET_MESSAGE_REQUEST_MODE, json.dumps(MODE).encode()).code == 0
    assert assignment(links[0], "a") == [(-1, "POP")]
    assert assignment(links[1], "b") == [(-1, "POP")]
    retry = MODE | {"topic": f"%RETRY%{GROUP}"}
    assert ask(links[0], Code.SET_MESSAGE_REQUEST_MODE, json.dumps(retry).encode()).code == Answer.NO_PERMISSION
    unknown = MODE | {"topic": "X"}
    assert ask(links[0], Code.SET_MESSAGE_REQUEST_MODE, json.dumps(unknown).encode()).code == Answer.TOPIC_NOT_EXIST


def test_shared_assignment() -> None:
    queues = [QueueName("T", "b", n) for n in range(6)]
    clients = ["a", "b", "c", "d"]
    assert [q.queue_id for q in for_pop(averagely, queues, clients, "a", 1)] == [0, 1, 2, 3]
    assert [q.queue_id for q in for_pop(averagely, queues, clients, "d", 1)] == [5, 0, 1]
    assert [q.queue_id for q in for_pop(averagely, queues, clients, "d", 3)] == [-1]
    many = [f"c{n}" for n in range(9)]
    assert [q.queue_id for q in for_pop(averagely, queues, many, "c7", 1)] == [1]
    assert for_pop(averagely, queues, many, "x", 1) == []
    for count in range(1, 9):
        names = many[:count]
        given = [q.queue_id for name in names for q in averagely(queues, names, name)]
        assert given == list(range(6))
