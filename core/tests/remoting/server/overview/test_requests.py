"""A broker at a glance, scale-in, and what members of a group want."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.administration import figures, overview
from gantrymq.broker import lags
from gantrymq.broker.lags import LagSweep
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import SHARED_GROUP, Start
from gantrymq.broker.tables.group_tables import DRAINING, STATE_TABLE
from gantrymq.broker.topics import TopicConfig
from gantrymq.model.message import Message
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.overview_codes import DRAIN, GROUP_LIST, GROUP_WISHES, OVERVIEW, TOPIC_LIST
from gantrymq.remoting.server.overview import lists as overview_lists
from tests.remoting.bench import Bench, ask


def find(bench: Bench, **fields: Any) -> dict[str, Any]:
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
    bench.doors.identity.listeners = {
        "broker": [SimpleNamespace(connections=2)],
        "mqtt": [SimpleNamespace(connections=5)],
    }  # type: ignore[list-item]
    found = find(bench)
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
    assert find(bench, backlog=True)["backlog"] == {"ready": 2, "unacked": 1, "rows": 0, "tables": {}}
    bench.broker.put("cluster", [("member", b"1")], None, None)  # a group's own
    bench.broker.put("amqp_queue", [("/a", b"x"), ("/b", b"x")], None, None)
    bench.turn.run_until_quiet()
    backlog = find(bench, backlog=True)["backlog"]
    assert (backlog["rows"], backlog["tables"]) == (2, {"amqp_queue": 2})


def test_answers_are_bounded_and_made_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "ROWS_MAX", 2)
    monkeypatch.setattr(overview, "COUNTERS_PER_STEP", 1)
    for number in range(4):
        fill(bench, f"t{number}", number + 1)
        bench.broker.offsets.commit("CG", f"t{number}", 0, 0)
        found = find(bench)
    assert len(found["topics"]) == 2
    assert [row["lag"] for row in found["groups"]] == [4, 3]
    assert found["lag"] == 10


def test_draining_outlives_a_restart_and_is_undone(bench: Bench) -> None:
    link = bench.connect()
    assert ask(link, DRAIN, on=True).code == 0
    assert find(bench)["draining"]
    assert bench.broker.settings.permission == 4
    assert bench.broker.tables.rows(STATE_TABLE)[DRAINING] == b"1"
    assert ask(link, DRAIN, on=True).code == 0
    assert ask(link, DRAIN, on=False).code == 0
    assert not find(bench)["draining"]
    assert bench.broker.settings.permission == 6
    assert ask(link, DRAIN).code != 0  # the field is missing


def test_a_broker_with_queues_is_drained(bench: Bench) -> None:
    link = bench.connect()
    bench.broker.create_light(None, lambda token, light: None)
    bench.turn.run_until_quiet()
    assert ask(link, DRAIN, on=True).code == 0
    assert find(bench)["draining"]


def test_wishes_of_members(bench: Bench) -> None:
    for client, tags in (("c1", "a || b"), ("c2", "b")):
        subscription = {"topic": "T", "subString": tags, "subVersion": 1}
        group = {"groupName": "CG", "subscriptionDataSet": [subscription]}
        body = {"clientID": client, "producerDataSet": [], "consumerDataSet": [group]}
        assert ask(bench.connect(), Code.HEART_BEAT, json.dumps(body).encode()).code == 0
    found = json.loads(ask(bench.connect(), GROUP_WISHES, group="CG").body)["wishes"]
    assert {client: wish["T"] for client, wish in found.items()} == {"c1": "a||b", "c2": "b"}
    assert json.loads(ask(bench.connect(), GROUP_WISHES, group="none").body) == {"wishes": {}}
    assert find(bench)["conflicts"] == {"CG": ["T"]}


def group_steps(bench: Bench, sweep: LagSweep) -> Iterator[None]:
    return sweep.groups(bench.store, bench.broker.topics.topics, bench.broker.offsets)


def test_a_sweep_pauses_and_leaves_system_topics_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags, "PAIRS_PER_STEP", 4)
    for number in range(6):
        fill(bench, f"t{number}", 2)
        bench.broker.offsets.commit("CG", f"t{number}", 0, 1)
    bench.broker.offsets.commit("CG", "SCHEDULE_TOPIC_XXXX", 0, 0)
    fill(bench, "t3", 5)
    sweep = LagSweep(2)
    assert len(list(group_steps(bench, sweep))) == 4
    assert (sweep.total, sweep.places, sweep.unknown) == (11, 6, 0)
    assert sweep.behind[0] == (6, "t3", "CG")
    assert (len(sweep.behind), sweep.behind_count) == (2, 6)


def test_a_sweep_begins_without_a_list_of_everything(bench: Bench) -> None:
    """A pair per topic takes 2 ms with 20,000 of them, and as long again for the collection of garbage that it begins."""
    for number in range(4000):
        bench.broker.offsets.commit("CG", f"t{number}", 0, 1)
    steps = group_steps(bench, LagSweep(2))
    next(steps)
    tracemalloc.start()
    try:
        next(group_steps(bench, LagSweep(2)))
        assert tracemalloc.get_traced_memory()[1] < 4000 * 24
    finally:
        tracemalloc.stop()


def test_topics_whose_offsets_are_dropped_during_a_sweep(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags, "PAIRS_PER_STEP", 2)
    for number in range(6):
        fill(bench, f"t{number}", 2)
        bench.broker.offsets.commit("CG", f"t{number}", 0, 1)
    sweep = LagSweep(9)
    steps = group_steps(bench, sweep)
    next(steps)
    list(bench.broker.offsets.drop_topic("t4"))
    list(steps)
    assert {topic for _, topic, _ in sweep.behind} == {"t0", "t1", "t2", "t3", "t5"}
    assert (sweep.total, sweep.places, sweep.behind_count) == (5, 5, 5)


def lists(bench: Bench) -> tuple[dict[str, tuple[int, int | None]], dict[str, dict[str, Any]]]:
    link = bench.connect()
    topics = json.loads(ask(link, TOPIC_LIST).body)["topics"]
    groups = json.loads(ask(link, GROUP_LIST).body)["groups"]
    return {name: (queues, messages) for name, queues, messages in topics}, {row["group"]: row for row in groups}


def test_lists_of_all_topics_and_groups(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "WORK_PER_STEP", 2)
    monkeypatch.setattr(overview_lists, "ROWS_PER_PART", 2)
    for number in range(5):
        fill(bench, f"t{number}", number + 1)
        bench.broker.offsets.commit("pull", f"t{number}", 0, min(number, 2))
    bench.broker.offsets.commit("pull", "gone", 0, 7)
    subscription = {"topic": "t1", "subString": "*", "subVersion": 1}
    group = {"groupName": "push", "subscriptionDataSet": [subscription]}
    body = {"clientID": "c1", "producerDataSet": [], "consumerDataSet": [group]}
    assert ask(bench.connect(), Code.HEART_BEAT, json.dumps(body).encode()).code == 0
    topics, groups = lists(bench)
    assert {name: topics[name][1] for name in topics if name.startswith("t")} == {f"t{n}": n + 1 for n in range(5)}
    assert topics["t2"][0] == bench.broker.topics.topics["t2"].config.write_queues
    assert not any(name.startswith("rmq_sys_gantry") for name in topics)
    assert (groups["pull"]["lag"], groups["pull"]["topics"]) == (8, [f"t{number}" for number in range(5)])
    assert (groups["push"]["members"], groups["push"]["topics"]) == (["c1"], ["t1"])


def test_lists_open_a_bounded_number_of_topics(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        fill(bench, f"t{number}", 1)
        bench.broker.offsets.commit("CG", f"t{number}", 0, 0)
    opened = dict(bench.store.used_topics)
    monkeypatch.setattr(figures, "OPENED_MAX", 2)
    unused = {name for name in opened if name.startswith("t")}

    def known_ends(name: str) -> tuple[int, int] | None:
        return None if name in unused else (1, 0)

    def visible_sum(name: str) -> int:
        unused.discard(name)
        return 1

    monkeypatch.setattr(bench.store, "known_ends", known_ends)
    monkeypatch.setattr(bench.store, "visible_sum", visible_sum)
    topics, groups = lists(bench)
    assert [topics[f"t{number}"][1] for number in range(5)].count(None) == 3
    assert groups["CG"]["lag"] is None
    topics, groups = lists(bench)
    assert [topics[f"t{number}"][1] for number in range(5)] == [1] * 5
    assert groups["CG"]["lag"] == 5


def test_shared_subscriptions_have_a_lag(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags, "PAIRS_PER_STEP", 1)
    fill(bench, "T", 3)
    names_of = {"T/0": "$share/g@h/a/#", "T/1": "$queue/b", "T/2": ""}
    monkeypatch.setattr(bench.broker.queues, "name_of", lambda queue: names_of[queue] or queue)
    port = LocalBrokerPort(bench.broker)
    box: list[Any] = []
    for queue in names_of:
        port.open_cursor(queue, SHARED_GROUP, Start("earliest"), None, lambda token, result: box.append(result))
    port.open_cursor("T/0", "another", Start("earliest"), None, lambda token, result: box.append(result))
    bench.turn.run_until_quiet()
    port.acquire(box[0].cursor, 1, 1, 1_000, None, lambda token, result: box.append(result))
    bench.turn.run_until_quiet()
    sweep = LagSweep(9)
    list(sweep.shared(bench.broker.cursors, bench.broker.queues.name_of))
    assert (3, "a/#", "$share/g%40h") in sweep.behind
    assert (sweep.places, sweep.total) == (3, 3)
    port.delete_cursor(box[0].cursor, None, lambda token, result: None)
    bench.turn.run_until_quiet()
    sweep = LagSweep(9)
    list(sweep.shared(bench.broker.cursors, bench.broker.queues.name_of))
    assert (sweep.places, sweep.total, sweep.behind) == (2, 0, [])
