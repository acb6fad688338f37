"""Broker groups that follow each other's routes and read each other's forward queues, in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.forward.sending import Peer
from gantrymq.broker.port import EARLIEST, Outcome, Route
from gantrymq.broker.tables.slot_table import given_away
from gantrymq.cluster.forward.peers import OtherPort, Peers
from gantrymq.cluster.forward.pulls import Pulls
from gantrymq.cluster.slots.changes import forget
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.net.api import Wheel
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node
from tests.cluster.site import Line
from tests.cluster.slots.slot_site import KEEPER, SlotSite


class ForwardSite(SlotSite):
    """`lines[a, b]`: what a asks of b. Disks are flushed at each step of `wait`."""

    def __init__(self, *names: str, seed: int = 0, most: int = 1_000_000) -> None:
        self.most = most
        self.lines: dict[tuple[str, str], Line] = {}
        self.unflushed: set[str] = set()
        """Groups whose disk takes nothing for now."""
        super().__init__(*names, seed=seed)
        self.wait(500)

    def begin(self, name: str, files: MemoryFileSystem) -> None:
        super().begin(name, files)
        node = self.nodes[name]

        def connect(other: str) -> tuple[OtherPort, Callable[[], None]]:
            line = self.lines.get((name, other))
            if line is not None and line.up:
                line.cut()
            if other in self.nodes:
                line = Line(self.nodes[other])
                if other in self.away:
                    line.cut()
            else:  # it starts later
                line = Line(node)
                line.cut()
            self.lines[name, other] = line
            port: Any = line
            return port, line.close

        Peers(node.broker, name, connect, at_once(node.wheel)).start()
        for (_, target), line in self.lines.items():
            if target == name and not line.up:
                line.node = node
                line.mend()

    def make(self, name: str, files: MemoryFileSystem) -> Node:
        """As `node_of`."""
        config = BrokerConfig(name=name, metadata_group=KEEPER, forward_records_max=self.most)
        kind = type("ForwardNode", (Node,), {"config": config})
        made: Node = kind(files, False)
        return made

    def forget(self, name: str) -> None:
        """What `gantry cluster forget` does."""
        keeper: Any = Line(self.nodes[KEEPER])
        staying = [other for other in self.nodes if other != name]
        self.do(forget(keeper, name, lambda table: given_away(table, name, staying), self.random.getrandbits))

    def kill(self, name: str) -> MemoryFileSystem:
        for pair, line in list(self.lines.items()):
            if name in pair and line.up:
                line.cut()
            if pair[0] == name:
                del self.lines[pair]
        return super().kill(name)

    def cut(self, *names: str) -> None:
        """Nobody of the two hears the other."""
        one, other = names
        for pair in ((one, other), (other, one)):
            if self.lines[pair].up:
                self.lines[pair].cut()

    def mend(self, *names: str) -> None:
        """They do again."""
        one, other = names
        for pair in ((one, other), (other, one)):
            self.lines[pair].mend()
        self.wait(500)

    def wait(self, ms: int) -> None:
        self.run()
        for _ in range(max(ms // 50, 1)):
            self.wheel.advance(50)
            for name, node in self.nodes.items():
                if name not in self.away:
                    node.wheel.advance(50)
            self.run()
            for name, node in self.nodes.items():
                if name not in self.away and name not in self.unflushed:
                    node.flush()
            self.run()

    def begun(self, name: str, method: str, *args: Any) -> list[Any]:
        """A call of a group's port; the list gets the answer, perhaps later."""
        box = self.nodes[name].start(method, *args)
        self.run()
        return box

    def ask(self, name: str, method: str, *args: Any) -> Any:
        """...and the answer, which is waited for."""
        box = self.begun(name, method, *args)
        for _ in range(200):
            if box:
                break
            self.wait(50)
        assert box, (name, method)
        return box[0]

    def queue(self, name: str, tag: str, route_id: str = "") -> tuple[int, int]:
        """A light queue at a group for tags that begin so, and its cursor."""
        light: int = self.ask(name, "create_light")
        cursor: int = self.ask(name, "open_cursor", f"~{light}", "g", EARLIEST).cursor
        assert self.bind(name, light, tag, route_id) is None
        return light, cursor

    def bind(self, name: str, light: int, tag: str, route_id: str = "") -> Any:
        return self.ask(name, "add_route", self.route(light, tag, route_id))

    @staticmethod
    def route(light: int, tag: str, route_id: str = "") -> Route:
        return Route(route_id or f"prefix/{light}", "prefix", None, tag, light)

    def publish(self, name: str, *bodies: bytes, tag: str = "a", topic: str = "t", properties: bytes = b"") -> Any:
        batch = [Message(topic, body, f"TAGS\x01{tag}\x02".encode() + properties, tag) for body in bodies]
        results = self.ask(name, "submit", batch)
        return results

    def taken(self, name: str, cursor: int) -> list[Message]:
        """Everything that is ready, settled."""
        found: list[Message] = []
        while deliveries := self.ask(name, "acquire", cursor, 1, 100, 1 << 20):
            found += [delivery.message for delivery in deliveries]
            self.nodes[name].port.settle([(cursor, delivery.offset, Outcome.ACK) for delivery in deliveries])
            self.run()
        return found

    def bodies(self, name: str, cursor: int) -> list[bytes]:
        return [message.body for message in self.taken(name, cursor)]

    def peer(self, name: str, other: str) -> Peer:
        return self.nodes[name].broker.sending.peers[other]


def at_once(wheel: Wheel) -> Pulls:
    """Nobody waits to ask."""
    return Pulls(lambda: wheel.now_ms() / 1000, lambda delay_s, call: call())


def code_of(result: Any) -> ErrorCode:
    assert isinstance(result, GantryError), result
    return result.code


__all__ = ["ForwardSite", "Node", "code_of"]
