"""Both BrokerPorts over a log in memory: what gateways rely on, and what is still true after a restart."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig, GatewayConfig, TopicsConfig
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import EARLIEST, END, BrokerPort, CursorInfo, Delivery, Outcome, Route, refused_for_now
from gantrymq.broker.topics import Topic, TopicConfig
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from gantrymq.remoting.codec import FrameReader
from gantrymq.remoting.gateway_client import RemoteBrokerPort
from gantrymq.remoting.gateway_server import GatewaySession
from tests.broker.fakestore import FakeStore


class PrefixRoutes:
    """Test kind: expression = tag prefix; `!` in front reads the body as well."""

    kind = "prefix"

    def __init__(self) -> None:
        self.routes: dict[int, tuple[str | None, str]] = {}

    def add(self, number: int, topic: str | None, expression: str) -> bool:
        if expression == "bad":
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "bad expression")
        self.routes[number] = (topic, expression)
        return expression.startswith("!")

    def remove(self, number: int) -> None:
        self.routes.pop(number, None)

    def match(self, message: Message) -> Iterable[int]:
        for number, (topic, expression) in self.routes.items():
            if topic in (None, message.topic) and (
                expression[1:].encode() == message.body
                if expression.startswith("!")
                else message.tag.startswith(expression)
            ):
                yield number


class Wire:
    """A gateway's connection to a broker without sockets: frames wait in two lists until `drain`."""

    def __init__(self, broker: Broker) -> None:
        self.to_broker: list[bytes] = []
        self.to_gateway: list[bytes] = []
        self.session = GatewaySession(broker, "test", self.to_gateway.append)
        self.port = RemoteBrokerPort(self.to_broker.append, lambda: None)
        self.reader = FrameReader()
        self.port.connected("hello", lambda token, result: None)

    def to_session(self) -> bool:
        self.port.flush()
        sent, self.to_broker[:] = b"".join(self.to_broker), []
        for command in self.reader.feed(sent):
            self.session.handle(command)
        return bool(sent)

    def drain(self) -> bool:
        sent = self.to_session()
        came, self.to_gateway[:] = b"".join(self.to_gateway), []
        self.port.received(came)
        return sent or bool(came)


@pytest.fixture(autouse=True, params=["local", "remote"])
def kind(request: pytest.FixtureRequest) -> str:
    Bench.kind = request.param
    return Bench.kind


class Bench:
    """A broker over a FakeStore; `restart` makes a new one over the same log."""

    kind = "local"

    def __init__(self, store: FakeStore | None = None, sync: bool = False, **topics: Any) -> None:
        self.store = store or FakeStore()
        self.turn = ManualTurn()
        clock = ManualClock()
        self.wheel = ManualWheel(clock)
        self.broker = Broker(
            self.store, clock, self.turn, self.wheel, {"prefix": PrefixRoutes()},  # type: ignore[arg-type]
            BrokerConfig(), TopicsConfig(**topics), GatewayConfig(), sync,
        )  # fmt: skip
        self.broker.open()
        self.wire = Wire(self.broker) if self.kind == "remote" else None
        self.port: BrokerPort = self.wire.port if self.wire else LocalBrokerPort(self.broker)
        self.quiet()

    def quiet(self) -> None:
        """Run turns, and the wire between them, until nothing moves."""
        self.turn.run_until_quiet()
        while self.wire is not None and self.wire.drain():
            self.turn.run_until_quiet()

    def call(self, method: str, *args: Any) -> Any:
        box: list[Any] = []
        getattr(self.port, method)(*args, "token", lambda token, result: box.append((token, result)))
        self.quiet()
        assert [token for token, _ in box] == ["token"]
        return box[0][1]

    def send(self, *messages: Message) -> Any:
        return self.call("submit", list(messages))

    def queue(self, expression: str = "", topic: str | None = "t", group: str = "g") -> tuple[int, int]:
        light = self.call("create_light")
        assert self.call("add_route", Route(f"r{light}", "prefix", topic, expression, light)) is None
        info = self.call("open_cursor", f"~{light}", group, END)
        assert isinstance(info, CursorInfo)
        return light, info.cursor

    def acquire(self, cursor: int, count: int = 100, holder: int = 1, bytes_max: int = 1 << 20) -> list[Delivery]:
        result = self.call("acquire", cursor, holder, count, bytes_max)
        assert isinstance(result, list)
        return result

    def restart(self) -> Bench:
        self.quiet()
        return Bench(self.store)


