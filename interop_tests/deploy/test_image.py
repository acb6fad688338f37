"""The image's build steps and its entry point, carried out without Docker; every door is used from an address that is not loopback."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from paho.mqtt import client as mqtt
from paho.mqtt import publish as mqtt_publish

from gantrymq.launch.exit_codes import EXIT_USAGE
from interop_tests.deploy.files import DEPLOY, ROOT, read_yaml
from interop_tests.deploy.recipe import Build, Image, read_image
from interop_tests.deploy.test_compose import environment_of
from interop_tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def own_address() -> str:
    """An address of this machine by which clients are strangers; loopback where there is none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


class Container:
    """The image's entry point with the environment of a compose service."""

    def __init__(self, build: Build, image: Image, scratch: Path, environment: dict[str, str]) -> None:
        self.build = build
        self.image = image
        self.ready = scratch / "ready.json"
        self.log = scratch / "log"
        self.environment = {name: build.moved(value) for name, value in environment.items()}
        self.environment["PATH"] = self.environment["PATH"].replace("$PATH", "/usr/bin:/bin")
        self.environment["HOME"] = str(build.place("/var/lib/gantry"))
        self.environment |= {
            name: value for name, value in build.environment().items() if name.startswith("GANTRY_TEST")
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.doors: dict[str, str] = {}

    def program(self, words: list[str]) -> list[str]:
        return [str(self.build.place("/opt/gantry/bin") / words[0]), *words[1:]]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """As `docker run IMAGE WORDS`."""
        return subprocess.run(
            [*self.program(self.image.entry), *words], env=self.environment, cwd=self.build.place(self.image.directory),
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def start(self) -> None:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self.program(self.image.entry), *self.image.command, "--free-ports", "--ready-file", str(self.ready)],
                env=self.environment, cwd=self.build.place(self.image.directory), stdout=log, stderr=log,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        process = self.process
        until(lambda: self.ready.exists() or process.poll() is not None)
        assert self.ready.exists(), self.log.read_text()
        self.doors = json.loads(self.ready.read_text())

    def port(self, name: str) -> int:
        host, _, port = self.doors[name].rpartition(":")
        assert host == "0.0.0.0"
        return int(port)

    def health(self) -> int:
        """Exit code of the image's health check."""
        port = re.search(r"127\.0\.0\.1:(\d+)", self.image.health[-1])
        assert port is not None
        code = self.image.health[-1].replace(port[0], f"127.0.0.1:{self.port('metrics')}")
        words = [*self.program(self.image.health[:1]), *self.image.health[1:-1], code]
        return subprocess.run(words, env=self.environment, stderr=subprocess.DEVNULL, check=False).returncode

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(getattr(signal, self.image.stop_signal))
        return self.process.wait()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    build = Build(
        tmp_path_factory.mktemp("image"), ROOT, (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    )
    build.run(text)
    return build


@pytest.fixture
def container(built: Build, tmp_path: Path) -> Iterator[Container]:
    image = read_image((DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    made = Container(built, image, tmp_path, environment_of(read_yaml("compose.yaml")["services"]["gantry"]))
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def test_what_is_in_the_image(built: Build, container: Container) -> None:
    assert built.asked.read_text().split()[-1] == container.image.user
    assert "--uid 10001" in built.asked.read_text()
    assert container.run("--version").stdout.startswith("gantry ")
    packages = subprocess.run(
        [*container.program(["python"]), "-m", "pip", "list", "--format=freeze"], env=container.environment,
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "gantrymq==" in packages
    locked = (ROOT / "locks" / "base.txt").read_text(encoding="utf-8")
    for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", locked, re.MULTILINE):
        if f"{name}==" in packages.lower():
            assert f"{name}=={version}" in packages.lower()
    assert "hypothesis" not in packages
    assert not list(built.place("/src").glob("*/tests"))


def test_the_node_of_the_compose_file_serves_every_door(container: Container) -> None:
    assert container.run("config", "show", "--changed").returncode == 0
    container.start()
    host = own_address()
    for path in ("healthz", "readyz"):
        with urllib.request.urlopen(f"http://{host}:{container.port('metrics')}/{path}", timeout=30) as answer:
            assert answer.read() == b"ok\n"
    assert container.health() == 0

    sent = container.run("send", "factory", "native", "--nameserver", f"{host}:{container.port('nameserver')}")
    assert sent.returncode == 0, sent.stderr
    mqtt_publish.single(
        "factory/line1", "mqtt", qos=1, hostname=host, port=container.port("mqtt"), protocol=mqtt.MQTTv311,
    )  # fmt: skip
    parameters = pika.ConnectionParameters(
        host, container.port("amqp"), credentials=pika.PlainCredentials("guest", "guest")
    )
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("temps", durable=True)
        channel.queue_bind("temps", "factory", "#")
        channel.basic_publish("factory", "line2", b"amqp")
    event = urllib.request.Request(
        f"http://{host}:{container.port('cloudevents')}/topics/factory", b'"cloudevents"',
        {"content-type": "application/json", "ce-specversion": "1.0", "ce-id": "1", "ce-source": "/t", "ce-type": "line3"},
    )  # fmt: skip
    with urllib.request.urlopen(event, timeout=30) as answer:
        assert answer.status == 202

    pulled = container.run("pull", "factory", "--json", "--nameserver", f"{host}:{container.port('nameserver')}")
    bodies = {json.loads(line)["body"] for line in pulled.stdout.splitlines()}
    assert bodies == {"native", "mqtt", "amqp", '"cloudevents"'}
    log = container.log.read_text()
    if host != "127.0.0.1":
        assert "amqp: every client that reaches" in log
    assert container.stop() == 0
    assert container.health() != 0
    data = container.build.place("/var/lib/gantry")
    assert (data / "store" / "commitlog").is_dir()


def test_without_the_compose_file_strangers_are_refused(container: Container) -> None:
    host = own_address()
    if host == "127.0.0.1":
        pytest.skip("this machine has loopback only")
    for name in list(container.environment):
        if name.endswith(("__LOOPBACK_GUEST_ONLY", "__ALLOW_ANONYMOUS")):
            del container.environment[name]
    container.start()
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(pika.ConnectionParameters(host, container.port("amqp")))
    until(lambda: "amqp.loopback_guest_only=false lets it in" in container.log.read_text())
    assert container.stop() == 0


def test_a_wrong_setting_ends_the_container_with_its_line(container: Container) -> None:
    container.environment["GANTRY_MQTT__PRT"] = "1"
    container.environment["GANTRY_AMQP__PORT"] = "x"
    done = container.run(*container.image.command)
    assert done.returncode == EXIT_USAGE
    assert len(done.stderr.splitlines()) == 2
    assert "did you mean mqtt.port?" in done.stderr
    assert not os.path.exists(container.ready)
