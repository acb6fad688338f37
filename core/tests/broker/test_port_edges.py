"""Both BrokerPorts at their edges: failures, several ports on one broker, answers longer than a frame."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import END, FIND, FOR_QUEUE
from gantrymq.broker.topics import TopicConfig
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from tests.broker.test_port import Bench, kind, offsets

__all__ = ["kind"]  # the fixture runs every test over both ports


@pytest.mark.parametrize("sync", [False, True])
def test_nothing_is_acknowledged_after_the_disk_failed(sync: bool) -> None:
    bench = Bench(sync=sync)
    bench.broker.store_failed(GantryError(ErrorCode.STORE_FAILED, "EIO"))
    result = bench.send(Message("t", b"1"))
    assert isinstance(result, GantryError) or result == [ErrorCode.STORE_FAILED]


def test_holders_of_two_ports_are_told_apart() -> None:
    bench = Bench()
    _, cursor = bench.queue()
    bench.send(Message("t", b"1"), Message("t", b"2"))
    other = LocalBrokerPort(bench.broker)
    holder = 0x616D7170 << 24
    assert len(bench.acquire(cursor, 1, holder=holder)) == 1
    taken: list[Any] = []
    other.acquire(cursor, holder, 1, 1 << 20, None, lambda token, result: taken.extend(result))
    assert offsets(taken) == [1]
    other.release(holder)
    assert offsets(bench.acquire(cursor, 5, holder=holder)) == [1]


def test_two_ports_watch_one_cursor() -> None:
    bench = Bench()
    _, cursor = bench.queue()
    other = LocalBrokerPort(bench.broker)
    woken: list[str] = []
    bench.port.watch(cursor, lambda cursor: woken.append("first"))
    other.watch(cursor, lambda cursor: woken.append("second"))
    bench.quiet()
    bench.send(Message("t", b"1"))
    assert sorted(woken) == ["first", "second"]
    assert len(bench.acquire(cursor)) == 1
    bench.send(Message("t", b"2"))
    assert sorted(woken) == ["first", "first", "second"]
    other.watch(cursor, None)
    bench.acquire(cursor)
    bench.send(Message("t", b"3"))
    assert sorted(woken) == ["first", "first", "first", "second"]


def test_a_door_makes_its_system_topic_whatever_users_may_create() -> None:
    bench = Bench(auto_create=False)
    assert not isinstance(bench.call("ensure_topic", "rmq_sys_amqp_direct", True), GantryError)


def test_topics_made_on_use_are_counted_over_restart_and_deletion() -> None:
    bench = Bench(auto_create_max=2)
    bench.send(Message("a1", b""), Message("a2", b""))
    after = Bench(bench.store, auto_create_max=2)
    assert after.send(Message("a3", b"")) == [ErrorCode.TOPIC_LIMIT]
    after.broker.delete_topic("a1")
    after.quiet()
    assert after.send(Message("a3", b"")) == [0]
    after.broker.topics.create(TopicConfig("a2", 4, 4))  # made by hand now: it does not count any more
    after.quiet()
    assert after.send(Message("a4", b"")) == [0]
    assert after.send(Message("a5", b"")) == [ErrorCode.TOPIC_LIMIT]


def test_topics_of_declared_queues_have_a_limit_of_their_own() -> None:
    limits = {"auto_create_max": 1, "queue_topics_max": 2}
    bench = Bench(**limits)
    for name in ("q1", "q2", "q2"):
        assert bench.call("ensure_topic", name, FOR_QUEUE).name == name
    assert bench.send(Message("t", b"")) == [0], "they do not count towards the other limit"
    after = Bench(bench.store, **limits)
    error = after.call("ensure_topic", "q3", FOR_QUEUE)
    assert (error.code, "topics.queue_topics_max" in error.text) == (ErrorCode.TOPIC_LIMIT, True)
    error = after.call("ensure_topic", "q3", True)
    assert (error.code, "topics.auto_create_max" in error.text) == (ErrorCode.TOPIC_LIMIT, True)
    after.broker.delete_topic("q1")
    after.broker.topics.create(TopicConfig("q2", 4, 4))  # made by hand now: it does not count any more
    after.quiet()
    for name in ("q3", "q4"):
        assert not isinstance(after.call("ensure_topic", name, FOR_QUEUE), GantryError)
    assert after.call("ensure_topic", "q5", FOR_QUEUE).code is ErrorCode.TOPIC_LIMIT


def test_a_cursor_waits_for_a_topic_that_is_made_again() -> None:
    bench = Bench()
    bench.send(Message("t", b"1", queue_id=0))
    cursor = bench.call("open_cursor", "t/0", "g", END).cursor
    woken: list[int] = []
    bench.port.watch(cursor, woken.append)
    bench.quiet()
    bench.broker.delete_topic("t")
    bench.quiet()
    assert bench.acquire(cursor) == []
    bench.send(Message("t", b"2", queue_id=0))
    assert woken == [cursor]
    assert [delivery.message.body for delivery in bench.acquire(cursor)] == [b"2"]


def test_rows_are_compared_with_what_is_on_its_way() -> None:
    bench = Bench()
    port = LocalBrokerPort(bench.broker)
    seen: list[tuple[str, Any]] = []

    def told(token: Any, result: Any) -> None:
        seen.append((token, result))
        if token == "first":  # the append is under way: the row of the next batch is not applied yet
            port.put_if("x", [("b", None, b"late")], "within", told)

    port.put("x", [("a", b"1")], "first", told)
    port.put("x", [("b", b"1")], "second", told)
    port.put_if("x", [("b", b"1", b"2"), ("c", None, b"1")], "third", told)
    port.put_if("x", [("b", b"1", b"3")], "fourth", told)
    bench.turn.run_until_quiet()
    assert dict(seen) == {"first": None, "second": None, "within": [False], "third": [True, True], "fourth": [False]}
    assert bench.broker.tables.rows("x") == {"a": b"1", "b": b"2", "c": b"1"}


def test_rows_are_changed_together_if_one_is_as_expected() -> None:
    bench = Bench()
    port = LocalBrokerPort(bench.broker)
    seen: list[tuple[str, Any]] = []
    changes: list[tuple[str, bytes | None]] = []
    bench.broker.tables.watch("x", lambda key, value: changes.append((key, value)))

    def told(token: Any, result: Any) -> None:
        seen.append((token, result))

    port.put_together("x", "a", None, [("a/1", b"1"), ("a/2", b"1"), ("a", b"1")], "first", told)
    port.put_together("x", "a", None, [("a/3", b"1"), ("a", b"2")], "late", told)
    port.put_together("x", "a", b"1", [("a/1", None), ("a", b"2")], "second", told)
    port.put_together("x", "a", b"2", [("\0", b"1"), ("a", b"3")], "refused", told)
    bench.turn.run_until_quiet()
    assert {name: result for name, result in seen if name != "refused"} == {
        "first": True,
        "late": False,
        "second": True,
    }
    assert isinstance(dict(seen)["refused"], GantryError)
    assert bench.broker.tables.rows("x") == {"a/2": b"1", "a": b"2"}
    assert changes == [("a/1", b"1"), ("a/2", b"1"), ("a", b"1"), ("a/1", None), ("a", b"2")]


@pytest.mark.parametrize("key", ["a\0b", "a\x01b", "a\x02b", "a\ud800", "", "x" * 4097])
def test_a_key_that_recovery_would_not_read_is_refused(key: str) -> None:
    """U+0000 in a record's properties ends a log that was not closed; whatever was acknowledged behind it would be cut off."""
    bench = Bench()
    refused: list[Any] = []
    bench.port.put("x", [("before", b"1"), (key, b"1")], None, lambda token, result: refused.append(result))
    bench.port.submit(
        [Message("t", b"1")], None, lambda token, result: refused.append(result), rows=[("x", key, b"1")]
    )  # fmt: skip
    bench.quiet()
    assert [type(result) for result in refused] == [GantryError] * 2
    assert bench.broker.tables.rows("x") == {}
    assert bench.broker.store.max_offset("t", 0) == 0