def offsets(deliveries: list[Delivery]) -> list[int]:
    return [delivery.offset for delivery in deliveries]


def test_one_append_per_turn_and_offsets_in_order() -> None:
    bench = Bench()
    bench.send(Message("t", b"first", queue_id=0))
    bench.store.appends = 0
    box: list[Any] = []
    for body in (b"a", b"b", b"c"):
        bench.port.submit([Message("t", body, queue_id=0)], body, lambda token, result: box.append((token, result)))
    bench.quiet()
    assert bench.store.appends == 1
    assert box == [(b"a", [1]), (b"b", [2]), (b"c", [3])]


def test_a_refused_message_does_not_take_the_others_with_it() -> None:
    bench = Bench()
    results = bench.send(
        Message("t", b"1", queue_id=0),
        Message("bad topic", b"2"),
        Message("t", bytes(2000)),
        Message("rmq_sys_gantry_x", b"3"),
        Message("t", b"4", queue_id=0),
    )
    assert results == [0, ErrorCode.NAME_INVALID, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NO_PERMISSION, 1]


def test_same_tag_same_queue_and_all_queues_are_used() -> None:
    bench = Bench()
    messages = [Message("t", b"x", tag=f"k{i % 50}") for i in range(200)]
    bench.send(*messages)
    messages = [message for message in bench.store.log if message.topic == "t"]
    by_tag: dict[str, set[int]] = {}
    for message in messages:
        by_tag.setdefault(message.tag, set()).add(message.queue_id)
    assert all(len(queues) == 1 for queues in by_tag.values())
    assert {message.queue_id for message in messages} == {0, 1, 2, 3}


def test_topic_limits() -> None:
    bench = Bench(auto_create_max=1)
    assert bench.send(Message("t1", b""), Message("t2", b""))[1] is ErrorCode.TOPIC_LIMIT
    closed = Bench(auto_create=False)
    assert closed.send(Message("t1", b"")) == [ErrorCode.TOPIC_NOT_FOUND]
    error = closed.call("ensure_topic", "t1", True)
    assert isinstance(error, GantryError)
    assert error.code is ErrorCode.TOPIC_NOT_FOUND


def test_light_queue_gets_what_matches_once() -> None:
    bench = Bench()
    light, cursor = bench.queue("a")
    assert bench.call("add_route", Route("second", "prefix", None, "ab", light)) is None
    bench.send(Message("t", b"1", tag="abc"), Message("t", b"2", tag="b"), Message("t", b"3", tag="a"))
    assert [delivery.message.body for delivery in bench.acquire(cursor)] == [b"1", b"3"]


def test_routes_that_read_the_body_are_not_cached() -> None:
    bench = Bench()
    _, cursor = bench.queue("!yes")
    bench.send(Message("t", b"yes", tag="x"), Message("t", b"no", tag="x"), Message("t", b"yes", tag="x"))
    assert len(bench.acquire(cursor)) == 2


def test_no_route_is_not_stored() -> None:
    bench = Bench()
    bench.queue("a")
    hit, miss = Message("t", b"1", tag="a"), Message("t", b"2", tag="z")
    hit.demand_route = miss.demand_route = "prefix"
    assert bench.send(hit, miss)[1] is ErrorCode.NO_ROUTE
    assert [message.body for message in bench.store.log if message.topic == "t"] == [b"1"]


