"""Rates of an address and of a user at every door, over sockets: connections above one are refused, requests and bytes wait."""

from __future__ import annotations

import gc
import socket
import struct
import time
from base64 import b64encode
from collections.abc import Iterator

import pytest

from gantrymq.auth.signatures import ACCESS_KEY, SIGNATURE, sign
from interop_tests import raw_peers
from interop_tests.accounts import ADMIN, PASSWORD, Guarded
from interop_tests.bench import remoting_wire
from interop_tests.raw_peers import Raw, frame, method, mqtt_text, read_frame

GET_MAX_OFFSET = 30
OWN = "127.0.0.1"
DOORS = ("mqtt", "amqp", "cloudevents", "broker", "nameserver", "metrics")
COMES, PER_S, REQUESTS = 30, 50, 150
USER_COMES_PER_S = 5
BYTES_PER_S, BODY = 20_000, 1_000
USERS = ("alice", "bob")


def other() -> str:
    """An address of this machine that is none of loopback: whoever comes from there to 127.0.0.1 is a stranger."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        try:
            found.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no address but loopback's")
        address: str = found.getsockname()[0]
    if address.startswith("127."):
        pytest.skip("this machine has no address but loopback's")
    return address


def server_of(tmp_path_factory: pytest.TempPathFactory, *settings: str) -> Iterator[Guarded]:
    gantry = Guarded(tmp_path_factory.mktemp("gantry"), settings=settings)
    try:
        gantry.start()
        for name in USERS:
            gantry.add_user(name, f"{name}-pass", ("topic:t", "all"), ("queue:*", "all"))
        yield gantry
    finally:
        gantry.stop()
        gc.collect()
        assert "Traceback" not in gantry.log()


class Peer:
    """One connection, whose requests are each answered once."""

    def __init__(self, server: Guarded, door: str, source: str, user: str = ADMIN, password: str = PASSWORD) -> None:
        self.door = door
        self.user = f"{user}:{password}"
        self.raw = Raw(server, door, source=source)
        self.refused = ""
        """Why it is not let in."""
        try:
            self._begin(user.encode(), password.encode())
        except (AssertionError, ConnectionError) as error:
            self.refused = str(error) or type(error).__name__
        self._got = b""

    def _begin(self, user: bytes, password: bytes) -> None:
        raw = self.raw
        if self.door == "mqtt":
            body = b"\x00\x04MQTT\x04\xc2\x00\x00" + mqtt_text(b"") + mqtt_text(user) + mqtt_text(password)
            raw.send(b"\x10" + bytes([len(body)]) + body)
            answer = raw.exactly(4)
            assert answer == b"\x20\x02\x00\x00", answer
        elif self.door == "amqp":
            raw.send(raw_peers.AMQP_HEADER)
            read_frame(raw)
            raw.send(raw_peers.amqp_login(b"\x00" + user + b"\x00" + password))
            tune = read_frame(raw)[2]
            raw.send(method(0, 10, 31, struct.pack(">HIH", 2047, struct.unpack_from(">I", tune, 6)[0], 0)))
            raw.send(method(0, 10, 40, b"\x01/\x00\x00"))
            answer = read_frame(raw)[2]
            assert answer[:4] == b"\x00\x0a\x00\x29", answer  # open-ok
            raw.send(method(1, 20, 10, b"\x00"))
            read_frame(raw)
        else:
            self.ask(1, 0)
            self.answers(1)

    def ask(self, count: int, pad: int) -> None:
        """So many requests at once, each with `pad` bytes that mean nothing."""
        raw = self.raw
        if self.door == "mqtt":
            body = mqtt_text(b"t/x") + b"\x00\x01" + b"x" * pad
            publish = b"\x32" + bytes([len(body) & 127 | 128, len(body) >> 7]) + body
            raw.send((publish if pad else b"\xc0\x00") * count)
        elif self.door == "amqp":
            content = method(1, 60, 40, b"\x00\x00\x00\x04none\x00")
            content += frame(2, 1, struct.pack(">HHQH", 60, 0, pad, 0)) + frame(3, 1, b"x" * pad)
            raw.send(((content if pad else b"") + method(1, 60, 10, b"\x00\x00\x00\x00\x00\x01\x00")) * count)
        elif self.door in ("cloudevents", "metrics"):
            raw.send((b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx-pad: " + b"x" * pad + b"\r\n\r\n") * count)
        else:
            fields = {"topic": "t", "queueId": "0", "pad": "x" * pad}
            if self.door == "broker" and self.user != f"{ADMIN}:{PASSWORD}":
                name, _, secret = self.user.partition(":")
                fields[ACCESS_KEY] = name
                fields[SIGNATURE] = sign(secret, fields, b"")
            raw.send(b"".join([remoting_wire.encode(GET_MAX_OFFSET, number, fields) for number in range(count)]))

    def answers(self, count: int) -> None:
        """So many."""
        raw = self.raw
        for _ in range(count):
            if self.door == "mqtt":
                first, size = raw.exactly(2)
                raw.exactly(size)
                assert first in (0x40, 0xD0), first
            elif self.door == "amqp":
                assert read_frame(raw)[2] == b"\x00\x3c\x00\x0b"
            elif self.door in ("cloudevents", "metrics"):
                self._response()
            else:
                answer = remoting_wire.decode(raw.exactly(int.from_bytes(raw.exactly(4), "big")))
                assert "is reached" not in answer[3], answer

    def _response(self) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.raw.exactly(1)
        lines = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        self.raw.exactly(int(lines[0][15:]) if lines else 0)
        assert b" 200 " in head or b" 204 " in head, head

    def post(self) -> bytes:
        """An event of its user: the status."""
        head = (b"POST /topics/t HTTP/1.1\r\nhost: 127.0.0.1\r\nce-id: 1\r\nce-source: /s\r\nce-type: t\r\nce-specversion: 1.0\r\n"
                b"content-length: 1\r\nauthorization: Basic " + b64encode(self.user.encode()) + b"\r\n\r\nx")  # fmt: skip
        self.raw.send(head)
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += self.raw.exactly(1)
        size = next(int(line[15:]) for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        self.raw.exactly(size)
        return answer.split()[1]

    def close(self) -> None:
        self.raw.sock.close()


@pytest.fixture(scope="module")
def coming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    yield from server_of(tmp_path_factory, "server.address_connects_per_s=1")


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    yield from server_of(
        tmp_path_factory, f"server.address_requests_per_s={PER_S}", f"auth.user_requests_per_s={PER_S}"
    )


@pytest.fixture(scope="module")
def sending(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    yield from server_of(
        tmp_path_factory, f"server.address_bytes_per_s={BYTES_PER_S}", "auth.unknown_bytes_max=1000000"
    )


@pytest.mark.parametrize("door", DOORS)
def test_an_address_comes_so_often(coming: Guarded, door: str) -> None:
    began = time.monotonic()
    there = [Peer(coming, door, other()) for _ in range(COMES)]
    let_in = sum(not peer.refused for peer in there)
    assert let_in <= 1 + time.monotonic() - began + 1
    assert let_in < COMES, "this machine is too slow to be refused"
    own = [Peer(coming, door, OWN) for _ in range(5)]
    assert [peer.refused for peer in own] == [""] * 5, "this machine has no such limit"
    for peer in (*there, *own):
        peer.close()
    assert "server.address_connects_per_s (1) is reached" in coming.log()


def taken_s(peer: Peer, pad: int, count: int) -> float:
    """Until all are answered."""
    assert not peer.refused
    began = time.monotonic()
    peer.ask(count, pad)
    peer.answers(count)
    return time.monotonic() - began


def alternate_s(peers: list[Peer]) -> float:
    """Requests in small reads on these in turn: what comes in one read is handled, and paid after it."""
    began = time.monotonic()
    for number in range(REQUESTS // 5):
        peer = peers[number % len(peers)]
        peer.ask(5, 0)
        peer.answers(5)
    return time.monotonic() - began


@pytest.mark.parametrize("door", DOORS)
def test_an_address_asks_so_often(asking: Guarded, door: str) -> None:
    """One second's worth at once, the rest in two seconds. Two connections share it."""
    peers = [Peer(asking, door, other()) for _ in range(2)]
    assert alternate_s(peers) > 1.5
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("door", ["nameserver", "metrics"])
def test_this_machine_asks_as_it_likes(asking: Guarded, door: str) -> None:
    peer = Peer(asking, door, OWN)
    assert min(alternate_s([peer]) for _ in range(5)) < 1.5
    peer.close()


