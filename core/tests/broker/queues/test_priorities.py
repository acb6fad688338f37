"""Queues with priorities: the higher first, those of one priority in order; through requeues, expiry, limits and starts."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gantrymq.broker.consuming import priorities
from gantrymq.broker.consuming.priorities import PriorityWindow, Room
from gantrymq.broker.consuming.window import AckWindow
from gantrymq.broker.port import EARLIEST, Outcome
from gantrymq.model import properties as props
from gantrymq.model.message import Message
from gantrymq.model.queue_policy import Policy
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.queues.test_engine import Queue, QueueNode


@pytest.fixture
def node() -> QueueNode:
    return QueueNode(MemoryFileSystem(), sync=False)


class Prioritized(Queue):
    def put(self, *pairs: tuple[int, str], expires_ms: int = 0) -> None:
        batch = []
        for priority, body in pairs:
            properties = {props.TAGS: self.tag, **({props.PRIORITY: str(priority)} if priority else {})}
            if expires_ms:
                properties[props.EXPIRES_AT] = str(expires_ms)
            batch.append(Message("t", body.encode(), props.encode(properties), self.tag, (), 0))
            batch[-1].exchange = "e"
        self.node.call("submit", batch)

    def all(self) -> str:
        return " ".join([body.decode() for body in self.bodies()])


def test_the_higher_first_and_in_order(node: QueueNode) -> None:
    queue = Prioritized(node, "a", Policy(priorities=5))
    queue.put((0, "a"), (3, "b"), (5, "c"), (3, "d"), (0, "e"), (99, "f"), (1, "g"))
    assert queue.ready() == 7
    assert queue.all() == "c f b d g a e"
    assert queue.ready() == 0


def test_without_the_policy_nothing_comes_first(node: QueueNode) -> None:
    queue = Prioritized(node, "a", Policy(max_length=100))
    queue.put((0, "a"), (3, "b"))
    assert queue.all() == "a b"


def test_what_comes_back_is_first_of_its_priority(node: QueueNode) -> None:
    queue = Prioritized(node, "a", Policy(priorities=5))
    queue.put((2, "a"), (2, "b"), (2, "c"), (0, "d"), (4, "e"))
    taken = queue.take(3)
    assert [delivery.message.body for delivery in taken] == [b"e", b"a", b"b"]
    queue.settle(taken[:2], Outcome.REQUEUE)
    again = queue.take()
    assert [(delivery.message.body, delivery.count) for delivery in again] == [
        (b"e", 2),
        (b"a", 2),
        (b"c", 1),
        (b"d", 1),
    ]
    queue.settle([*taken[2:], *again], Outcome.ACK)
    assert queue.ready() == 0
    assert node.broker.queues._room.used == 0
    queue.put((0, "x"))
    assert queue.all() == "x"


def test_purge_leaves_what_is_held(node: QueueNode) -> None:
    queue = Prioritized(node, "a", Policy(priorities=5))
    queue.put((2, "a"), (0, "b"), (1, "c"))
    held = queue.take(1)
    assert node.call("purge", queue.cursor) == 2
    queue.settle(held, Outcome.REQUEUE)
    assert queue.all() == "a"


def test_expiry_and_length_know_priorities(node: QueueNode) -> None:
    queue = Prioritized(node, "a", Policy(priorities=5, max_length=3))
    queue.put((4, "gone"), (1, "x"), expires_ms=node.broker.clock.now_ms() + 100)
    queue.put((0, "y"), (0, "z"))
    assert queue.ready() == 3, "the head, which is the highest, was dropped"
    node.now(200)
    assert queue.all() == "y z"


def test_length_in_bytes(node: QueueNode) -> None:
    queue = Prioritized(node, "a", Policy(priorities=5, max_bytes=4))
    queue.put((1, "ab"), (0, "cd"))
    assert queue.ready() == 2
    queue.put((0, "e"))
    assert queue.all() == "cd e"


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_knows_what_is_done_and_what_comes_first(clean: bool) -> None:
    files = MemoryFileSystem()
    node = QueueNode(files, sync=False)
    queue = Prioritized(node, "a", Policy(priorities=5))
    queue.put((0, "low"), (2, "done"), (2, "held"), (1, "next"))
    taken = queue.take(2)
    queue.settle(taken[:1], Outcome.ACK)
    node.turn.run_until_quiet()
    node.stop() if clean else node.store.close()
    node = QueueNode(files, sync=False)
    cursor = node.call("open_cursor", f"~{queue.light}", "g", EARLIEST).cursor
    node.now(100)
    again = node.call("acquire", cursor, 1, 100, 1 << 20)
    assert [delivery.message.body for delivery in again] == [b"held", b"next", b"low"]
    assert again[0].count == 2


def test_priorities_beyond_the_limit_are_served_without(node: QueueNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priorities, "PRIORITIZED_MAX", 1)
    queue = Prioritized(node, "a", Policy(priorities=5))
    queue.put((0, "a"), (1, "b"), (5, "c"))
    assert queue.all() == "b a c"
    node.call("delete_light", queue.light)
    assert node.broker.queues._room.used == 0


def test_any_history_is_that_of_a_sorted_list() -> None:
    """Against a list that is sorted by priority and offset: what is taken, given back, taken out and finished."""
    for seed in range(300):
        source = random.Random(seed)
        room = Room()
        window = PriorityWindow(AckWindow(0), 3, room)
        window.weigh_by(_weight)
        end, ready, held = 0, {}, {}
        for _ in range(60):
            action = source.randrange(5)
            if action == 0:
                priority = source.randrange(5)
                window.put(end, priority)
                ready[end] = min(priority, 3)
                end += 1
            elif action == 1:
                for offset in _take(window, source.randrange(1, 4), end):
                    assert offset == min(ready, key=lambda at: (-ready[at], at)), seed
                    held[offset] = ready.pop(offset)
            elif action == 2 and held:
                offset = source.choice(list(held))
                ready[offset] = held.pop(offset)
                assert window.give_back(offset, True)
            elif action == 3 and held:
                offset = source.choice(list(held))
                del held[offset]
                window.done(offset)
            elif action == 4 and ready:
                offset = source.choice(list(ready))
                assert window.is_ready(offset)
                assert window.take_out(offset), seed
                del ready[offset]
                window.done_out(offset)
            assert window.ready(end) == len(ready), seed
            assert window.ready_below(end) == sorted(ready)
            assert window.unacked() == len(held)
            if source.randrange(3):
                weighed = window.extra_bytes() + sum(map(_weight, range(window.next_offset, end)))
                assert weighed == sum(map(_weight, ready)), seed
        for offset in [*ready]:
            assert window.take_out(offset)
            window.done_out(offset)
        for offset in [*held]:
            window.done(offset)
        assert (window.floor, room.used) == (end, 0)


def _weight(offset: int) -> int:
    return 1 << (offset % 20)


def _take(window: PriorityWindow, count: int, end: int) -> list[int]:
    """As Cursors.acquire does."""
    taken: list[Any] = window.urgent(count)
    if taken:
        window.take_urgent(1, taken)
    back = window.take_returned(1, count - len(taken))
    taken += back
    while len(taken) < count and window.next_offset < end:
        if window.ahead and window.next_offset in window.ahead:
            window.pass_over()
        else:
            taken.append(window.take_next(1))
    return taken


def test_an_answer_that_is_short_because_of_its_bytes_calls_the_watcher(node: QueueNode) -> None:
    queue = Prioritized(node, "a", Policy(priorities=5))
    woken: list[int] = []
    node.port.watch(queue.cursor, woken.append)
    queue.put((2, "a" * 1000), (2, "b" * 1000))
    woken.clear()
    assert len(node.call("acquire", queue.cursor, 1, 2, 1200)) == 1
    assert woken == [queue.cursor]


def test_a_queue_that_has_gone_to_another_group_leaves_its_room(node: QueueNode) -> None:
    queue = Prioritized(node, "a", Policy(priorities=5))
    queue.put((2, "a"), (4, "b"))
    node.broker.queues.suspend(queue.light)
    assert node.broker.queues._room.used == 2
    node.broker.queues.forget_suspended(queue.light)
    node.broker.drop_light(queue.light, [])
    node.now(100)
    assert node.broker.queues._room.used == 0
