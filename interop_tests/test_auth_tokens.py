"""Tokens of an issuer at every door that takes them, with clients nobody here wrote, and connections that end when their token does."""

from __future__ import annotations

import json
import struct
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import paho.mqtt.client as paho
import pika
import pika.exceptions
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from interop_tests import raw_peers
from interop_tests.accounts import Guarded
from interop_tests.raw_peers import Raw
from interop_tests.waiting import until

ISSUER, AUDIENCE = "https://issuer.example", "gantry"


def b64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    """Signs tokens, and serves its keys over HTTP."""

    def __init__(self) -> None:
        self.keys = {"one": Ed25519PrivateKey.generate()}
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = issuer.jwks()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        self._thread = threading.Thread(target=partial(self._server.serve_forever, 0.05))
        self._thread.start()

    def jwks(self) -> bytes:
        found = []
        for name, key in self.keys.items():
            raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
            found.append({"kty": "OKP", "crv": "Ed25519", "kid": name, "x": b64(raw)})
        return json.dumps({"keys": found}).encode()

    def token(self, user: str, seconds: float = 600, key: str = "one", **claims: Any) -> str:
        head = b64(json.dumps({"alg": "EdDSA", "kid": key}).encode())
        said = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "exp": time.time() + seconds, **claims}
        signed = f"{head}.{b64(json.dumps(said).encode())}"
        return f"{signed}.{b64(self.keys[key].sign(signed.encode()))}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    settings = (
        f"auth.jwt_keys={issuer.url}", f"auth.jwt_issuer={ISSUER}", f"auth.jwt_audience={AUDIENCE}",
        "auth.jwt_scope_prefix=gantry.", "auth.jwt_leeway_ms=0",
    )  # fmt: skip
    gantry = Guarded(tmp_path_factory.mktemp("gantry"), settings=settings)
    try:
        gantry.start()
        until(lambda: "1 keys that sign JWTs" in gantry.log(), 20)

        async def rules(accounts: Any) -> None:
            await accounts.add_rules(
                "group:devs", [{"resource": "topic:t", "actions": ["pub", "sub"], "decision": "Allow"}]
            )
            await accounts.add_rules(
                "group:devs", [{"resource": "queue:q*", "actions": ["create", "sub", "pub"], "decision": "Allow"}]
            )

        gantry.accounts(rules)
        gantry.add_user("local", "local-pass", ("topic:t", "pub,sub"))
        yield gantry
    finally:
        gantry.stop()


def mqtt(
    server: Guarded, user: str, password: str, version: int = paho.MQTTv5
) -> tuple[str, paho.Client, threading.Event]:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=version, reconnect_on_failure=False)
    client.username_pw_set(user, password)
    said: list[str] = []
    answered, lost = threading.Event(), threading.Event()
    client.on_connect = lambda c, data, flags, code, more: (said.append(str(code)), answered.set())
    client.on_disconnect = lambda c, data, flags, code, more: (said.append(str(code)), lost.set())
    client.connect(*server.address("mqtt"))
    client.loop_start()
    assert answered.wait(20)
    client.said = said  # type: ignore[attr-defined]
    return said[0], client, lost


def test_mqtt(server: Guarded, issuer: Issuer) -> None:
    said, client, _ = mqtt(server, "whatever", issuer.token("alice", groups=["devs"]))
    assert said == "Success"
    client.publish("t/x", b"1", 1).wait_for_publish(20)
    client.disconnect()
    client.loop_stop()
    stranger = Issuer()
    for token in (
        issuer.token("alice", -1), issuer.token("alice", aud="other"), stranger.token("alice"),
        issuer.token("alice").rpartition(".")[0] + ".", f"{b64(json.dumps({'alg': 'none'}).encode())}.{b64(b'{}')}.",
    ):  # fmt: skip
        said, client, _ = mqtt(server, "alice", token)
        assert said == "Bad user name or password", token
        client.loop_stop()
    stranger.close()
    assert mqtt_closes(server, "local", "local-pass") == "Success", "passwords are taken beside tokens"


def mqtt_closes(server: Guarded, user: str, password: str) -> str:
    said, client, _ = mqtt(server, user, password)
    client.disconnect()
    client.loop_stop()
    return said


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
def test_an_mqtt_connection_ends_with_its_token(server: Guarded, issuer: Issuer, version: int) -> None:
    said, client, lost = mqtt(server, "", issuer.token("alice", 1.2, groups=["devs"]), version)
    assert said == "Success"
    assert lost.wait(20)
    if version == paho.MQTTv5:
        assert client.said[-1] == "Not authorized"  # type: ignore[attr-defined]
    client.loop_stop()
    assert "the token of user alice has expired" in server.log()


def property_of(number: int, data: bytes) -> bytes:
    return bytes([number]) + struct.pack(">H", len(data)) + data


def varint(size: int) -> bytes:
    return bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])


def mqtt_packet(first: int, body: bytes) -> bytes:
    return bytes([first]) + varint(len(body)) + body


def read_packet(raw: Raw) -> tuple[int, bytes]:
    first, size = raw.exactly(2)
    if size > 127:
        size = size & 127 | raw.exactly(1)[0] << 7
    return first >> 4, raw.exactly(size)


def auth_properties(method: bytes, data: bytes) -> bytes:
    found = property_of(0x15, method) + property_of(0x16, data)
    return varint(len(found)) + found