@pytest.mark.parametrize("door", DOORS)
def test_an_address_sends_so_much(sending: Guarded, door: str) -> None:
    peer = Peer(sending, door, other())
    assert taken_s(peer, BODY, 60) > 1.5
    peer.close()


# Users.

SHOWN = ("mqtt", "amqp", "cloudevents", "broker")


@pytest.fixture(scope="module")
def users_coming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    yield from server_of(tmp_path_factory, f"auth.user_connects_per_s={USER_COMES_PER_S}")


def comes(server: Guarded, door: str, user: str) -> tuple[Peer, str]:
    """Why a user is not let in, empty if it is."""
    peer = Peer(server, door, OWN, user, f"{user}-pass")
    if door == "cloudevents" and not peer.refused:  # /healthz answers everybody
        status = peer.post()
        assert status in (b"202", b"429")
        return peer, "" if status == b"202" else status.decode()
    return peer, peer.refused


@pytest.mark.parametrize("door", SHOWN)
def test_a_user_comes_so_often(users_coming: Guarded, door: str) -> None:
    began = time.monotonic()
    found = [comes(users_coming, door, "alice") for _ in range(2 * COMES)]
    let_in = sum(not why for _, why in found)
    assert let_in <= USER_COMES_PER_S * (time.monotonic() - began + 1) + 1
    refusals = {why for _, why in found if why}
    assert refusals, "this machine is too slow to be refused"
    said = {
        "mqtt": r"b' \x02\x00\x03'",
        "amqp": "user_connects_per_s",
        "cloudevents": "429",
        "broker": "user_connects_per_s",
    }[door]
    assert all(said in why for why in refusals), refusals
    assert any(not comes(users_coming, door, "bob")[1] for _ in range(50)), "another user has a rate of its own"
    for peer, _ in found:
        peer.close()
    assert "auth.user_connects_per_s (5) is reached" in users_coming.log()


@pytest.mark.parametrize("door", SHOWN)
def test_a_user_asks_so_often(asking: Guarded, door: str) -> None:
    """Over two connections; another user does not wait for it."""
    peers = [comes(asking, door, "alice")[0] for _ in range(2)]
    assert alternate_s(peers) > 1.5
    own, why = comes(asking, door, "bob")
    assert not why
    began = time.monotonic()
    own.ask(5, 0)
    own.answers(5)
    assert time.monotonic() - began < 1.5, "another user does not wait for it"
    for peer in (*peers, own):
        peer.close()
