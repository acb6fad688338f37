"""Connections between the processes of a cluster over TLS, with certificates on both sides: nothing is said in plain text, and nobody else comes in."""

from __future__ import annotations

import gc
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.tests.net.tls.certs import client_context, make_certificates
from gantrymq.cluster.wire.codec import PROTOCOL_VERSION, GatewayCode, encode_body
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode
from interop_tests.commands import gantry
from interop_tests.running import Cluster, Process
from interop_tests.test_cluster_key import BODY, BROKER, ask
from interop_tests.test_mqtt_paho import WAIT_S, Paho
from interop_tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # paho's sockets


class TlsCluster(Cluster):
    """Every listener of nameservers and brokers asks for a certificate of the CA; those of `member` are the cluster's."""

    def __init__(self, directory: Path) -> None:
        certs = self.certs = make_certificates(directory / "certs", "member", "device")
        super().__init__(directory, brokers=2, gateways=1, settings=(
            f"tls.cert={certs}/server.pem", f"tls.key={certs}/server.key", f"tls.client_ca={certs}/ca.pem",
            f"tls.cluster_ca={certs}/ca.pem", f"tls.cluster_cert={certs}/member.pem", f"tls.cluster_cert_key={certs}/member.key",
            "auth.cluster_certificates=CN=member",
        ))  # fmt: skip

    def _start(self) -> None:
        listens = "listeners=tls://127.0.0.1:0?client_cert=required"
        self._each = {"nameserver": f"--set=nameserver.{listens}", "broker": f"--set=broker.{listens}"}
        self._together(
            [
                (
                    "ns0",
                    [
                        "nameserver",
                        "--data",
                        str(self.directory / "ns0.data"),
                        *self.settings,
                        self._each["nameserver"],
                    ],
                )
            ]
        )
        self._together([self._broker(number) for number in range(2)])
        self._together([self._gateway(0)])

    def _broker(self, number: int) -> tuple[str, list[str]]:
        name, command = super()._broker(number)
        return name, [*command, self._each["broker"]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    found = TlsCluster(tmp_path_factory.mktemp("tls"))
    try:
        yield found.start()  # type: ignore[misc]
    finally:
        found.stop()
        gc.collect()
        assert "Traceback" not in found.log()


def test_messages_go_through_all_processes(cluster: TlsCluster) -> None:
    gateway = cluster.at("gateway0")
    sub, pub = Paho(gateway, "keeper", False).start(), Paho(gateway).start()
    sub.subscribe(("+/x", 1))
    for number in range(8):
        pub.client.publish(f"tls{number}/x", b"%d" % number, 1).wait_for_publish(WAIT_S)
    assert sorted(sub.receive(8)) == [(f"tls{number}/x", b"%d" % number) for number in range(8)]
    sub.stop()
    pub.stop()


def test_who_has_another_certificate_is_no_member(cluster: TlsCluster) -> None:
    broker, nameserver = cluster.door("broker0", "broker"), cluster.door("ns0", "nameserver")
    device = client_context(cluster.certs, "device")
    hello = Command(GatewayCode.HELLO, None, encode_body([PROTOCOL_VERSION]), 1)
    registers = Command(RequestCode.REGISTER_BROKER, BROKER, BODY, 2)
    for address, command in ((broker, hello), (nameserver, registers)):
        answer = ask(address, command, device)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "auth.cluster_certificates" in (answer.remark or "")
    assert ask(broker, hello, client_context(cluster.certs, "member")).code == ResponseCode.SUCCESS
    with pytest.raises((ssl.SSLError, ConnectionError, ValueError)):  # TLS 1.3 says it at the first read
        ask(nameserver, Command(RequestCode.GET_BROKER_CLUSTER_INFO, opaque=5), client_context(cluster.certs))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("ca", "certificate refused"), ("none", ""), ("plain", "")],
)
def test_what_is_wrong_is_said(cluster: TlsCluster, tmp_path: Path, wrong: str, said: str) -> None:
    """Another CA, no certificate to show, and no TLS."""
    other = make_certificates(tmp_path / "other", "member")
    own = {"ca": f"{other}/ca.pem", "none": f"{cluster.certs}/ca.pem", "plain": ""}[wrong]
    command = ["gateway", "mqtt", *cluster._where(), "--data", str(tmp_path / "data"), f"--set=tls.cluster_ca={own}"]
    if wrong == "ca":
        command += [f"--set=tls.cluster_cert={other}/member.pem", f"--set=tls.cluster_cert_key={other}/member.key"]
    stranger = Process("stranger", tmp_path, command)
    stranger.launch()
    try:
        until(lambda: "no broker found" in stranger.log() and said in stranger.log(), 20)
    finally:
        stranger.kill()


def test_commands_that_ask_as_a_gateway(cluster: TlsCluster) -> None:
    def sessions(**variables: str) -> subprocess.CompletedProcess[str]:
        return gantry("mqtt", "sessions", *cluster._where(), **variables)

    certs = cluster.certs
    shown = {"GANTRY_TLS__CLUSTER_CERT": f"{certs}/member.pem", "GANTRY_TLS__CLUSTER_CERT_KEY": f"{certs}/member.key"}
    good = sessions(GANTRY_TLS__CLUSTER_CA=f"{certs}/ca.pem", **shown)
    assert good.returncode == 0, good.stderr
    assert sessions(**shown).returncode == 2, "whom would it trust"
    assert sessions().returncode
    own = {"CA": "ca.pem", "CERT": "device.pem", "KEY": "device.key"}
    listed = gantry(
        "topic", "list", *cluster._where(), **{f"GANTRY_TLS_{name}": f"{certs}/{file}" for name, file in own.items()}
    )
    assert listed.returncode == 0, listed.stderr
