"""Frames between a gateway and a broker: what the broker keeps of long answers, and what does not fit into a frame."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import END, Terms
from gantrymq.cluster.wire import client as gateway_client
from gantrymq.cluster.wire.codec import (
    PROTOCOL_VERSION,
    GatewayCode,
    decode_body,
    encode_body,
    frame_of,
    unpack_error,
)
from gantrymq.cluster.wire.server import CHECK_EVERY_MS, CONTINUATIONS_MAX, SILENT_CHECKS, STATS_MAX, GatewaySession
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import FRAME_BYTES_MAX
from gantrymq.model.tables import message_rows
from gantrymq.remoting.codec import Command, FrameReader
from tests.broker.test_port import Bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(Bench, "kind", "remote")
    found = Bench()
    for number in range(6):
        found.call("put", "x", [(f"k{number}", bytes(3 << 20))])
    return found


class Asker:
    """A gateway that speaks frames."""

    def __init__(self, bench: Bench) -> None:
        self.frames: list[bytes] = []
        self.ended = 0
        self.begun = 0
        self.session = GatewaySession(bench.broker, "test", self.frames.append, self.end, lambda: self.begun)
        self.opaque = 0

    def end(self) -> None:
        self.ended += 1
        self.session.close()

    def ask(self, code: GatewayCode, *arguments: Any) -> Any:
        self.opaque += 1
        self.session.handle(Command(code, None, encode_body(list(arguments)), self.opaque))
        assert all(len(frame) <= FRAME_BYTES_MAX for frame in self.frames)
        answers = FrameReader().feed(b"".join(self.frames))
        self.frames.clear()
        (answer,) = [command for command in answers if command.opaque == self.opaque]
        return decode_body(answer.body) if answer.code == 0 else unpack_error(answer.body, "").code


def test_a_table_comes_in_parts(bench: Bench) -> None:
    asker = Asker(bench)
    rows, continuation = asker.ask(GatewayCode.WATCH_TABLE, "x", True)
    keys = [row[0] for row in rows]
    while continuation is not None:
        rows, continuation = asker.ask(GatewayCode.NEXT, continuation)
        assert len(rows) == 1
        keys += [row[0] for row in rows]
    assert keys == [f"k{number}" for number in range(6)]
    assert asker.ask(GatewayCode.NEXT, 1) is ErrorCode.NOT_FOUND
    assert asker.ask(GatewayCode.WATCH_TABLE, "empty", True) == [[], None]


def test_unfinished_long_answers_are_bounded_and_end_with_the_session(bench: Bench) -> None:
    asker = Asker(bench)
    for _ in range(CONTINUATIONS_MAX):
        assert asker.ask(GatewayCode.WATCH_TABLE, "x", False)[1] is not None
    assert asker.ask(GatewayCode.WATCH_TABLE, "x", False) is ErrorCode.BUSY
    assert len(asker.session._long) == CONTINUATIONS_MAX
    asker.session.close()
    assert not asker.session._long


def test_stats_of_too_many_cursors_are_refused(bench: Bench) -> None:
    assert Asker(bench).ask(GatewayCode.STATS, [0] * (STATS_MAX + 1)) is ErrorCode.ILLEGAL_ARGUMENT


def test_an_answer_over_a_frame_is_an_error_and_no_exception(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asker = Asker(bench)

    def frame(code: int, body: bytes, opaque: int, flag: int) -> bytes:
        if len(body) > 1 << 20:
            raise ValueError("too large")
        return frame_of(code, body, opaque, flag)

    monkeypatch.setattr("gantrymq.cluster.wire.server.frame_of", frame)
    assert asker.ask(GatewayCode.WATCH_TABLE, "x", False) is ErrorCode.LIMIT_REACHED


def test_a_table_lost_half_way_is_an_error_and_leaves_nothing(bench: Bench) -> None:
    box: list[Any] = []
    assert bench.wire is not None
    port = bench.wire.port
    port.watch_table("x", lambda key, value: None, None, lambda token, result: box.append(result))
    bench.wire.drain()
    assert port._readings
    port.lost("gone")
    assert [error.code for error in box] == [ErrorCode.UNAVAILABLE]
    assert not port._readings
    assert not port._tables
    port.connected(None, lambda token, result: None)
    bench.wire.session = GatewaySession(bench.broker, "again", bench.wire.to_gateway.append)
    bench.wire.to_broker.clear()
    assert len(bench.call("watch_table", "x", lambda key, value: None)) == 6


def test_a_request_over_a_frame_is_an_error(bench: Bench) -> None:
    error = bench.call("put", "x", [(f"k{number}", bytes(3 << 20)) for number in range(6)])
    assert isinstance(error, GantryError)
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE


def test_many_settled_entries_travel_in_parts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_client, "SETTLE_AT_ONCE", 10)
    assert bench.wire is not None
    bench.port.settle([(1, offset, 0) for offset in range(25)])  # type: ignore[misc]
    bench.wire.port.flush()
    commands = FrameReader().feed(b"".join(bench.wire.to_broker))
    assert [len(decode_body(command.body)[0]) for command in commands] == [10, 10, 5]


def test_a_lease_given_up_late_is_not_the_one_that_was_taken_since(bench: Bench) -> None:
    lost: list[str] = []
    first = bench.call("take_lease", "c", True, lambda name: lost.append("first"))
    second = bench.call("take_lease", "c", True, lambda name: lost.append("second"))
    assert lost == ["first"]
    bench.port.drop_lease("c", first)
    Asker(bench).ask(GatewayCode.TAKE_LEASE, "c", True, None)
    bench.quiet()
    assert lost == ["first", "second"]
    bench.port.drop_lease("c", second)
    assert bench.call("take_lease", "c", False, lost.append).code is ErrorCode.LEASE_HELD


def test_consumers_of_two_connections_take_turns(bench: Bench) -> None:
    turns: list[tuple[int, bool]] = []
    light = bench.call("create_light")
    cursor = bench.call("open_cursor", f"~{light}", "g", END).cursor
    other = LocalBrokerPort(bench.broker)
    first: list[Any] = []
    other.take_seat(cursor, Terms(single=True), lambda seat, active: None, None, lambda _, result: first.append(result))
    bench.quiet()
    seat, active = bench.call(
        "take_seat", cursor, Terms(single=True), lambda seat, active: turns.append((seat, active))
    )
    assert not active
    assert (
        bench.call("take_seat", cursor, Terms(exclusive=True), lambda seat, active: None).code is ErrorCode.LEASE_HELD
    )
    other.leave_seat(cursor, first[0][0], None, lambda token, left: None)
    bench.quiet()
    assert turns == [(seat, True)]
    assert bench.call("leave_seat", cursor, seat) == 0


def test_a_broker_announces_its_limit_of_bodies(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.wire is not None
    port = bench.wire.port
    monkeypatch.setattr(bench.broker.store, "body_bytes_max", 70_000)
    said: list[Any] = []
    port.hello(None, lambda token, result: said.append(result))
    bench.wire.drain()
    assert said == [PROTOCOL_VERSION]
    assert port.body_bytes_max() == 70_000


def test_a_message_that_is_a_row_is_checked_as_the_row(bench: Bench) -> None:
    asker = Asker(bench)

    def submit(table: str, pair: bytes) -> Any:
        row = ["t", b"x", pair, "", [], 0, 0, "", None, "", 0, 0, table]
        asker.session.handle(Command(GatewayCode.SUBMIT, None, encode_body([[row], 0]), 1))
        bench.turn.run_until_quiet()
        (answer,) = FrameReader().feed(b"".join(asker.frames))
        asker.frames.clear()
        return decode_body(answer.body) if answer.code == 0 else unpack_error(answer.body, "").code

    for table, pair in (
        ("light", message_rows.row_pair("7", b"x")),
        ("route", message_rows.row_pair("r", b"no json")),
        ("Not a table", message_rows.row_pair("k", b"x")),
        ("kept", b""),
        ("topic", message_rows.row_pair("t", b"{}")),
    ):
        assert isinstance(submit(table, pair), ErrorCode), table
    assert bench.store.max_offset("t", 0) == 0
    assert submit("kept", message_rows.row_pair("k", b"H")) == [0]
    assert bench.broker.tables.rows("kept") == {"k": b"Hx"}
    assert submit("", message_rows.row_pair("other", b"H")) == [1]
    assert bench.broker.tables.rows("kept") == {"k": b"Hx"}


def silence(bench: Bench, checks: int) -> None:
    for _ in range(checks):
        bench.wheel.advance(CHECK_EVERY_MS)


def test_a_gateway_that_says_nothing_any_more_holds_nothing(bench: Bench) -> None:
    asker, other = Asker(bench), Asker(bench)
    asker.ask(GatewayCode.HELLO, PROTOCOL_VERSION)
    asker.ask(GatewayCode.TAKE_LEASE, "name", False, None)
    silence(bench, SILENT_CHECKS)
    asker.ask(GatewayCode.HELLO, PROTOCOL_VERSION)
    silence(bench, SILENT_CHECKS)
    assert asker.ended == 0
    assert other.ask(GatewayCode.TAKE_LEASE, "name", False, None) is ErrorCode.LEASE_HELD
    silence(bench, 1)
    assert asker.ended == 1
    assert isinstance(other.ask(GatewayCode.TAKE_LEASE, "name", False, None), int)
    silence(bench, 2 * SILENT_CHECKS)
    assert (asker.ended, other.ended) == (1, 0), "who says no hello is no gateway process"


def test_a_gateway_whose_large_frame_is_on_its_way_says_something(bench: Bench) -> None:
    asker = Asker(bench)
    asker.ask(GatewayCode.HELLO, PROTOCOL_VERSION)
    for _ in range(2 * SILENT_CHECKS):
        asker.begun += 1000
        silence(bench, 1)
    assert asker.ended == 0


def test_a_broker_that_was_stopped_itself_ends_no_gateway_for_that(bench: Bench) -> None:
    asker = Asker(bench)
    asker.ask(GatewayCode.HELLO, PROTOCOL_VERSION)
    silence(bench, 2)
    bench.wheel.manual_clock.advance(100 * CHECK_EVERY_MS)
    bench.wheel.advance(1)
    assert asker.ended == 0
