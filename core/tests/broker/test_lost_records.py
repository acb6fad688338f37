"""Acknowledged records that a disk lost in spite of its promise: their offsets are taken by others, which nobody has acknowledged."""

from __future__ import annotations

import pytest

from gantrymq.broker.consuming import settled as settled_module
from gantrymq.broker.consuming.acks import ACK_TOPIC
from gantrymq.broker.port import EARLIEST, Delivery, Outcome, Route
from gantrymq.model.message import Message
from tests.broker.node import ROOT, Node, full_disk
from tests.broker.transactions.test_transactions import end, prepare, started
from tests.store.crash_states import CrashFiles

LOG = ROOT / "store" / "commitlog" / ("0" * 20)


def take(node: Node, cursor: int) -> list[int]:
    found: list[Delivery] = node.call("acquire", cursor, 1, 99, 1 << 30)
    return [int(delivery.message.body) for delivery in found]


def crashed(node: Node) -> Node:
    return Node(node.files.after_process_crash(), False)  # type: ignore[arg-type]


class FullNode(Node):
    """The disk is full while the broker opens; the store has repaired the log by then."""

    def prepare(self) -> None:
        open_ = self.broker.open

        def opened() -> None:
            with full_disk(self.files):
                open_()

        self.broker.open = opened  # type: ignore[method-assign, assignment]


def lose(files: CrashFiles, *messages: Message) -> None:
    handle = files.open(LOG, False)
    for message in messages:
        files.pwrite(handle, b"\xff" * 20, message.physical_offset)
    files.close(handle)


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
    lose(files, *batch[-lost:])
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


def front_part(node: Node, count: int) -> int:
    """The state of cursors is written, and the log ends behind `count` of its records; how many there are."""
    append, sizes = node.store.append, []

    def cut(batch, lights):  # type: ignore[no-untyped-def]
        assert {message.topic for message in batch} == {ACK_TOPIC}
        sizes.append(len(batch))
        return append(batch[:count], lights[:count])

    node.store.append = cut  # type: ignore[method-assign]
    node.wheel.advance(1_000)
    node.turn.run_until_quiet()
    (size,) = sizes
    return size


@pytest.mark.parametrize("lost", [0, 2])
def test_no_front_part_of_a_state_forgets_what_was_written_before(lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a cursor that was cut, too, and what has taken the lost offsets since was acknowledged. An entry is a record."""
    monkeypatch.setattr(settled_module, "RECORD_BYTES_MAX", 1)
    count, of = 0, 1
    while count <= of:
        node = Node(CrashFiles(), False)
        batch = [Message("t", b"%d" % number, queue_id=0) for number in range(8)]
        node.call("submit", batch)
        cursor = node.call("open_cursor", "t/0", "g", EARLIEST).cursor
        assert take(node, cursor) == list(range(8))
        node.port.settle([(cursor, offset, Outcome.ACK) for offset in (range(8) if lost else (0, 1, 2, 3, 5))])
        node.turn.run_until_quiet()
        node.flush()
        if lost:
            files = node.files.after_process_crash()  # type: ignore[attr-defined]
            lose(files, *batch[-lost:])
            node = FullNode(files, False)
            node.call("submit", [Message("t", b"%d" % number, queue_id=0) for number in (10, 11)])
            assert take(node, cursor) == [10, 11]
            node.port.settle([(cursor, offset, Outcome.ACK) for offset in (6, 7)])
            node.turn.run_until_quiet()
        else:
            with full_disk(node.files):
                node.port.settle([(cursor, 7, Outcome.ACK)])
                node.turn.run_until_quiet()
        of = front_part(node, count)
        found = take(crashed(node), cursor)
        assert found in ([[]] if lost else [[4, 6, 7], [4, 6]])
        count += 1
    assert of > 1
    assert 7 not in found


def test_a_fate_is_kept_where_the_cursor_of_half_messages_was_cut_on_a_full_disk() -> None:
    """Its state is written late, in the batch of a decision that it does not have yet."""
    node = started(CrashFiles())
    halves = [prepare(node, b"%d" % number, f"u{number}") for number in range(3)]
    assert end(node, halves[2], False) == [None]
    node.flush()
    files = node.files.after_process_crash()  # type: ignore[attr-defined]
    lose(files, halves[2])
    node = FullNode(files, False)
    taker = prepare(node, b"other", "u9")
    assert taker.queue_offset == 2
    node.wheel.advance(1_000)
    assert end(node, taker, False) == [None]
    assert node.broker.transactions.pending == 2
    for _ in range(2):
        node = crashed(node)
        assert node.broker.transactions.pending == 2
        assert [half.offset for half, _ in node.broker.transactions.undecided(0, 9)[0]] == [0, 1]
