"""Strangers by chance at every gateway's door: nothing is raised, each is closed in the end, nothing of theirs is kept, nobody is let in.

How many: see `tests.strangers`.
"""

from __future__ import annotations

import random
from base64 import b64encode
from collections.abc import Callable

import pytest

from gantrymq.auth.authority import Authority
from gantrymq.auth.logins import WRONG
from gantrymq.auth.rows import User
from gantrymq.net.api import Door
from gantrymq.net.host_names import HostNames
from gantrymq.net.testing import ManualTurn, ManualWheel
from gantrymq_gateways.amqp.door import AmqpDoor
from gantrymq_gateways.amqp.wire.constants import PROTOCOL_HEADER
from gantrymq_gateways.cloudevents.door import EventDoor
from gantrymq_gateways.mqtt.adapter import MqttDoor
from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.packets import Auth, Connect, PingReq, Publish, Subscribe, Will
from gateways.tests.amqp.peer import Server, call
from gateways.tests.cloudevents.rig import Rig
from gateways.tests.mqtt.world import World
from tests.strangers import LONGEST_S, MANY, SEED, attack, authority_of, quiet, twice

__all__ = ["quiet"]


class Refuses:
    """Every password is wrong."""

    def check(self, user: str, known: str, password: str, address: str, answer: Callable[[str], None]) -> None:
        answer(WRONG)

    def note_failure(self, user: str, address: str) -> None:
        pass


def authority() -> Authority:
    return authority_of(Refuses(), User("root", admin=True, password="pw"))


class Side:
    """One door: what makes it, and what is said to it rightly."""

    def __init__(self, make: Callable[[], Door], said: list[bytes], wheel: ManualWheel, turn: ManualTurn) -> None:
        self.make, self.said = make, said
        self.wheel, self.turn = wheel, turn


def mqtt() -> Side:
    world = World()
    world.gateway.authenticate_by(authority())
    will = Will(b"w", b"x", 1, True, {})
    said = [
        codec.encode_packet(Connect("c", True, 5, c.LEVEL_3_1_1, will, "root", b"x"), c.LEVEL_3_1_1),
        codec.encode_packet(Connect("", False, 5, c.LEVEL_5, None, "root", b"x", False, {p.AUTH_METHOD: "SCRAM-SHA-256", p.AUTH_DATA: b"n,,n=root,r=x"}), c.LEVEL_5),
        codec.encode_packet(Connect("c", True, 0, c.LEVEL_5, will, None, None, False, {p.RECEIVE_MAXIMUM: 1}), c.LEVEL_5),
        codec.encode_packet(Publish(b"t", b"payload", 2, 9), c.LEVEL_3_1_1),
        codec.encode_packet(Subscribe(1, [("#", 1)], {}), c.LEVEL_3_1_1),
        codec.encode_packet(Auth(0x18, {p.AUTH_METHOD: "SCRAM-SHA-256", p.AUTH_DATA: b"c=biws"}), c.LEVEL_5),
        codec.encode_packet(PingReq(), c.LEVEL_3_1_1),
        b"GET /mqtt HTTP/1.1\r\nhost: h\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: "
        + b64encode(bytes(16)) + b"\r\nsec-websocket-version: 13\r\nsec-websocket-protocol: mqtt\r\n\r\n",
    ]  # fmt: skip
    return Side(lambda: MqttDoor(world.gateway), said, world.wheel, world.turn)


def amqp() -> Side:
    server = Server()
    server.gateway.authenticate_by(authority())
    start = call(0, "connection.start-ok", [], "PLAIN", b"\0root\0x", "en_US")
    said = [
        PROTOCOL_HEADER, PROTOCOL_HEADER + start, PROTOCOL_HEADER + start, start,
        PROTOCOL_HEADER + call(0, "connection.start-ok", [], "AMQPLAIN", b"\x05LOGINS\0\0\0\x04root", "en_US"),
        PROTOCOL_HEADER + call(0, "connection.start-ok", [], "SCRAM-SHA-256", b"n,,n=root,r=x", "en_US"),
        PROTOCOL_HEADER + call(0, "connection.start-ok", [], "EXTERNAL", b"", "en_US"),
        call(0, "connection.secure-ok", b"x"), call(0, "connection.tune-ok", 0, 131072, 0), call(0, "connection.open", "/", "", False),
        call(1, "channel.open", ""), call(1, "queue.declare", 0, "q", False, True, False, False, False, []),
    ]  # fmt: skip
    settings = server.connect().settings
    return Side(lambda: AmqpDoor(server.gateway, settings), said, server.wheel, server.turn)


def cloudevents() -> Side:
    known = authority()
    rig = Rig(authority=known)
    head = b"host: h\r\nce-id: 1\r\nce-source: /s\r\nce-type: t\r\nce-specversion: 1.0\r\n"
    basic = b"authorization: Basic " + b64encode(b"root:x") + b"\r\n"
    said = [
        b"POST /topics/t HTTP/1.1\r\n" + head + b"content-length: 4\r\n\r\nbody",
        b"POST /topics/t HTTP/1.1\r\n" + head + basic + b"content-length: 4\r\n\r\nbody",
        b"POST /topics/t HTTP/1.1\r\n" + head + b"authorization: Bearer a.b.c\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
        b"GET /subscriptions HTTP/1.1\r\nhost: h\r\n" + basic + b"\r\n", b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n",
        b"OPTIONS /topics/t HTTP/1.1\r\nhost: h\r\nwebhook-request-origin: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]  # fmt: skip
    names = HostNames("127.0.0.1", ("h",))
    return Side(lambda: EventDoor(rig.publisher, rig.registry, names, False, known), said, rig.wheel, rig.turn)


def check(make: Callable[[], Side], seed: int, count: int) -> None:
    side, chance = make(), random.Random(seed)
    twice(lambda half: attack(side.make, side.said, chance, (side.wheel, side.turn), half), count)


DOORS = pytest.mark.parametrize("make", [mqtt, amqp, cloudevents])


@DOORS
def test_strangers(make: Callable[[], Side]) -> None:
    check(make, 1, 200)


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S)
@DOORS
def test_many_strangers(make: Callable[[], Side]) -> None:
    check(make, SEED, MANY)
