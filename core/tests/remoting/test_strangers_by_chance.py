"""Strangers by chance at the doors of broker and nameserver: nothing is raised, each is closed or answered, nothing of theirs is kept, nobody is let in.

How many: see `tests.strangers`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gantrymq.auth.authority import Authority
from gantrymq.auth.members.handshake import Applicant
from gantrymq.auth.members.key import parse_key
from gantrymq.auth.rows import User
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
from tests.strangers import LONGEST_S, MANY, SEED, attack, authority_of, quiet, say, twice

__all__ = ["quiet"]

KEY, OTHER = parse_key("0123456789abcdef" * 4), parse_key("fedcba9876543210" * 4)
REGISTERS = {"brokerName": "x", "brokerAddr": "h:1", "clusterName": "C", "haServerAddr": "h:2", "brokerId": "0"}
TABLE = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{},"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5}}}'
HELD_MAX = 64 * 1024 + 4 * 70_000
"""Of one that names root, who has a secret: its frame may be larger, as the signature is over all of it. What is said has no more in one frame."""


class Plain:
    """Secrets as they are."""

    def open(self, user: str, sealed: str) -> str:
        return sealed

    def note_failure(self, user: str, address: str) -> None:
        pass


def authority() -> Authority:
    found = authority_of(Plain(), User("root", admin=True, secret="right"))
    found.keys = Plain()  # type: ignore[assignment]
    return found


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


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def at_a_broker(bench: Bench, seed: int, count: int) -> None:
    context = Context(bench.wheel, bench.turn)
    session = partial(GatewaySession, bench.broker)
    server = BrokerServer(bench.broker, context, session, authority(), KEY)  # type: ignore[arg-type]
    server.set_address("127.0.0.1:10911")
    chance, said = random.Random(seed), requests("wrong")

    def half(count: int) -> None:
        attack(server.accept, said, chance, (bench.wheel, bench.turn), count, trusted=0.5, held_max=HELD_MAX)
        assert not server.guarded

    twice(half, count)
    assert bench.broker.tables.rows("x") == {}


def test_with_a_key_this_machine_reads_nothing_of_brokers_by_its_address(bench: Bench) -> None:
    """What they read of each other was answered to it, and it counted as known from then on."""
    context = Context(bench.wheel, bench.turn)
    session = partial(GatewaySession, bench.broker)
    for key, said in ((KEY, True), (None, False)):
        server = BrokerServer(bench.broker, context, session, authority(), key)  # type: ignore[arg-type]
        server.set_address("127.0.0.1:10911")
        for code in (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
            link = FakeLink(bench.wheel, bench.turn, "127.0.0.1:5000")
            link.peer_is_trusted = link.peer_is_loopback = True
            link.attach(Threshold(server.accept(), Terms(10_000, 65_536, bench.wheel)))
            link.feed(frame(Command(code, {}, b"", 8)))
            assert isinstance(link.door, Threshold) is said
            link.lose()


def at_a_nameserver(seed: int, count: int) -> None:
    wheel = ManualWheel(ManualClock())
    state = State(wheel, False, lambda done: done(""), KEY)
    chance, said = random.Random(seed), requests("wrong")

    def half(count: int) -> None:
        for _ in range(count):
            link = FakeLink(wheel, peer="192.0.2.9:5000")
            link.peer_is_trusted = chance.random() < 0.5
            link.attach(NameserverDoor(state))
            for _ in say(link, said, chance):
                assert not state.routes.groups
            link.lose()
        assert not state.routes.groups

    twice(half, count)


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
