"""A stock Mosquitto, with the bridge of its manual, against a running server: messages both ways, none twice, its state."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop_tests import guard
from interop_tests.running import Gantry, free_port
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import until

MOSQUITTO = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="there is no mosquitto here (Debian: apt install mosquitto)")


class Site:
    """A Mosquitto of its own, bridged to the server: what a site has that migrates step by step."""

    def __init__(self, server: Gantry, directory: Path, extra: str = "") -> None:
        self.port = free_port()
        host, port = server.address("mqtt")
        self.config = directory / "mosquitto.conf"
        self.config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\nuser {os.environ.get('USER', 'root')}\n"
            f"connection site\naddress {host}:{port}\ntopic # both 1\nrestart_timeout 1\n{extra}"
        )
        self.log = directory / "mosquitto.log"
        self.process: subprocess.Popen[bytes] | None = None

    def address(self, door: str) -> tuple[str, int]:
        """As `Gantry.address`."""
        return "127.0.0.1", self.port

    def start(self) -> None:
        assert MOSQUITTO is not None
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [MOSQUITTO, "-v", "-c", str(self.config)], stdout=log, stderr=log, env=os.environ | guard.mark()
            )

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def bridged(self) -> bool:
        """The server has granted the bridge's subscription: from then on messages go both ways."""
        return "Received SUBACK" in self.log.read_text(errors="replace")


@pytest.fixture(params=["", "try_private false\n"], ids=["level 0x84", "plain 3.1.1"])
def site(server: Gantry, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    site = Site(server, tmp_path, request.param)
    site.start()
    try:
        until(site.bridged)
        yield site
    finally:
        site.stop()


@pytest.fixture
def connect() -> Iterator[Callable[..., Paho]]:
    clients: list[Paho] = []

    def make(broker: Gantry | Site) -> Paho:
        clients.append(Paho(broker).start())  # type: ignore[arg-type]
        return clients[-1]

    yield make
    for client in clients:
        client.stop()


def test_messages_go_both_ways(server: Gantry, site: Site, connect: Callable[..., Paho]) -> None:
    here, there = connect(server), connect(site)
    here.subscribe(("down/#", 1))
    there.subscribe(("up/#", 1))
    for number in range(20):
        there.publish("down/t", str(number), qos=number % 2)
        here.publish("up/t", str(number), qos=number % 2)
    assert sorted(here.receive(20)) == sorted(("down/t", str(number).encode()) for number in range(20))
    assert sorted(there.receive(20)) == sorted(("up/t", str(number).encode()) for number in range(20))


def test_its_state_is_told_and_its_end(server: Gantry, site: Site, connect: Callable[..., Paho]) -> None:
    watcher = connect(server)
    watcher.subscribe(("$SYS/broker/connection/#", 1))
    (topic, state) = watcher.receive(1)[0]
    assert state == b"1"
    assert topic.startswith("$SYS/broker/connection/")
    site.stop()
    assert watcher.receive(1) == [(topic, b"0")]


def test_nothing_comes_back_to_where_it_was_sent(server: Gantry, tmp_path: Path, connect: Callable[..., Paho]) -> None:
    site = Site(server, tmp_path)
    site.start()
    try:
        until(site.bridged)
        there = connect(site)
        there.subscribe(("echo/#", 1))
        here = connect(server)
        here.subscribe(("echo/#", 1))
        there.publish("echo/a", b"mine")
        assert here.receive(1) == [("echo/a", b"mine")]
        here.publish("echo/a", b"last")
        assert there.receive(2) == [("echo/a", b"mine"), ("echo/a", b"last")]  # its own once, from its own broker
    finally:
        site.stop()
