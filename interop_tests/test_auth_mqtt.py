"""Users and rights at the MQTT door, with paho: logins, publishing, subscribing, and what is lost at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest

from interop_tests.accounts import ADMIN, PASSWORD, Guarded
from interop_tests.waiting import until

TWO = paho.CallbackAPIVersion.VERSION2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    gantry = Guarded(tmp_path_factory.mktemp("gantry"))
    try:
        gantry.start()
        gantry.add_user("device", "device-pass", ("mqtt:plant/%u/%c/#", "pub,sub"), ("mqtt:news/#", "sub"))
        gantry.add_user("watcher", "watcher-pass", ("mqtt:$SYS/#", "sub"))
        gantry.add_user("reader", "reader-pass", ("topic:plant", "sub"), ("mqtt:plant/secret/#", "!sub"))
        yield gantry
    finally:
        gantry.stop()


class Client:
    """A paho client, and everything that it hears."""

    def __init__(
        self, server: Guarded, user: str, password: str, client_id: str = "", version: int = paho.MQTTv311
    ) -> None:
        self.client = paho.Client(TWO, client_id=client_id, protocol=version, reconnect_on_failure=False)
        if user:
            self.client.username_pw_set(user, password)
        self.code = ""
        self.got: list[tuple[str, bytes]] = []
        self.codes: list[list[int]] = []
        self.acked: list[int] = []
        self.connected, self.lost = threading.Event(), threading.Event()
        self.client.on_connect = self._connected
        self.client.on_subscribe = lambda client, data, mid, codes, more: self.codes.append(
            [code.value for code in codes]
        )
        self.client.on_message = lambda client, data, message: self.got.append((message.topic, message.payload))
        self.client.on_publish = lambda client, data, mid, code, more: self.acked.append(code.value)
        self.client.on_disconnect = lambda *_: self.lost.set()
        self.client.connect(*server.address("mqtt"))
        self.client.loop_start()
        assert self.connected.wait(20)

    def _connected(self, client: object, data: object, flags: object, code: paho.ReasonCode, more: object) -> None:
        self.code = str(code)
        self.connected.set()

    def subscribe(self, topic: str) -> int:
        before = len(self.codes)
        self.client.subscribe(topic, 1)
        until(lambda: len(self.codes) > before, 20)
        return self.codes[-1][0]

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
def test_logins(server: Guarded, version: int) -> None:
    for user, password, code in (
        (ADMIN, PASSWORD, "Success"),
        ("device", "wrong", "Bad user name or password"),
        ("nobody", "x", "Bad user name or password"),
        ("", "", "Not authorized"),
    ):
        client = Client(server, user, password, version=version)
        assert client.code == code, user
        client.close()


def test_what_the_server_says_of_itself_needs_a_right(server: Guarded) -> None:
    watcher = Client(server, "watcher", "watcher-pass")
    assert watcher.subscribe("$SYS/broker/version") == 1
    until(lambda: [topic for topic, _ in watcher.got] == ["$SYS/broker/version"], 20)
    assert watcher.subscribe("$SYS/#") == 1
    assert watcher.subscribe("#") == 0x80
    device = Client(server, "device", "device-pass", "d9")
    for topic in ("$SYS/broker/version", "$SYS/#", "$SYS/+/version"):
        assert device.subscribe(topic) == 0x80, topic
    watcher.close()
    device.close()


def test_rights_of_a_device(server: Guarded) -> None:
    device = Client(server, "device", "device-pass", "d7")
    assert device.subscribe("plant/device/d7/#") == 1
    assert device.subscribe("news/+") == 1
    for topic in ("plant/#", "#", "plant/device/+/x", "plant/device/d8/#", "news2/#", "$share/g/plant/#"):
        assert device.subscribe(topic) == 0x80, topic
    device.client.publish("plant/device/d7/temp", b"21", 1)
    until(lambda: device.got == [("plant/device/d7/temp", b"21")], 20)
    device.client.publish("plant/device/d8/temp", b"forged", 1)
    assert device.lost.wait(20)  # 3.1.1 has no other answer
    device.close()


def test_a_refused_publish_has_a_reason_in_five(server: Guarded) -> None:
    device = Client(server, "device", "device-pass", "d9", paho.MQTTv5)
    device.client.publish("plant/other", b"forged", 1)
    until(lambda: device.acked == [0x87] or device.lost.is_set(), 20)
    device.close()


def test_native_rights_and_denials(server: Guarded) -> None:
    reader = Client(server, "reader", "reader-pass", "r")
    assert reader.subscribe("plant/hall/+") == 1
    assert reader.subscribe("plant/secret/x") == 0x80
    assert reader.subscribe("plant/#") == 0x80  # it would bring what is denied
    assert reader.subscribe("other/#") == 0x80
    reader.close()


def test_wildcards_in_names_widen_nothing(server: Guarded) -> None:
    device = Client(server, "device", "device-pass", "#")
    assert device.subscribe("plant/device/x/#") == 0x80
    device.close()


def test_rights_that_are_lost(server: Guarded) -> None:
    server.add_user("once", "o", ("topic:t1", "pub,sub"))
    client = Client(server, "once", "o", "c1")
    other = Client(server, ADMIN, PASSWORD, "c2")
    assert client.subscribe("t1/#") == 1
    other.client.publish("t1/a", b"1", 1)
    until(lambda: client.got == [("t1/a", b"1")], 20)
    server.accounts(lambda accounts: accounts.delete_rules("user:once"))
    until(lambda: "subscriptions end" in server.log(), 20)
    other.client.publish("t1/a", b"2", 1).wait_for_publish(20)
    assert client.subscribe("t1/#") == 0x80
    assert client.got == [("t1/a", b"1")]
    server.accounts(lambda accounts: accounts.delete_user("once"))
    assert client.lost.wait(20)
    client.close()
    other.close()
