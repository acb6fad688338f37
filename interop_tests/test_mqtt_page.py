"""docs/operations/mqtt.md, as it stands there: its file starts a server, and its commands and its sample do what the page says."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests.commands import gantry
from interop_tests.running import SERVICES, VIP, Written, free_port
from interop_tests.test_remoting_foreign import command, node_project
from interop_tests.waiting import until

PAGE = (Path(__file__).parents[1] / "docs/operations/mqtt.md").read_text()
TIMEOUT_S = 60.0


def block(language: str, part: str) -> str:
    """The sample in that language which has `part` in it."""
    (found,) = [each for each in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if part in each]
    return str(found)


class FromPage(Written):
    """`gantry up` with the page's file and certificates, on free ports."""

    def __init__(self, directory: Path) -> None:
        made = gantry(*shlex.split(block("sh", "cert dev"))[2:-1], str(directory / "certs"))
        assert made.returncode == 0, made.stderr
        self.ports = {"1883": free_port(), "8883": free_port()}
        others = {name: free_port(VIP) if name == "broker" else free_port() for name in SERVICES if name != "mqtt"}
        text = block("toml", "[mqtt]") + "".join(f"[{name}]\nport = {port}\n" for name, port in others.items())
        for port, ours in self.ports.items():
            assert text.count(f":{port}") == 1
            text = text.replace(f":{port}", f":{ours}")
        (directory / "gantry.toml").write_text(text)
        start = shlex.split(block("sh", "./run up").splitlines()[0])
        super().__init__("up", directory, start[1:])

    def words(self, line: str) -> list[str]:
        """A command of the page, for the ports of this process."""
        words = shlex.split(line)
        port = words.index("-p") + 1
        words[port] = str(self.ports[words[port]])
        return words


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FromPage]:
    process = FromPage(tmp_path_factory.mktemp("page"))
    try:
        process.start()
        yield process
    finally:
        process.stop()


class Subscribers:
    """mosquitto_sub of the page, several times, all there when made. Each ends behind `count` messages."""

    def __init__(self, server: FromPage, line: str, members: int, count: int) -> None:
        words = [*server.words(line), "-C", str(count)]
        before = subscribed(server)
        self._running = [
            subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=server.directory) for _ in range(members)
        ]
        until(lambda: subscribed(server) == before + members)

    def received(self) -> list[str]:
        """Of all of them, sorted."""
        return sorted(line for each in self._running for line in each.communicate(timeout=TIMEOUT_S)[0].splitlines())


def subscribed(server: FromPage) -> int:
    """Clients that are there and have a subscription."""
    shown = gantry("mqtt", "clients", "--json", "--nameserver", server.doors["nameserver"])
    assert shown.returncode == 0, shown.stderr
    return sum(bool(json.loads(line)["filters"]) for line in shown.stdout.splitlines())


needs_mosquitto = pytest.mark.skipif(
    not (shutil.which("mosquitto_sub") and shutil.which("mosquitto_pub")),
    reason="mosquitto_sub and mosquitto_pub are not installed",
)


@needs_mosquitto
def test_over_tls(server: FromPage) -> None:
    _, subscribe, publish = block("sh", "./run up").splitlines()
    subscribers = Subscribers(server, subscribe, 1, 2)
    for _ in range(2):
        assert command(*server.words(publish), cwd=server.directory).returncode == 0
    assert subscribers.received() == ["plant/press-7/temp 21"] * 2


@needs_mosquitto
def test_shared_by_two(server: FromPage) -> None:
    """Started twice, as the page says: each message comes to one of the two, in turn."""
    subscribers = Subscribers(server, block("sh", "$share").strip(), 2, 3)
    groups = gantry("mqtt", "groups", "--nameserver", server.doors["nameserver"])
    assert "workers" in groups.stdout
    publish = block("sh", "./run up").splitlines()[2]
    for number in range(6):
        words = server.words(publish)
        words[words.index("-m") + 1] = str(number)
        assert command(*words, cwd=server.directory).returncode == 0
    assert subscribers.received() == [f"plant/press-7/temp {number}" for number in range(6)]


@pytest.mark.slow
def test_sample_of_a_page(server: FromPage, tmp_path: Path) -> None:
    """MQTT.js in Node.js runs the sample; in a browser: test_mqtt_websocket.py."""
    project = node_project(tmp_path)
    sample = block("js", "mqtt.connect").replace(":1883", f":{server.ports['1883']}")
    assert str(server.ports["1883"]) in sample
    end = 'client.on("message", () => client.end());\n'
    (project / "sample.js").write_text('const mqtt = require("mqtt");\n' + sample + end)
    done = command("node", "sample.js", cwd=project)
    assert (done.returncode, done.stdout) == (0, "plant/page hello\n"), done.stderr
