"""Two gateways of one real broker, each at the end of a wire of its own: the test decides what moves next, frame by frame and turn by turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig, GatewayConfig, TopicsConfig
from gantrymq.cluster.wire.client import RemoteBrokerPort
from gantrymq.cluster.wire.server import GatewaySession
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from gantrymq.remoting.codec import Command, FrameReader
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore
from gantrymq_gateways.mqtt.config import MqttConfig
from gantrymq_gateways.mqtt.gateway import MqttGateway, Shell
from gantrymq_gateways.mqtt.routes import MqttRoutes
from gateways.tests.mqtt.world import Client
from gateways.tests.realport import CONFIG


class Side:
    """One gateway. `step` is one frame from the broker, or a turn where none came; False: there was neither."""

    def __init__(self, site: Site, settings: dict[str, Any]) -> None:
        self.site = site
        self.clock, self.wheel = site.clock, site.wheel
        self.turn = ManualTurn()
        self.clients: list[Client] = []
        self._came: list[bytes] = []
        self._sent: list[bytes] = []
        self._reader = FrameReader()
        self._commands: list[Command] = []
        self._session = GatewaySession(site.broker, "test", self._came.append)
        self.port = RemoteBrokerPort(self._sent.append, lambda: self.turn.at_write(self.port.flush))
        self.port.connected("gateway", lambda token, result: None)
        self.gateway = MqttGateway(Shell(self.port, self.clock, self.turn, self.wheel), MqttConfig(**settings))

    def step(self) -> bool:
        """What has come from the broker, one frame of it; else one turn."""
        if self._came:
            self.port.received(self._came.pop(0))
            return True
        if self.turn.pending:
            self.turn.run()
            for client in self.clients:
                client.collect()
            return True
        return False

    def carry(self) -> bool:
        """One frame to the broker."""
        sent, self._sent[:] = b"".join(self._sent), []
        self._commands += self._reader.feed(sent)
        if not self._commands:
            return False
        self._session.handle(self._commands.pop(0))
        return True

    def settle(self) -> None:
        """As the world of a `Client` does: all of the site comes to rest."""
        self.site.settle()


class Site:
    """The broker and its two gateways."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.clock = ManualClock()
        self.wheel = ManualWheel(self.clock)
        self.turn = ManualTurn()
        self.store = MessageStore(OsFileSystem(), directory, CONFIG, self.clock)
        self.store.load(None)
        configs = (BrokerConfig(), TopicsConfig(), GatewayConfig())
        sets = {"mqtt": MqttRoutes()}
        self.broker = Broker(self.store, self.clock, self.turn, self.wheel, sets, *configs, False)  # type: ignore[arg-type]
        self.broker.open()
        self.old, self.new = self.sides = (Side(self, settings), Side(self, settings))
        for side in self.sides:
            side.gateway.start()
        self.settle()
        assert all(side.gateway.ready for side in self.sides)

    def turn_over(self) -> bool:
        """One turn of the broker."""
        if not self.turn.pending:
            return False
        self.turn.run()
        return True

    def alone(self, side: Side, steps: int) -> bool:
        """Let one gateway and the broker work, the other one's frames wait; the broker's turn comes when nothing else is to do.
        False: they came to rest before."""
        return all(any(move() for move in (side.carry, side.step, self.turn_over)) for _ in range(steps))

    def settle(self) -> None:
        """Until nothing happens any more."""
        moves = [move for side in self.sides for move in (side.step, side.carry)]
        moved = True
        while moved:
            moved = False
            for move in [*moves, self.turn_over]:
                moved = move() or moved

    def close(self) -> None:
        """Let go of files and locks."""
        self.broker.close()
        self.store.close()
