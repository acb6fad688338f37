"""A gateway over the in-memory port with hand-driven time and turns, and clients that speak real packets to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gantrymq.broker.port import BrokerPort
from gantrymq.model import properties as props
from gantrymq.model.errors import GantryError
from gantrymq.model.message import Message
from gantrymq.net.testing import FakeLink, ManualClock, ManualTurn, ManualWheel
from gantrymq_gateways.mqtt.adapter import MqttDoor
from gantrymq_gateways.mqtt.config import MqttConfig
from gantrymq_gateways.mqtt.gateway import MqttGateway, Shell
from gantrymq_gateways.mqtt.routes import MqttRoutes
from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.codec import (
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
)
from gateways.tests.fakeport import FakePort
from gateways.tests.realport import RealBroker


def decode_all(data: bytes, level: int = c.LEVEL_3_1_1) -> list[Packet]:
    """Packets of a server's bytes, each checked as a client would."""
    packets = []
    start = 0
    while start < len(data):
        found = codec.packet_end(data, start)
        assert found is not None, "half a packet was written"
        body, end = found
        assert end <= len(data), "half a packet was written"
        codec.check_fixed_header(data[start], end - body, False, level)
        packets.append(codec.decode_packet(data, start, body, end, level))
        start = end
    return packets


class Client:
    """One connection, driven by packets. What arrives is in `packets`; PUBLISH of QoS 1 and 2 is acknowledged if `acks`."""

    def __init__(self, world: World, acks: bool = True, level: int = c.LEVEL_3_1_1) -> None:
        self.world = world
        self.acks = acks
        self.level = level
        self.door = MqttDoor(world.gateway)
        self.link = FakeLink(world.wheel, world.turn, f"127.0.0.1:{50000 + len(world.clients)}")
        self.link.attach(self.door)
        self.packets: list[Packet] = []
        self.next_id = 1
        world.clients.append(self)

    @property
    def closed(self) -> bool:
        return self.link.closed_by is not None

    def send(self, *packets: Packet) -> None:
        self.send_bytes(b"".join([codec.encode_packet(packet, self.level) for packet in packets]))

    def send_bytes(self, data: bytes) -> None:
        self.link.hand_over(data)
        self.world.settle()

    def collect(self) -> bool:
        """Take what was written; True if there was anything."""
        packets = decode_all(self.link.take(), self.level)
        self.packets.extend(packets)
        if self.acks and not self.closed:
            answers = {1: c.PUBACK, 2: c.PUBREC}
            acks = [Ack(answers[p.qos], p.packet_id) for p in packets if isinstance(p, Publish) and p.qos]
            acks += [Ack(c.PUBCOMP, p.packet_id) for p in packets if isinstance(p, Ack) and p.kind == c.PUBREL]
            if acks:
                self.link.hand_over(b"".join([codec.encode_packet(ack) for ack in acks]))
        return bool(packets)

    def take(self) -> list[Packet]:
        taken, self.packets = self.packets, []
        return taken

    def connect(self, client_id: str = "c", **fields: Any) -> Client:
        """CONNECT and expect to be let in."""
        self.level = fields.get("level", self.level)
        self.send(Connect(client_id, **{"level": self.level, **fields}))
        answer = self.packets.pop(0)
        assert isinstance(answer, ConnAck)
        assert answer.code == 0, answer
        self.connack = answer
        self.present = answer.session_present
        return self

    def subscribe(self, *filters: tuple[str, int] | str) -> list[int]:
        wanted = [(f, 1) if isinstance(f, str) else f for f in filters]
        self.next_id += 1
        self.send(Subscribe(self.next_id, wanted))
        answers = [p for p in self.packets if isinstance(p, SubAck)]
        assert [a.packet_id for a in answers] == [self.next_id]
        self.packets = [p for p in self.packets if not isinstance(p, SubAck)]
        return answers[0].codes

    def unsubscribe(self, *filters: str) -> None:
        self.next_id += 1
        self.send(Unsubscribe(self.next_id, list(filters)))
        five = self.level == c.LEVEL_5
        self.expect(UnsubAck(self.next_id, [0] * len(filters)) if five else Ack(c.UNSUBACK, self.next_id))

    def publish(self, topic: str, payload: bytes | str = b"x", qos: int = 1, retain: bool = False) -> None:
        self.next_id += 1
        data = payload.encode() if isinstance(payload, str) else payload
        self.send(Publish(topic.encode(), data, qos << 1 | int(retain), self.next_id if qos else 0))
        if qos == 2:
            self.expect(Ack(c.PUBREC, self.next_id))
            self.send(Ack(c.PUBREL, self.next_id))
        if qos:
            self.expect(Ack(c.PUBCOMP if qos == 2 else c.PUBACK, self.next_id))

    def expect(self, packet: Packet) -> None:
        """It came, and is taken away."""
        assert packet in self.packets
        self.packets.remove(packet)

    def disconnect(self) -> None:
        self.send(Disconnect())

    def messages(self) -> list[tuple[str, bytes]]:
        """(topic, payload) of what arrived since the last call."""
        return [(p.topic.decode(), p.payload) for p in self.publishes()]

    def publishes(self) -> list[Publish]:
        return [p for p in self.take() if isinstance(p, Publish)]


