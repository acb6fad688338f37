"""A broker at a glance, scale-in, and what members of a group want."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.broker import lags
from gantrymq.broker.lags import LagSweep
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import Start
from gantrymq.broker.topics import TopicConfig
from gantrymq.model.message import Message
from gantrymq.remoting import overview_requests
from gantrymq.remoting.cluster_group import DRAINING, STATE_TABLE
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.overview_codes import DRAIN, GROUP_WISHES, OVERVIEW
from tests.remoting.bench import Bench, ask


def look(bench: Bench, **fields: Any) -> dict[str, Any]:
    answer = ask(bench.connect(), OVERVIEW, **fields)
    assert answer.code == 0, answer.remark
    found: dict[str, Any] = json.loads(answer.body)
    return found


def fill(bench: Bench, topic: str, count: int) -> None:
    """`count` messages in queue 0, counted as when their units are written."""
    if bench.broker.topics.get(topic) is None:
        bench.broker.topics.create(TopicConfig(topic, 4, 4))
    bench.broker.submit([Message(topic, b"x", queue_id=0) for _ in range(count)], None, lambda token, results: None)
    bench.turn.run_until_quiet()
    queue = bench.store._queues.find(topic, 0)
    assert queue is not None
    bench.broker.stats.stored(queue, count, 100 * count)


def test_overview(bench: Bench) -> None:
    fill(bench, "T", 3)
    fill(bench, "U", 1)
    link = bench.connect()
    ask(link, Code.UPDATE_CONSUMER_OFFSET, consumerGroup="CG", topic="T", queueId=0, commitOffset=1)
    bench.doors.listeners = {"broker": [SimpleNamespace(connections=2)], "mqtt": [SimpleNamespace(connections=5)]}  # type: ignore[list-item]
    found = look(bench)
    assert (found["put"], found["lag"], found["draining"]) == (4, 2, False)
    assert found["logEnd"] > found["logBegin"] == 0
    assert found["connections"] == {"broker": 2, "mqtt": 5}
    assert found["topics"][0]["topic"] == "T"
    assert found["topics"][0]["in"] == 3
    assert found["groups"] == [{"group": "CG", "topic": "T", "lag": 2, "members": 0}]
    assert "backlog" not in found


def test_backlog_counts_what_cursors_owe(bench: Bench) -> None:
    fill(bench, "T", 3)
    box: list[Any] = []
    port = LocalBrokerPort(bench.broker)
    port.open_cursor("T/0", "session", Start("earliest"), None, lambda token, result: box.append(result))
    bench.turn.run_until_quiet()
    port.acquire(box[0].cursor, 1, 1, 1_000, None, lambda token, result: box.append(result))
    bench.turn.run_until_quiet()
    assert look(bench, backlog=True)["backlog"] == {"ready": 2, "unacked": 1, "rows": 0}
    bench.broker.put("cluster", [("member", b"1")], None, None)  # a group's own
    bench.broker.put("amqp_queue", [("/a", b"x"), ("/b", b"x")], None, None)
    bench.turn.run_until_quiet()
    assert look(bench, backlog=True)["backlog"]["rows"] == 2


def test_answers_are_bounded_and_made_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview_requests, "ROWS_MAX", 2)
    monkeypatch.setattr(overview_requests, "COUNTERS_PER_STEP", 1)
    for number in range(4):
        fill(bench, f"t{number}", number + 1)
        bench.broker.offsets.commit("CG", f"t{number}", 0, 0)
        found = look(bench)
    assert len(found["topics"]) == 2
    assert [row["lag"] for row in found["groups"]] == [4, 3]
    assert found["lag"] == 10


def test_draining_outlives_a_restart_and_is_undone(bench: Bench) -> None:
    link = bench.connect()
    assert ask(link, DRAIN, on=True).code == 0
    assert look(bench)["draining"]
    assert bench.broker.settings.permission == 4
    assert bench.broker.tables.rows(STATE_TABLE)[DRAINING] == b"1"
    assert ask(link, DRAIN, on=True).code == 0
    assert ask(link, DRAIN, on=False).code == 0
    assert not look(bench)["draining"]
    assert bench.broker.settings.permission == 6
    assert ask(link, DRAIN).code != 0  # the field is missing


def test_wishes_of_members(bench: Bench) -> None:
    for client, tags in (("c1", "a || b"), ("c2", "b")):
        subscription = {"topic": "T", "subString": tags, "subVersion": 1}
        group = {"groupName": "CG", "subscriptionDataSet": [subscription]}
        body = {"clientID": client, "producerDataSet": [], "consumerDataSet": [group]}
        assert ask(bench.connect(), Code.HEART_BEAT, json.dumps(body).encode()).code == 0
    found = json.loads(ask(bench.connect(), GROUP_WISHES, group="CG").body)["wishes"]
    assert {client: wish["T"] for client, wish in found.items()} == {"c1": "a||b", "c2": "b"}
    assert json.loads(ask(bench.connect(), GROUP_WISHES, group="none").body) == {"wishes": {}}
    assert look(bench)["conflicts"] == {"CG": ["T"]}


def test_a_sweep_pauses_and_leaves_system_topics_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags, "PAIRS_PER_STEP", 4)
    for number in range(6):
        fill(bench, f"t{number}", 2)
        bench.broker.offsets.commit("CG", f"t{number}", 0, 1)
    bench.broker.offsets.commit("CG", "SCHEDULE_TOPIC_XXXX", 0, 0)
    sweep = LagSweep(bench.broker)
    assert len(list(sweep.steps())) == 4
    assert (sweep.total, sweep.places, sweep.unknown) == (6, 6, 0)
    assert {topic for _, topic, _ in sweep.behind} == {f"t{number}" for number in range(6)}
