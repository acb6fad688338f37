"""Both BrokerPorts with answers larger than a frame, and with a broker that refuses for a while."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import refused_for_now
from gantrymq.broker.topics import Topic, TopicConfig
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from tests.broker.test_port import Bench


@pytest.fixture(autouse=True, params=["local", "remote"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "kind", request.param)


def test_a_table_larger_than_a_frame_is_watched_whole() -> None:
    bench = Bench()
    for number in range(40):
        assert bench.call("put", "x", [(f"k{number}", bytes([number]) * (1 << 20))]) is None
    seen: list[tuple[str, bytes | None]] = []
    box: list[Any] = []

    def watch(key: str, value: bytes | None) -> None:
        assert box, "a change before the table"
        seen.append((key, value))

    other = LocalBrokerPort(bench.broker)
    bench.port.watch_table("x", watch, None, lambda token, result: box.append(dict(result)))
    parts = 0
    while not box:
        bench.turn.run_until_quiet()
        assert bench.wire is not None
        bench.wire.drain()
        items = [(f"k{39 - parts}", None), (f"k{parts}", b"%d" % parts), (f"new{parts}", b""), ("one", b"%d" % parts)]
        other.put("x", items, None, lambda token, result: None)
        parts += 1
    bench.quiet()
    assert parts >= 10 * (bench.wire is not None)
    bench.call("put", "x", [("late", b"1"), ("new0", None), ("k20", None), ("k20", b"again")])
    assert seen[-4:] == [("late", b"1"), ("new0", None), ("k20", None), ("k20", b"again")]
    rows = box[0]
    for key, value in seen:
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value
    assert rows == bench.broker.tables.rows("x")
    assert bench.call("watch_table", "x", watch) == rows
    seen.clear()
    bench.call("put", "x", [("late", b"2")])
    assert seen == [("late", b"2")]


def test_many_topics_and_cursors_are_told_whole() -> None:
    bench = Bench()
    names = [f"{'t' * 110}{number}" for number in range(40_000)]
    topics = bench.broker.topics.topics
    bench.send(Message("t", b""))
    for name in names:
        topics[name] = Topic(TopicConfig(name, 4, 4))
    found = bench.call("topics")
    assert [info.name for info in found] == ["t", *names]
    cursor = bench.queue()[1]
    known = bench.call("stats", [cursor] * 70_000 + [cursor + 1])
    assert len(known) == 70_001
    assert known[-1] is None
    assert known[0] == known[-2] is not None


def test_more_records_than_a_frame_holds_are_read_and_leased() -> None:
    bench = Bench()
    cursor = bench.queue()[1]
    bench.store.body_bytes_max = 3 << 20
    bench.send(*[Message("t", bytes([number]) * (3 << 20)) for number in range(8)])
    refs = [(message.physical_offset, message.size) for message in bench.store.log if message.topic == "t"]
    for _, size in ((0, 1), (0, 0)):
        found = bench.call("read", [(at, known * size) for at, known in [*refs, (1 << 40, 100), refs[0]]])
        assert [None if message is None else message.body[0] for message in found] == [*range(8), None, 0]
    assert bench.call("read", []) == []
    taken: list[int] = []
    while deliveries := bench.acquire(cursor, bytes_max=1 << 40):
        taken += [delivery.message.body[0] for delivery in deliveries]
    assert taken == list(range(8))


def test_what_is_submitted_behind_something_refused_is_not_stored_before_it() -> None:
    bench = Bench(sync=True)
    bench.port.submit([Message("t", b"0" * 100, queue_id=0)], None, lambda token, result: None)
    bench.quiet()
    bench.broker.config = BrokerConfig(pending_bytes_max=0)
    answers: dict[bytes, Any] = {}

    def submit(body: bytes) -> None:
        bench.port.submit([Message("t", body, queue_id=0)], body, answers.__setitem__)

    submit(b"1")
    submit(b"2")
    if bench.wire is not None:
        bench.wire.to_session()
    bench.turn.run_until_quiet()
    bench.broker.gate.advance(bench.store.written_position)  # room again
    if b"1" in answers:
        answers[b"3"] = [ErrorCode.BUSY]  # who knows submits nothing new before it
    else:
        submit(b"3")
    for _ in range(3):
        bench.quiet()
        bench.broker.gate.advance(bench.store.written_position)
        bench.quiet()
        again = [body for body in (b"1", b"2", b"3") if refused_for_now(answers.pop(body, [0]))]
        for body in again:
            submit(body)
    assert [message.body[:1] for message in bench.store.log if message.topic == "t"] == [b"0", b"1", b"2", b"3"]


def test_what_counts_as_refused_for_now() -> None:
    assert refused_for_now(GantryError(ErrorCode.BUSY))
    assert refused_for_now([1, ErrorCode.STORE_FULL])
    assert refused_for_now([ErrorCode.NAME_INVALID, ErrorCode.BUSY])
    for result in ([], [1, 2], [ErrorCode.NO_ROUTE], [1, ErrorCode.NO_ROUTE], GantryError(ErrorCode.UNAVAILABLE)):
        assert not refused_for_now(result)  # type: ignore[arg-type]
