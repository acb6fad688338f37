"""What one client may do to the others, over real sockets: use up topics, fill the log, send what no record can be, ask what is not its own."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pika
import pytest

from gantrymq.client import BlockingPullConsumer
from gantrymq.remoting.constants import RequestCode, ResponseCode
from interop_tests import raw_peers as raw
from interop_tests.bench import remoting_wire
from interop_tests.cloudevents_sinks import assigned
from interop_tests.running import Gantry
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import LIMIT_S, until

ROOT = Path(__file__).resolve().parents[1]
DISCONNECT = b"\xe0\x00"
SUBMIT = 60001

pytestmark = [
    # pika leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def publish(topic: str, packet_id: int, body: bytes = b"x") -> bytes:
    """A PUBLISH with QoS 1 of less than 128 bytes."""
    rest = raw.mqtt_text(topic.encode()) + struct.pack(">H", packet_id) + body
    return bytes([0x32, len(rest)]) + rest


def puback(packet_id: int) -> bytes:
    return b"\x40\x02" + struct.pack(">H", packet_id)


# MQTT.


@pytest.mark.parametrize("last", [DISCONNECT, b"\x00\x00"], ids=["DISCONNECT", "noise"])
def test_a_publish_followed_at_once_by_disconnect_gets_its_puback(server: Gantry, last: bytes) -> None:
    """Whatever ends the connection: what stands before it is acknowledged."""
    with raw.mqtt(server) as client:
        client.send(b"".join([publish("end/a", number) for number in (1, 2, 3)]) + last)
        assert client.to_end().answer == puback(1) + puback(2) + puback(3)


def test_close_slows_a_client_down_that_sends_the_same_again(own_server: Gantry) -> None:
    paho = Paho(own_server, client_id="stubborn")
    paho.client.reconnect_delay_set(1, 1)
    connects: list[float] = []
    paho.client.on_connect = lambda client, data, flags, code, props: connects.append(time.monotonic())
    paho.client.connect(*own_server.address("mqtt"))
    paho.client.loop_start()
    try:
        until(lambda: connects)
        paho.client.publish("t/" + "x" * 5000, b"poison", 1)
        until(lambda: len(connects) == 4)
    finally:
        paho.client.loop_stop()
        paho.client.disconnect()
    gaps = [later - earlier for earlier, later in itertools.pairwise(connects)]
    assert [gap >= 1.0 + number for number, gap in enumerate(gaps)] == [True] * 3, (
        gaps
    )  # the client's own second comes on top
    assert len([line for line in own_server.log().splitlines() if "tag" in line and "WARNING" in line]) == 1


def test_dead_letter_keeps_what_no_record_can_be(tmp_path: Path) -> None:
    server = Gantry(tmp_path, settings=("mqtt.refused_publish=dead_letter", "message.body_bytes_max=4MiB")).start()
    try:
        paho = Paho(server, client_id="device").start()
        long_tag, large = "t/" + "x" * 5000, bytes(4 * 1024 * 1024 + 1)
        paho.publish(long_tag, b"poison")
        paho.publish("t/large", large)
        paho.publish("t/fine", b"fine")
        paho.stop()
        with BlockingPullConsumer(server.doors["nameserver"], group="letters", start="earliest") as consumer:
            assigned(consumer, "%DLQ%gantry_mqtt")
            found = []
            until(lambda: found.extend(consumer.pull()) or len(found) >= 3)
        assert len(found) == 3
        parts = {message.property("GANTRY_DLQ_PART"): message for message in found}
        assert parts[""].body == b"poison"
        assert parts[""].property("GANTRY_MQTT_CLIENT") == "device"
        assert parts[""].property("GANTRY_DLQ_REASON")
        assert parts["1/2"].body + parts["2/2"].body == large
    finally:
        server.stop()


def test_one_client_fills_no_log(own_server: Gantry) -> None:
    """A fleet of a version that is not spoken, say: each connection is refused, and said, within limits."""
    connect = b"\x10\x0e\x00\x04MQTT\x06\x02\x00\x3c\x00\x02v6"
    before, begun = len(own_server.log().splitlines()), time.monotonic()
    for _ in range(3_000):
        raw.ended(own_server, "mqtt", connect)
    lines = len(own_server.log().splitlines()) - before
    # Each line that passes may be followed by one that says what was held back.
    assert lines <= 500 + 2 * 10 * (time.monotonic() - begun) + 10
    until(lambda: "held back" in own_server.log())


# Topics.


def send(sock: socket.socket, topic: str) -> int:
    """Response code of a native send that makes its topic."""
    fields = {"a": "attacker", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "j": "0", "k": "false", "m": "false"}  # fmt: skip
    sock.sendall(remoting_wire.encode(310, 1, fields, b"x"))
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack(">I", data[:4])[0]:
        data += sock.recv(65536)
    return remoting_wire.decode(data[4:])[0]


def test_one_connection_uses_up_no_topics(own_server: Gantry) -> None:
    """A hundred at once, then one a second; nobody else notices."""
    with socket.create_connection(own_server.address("broker"), LIMIT_S) as sock:
        begun = time.monotonic()
        codes = [send(sock, f"flood-{number}") for number in range(300)]
        made = codes.count(0)
        assert codes[:100] == [0] * 100
        assert made <= 101 + (time.monotonic() - begun)
        assert set(codes) == {0, ResponseCode.TOPIC_NOT_EXIST}
        assert send(sock, "flood-0") == 0  # what is there can be used
        until(lambda: send(sock, "one-a-second") == 0)
    paho = Paho(own_server).start()
    paho.publish("mine/a", b"x")
    paho.stop()
    with pika.BlockingConnection(pika.ConnectionParameters(*own_server.address("amqp"))) as connection:
        connection.channel().exchange_declare("declared", "topic")
    host, port = own_server.address("cloudevents")
    event = {"ce-id": "1", "ce-source": "/a", "ce-type": "a", "ce-specversion": "1.0"}
    assert httpx.post(f"http://{host}:{port}/topics/posted", headers=event, timeout=LIMIT_S).status_code == 202
    with socket.create_connection(own_server.address("broker"), LIMIT_S) as sock:
        assert send(sock, "anothers") == 0


# The gateway wire.


def malformed() -> Iterator[bytes]:
    """Rows of SUBMIT with wrong types."""
    good = ["bad", b"x", b"", "a", [], -1, 1, "", None, None, 0, 0]
    for column, wrong in (
        (1, 7),
        (2, "x"),
        (2, 3),
        (3, 5),
        (4, [1, 2]),
        (5, "q"),
        (7, 9),
        (0, 1),
        (10, None),
        (11, "x"),
    ):
        row = list(good)
        row[column] = wrong
        yield remoting_wire.encode(SUBMIT, column, {}, msgspec.msgpack.encode([[row], 0]))


def test_malformed_gateway_records_cost_nobody_an_answer(own_server: Gantry) -> None:
    frames = b"".join(malformed())
    over = threading.Event()
    answered = [0]

    def attack() -> None:
        with socket.create_connection(own_server.address("broker"), LIMIT_S) as sock:
            while not over.is_set():
                sock.sendall(frames)
                data = b""
                left = 10
                while left:
                    data += sock.recv(65536)
                    while len(data) >= 4 and len(data) >= 4 + struct.unpack(">I", data[:4])[0]:
                        size = struct.unpack(">I", data[:4])[0]
                        assert remoting_wire.decode(data[4 : 4 + size])[0] != 0
                        data = data[4 + size :]
                        left -= 1
                answered[0] += 10

    thread = threading.Thread(target=attack)
    thread.start()
    try:
        until(lambda: answered[0] >= 100)
        paho = Paho(own_server).start()
        host, port = own_server.address("cloudevents")
        event = {"ce-id": "1", "ce-source": "/a", "ce-type": "a", "ce-specversion": "1.0"}
        with (
            pika.BlockingConnection(pika.ConnectionParameters(*own_server.address("amqp"))) as connection,
            socket.create_connection(own_server.address("broker"), LIMIT_S) as sock,
            httpx.Client(base_url=f"http://{host}:{port}", timeout=LIMIT_S) as http,
        ):
            channel = connection.channel()
            channel.confirm_delivery()
            channel.exchange_declare("healthy", "topic", durable=True)
            for _ in range(100):
                paho.publish("healthy/a", b"x")
                channel.basic_publish("healthy", "a", b"x")
                assert send(sock, "healthy") == 0
                assert http.post("/topics/healthy", headers=event).status_code == 202
        paho.stop()
    finally:
        over.set()
        thread.join(LIMIT_S)
    assert answered[0] >= 200


# Strangers.

INSIDE = """
import json, socket, sys
from pathlib import Path
sys.path[:0] = {path!r}
from interop_tests.bench import remoting_wire
from interop_tests.running import Gantry
from interop_tests.test_attacks import ask_as