def test_requeue_keeps_its_place() -> None:
    bench = Bench()
    _, cursor = bench.queue()
    bench.send(*[Message("t", bytes([i])) for i in range(6)])
    assert offsets(bench.acquire(cursor, 4)) == [0, 1, 2, 3]
    bench.port.settle(
        [
            (cursor, 3, Outcome.REQUEUE),
            (cursor, 1, Outcome.REQUEUE),
            (cursor, 0, Outcome.RELEASE),
            (cursor, 2, Outcome.ACK),
        ]
    )
    again = bench.acquire(cursor)
    assert [(delivery.offset, delivery.count) for delivery in again] == [(0, 1), (1, 2), (3, 2), (4, 1), (5, 1)]


def test_settling_twice_or_unknown_changes_nothing() -> None:
    bench = Bench()
    _, cursor = bench.queue()
    bench.send(Message("t", b"1"))
    bench.acquire(cursor)
    bench.port.settle(
        [(cursor, 0, Outcome.ACK), (cursor, 0, Outcome.REQUEUE), (cursor, 7, Outcome.ACK), (99, 0, Outcome.ACK)]
    )
    assert bench.acquire(cursor) == []


def test_bytes_limit_gives_at_least_one() -> None:
    bench = Bench()
    _, cursor = bench.queue()
    bench.send(*[Message("t", b"x") for _ in range(5)])
    assert offsets(bench.acquire(cursor, 5, bytes_max=1)) == [0]
    assert offsets(bench.acquire(cursor, 5, bytes_max=250)) == [1, 2]
    assert offsets(bench.acquire(cursor, 5)) == [3, 4]


def test_watcher_fires_once_until_acquire_comes_back_short() -> None:
    bench = Bench()
    _, cursor = bench.queue()
    fired: list[int] = []
    bench.port.watch(cursor, fired.append)
    bench.quiet()
    assert fired == []
    bench.send(Message("t", b"1"))
    bench.send(Message("t", b"2"))
    assert fired == [cursor]
    assert len(bench.acquire(cursor, 1)) == 1
    bench.send(Message("t", b"3"))
    assert fired == [cursor]
    assert len(bench.acquire(cursor, 10)) == 2
    bench.send(Message("t", b"4"))
    assert fired == [cursor, cursor]
    bench.acquire(cursor)
    bench.port.release(1)
    bench.quiet()
    assert fired == [cursor] * 3


def test_a_watcher_that_fails_does_not_cost_the_others_their_call() -> None:
    bench = Bench()
    (_, first), (_, second) = bench.queue(), bench.queue()
    port = LocalBrokerPort(bench.broker)
    fired: list[Any] = []

    def fail(cursor: int) -> None:
        raise RuntimeError("a bug of one door")

    port.watch(first, fail)
    port.watch(second, fired.append)
    tap = bench.call("open_tap", fired.extend)
    bench.call("add_volatile", tap, 1, "prefix", "t", "")
    bench.send(Message("t", b"1"))
    assert len(fired) == 2
    assert second in fired


def test_native_queue_cursor_sees_new_and_old_records() -> None:
    bench = Bench()
    bench.send(Message("t", b"old", queue_id=2))
    old = bench.call("open_cursor", "t/2", "a", EARLIEST)
    new = bench.call("open_cursor", "t/2", "b", END)
    fired: list[int] = []
    bench.port.watch(new.cursor, fired.append)
    bench.send(Message("t", b"new", queue_id=2))
    assert fired == [new.cursor]
    assert [delivery.message.body for delivery in bench.acquire(old.cursor)] == [b"old", b"new"]
    assert [delivery.message.body for delivery in bench.acquire(new.cursor)] == [b"new"]
    for queue, code in (
        ("t/9", ErrorCode.QUEUE_NOT_FOUND),
        ("none/0", ErrorCode.TOPIC_NOT_FOUND),
        ("t", ErrorCode.ILLEGAL_ARGUMENT),
    ):
        error = bench.call("open_cursor", queue, "a", END)
        assert isinstance(error, GantryError)
        assert error.code is code


