"""The broker over the real store: what survives a crash of the process and a clean stop."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig, GatewayConfig, TopicsConfig
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import END, Outcome, Route
from gantrymq.model import properties as props
from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore
from tests.broker.test_port import PrefixRoutes

CONFIG = StoreConfig(commitlog_file_size=256 * 1024, consumequeue_file_size=4000, index_slots=100, index_entries=1000)


class Node:
    """Broker and store in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        clock = ManualClock()
        self.turn = ManualTurn()
        self.store = MessageStore(OsFileSystem(), directory, CONFIG, clock)
        self.store.load(None)
        self.broker = Broker(
            self.store, clock, self.turn, ManualWheel(clock), {"prefix": PrefixRoutes()},
            BrokerConfig(), TopicsConfig(), GatewayConfig(), False,
        )  # fmt: skip
        self.broker.open()
        self.port = LocalBrokerPort(self.broker)

    def call(self, method: str, *args: Any) -> Any:
        box: list[Any] = []
        getattr(self.port, method)(*args, None, lambda token, result: box.append(result))
        self.turn.run_until_quiet()
        return box[0]

    def stop(self) -> None:
        self.broker.close()
        self.store.close()

    def crash(self) -> Path:
        """What a killed process leaves behind: everything written, nothing closed. The store goes on elsewhere, unseen."""
        return Path(shutil.copytree(self.directory, self.directory.parent / "left-behind"))


@pytest.mark.parametrize("clean", [True, False])
def test_queue_with_acks_survives(tmp_path: Path, clean: bool) -> None:
    node = Node(tmp_path / "node")
    light = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "a", light))
    cursor = node.call("open_cursor", f"~{light}", "g", END).cursor
    bodies = [b"%04d" % i + bytes(1000) for i in range(600)]  # several segments
    for at in range(0, 600, 50):
        batch = [Message("t", body, props.encode([(props.TAGS, "ab")]), "ab") for body in bodies[at : at + 50]]
        assert all(isinstance(result, int) for result in node.call("submit", batch))
    got = node.call("acquire", cursor, 1, 100, 1 << 20)
    assert [delivery.message.body for delivery in got] == bodies[:100]
    node.port.settle([(cursor, delivery.offset, Outcome.ACK) for delivery in got if delivery.offset % 10])
    node.turn.run_until_quiet()
    left_behind = node.crash()
    node.stop()
    after = Node(node.directory if clean else left_behind)
    left = []
    while batch := after.call("acquire", cursor, 1, 64, 1 << 20):
        left.extend(batch)
    assert [delivery.message.body for delivery in left] == bodies[:100:10] + bodies[100:]
    assert all(delivery.count == 2 for delivery in left[:10])
    assert left[0].message.tag == "ab"
    after.stop()


def test_only_what_was_delivered_counts_as_redelivered_after_a_clean_stop(tmp_path: Path) -> None:
    """AMQP 1.8.3.13 (basic.deliver, redelivered): applications throw away what they believe to have failed on before. After a crash the mark decides."""
    node = Node(tmp_path / "node")
    light = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "a", light))
    cursor = node.call("open_cursor", f"~{light}", "g", END).cursor
    for _ in range(6):
        node.call("submit", [Message("t", b"", props.encode([(props.TAGS, "ab")]), "ab") for _ in range(50)])
    got = node.call("acquire", cursor, 1, 20, 1 << 20)
    node.port.settle([(cursor, delivery.offset, Outcome.ACK) for delivery in got[:5]])
    node.port.settle([(cursor, delivery.offset, Outcome.REQUEUE) for delivery in got[5:15]])  # five stay in flight
    node.turn.run_until_quiet()
    node.stop()
    for restart in range(2):  # the second stop, after a life without deliveries, changes nothing
        node = Node(node.directory)
        if not restart:
            node.stop()
    crashed = Node(node.crash())
    found = [crashed.call("acquire", cursor, 1, 100, 1 << 20) for _ in range(3)]
    assert [delivery.count > 1 for batch in found for delivery in batch] == [True] * 15 + [False] * 280
    taken = node.call("acquire", cursor, 1, 25, 1 << 20)
    assert [delivery.count > 1 for delivery in taken] == [True] * 15 + [False] * 10
    (node.directory.parent / "left-behind").rename(node.directory.parent / "first")
    again = Node(node.crash())  # killed with 25 in flight: the mark is ahead again
    assert all(delivery.count > 1 for delivery in again.call("acquire", cursor, 1, 200, 1 << 20)[:26])
    node.stop()


def test_messages_and_tables_can_be_read_by_key_and_offset(tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    message = Message("t", b"body", props.encode([(props.KEYS, "k1")]), keys=("k1",))
    node.call("submit", [message])
    node.call("put", "x", [("a", b"1")])
    after = Node(node.crash())
    node.stop()
    found = after.store.query("t", "k1", 10, 0, 1 << 62)
    assert [(row.body, row.queue_offset) for row in found] == [(b"body", 0)]
    assert after.call("watch_table", "x", None) == {"a": b"1"}
    assert after.call("read", [(message.physical_offset, message.size)])[0].body == b"body"
    assert after.call("read", [(message.physical_offset + 1, message.size)]) == [None]
    after.stop()
