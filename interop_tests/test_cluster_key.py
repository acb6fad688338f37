"""Processes of a cluster that share a key: they work together, and nobody else is taken for one of them, also on this machine."""

from __future__ import annotations

import gc
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.auth.members.key import parse_key
from gantrymq.client import BlockingPullConsumer
from gantrymq.cluster.wire.codec import PROTOCOL_VERSION, GatewayCode, encode_body
from gantrymq.remoting.codec import Command, FrameReader, encode
from gantrymq.remoting.constants import RequestCode, ResponseCode
from interop_tests.accounts import Guarded
from interop_tests.cloudevents_sinks import assigned
from interop_tests.commands import gantry
from interop_tests.running import Cluster, Process
from interop_tests.test_mqtt_paho import WAIT_S, Paho
from interop_tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # paho's sockets

KEY, OTHER = "0123456789abcdef" * 4, "fedcba9876543210" * 4
BROKER = {
    "brokerName": "x",
    "brokerAddr": "127.0.0.1:1",
    "clusterName": "DefaultCluster",
    "haServerAddr": "127.0.0.1:2",
    "brokerId": "0",
}
BODY = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{},"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5}}}'


def key_file(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("keyed")
    found = Cluster(
        directory, brokers=2, gateways=1, settings=(f"auth.cluster_key_file={key_file(directory, 'cluster.key', KEY)}",)
    )
    try:
        yield found.start()
    finally:
        found.stop()
        gc.collect()
        assert "Traceback" not in found.log()
        assert KEY not in found.log()


def ask(address: tuple[str, int], command: Command, context: ssl.SSLContext | None = None) -> Command:
    """Of a stranger on this machine. Raises ConnectionError where there is no answer."""
    frames = FrameReader()
    plain = socket.create_connection(address, 30)
    with context.wrap_socket(plain, server_hostname=address[0]) if context is not None else plain as connection:
        connection.sendall(encode(command))
        answers: list[Command] = []
        while not answers:
            if not (data := connection.recv(65536)):
                raise ConnectionError("closed")
            answers = frames.feed(data)
    return answers[0]


def test_messages_go_through_all_processes(cluster: Cluster) -> None:
    gateway = cluster.at("gateway0")
    sub, pub = Paho(gateway, "keeper", False).start(), Paho(gateway).start()
    sub.subscribe(("+/x", 1))
    for number in range(8):
        pub.client.publish(f"keyed{number}/x", b"%d" % number, 1).wait_for_publish(WAIT_S)
    assert sorted(sub.receive(8)) == [(f"keyed{number}/x", b"%d" % number) for number in range(8)]
    sub.stop()
    pub.stop()
    with BlockingPullConsumer(cluster.nameservers, group="check") as consumer:  # a client that has no key
        brokers = {queue.broker for number in range(8) for queue in assigned(consumer, f"keyed{number}")}
    assert brokers == {"broker-0", "broker-1"}


def test_a_stranger_on_this_machine_is_no_gateway_and_no_broker(cluster: Cluster) -> None:
    hello = Command(GatewayCode.HELLO, None, encode_body([PROTOCOL_VERSION]), 1)
    put = Command(GatewayCode.PUT, None, encode_body(["x", [["k", b"v"]]]), 2)
    broker, nameserver = cluster.door("broker0", "broker"), cluster.door("ns0", "nameserver")
    registers = [
        Command(RequestCode.REGISTER_BROKER, BROKER, BODY, 3),
        Command(RequestCode.UNREGISTER_BROKER, BROKER | {"brokerName": "broker-0"}, b"", 4),
    ]
    for address, command in [(broker, hello), (broker, put), *[(nameserver, each) for each in registers]]:
        answer = ask(address, command)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "auth.cluster_key_file" in (answer.remark or "")
    info = ask(nameserver, Command(RequestCode.GET_BROKER_CLUSTER_INFO, opaque=5))
    assert info.code == 0
    assert b"broker-0" in info.body
    assert b'"x"' not in info.body


@pytest.mark.parametrize("role", ["broker", "gateway"])
def test_a_wrong_key_is_said_on_both_sides(cluster: Cluster, tmp_path: Path, role: str) -> None:
    wrong = key_file(tmp_path, "wrong.key", OTHER)
    command = [role, *(["mqtt"] if role == "gateway" else ["--set=broker.name=stranger"])]
    where = [
        "--nameserver",
        cluster.nameservers,
        "--data",
        str(tmp_path / "data"),
        f"--set=auth.cluster_key_file={wrong}",
    ]
    stranger = Process("stranger", tmp_path, [*command, *where])
    cluster.mark_log()
    stranger.launch()
    try:
        said = f"has another cluster key ('{parse_key(OTHER).id}') than is taken here ({parse_key(KEY).id})"
        until(lambda: said in stranger.log() and said in cluster.process("ns0").log()[cluster.process("ns0").marked :])
        assert OTHER not in stranger.log()
    finally:
        stranger.kill()
    info = ask(cluster.door("ns0", "nameserver"), Command(RequestCode.GET_BROKER_CLUSTER_INFO, opaque=5))
    assert b"stranger" not in info.body


def test_commands_that_ask_as_a_gateway(cluster: Cluster) -> None:
    def sessions(**variables: str) -> subprocess.CompletedProcess[str]:
        return gantry("mqtt", "sessions", "--nameserver", cluster.nameservers, **variables)

    path = str(cluster.directory / "cluster.key")
    assert sessions(GANTRY_AUTH__CLUSTER_KEY_FILE=path).returncode == 0
    assert sessions(GANTRY_AUTH__CLUSTER_KEY=KEY).returncode == 0
    refused = sessions(GANTRY_AUTH__CLUSTER_KEY="short")
    assert refused.returncode == 2
    assert "auth.cluster_key (environment GANTRY_AUTH__CLUSTER_KEY): key 1: must be 32" in refused.stderr
    without = sessions()
    assert without.returncode
    assert "auth.cluster_key_file" in without.stderr


@pytest.mark.parametrize("shape", ["combined", pytest.param("separated", marks=pytest.mark.slow)])
def test_users_and_a_key(tmp_path: Path, shape: str) -> None:
    path = key_file(tmp_path, "cluster.key", KEY)
    server = Guarded(tmp_path, shape, (f"auth.cluster_key_file={path}",))
    try:
        server.start()
        server.add_user("alice", "alice-pass", ("mqtt:own/#", "pub,sub"))
        client = Paho(server, "alice-1")
        client.client.username_pw_set("alice", "alice-pass")
        client.start()
        client.subscribe(("own/#", 1))
        client.client.publish("own/x", b"1", 1).wait_for_publish(WAIT_S)
        assert client.receive(1) == [("own/x", b"1")]
        client.stop()
        answer = ask(server.address("broker"), Command(GatewayCode.HELLO, None, encode_body([PROTOCOL_VERSION]), 1))
        assert answer.code == ResponseCode.NO_PERMISSION
    finally:
        server.stop()
    gc.collect()
    assert "Traceback" not in server.log()
