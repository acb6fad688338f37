"""AckGate: nothing is answered before its position is safe; a failed flush answers everything with the error."""

from __future__ import annotations

from typing import Any

from gantrymq.broker.turn.ackgate import AckGate
from gantrymq.model.errors import ErrorCode, GantryError


def test_answers_in_order_up_to_the_position() -> None:
    gate, seen = AckGate(always_open=False), []

    def answer(token: Any, result: Any) -> None:
        seen.append((token, result))

    assert not gate.park(10, answer, "a", 1)
    assert not gate.park(20, answer, "b", 2)
    gate.advance(15)
    assert seen == [("a", 1)]
    assert gate.park(12, answer, "c", 3)
    gate.advance(20)
    assert seen == [("a", 1), ("c", 3), ("b", 2)]
    assert gate.waiting() == 0


def test_failure_reaches_open_and_later_entries() -> None:
    gate, seen = AckGate(always_open=False), []
    gate.park(10, lambda token, result: seen.append((token, result)), "a", 1)
    error = GantryError(ErrorCode.STORE_FAILED)
    gate.fail(error)
    gate.advance(30)
    gate.park(5, lambda token, result: seen.append((token, result)), "b", 2)
    assert seen == [("a", error), ("b", error)]


def test_open_gate_answers_at_once() -> None:
    gate, seen = AckGate(always_open=True), []
    assert gate.park(10, lambda token, result: seen.append(result), None, 1)
    assert seen == [1]