def test_restart_redelivers_what_was_not_acked_and_nothing_else() -> None:
    bench = Bench()
    _, cursor = bench.queue()
    bench.send(*[Message("t", bytes([i])) for i in range(10)])
    bench.acquire(cursor, 6)
    bench.port.settle(
        [(cursor, 0, Outcome.ACK), (cursor, 3, Outcome.ACK), (cursor, 4, Outcome.DROP), (cursor, 2, Outcome.REQUEUE)]
    )
    bench.quiet()
    after = bench.restart()
    again = after.acquire(cursor)
    assert [(delivery.offset, delivery.count > 1) for delivery in again] == [
        (1, True), (2, True), (5, True), (6, True), (7, True), (8, True), (9, True),
    ]  # fmt: skip
    after.send(Message("t", b"new"))
    assert [(delivery.offset, delivery.count) for delivery in after.acquire(cursor)] == [(10, 1)]


def test_restart_after_purge_keeps_what_was_in_flight() -> None:
    bench = Bench()
    _, cursor = bench.queue()
    bench.send(*[Message("t", bytes([i])) for i in range(10)])
    bench.acquire(cursor, 3)
    bench.port.settle([(cursor, 1, Outcome.REQUEUE)])
    assert bench.call("purge", cursor) == 8
    after = bench.restart()
    assert offsets(after.acquire(cursor)) == [0, 2]


def test_deleted_light_queue_is_gone_and_its_id_is_not_used_again() -> None:
    bench = Bench()
    light, cursor = bench.queue()
    bench.call("delete_light", light)
    after = bench.restart()
    assert isinstance(after.call("acquire", cursor, 1, 1, 1), GantryError)
    assert after.broker.router.routes == {}
    assert after.call("create_light") > light


def test_tables_survive_and_watchers_see_changes() -> None:
    bench = Bench()
    seen: list[Any] = []
    assert bench.call("watch_table", "x", lambda key, value: seen.append((key, value))) == {}
    bench.call("put", "x", [("a", b"1"), ("b", b"2")])
    bench.call("put", "x", [("a", None)])
    assert seen == [("a", b"1"), ("b", b"2"), ("a", None)]
    assert bench.restart().call("watch_table", "x", None) == {"b": b"2"}
    for table, key in (("route", "k"), ("Bad", "k"), ("x", ""), ("x", "a\x01b")):
        assert isinstance(bench.call("put", table, [(key, b"")]), GantryError)


def test_taps_get_records_from_the_batch_with_the_same_tuple() -> None:
    bench = Bench()
    seen: list[Any] = []
    tap = bench.call("open_tap", seen.extend)
    bench.call("add_volatile", tap, 4, "prefix", None, "a")
    bench.call("add_volatile", tap, 9, "prefix", "t", "")
    bench.send(Message("t", b"1", tag="a"), Message("t", b"2", tag="a"), Message("u", b"3", tag="b"))
    assert [(message.body, numbers) for message, numbers in seen] == [(b"1", (4, 9)), (b"2", (4, 9))]
    assert seen[0][1] is seen[1][1]
    bench.port.remove_volatile(tap, [9])
    seen.clear()
    bench.send(Message("t", b"4", tag="b"), Message("t", b"5", tag="ab"))
    assert [(message.body, numbers) for message, numbers in seen] == [(b"5", (4,))]
    bench.port.close_tap(tap)
    bench.send(Message("t", b"6", tag="ab"))
    assert len(seen) == 1


def test_leases() -> None:
    bench = Bench()
    lost: list[str] = []
    first = bench.call("take_lease", "c", False, lost.append)
    error = bench.call("take_lease", "c", False, lost.append)
    assert isinstance(error, GantryError)
    assert error.code is ErrorCode.LEASE_HELD
    second = bench.call("take_lease", "c", True, lost.append)
    assert second > first
    assert lost == ["c"]
    bench.port.drop_lease("c", first)
    assert isinstance(bench.call("take_lease", "c", False, lost.append), GantryError)
    bench.port.drop_lease("c", second)
    assert bench.call("take_lease", "c", False, lost.append) > second


