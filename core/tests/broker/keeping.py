"""A node with retention, on a disk in memory with small segments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig, BrokerOptions, GatewayConfig, TopicsConfig
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.retention.retention import Retention
from gantrymq.model import properties as props
from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from gantrymq.store.cold import ColdReads
from gantrymq.store.config import StoreConfig
from gantrymq.store.message_store import MessageStore
from tests.broker.node import ROOT, SMALL, Node
from tests.broker.test_port import PrefixRoutes

HOUR_MS = 3_600_000
SEGMENT = 64 * 1024
KEEP = replace(SMALL, delete_when="always", file_reserved_hours=1)


def now(work: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
    """In place of a thread."""
    try:
        work()
    except OSError as error:
        done(error)
    else:
        done(None)


class KeepingNode(Node):
    """`clock` goes on from one life to the next."""

    options = BrokerOptions()

    def __init__(
        self, files: Any, clock: ManualClock | None = None, config: StoreConfig = KEEP, root: Path = ROOT
    ) -> None:
        self.files = files
        self.turn = ManualTurn()
        self.clock = clock or ManualClock()
        self.wheel = ManualWheel(self.clock)
        self.store = MessageStore(files, root, config, self.clock)
        self.report = self.store.load()
        self.broker = Broker(
            self.store, self.clock, self.turn, self.wheel, {"prefix": PrefixRoutes()},
            BrokerConfig(), TopicsConfig(), GatewayConfig(), False, self.options,
        )  # fmt: skip
        self.prepare()
        self.broker.open()
        self.retention = Retention(self.broker, self.store, now)
        self.posted: SimpleQueue[tuple[Callable[[Any], None], Any]] = SimpleQueue()
        self.port = LocalBrokerPort(self.broker)
        self.turn.run_until_quiet()

    def prepare(self) -> None:
        """What is done before the broker opens."""

    def send(self, count: int, tag: str = "", topic: str = "t", size: int = 1000, first: int = 0) -> list[bytes]:
        """Append messages whose bodies begin with their number."""
        bodies = [b"%08d" % number + bytes(size) for number in range(first, first + count)]
        text = props.encode([(props.TAGS, tag)]) if tag else b""
        batch = [Message(topic, body, text, tag, queue_id=0) for body in bodies]
        results = self.call("submit", batch)
        assert all(isinstance(result, int) for result in results), results
        return bodies

    def settle_down(self) -> None:
        """Flush and make the checkpoint without which nothing is deleted."""
        self.flush()
        while self.store.run_background(10_000):
            pass
        made = self.store.take_checkpoint(force=True)
        if made is not None:
            self.store.sync_checkpoint(made)

    def retain(self, hours: float = 0) -> int:
        """Time passes, then retention runs to its end; returns the number of segments deleted."""
        self.clock.advance(int(hours * HOUR_MS))
        self.settle_down()
        before = self.retention.deleted
        retention = self.retention
        retention._due_at = 0
        retention.check(self.wheel.now_ms())
        for _ in range(100_000):
            if retention.work.job is None:
                break
            self.flush()
            if self.store.cold is not None and self.store.cold.queued:
                callback, value = self.posted.get(timeout=30)
                callback(value)
            elif retention.work.waiting:
                self.wheel.advance(100)
            else:
                retention.work.step(1_000)
        assert retention.work.job is None
        self.turn.run_until_quiet()
        return retention.deleted - before

    def drain(self, cursor: int, count: int = 1 << 30) -> list[tuple[int, bytes]]:
        """Everything that the cursor gives, in flight from now on."""
        got: list[tuple[int, bytes]] = []
        empty = 0
        while len(got) < count and empty < 50:
            found = self.call("acquire", cursor, 1, min(64, count - len(got)), 1 << 30)
            got += [(delivery.offset, delivery.message.body) for delivery in found]
            empty = 0 if found else empty + 1
        return got

    def read_cold(self) -> ColdReads:
        """From now on reads go through threads; `retain` serves what they bring."""
        cold = ColdReads(self.files, lambda callback, value: self.posted.put((callback, value)))
        self.store.read_without_waiting(cold)
        return cold

    def segments(self) -> list[str]:
        return self.files.list_dir(ROOT / "store" / "commitlog")
