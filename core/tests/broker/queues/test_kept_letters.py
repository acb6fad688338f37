"""Dead letters of a queue that keeps them until something takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from gantrymq.broker.port import Outcome
from gantrymq.broker.queues import engine
from gantrymq.broker.queues.engine import KEPT_RETRY_MS
from gantrymq.model.message import Message
from gantrymq.model.queue_policy import Policy
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.queues.test_engine import Letters, Queue, QueueNode, dead, trails
from tests.broker.test_port import PrefixRoutes


class ToldLetters(Letters):
    """Copies that are a door's own publishes, as AMQP's are: a full queue refuses them."""

    def copy(self, *arguments: Any) -> tuple[Message, frozenset[str]] | None:
        made = super().copy(*arguments)
        if made is not None:
            made[0].exchange = "e"
        return made


class ToldRoutes(PrefixRoutes):
    dead_letters = ToldLetters()


class ToldNode(QueueNode):
    routes: ClassVar[Mapping[str, Callable[[], Any]]] = {"prefix": ToldRoutes}


@pytest.fixture
def node() -> QueueNode:
    return QueueNode(MemoryFileSystem(), sync=False)


def reject(queue: Queue, *bodies: bytes) -> None:
    queue.send(*bodies)
    queue.settle(queue.take(), Outcome.DROP)


@pytest.mark.parametrize("keep", [True, False])
def test_what_nothing_takes_waits_for_a_queue(node: QueueNode, keep: bool) -> None:
    queue = Queue(node, "a", dead(dead_keep=keep))
    reject(queue, b"1", b"2")
    node.now(KEPT_RETRY_MS + 100)
    assert queue.ready() == 0
    sink = Queue(node, "dead")
    node.now(KEPT_RETRY_MS + 100)
    assert trails(sink) == (["q:rejected"] * 2 if keep else [])
    assert node.broker.cursors.by_id[queue.cursor].window.floor == 2


def test_a_full_queue_gets_them_when_it_has_room() -> None:
    node = ToldNode(MemoryFileSystem(), sync=False)
    queue = Queue(node, "a", dead(dead_keep=True))
    sink = Queue(node, "dead", Policy(name="s", max_length=1, overflow="reject-publish"))
    reject(queue, b"1", b"2")
    found = []
    for _ in range(4):
        node.now(KEPT_RETRY_MS + 100)
        taken = sink.take()
        found += [delivery.message.body for delivery in taken]
        sink.settle(taken, Outcome.ACK)
    assert sorted(found) == [b"1", b"2"]


def test_what_expires_waits_in_the_queue_while_many_are_kept(node: QueueNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "KEPT_MAX", 2)
    queue = Queue(node, "a", dead(dead_keep=True, message_ttl_ms=1_000))
    queue.send(b"1", b"2")
    node.now(1_100)
    assert queue.ready() == 0
    queue.send(b"3", b"4", b"5")
    node.now(20_000)
    assert queue.ready() == 3
    sink = Queue(node, "dead")
    for _ in range(4):
        node.now(KEPT_RETRY_MS + 100)
    assert queue.ready() == 0
    assert trails(sink) == ["q:expired"] * 5


def test_consumers_wait_while_many_are_kept(node: QueueNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "KEPT_MAX", 8)
    monkeypatch.setattr(engine, "STEP", 2)
    queue = Queue(node, "a", dead(dead_keep=True))
    woken: list[int] = []
    node.port.watch(queue.cursor, woken.append)
    queue.send(*[b"%d" % number for number in range(20)])
    queue.settle(queue.take(8), Outcome.DROP)
    for _ in range(5):
        node.now(KEPT_RETRY_MS)
        assert queue.take() == [], "and what is tried in vain changes nothing"
    assert queue.ready() == 12
    sink = Queue(node, "dead")
    woken.clear()
    for _ in range(4):
        node.now(KEPT_RETRY_MS)
    assert len(trails(sink)) == 8
    assert woken == [queue.cursor]
    assert len(queue.take()) == 12


def test_kept_ones_are_tried_again_a_step_at_a_time(node: QueueNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "STEP", 2)
    queue = Queue(node, "a", dead(dead_keep=True))
    reject(queue, b"1", b"2", b"3", b"4", b"5")
    sink = Queue(node, "dead")
    node.now(KEPT_RETRY_MS)
    assert len(trails(sink)) == 2
    node.now(2 * engine.RETRY_MS)
    node.now(2 * engine.RETRY_MS)
    assert len(trails(sink)) == 3  # those that were not yet seen


def test_a_start_brings_them_back() -> None:
    files = MemoryFileSystem()
    node = QueueNode(files, sync=False)
    queue = Queue(node, "a", dead(dead_keep=True))
    reject(queue, b"1")
    node.stop()
    node = QueueNode(files, sync=False)
    assert node.call("stats", [queue.cursor])[0].ready == 1


def test_what_would_go_round_for_ever_is_not_kept(node: QueueNode) -> None:
    queue = Queue(
        node, "a", Policy(name="q", dead_kind="prefix", dead_target={"tag": "a", "once": True}, dead_keep=True)
    )
    reject(queue, b"1")
    node.now(2 * KEPT_RETRY_MS)
    assert queue.ready() == 0
    assert node.broker.cursors.by_id[queue.cursor].window.floor == 1


def test_a_policy_that_changes_takes_over_what_is_kept(node: QueueNode) -> None:
    queue = Queue(node, "a", dead(dead_keep=True))
    reject(queue, b"1", b"2")
    node.call("set_policy", queue.cursor, dead(dead_keep=True, max_length=5))
    sink = Queue(node, "dead")
    node.now(KEPT_RETRY_MS + 100)
    assert trails(sink) == ["q:rejected"] * 2


def test_what_is_kept_while_a_queue_is_on_its_way_is_tried_again_when_it_stays(node: QueueNode) -> None:
    queue = Queue(node, "a", dead(dead_keep=True))
    reject(queue, b"1", b"2")
    queue.send(b"3")
    node.broker.queues.suspend(queue.light)
    node.now(KEPT_RETRY_MS + 100)
    node.broker.queues.resume(queue.light)
    node.now(100)
    sink = Queue(node, "dead")
    node.now(KEPT_RETRY_MS + 100)
    assert trails(sink) == ["q:rejected"] * 2
    assert queue.bodies() == [b"3"]