def test_watchers_of_a_deleted_topic_hear_of_the_topic_of_its_name() -> None:
    bench = Bench()
    bench.call("ensure_topic", "t", True)
    cursor = bench.call("open_cursor", "t/0", "g", END).cursor
    fired: list[int] = []
    bench.port.watch(cursor, fired.append)
    bench.send(Message("t", b"1", queue_id=0))
    assert offsets(bench.acquire(cursor)) == [0]
    assert bench.broker.delete_topic("t")
    bench.quiet()
    fired.clear()
    bench.send(Message("t", b"2", queue_id=0))
    assert fired == [cursor]
    assert offsets(bench.acquire(cursor)) == [1]


def test_a_tap_takes_a_batch_with_the_largest_properties() -> None:
    bench = Bench()
    seen: list[Any] = []
    tap = bench.call("open_tap", seen.extend)
    bench.call("add_volatile", tap, 1, "prefix", "t", "")
    properties = props.encode([("a", "x" * 32_000)])  # 600 of them are more than one frame
    bench.send(*[Message("t", b"", properties, queue_id=0) for _ in range(600)])
    assert len(seen) == 600


def test_topic_deleted_and_made_again_goes_on_counting() -> None:
    bench = Bench()
    bench.send(Message("t", b"1", queue_id=0), Message("t", b"2", queue_id=0))
    bench.broker.commit_offset("g", "t", 0, 2)
    assert bench.broker.delete_topic("t")
    assert bench.broker.offsets.query("g", "t", 0) == -1
    bench.quiet()
    after = bench.restart()
    assert after.broker.topics.get("t") is None
    after.send(Message("t", b"3", queue_id=0))
    assert after.broker.min_offset("t", 0) == 2
    assert after.restart().broker.min_offset("t", 0) == 2


def test_committed_offsets_become_records_within_a_second() -> None:
    bench = Bench()
    bench.send(Message("t", b"1"))
    bench.broker.commit_offset("g", "t", 0, 1)
    bench.wheel.advance(1_100)
    bench.quiet()
    assert bench.restart().broker.offsets.query("g", "t", 0) == 1


def test_synchronous_flush_answers_at_the_flushed_position() -> None:
    bench = Bench(sync=True)
    asked: list[int] = []
    bench.broker.request_flush = lambda: asked.append(1)
    box: list[Any] = []
    bench.port.submit([Message("t", b"1", queue_id=0)], None, lambda token, result: box.append(result))
    bench.quiet()
    assert box == []
    assert asked
    bench.broker.gate.advance(bench.store.written_position)
    bench.quiet()
    assert box == [[0]]


def test_a_full_disk_refuses_and_recovers() -> None:
    bench = Bench()
    bench.send(Message("t", b"1"))
    bench.store.fail = GantryError(ErrorCode.STORE_FULL)
    assert bench.send(Message("t", b"2")) == [ErrorCode.STORE_FULL]
    assert isinstance(bench.call("put", "x", [("a", b"")]), GantryError)
    bench.store.fail = None
    assert bench.call("watch_table", "x", None) == {}
    assert bench.send(Message("t", b"3")) != [ErrorCode.STORE_FULL]


def test_bad_routes_are_refused() -> None:
    bench = Bench()
    for route in (
        Route("r", "unknown", None, "", 1),
        Route("r", "prefix", None, "bad", 1),
        Route("r", "prefix", "rmq_sys_gantry_ack", "", 1),
    ):
        assert isinstance(bench.call("add_route", route), GantryError)
    assert bench.broker.router.routes == {}


def test_replacing_a_route_keeps_one() -> None:
    bench = Bench()
    light, cursor = bench.queue("a")
    bench.call("add_route", Route(f"r{light}", "prefix", "t", "b", light))
    bench.send(Message("t", b"1", tag="a"), Message("t", b"2", tag="b"))
    assert [delivery.message.body for delivery in bench.acquire(cursor)] == [b"2"]


@pytest.mark.parametrize("rows", [0, 5])
def test_cursor_rows_are_json(rows: int) -> None:
    bench = Bench()
    for _ in range(rows):
        bench.queue()
    table = bench.broker.tables.rows("cursor")
    assert len([key for key in table if key != "next"]) == rows
    assert all(json.loads(value) for value in table.values())


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