def test_comparing_many_rows_takes_one_turn() -> None:
    """Else a gateway's clients that all come at once would wait for one flush each."""
    bench = Bench()
    port = LocalBrokerPort(bench.broker)
    seen: list[Any] = []
    for number in range(100):
        port.put_if("x", [(str(number), None, b"1")], None, lambda token, result: seen.append(result))
    bench.turn.run()
    assert seen == [[True]] * 100


def test_a_refused_row_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    port = LocalBrokerPort(bench.broker)
    seen: list[Any] = []
    append = bench.store.append

    def full(*arguments: Any) -> Any:
        monkeypatch.setattr(bench.store, "append", append)
        raise GantryError(ErrorCode.STORE_FULL)

    monkeypatch.setattr(bench.store, "append", full)
    port.put("x", [("a", b"1")], None, lambda token, result: seen.append(result.code))
    port.put_if("x", [("a", None, b"2")], None, lambda token, result: seen.append(result))
    bench.turn.run_until_quiet()
    assert seen == [ErrorCode.STORE_FULL, [True]]


def test_a_cursor_that_is_only_looked_for_is_not_made() -> None:
    bench = Bench()
    light, cursor = bench.queue()
    assert bench.call("open_cursor", f"~{light}", "nobody", FIND).code is ErrorCode.NOT_FOUND
    assert [found.id for found in bench.broker.cursors.views() if found.light == light] == [cursor]
    group = bench.broker.cursors.by_id[cursor].group
    assert bench.call("open_cursor", f"~{light}", group, FIND).cursor == cursor


def test_a_deleted_light_queue_has_no_cursors() -> None:
    bench = Bench()
    light, _ = bench.queue()
    bench.call("delete_light", light)
    assert bench.call("open_cursor", f"~{light}", "g", END).code is ErrorCode.QUEUE_NOT_FOUND
    assert all(cursor.light != light for cursor in bench.broker.cursors.views())


def test_topics_made_for_queues_in_one_minute_have_equal_rows() -> None:
    bench = Bench()
    bench.wheel.advance(60_000 - bench.broker.clock.now_ms() % 60_000)
    for name, create in (("q1", FOR_QUEUE), ("t1", True)):
        bench.call("ensure_topic", name, create)
    bench.wheel.advance(59_999)
    for name, create in (("q2", FOR_QUEUE), ("t2", True)):
        bench.call("ensure_topic", name, create)
    rows = bench.broker.tables.rows("topic")
    assert rows["q1"] == rows["q2"]
    assert rows["t1"] != rows["t2"]
    bench.wheel.advance(1)
    bench.call("ensure_topic", "q3", FOR_QUEUE)
    assert rows["q3"] != rows["q2"]
