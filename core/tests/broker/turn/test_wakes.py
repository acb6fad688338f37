"""Many that wait for one record are served over several turns, and nobody stands behind all of them."""

from __future__ import annotations

import pytest

from gantrymq.broker.turn import wakes as wakes_module
from gantrymq.broker.turn.wakes import WAKES_PER_TURN
from gantrymq.model.message import Message
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node

CROWD = 10 * WAKES_PER_TURN


@pytest.fixture
def node() -> Node:
    node = Node(MemoryFileSystem(), sync=False)
    for name in ("crowded", "quiet"):
        node.call("ensure_topic", name, True)
    return node


def put(node: Node, topic: str) -> None:
    node.port.submit([Message(topic, b"x", queue_id=0)], None, lambda token, result: None)


def park(node: Node, topic: str, count: int, served: list[int]) -> None:
    for number in range(count):
        node.broker.topics.topics[topic].wait(0, (topic, number), lambda number=number: served.append(number))


def test_a_crowd_is_served_in_order_and_whole(node: Node) -> None:
    served: list[int] = []
    park(node, "crowded", CROWD, served)
    put(node, "crowded")
    turns = 0
    while node.turn.pending:
        before = len(served)
        node.turn.run()
        turns += 1
        assert len(served) - before <= WAKES_PER_TURN
    assert served == list(range(CROWD))
    assert turns >= CROWD // WAKES_PER_TURN


def test_who_is_woken_later_does_not_wait_for_the_crowd(node: Node) -> None:
    crowd: list[int] = []
    few: list[int] = []
    park(node, "crowded", CROWD, crowd)
    park(node, "quiet", 3, few)
    put(node, "crowded")
    node.turn.run()
    put(node, "quiet")
    node.turn.run()
    assert few == [0, 1, 2]
    assert WAKES_PER_TURN < len(crowd) < 2 * WAKES_PER_TURN, (
        "the crowd stood still meanwhile, or had more than its share"
    )
    node.turn.run_until_quiet()
    assert len(crowd) == CROWD


def test_time_ends_a_turn_too(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakes_module, "WAKES_S", 0.002)
    now = [0.0]
    node.broker.pending.times.now = lambda: now[0]
    served: list[int] = []

    def slow() -> None:
        now[0] += 0.001
        served.append(1)

    for number in range(10):
        node.broker.topics.topics["crowded"].wait(0, number, slow)
    put(node, "crowded")
    node.turn.run()
    assert 2 <= len(served) <= 4
    node.turn.run_until_quiet()
    assert len(served) == 10


def test_one_that_fails_costs_nobody_his_call(node: Node) -> None:
    served: list[int] = []

    def fails() -> None:
        raise RuntimeError("a door's fault")

    node.broker.topics.topics["crowded"].wait(0, "bad", fails)
    park(node, "crowded", CROWD, served)
    put(node, "crowded")
    node.turn.run_until_quiet()
    assert served == list(range(CROWD))


def test_a_turn_touches_no_more_of_a_crowd_than_it_serves(node: Node) -> None:
    """To look at each of 100,000 waiters took 13 ms."""
    served: list[int] = []
    park(node, "crowded", CROWD, served)
    crowd = node.broker.topics.topics["crowded"].waiters[0]
    put(node, "crowded")
    node.turn.run()
    assert len(served) == WAKES_PER_TURN
    assert len(crowd) == CROWD - WAKES_PER_TURN
    node.turn.run_until_quiet()
    assert (len(served), crowd) == (CROWD, {})
