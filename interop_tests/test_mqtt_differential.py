"""The same scripted packets to Debian's Mosquitto and to a server of ours: the same answers, but for the differences that are listed."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.codec import ConnAck, SubAck, UnsubAck
from gantrymq_gateways.mqtt.wire.packets import Ack, Connect, Disconnect, Publish, Subscribe, Unsubscribe, Will
from interop_tests.running import Gantry
from interop_tests.test_mqtt_bridge_out import MOSQUITTO, OtherSide
from interop_tests.waiting import until

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="there is no mosquitto here (Debian: apt install mosquitto)")

WAIT_S: Final = 30.0
"""Only ends what hangs."""

PINGREQ: Final = b"\xc0\x00"
CLOSED: Final = ("closed",)
NO_SUBSCRIBERS: Final = 0x10
PUBLISHED: Final = (c.PUBACK, c.PUBREC, c.PUBCOMP)

Answer = tuple[object, ...]


@dataclass(frozen=True)
class Step:
    """`data` (packets, or bytes that are none) goes out on connection `on`, after which so many answers are waited for there and elsewhere. `drop`: the
    connection is closed instead."""

    on: str
    data: Sequence[codec.Packet] | bytes = ()
    answers: int = 0
    elsewhere: dict[str, int] = field(default_factory=dict)
    drop: bool = False


def shown(packet: codec.Packet) -> Answer:
    """A packet as it is compared: without identifiers that the server chooses, and without what it says of its own limits."""
    if isinstance(packet, ConnAck):
        return "CONNACK", packet.code, packet.session_present
    if isinstance(packet, SubAck):
        return "SUBACK", packet.packet_id, *packet.codes
    if isinstance(packet, UnsubAck):
        return "UNSUBACK", packet.packet_id, *packet.codes
    if isinstance(packet, Disconnect):
        return "DISCONNECT", int(packet.reason)
    if isinstance(packet, Publish):
        told = sorted((packet.properties or {}).items())
        return "PUBLISH", packet.topic, packet.payload, packet.qos, packet.retain, *told
    if isinstance(packet, Ack):
        number = 0 if packet.kind == c.PUBREL else packet.packet_id
        # "No matching subscribers" is success: who counts subscribers of other doors, too, does not say it.
        return packet.kind, number, 0 if packet.reason == NO_SUBSCRIBERS else packet.reason
    return (type(packet).__name__,)


class Peer:
    """One connection of a script; it acknowledges what it gets."""

    def __init__(self, address: tuple[str, int], level: int) -> None:
        self.sock = socket.create_connection(address, WAIT_S)
        self.level = level
        self.answers: list[Answer] = []
        self.pings = 0
        self._data = b""

    def send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return  # closed: reading tells

    def wait(self, count: int) -> None:
        """Until so many answers have come in all, or none will."""
        while len(self.answers) < count and CLOSED not in self.answers:
            self._read()

    def rest(self) -> None:
        """What comes in front of the answer to PINGREQ."""
        pings = self.pings
        self.send(PINGREQ)
        while self.pings == pings and CLOSED not in self.answers:
            self._read()

    def _read(self) -> None:
        try:
            part = self.sock.recv(65_536)
        except ConnectionResetError:
            part = b""
        if not part:
            self.answers.append(CLOSED)
            return
        self._data += part
        while (found := codec.packet_end(self._data, 0)) is not None and found[1] <= len(self._data):
            body, end = found
            if self._data[0] == 0xD0:
                self.pings += 1
            else:
                self._take(codec.decode_packet(self._data, 0, body, end, self.level))
            self._data = self._data[end:]

    def _take(self, packet: codec.Packet) -> None:
        self.answers.append(shown(packet))
        if isinstance(packet, Publish) and packet.qos:
            self.send(codec.encode_packet(Ack(c.PUBACK if packet.qos == 1 else c.PUBREC, packet.packet_id), self.level))
        elif isinstance(packet, Ack) and packet.kind == c.PUBREL:
            self.send(codec.encode_packet(Ack(c.PUBCOMP, packet.packet_id), self.level))


def play(address: tuple[str, int], level: int, steps: list[Step]) -> dict[str, list[Answer]]:
    """Answers by connection."""
    peers: dict[str, Peer] = {}
    wanted: dict[str, int] = {}
    try:
        for step in steps:
            peer = peers.get(step.on)
            if peer is None:
                peer = peers[step.on] = Peer(address, level)
            if step.drop:
                peer.sock.close()
            elif isinstance(step.data, bytes):
                peer.send(step.data)
            else:
                peer.send(b"".join([codec.encode_packet(packet, level) for packet in step.data]))
            for name, count in {step.on: step.answers, **step.elsewhere}.items():
                wanted[name] = wanted.get(name, 0) + count
                if not step.drop or name != step.on:
                    peers[name].wait(wanted[name])
        for peer in peers.values():
            if peer.sock.fileno() >= 0 and CLOSED not in peer.answers:
                peer.rest()
        return {name: peer.answers for name, peer in peers.items()}
    finally:
        for peer in peers.values():
            peer.sock.close()


def apart(answers: dict[str, list[Answer]]) -> dict[str, tuple[list[Answer], list[Answer]]]:
    """Acknowledgements of what a client published, and the rest: their order among each other is nobody's promise. Mosquitto delivers first."""
    return {
        name: ([one for one in found if one[0] in PUBLISHED], [one for one in found if one[0] not in PUBLISHED])
        for name, found in answers.items()
    }


