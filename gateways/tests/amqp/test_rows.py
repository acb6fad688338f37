"""Rows of queues and bindings: short where nothing is unusual, read as earlier versions wrote them, equal parts kept once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gantrymq_gateways.amqp.rows import (
    NO_ARGUMENTS,
    SAME_MAX,
    Binding,
    QueueDefinition,
    _same_arguments,
    binding_from,
    binding_row,
    queue_from,
    queue_row,
)

QUEUE = QueueDefinition("q", 7, True, False, False, bytes(4))
BINDING = Binding("amq.topic", True, "q", "a.#", bytes(4))


def test_what_is_as_most_often_is_not_written() -> None:
    assert queue_row(QUEUE) == b'{"light":7,"durable":true}'
    assert binding_row(BINDING) == b'{"source":"amq.topic","to_queue":true,"destination":"q","key":"a.#"}'
    assert queue_row(replace(QUEUE, finished=False)) == b'{"light":7,"durable":true,"finished":false}'


@pytest.mark.parametrize(
    "change",
    [
        {"durable": False}, {"exclusive": True}, {"auto_delete": True}, {"finished": False}, {"arguments": b""},
        {"arguments": b"\0\0\0\x04\x01xt\x01"},
    ],
    ids=str,
)  # fmt: skip
def test_rows_come_back(change: dict[str, object]) -> None:
    queue = replace(QUEUE, **change)  # type: ignore[arg-type]
    assert queue_from("q", queue_row(queue)) == queue
    if "arguments" in change or "finished" in change:
        binding = replace(BINDING, **change)  # type: ignore[arg-type]
        again = binding_from(binding_row(binding))
        assert again == binding
        assert again.row == binding.row


def test_rows_of_earlier_versions() -> None:
    old = b'{"light":7,"durable":true,"exclusive":false,"auto_delete":false,"arguments":"AAAAAA==","finished":true}'
    assert queue_from("q", old) == QUEUE
    old = b'{"source":"amq.topic","to_queue":true,"destination":"q","key":"a.#","arguments":"AAAAAA==","finished":true}'
    assert binding_from(old) == BINDING


def test_equal_arguments_are_one_object_and_not_too_many_are_known() -> None:
    one = queue_from("a", queue_row(replace(QUEUE, arguments=b"\0\0\0\x04\x01xt\x01")))
    other = binding_from(binding_row(replace(BINDING, arguments=bytes([0, 0, 0, 4, 1, 120, 116, 1]))))
    assert one.arguments is other.arguments
    assert queue_from("a", queue_row(QUEUE)).arguments is NO_ARGUMENTS
    for number in range(SAME_MAX + 1):
        queue_from("a", queue_row(replace(QUEUE, arguments=number.to_bytes(8, "big"))))
    assert len(_same_arguments) <= SAME_MAX
