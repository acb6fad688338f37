"""The hardened configuration of docs/operations/security.md, as it stands there: each door refuses strangers on its own terms and serves who may."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import shlex
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
import pika.exceptions
import pytest

from gantrymq.cli.security.certificates import Authority
from gantrymq.client import Producer
from gantrymq.client.client import Client
from gantrymq.model.errors import ErrorCode, GantryError
from interop_tests.commands import gantry
from interop_tests.running import Written, free_port
from interop_tests.waiting import until

PAGE = (Path(__file__).parents[1] / "docs/operations/security.md").read_text()
ADMIN, PASSWORD = "root", "the-hardened-pass"
USER, WORD = "sensor", "the-sensor-pass"


def sample(language: str = "toml") -> str:
    section = PAGE.partition("## A hardened configuration")[2].partition("\n## ")[0]
    (found,) = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    return str(found)


def first_steps() -> str:
    """What the page has one type once the server runs."""
    return sample("sh")


class Hardened(Written):
    """`gantry up` with the page's file: other ports and another directory, and not a word more."""

    def __init__(self, directory: Path) -> None:
        self.etc = directory / "etc"
        self.etc.mkdir()
        authority = Authority(self.etc, 2)
        authority.issue("server", "localhost", ["localhost", "127.0.0.1"])
        authority.issue("machine", "machine", [])
        (self.etc / "admin").write_text(f"{ADMIN}:{PASSWORD}\n")
        (self.etc / "cluster.key").write_text(secrets.token_hex(32))
        for name in ("admin", "cluster.key"):
            (self.etc / name).chmod(0o600)
        self.ports: dict[str, int] = {}
        text = sample().replace("/etc/gantry", str(self.etc))
        for number in re.findall(r"//[0-9.]+:(\d+)", text):
            self.ports[number] = free_port(-2) if number == "10911" else free_port()
            text = text.replace(f":{number}", f":{self.ports[number]}")
        (self.etc / "gantry.toml").write_text(text)
        super().__init__(
            "up", directory, ["up", "--config", str(self.etc / "gantry.toml"), "--data", str(directory / "data")]
        )

    def tls(self, client: str = "") -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=self.etc / "ca.pem")
        if client:
            made.load_cert_chain(self.etc / f"{client}.pem", self.etc / f"{client}.key")
        return made

    def as_here(self, text: str) -> str:
        """Text of the page, with the ports and the directory of this process."""
        text = text.replace("/etc/gantry", str(self.etc))
        return re.sub(r":(\d+)", lambda found: f":{self.ports.get(found[1], found[1])}", text)

    def gantry(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        (export,) = re.findall(r"^export (.*)$", first_steps(), re.MULTILINE)
        variables = dict(word.split("=") for word in self.as_here(export).split())
        variables |= {"GANTRY_USER": ADMIN, "GANTRY_PASSWORD": PASSWORD, "COLUMNS": "250"}
        return gantry(*words, given=given, **variables)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hardened]:
    process = Hardened(tmp_path_factory.mktemp("gantry"))
    try:
        process.start()
        page = [
            shlex.split(line, comments=True)[1:] for line in first_steps().splitlines() if line.startswith("gantry ")
        ]
        assert ["auth", "status"] in page
        asked = ("--password-file", "-")  # there is no terminal
        for words, given in (
            *(((*line, *asked), WORD + "\n") if line[:2] == ["user", "add"] else ((*line,), "") for line in page),
            (("topic", "create", "work"), ""),
            (("user", "add", "machine", "--group", "sensors", "--no-password"), ""),
            (("policy", "add", "group:sensors", "topic:plant", "pub,sub"), ""),
            (("policy", "add", "group:sensors", "queue:work*", "create,sub,pub"), ""),
        ):
            made = process.gantry(*words, given=given)
            assert made.returncode == 0, made.stdout + made.stderr
        yield process
    finally:
        process.stop()


def test_nothing_is_weak(server: Hardened) -> None:
    """But what the page says of the nameserver."""
    status = server.gantry("auth", "status", "--json")
    assert status.returncode == 0, status.stderr
    found = json.loads(status.stdout)
    assert [text for text in found["weak"] if "nameserver" not in text] == []
    for door in found["doors"]:
        assert door["tls"] == "required" or door["reach"] == "this machine", door


@pytest.mark.parametrize("port", ["9877", "10911", "8883", "5671", "8443", "9464"])
def test_no_door_speaks_without_tls(server: Hardened, port: str) -> None:
    for data in (
        b"AMQP\x00\x00\x09\x01",
        b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x3c\x00\x03abc",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", server.ports[port]), 20) as peer:
            answer = b""
            try:
                peer.sendall(data)
                while part := peer.recv(4096):
                    answer += part
            except ConnectionError:
                pass
            assert answer[:1] in (b"", b"\x15"), answer  # closed, or an alert of TLS


