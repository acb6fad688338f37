"""Broker and store over a disk in memory, opened again and again as crashes leave it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gantrymq.administration.groups import Groups
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig, GatewayConfig, TopicsConfig
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.retention.compaction import Background, Compaction
from gantrymq.broker.slices import Upkeep
from gantrymq.model.errors import GantryError
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from gantrymq.store.config import StoreConfig
from gantrymq.store.message_store import MessageStore
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.test_port import PrefixRoutes

ROOT = Path("/d")
SMALL = StoreConfig(
    commitlog_file_size=64 * 1024, consumequeue_file_size=400, index_slots=50, index_entries=40, queue_files_max=8,
    checkpoint_interval_ms=100,
)  # fmt: skip


@contextmanager
def full_disk(files: MemoryFileSystem) -> Iterator[None]:
    """Meanwhile the log takes no byte: appends are refused with STORE_FULL."""

    def fault(operation: str, path: Path) -> OSError | None:
        full = operation == "pwrite" and "commitlog" in path.parts
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if full else None

    before, files.fault = files.fault, fault
    try:
        yield
    finally:
        files.fault = before


def decide(
    node: Node, group: str, offset: int, position: int, commit: bool, check: bool, token: Any, on_done: Any
) -> None:
    """As END_TRANSACTION does."""
    transactions = node.broker.transactions
    transactions.end(transactions.find(offset, position, commit), group, offset, commit, check, token, on_done)


def recall(node: Node, topic: str, unique: str, at_ms: int, group: str, born_host: bytes, on_done: Any) -> None:
    """As RECALL_MESSAGE does."""
    delays = node.broker.delays
    delays.recall(delays.pending(topic, unique, at_ms), topic, unique, at_ms, group, born_host, on_done)


def groups_of(broker: Broker) -> Groups:
    """The consumer groups as a server of this broker knows them."""
    return Groups(broker.topics, broker.tables, broker.clock, broker.put, broker.delete_group)


def upkeep_of(broker: Broker) -> Upkeep:
    """As the service gives it to work in the background."""
    return Upkeep(broker.wheel, broker.clock, lambda: broker.closed, broker.request_flush)


def compaction_of(broker: Broker, background: Background) -> Compaction:
    """The broker's compaction, not started."""
    return Compaction(broker.store, broker.topics, broker.min_offset, upkeep_of(broker), background)


class Node:
    """One life of a broker. `sync`: acknowledgements wait for `flush`."""

    accept_loss = False
    config = BrokerConfig()
    routes: Mapping[str, Callable[[], Any]] = {"prefix": PrefixRoutes}
    """Kinds of routes, as doors bring them."""
    new_clock: Callable[[], ManualClock] = ManualClock

    def __init__(self, files: MemoryFileSystem, sync: bool) -> None:
        self.files = files
        self.turn = ManualTurn()
        clock = self.new_clock()
        self.wheel = ManualWheel(clock)
        self.store = MessageStore(files, ROOT, SMALL, clock)
        self.report = self.store.load(accept_loss=self.accept_loss)
        self.broker = Broker(
            self.store, clock, self.turn, self.wheel, {kind: make() for kind, make in self.routes.items()},
            self.config, TopicsConfig(), GatewayConfig(), sync,
        )  # fmt: skip
        self.prepare()
        self.broker.open()
        self.port = LocalBrokerPort(self.broker)
        self.turn.run_until_quiet()

    def prepare(self) -> None:
        """What is done before the broker opens."""

    def start(self, method: str, *args: Any) -> list[Any]:
        """Call the port; the list gets the result, possibly later."""
        box: list[Any] = []
        getattr(self.port, method)(*args, None, lambda token, result: box.append(result))
        self.turn.run_until_quiet()
        return box

    def call(self, method: str, *args: Any) -> Any:
        """As `start`, flushed where it waits for that."""
        box = self.start(method, *args)
        if not box:
            self.flush()
        assert len(box) == 1
        assert not isinstance(box[0], GantryError), box[0]
        return box[0]

    def flush(self) -> None:
        """What the flusher does."""
        self.broker.gate.advance(self.store.flush())
        self.turn.run_until_quiet()

    def background(self) -> None:
        """Deferred writes, and the checkpoint if it is due."""
        self.wheel.advance(1000)
        self.turn.run_until_quiet()
        checkpoint = self.store.take_checkpoint()
        if checkpoint is not None:
            self.store.sync_checkpoint(checkpoint)

    def stop(self) -> None:
        self.broker.close()
        self.store.close()
