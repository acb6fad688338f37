"""Both BrokerPorts over a log in memory: what gateways rely on, and what is still true after a restart."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig, GatewayConfig, TopicsConfig
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import EARLIEST, END, BrokerPort, CursorInfo, Delivery, Outcome, Route
from gantrymq.cluster.wire.client import RemoteBrokerPort
from gantrymq.cluster.wire.server import GatewaySession
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from gantrymq.remoting.codec import FrameReader
from tests.broker.fakestore import FakeStore


class PrefixRoutes:
    """Test kind: expression = tag prefix; `!` in front reads the body as well."""

    kind = "prefix"
    read_more = False

    def __init__(self) -> None:
        self.routes: dict[int, tuple[str | None, str]] = {}

    def add(self, number: int, topic: str | None, expression: str) -> bool:
        if expression == "bad":
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "bad expression")
        self.routes[number] = (topic, expression)
        return expression.startswith("!")

    def remove(self, number: int) -> None:
        self.routes.pop(number, None)

    def home(self, expression: str) -> str | None:
        return None

    def leading_to(self, topic: str) -> Iterable[str]:
        return ()

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
        for message in messages:
            if message.tag and not message.properties:
                message.properties = props.encode([(props.TAGS, message.tag)])
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


def test_messages_settlements_and_rows_in_one_piece() -> None:
    bench = Bench()
    _, cursor = bench.queue("a")
    bench.send(Message("t", b"0", tag="a"), Message("t", b"1", tag="a"))
    assert len(bench.acquire(cursor)) == 2

    def piece(batch: list[Message], settle: list[tuple[int, int, Outcome]], rows: list[Any]) -> Any:
        box: list[Any] = []
        bench.port.submit(batch, "token", lambda token, result: box.append(result), settle=settle, rows=rows)
        bench.quiet()
        (result,) = box
        return result

    refused = Message("t", b"", tag="b")
    refused.properties, refused.demand_route = props.encode([(props.TAGS, "b")]), "other"
    good = [Message("t", b"2", props.encode([(props.TAGS, "a")]), "a", queue_id=0) for _ in range(2)]
    settle, rows = [(cursor, 0, Outcome.ACK), (cursor, 1, Outcome.REQUEUE)], [("mine", "k", b"v")]
    assert piece([good[0], refused], settle, rows) == [ErrorCode.NOT_ALONE, ErrorCode.NO_ROUTE]
    assert bench.call("stats", [cursor]) == [CursorInfo(cursor, 0, 2, 2)]
    result = piece([good[1]], settle, rows)
    assert [type(one) for one in result] == [int]
    assert bench.call("watch_table", "mine", None) == {"k": b"v"}
    assert piece([], [(cursor, 7, Outcome.ACK)], [("mine", "k", None)]) == []
    denied = piece([], [], [("cursor", "1", None)])
    assert denied.code is ErrorCode.NO_PERMISSION
    again = bench.restart()
    assert again.call("watch_table", "mine", None) == {}
    assert [one.message.body for one in again.acquire(cursor)] == [b"1", b"2"]


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
    bench.broker.commits.commit("g", "t", 0, 2)
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
    bench.broker.commits.commit("g", "t", 0, 1)
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
