"""What a peer may cost before it has shown who it is, at every door, over sockets."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Iterator

import pytest

from gantrymq.auth.signatures import ACCESS_KEY, SIGNATURE, sign
from gantrymq.client.admin import Admin
from gantrymq.client.client import Client
from interop_tests import raw_peers
from interop_tests.accounts import ADMIN, PASSWORD, Guarded
from interop_tests.bench import remoting_wire
from interop_tests.raw_peers import Raw, ended

UNKNOWN_BYTES = 64 * 1024
SEND = {"b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "a": "p", "i": "", "j": "0"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    settings = ("auth.unknown_ms=1500", "mqtt.proxies=127.0.0.0/8", "server.address_connections_max=3")
    gantry = Guarded(tmp_path_factory.mktemp("gantry"), settings=settings)
    try:
        gantry.start()
        yield gantry
    finally:
        gantry.stop()


def logged_in(server: Guarded) -> Raw:
    """An MQTT client that is known."""
    raw = Raw(server, "mqtt")
    text = raw_peers.mqtt_text
    body = b"\x00\x04MQTT\x04\xc2\x00\x00" + text(b"known") + text(ADMIN.encode()) + text(PASSWORD.encode())
    raw.send(b"\x10" + bytes([len(body)]) + body)
    assert raw.exactly(4) == b"\x20\x02\x00\x00"
    return raw


def signed(code: int, fields: dict[str, str], body: bytes, user: str = ADMIN, password: str = PASSWORD) -> bytes:
    named = {**fields, ACCESS_KEY: user}
    return remoting_wire.encode(code, 1, {**named, SIGNATURE: sign(password, named, body)}, body)


BEGINNINGS = {
    "broker": (b"", b"\x00\x00\x01\x00\x00\x00\x00\xf0{"),
    "mqtt": (b"", b"\x10\x20\x00\x04MQ", b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\n"),
    "amqp": (b"", b"AMQP\x00\x00\x09\x01", b"AMQP\x00\x00\x09\x01\x01\x00\x00"),
    "cloudevents": (b"", b"GET /healthz HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
}


def test_who_does_not_say_who_it_is_is_closed_and_who_did_is_not(server: Guarded) -> None:
    known = logged_in(server)
    strangers = [Raw(server, door) for door, starts in BEGINNINGS.items() for _ in starts]
    for raw, start in zip(strangers, [start for starts in BEGINNINGS.values() for start in starts], strict=True):
        raw.send(start)
    for raw in strangers:
        raw.to_end()
        raw.sock.close()
    known.send(b"\xc0\x00")
    assert known.exactly(2) == b"\xd0\x00"
    known.sock.close()
    assert "within 1500 ms (auth.unknown_ms)" in server.log()


def test_a_first_message_may_be_large_where_somebody_signs_it(server: Guarded) -> None:
    async def create() -> None:
        async with Client(server.nameserver, ADMIN, PASSWORD) as client:
            await Admin(client=client).create_topic("orders", queues=4)

    asyncio.run(create())
    with Raw(server, "broker") as raw:
        raw.send(signed(310, SEND, b"x" * 1_000_000))
        size = struct.unpack(">I", raw.exactly(4))[0]
        code, *_ = remoting_wire.decode(raw.exactly(size))
        assert code == 0
    ended(server, "broker", signed(310, SEND, b"x" * 1_000_000, user="nobody"))
    assert "before it was known who sends them" in server.log()


def test_http_is_known_by_its_first_good_request(server: Guarded) -> None:
    basic = base64.b64encode(f"{ADMIN}:{PASSWORD}".encode())
    head = (
        b"POST /topics/orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nAuthorization: Basic " + basic
    )
    body = b"x" * 200_000
    event = b"\r\nCe-Specversion: 1.0\r\nCe-Id: 1\r\nCe-Source: /s\r\nCe-Type: t\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    with Raw(server, "cloudevents") as raw:
        raw.send(head + event + body)
        assert raw.exactly(12).startswith(b"HTTP/1.1 20")


def test_one_address_behind_a_proxy_has_its_part(server: Guarded) -> None:
    def come(address: str) -> Raw:
        raw = Raw(server, "mqtt")
        raw.send(f"PROXY TCP4 {address} 127.0.0.1 50000 1883\r\n".encode() + b"\xc0")
        return raw

    there = [come("192.0.2.7") for _ in range(3)]
    assert come("192.0.2.7").to_end().answer == b""
    assert "192.0.2.7:50000: refused, server.address_connections_max (3) is reached" in server.log()
    known = logged_in(server)  # from this machine, as the proxy is
    known.send(b"\xc0\x00")
    assert known.exactly(2) == b"\xd0\x00"
    for raw in (*there, known):
        raw.sock.close()


def test_a_stranger_is_heard_for_no_more_than_that(server: Guarded) -> None:
    """The last one here: it uses up the lines of the log that this address may cause, and the others look for theirs."""
    request = remoting_wire.encode(105, 1, {"topic": "orders"})
    answers = ended(server, "broker", request * (2 * UNKNOWN_BYTES // len(request))).answer
    count, at = 0, 0
    while at < len(answers):
        count, at = count + 1, at + 4 + struct.unpack_from(">I", answers, at)[0]
    assert 0 < count <= UNKNOWN_BYTES // len(request) + 1
    health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    heard = ended(server, "cloudevents", health * (2 * UNKNOWN_BYTES // len(health))).answer.count(b" 200 OK")
    assert 0 < heard <= UNKNOWN_BYTES // len(health) + 1
    packet = b"\x10\xff\xff\x03" + raw_peers.mqtt_text(b"MQTT") + b"\x04\xc2\x00\x00" + b"\xff" * UNKNOWN_BYTES
    ended(server, "mqtt", packet)
    post = b"POST /topics/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000
    assert b" 401 " in ended(server, "cloudevents", post).answer
