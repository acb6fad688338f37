"""Strangers by chance at every gateway's door: nothing is raised, each is closed in the end, nothing of theirs is kept, nobody is let in.

200 conversations a door every day; 20,000, which are some 100,000 reads, marked slow; as many as GANTRY_STRANGERS says, from seed
GANTRY_STRANGERS_SEED on, where somebody wants more.
"""

from __future__ import annotations

import gc
import logging
import os
import random
from base64 import b64encode
from collections.abc import Callable, Iterator

import pytest

from gantrymq.auth.audit import Audit
from gantrymq.auth.authority import Authority
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.logins import WRONG
from gantrymq.auth.rows import POLICIES, USERS, User, encode
from gantrymq.net.api import Door
from gantrymq.net.doors.threshold import Terms, Threshold
from gantrymq.net.host_names import HostNames
from gantrymq.net.testing import FakeLink, ManualClock, ManualTurn, ManualWheel
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

UNKNOWN_MS, UNKNOWN_BYTES = 10_000, 64 * 1024
MANY, SEED = int(os.environ.get("GANTRY_STRANGERS", "20000")), int(os.environ.get("GANTRY_STRANGERS_SEED", "2"))
LONGEST_S = 900 if MANY <= 20_000 else 0
TOGETHER = 50
"""Strangers who are there at once, until their time is over."""
OBJECTS_MAX = 3_000
"""More than before the second half: caches that fill up to their own limits."""


class Refuses:
    """Every password is wrong."""

    def check(self, user: str, known: str, password: str, address: str, answer: Callable[[str], None]) -> None:
        answer(WRONG)

    def note_failure(self, user: str, address: str) -> None:
        pass


def authority_of() -> Authority:
    audit = Audit(ManualWheel(ManualClock()), lambda: 0, "test")
    authority = Authority(AuthConfig(enabled=True), Refuses(), lambda callback: callback(), audit)  # type: ignore[arg-type]
    authority.load(USERS, {"root": encode(User("root", admin=True, password="pw"))})
    authority.load(POLICIES, {})
    return authority


class Side:
    """One door: what makes it, and what is said to it rightly."""

    def __init__(self, make: Callable[[], Door], said: list[bytes], wheel: ManualWheel, turn: ManualTurn) -> None:
        self.make, self.said = make, said
        self.wheel, self.turn = wheel, turn


def mqtt() -> Side:
    world = World()
    world.gateway.authenticate_by(authority_of())
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
    server.gateway.authenticate_by(authority_of())
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
    authority = authority_of()
    rig = Rig(authority=authority)
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
    return Side(lambda: EventDoor(rig.publisher, rig.registry, names, False, authority), said, rig.wheel, rig.turn)


def changed(data: bytes, chance: random.Random) -> bytes:
    """Some of it is otherwise."""
    out = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        at = chance.randrange(len(out) + 1)
        what = chance.randrange(5)
        if what == 0 and at < len(out):
            out[at] = chance.randrange(256)
        elif what == 1:
            del out[at : at + chance.randint(1, 4)]
        elif what == 2:
            out[at:at] = chance.randbytes(chance.choice((1, 2, 9)))
        elif what == 3 and at < len(out):
            out[at] ^= 1 << chance.randrange(8)
        elif chance.random() < 0.05:
            out[at:at] = bytes([chance.randrange(256)]) * chance.choice((5_000, 70_000))
    return bytes(out)


def converse(side: Side, chance: random.Random) -> FakeLink:
    """One stranger says a few things in pieces, and stays."""
    link = FakeLink(side.wheel, side.turn, f"192.0.2.{chance.randrange(1, 250)}:{chance.randrange(1024, 65536)}")
    link.peer_is_loopback = link.peer_is_trusted = False
    link.attach(Threshold(side.make(), Terms(UNKNOWN_MS, UNKNOWN_BYTES, side.wheel)))
    data = b"".join([changed(chance.choice(side.said), chance) for _ in range(chance.randint(1, 3))])
    if chance.random() < 0.1:
        data = chance.randbytes(chance.randrange(200))
    while data and link.closed_by is None:
        size = chance.choice((1, 7, 64, len(data)))
        link.feed(data[:size])
        data = data[size:]
        assert link.door is not None
        assert isinstance(link.door, Threshold), "a stranger was let in"
        assert link.door.inbound_bytes() <= UNKNOWN_BYTES
    return link


def attack(side: Side, chance: random.Random, count: int) -> None:
    for first in range(0, count, TOGETHER):
        links = [converse(side, chance) for _ in range(min(TOGETHER, count - first))]
        for link in links:
            if link.closed_by is None and chance.random() < 0.2:
                link.peer_closes()
        side.wheel.advance(UNKNOWN_MS + 1_000)
        side.turn.run_until_quiet()
        assert [link for link in links if link.closed_by is None] == [], "a stranger may stay"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def check(make: Callable[[], Side], seed: int, count: int) -> None:
    side, chance = make(), random.Random(seed)
    attack(side, chance, count // 2)
    gc.collect()
    before = len(gc.get_objects())
    attack(side, chance, count - count // 2)
    gc.collect()
    assert len(gc.get_objects()) - before < OBJECTS_MAX


DOORS = pytest.mark.parametrize("make", [mqtt, amqp, cloudevents])


@DOORS
def test_strangers(make: Callable[[], Side]) -> None:
    check(make, 1, 200)


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S)
@DOORS
def test_many_strangers(make: Callable[[], Side]) -> None:
    check(make, SEED, MANY)
