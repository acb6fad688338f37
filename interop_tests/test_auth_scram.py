"""SCRAM-SHA-256 at the MQTT 5.0 and AMQP doors, over sockets, with a client of RFC 5802 that was written for this test."""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from collections.abc import Iterator

import pytest

from interop_tests import raw_peers
from interop_tests.accounts import ADMIN, PASSWORD, Guarded
from interop_tests.raw_peers import Raw
from interop_tests.test_auth_tokens import auth_properties, connect_with, mqtt_packet, read_packet

SCRAM = b"SCRAM-SHA-256"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    gantry = Guarded(tmp_path_factory.mktemp("gantry"), settings=("auth.scram=true",))
    try:
        gantry.start()
        gantry.add_user("device", "device-pass", ("topic:t", "pub,sub"), ("queue:q", "create,sub,pub"))
        known = "$6$MDEyMzQ1Njc4OWFi$" + base64.b64encode(b"x" * 64).decode()
        gantry.accounts(lambda accounts: accounts.create_user("hashed", hash=known))
        yield gantry
    finally:
        gantry.stop()


class Client:
    """One login."""

    def __init__(self, user: str, password: str) -> None:
        self.password = password
        self.bare = b"n=" + user.encode() + b",r=fyko+d2lbbFgONRv9qkxdawL"
        self.first = b"n,," + self.bare
        self.verdict = b""

    def final(self, challenge: bytes) -> bytes:
        fields = dict(part.split(b"=", 1) for part in challenge.split(b","))
        assert fields[b"r"].startswith(b"fyko+d2lbbFgONRv9qkxdawL")
        assert len(fields[b"r"]) > 40
        salted = hashlib.pbkdf2_hmac(
            "sha256", self.password.encode(), base64.b64decode(fields[b"s"]), int(fields[b"i"])
        )
        key = hmac.digest(salted, b"Client Key", "sha256")
        without = b"c=biws,r=" + fields[b"r"]
        said = self.bare + b"," + challenge + b"," + without
        signature = hmac.digest(hashlib.sha256(key).digest(), said, "sha256")
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        self.verdict = b"v=" + base64.b64encode(
            hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), said, "sha256")
        )
        return without + b",p=" + base64.b64encode(proof)


def data_of(body: bytes) -> bytes:
    """Authentication data among the properties of AUTH or CONNACK."""
    at = body.index(b"\x16", body.index(SCRAM) + len(SCRAM))
    size = struct.unpack_from(">H", body, at + 1)[0]
    return body[at + 3 : at + 3 + size]


def mqtt(server: Guarded, user: str, password: str) -> tuple[Raw, int, Client]:
    """(socket, reason of CONNACK, client)."""
    client = Client(user, password)
    raw = connect_with(server, SCRAM, client.first)
    kind, body = read_packet(raw)
    assert (kind, body[0]) == (15, 0x18), body
    raw.send(mqtt_packet(0xF0, b"\x18" + auth_properties(SCRAM, client.final(data_of(body)))))
    kind, body = read_packet(raw)
    assert kind == 2
    if not body[1]:
        assert data_of(body) == client.verdict, "the server knows the password, too"
    return raw, body[1], client


def test_mqtt_and_again_while_connected(server: Guarded) -> None:
    raw, reason, _ = mqtt(server, "device", "device-pass")
    with raw:
        assert reason == 0
        for user, password, good in (("device", "device-pass", True), (ADMIN, PASSWORD, False)):
            client = Client(user, password)
            raw.send(mqtt_packet(0xF0, b"\x19" + auth_properties(SCRAM, client.first)))
            kind, body = read_packet(raw)
            assert (kind, body[0]) == (15, 0x18)
            raw.send(mqtt_packet(0xF0, b"\x18" + auth_properties(SCRAM, client.final(data_of(body)))))
            kind, body = read_packet(raw)
            assert (kind, body[0]) == ((15, 0) if good else (14, 0x87)), "somebody else takes a new connection"


@pytest.mark.parametrize(("user", "password"), [("device", "wrong"), ("nobody", "x"), ("hashed", "x"), (ADMIN, "")])
def test_mqtt_refuses(server: Guarded, user: str, password: str) -> None:
    """A user without a verifier, or who is not there, looks as one whose password is wrong."""
    raw, reason, _ = mqtt(server, user, password)
    with raw:
        assert reason == 0x87
        assert raw.to_end().answer == b""


def test_mqtt_out_of_order(server: Guarded) -> None:
    with connect_with(server, SCRAM, b"") as raw:
        assert read_packet(raw)[1][1] == 0x87
    client = Client("device", "device-pass")
    with connect_with(server, SCRAM, client.first) as raw:
        read_packet(raw)
        raw.send(mqtt_packet(0xF0, b"\x18" + auth_properties(SCRAM, client.first)))
        assert read_packet(raw)[1][1] == 0x87
    with connect_with(server, SCRAM, client.first) as raw:
        read_packet(raw)
        raw.send(b"\x30\x05\x00\x01t\x00x")  # nothing but AUTH and DISCONNECT until it is answered
        assert raw.to_end().answer[:1] in (b"", b"\xe0")


def amqp(server: Guarded, user: str, password: str) -> tuple[Raw, tuple[int, int]]:
    """(socket, class and method that the login ends with)."""
    client = Client(user, password)
    raw = Raw(server, "amqp")
    raw.send(raw_peers.AMQP_HEADER)
    _, _, start = raw_peers.read_frame(raw)
    assert b"SCRAM-SHA-256" in start
    capability = b"\x1cauthentication_failure_closet\x01"
    table = b"\x0ccapabilitiesF" + struct.pack(">I", len(capability)) + capability
    said = struct.pack(">I", len(table)) + table + b"\x0dSCRAM-SHA-256"
    raw.send(raw_peers.method(0, 10, 11, said + struct.pack(">I", len(client.first)) + client.first + b"\x05en_US"))
    response = b""
    while True:
        _, _, payload = raw_peers.read_frame(raw)
        ids = struct.unpack_from(">HH", payload)
        if ids != (10, 20):
            return raw, ids
        challenge = payload[8:]
        if challenge.startswith(b"v="):
            assert challenge == client.verdict
            response = b""
        else:
            response = client.final(challenge)
        raw.send(raw_peers.method(0, 10, 21, struct.pack(">I", len(response)) + response))


def test_amqp(server: Guarded) -> None:
    raw, ids = amqp(server, "device", "device-pass")
    with raw:
        assert ids == (10, 30)
        raw.send(
            raw_peers.method(0, 10, 31, struct.pack(">HIH", 2047, 131072, 0))
            + raw_peers.method(0, 10, 40, b"\x01/\x00\x00")
        )
        raw.send(
            raw_peers.method(1, 20, 10, b"\x00") + raw_peers.method(1, 50, 10, b"\x00\x00\x01q\x00\x00\x00\x00\x00")
        )
        seen = [struct.unpack_from(">HH", raw_peers.read_frame(raw)[2]) for _ in range(3)]
        assert seen == [(10, 41), (20, 11), (50, 11)]
    for user, password in (("device", "wrong"), ("nobody", "x"), ("hashed", "x")):
        raw, ids = amqp(server, user, password)
        with raw:
            assert ids == (10, 50)  # 403 for clients that announce authentication_failure_close