def connect(level: int, name: str = "", clean: bool = True, **fields: Any) -> Connect:
    if level == c.LEVEL_5 and not clean:
        fields.setdefault("properties", {p.SESSION_EXPIRY: 100})
    return Connect(name, clean, 60, level, **fields)


def scripts(level: int) -> dict[str, list[Step]]:
    """By name. Topics and client ids are those of the script."""
    five = level == c.LEVEL_5
    acks = [Ack(c.PUBREL, 3)]

    def begin(name: str, on: str = "a", **fields: Any) -> Step:
        return Step(on, [connect(level, name, **fields)], 1)

    def bad(name: str, data: bytes) -> list[Step]:
        return [begin(name), Step("a", data, 3)]

    found = {
        "two connects": [begin("d1"), Step("a", [connect(level, "d1")], 3)],
        "no client id": [begin("")],
        "no client id, kept": [Step("a", [connect(level, "", False)], 1 if five else 2)],
        "subscribe": [
            begin("d2"),
            Step("a", [Subscribe(5, [("d2/a", 0), ("d2/#", 1), ("d2/+", 2)])], 1),
            Step("a", [Unsubscribe(6, ["d2/a", "unknown"])], 1),
        ],
        "publish": [
            begin("d3"),
            Step("a", [Subscribe(1, [("d3/#", 2)])], 1),
            Step("a", [Publish(b"d3/0", b"0", 0, 0)], 1),
            Step("a", [Publish(b"d3/1", b"1", 2, 2)], 2),
            Step("a", [Publish(b"d3/2", b"2", 4, 3)], 1),
            Step("a", acks, 3),
        ],
        "a lower QoS": [
            begin("d4"),
            Step("a", [Subscribe(1, [("d4/0", 0), ("d4/1", 1)])], 1),
            Step("a", [Publish(b"d4/0", b"x", 2, 2)], 2),
            Step("a", [Publish(b"d4/1", b"", 4, 3)], 1),
            Step("a", acks, 2),
        ],
        "QoS 2 twice": [
            begin("d5"),
            Step("a", [Subscribe(1, [("d5", 0)])], 1),
            Step("a", [Publish(b"d5", b"x", 4, 3)], 1),
            Step("a", [Publish(b"d5", b"x", 12, 3)], 1),
            Step("a", acks, 2),
        ],
        "retained": [
            begin("d6"),
            Step("a", [Publish(b"d6/r", b"kept", 3, 2)], 1),
            Step("a", [Subscribe(3, [("d6/+", 1)])], 2),
            Step("a", [Publish(b"d6/r", b"live", 3, 4)], 2),
            Step("a", [Publish(b"d6/r", b"", 3, 5)], 2),
            Step("a", [Subscribe(6, [("d6/#", 1)])], 1),
        ],
        "a session": [
            begin("d7", clean=False),
            Step("a", [Subscribe(1, [("d7/#", 1)])], 1),
            Step("a", [Disconnect()], 1),
            begin("d7p", "b"),
            Step("b", [Publish(b"d7/x", b"away", 2, 2)], 1),
            Step("c", [connect(level, "d7", False)], 2),
            Step("c", [Disconnect()], 1),
            begin("d7", "d"),
        ],
        "taken over": [begin("d8"), begin("d8", "b"), Step("a", b"", 2 if five else 1)],
        "a will": [
            begin("d9"),
            Step("a", [Subscribe(1, [("d9/#", 1)])], 1),
            begin("d9w", "b", will=Will(b"d9/w", b"gone", 1, False)),
            Step("b", drop=True, elsewhere={"a": 1}),
        ],
        "a will that is discarded": [
            begin("d10"),
            Step("a", [Subscribe(1, [("d10/#", 1)])], 1),
            begin("d10w", "b", will=Will(b"d10/w", b"gone", 1, False)),
            Step("b", [Disconnect()], 1),
        ],
        "unknown identifiers": [
            begin("d11"),
            Step("a", [Ack(c.PUBREL, 9)], 1),
            Step("a", [Ack(c.PUBACK, 9), Ack(c.PUBCOMP, 9)]),
        ],
        "overlapping filters and QoS 0": [
            begin("d12"),
            Step("a", [Subscribe(1, [("d12/x", 0), ("d12/x", 0)])], 1),
            Step("a", [Publish(b"d12/x", b"once", 0, 0)], 1),
        ],
        "a wildcard in a topic": bad("d13", b"\x30\x06\x00\x03a/#x" if not five else b"\x30\x07\x00\x03a/#\x00x"),
        "QoS 3": bad("d14", b"\x36\x06\x00\x01a\x00\x01x" if not five else b"\x36\x07\x00\x01a\x00\x01\x00x"),
        "identifier 0": bad("d15", b"\x32\x06\x00\x01a\x00\x00x" if not five else b"\x32\x07\x00\x01a\x00\x00\x00x"),
        "SUBSCRIBE without filters": bad("d16", b"\x82\x02\x00\x01" if not five else b"\x82\x03\x00\x01\x00"),
        "SUBSCRIBE with wrong flags": bad("d17", b"\x80\x06\x00\x01\x00\x01a\x00"),
        "a filter that is none": bad(
            "d18", b"\x82\x08\x00\x01\x00\x03#/a\x00" if not five else b"\x82\x09\x00\x01\x00\x00\x03#/a\x00"
        ),
        "a packet of the server": bad("d19", b"\x20\x02\x00\x00"),
        "packet type 0": bad("d20", b"\x00\x00"),
        "malformed UTF-8": bad("d21", b"\x30\x04\x00\x02\xc3\x28" if not five else b"\x30\x05\x00\x02\xc3\x28\x00"),
        "no CONNECT first": [Step("a", PINGREQ, 2)],
        "another protocol": [Step("a", b"\x10\x0d\x00\x04MQTX\x04\x02\x00\x3c\x00\x01x", 1)],
        "reserved flag of CONNECT": [Step("a", b"\x10\x0d\x00\x04MQTT\x04\x03\x00\x3c\x00\x01x", 1)],
    }
    if not five:
        found["an unknown level"] = [Step("a", b"\x10\x0d\x00\x04MQTT\x09\x02\x00\x3c\x00\x01x", 2)]
    return found | (scripts_of_five() if five else {})


