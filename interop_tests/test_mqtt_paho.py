"""paho-mqtt against a running server, as one process and as three: what MQTT 3.1.1 promises its clients."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from interop_tests.running import Gantry

WAIT_S = 60.0


class Paho:
    """One paho client with its network thread; `messages` is what it received. With `manual_ack` the test acknowledges; otherwise what is
    in `messages` is acknowledged: whoever has seen a message may disconnect, and it does not come again."""

    def __init__(self, server: Gantry, client_id: str = "", clean: bool | None = True, **options: Any) -> None:
        self.server = server
        self.messages: queue.Queue[mqtt.MQTTMessage] = queue.Queue()
        self.events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean,
            protocol=options.pop("protocol", mqtt.MQTTv311),
            reconnect_on_failure=options.pop("reconnect", True),
        )
        self.keep_alive_s = options.pop("keep_alive_s", 60)
        self.manual_ack = options.pop("manual_ack", False)
        self.client.manual_ack_set(True)  # paho's own acknowledgement follows `on_message`
        if "will" in options:
            self.client.will_set(*options.pop("will"))
        self.client.on_message = self.arrived
        self.client.on_connect = lambda client, data, flags, code, props: self.events.put(("connect", (flags, code)))
        self.client.on_subscribe = lambda client, data, mid, codes, props: self.events.put(("subscribe", codes))
        self.client.on_unsubscribe = lambda client, data, mid, codes, props: self.events.put(("unsubscribe", mid))
        self.client.on_disconnect = lambda client, data, flags, code, props: self.events.put(("disconnect", code))
        self.present = False

    def arrived(self, client: mqtt.Client, data: object, message: mqtt.MQTTMessage) -> None:
        if not self.manual_ack:
            client.ack(message.mid, message.qos)
        self.messages.put(message)

    def start(self) -> Paho:
        self.client.connect(*self.server.address("mqtt"), keepalive=self.keep_alive_s)
        self.client.loop_start()
        try:
            flags, code = self.event("connect")
            assert code == 0
        except BaseException:  # or it would go on trying behind the test's back
            self.client.loop_stop()
            raise
        self.present = flags.session_present
        return self

    def event(self, name: str) -> Any:
        end = time.monotonic() + WAIT_S
        while True:
            got, value = self.events.get(timeout=max(0.01, end - time.monotonic()))
            if got == name:
                return value

    def subscribe(self, *filters: tuple[str, int]) -> list[int]:
        self.client.subscribe(list(filters))
        return [code.value for code in self.event("subscribe")]

    def publish(self, topic: str, payload: str | bytes, qos: int = 1, retain: bool = False) -> None:
        info = self.client.publish(topic, payload, qos, retain)
        info.wait_for_publish(WAIT_S)
        assert info.is_published()

    def receive(self, count: int) -> list[tuple[str, bytes]]:
        return [(m.topic, m.payload) for m in [self.messages.get(timeout=WAIT_S) for _ in range(count)]]

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def drop(self) -> None:
        """Lose the connection without a DISCONNECT."""
        self.client.loop_stop()
        sock = self.client.socket()
        assert sock is not None
        sock.shutdown(socket.SHUT_RDWR)
        sock.close()


@pytest.fixture
def connect(server: Gantry) -> Iterator[Callable[..., Paho]]:
    clients: list[Paho] = []

    def make(client_id: str = "", clean: bool | None = True, **options: Any) -> Paho:
        clients.append(Paho(server, client_id, clean, **options).start())
        return clients[-1]

    yield make
    for client in clients:
        client.stop()


@pytest.fixture
def top() -> str:
    """A first level that no other test uses."""
    return f"t{uuid4().hex[:8]}"


def test_qos_and_wildcards(connect: Callable[..., Paho], top: str) -> None:
    sub = connect("")
    assert sub.subscribe((f"{top}/+/temp", 1), (f"{top}/#", 0), (f"{top}/x/+", 2)) == [1, 0, 2]
    pub = connect("")
    for i in range(50):
        pub.publish(f"{top}/x/temp", str(i), qos=i % 2)
    pub.publish(top, "last", 0)
    got = [sub.messages.get(timeout=WAIT_S) for _ in range(51)]
    assert [(m.topic, m.payload, m.qos) for m in got[:50]] == [(f"{top}/x/temp", b"%d" % i, i % 2) for i in range(50)]
    assert got[50].topic == top
    assert sub.messages.empty()


def test_persistent_session(connect: Callable[..., Paho], top: str) -> None:
    sub = connect(top, False)
    assert not sub.present
    sub.subscribe((f"{top}/#", 1))
    sub.stop()
    pub = connect("")
    for i in range(500):
        pub.client.publish(f"{top}/{i % 7}", str(i), 1)
    pub.publish(f"{top}/end", "end")
    sub = connect(top, False)
    assert sub.present
    assert sub.receive(501) == [(f"{top}/{i % 7}", b"%d" % i) for i in range(500)] + [(f"{top}/end", b"end")]
    sub.stop()
    sub = connect(top, False)
    pub.publish(f"{top}/live", "live")
    assert sub.receive(1) == [(f"{top}/live", b"live")]


def test_retained(connect: Callable[..., Paho], top: str) -> None:
    pub = connect("")
    pub.publish(f"{top}/a", "1", retain=True)
    pub.publish(f"{top}/b", "2", retain=True)
    pub.publish(f"{top}/a", b"", retain=True)
    sub = connect("")
    sub.subscribe((f"{top}/+", 1))
    pub.publish(f"{top}/c", "live")
    got = [sub.messages.get(timeout=WAIT_S) for _ in range(2)]
    assert [(m.topic, m.payload, m.retain) for m in got] == [
        (f"{top}/b", b"2", True),
        (f"{top}/c", b"live", False),
    ]


def test_will_and_takeover(connect: Callable[..., Paho], server: Gantry, top: str) -> None:
    watcher = connect("")
    watcher.subscribe((f"{top}/will", 1))
    lost = Paho(server, "", True, will=(f"{top}/will", "lost", 1)).start()
    lost.drop()
    assert watcher.receive(1) == [(f"{top}/will", b"lost")]
    old = Paho(server, top, will=(f"{top}/will", "taken", 1))
    old.client.reconnect_delay_set(100, 100)
    old.start()
    connect(top)
    assert old.event("disconnect") != 0
    assert watcher.receive(1) == [(f"{top}/will", b"taken")]
    old.client.loop_stop()


def test_large_payload(connect: Callable[..., Paho], top: str) -> None:
    sub = connect("")
    sub.subscribe((top, 1))
    payload = bytes(range(256)) * 4 * 4096
    connect("").publish(top, payload)
    assert sub.receive(1) == [(top, payload)]


@pytest.mark.parametrize(("count", "size"), [(10_000, 256), (100, 65_536)])
def test_bursts_of_qos_0_arrive_whole(connect: Callable[..., Paho], top: str, count: int, size: int) -> None:
    """At a reader that reads."""
    reader = connect()
    reader.subscribe((top, 0))
    publisher = connect()
    for number in range(count):
        publisher.client.publish(top, b"%08d" % number + bytes(size - 8))
    assert [int(payload[:8]) for _, payload in reader.receive(count)] == list(range(count))


def test_mqtt_3_1(connect: Callable[..., Paho], top: str) -> None:
    sub = connect(top, True, protocol=mqtt.MQTTv31)
    sub.subscribe((top, 1))
    sub.publish(top, "old")
    assert sub.receive(1) == [(top, b"old")]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("receiver", [mqtt.MQTTv31, mqtt.MQTTv311, mqtt.MQTTv5])
@pytest.mark.parametrize("sender", [mqtt.MQTTv31, mqtt.MQTTv311, mqtt.MQTTv5])
def test_versions_and_qos(connect: Callable[..., Paho], top: str, sender: int, receiver: int, qos: int) -> None:
    sub = connect("", clean_of(receiver), protocol=receiver)
    assert sub.subscribe((f"{top}/#", 2)) == [2]
    pub = connect("", clean_of(sender), protocol=sender)
    for number in range(20):
        pub.publish(f"{top}/x", str(number), qos)
    got = [sub.messages.get(timeout=WAIT_S) for _ in range(20)]
    assert [(m.topic, m.payload, m.qos) for m in got] == [(f"{top}/x", b"%d" % number, qos) for number in range(20)]


def clean_of(version: int) -> bool | None:
    """paho wants Clean Session with 3.x, and Clean Start elsewhere with 5.0."""
    return None if version == mqtt.MQTTv5 else True


def test_properties_of_5_0(connect: Callable[..., Paho], top: str) -> None:
    sub, pub = [connect("", None, protocol=mqtt.MQTTv5) for _ in range(2)]
    sub.subscribe((top, 1))
    told = Properties(PacketTypes.PUBLISH)
    told.ContentType = "text/plain"
    told.ResponseTopic = "answers"
    told.CorrelationData = b"\x00\xff"
    told.UserProperty = [("a", "1"), ("a", "2")]
    told.MessageExpiryInterval = 100
    pub.client.publish(top, b"x", 1, properties=told)
    got = sub.messages.get(timeout=WAIT_S).properties
    assert got is not None
    assert (got.ContentType, got.ResponseTopic, got.CorrelationData) == ("text/plain", "answers", b"\x00\xff")
    assert got.UserProperty == [("a", "1"), ("a", "2")]
    assert 90 <= got.MessageExpiryInterval <= 100


def test_who_is_taken_over_in_5_0_hears_it(connect: Callable[..., Paho], top: str) -> None:
    old = connect(top, None, protocol=mqtt.MQTTv5)
    old.client.reconnect_delay_set(60, 60)
    connect(top, None, protocol=mqtt.MQTTv5)
    assert old.event("disconnect").value == 0x8E


def test_keep_alive(server: Gantry, connect: Callable[..., Paho], top: str) -> None:
    watcher = connect("")
    watcher.subscribe((f"{top}/will", 1))
    host, port = server.address("mqtt")
    with socket.create_connection((host, port), WAIT_S) as raw:
        will = f"{top}/will".encode()
        body = b"\x00\x04MQTT\x04\x0e\x00\x01\x00\x00" + len(will).to_bytes(2, "big") + will + b"\x00\x06silent"
        begun = time.monotonic()
        raw.sendall(b"\x10" + bytes([len(body)]) + body)
        assert raw.recv(4) == b"\x20\x02\x00\x00"
        assert raw.recv(1) == b""
        assert time.monotonic() - begun > 1.4  # one and a half times the keep-alive, and what the machine adds
    assert watcher.receive(1) == [(f"{top}/will", b"silent")]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x30\xff\xff\xff\x7f", b"\x16\x03\x01\x02\x00\x01\x00"])
def test_wrong_protocols_are_closed_at_once(server: Gantry, data: bytes) -> None:
    with socket.create_connection(server.address("mqtt"), WAIT_S) as raw:
        raw.sendall(data)
        answer = b"".join(iter(lambda: raw.recv(4096), b""))
    if data.startswith(b"GET "):
        assert answer.startswith(b"HTTP/1.1 40"), "HTTP is told on its own terms: WebSockets are at mqtt.websocket_path"
    else:
        assert answer == b""


def test_pipelined(server: Gantry, top: str) -> None:
    name = top.encode()
    field = len(name).to_bytes(2, "big") + name
    connect_ = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00"
    subscribe = b"\x82" + bytes([len(field) + 3]) + b"\x00\x01" + field + b"\x00"
    publish = b"\x32" + bytes([len(field) + 4]) + field + b"\x00\x02hi"
    with socket.create_connection(server.address("mqtt"), WAIT_S) as raw:
        raw.sendall(connect_ + subscribe + publish + b"\xc0\x00")
        wanted = {b"\x20\x02\x00\x00", b"\x90\x03\x00\x01\x00", b"\x40\x02\x00\x02", b"\xd0\x00"}
        delivered = b"\x30" + bytes([len(field) + 2]) + field + b"hi"
        size = sum(map(len, wanted)) + len(delivered)
        data = b""
        while len(data) < size:
            data += raw.recv(1000)
    assert data.startswith(b"\x20\x02\x00\x00")
    assert all(part in data for part in wanted)
    assert delivered in data


def test_a_delayed_publish(connect: Callable[..., Paho], top: str) -> None:
    sub = connect("")
    sub.subscribe((f"{top}/#", 2))
    pub = connect("")
    for qos in (0, 1, 2):
        began = time.monotonic()
        pub.publish(f"$delayed/2/{top}/x", f"later {qos}", qos)
        pub.publish(f"{top}/x", f"now {qos}", qos)
        assert sub.receive(2) == [(f"{top}/x", b"now %d" % qos), (f"{top}/x", b"later %d" % qos)]
        assert time.monotonic() - began > 1.9
