"""A turn answers everybody: what raises for one batch, row or callback costs no other anything."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from gantrymq.broker.port import EARLIEST, Outcome, Route
from gantrymq.broker.turn.ackgate import AckGate
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node


def message(body: object = b"b", **fields: Any) -> Message:
    made = Message("t", body, b"", queue_id=0)  # type: ignore[arg-type]
    for name, value in fields.items():
        setattr(made, name, value)
    return made


GARBAGE: list[dict[str, Any]] = [
    {"body": None}, {"body": 7}, {"properties": 7}, {"properties": None}, {"properties": "TAGS"}, {"tag": 7}, {"tag": None},
    {"tag": ["a"]}, {"queue_id": None}, {"queue_id": "0"}, {"topic": 7}, {"topic": None}, {"topic": b"t"}, {"sharding_key": 7, "queue_id": -1},
    {"flag": 1 << 40}, {"sys_flag": "x"}, {"born_ms": -(1 << 70)}, {"exchange": []}, {"keys": (1, 2)}, {"keys": None},
]  # fmt: skip


@pytest.fixture
def node() -> Node:
    return Node(MemoryFileSystem(), False)


def submit(node: Node, *batch: Message) -> list[Any]:
    box: list[Any] = []
    node.broker.submit(batch, None, lambda token, result: box.append(result))
    return box


@pytest.mark.parametrize("garbage", GARBAGE, ids=str)
def test_a_message_of_wrong_types_takes_its_own_batch_only(node: Node, garbage: dict[str, Any]) -> None:
    light = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "", light))
    cursor = node.call("open_cursor", f"~{light}", "g", EARLIEST).cursor
    before = submit(node, message(b"first"), message(b"second"))
    bad = submit(node, message(b"good"), message(**garbage))
    after = submit(node, message(b"third"))
    rows: list[Any] = []
    node.port.put("x", [("k", b"v")], None, lambda token, result: rows.append(result))
    node.turn.run_until_quiet()
    assert [len(box) for box in (before, bad, after, rows)] == [1, 1, 1, 1]
    assert before == [[0, 1]]
    assert rows == [None]
    assert all(isinstance(offset, int) for offset in after[0])
    assert len(bad[0]) == 2
    found = node.call("acquire", cursor, 1, 10, 1 << 20)
    bodies = [delivery.message.body for delivery in found]
    assert [body for body in bodies if body in {b"first", b"second", b"third"}] == [b"first", b"second", b"third"]
    assert node.broker.tables.rows("x") == {"k": b"v"}
    submitted = submit(node, message(b"later"))
    node.turn.run_until_quiet()
    assert isinstance(submitted[0][0], int)


def test_acknowledgements_of_a_turn_that_fails_are_written_by_a_later_one(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    light = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "", light))
    cursor = node.call("open_cursor", f"~{light}", "g", EARLIEST).cursor
    node.call("submit", [message(b"%d" % number) for number in range(4)])
    found = node.call("acquire", cursor, 1, 10, 1 << 20)
    append = node.store.append

    def broken(*args: Any) -> int:
        raise AttributeError("a defect")

    monkeypatch.setattr(node.store, "append", broken)
    node.port.settle([(cursor, delivery.offset, Outcome.ACK) for delivery in found[:3]])
    boxes = [submit(node, message(b"x")), submit(node, message(b"y"), message(b"z"))]
    row: list[Any] = []
    node.port.put("x", [("k", b"v")], None, lambda token, result: row.append(result))
    node.broker.put_rows([("x", "alone", b"v")])  # nobody waits for it: it stands in memory elsewhere
    with caplog.at_level(logging.ERROR):
        node.turn.run_until_quiet()
    assert boxes == [[[ErrorCode.UNAVAILABLE]], [[ErrorCode.UNAVAILABLE] * 2]]
    assert isinstance(row[0], GantryError)
    assert len([line for line in caplog.records if "AttributeError: a defect" in line.getMessage()]) == 1
    monkeypatch.setattr(node.store, "append", append)
    node.wheel.advance(5_000)
    node.turn.run_until_quiet()
    again = Node(node.files.after_process_crash(), False)  # type: ignore[attr-defined]
    assert again.broker.tables.rows("x") == {"alone": b"v"}
    left = again.call("acquire", cursor, 1, 10, 1 << 20)
    assert [delivery.message.body for delivery in left] == [b"3"]


def test_a_row_of_a_type_that_no_record_holds_is_refused_with_those_it_came_with(node: Node) -> None:
    done: list[Any] = []
    node.broker.put("x", [("a", b"1"), ("b", ["list"])], None, lambda token, result: done.append(result))  # type: ignore[list-item]
    node.broker.put("x", [("c", b"3")], None, lambda token, result: done.append(result))
    sent = submit(node, message())
    node.turn.run_until_quiet()
    assert [getattr(result, "code", None) for result in done] == [ErrorCode.ILLEGAL_ARGUMENT, None]
    assert sent == [[0]]
    assert node.broker.tables.rows("x") == {"c": b"3"}
    refused: list[Any] = []
    for key, value in (("k", ["list"]), ("k", "text"), (7, b"v"), ("k", 7)):
        node.port.put("x", [(key, value)], None, lambda token, result: refused.append(result.code))  # type: ignore[list-item]
    assert refused == [ErrorCode.ILLEGAL_ARGUMENT] * 4


@pytest.mark.parametrize("full", [False, True])
def test_a_callback_that_raises_costs_the_others_nothing(node: Node, full: bool) -> None:
    def fails(token: object, result: object) -> None:
        raise RuntimeError("a door's defect")

    node.broker.tables.watch("x", lambda key, value: fails(key, value))
    node.broker.submit([message()], None, fails)
    node.broker.put("x", [("k", b"v")], None, fails)
    boxes = [submit(node, message(b"x")), submit(node, message(b"y"))]
    row: list[Any] = []
    node.port.put("x", [("l", b"v")], None, lambda token, result: row.append(result))
    if full:
        node.store._buffer_full = True
    node.turn.run_until_quiet()
    if full:
        assert boxes == [[[ErrorCode.STORE_FULL]], [[ErrorCode.STORE_FULL]]]
        assert row[0].code is ErrorCode.STORE_FULL
    else:
        assert boxes == [[[1]], [[2]]]
        assert row == [None]


@pytest.mark.parametrize("failed", [False, True])
def test_answers_behind_one_that_raises_at_the_gate_are_given(failed: bool) -> None:
    def fails(token: object, result: object) -> None:
        raise RuntimeError("a door's defect")

    gate = AckGate(always_open=False)
    answers: list[Any] = []
    gate.park(10, fails, "a", 1)
    gate.park(20, lambda token, result: answers.append((token, result)), "b", 2)
    error = GantryError(ErrorCode.STORE_FAILED)
    if failed:
        gate.fail(error)
    else:
        gate.advance(20)
    assert answers == [("b", error if failed else 2)]
    assert gate.waiting() == 0
