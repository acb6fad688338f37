"""`$SYS/broker/...` as paho reads it, from one process and from three."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest

from interop_tests.running import Gantry
from interop_tests.test_mqtt_paho import WAIT_S, Paho

ROOT = "$SYS/broker/"


@pytest.fixture(params=["combined", "separated"])
def quick(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gantry]:
    """Tells new values every second."""
    gantry = Gantry(tmp_path, request.param, ("mqtt.sys_interval_s=1",))
    try:
        yield gantry.start()
    finally:
        gantry.stop()


def awaited(reader: Paho, name: str, value: str) -> mqtt.MQTTMessage:
    """The message that says so."""
    end = time.monotonic() + WAIT_S
    while True:
        message = reader.messages.get(timeout=max(0.01, end - time.monotonic()))
        if (message.topic, message.payload.decode()) == (ROOT + name, value):
            return message


def test_values_at_once_and_then_what_changed(quick: Gantry) -> None:
    sender = Paho(quick, "sys-sender").start()
    everything = Paho(quick, "sys-hash").start()
    everything.subscribe(("#", 1))
    reader = Paho(quick, "sys-reader").start()
    five = Paho(quick, "sys-five", None, protocol=mqtt.MQTTv5).start()
    try:
        reader.subscribe((f"{ROOT}version", 1))
        message = reader.messages.get(timeout=WAIT_S)
        assert message.retain
        assert message.payload.startswith(b"gantrymq version ")
        reader.subscribe(("$SYS/#", 0))
        five.subscribe((f"{ROOT}publish/messages/received", 2))
        for i in range(7):
            sender.publish("sys-test/t", str(i))
        assert not awaited(reader, "publish/messages/received", "7").retain
        assert not awaited(five, "publish/messages/received", "7").retain
        assert {topic for topic, _ in everything.receive(7)} == {"sys-test/t"}
        sender.stop()
        awaited(reader, "clients/connected", "3")
        assert everything.messages.empty(), "# matches nothing below $SYS"
    finally:
        for client in (reader, everything, five, sender):
            client.stop()


def test_a_client_publishes_no_faster_than_it_may(tmp_path: Path) -> None:
    server = Gantry(tmp_path, settings=("mqtt.publish_rate_max=100",))
    try:
        server.start()
        reader = Paho(server, "rate-reader").start()
        reader.subscribe(("rate", 0))
        sender = Paho(server, "rate-sender").start()
        begun = time.monotonic()
        infos = [sender.client.publish("rate", str(i), 0) for i in range(300)]
        for info in infos:
            info.wait_for_publish(WAIT_S)
        for text in ("last", "one more"):
            sender.publish("rate", text)
        took_s = time.monotonic() - begun
        sender.stop()
        assert reader.receive(302) == [("rate", text.encode()) for text in [*map(str, range(300)), "last", "one more"]]
        reader.stop()
        # A second's worth is free. Each read is taken whole before it is paid for: what comes after an answer waits for all before it.
        assert took_s > 1.9, "301 messages at 100 a second"
    finally:
        server.stop()
