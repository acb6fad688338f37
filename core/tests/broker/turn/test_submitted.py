"""A turn takes a share of what each sender has submitted, in rotation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gantrymq.broker.port import Route
from gantrymq.broker.turn import submitted
from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import Message
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node, full_disk

QUEUES = 8


class Sender:
    """A connection: what it submitted is answered in order, or it is not a connection."""

    def __init__(self, node: Node, topic: str) -> None:
        self.node = node
        self.topic = topic
        self.results: list[tuple[int, Any]] = []
        self.batches = 0
        self.sent: list[Message] = []

    def send(self, *bodies: bytes, tag: str = "") -> list[Message]:
        batch = [Message(self.topic, body, b"", tag, queue_id=0) for body in bodies]
        self.node.port.submit(batch, self.batches, self._done, self)
        self.batches += 1
        self.sent += batch
        return batch

    def _done(self, number: int, result: Any) -> None:
        assert all(code is not None for code in result)
        self.results.append((number, result))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    """Topic `wide` has eight light queues; a turn takes 40 entries, 10 of one sender at a time."""
    monkeypatch.setattr(submitted, "ENTRIES_PER_TURN", 40)
    monkeypatch.setattr(submitted, "WHOLE_ENTRIES_MAX", 40)
    monkeypatch.setattr(submitted, "ENTRIES_PER_SHARE", 10)
    node = Node(MemoryFileSystem(), sync=False)
    for number in range(QUEUES):
        light = node.call("create_light")
        node.call("add_route", Route(f"r{number}", "prefix", "wide", "", light))
    node.turn.run_until_quiet()
    return node


def in_order(*senders: Sender) -> list[bytes]:
    """Bodies as they stand in the queue."""
    messages = [message for sender in senders for message in sender.sent]
    return [message.body for message in sorted(messages, key=lambda message: message.queue_offset)]


def test_a_burst_to_many_queues_is_written_in_turns_and_a_neighbour_does_not_wait_for_it(node: Node) -> None:
    wide, other = Sender(node, "wide"), Sender(node, "narrow")
    burst = [b"%d" % number for number in range(50)]
    wide.send(*burst)
    node.turn.run()
    entries = node.store.max_offset("wide", 0) * (QUEUES + 1)
    assert 0 < entries <= 40 + QUEUES
    assert wide.results == [], "answered before the last message of the batch was stored"
    other.send(b"mine")
    node.turn.run()
    assert [result for _, result in other.results] == [[0]]
    assert node.store.max_offset("wide", 0) < 15
    node.turn.run_until_quiet()
    assert wide.results == [(0, list(range(50)))]
    assert in_order(wide) == burst


def test_order_of_a_sender_is_kept_whatever_comes_between(node: Node) -> None:
    senders = [Sender(node, "wide") for _ in range(6)]
    sent: dict[int, list[bytes]] = {number: [] for number in range(6)}
    for step in range(30):
        for number, sender in enumerate(senders):
            part = [b"%d:%d:%d" % (number, step, place) for place in range(step % 4)]
            sender.send(*part)
            sent[number] += part
        node.turn.run()
    node.turn.run_until_quiet()
    stored = in_order(*senders)
    assert len(stored) == sum(map(len, sent.values()))
    for number, sender in enumerate(senders):
        assert [body for body in stored if body.startswith(b"%d:" % number)] == sent[number]
        assert [token for token, _ in sender.results] == list(range(30))


def test_a_record_with_more_entries_than_a_turn_takes_is_stored(monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    monkeypatch.setattr(submitted, "ENTRIES_PER_TURN", 4)
    monkeypatch.setattr(submitted, "ENTRIES_PER_SHARE", 2)
    sender = Sender(node, "wide")
    sender.send(b"a", b"b")
    node.turn.run()
    assert node.store.max_offset("wide", 0) == 1
    node.turn.run_until_quiet()
    assert sender.results == [(0, [0, 1])]


def test_bytes_end_a_turn_too(monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    monkeypatch.setattr(submitted, "BYTES_PER_TURN", 1000)
    monkeypatch.setattr(submitted, "BYTES_PER_SHARE", 400)
    sender = Sender(node, "narrow")
    sender.send(*[bytes(300)] * 10)
    node.turn.run()
    assert node.store.max_offset("narrow", 0) == 4  # 600, 300 more and what comes over the limit with the last one
    node.turn.run_until_quiet()
    assert sender.results == [(0, list(range(10)))]


def test_what_is_refused_for_now_takes_what_waits_behind_it_along(node: Node) -> None:
    sender = Sender(node, "wide")
    sender.send(*[b"first"] * 20)
    sender.send(b"second")
    node.turn.run()
    stored = node.store.max_offset("wide", 0)
    assert 0 < stored < 20
    node.broker.full = "the disk is at its watermark"
    node.turn.run()
    node.broker.full = ""
    node.turn.run_until_quiet()
    full = ErrorCode.STORE_FULL
    assert sender.results == [(0, [*range(stored), *[full] * (20 - stored)]), (1, [full])]


def test_a_full_disk_refuses_what_it_did_not_store_and_nothing_else(node: Node) -> None:
    senders = [Sender(node, "wide"), Sender(node, "wide")]
    for sender in senders:
        sender.send(*[b"x"] * 20)
    node.turn.run()
    stored = node.store.max_offset("wide", 0)
    with full_disk(node.files):
        node.turn.run_until_quiet()
    results = [code for sender in senders for _, result in sender.results for code in result]
    assert sorted([code for code in results if code is not ErrorCode.STORE_FULL]) == list(range(stored))
    assert len(results) == 40
    senders[0].send(b"later")
    node.turn.run_until_quiet()
    assert senders[0].results[-1] == (1, [stored])


def test_in_flight_credit_counts_empty_bodies_and_fan_out() -> None:
    """What waits for the disk counts with a constant for each record and for each queue that it enters, and leaves nothing behind."""
    node = Node(MemoryFileSystem(), sync=True)
    for number in range(QUEUES):
        node.call("add_route", Route(f"r{number}", "prefix", "wide", "", node.call("create_light")))
    counted: dict[str, int] = {}
    for topic in ("narrow", "wide"):
        sender = Sender(node, topic)
        batch = sender.send(*[b""] * 10)
        node.turn.run_until_quiet()
        assert not sender.results
        counted[topic] = node.broker.pending.bytes - sum(message.size for message in batch)
        node.flush()
        assert len(sender.results) == 1
        assert node.broker.pending.bytes == 0
    assert counted["narrow"] == 10 * submitted.MESSAGE_ENTRIES * submitted.ENTRY_BYTES
    assert counted["wide"] == counted["narrow"] + 10 * QUEUES * submitted.ENTRY_BYTES
    node.broker.config = replace(node.broker.config, pending_bytes_max=1 << 20)
    limit = (1 << 20) // ((QUEUES + submitted.MESSAGE_ENTRIES) * submitted.ENTRY_BYTES)
    sender = Sender(node, "wide")
    for _ in range(2 * limit):
        sender.send(b"")
        node.turn.run_until_quiet()
    refused = [result for _, result in sender.results if result == [ErrorCode.BUSY]]
    assert len(refused) > limit, "empty messages to many queues use it up"


def test_a_stop_answers_what_connections_still_have_waiting_and_stores_what_the_broker_itself_has_begun(
    node: Node,
) -> None:
    sender = Sender(node, "wide")
    sender.send(*[b"x"] * 20)
    node.broker.submit(
        [Message("wide", b"own", queue_id=0) for _ in range(20)], 0, lambda token, result: own.append(result)
    )
    own: list[Any] = []
    node.turn.run()
    node.broker.close()
    result = sender.results[0][1]
    kept = [code for code in result if code is not ErrorCode.SHUTTING_DOWN]
    assert len(kept) < 20
    assert kept == result[: len(kept)]
    assert len(own[0]) == 20
    assert node.store.max_offset("wide", 0) == 20 + len(kept)


def test_a_batch_that_is_to_be_whole_is_not_divided_unless_it_is_more_than_a_turn(node: Node) -> None:
    done: list[Any] = []
    for count in (3, 20):
        batch = [Message("wide", b"x", queue_id=0) for _ in range(count)]
        node.broker.submit(batch, None, lambda token, result: done.append(result), node, whole=True)
    node.turn.run()
    assert done == [[0, 1, 2]]
    node.turn.run_until_quiet()
    assert done[1] == list(range(3, 23))


def test_a_visit_takes_a_share_of_a_sender_and_not_one_batch(node: Node) -> None:
    """Many small batches of one sender (a door that says no connection) beside large ones of others."""
    large = [Sender(node, "wide") for _ in range(10)]
    small = Sender(node, "narrow")
    for sender in large:
        sender.send(*[b"x"] * 50)
    for _ in range(20):
        small.send(b"y")
    turns = 0
    while len(small.results) < 20:
        node.turn.run()
        turns += 1
        assert turns < 100
    assert turns <= 30, "a visit of the rotation, each three turns of the loop, brought one batch"
    node.turn.run_until_quiet()
    assert all(sender.results for sender in large)