def mqtt(server: Hardened, user: str, password: str, certificate: str = "") -> tuple[str, paho.Client]:
    """The reason of CONNACK."""
    client = paho.Client(
        paho.CallbackAPIVersion.VERSION2, client_id=f"h-{user}-{certificate}", reconnect_on_failure=False
    )
    client.tls_set_context(server.tls(certificate))
    if user:
        client.username_pw_set(user, password)
    said: list[str] = []
    answered = threading.Event()
    client.on_connect = lambda c, data, flags, code, more: (said.append(str(code)), answered.set())
    client.connect("localhost", server.ports["8883"])
    client.loop_start()
    assert answered.wait(20)
    return said[0], client


def test_mqtt(server: Hardened) -> None:
    for user, password, certificate, reason in (
        ("", "", "", "Not authorized"), (USER, "wrong", "", "Bad user name or password"),
        ("nobody", WORD, "", "Bad user name or password"), (USER, WORD, "", "Success"), ("", "", "machine", "Success"),
    ):  # fmt: skip
        said, client = mqtt(server, user, password, certificate)
        assert said == reason, (user, certificate)
        if reason == "Success":
            client.publish("plant/1", b"21", 1).wait_for_publish(20)
        client.disconnect()
        client.loop_stop()


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto_pub is not installed")
def test_the_first_message_of_the_page(server: Hardened) -> None:
    (line,) = [line for line in first_steps().splitlines() if line.startswith("mosquitto_pub ")]
    words = shlex.split(server.as_here(line).replace("-p 8883", f"-p {server.ports['8883']}").replace("...", WORD))
    done = subprocess.run(words, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def amqp(server: Hardened, user: str, password: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "localhost", server.ports["5671"], ssl_options=pika.SSLOptions(server.tls(), "localhost"),
            credentials=pika.PlainCredentials(user, password),
        )
    )  # fmt: skip


def test_amqp(server: Hardened) -> None:
    for user, password in (("guest", "guest"), (USER, "wrong"), ("nobody", WORD)):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="ACCESS_REFUSED"):
            amqp(server, user, password)
    with amqp(server, USER, WORD) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("work", durable=True)
        channel.basic_publish("", "work", b"over TLS")
        assert channel.basic_get("work", auto_ack=True)[2] == b"over TLS"
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
            channel.queue_declare("other")


def test_https(server: Hardened) -> None:
    url = f"https://localhost:{server.ports['8443']}/topics/plant"
    event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/h", "ce-type": "t"}
    with httpx.Client(verify=server.tls(), timeout=20) as client:
        for auth in (None, (USER, "wrong"), ("nobody", WORD)):
            refused = client.post(url, headers=event, content=b"x", auth=auth)
            assert refused.status_code == 401
            assert "Basic" in refused.headers["www-authenticate"]
        assert client.post(url, headers=event, content=b"x", auth=(USER, WORD)).status_code == 202
        other = client.post(url.replace("plant", "other"), headers=event, content=b"x", auth=(USER, WORD))
        assert other.status_code == 403
    with pytest.raises(httpx.TransportError):
        httpx.get(f"https://localhost:{server.ports['9464']}/metrics", verify=server.tls(), timeout=20)
    metrics = httpx.get(f"https://localhost:{server.ports['9464']}/metrics", verify=server.tls("machine"), timeout=20)
    assert "gantry_" in metrics.text


async def send(server: Hardened, user: str, password: str, topic: str, tls: Any) -> None:
    nameserver = f"localhost:{server.ports['9877']}"
    async with Client(nameserver, user, password, tls=tls) as client, Producer(client=client) as producer:
        await producer.send(topic, b"hello")


def test_remoting(server: Hardened) -> None:
    asyncio.run(send(server, USER, WORD, "plant", server.tls()))
    for user, password, topic in ((USER, "wrong", "plant"), ("nobody", WORD, "plant"), (USER, WORD, "other")):
        with pytest.raises(GantryError) as caught:
            asyncio.run(send(server, user, password, topic, server.tls()))
        assert caught.value.code in (ErrorCode.NO_PERMISSION, ErrorCode.TOPIC_NOT_FOUND, ErrorCode.NO_ROUTE), (
            caught.value
        )


def test_who_did_what_is_in_the_trail_and_no_password_anywhere(server: Hardened) -> None:
    def found() -> str:
        return server.gantry("auth", "audit", "--last", "300", "--json").stdout

    text = until(lambda: said if "AUTH_CREATE_USER" in (said := found()) and "denied" in said else "", 30)
    for secret in (PASSWORD, WORD):
        assert secret not in text
        assert secret not in server.log()
        assert secret not in Path(f"/proc/{server.pid}/cmdline").read_text()
