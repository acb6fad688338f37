"""PRUNE_TOPICS: what nobody needs is found and removed, what somebody needs is not, and nothing that is sent meanwhile is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gantrymq.administration import overview
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import Route, Start
from gantrymq.broker.retention import unused as unused_module
from gantrymq.broker.retention.unused import UnusedTopics
from gantrymq.broker.topics import TopicConfig
from gantrymq.model.message import Message
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode
from gantrymq.remoting.overview_codes import PRUNE_TOPICS
from gantrymq.remoting.request_classes import RequestClass, class_of
from tests.broker.test_port import PrefixRoutes
from tests.remoting.bench import Bench, answers, ask, send_frame

HOUR_MS = 3_600_000


def prune(bench: Bench, *names: str, older_ms: int = 0) -> dict[str, Any]:
    """Remove those named; without names only look."""
    link = bench.connect()
    body = json.dumps(names).encode() if names else b""
    answer = ask(link, PRUNE_TOPICS, body, olderMs=older_ms, remove=bool(names))
    assert answer.code == 0, answer.remark
    found: dict[str, Any] = json.loads(answer.body)
    return found


def unused(bench: Bench, **fields: int) -> list[str]:
    return [name for name, _ in prune(bench, **fields)["unused"]]


def make(bench: Bench, name: str, messages: int = 0) -> None:
    """As a door's first use does."""
    bench.broker.ensure_topic(name, True, 4, ("mqtt", None))
    send(bench, name, messages)


def send(bench: Bench, name: str, messages: int) -> list[Any]:
    box: list[Any] = []
    bench.broker.submit([Message(name, b"x") for _ in range(messages)], None, lambda token, found: box.extend(found))
    bench.turn.run_until_quiet()
    return box


def use_cursor(bench: Bench) -> None:
    LocalBrokerPort(bench.broker).open_cursor("t/2", "session", Start("end"), None, lambda token, result: None)


def use_route(bench: Bench) -> None:
    bench.broker.router._sets["prefix"] = PrefixRoutes()
    bench.broker.add_route(Route("r", "prefix", "t", "a", 1), None, lambda token, result: None)


def use_volatile(bench: Bench) -> None:
    bench.broker.router._sets["prefix"] = PrefixRoutes()
    bench.broker.router.add_volatile(bench.broker.new_tap(lambda records: None), 1, "prefix", "t", "a")


def use_offset(bench: Bench) -> None:
    bench.broker.commits.commit("g", "t", 0, 0)


def use_row(bench: Bench) -> None:
    bench.broker.put("declared", [("t", b"exchange")], None, None)


def use_wait(bench: Bench) -> None:
    bench.broker.topics.wait_for("t", 0, "somebody", lambda: None)


def use_message(bench: Bench) -> None:
    send(bench, "t", 1)


def use_delay(bench: Bench) -> None:
    send_frames(bench, "DELAY\x0118\x02")


def use_timer(bench: Bench) -> None:
    send_frames(bench, "TIMER_DELAY_SEC\x013600\x02")


def use_half(bench: Bench) -> None:
    send_frames(bench, "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01u\x02", f=4)


def send_frames(bench: Bench, properties: str, **fields: int) -> None:
    """More than are looked at in one go: the last is for `t`."""
    bench.broker.topics.create(TopicConfig("other", 4, 4))
    for topic in ["other"] * 60 + ["t"]:
        (answer,) = answers(bench.connect().feed(send_frame(b"x", properties, b=topic, **fields)))
        assert answer.code == 0, answer.remark


def use_create(bench: Bench) -> None:
    bench.broker.topics.create(TopicConfig("t", 4, 4))


@pytest.fixture(autouse=True)
def users(monkeypatch: pytest.MonkeyPatch) -> None:
    """A door whose rows have a topic's name as key."""
    monkeypatch.setattr(overview, "load_topic_users", lambda: {"declared": lambda key, value: [key]})


