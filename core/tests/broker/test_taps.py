"""Live deliveries share a part of each turn, however many receivers stand behind a tap; senders whose messages go there wait meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.model.message import Message
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node

RECORDS = 100


@pytest.fixture
def node() -> Node:
    node = Node(MemoryFileSystem(), sync=False)
    for name in ("live", "plain"):
        node.call("ensure_topic", name, True)
    return node


class Slow:
    """A gateway that takes so long for each record."""

    def __init__(self, node: Node, record_s: float) -> None:
        self.now_s = 0.0
        self.record_s = record_s
        self.seen: list[bytes] = []
        node.broker.pending.times.now = lambda: self.now_s
        tap = node.call("open_tap", self.on_records)
        node.call("add_volatile", tap, 1, "prefix", "live", "")

    def on_records(self, records: list[tuple[Message, Any]]) -> None:
        self.now_s += self.record_s * len(records)
        self.seen += [message.body for message, _ in records]


def send(node: Node, topic: str, count: int, done: list[Any], sender: object) -> None:
    batch = [Message(topic, b"%d" % number, queue_id=0) for number in range(count)]
    node.broker.submit(batch, None, lambda token, result: done.append(result), sender)


def test_a_turn_delivers_a_share_and_neighbours_do_not_wait(node: Node) -> None:
    gateway = Slow(node, 0.0015)
    crowd: list[Any] = []
    send(node, "live", RECORDS, crowd, "crowd")
    node.turn.run()
    first = len(gateway.seen)
    assert first < RECORDS, "all in one turn"
    while node.turn.pending:
        before, stored = len(gateway.seen), node.store.max_offset("live", 0)
        neighbour: list[Any] = []
        send(node, "plain", 1, neighbour, "neighbour")
        node.turn.run()
        assert len(neighbour) == 1, "a neighbour waited"
        assert len(gateway.seen) - before <= 1
        assert stored - before <= 64, "more was appended than is delivered"
    assert gateway.seen == [b"%d" % number for number in range(RECORDS)]
    assert crowd == [list(range(RECORDS))]


def test_a_quick_gateway_has_all_at_once(node: Node) -> None:
    gateway = Slow(node, 0.000_001)
    done: list[Any] = []
    send(node, "live", 10, done, None)
    node.turn.run()
    assert (len(gateway.seen), done) == (10, [list(range(10))])


def test_a_gateway_that_fails_loses_what_it_was_handed_and_no_more(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = Slow(node, 0.0015)
    done: list[Any] = []
    send(node, "live", RECORDS, done, None)
    node.turn.run()
    seen = len(gateway.seen)
    good = gateway.on_records

    def fails(records: list[tuple[Message, Any]]) -> None:
        raise ValueError(len(records))

    (tap,) = node.broker._full_taps
    tap.on_records = fails
    node.turn.run()
    tap.on_records = good
    node.turn.run_until_quiet()
    assert gateway.seen == [b"%d" % number for number in range(RECORDS) if number != seen]
    assert "ValueError" in caplog.text


def test_a_stop_does_not_wait_for_deliveries(node: Node) -> None:
    Slow(node, 0.0015)
    done: list[Any] = []
    send(node, "live", RECORDS, done, None)
    node.turn.run()
    node.broker.close()
    assert node.store.max_offset("live", 0) == RECORDS