server = Gantry(Path({directory!r}), settings=("server.host=10.77.0.1", "server.insecure_bind=true", *{settings!r})).start()
try:
    found = {{"stranger": ask_as(server, "10.77.0.2"), "own": ask_as(server, "10.77.0.1")}}
finally:
    server.stop()
print("FOUND " + json.dumps(found))
"""
ASKED = {
    "GET_MAX_OFFSET": (RequestCode.GET_MAX_OFFSET, {"topic": "t", "queueId": "0"}),
    "DELETE_TOPIC": (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t"}),
    "UPDATE_BROKER_CONFIG": (RequestCode.UPDATE_BROKER_CONFIG, {}),
    "PUT": (60030, {}),
    "PRUNE_TOPICS": (60125, {"remove": "true"}),
    "REGISTER_BROKER": (RequestCode.REGISTER_BROKER, {}),
}


def ask_as(server: Gantry, source: str) -> dict[str, list[object]]:
    """Code and remark of each request, from that address of this machine."""
    found: dict[str, list[object]] = {}
    for name, (code, fields) in ASKED.items():
        door = "nameserver" if name == "REGISTER_BROKER" else "broker"
        with socket.create_connection(server.address(door), LIMIT_S, (source, 0)) as sock:
            sock.sendall(remoting_wire.encode(code, 1, fields))
            data = b""
            while len(data) < 4 or len(data) < 4 + struct.unpack(">I", data[:4])[0]:
                data += sock.recv(65536)
            answer = remoting_wire.decode(data[4:])
            found[name] = [answer[0], answer[3]]
    return found


def in_a_network_of_its_own(directory: Path, *settings: str) -> dict[str, dict[str, list[object]]]:
    """What two addresses of a network without other machines are answered; neither is a loopback address."""
    for tool in ("unshare", "ip"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no `{tool}` here (Debian: apt install util-linux iproute2)")
    addresses = " && ".join([f"ip addr add 10.77.0.{number}/32 dev lo" for number in (1, 2)])
    if subprocess.run(
        ["unshare", "-rn", "sh", "-c", f"ip link set lo up && {addresses}"], capture_output=True
    ).returncode:
        pytest.skip("this system gives no network namespace to its users (unshare -rn)")
    program = INSIDE.format(path=[str(ROOT), str(ROOT / "core")], directory=str(directory), settings=list(settings))
    done = subprocess.run(
        [
            "unshare",
            "-rn",
            "sh",
            "-c",
            f'ip link set lo up && {addresses} && exec "$0" -c "$1"',
            sys.executable,
            program,
        ],
        capture_output=True,
        check=False,
        timeout=LIMIT_S * 2,
        env=dict(os.environ),
        cwd=ROOT,
    )
    lines = [line for line in done.stdout.decode().splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr.decode()[-3000:]
    found: dict[str, dict[str, list[object]]] = json.loads(lines[0].removeprefix("FOUND "))
    return found


def test_a_stranger_is_answered_clients_requests_alone(tmp_path: Path) -> None:
    found = in_a_network_of_its_own(tmp_path)
    refused = {
        name
        for name, (code, remark) in found["stranger"].items()
        if code == ResponseCode.NO_PERMISSION and re.search("server.trusted_networks", str(remark))
    }
    assert refused == set(ASKED) - {"GET_MAX_OFFSET"}
    assert not [name for name, (code, _) in found["own"].items() if code == ResponseCode.NO_PERMISSION]


def test_a_trusted_network_is_answered(tmp_path: Path) -> None:
    found = in_a_network_of_its_own(tmp_path, "server.trusted_networks=10.77.0.0/24")
    assert not [name for name, (code, _) in found["stranger"].items() if code == ResponseCode.NO_PERMISSION]
