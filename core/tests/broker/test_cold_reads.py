"""Acquires, reads and time searches whose data is not in memory: answered later, in order, with nothing leased twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig, GatewayConfig, TopicsConfig
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import EARLIEST, Outcome, Start
from gantrymq.broker.topics import TopicConfig
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from gantrymq.store.cold import ColdReads
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore

CONFIG = StoreConfig(commitlog_file_size=256 * 1024, consumequeue_file_size=4000, index_slots=100, index_entries=1000)


class ColdDisk(OsFileSystem):
    """Nothing is ever in memory."""

    def pread_now(self, handle: int, count: int, at: int) -> bytes | None:
        return None


class Node:
    """A broker on a cold disk. `read` lets one read from the disk arrive."""

    def __init__(self, directory: Path, sync: bool = False) -> None:
        clock = ManualClock()
        self.turn = ManualTurn()
        self.wheel = ManualWheel(clock)
        self.store = MessageStore(ColdDisk(), directory, CONFIG, clock)
        self.store.load()
        self.broker = Broker(
            self.store, clock, self.turn, self.wheel, {}, BrokerConfig(), TopicsConfig(), GatewayConfig(), sync
        )
        self.broker.open()
        self.posted: SimpleQueue[tuple[Callable[[Any], None], Any]] = SimpleQueue()
        self.reads = ColdReads(self.store.files, lambda callback, value: self.posted.put((callback, value)))
        self.store.read_without_waiting(self.reads)
        self.port = LocalBrokerPort(self.broker)

    def ask(self, method: str, *args: Any) -> list[Any]:
        """Where the answer will be."""
        box: list[Any] = []
        getattr(self.port, method)(*args, None, lambda token, result: box.append(result))
        self.turn.run_until_quiet()
        return box

    def read(self) -> None:
        callback, value = self.posted.get(timeout=30)
        callback(value)
        self.turn.run_until_quiet()

    def wait(self, box: list[Any]) -> Any:
        while not box:
            self.read()
        return box[0]

    def stop(self) -> None:
        self.reads.stop()
        self.broker.close()
        self.store.close()


def filled(directory: Path, count: int = 30) -> Node:
    """A node that was stopped and started again, with records in queue T/0."""
    node = Node(directory)
    node.wait(node.ask("submit", [Message("T", b"%d" % number, queue_id=0) for number in range(count)]))
    node.stop()
    return Node(directory)


def bodies(result: Any) -> list[bytes]:
    return [delivery.message.body for delivery in result]


def test_acquires_that_wait_are_answered_in_order(tmp_path: Path) -> None:
    node = filled(tmp_path)
    cursor = node.wait(node.ask("open_cursor", "T/0", "g", EARLIEST)).cursor
    first = node.ask("acquire", cursor, 1, 10, 1 << 20)
    second = node.ask("acquire", cursor, 2, 10, 1 << 20)
    assert (first, second) == ([], [])
    assert bodies(node.wait(second)) == [b"%d" % number for number in range(10, 20)]
    assert bodies(first[0]) == [b"%d" % number for number in range(10)]
    assert node.broker.cursors.by_id[cursor].parked is None
    node.port.settle([(cursor, offset, Outcome.REQUEUE) for offset in (3, 1)])
    third = node.wait(node.ask("acquire", cursor, 1, 3, 1 << 20))
    assert [(delivery.offset, delivery.count) for delivery in third] == [(1, 2), (3, 2), (20, 1)]
    node.stop()


def test_a_holder_or_cursor_that_is_gone_leases_nothing(tmp_path: Path) -> None:
    node = filled(tmp_path)
    cursor = node.wait(node.ask("open_cursor", "T/0", "g", EARLIEST)).cursor
    box = node.ask("acquire", cursor, 1, 10, 1 << 20)
    node.port.release(1)
    assert node.wait(box) == []
    assert node.broker.cursors.by_id[cursor].window.unacked() == 0
    box = node.ask("acquire", cursor, 1, 10, 1 << 20)
    node.ask("delete_cursor", cursor)
    result = node.wait(box)
    assert isinstance(result, GantryError)
    assert result.code is ErrorCode.NOT_FOUND
    node.stop()


def test_reading_records_and_searching_by_time_wait_too(tmp_path: Path) -> None:
    node = filled(tmp_path)
    info = node.wait(node.ask("open_cursor", "T/0", "t", Start("time", 0)))
    assert info.next_offset == 0
    box = node.ask("read", [(1 << 50, 100), (0, 10)])
    assert node.wait(box) == [None, None]
    node.stop()


def test_a_topic_may_be_stricter_or_laxer_than_the_store(tmp_path: Path) -> None:
    for sync in (False, True):
        node = Node(tmp_path / str(sync), sync)
        asked: list[int] = []
        node.broker.request_flush = lambda asked=asked: asked.append(1)  # type: ignore[misc]
        node.broker.topics.create(TopicConfig("Strict", 1, 1, attributes={"flush": "sync"}))
        node.broker.topics.create(TopicConfig("Lax", 1, 1, attributes={"flush": "async"}))
        node.broker.topics.create(TopicConfig("Plain", 1, 1))
        boxes = {
            names: node.ask("submit", [Message(name, b"x", queue_id=0) for name in names])
            for names in (("Lax",), ("Plain",), ("Strict",), ("Lax", "Strict"))
        }
        assert [bool(box) for box in boxes.values()] == [True, not sync, False, False]
        assert asked
        node.broker.gate.advance(node.store.flush())
        assert all(boxes.values())
        node.stop()


def test_a_flush_rule_that_is_none_is_refused(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with pytest.raises(GantryError) as caught:
        node.broker.topics.create(TopicConfig("T", 1, 1, attributes={"flush": "often"}))
    assert caught.value.code is ErrorCode.ILLEGAL_ARGUMENT
    node.stop()


def test_offsets_beyond_the_end_are_cut_at_an_unclean_start(tmp_path: Path) -> None:
    node = filled(tmp_path)
    node.broker.commits.commit("g", "T", 0, 50)
    node.broker.commits.commit("h", "T", 0, 7)
    assert node.broker.offsets.cut(lambda topic, queue: 30) == [("T@g", 0, 50, 30)]
    assert node.broker.offsets.query("g", "T", 0) == 30
    node.stop()
