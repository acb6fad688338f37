"""TLS at every door, with clients nobody here wrote: paho, pika, httpx, and Remoting's first byte."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import paho.mqtt.client as paho
import pika
import pytest

from gantrymq.cli.security.certificates import Authority
from gantrymq.remoting import codec
from gantrymq.remoting.codec import Command, FrameReader
from gantrymq.remoting.constants import RequestCode
from interop_tests.running import Gantry, free_port
from interop_tests.waiting import until


def issue(directory: Path) -> None:
    authority = Authority(directory, 2)
    authority.issue("server", "localhost", ["localhost", "127.0.0.1"])
    authority.issue("sensor-1", "sensor-1", [])


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    issue(directory)
    return directory


@pytest.fixture(scope="module")
def server(certs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gantry]:
    """Every door with TLS: MQTT beside plain text, Remoting on one port with it, the others alone."""
    settings = (
        f"tls.cert={certs}/server.pem",
        f"tls.key={certs}/server.key",
        f"tls.client_ca={certs}/ca.pem",
        f"mqtt.listeners=tcp://127.0.0.1:0,tls://127.0.0.1:0?client_cert=required,unix://{certs}/mqtt.sock?mode=600",
        "amqp.listeners=tls://127.0.0.1:0",
        "cloudevents.listeners=tls://127.0.0.1:0",
        "metrics.listeners=tls://127.0.0.1:0",
        f"broker.listeners=any://127.0.0.1:{free_port(-2)}",
        f"nameserver.listeners=any://127.0.0.1:{free_port()}",
    )
    gantry = Gantry(tmp_path_factory.mktemp("gantry"), settings=settings)
    try:
        yield gantry.start()
    finally:
        gantry.stop()


def context(certs: Path, client: str = "") -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=certs / "ca.pem")
    if client:
        made.load_cert_chain(certs / f"{client}.pem", certs / f"{client}.key")
    return made


class Subscriber:
    """A paho client over TLS with a client certificate."""

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None, transport: str = "tcp") -> None:
        self.got: list[bytes] = []
        self.ready = threading.Event()
        self.lost = threading.Event()
        name = f"tls-test-{transport}"
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, name, True, transport=transport)  # type: ignore[arg-type]
        if tls is not None:
            self.client.tls_set_context(tls)
        self.client.on_connect = lambda client, *_: client.subscribe("plant/#", 1)
        self.client.on_subscribe = lambda *_: self.ready.set()
        self.client.on_disconnect = lambda *_: self.lost.set()
        self.client.on_message = lambda client, userdata, message: self.got.append(message.payload)
        self.client.connect(*address)
        self.client.loop_start()
        assert self.ready.wait(20)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def test_mqtt_with_a_client_certificate(server: Gantry, certs: Path) -> None:
    subscriber = Subscriber(server.address("mqtt.tls"), context(certs, "sensor-1"))
    subscriber.client.publish("plant/1", b"over TLS", 1)
    until(lambda: subscriber.got == [b"over TLS"], 20)
    subscriber.close()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        knock(server.address("mqtt.tls"), context(certs))


def test_websocket_over_tls_and_a_unix_socket(server: Gantry, certs: Path) -> None:
    """WSS on the port of MQTT over TLS; the socket in the file system beside it."""
    wss = Subscriber(server.address("mqtt.tls"), context(certs, "sensor-1"), "websockets")
    unix = Subscriber((f"{certs}/mqtt.sock", 1), None, "unix")
    unix.client.publish("plant/1", b"x" * 200_000, 1)
    until(lambda: wss.got == unix.got == [b"x" * 200_000], 20)
    assert (certs / "mqtt.sock").stat().st_mode & 0o777 == 0o600
    for each in (wss, unix):
        each.close()


def knock(address: tuple[str, int], tls: ssl.SSLContext) -> None:
    """Raises for a client that is not let in; TLS 1.3 tells it so at its first read."""
    raw = socket.create_connection(address, 10)
    with tls.wrap_socket(raw, server_hostname="localhost") as peer:
        peer.sendall(b"\x10")
        if not peer.recv(1):
            raise ConnectionError


def test_mosquitto_clients(server: Gantry, certs: Path) -> None:
    if shutil.which("mosquitto_pub") is None:
        pytest.skip("mosquitto_pub is not installed")
    _, port = server.address("mqtt.tls")
    command = ["mosquitto_pub", "-h", "localhost", "-p", str(port), "-t", "plant/2", "-m", "hello", "-q", "1"]
    files = ["--cafile", "ca.pem", "--cert", "sensor-1.pem", "--key", "sensor-1.key"]
    subprocess.run([*command, *files], cwd=certs, check=True, timeout=30, capture_output=True)


def test_amqp(server: Gantry, certs: Path) -> None:
    _, port = server.address("amqp")
    parameters = pika.ConnectionParameters(
        "localhost", port, ssl_options=pika.SSLOptions(context(certs), "localhost"),
        credentials=pika.PlainCredentials("guest", "guest"),
    )  # fmt: skip
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare("tls")
        channel.confirm_delivery()
        channel.basic_publish("", "tls", b"x" * 200_000)
        _, _, body = channel.basic_get("tls", auto_ack=True)
        assert body == b"x" * 200_000


def test_http(server: Gantry, certs: Path) -> None:
    _, port = server.address("cloudevents")
    event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/tls", "ce-type": "tls.test"}
    with httpx.Client(verify=context(certs)) as client:
        answer = client.post(f"https://localhost:{port}/topics/tls-events", headers=event, content=b"hello")
        assert answer.is_success, answer.text
        _, port = server.address("metrics")
        assert "gantry_connections" in client.get(f"https://localhost:{port}/metrics").text


def ask(address: tuple[str, int], tls: ssl.SSLContext | None) -> Command:
    with socket.create_connection(address, 20) as raw:
        peer: Any = tls.wrap_socket(raw, server_hostname="localhost") if tls is not None else raw
        with peer:
            peer.sendall(codec.encode(Command(RequestCode.GET_BROKER_CLUSTER_INFO, opaque=7)))
            reader, answers = FrameReader(), []
            while not answers:
                answers = reader.feed(peer.recv(65536))
            return answers[0]


def test_remoting_on_one_port(server: Gantry, certs: Path) -> None:
    for tls in (None, context(certs)):
        answer = ask(server.address("nameserver"), tls)
        assert (answer.code, answer.opaque) == (0, 7)


def test_certificates_are_read_again_without_losing_a_connection(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    certs.mkdir()
    issue(certs)
    settings = (f"tls.cert={certs}/server.pem", f"tls.key={certs}/server.key", "mqtt.listeners=tls://127.0.0.1:0")
    gantry = Gantry(tmp_path, settings=settings)
    try:
        gantry.start()
        trusting = context(certs)
        subscriber = Subscriber(gantry.address("mqtt"), trusting)

        def shown() -> bytes | None:
            raw = socket.create_connection(gantry.address("mqtt"), 20)
            with trusting.wrap_socket(raw, server_hostname="localhost") as peer:
                return peer.getpeercert(binary_form=True)

        first = shown()
        issue(certs)  # the file's change is noticed
        until(lambda: shown() != first, 30)
        assert not subscriber.lost.is_set()
        subscriber.client.publish("plant/1", b"still here", 1)
        until(lambda: subscriber.got == [b"still here"], 20)
        subscriber.close()
    finally:
        gantry.stop()
