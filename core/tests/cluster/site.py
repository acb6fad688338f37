"""Real brokers in memory behind lines that are cut and mended, and gateways over them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import END, Outcome, Route
from gantrymq.cluster.port import SETTLE_MS, ClusterPort
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node


class Line:
    """A connection to a broker: when it is cut every call ends with UNAVAILABLE, and what was open is gone."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.port: LocalBrokerPort | None = LocalBrokerPort(node.broker)
        self.states: list[Callable[[bool], None]] = []

        self.open: dict[int, tuple[Any, Any, Any]] = {}
        self.numbers = itertools.count()
        self.calls_left: int | None = None
        """Cut when so many calls were made."""
        self.held: list[tuple[int, Any]] | None = None
        """Answers that do not come yet, while the broker hangs."""
        self.heard = 0

    @property
    def up(self) -> bool:
        return self.port is not None

    def body_bytes_max(self) -> int:
        return self.node.broker.store.body_bytes_max

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> None:
            answers = len(args) >= 2 and callable(args[-1]) and name != "watch"
            if self.calls_left is not None and self.port is not None:
                self.calls_left -= 1
                if self.calls_left < 0:
                    self.cut()
            if self.port is None:
                if answers:
                    args[-1](args[-2], _cut(name, args))
            elif answers:
                number = next(self.numbers)
                self.open[number] = (*args[-2:], _cut(name, args))
                getattr(self.port, name)(*args[:-2], number, self._answered, **options)
            else:
                getattr(self.port, name)(*args, **options)

        return call

    def hang(self) -> None:
        """No answer comes through until `thaw`, or the line is cut."""
        self.held = []

    def thaw(self) -> None:
        held, self.held = self.held or [], None
        for number, result in held:
            self._answered(number, result)

    def _answered(self, number: int, result: Any) -> None:
        if self.held is not None:
            self.held.append((number, result))
            return
        self.heard += 1
        if number in self.open:
            token, on_done, _ = self.open.pop(number)
            on_done(token, result)

    def watch_state(self, on_state: Callable[[bool], None]) -> None:
        self.states.append(on_state)
        on_state(self.port is not None)

    def cut(self) -> None:
        assert self.port is not None
        self.port.close()
        self.port = None
        self.calls_left = None
        self.held = None
        calls, self.open = self.open, {}
        for token, on_done, error in calls.values():
            on_done(token, error)
        for on_state in self.states:
            on_state(False)

    def mend(self) -> None:
        self.port = LocalBrokerPort(self.node.broker)
        for on_state in self.states:
            on_state(True)

    def close(self) -> None:
        if self.port is not None:
            self.port.close()


def _cut(name: str, args: tuple[Any, ...]) -> Any:
    """What a call gets whose connection is lost."""
    return [ErrorCode.UNAVAILABLE] * len(args[0]) if name == "submit" else GantryError(ErrorCode.UNAVAILABLE, "cut")


class Site:
    """Broker groups and gateways over them."""

    def __init__(self, *names: str) -> None:
        self.nodes = {name: Node(MemoryFileSystem(), False) for name in names}
        self.turn = ManualTurn()
        self.wheel = ManualWheel(ManualClock())
        self.gateways: list[tuple[ClusterPort, dict[str, Line]]] = []

    def add_node(self, name: str) -> None:
        self.nodes[name] = Node(MemoryFileSystem(), False)
        for port, lines in self.gateways:
            lines[name] = Line(self.nodes[name])
            port.add_group(name, lines[name])
        self.wait(SETTLE_MS + 100)

    def gateway(self, *names: str) -> ClusterPort:
        port = ClusterPort(self.turn, self.wheel, f"gateway{len(self.gateways)}")
        lines = {name: Line(self.nodes[name]) for name in names or self.nodes}
        for name, line in lines.items():
            port.add_group(name, line)
        port.complete_now()
        self.gateways.append((port, lines))
        self.run()
        assert port.up
        return port

    def line(self, port: ClusterPort, name: str) -> Line:
        return next(lines for found, lines in self.gateways if found is port)[name]

    def wait(self, ms: int) -> None:
        self.run()
        for _ in range(ms // 100):
            self.wheel.advance(100)
            self.run()

    def run(self) -> None:
        for _ in range(20):
            for node in self.nodes.values():
                node.turn.run_until_quiet()
            self.turn.run_until_quiet()
            if not self.turn.pending and not any(node.turn.pending for node in self.nodes.values()):
                return
        raise AssertionError("still busy")

    def call(self, port: ClusterPort, method: str, *args: Any) -> Any:
        box: list[Any] = []
        getattr(port, method)(*args, None, lambda token, result: box.append(result))
        self.run()
        assert len(box) == 1, (method, box)
        return box[0]

    def stored(self, topic: str) -> dict[str, int]:
        return {
            name: sum([node.store.max_offset(topic, queue) for queue in node.store.queues_of(topic)])
            for name, node in self.nodes.items()
        }


def message(topic: str, body: bytes, tag: str = "a") -> Message:
    return Message(topic, body, f"TAGS\x01{tag}\x02".encode(), tag)


def queue(site: Site, port: ClusterPort, number: int = 0) -> tuple[int, int]:
    """A light queue for every tag that begins with `a`, and its cursor."""
    light = site.call(port, "create_light")
    info = site.call(port, "open_cursor", f"~{light}", "g", END)
    assert site.call(port, "add_route", Route(f"r{number}", "prefix", None, "a", light)) is None
    return light, info.cursor


def take(site: Site, port: ClusterPort, cursor: int, settle: bool = True) -> list[bytes]:
    """Everything that is ready."""
    got: list[bytes] = []
    while deliveries := site.call(port, "acquire", cursor, 1, 100, 1 << 20):
        got += [delivery.message.body for delivery in deliveries]
        if settle:
            port.settle([(cursor, delivery.offset, Outcome.ACK) for delivery in deliveries])
            site.run()
    return got


def publish(site: Site, port: ClusterPort, topics: int, count: int, start: int = 0) -> list[bytes]:
    bodies = [b"%d" % number for number in range(start, start + count)]
    batch = [message(f"t{number % topics}", body) for number, body in enumerate(bodies)]
    results = site.call(port, "submit", batch)
    assert all(isinstance(result, int) for result in results), results
    return bodies