def scripts_of_five() -> dict[str, list[Step]]:
    """What only 5.0 has."""
    level = c.LEVEL_5

    def begin(name: str, **fields: Any) -> Step:
        return Step("a", [connect(level, name, **fields)], 1)

    told = {p.CONTENT_TYPE: "a/b", p.RESPONSE_TOPIC: "r", p.CORRELATION_DATA: b"\1", p.USER: [("k", "1"), ("k", "2")]}
    return {
        "properties": [
            begin("e1"),
            Step("a", [Subscribe(1, [("e1", 1)], {p.SUBSCRIPTION_ID: [7]})], 1),
            Step("a", [Publish(b"e1", b"x", 2, 2, told)], 2),
        ],
        "no local": [
            begin("e2"),
            Step("a", [Subscribe(1, [("e2", 1 | c.OPTION_NO_LOCAL)])], 1),
            Step("a", [Publish(b"e2", b"x", 2, 2)], 1),
        ],
        "retain as published": [
            begin("e3"),
            Step("a", [Subscribe(1, [("e3", 1 | c.OPTION_RETAIN_AS_PUBLISHED)])], 1),
            Step("a", [Publish(b"e3", b"x", 3, 2)], 2),
            Step("a", [Publish(b"e3", b"", 3, 3)], 2),
        ],
        "retain handling": [
            begin("e4"),
            Step("a", [Publish(b"e4", b"x", 3, 2)], 1),
            Step("a", [Subscribe(3, [("e4", 1 | 0x20)])], 1),
            Step("a", [Subscribe(4, [("e4", 1 | 0x10)])], 1),
            Step("a", [Subscribe(5, [("e4", 1)])], 2),
        ],
        "a topic alias": [
            begin("e5"),
            Step("a", [Subscribe(1, [("e5", 0)])], 1),
            Step(
                "a", [Publish(b"e5", b"1", 0, 0, {p.TOPIC_ALIAS: 1}), Publish(b"", b"2", 0, 0, {p.TOPIC_ALIAS: 1})], 2
            ),
        ],
        "an alias that is unknown": [begin("e6"), Step("a", [Publish(b"", b"2", 0, 0, {p.TOPIC_ALIAS: 2})], 2)],
        "a session that ends": [
            begin("e7", clean=False),
            Step("a", [Disconnect(0, {p.SESSION_EXPIRY: 0})], 1),
            Step("b", [connect(level, "e7", False)], 1),
            Step("b", [Disconnect(0, {p.SESSION_EXPIRY: 0})], 1),
        ],
        "DISCONNECT with will": [
            begin("e8"),
            Step("a", [Subscribe(1, [("e8", 1)])], 1),
            Step("b", [connect(level, "e8w", will=Will(b"e8", b"gone", 1, False))], 1),
            Step("b", [Disconnect(4)], 1, {"a": 1}),
        ],
    }