USES: list[Callable[[Bench], None]] = [
    use_cursor, use_route, use_volatile, use_offset, use_row, use_wait, use_message, use_create,
    use_delay, use_timer, use_half,
]  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_what_somebody_needs_stays(bench: Bench, use: Callable[[Bench], None]) -> None:
    make(bench, "t")
    make(bench, "nobodys")
    assert unused(bench) == ["t", "nobodys"]
    use(bench)
    bench.turn.run_until_quiet()
    assert unused(bench) == ["nobodys"]
    found = prune(bench, "t", "nobodys", "unknown")
    assert [name for name, _ in found["unused"]] == ["nobodys"]
    assert [name for name, _ in found["kept"]] == ["t", "unknown"]
    assert bench.broker.topics.get("t") is not None
    assert bench.broker.topics.get("nobodys") is None


def test_a_connected_consumer_keeps_its_topic(bench: Bench) -> None:
    make(bench, "t")
    link = bench.connect()
    wanted = {"topic": "t", "subString": "*", "subVersion": 1}
    group = {"groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [wanted]}  # fmt: skip
    heartbeat = json.dumps({"clientID": "c", "consumerDataSet": [group]}).encode()
    assert ask(link, Code.HEART_BEAT, heartbeat).code == 0
    assert unused(bench) == []


def test_a_young_topic_and_one_that_a_door_asked_for_stay(bench: Bench) -> None:
    make(bench, "t")
    assert unused(bench, older_ms=HOUR_MS) == []
    bench.clock.advance(HOUR_MS)
    assert unused(bench, older_ms=HOUR_MS) == ["t"]
    bench.broker.ensure_topic("t", True, 4)  # a queue is about to be bound to it
    assert unused(bench, older_ms=HOUR_MS) == []
    assert prune(bench, "t", older_ms=HOUR_MS)["unused"] == []


def test_a_message_between_list_and_removal_keeps_the_topic(bench: Bench) -> None:
    make(bench, "t")
    assert unused(bench) == ["t"]
    send(bench, "t", 1)
    assert prune(bench, "t")["kept"] == [["t", "it holds messages"]]
    assert bench.store.max_offset("t", bench.broker.topics.topics["t"].queue_for(Message("t", b"x"))) == 1


def test_a_message_on_its_way_while_the_topic_goes_makes_it_again(bench: Bench) -> None:
    make(bench, "t")
    box: list[Any] = []
    bench.broker.submit([Message("t", b"x")], None, lambda token, found: box.extend(found))
    survey = UnusedTopics(bench.broker, {}, lambda topic: False)
    assert survey.why_used("t", 0) == ""
    survey.remove("t")
    bench.turn.run_until_quiet()
    assert box == [0]
    topic = bench.broker.topics.get("t")
    assert topic is not None
    assert sum([bench.store.max_offset("t", queue) for queue in range(4)]) == 1


def test_a_row_that_comes_during_the_survey_keeps_its_topic(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unused_module, "ROWS_STEP", 2)
    make(bench, "t")
    bench.broker.put("declared", [(f"other{number}", b"x") for number in range(5)], None, None)
    bench.turn.run_until_quiet()
    survey = UnusedTopics(bench.broker, {"declared": lambda key, value: [key]}, lambda topic: False)
    steps = survey.survey()
    next(steps)
    use_row(bench)
    bench.turn.run_until_quiet()
    list(steps)
    assert survey.why_used("t", 0)
    survey.close()
    assert not bench.broker.tables._watchers["declared"]


def test_names_that_never_had_a_message_leave_nothing_behind(bench: Bench) -> None:
    make(bench, "t")
    make(bench, "used", 1)
    bench.store._queues.find("used", 0)
    prune(bench, "t")
    bench.broker.delete_topic("used")
    bench.turn.run_until_quiet()
    assert set(bench.broker.tables.rows("topic")) >= {"used"}
    assert "t" not in bench.broker.tables.rows("topic")
    assert bench.broker.topics.auto_created == 0
    answer = ask(bench.connect(), Code.GET_ALL_TOPIC_CONFIG)
    assert "t" not in json.loads(answer.body)["topicConfigTable"]


def test_strangers_are_refused(bench: Bench) -> None:
    make(bench, "t")
    link = bench.connect("192.0.2.9:5")
    link.peer_is_trusted = False
    assert ask(link, PRUNE_TOPICS, b'["t"]', remove=True).code == ResponseCode.NO_PERMISSION
    assert class_of(PRUNE_TOPICS) is RequestClass.ADMINISTRATION
    assert bench.broker.topics.get("t") is not None
