"""The other end for tests: frames to and from the door over FakeLink and FakePort, no sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gantrymq.broker.port import BrokerPort
from gantrymq.model.limits import BODY_BYTES_CEILING
from gantrymq.net.testing import FakeLink, ManualClock, ManualTurn, ManualWheel
from gantrymq_gateways.amqp.config import AmqpConfig
from gantrymq_gateways.amqp.door import AmqpDoor
from gantrymq_gateways.amqp.gateway import Gateway
from gantrymq_gateways.amqp.routes import AmqpRoutes
from gantrymq_gateways.amqp.service import server_properties
from gantrymq_gateways.amqp.wire.codec import FRAME, content_frames, decode_arguments, method_frame
from gantrymq_gateways.amqp.wire.constants import METHODS, METHODS_BY_NUMBER, PROTOCOL_HEADER
from gantrymq_gateways.amqp.wire.events import Settings
from gantrymq_gateways.amqp.wire.values import Field, Table
from gateways.tests.fakeport import FakePort
from gateways.tests.realport import RealBroker

CLIENT_CAPABILITIES: Table = [
    (name, Field("t", True))
    for name in ("authentication_failure_close", "connection.blocked", "consumer_cancel_notify", "publisher_confirms")
]
NO_PROPERTIES = b"\x00\x00"


class Content:
    """A method with content."""

    def __init__(self, name: str, arguments: list[Any]) -> None:
        self.name = name
        self.arguments = arguments
        self.properties = b""
        self.body = b""
        self.left = -1

    def __repr__(self) -> str:
        return f"{self.name}{self.arguments} {self.properties!r} {self.body!r}"


def frames_of(data: bytes) -> list[tuple[int, int, bytes]]:
    """(type, channel, payload) of whole frames."""
    frames = []
    at = 0
    while at < len(data):
        kind, channel, size = FRAME.unpack_from(data, at)
        assert data[at + 7 + size] == 0xCE, data[at:]
        frames.append((kind, channel, data[at + 7 : at + 7 + size]))
        at += 8 + size
    return frames


def parse(data: bytes) -> list[Any]:
    """(channel, name, arguments), and (channel, Content) for methods with content; heartbeats are ('heartbeat',)."""
    out: list[Any] = []
    open_: dict[int, Content] = {}
    for kind, channel, payload in frames_of(data):
        if kind == 8:
            out.append(("heartbeat",))
        elif kind == 1:
            method = METHODS_BY_NUMBER[int.from_bytes(payload[:4], "big")]
            arguments = decode_arguments(method.spec, payload, 4)
            if method.content:
                open_[channel] = Content(method.name, arguments)
            else:
                out.append((channel, method.name, arguments))
        elif kind == 2:
            content = open_[channel]
            content.left = int.from_bytes(payload[4:12], "big")
            content.properties = payload[12:]
            if not content.left:
                out.append((channel, content))
        else:
            content = open_[channel]
            content.body += payload
            content.left -= len(payload)
            if not content.left:
                out.append((channel, content))
    return out


def call(channel: int, name: str, *arguments: Any) -> bytes:
    """One method frame."""
    return method_frame(channel, METHODS[name], arguments)


def publish(
    channel: int, exchange: str, key: str, body: bytes, properties: bytes = NO_PROPERTIES, mandatory: bool = False
) -> bytes:
    """basic.publish with content."""
    method = call(channel, "basic.publish", 0, exchange, key, mandatory, False)
    return method + content_frames(channel, properties, body, 131072)


class Server:
    """A gateway over a port, and its clock. `mode`: of FakePort, or `local` or `remote` for the real broker under `directory`."""

    def __init__(
        self,
        port: FakePort | None = None,
        config: AmqpConfig | None = None,
        mode: str = "immediate",
        directory: Path | None = None,
    ) -> None:
        self.body_bytes_max = BODY_BYTES_CEILING
        self.config = config or AmqpConfig()
        self.properties = server_properties(self.config, "test")
        self.clock = ManualClock()
        self.turn = ManualTurn()
        self.wheel = ManualWheel(self.clock)
        shell = (self.clock, self.turn, self.wheel)
        self.mode = mode
        self.real = RealBroker(mode, directory, shell, {"amqp": AmqpRoutes}) if directory is not None else None
        self.port = port or FakePort(mode="late" if self.real else mode, routes={"amqp": AmqpRoutes})
        self.tokens = 0
        broker_port: BrokerPort = self.real.port if self.real else self.port
        self.gateway = Gateway(self.config, broker_port, *shell, self._token)
        errors: list[Exception | None] = []
        self.gateway.start(errors.append)
        self.settle()
        assert errors == [None]

    def _token(self) -> str:
        self.tokens += 1
        return f"token{self.tokens:017d}"

    def settle(self) -> bool:
        """Run everything that waits; True if there was anything."""
        moved = False
        while self.turn.pending or self.port.waits or (self.real is not None and self.real.run()):
            moved = True
            self.turn.run_until_quiet()
            self.port.run()
        return moved

    def restart(self, port: FakePort) -> Server:
        """A new start after kill -9: on `port`, or on what the real broker left on its disk."""
        if self.real is None:
            return Server(port, self.config)
        return Server(config=self.config, mode=self.mode, directory=self.real.crash())

    def connect(self, loopback: bool = True) -> Peer:
        return Peer(self, loopback)

    def client(self, *channels: int, vhost: str = "/") -> Peer:
        """A connection that is open, with these channels (default: 1)."""
        peer = self.connect()
        peer.handshake(vhost=vhost)
        for channel in channels or (1,):
            assert peer.ask(call(channel, "channel.open", "")) == [(channel, "channel.open-ok", [b""])]
        return peer


class Peer:
    """One client connection."""

    def __init__(self, server: Server, loopback: bool = True) -> None:
        self.server = server
        self.link = FakeLink(server.wheel, server.turn)
        self.link.peer_is_loopback = loopback
        self.settings = Settings(
            server.properties,
            server.config.channel_max,
            server.config.frame_max,
            server.config.heartbeat,
            server.body_bytes_max,
            lambda: server.body_bytes_max,
        )
        self.door = AmqpDoor(server.gateway, self.settings)
        self.link.attach(self.door)

    def raw(self, data: bytes) -> bytes:
        """Send bytes, run everything, return bytes."""
        out = self.link.feed(data)
        self.server.settle()
        return out + self.link.take()

    def push(self, data: bytes) -> None:
        """Send bytes and run nothing."""
        while data:
            data = data[self.door.received(data) :]

    def ask(self, *data: bytes) -> list[Any]:
        """Send frames in one chunk; what comes back, parsed."""
        return parse(self.raw(b"".join(data)))

    def call(self, name: str, *arguments: Any, channel: int = 1) -> list[Any]:
        return self.ask(call(channel, name, *arguments))

    def handshake(self, capabilities: Table | None = None, vhost: str = "/") -> None:
        assert self.enter(vhost, capabilities) == [(0, "connection.open-ok", [""])]

    def enter(self, vhost: str, capabilities: Table | None = None) -> list[Any]:
        """What comes back for connection.open."""
        (start,) = parse(self.raw(PROTOCOL_HEADER))
        assert start[1] == "connection.start"
        table: Table = [("capabilities", Field("F", CLIENT_CAPABILITIES if capabilities is None else capabilities))]
        (tune,) = self.call("connection.start-ok", table, "PLAIN", b"\0guest\0guest", "en_US", channel=0)
        assert tune[1] == "connection.tune"
        channel_max, frame_max, heartbeat = tune[2]
        tuned = call(0, "connection.tune-ok", channel_max, frame_max, heartbeat)
        return self.ask(tuned, call(0, "connection.open", vhost, "", False))

    def declare(
        self, queue: str, durable: bool = True, exclusive: bool = False, auto_delete: bool = False
    ) -> list[Any]:
        return self.call("queue.declare", 0, queue, False, durable, exclusive, auto_delete, False, [])

    def count(self, queue: str) -> int:
        """Ready messages."""
        ((_, name, arguments),) = self.call("queue.declare", 0, queue, True, False, False, False, False, [])
        assert name == "queue.declare-ok", arguments
        return int(arguments[1])