ACCEPTED: Final[dict[tuple[int, str], str]] = {
    (c.LEVEL_5, "two connects"): "ours says why in a DISCONNECT, 0x82 [MQTT5-3.1.0-2]; Mosquitto closes",
    (c.LEVEL_5, "taken over"): "ours says 0x8E [MQTT5-3.1.4-3]; Mosquitto closes",
    (c.LEVEL_5, "unknown identifiers"): "ours says 0x92 (MQTT 5.0 3.7.2.1); Mosquitto says success",
    (c.LEVEL_5, "a wildcard in a topic"): "0x90, topic name invalid; Mosquitto: 0x82",
    (c.LEVEL_5, "SUBSCRIBE without filters"): "0x82 [MQTT5-3.8.3-2]; Mosquitto: 0x81",
    (c.LEVEL_5, "a filter that is none"): "0x8F, topic filter invalid; Mosquitto: 0x81",
    (c.LEVEL_5, "a packet of the server"): "ours says why, 0x82; Mosquitto closes",
    (c.LEVEL_5, "packet type 0"): "0x81, malformed; Mosquitto: 0x82",
}
"""(level, script) -> how the answers differ, and where the standard says so."""


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherSide]:
    other = OtherSide(tmp_path_factory.mktemp("mosquitto")).start()
    try:
        until(lambda: socket.create_connection(other.address(""), 1), ignored=(OSError,)).close()
        yield other
    finally:
        other.kill()


CASES = [(level, name) for level in (c.LEVEL_3_1_1, c.LEVEL_5) for name in scripts(level)]


@pytest.mark.parametrize(("level", "name"), CASES, ids=[f"{level}-{name.replace(' ', '_')}" for level, name in CASES])
def test_the_same_answers(server: Gantry, mosquitto: OtherSide, level: int, name: str) -> None:
    steps = scripts(level)[name]
    theirs = apart(play(mosquitto.address("mqtt"), level, steps))
    ours = apart(play(server.address("mqtt"), level, steps))
    if (level, name) in ACCEPTED:
        assert ours != theirs, "no difference any more: take it from the list"
    else:
        assert ours == theirs