def connect_with(server: Guarded, method: bytes, data: bytes, client_id: bytes = b"raw") -> Raw:
    raw = Raw(server, "mqtt")
    body = (
        raw_peers.mqtt_text(b"MQTT")
        + b"\x05\x02\x00\x00"
        + auth_properties(method, data)
        + raw_peers.mqtt_text(client_id)
    )
    raw.send(mqtt_packet(0x10, body))
    return raw


def bearer(token: str) -> bytes:
    return b"n,,\x01auth=Bearer " + token.encode() + b"\x01\x01"


def test_mqtt_5_authenticates_again_before_its_token_ends(server: Guarded, issuer: Issuer) -> None:
    with connect_with(server, b"OAUTHBEARER", bearer(issuer.token("alice", 1.5, groups=["devs"]))) as raw:
        kind, body = read_packet(raw)
        assert (kind, body[1]) == (2, 0)
        raw.send(
            mqtt_packet(
                0xF0, b"\x19" + auth_properties(b"OAUTHBEARER", bearer(issuer.token("alice", 600, groups=["devs"])))
            )
        )
        kind, body = read_packet(raw)
        assert (kind, body[:1]) == (15, b"\x00")
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 2, 10)
        raw.send(b"\xc0\x00")
        assert read_packet(raw)[0] == 13
        raw.send(mqtt_packet(0xF0, b"\x19" + auth_properties(b"OAUTHBEARER", bearer(issuer.token("bob")))))
        kind, body = read_packet(raw)
        assert (kind, body[0]) == (14, 0x87), "somebody else takes a new connection"
    with connect_with(server, b"OAUTHBEARER", bearer(issuer.token("alice", -5))) as raw:
        assert read_packet(raw)[1][1] == 0x87
    with connect_with(server, b"OAUTHBEARER", b"nonsense") as raw:
        assert read_packet(raw)[1][1] == 0x87
    with connect_with(server, b"SCRAM-SHA-256", b"n,,n=a,r=abcdefghij") as raw:
        assert read_packet(raw)[1][1] == 0x8C, "not on"


def amqp(server: Guarded, password: str, user: str = "") -> pika.BlockingConnection:
    host, port = server.address("amqp")
    return pika.BlockingConnection(
        pika.ConnectionParameters(host, port, credentials=pika.PlainCredentials(user, password))
    )


def test_amqp_and_scopes(server: Guarded, issuer: Issuer) -> None:
    with amqp(server, issuer.token("alice", groups=["devs"])) as connection:
        channel = connection.channel()
        channel.queue_declare("q1")
        channel.basic_publish("", "q1", b"x")
    scopes = "gantry.configure:*/s-* gantry.read:%2F/s-* gantry.write:*/amq.default other.read:*/*"
    with amqp(server, issuer.token("zoe", scope=scopes)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("s-1")
        channel.basic_publish("", "s-1", b"x")
        assert channel.basic_get("s-1", auto_ack=True)[2] == b"x"
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="configure access to queue 'q2'"):
            channel.queue_declare("q2")
    for token in (issuer.token("alice", -1), issuer.token("alice", iss="x"), issuer.token("alice")[:-8] + "AAAAAAAA"):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            amqp(server, token)


def test_an_amqp_connection_ends_with_its_token_unless_it_gets_another(server: Guarded, issuer: Issuer) -> None:
    with amqp(server, issuer.token("alice", 1.5, groups=["devs"])) as connection:
        connection.update_secret(issuer.token("alice", 600, groups=["devs"]), "renewed")
        began = time.monotonic()
        until(lambda: connection.process_data_events(0.05) or time.monotonic() - began > 2, 10)
        connection.channel().queue_declare("q3")
    short = amqp(server, issuer.token("alice", 1.2, groups=["devs"]))
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="token of user alice has expired"):
        until(lambda: short.process_data_events(0.05), 20)
    other = amqp(server, issuer.token("alice", groups=["devs"]))
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="New secret was refused"):
        other.update_secret(issuer.token("bob"), "somebody else")


def test_http(server: Guarded, issuer: Issuer) -> None:
    url = "http://{}:{}/topics/t".format(*server.address("cloudevents"))
    event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}

    def post(token: str, client: httpx.Client) -> httpx.Response:
        return client.post(url, headers={**event, "Authorization": f"Bearer {token}"}, content=b"x")

    with httpx.Client(timeout=20) as client:
        short = issuer.token("alice", 1.5, groups=["devs"])
        assert post(short, client).status_code == 202
        assert post(issuer.token("zoe", scope="gantry.write:*/t"), client).status_code == 202
        assert post(issuer.token("alice"), client).status_code == 403
        until(lambda: post(short, client).status_code == 401, 10)
        for token in (issuer.token("alice", -1), "x", "eyJ.eyJ.x"):
            refused = post(token, client)
            assert refused.status_code == 401
            challenges = refused.headers.get_list("www-authenticate")
            assert [each.partition(" ")[0] for each in challenges] == ["Basic", "Bearer"]


def test_a_new_key_of_the_issuer_is_found(server: Guarded, issuer: Issuer) -> None:
    """For a token that names one which is not known the set is read again, at most every 10 s."""
    issuer.keys["two"] = Ed25519PrivateKey.generate()
    token = issuer.token("alice", 600, "two", groups=["devs"])
    until(lambda: mqtt_closes(server, "", token) == "Success", 30)
    assert mqtt_closes(server, "", issuer.token("alice", 600, "one")) == "Success"


def test_no_token_is_in_the_log(server: Guarded, issuer: Issuer) -> None:
    assert "eyJ" not in server.log()
