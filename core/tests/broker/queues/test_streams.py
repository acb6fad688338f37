"""Streams: reading by offset and time without taking anything; age and size cut the beginning, also through a crash."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.local import UNREADABLE_RETRY_MS
from gantrymq.broker.port import EARLIEST, END, Scanned, Start
from gantrymq.broker.queues import streams
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.queue_policy import Policy
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.queues.test_engine import HUGE, Queue, QueueNode


@pytest.fixture
def node() -> QueueNode:
    return QueueNode(MemoryFileSystem(), sync=False)


def stream(node: QueueNode, **limits: Any) -> Queue:
    return Queue(node, "s", Policy(name="s", stream=True, **limits))


def scan(queue: Queue, offset: int = 0, count: int = 100, size: int = HUGE) -> Scanned:
    found: Scanned = queue.node.call("scan", queue.cursor, offset, count, size)
    return found


def bodies(found: Scanned) -> list[bytes]:
    return [delivery.message.body for delivery in found.deliveries]


def test_what_is_read_stays(node: QueueNode) -> None:
    queue = stream(node)
    queue.send(*[b"%d" % number for number in range(5)])
    for _ in range(2):
        found = scan(queue, 2, 2)
        assert (bodies(found), found.following, found.at_end) == ([b"2", b"3"], 4, False)
    assert [(delivery.offset, delivery.count) for delivery in found.deliveries] == [(2, 1), (3, 1)]
    found = scan(queue, 4)
    assert (bodies(found), found.following, found.at_end) == ([b"4"], 5, True)
    assert (scan(queue, 5).deliveries, scan(queue, 5).at_end) == ([], True)
    assert bodies(scan(queue, 0, 100, 1)) == [b"0"], "one at least"
    assert queue.ready() == 5


def test_the_watcher_is_called_at_the_next_entry_and_not_before(node: QueueNode) -> None:
    queue = stream(node)
    queue.send(b"0")
    ready: list[int] = []
    node.port.watch(queue.cursor, ready.append)
    node.turn.run_until_quiet()
    ready.clear()
    scan(queue, 0)
    scan(queue, 1)
    node.turn.run_until_quiet()
    assert ready == []
    queue.send(b"1", b"2")
    assert ready == [queue.cursor]
    queue.send(b"3")
    assert ready == [queue.cursor], "once, until the end is read again"
    scan(queue, 1)
    queue.send(b"4")
    assert len(ready) == 2


def test_seek(node: QueueNode) -> None:
    queue = stream(node)
    assert [node.call("seek", queue.cursor, start) for start in (EARLIEST, END, Start("time", 0))] == [0, 0, 0]
    times = []
    for number in range(9):
        queue.send(b"%d" % number)
        times.append(node.broker.clock.now_ms())
        node.now(100)
    assert [node.call("seek", queue.cursor, start) for start in (EARLIEST, END)] == [0, 9]
    for number, at_ms in enumerate(times):
        assert node.call("seek", queue.cursor, Start("time", at_ms)) == number
        assert node.call("seek", queue.cursor, Start("time", at_ms + 1)) == number + 1


def test_age_cuts_the_beginning(node: QueueNode) -> None:
    queue = stream(node, message_ttl_ms=1000)
    queue.send(b"0", b"1")
    node.now(600)
    queue.send(b"2")
    assert bodies(scan(queue)) == [b"0", b"1", b"2"]
    node.now(700)
    assert bodies(scan(queue)) == [b"2"], "without anybody who asks"
    assert node.call("seek", queue.cursor, EARLIEST) == 2
    node.now(1000)
    assert queue.ready() == 0
    queue.send(b"3")
    assert bodies(scan(queue)) == [b"3"]
    assert node.broker.queues.counts == {"expired": 3}


def test_size_cuts_the_beginning_and_the_newest_stays(node: QueueNode) -> None:
    queue = stream(node, max_bytes=1000)
    queue.send(*[bytes(100) for _ in range(20)])
    node.now(2 * streams.CHECK_MS)
    found = scan(queue)
    sizes = [delivery.message.size for delivery in found.deliveries]
    assert sum(sizes) <= 1000 < sum(sizes) + sizes[0]
    assert found.deliveries[-1].offset == 19
    queue.send(bytes(5000))
    assert queue.ready() == 1
    queue.send(b"small")
    assert queue.ready() == 1
    assert bodies(scan(queue)) == [b"small"]


def test_both_limits_and_a_start_in_between() -> None:
    files = MemoryFileSystem()
    node = QueueNode(files, sync=False)
    queue = stream(node, message_ttl_ms=10_000, max_bytes=2_000)
    queue.send(*[bytes(100) for _ in range(30)])
    left = queue.ready()
    first = scan(queue).deliveries[0].offset
    assert 0 < left < 30
    node.store.close()
    again = QueueNode(files, sync=False)
    queue.node = again
    found = scan(queue)
    assert (found.deliveries[0].offset, len(found.deliveries)) == (first, left)
    queue.send(bytes(100))
    assert queue.ready() == left
    again.now(10_300)
    assert queue.ready() == 0


def test_many_are_cut_in_steps(node: QueueNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "UNITS_STEP", 7)
    queue = stream(node, message_ttl_ms=2000, max_bytes=HUGE)
    for _ in range(5):
        queue.send(*[b"x"] * 10)
    node.now(1800)
    queue.send(b"last")
    node.now(700)
    assert bodies(scan(queue)) == [b"last"]


def test_a_stream_that_is_deleted_is_no_more(node: QueueNode) -> None:
    queue = stream(node, max_bytes=100)
    queue.send(b"1")
    node.call("delete_light", queue.light)
    assert isinstance(node.start("scan", queue.cursor, 0, 1, 1)[0], GantryError)
    assert isinstance(node.start("seek", queue.cursor, END)[0], GantryError)
    node.now(2 * streams.CHECK_MS)
    assert not node.broker.tables.rows("queue")


def test_a_disk_that_cannot_read_is_an_error_and_the_watcher_comes_later(
    node: QueueNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = stream(node)
    queue.send(b"1")
    ready: list[int] = []
    node.port.watch(queue.cursor, ready.append)
    node.turn.run_until_quiet()
    ready.clear()

    def broken(*_: Any) -> Any:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(node.broker.cursors, "units", broken)
        (error,) = node.start("scan", queue.cursor, 0, 1, 1)
    assert error.code is ErrorCode.STORE_FAILED
    node.now(UNREADABLE_RETRY_MS)
    assert ready == [queue.cursor]


def test_what_lies_in_a_stream_is_alive(node: QueueNode) -> None:
    queue = stream(node)
    queue.send(b"1", b"2")
    assert node.broker.cursors.is_live(f"~{queue.light}", 0)
    node.broker.cursors.skip(node.broker.cursors.get(queue.cursor), 0, 0)
    assert not node.broker.cursors.is_live(f"~{queue.light}", 0)
    assert node.broker.cursors.is_live(f"~{queue.light}", 1)
