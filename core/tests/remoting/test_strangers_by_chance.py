"""Strangers by chance at the doors of broker and nameserver: nothing is raised, each is closed or answered, nothing of theirs is kept, nobody is let in.

200 conversations a door every day; 20,000, which are some 100,000 reads, marked slow; as many as GANTRY_STRANGERS says, from seed
GANTRY_STRANGERS_SEED on, where somebody wants more.
"""

from __future__ import annotations

import gc
import logging
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from gantrymq.auth.audit import Audit
from gantrymq.auth.authority import Authority
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.members.handshake import Applicant
from gantrymq.auth.members.key import parse_key
from gantrymq.auth.rows import POLICIES, USERS, User, encode
from gantrymq.auth.signatures import ACCESS_KEY, SIGNATURE, sign
from gantrymq.cluster.wire.codec import PROTOCOL_VERSION, GatewayCode, encode_body
from gantrymq.cluster.wire.server import GatewaySession
from gantrymq.net.doors.threshold import Terms, Threshold
from gantrymq.net.testing import FakeLink, ManualClock, ManualWheel
from gantrymq.remoting.codec import Command
from gantrymq.remoting.codec import encode as frame
from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.gateway_codes import MEMBER_BEGIN, MEMBER_PROVE
from gantrymq.remoting.server.broker_door import BrokerServer
from gantrymq_nameserver.door import NameserverDoor, State
from tests.remoting.bench import Bench, Context

UNKNOWN_MS, UNKNOWN_BYTES = 10_000, 64 * 1024
MANY, SEED = int(os.environ.get("GANTRY_STRANGERS", "20000")), int(os.environ.get("GANTRY_STRANGERS_SEED", "2"))
LONGEST_S = 900 if MANY <= 20_000 else 0
TOGETHER = 50
OBJECTS_MAX = 3_000
"""More than before the second half: caches that fill up to their own limits."""

KEY, OTHER = parse_key("0123456789abcdef" * 4), parse_key("fedcba9876543210" * 4)
REGISTERS = {"brokerName": "x", "brokerAddr": "h:1", "clusterName": "C", "haServerAddr": "h:2", "brokerId": "0"}
TABLE = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{},"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5}}}'


class Plain:
    """Secrets as they are."""

    def open(self, user: str, sealed: str) -> str:
        return sealed

    def note_failure(self, user: str, address: str) -> None:
        pass


def authority_of() -> Authority:
    audit = Audit(ManualWheel(ManualClock()), lambda: 0, "test")
    authority = Authority(AuthConfig(enabled=True), Plain(), lambda callback: callback(), audit)  # type: ignore[arg-type]
    authority.keys = Plain()  # type: ignore[assignment]
    authority.load(USERS, {"root": encode(User("root", admin=True, secret="right"))})
    authority.load(POLICIES, {})
    return authority


def requests(wrong: str) -> list[bytes]:
    """What somebody says who has neither secret nor key."""
    found = []
    for code in (
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.PULL_MESSAGE,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.AUTH_LIST_USER,
    ):
        fields = {"topic": "t", "a": "g", "b": "t", "e": "0", "consumerGroup": "g", ACCESS_KEY: "root"}
        found.append(frame(Command(code, fields | {SIGNATURE: sign(wrong, fields, b"x")}, b"x", 7)))
        found.append(frame(Command(code, {"topic": "t"}, b"x", 8)))
    applicant = Applicant(OTHER, "gateway")
    knows_the_id = applicant.begin() | {"key": KEY.id}
    return [
        *found, frame(Command(MEMBER_BEGIN, applicant.begin())), frame(Command(MEMBER_BEGIN, knows_the_id)),
        frame(Command(MEMBER_PROVE, {"proof": "00" * 32})), frame(Command(GatewayCode.HELLO, None, encode_body([PROTOCOL_VERSION]))),
        frame(Command(GatewayCode.PUT, None, encode_body(["x", [["k", b"v"]]]))),
        frame(Command(RequestCode.REGISTER_BROKER, REGISTERS, TABLE)), frame(Command(RequestCode.UNREGISTER_BROKER, REGISTERS)),
        b"\x16\x03\x01\x02\x00\x01", b"\x00\x00\x00\x10\x00\x00\x00\x0c",
    ]  # fmt: skip


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


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def say(link: FakeLink, said: list[bytes], chance: random.Random) -> None:
    data = b"".join([changed(chance.choice(said), chance) for _ in range(chance.randint(1, 4))])
    if chance.random() < 0.1:
        data = chance.randbytes(chance.randrange(200))
    while data and link.closed_by is None:
        size = chance.choice((1, 7, 64, len(data), len(data)))
        link.feed(data[:size])
        data = data[size:]


def twice(attack: Callable[[int], None], count: int) -> None:
    attack(count // 2)
    gc.collect()
    before = len(gc.get_objects())
    attack(count - count // 2)
    gc.collect()
    assert len(gc.get_objects()) - before < OBJECTS_MAX


def at_a_broker(bench: Bench, seed: int, count: int) -> None:
    context = Context(bench.wheel, bench.turn)
    session = partial(GatewaySession, bench.broker)
    server = BrokerServer(bench.broker, context, session, authority_of(), KEY)  # type: ignore[arg-type]
    server.set_address("127.0.0.1:10911")
    chance, said = random.Random(seed), requests("wrong")

    def attack(count: int) -> None:
        for first in range(0, count, TOGETHER):
            links = []
            for _ in range(min(TOGETHER, count - first)):
                link = FakeLink(
                    bench.wheel, bench.turn, f"192.0.2.{chance.randrange(1, 250)}:{chance.randrange(1024, 65536)}"
                )
                link.peer_is_loopback = link.peer_is_trusted = chance.random() < 0.5
                link.attach(Threshold(server.accept(), Terms(UNKNOWN_MS, UNKNOWN_BYTES, bench.wheel)))
                say(link, said, chance)
                assert isinstance(link.door, Threshold), "a stranger was let in"
                assert link.door.inbound_bytes() <= UNKNOWN_BYTES
                links.append(link)
            bench.wheel.advance(UNKNOWN_MS + 1_000)
            bench.turn.run_until_quiet()
            assert [link for link in links if link.closed_by is None] == [], "a stranger may stay"
        assert not server.guarded

    twice(attack, count)
    assert bench.broker.tables.rows("x") == {}


def at_a_nameserver(seed: int, count: int) -> None:
    wheel = ManualWheel(ManualClock())
    state = State(wheel, False, lambda done: done(""), KEY)
    chance, said = random.Random(seed), requests("wrong")

    def attack(count: int) -> None:
        for _ in range(count):
            link = FakeLink(wheel, peer="192.0.2.9:5000")
            link.peer_is_trusted = chance.random() < 0.5
            link.attach(NameserverDoor(state))
            say(link, said, chance)
            link.lose()
        assert not state.routes.groups

    twice(attack, count)


def test_strangers_at_a_broker(bench: Bench) -> None:
    at_a_broker(bench, 1, 200)


def test_strangers_at_a_nameserver() -> None:
    at_a_nameserver(1, 200)


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S)
def test_many_strangers_at_a_broker(bench: Bench) -> None:
    at_a_broker(bench, SEED, MANY)


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S)
def test_many_strangers_at_a_nameserver() -> None:
    at_a_nameserver(SEED, MANY)
