"""The two real BrokerPorts for gateway tests: in process, and over Remoting frames that wait in lists until `run()`.

Broker and store are the product's own, on files under a test's directory; clock, wheel and turns are the test's.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig, GatewayConfig, TopicsConfig
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import BrokerPort
from gantrymq.broker.routing.api import RouteSet
from gantrymq.cluster.wire.client import RemoteBrokerPort
from gantrymq.cluster.wire.server import GatewaySession
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from gantrymq.remoting.codec import FrameReader
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore

CONFIG = StoreConfig(
    commitlog_file_size=16 * 1024 * 1024, consumequeue_file_size=40_000, index_slots=100, index_entries=1000
)
"""Small files: a test's store is made and thrown away in milliseconds. One record may still hold the largest body."""

GENERATION = "generation-"


class RealBroker:
    """`kind`: `local` or `remote`. `port` is what a gateway gets."""

    def __init__(
        self,
        kind: str,
        directory: Path,
        shell: tuple[ManualClock, ManualTurn, ManualWheel],
        routes: Mapping[str, Callable[[], RouteSet]],
    ) -> None:
        clock, turn, wheel = shell
        self.kind = kind
        self.turn = turn
        self.directory = directory
        self.store = MessageStore(OsFileSystem(), directory, CONFIG, clock)
        self.store.load(None)
        sets = {name: make() for name, make in routes.items()}
        configs = (BrokerConfig(), TopicsConfig(), GatewayConfig())
        self.broker = Broker(self.store, clock, turn, wheel, sets, *configs, False)  # type: ignore[arg-type]
        self.broker.open()
        self._to_broker: list[bytes] = []
        self._to_gateway: list[bytes] = []
        self.port: BrokerPort = LocalBrokerPort(self.broker) if kind == "local" else self._connect()

    def _connect(self) -> BrokerPort:
        self._session = GatewaySession(self.broker, "test", self._to_gateway.append)
        self._reader = FrameReader()
        self._remote = RemoteBrokerPort(self._to_broker.append, lambda: None)
        self._remote.connected("gateway", lambda token, result: None)
        return self._remote

    def run(self) -> bool:
        """Carry frames both ways until none is on its way; True if there were any."""
        moved = self.kind == "remote"
        carried = False
        while moved:
            self._remote.flush()
            sent, self._to_broker[:] = b"".join(self._to_broker), []
            for command in self._reader.feed(sent):
                self._session.handle(command)
            self.turn.run_until_quiet()
            came, self._to_gateway[:] = b"".join(self._to_gateway), []
            self._remote.received(came)
            moved = bool(sent or came)
            carried = carried or moved
        return carried

    def crash(self) -> Path:
        """The directory that a killed process would leave behind."""
        number = len(list(self.directory.parent.glob(GENERATION + "*")))
        return Path(shutil.copytree(self.directory, self.directory.parent / f"{GENERATION}{number}"))

    def close(self) -> None:
        """Let go of files and locks."""
        self.broker.close()
        self.store.close()
