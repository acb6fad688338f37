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

    (tap,) = node.broker.wakes.full_taps
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


def test_senders_that_have_to_wait_for_a_gateway_take_nobodys_turn(node: Node) -> None:
    Slow(node, 0.0015)
    crowd: list[Any] = []
    send(node, "live", 1, [], "first")
    node.turn.run_until_quiet()  # the tap has shown how slow it is
    done: list[Any] = []
    for number in range(30):
        send(node, "live", 1, crowd, f"crowd{number}")
    for number in range(16):
        send(node, "plain", 1, done, f"other{number % 15}")
    node.turn.run()  # the first messages to the gateway fill it
    node.turn.run()
    assert node.store.max_offset("live", 0) < 31, "nobody waits"
    assert len(done) == 16
    node.turn.run_until_quiet()
    assert len(crowd) == 30, "answered once each"


def test_a_whole_batch_is_whole_however_many_listen_to_it_live(node: Node) -> None:
    gateway = Slow(node, 0.0015)
    done: list[Any] = []
    send(node, "live", 1, done, "first")
    node.turn.run_until_quiet()  # the tap has shown how slow it is
    assert len(gateway.seen) == 1
    batch = [Message("live", b"%d" % number, queue_id=0) for number in range(64)]
    node.broker.submit(batch, None, lambda token, result: done.append(result), "second", whole=True)
    node.turn.run()
    assert node.store.max_offset("live", 0) == 65
    assert done == [[0], list(range(1, 65))]
