"""What a real Mosquitto kept, into a running server: retained messages, sessions, what was queued for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from interop_tests import guard
from interop_tests.running import Gantry, free_port
from interop_tests.test_mqtt_paho import WAIT_S, Paho
from interop_tests.waiting import until

MOSQUITTO = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="there is no mosquitto here (Debian: apt install mosquitto)")


class Mosquitto:
    """One that keeps its file in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.database = directory / "mosquitto.db"
        self._config = directory / "mosquitto.conf"
        self._config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\nuser {os.environ.get('USER', 'root')}\n"
            f"persistence true\npersistence_location {directory}/\nmax_queued_messages 0\n"
        )
        self._log = directory / "mosquitto.log"
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, door: str) -> tuple[str, int]:
        """As `Gantry.address`."""
        return "127.0.0.1", self.port

    def start(self) -> None:
        assert MOSQUITTO is not None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [MOSQUITTO, "-v", "-c", str(self._config)], stdout=log, stderr=log, env=os.environ | guard.mark()
            )
        until(lambda: "running" in self._log.read_text(errors="replace"))

    def stop(self) -> None:
        """It writes its file."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(WAIT_S)


def told(kind: int, **values: object) -> Properties:
    found = Properties(kind)
    for name, value in values.items():
        setattr(found, name, value)
    return found


class Five(Paho):
    """A 5.0 client whose session stays for an hour."""

    def __init__(self, server: Gantry | Mosquitto, client_id: str) -> None:
        super().__init__(server, client_id, None, protocol=mqtt.MQTTv5)  # type: ignore[arg-type]

    def start(self) -> Five:
        asked = told(PacketTypes.CONNECT, SessionExpiryInterval=3_600)
        self.client.connect(*self.server.address("mqtt"), 60, clean_start=False, properties=asked)
        self.client.loop_start()
        flags, code = self.event("connect")
        assert code == 0
        self.present = flags.session_present
        return self


def fill(broker: Mosquitto) -> None:
    """Four sessions: one of 3.1.1, one of 5.0 with options, a member of a group, one with nothing queued."""
    old = Paho(broker, "old", False).start()  # type: ignore[arg-type]
    old.subscribe(("plant/#", 1))
    five = Five(broker, "five").start()
    five.client.subscribe(
        "plant/+/temp", properties=told(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=7),
        options=mqtt.SubscribeOptions(2, retainAsPublished=True),
    )  # fmt: skip
    five.event("subscribe")
    member = Five(broker, "member").start()
    member.subscribe(("$share/crew/jobs/#", 1))
    for client in (old, five, member):
        client.stop()
    sender = Five(broker, "sender").start()
    sender.client.publish(
        "plant/1/state", "on", 1, True, told(PacketTypes.PUBLISH, ContentType="text/plain", MessageExpiryInterval=5_000)
    ).wait_for_publish(WAIT_S)
    sender.publish("plant/zero", "0", 0, True)
    for number in range(300):
        sender.publish("plant/1/temp", str(number), 2 if number % 2 else 1)
    for number in range(5):
        sender.publish("jobs/a", str(number))
    sender.client.publish("plant/2/temp", "with", 2, False, told(PacketTypes.PUBLISH, UserProperty=("unit", "K")))
    sender.publish("plant/end", "end")
    idle = Five(broker, "idle").start()
    idle.subscribe(("plant/1/temp", 1))
    for client in (idle, sender):
        client.stop()


def imported(server: Gantry, path: Path, *more: str) -> list[str]:
    host, port = server.address("mqtt")
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq", "mqtt", "import-db", str(path), "--server", f"{host}:{port}", *more],
        capture_output=True, text=True, timeout=WAIT_S, check=True,
    )  # fmt: skip
    return done.stderr.splitlines()


def test_a_mosquitto_moves_in(own_server: Gantry, tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path)
    broker.start()
    try:
        fill(broker)
    finally:
        broker.stop()
    assert imported(own_server, broker.database, "--dry-run") == [
        "2 retained messages, 5 sessions, 609 places in their queues"
    ]
    assert imported(own_server, broker.database) == [
        "2 retained messages", "5 sessions with 3 subscriptions", "303 queued messages",
        "NOT carried over: client 'member': 5 queued messages that no filter of QoS 1 or 2 of it matches"
        " (Mosquitto keeps no shared subscriptions in its file)",
    ]  # fmt: skip
    own_server.kill_and_restart()
    old = Paho(own_server, "old", False).start()
    assert old.present
    temps = [("plant/1/temp", b"%d" % number) for number in range(300)]
    assert old.receive(303) == [
        ("plant/1/state", b"on"), *temps, ("plant/2/temp", b"with"), ("plant/end", b"end")
    ]  # fmt: skip
    five = Five(own_server, "five").start()
    got = [five.messages.get(timeout=WAIT_S) for _ in range(301)]
    with_two = [each for each in got if each.qos == 2]  # paho hands them over at PUBREL, behind those of QoS 1
    assert [(m.topic, m.payload) for m in got if m.qos == 1] == temps[::2]
    assert [(m.topic, m.payload) for m in with_two] == [*temps[1::2], ("plant/2/temp", b"with")]
    assert with_two[-1].properties.UserProperty == [("unit", "K")]
    assert {m.properties.SubscriptionIdentifier[0] for m in got} == {7}
    member = Five(own_server, "member").start()
    assert member.present
    idle = Five(own_server, "idle").start()
    assert idle.present
    late = Five(own_server, "late").start()
    late.subscribe(("plant/#", 1))
    kept = {m.topic: m for m in [late.messages.get(timeout=WAIT_S) for _ in range(2)]}
    assert {topic: (m.payload, m.qos, m.retain) for topic, m in kept.items()} == {
        "plant/1/state": (b"on", 1, True), "plant/zero": (b"0", 0, True)
    }  # fmt: skip
    assert kept["plant/1/state"].properties.ContentType == "text/plain"
    assert 4_000 < kept["plant/1/state"].properties.MessageExpiryInterval <= 5_000
    for client in (old, five, member, idle, late):
        assert client.messages.empty()
        client.stop()


def test_what_is_here_already_stays(server: Gantry, tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path)
    broker.start()
    try:
        there = Five(broker, "moved-here").start()
        there.subscribe(("recorded/#", 1))
        there.stop()
    finally:
        broker.stop()
    here = Paho(server, "moved-here", False).start()
    here.subscribe(("recorded/other", 1))
    here.stop()
    assert imported(server, broker.database)[-1] == (
        "NOT carried over: client 'moved-here': it has a session here already, which stays as it is"
    )
