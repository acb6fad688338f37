"""Client certificates instead of passwords at the MQTT door (Mosquitto's use_identity_as_username), with paho over TLS."""

from __future__ import annotations

import hashlib
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from gantrymq.cli.security.certificates import Authority
from interop_tests.accounts import Guarded
from interop_tests.waiting import until

TWO = paho.CallbackAPIVersion.VERSION2


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    authority = Authority(directory, 2)
    authority.issue("server", "localhost", ["localhost", "127.0.0.1"])
    for name in ("device-7", "pinned", "stranger"):
        authority.issue(name, name if name != "pinned" else "some other name", [])
    return directory


@pytest.fixture(scope="module")
def server(certs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    tls = (f"tls.cert={certs}/server.pem", f"tls.key={certs}/server.key", f"tls.client_ca={certs}/ca.pem")
    listeners = "mqtt.listeners=tls://127.0.0.1:0?client_cert=optional"
    gantry = Guarded(tmp_path_factory.mktemp("gantry"), settings=(*tls, listeners))
    try:
        gantry.start()
        pem = (certs / "pinned.pem").read_text()
        first = pem[: pem.index("-----END CERTIFICATE-----")] + "-----END CERTIFICATE-----\n"
        fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()
        gantry.add_user("device-7", "unused", ("mqtt:plant/%u/#", "pub,sub"))
        gantry.add_user("by-print", "unused", ("mqtt:plant/%u/#", "pub,sub"), certificates=[f"sha256:{fingerprint}"])
        yield gantry
    finally:
        gantry.stop()


class Device:
    """A client with a certificate, and what it hears."""

    def __init__(
        self, server: Guarded, certs: Path, certificate: str, user: str = "", version: int = paho.MQTTv311
    ) -> None:
        self.client = paho.Client(TWO, client_id=f"c-{certificate}", protocol=version, reconnect_on_failure=False)
        files = (
            {"certfile": f"{certs}/{certificate}.pem", "keyfile": f"{certs}/{certificate}.key"} if certificate else {}
        )
        self.client.tls_set(f"{certs}/ca.pem", **files)
        if user:
            self.client.username_pw_set(user, "wrong")
        self.code = -1
        self.got: list[str] = []
        self.connected, self.lost, self.subscribed = threading.Event(), threading.Event(), threading.Event()
        self.client.on_connect = self._connected
        self.client.on_disconnect = lambda *_: self.lost.set()
        self.client.on_subscribe = lambda *_: self.subscribed.set()
        self.client.on_message = lambda client, data, message: self.got.append(message.topic)
        self.client.connect(*server.address("mqtt"))
        self.client.loop_start()
        assert self.connected.wait(60)

    def _connected(self, client: object, data: object, flags: object, code: paho.ReasonCode, more: object) -> None:
        self.code = code.value
        self.connected.set()

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.parametrize(("certificate", "user"), [("device-7", "device-7"), ("pinned", "by-print")])
@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
def test_a_certificate_is_its_user(server: Guarded, certs: Path, certificate: str, user: str, version: int) -> None:
    device = Device(server, certs, certificate, version=version)
    try:
        assert device.code == 0
        device.client.subscribe(f"plant/{user}/#", 1)
        assert device.subscribed.wait(60)
        device.client.publish(f"plant/{user}/temp", b"1", 1).wait_for_publish(60)
        until(lambda: device.got == [f"plant/{user}/temp"])
        if version == paho.MQTTv311:
            device.client.publish("plant/another/temp", b"1", 1)
            assert device.lost.wait(60), "what its user may not publish closes the connection"
    finally:
        device.stop()


@pytest.mark.parametrize(("certificate", "user"), [("stranger", ""), ("", ""), ("device-7", "device-7")])
def test_no_user_of_that_name_no_certificate_and_a_wrong_password_beside_one(
    server: Guarded, certs: Path, certificate: str, user: str
) -> None:
    """A name and password that are said count, not the certificate."""
    device = Device(server, certs, certificate, user)
    try:
        assert device.code in (0x86, 0x87)  # as paho tells 4 and 5
    finally:
        device.stop()
