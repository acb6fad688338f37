"""Acknowledged records that a disk lost in spite of its promise: their offsets are taken by others, which nobody has acknowledged."""

from __future__ import annotations

import pytest

from gantrymq.broker.port import EARLIEST, Delivery, Outcome, Route
from gantrymq.model.message import Message
from tests.broker.node import ROOT, Node
from tests.store.crash_states import CrashFiles

LOG = ROOT / "store" / "commitlog" / ("0" * 20)


def take(node: Node, cursor: int) -> list[int]:
    found: list[Delivery] = node.call("acquire", cursor, 1, 99, 1 << 30)
    return [int(delivery.message.body) for delivery in found]


def crashed(node: Node) -> Node:
    return Node(node.files.after_process_crash(), False)  # type: ignore[arg-type]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_what_takes_a_lost_offset_is_delivered_after_any_number_of_starts(lost: int) -> None:
    node = Node(CrashFiles(), False)
    light = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "", light))
    cursors = [node.call("open_cursor", f"~{light}", "g", EARLIEST).cursor]
    batch = [Message("t", b"%d" % number, queue_id=0) for number in range(5)]
    node.call("submit", batch)
    cursors.append(node.call("open_cursor", "t/0", "g", EARLIEST).cursor)
    for cursor in cursors:
        assert take(node, cursor) == [0, 1, 2, 3, 4]
        node.port.settle([(cursor, offset, Outcome.ACK) for offset in (0, 2, 3, 4)])
    node.turn.run_until_quiet()
    node.flush()
    files = node.files.after_process_crash()
    handle = files.open(LOG, False)
    for message in batch[-lost:]:
        files.pwrite(handle, b"\xff" * 20, message.physical_offset)
    files.close(handle)
    node = Node(files, False)
    assert node.store.max_offset("t", 0) == 5 - lost
    node.call("submit", [Message("t", b"%d" % number, queue_id=0) for number in range(10, 12)])
    for _ in range(3):
        for cursor in cursors:
            assert take(node, cursor) == [1, 10, 11], "1 was never acknowledged; 2, where it is there, was"
        node = crashed(node)
    for cursor in cursors:
        assert take(node, cursor) == [1, 10, 11]
        node.port.settle([(cursor, offset, Outcome.ACK) for offset in range(7)])
    node.turn.run_until_quiet()
    node = crashed(node)
    for cursor in cursors:
        assert take(node, cursor) == []