class World:
    """One gateway. `mode`: of FakePort, or `local` or `remote` for the real broker under `directory`."""

    def __init__(
        self,
        mode: str = "immediate",
        seed: int = 0,
        port: FakePort | None = None,
        directory: Path | None = None,
        **settings: Any,
    ) -> None:
        self.mode = mode
        self.seed = seed
        self.settings = settings
        self.clock = ManualClock()
        self.wheel = ManualWheel(self.clock)
        self.turn = ManualTurn()
        self.real: RealBroker | None = None
        self.directory = directory
        self.worlds: list[World] = [self]
        if mode in ("local", "remote"):
            assert directory is not None, "a real broker needs a directory"
            shell = (self.clock, self.turn, self.wheel)
            self.real = RealBroker(mode, directory, shell, {"mqtt": MqttRoutes})
        self.port = port or FakePort(seed, "late" if self.real else mode, {"mqtt": MqttRoutes})
        self.broker_port: BrokerPort = self.real.port if self.real else self.port
        self.clients: list[Client] = []
        self.started: list[GantryError | None] = []
        self.gateway = MqttGateway(Shell(self.broker_port, self.clock, self.turn, self.wheel), MqttConfig(**settings))
        self.gateway.start(self.started.append)
        self.settle()
        assert self.started == [None]

    def again(self, **settings: Any) -> World:
        """Another world of the same kind, with nothing in it."""
        directory = self.directory and self.directory.parent / f"again-{len(self.worlds)}"
        return self._follow(World(self.mode, self.seed, directory=directory, **settings))

    def _follow(self, world: World) -> World:
        world.worlds = self.worlds
        self.worlds.append(world)
        return world

    def restart(self, port: FakePort | None = None) -> World:
        """kill -9, and a new start on the same log; `port` is it if others have crashed it already."""
        if self.real is not None:
            return self._follow(World(self.mode, self.seed, directory=self.real.crash(), **self.settings))
        return self._follow(World(self.mode, self.seed, port or self.port.crash(self.seed), **self.settings))

    def close(self) -> None:
        """Let go of every world's files."""
        for world in self.worlds:
            if world.real is not None:
                world.real.close()

    def settle(self) -> None:
        """Until nothing happens any more."""
        for _ in range(10_000):
            self.turn.run_until_quiet()
            carried = self.real.run() if self.real is not None else self.port.run()
            self.turn.run_until_quiet()
            moved = [client.collect() for client in self.clients]
            if (
                not carried
                and not any(moved)
                and not self.port.pending
                and not self.port.turn
                and not self.turn.pending
            ):
                return
        raise AssertionError("never comes to rest")

    def advance(self, ms: int) -> None:
        self.wheel.advance(ms)
        self.settle()

    def client(self, client_id: str = "", acks: bool = True, level: int = c.LEVEL_3_1_1, **fields: Any) -> Client:
        client = Client(self, acks, level)
        if client_id:
            client.connect(client_id, **fields)
        return client

    def native(self, topic: str, tag: str = "", body: bytes = b"n", **pairs: str) -> None:
        """A message from another door."""
        pairs = {props.TAGS: tag, **pairs}
        self.broker_port.submit([Message(topic, body, props.encode(pairs), tag)], None, lambda token, result: None)
        self.settle()


def will(topic: str = "will/t", payload: bytes = b"gone", qos: int = 1, retain: bool = False) -> Will:
    return Will(topic.encode(), payload, qos, retain)
