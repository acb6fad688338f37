"""Queues that take each key once: while its entry is there, in one batch and over many, through restarts, within a limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.broker.port import ONE_PIECE, Outcome, Route
from gantrymq.broker.queues import unique
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import Message
from gantrymq.model.queue_policy import Policy
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.queues.test_engine import Queue, QueueNode

POLICY = Policy(name="u", unique_by="key")


@pytest.fixture
def node() -> QueueNode:
    return QueueNode(MemoryFileSystem(), sync=False)


def keyed(key: str, body: bytes = b"x", demand: bool = False, **more: str) -> Message:
    made = Message("t", body, props.encode({props.TAGS: "u"} | ({"key": key} if key else {}) | more), "u", (), 0)
    made.exchange = "e"
    made.demand_route = "prefix" if demand else ""
    return made


def send(queue: Queue, *messages: Message) -> Any:
    return queue.node.call("submit", list(messages))


def test_a_key_enters_once_while_its_entry_is_there(node: QueueNode) -> None:
    queue = Queue(node, "u", POLICY)
    assert send(queue, keyed("a", b"1"), keyed("b", b"2"), keyed("a", b"3"), keyed("", b"4"), keyed("", b"5")) == [
        0, 1, 2, 3, 4
    ]  # fmt: skip
    send(queue, keyed("b", b"6"))
    deliveries = queue.take()
    assert [delivery.message.body for delivery in deliveries] == [b"1", b"2", b"4", b"5"]
    send(queue, keyed("a", b"7"))
    assert queue.ready() == 0, "in somebody's hands is in the queue"
    queue.settle(deliveries[:1], Outcome.REQUEUE)
    send(queue, keyed("a", b"8"))
    assert queue.bodies() == [b"1"]
    queue.settle(deliveries, Outcome.ACK)
    send(queue, keyed("a", b"9"), keyed("b", b"10"), keyed("a", b"11"))
    assert queue.bodies() == [b"9", b"10"]
    assert node.broker.queues.counts["duplicate"] == 5


def test_what_is_for_this_queue_alone_is_not_stored(node: QueueNode) -> None:
    queue = Queue(node, "u", POLICY)
    assert send(queue, keyed("a", demand=True), keyed("a", demand=True)) == [0, ErrorCode.DUPLICATE]
    other = Queue(node, "o")
    node.call("add_route", node_route(other))
    assert send(queue, keyed("a", b"2", demand=True)) == [1]
    assert (queue.bodies(), other.bodies()) == ([b"x"], [b"2"])


def node_route(queue: Queue) -> Route:
    return Route("second", "prefix", "t", "u", queue.light)


def test_a_refused_message_leaves_no_key(node: QueueNode) -> None:
    queue = Queue(node, "u", Policy(name="u", unique_by="key", max_length=1, overflow="reject-publish"))
    assert send(queue, keyed("a", demand=True)) == [0]
    assert send(queue, keyed("b", demand=True), keyed("a", demand=True)) == [ErrorCode.QUEUE_FULL, ErrorCode.DUPLICATE]
    queue.settle(queue.take(), Outcome.ACK)
    assert send(queue, keyed("b", demand=True)) == [1]


def test_in_one_piece(node: QueueNode) -> None:
    queue = Queue(node, "u", POLICY)
    batch = [keyed("a", b"1"), keyed("a", b"2"), keyed("b", b"3")]
    box: list[Any] = []
    node.port.submit(batch, None, lambda token, result: box.append(result), settle=ONE_PIECE)
    node.turn.run_until_quiet()
    assert box == [[0, 1, 2]]
    assert queue.bodies() == [b"1", b"3"]


def test_keys_are_known_again_after_a_start() -> None:
    files = MemoryFileSystem()
    node = QueueNode(files, sync=False)
    queue = Queue(node, "u", POLICY)
    send(queue, *[keyed(str(number)) for number in range(600)])
    queue.settle(queue.take(10), Outcome.ACK)
    node.store.close()
    again = queue.node = QueueNode(files, sync=False)
    again.now(100)
    send(queue, *[keyed(str(number)) for number in range(600)])
    assert queue.ready() == 600, "ten of them were done"


def test_expired_and_deleted(node: QueueNode) -> None:
    queue = Queue(node, "u", Policy(name="u", unique_by="key", message_ttl_ms=500))
    send(queue, keyed("a"))
    node.now(600)
    send(queue, keyed("a", b"2"))
    assert queue.ready() == 1
    node.call("delete_light", queue.light)
    assert node.broker.queues._keys.count == 0
    assert not node.broker.queues.unique


def test_keys_of_what_is_done_are_forgotten(node: QueueNode) -> None:
    queue = Queue(node, "u", POLICY)
    send(queue, keyed("held"))
    held = queue.take()
    for number in range(200):
        send(queue, keyed(str(number)))
        queue.settle(queue.take(), Outcome.ACK)
    assert node.broker.queues._keys.count <= 3
    send(queue, keyed("held"))
    assert queue.ready() == 0
    queue.settle(held, Outcome.ACK)


class CountedWindow:
    """Nothing of it is done."""

    looked = 0

    def is_done(self, offset: int) -> bool:
        self.looked += 1
        return False


def test_where_there_is_no_room_a_message_looks_at_few_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: else whoever has them makes everybody wait."""
    monkeypatch.setattr(unique, "KEYS_MAX", 100)
    window, room = CountedWindow(), unique.KeyRoom()
    cursor: Any = SimpleNamespace(window=window)
    keys = unique.UniqueKeys(cursor, "key", room)
    for number in range(200):
        window.looked = 0
        keys.note(keyed(str(number)), number)
        assert window.looked <= unique.LOOKED_AT
    assert room.count == 100
    assert keys.knows(keyed("99"))
    assert not keys.knows(keyed("100"))


def test_beyond_the_limit_messages_enter(node: QueueNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unique, "KEYS_MAX", 2)
    queue = Queue(node, "u", POLICY)
    send(queue, keyed("a"), keyed("b"), keyed("c"))
    send(queue, keyed("a"), keyed("b"), keyed("c"))
    assert queue.ready() == 4
