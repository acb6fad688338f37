"""paho-mqtt with what EMQX users know: subscriptions that begin in the past, exclusive ones, rewritten topics, bans of clients that flap."""

from __future__ import annotations

import time
from collections.abc import Iterator

import paho.mqtt.client as mqtt
import pytest

from interop_tests.running import Gantry
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import until

COUNT = 200


@pytest.fixture(scope="module")
def gantry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gantry]:
    settings = ("mqtt.rewrite=all old/# ^old/(.+)$ new/$1", "mqtt.flapping_max=5")
    server = Gantry(tmp_path_factory.mktemp("gantry"), settings=settings)
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture
def publisher(gantry: Gantry) -> Iterator[Paho]:
    client = Paho(gantry).start()
    yield client
    client.stop()


@pytest.mark.parametrize("version", [mqtt.MQTTv311, mqtt.MQTTv5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_there_is_and_then_what_comes(gantry: Gantry, publisher: Paho, version: int, qos: int) -> None:
    top = f"past{version}{qos}"
    for number in range(COUNT):
        publisher.client.publish(f"{top}/{number % 7}", str(number), 1)
    publisher.publish(f"{top}/end", "end")
    later_ms = time.time_ns() // 1_000_000 + 5
    while time.time_ns() // 1_000_000 <= later_ms:
        publisher.publish(f"{top}/between", "between")
    clean = True if version == mqtt.MQTTv311 else None
    reader = Paho(gantry, "", clean, protocol=version).start()
    late = Paho(gantry, "", clean, protocol=version).start()
    try:
        assert reader.subscribe((f"$from/earliest/{top}/+", qos)) == [qos]
        assert reader.receive(COUNT + 1) == [
            *[(f"{top}/{number % 7}", b"%d" % number) for number in range(COUNT)],
            (f"{top}/end", b"end"),
        ]
        assert late.subscribe((f"$from/{later_ms}/{top}/+", qos)) == [qos]
        publisher.publish(f"{top}/live", "live")
        for client in (reader, late):
            topics = {topic for topic, _ in _until_live(client, f"{top}/live")}
            assert topics <= {f"{top}/between", f"{top}/live"}
    finally:
        reader.stop()
        late.stop()


def _until_live(client: Paho, live: str) -> list[tuple[str, bytes]]:
    got = client.receive(1)
    while got[-1][0] != live:
        got += client.receive(1)
    return got


def test_kept_session_goes_on_after_kill(own_server: Gantry) -> None:
    publisher = Paho(own_server).start()
    for number in range(COUNT):
        publisher.client.publish("t/x", str(number), 1)
    publisher.publish("t/x", "end")
    reader = Paho(own_server, "reader", False, manual_ack=True).start()
    reader.subscribe(("$from/earliest/t/#", 1))
    first = [reader.messages.get(timeout=60) for _ in range(50)]
    assert [message.payload for message in first] == [b"%d" % number for number in range(50)]
    for message in first:
        reader.client.ack(message.mid, message.qos)
    reader.publish("other", "the acknowledgements went before this")
    reader.client.loop_stop()
    publisher.client.loop_stop()
    own_server.kill_and_restart()
    reader = Paho(own_server, "reader", False).start()
    assert reader.present
    got = [body for _, body in reader.receive(COUNT + 1 - 50)]
    assert got == [*[b"%d" % number for number in range(50, COUNT)], b"end"]
    reader.stop()


def test_exclusive(gantry: Gantry) -> None:
    first, second = Paho(gantry).start(), Paho(gantry).start()
    assert first.subscribe(("$exclusive/ex/#", 1)) == [1]
    assert second.subscribe(("$exclusive/ex/#", 1)) == [0x80]
    first.publish("ex/x", "1")
    assert first.receive(1) == [("ex/x", b"1")]
    first.stop()
    until(lambda: second.subscribe(("$exclusive/ex/#", 1)) == [1])  # when the DISCONNECT has come
    second.stop()


def test_rewritten_topics(gantry: Gantry, publisher: Paho) -> None:
    old, new = Paho(gantry).start(), Paho(gantry).start()
    assert old.subscribe(("old/+", 1)) == [1]
    assert new.subscribe(("new/#", 1)) == [1]
    publisher.publish("old/a", "1")
    publisher.publish("new/b", "2")
    for client in (old, new):
        assert client.receive(2) == [("new/a", b"1"), ("new/b", b"2")]
        client.stop()


def test_a_client_that_flaps_is_banned(gantry: Gantry) -> None:
    for _ in range(6):
        Paho(gantry, "flapping").start().stop()
    client = Paho(gantry, "flapping")
    client.client.connect(*gantry.address("mqtt"))
    client.client.loop_start()
    _, code = client.event("connect")
    client.client.loop_stop()
    assert code.is_failure
    assert "flapping: banned" in gantry.log()
