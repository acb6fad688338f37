"""Clients that do not read, trickle bytes, or stop half-way: memory stays bounded, they are shown out in time, nobody else notices."""

from __future__ import annotations

import gc
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop_tests import raw_peers as raw
from interop_tests.bench import remoting_wire
from interop_tests.raw_peers import Raw, frame, method, mqtt_text
from interop_tests.running import Gantry
from interop_tests.test_bad_input import Neighbours, failed_doors, length, lines_of, publish
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import until

pytestmark = [
    # pika leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
BODY = b"x" * (256 * 1024)
MESSAGES = 256
"""64 MiB for each reader that does not read."""
GROWTH_MIB_MAX = 48
STALLED_MS = 5000
"""Nobody who reads may stand still for so long, on a busy machine either."""


@pytest.fixture(params=["combined", "separated"])
def gantry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gantry]:
    gantry = Gantry(tmp_path, request.param, (f"server.stalled_reader_ms={STALLED_MS}",))
    try:
        yield gantry.start()
    finally:
        gantry.stop()
    gc.collect()


def anonymous_mib(gantry: Gantry) -> float:
    """RssAnon of all processes."""
    total = 0
    for process in gantry.processes:
        status = Path(f"/proc/{process.pid}/status").read_text()
        found = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")]
        total += int(found[0]) if found else 0
    return total / 1024


def mqtt_subscriber(gantry: Gantry) -> Raw:
    peer = raw.mqtt(gantry, receive_bytes=4096, client_id=b"deaf")
    body = b"\x00\x01" + mqtt_text(b"flood/#") + b"\x01"
    peer.send(b"\x82" + length(len(body)) + body)
    peer.exactly(5)
    return peer


def amqp_consumer(gantry: Gantry) -> Raw:
    peer = raw.amqp(gantry, receive_bytes=4096)
    peer.send(method(1, 50, 10, b"\x00\x00\x05flood\x02\x00\x00\x00\x00"))
    raw.read_frame(peer)
    peer.send(method(1, 50, 20, b"\x00\x00\x05flood\x05flood\x01#\x00\x00\x00\x00\x00"))
    raw.read_frame(peer)
    peer.send(method(1, 60, 20, b"\x00\x00\x05flood\x00\x02\x00\x00\x00\x00"))  # no-ack: nothing holds deliveries back
    raw.read_frame(peer)
    return peer


def puller(gantry: Gantry) -> Raw:
    """Asks for all four queues again and again in one go, and reads no answer."""
    peer = Raw(gantry, "broker", receive_bytes=4096)
    for opaque in range(400):
        fields = {
            "consumerGroup": "deaf", "topic": "flood", "queueId": str(opaque % 4), "queueOffset": "0", "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
        }  # fmt: skip
        peer.send(remoting_wire.encode(11, opaque, fields))
    return peer


def test_clients_that_do_not_read(gantry: Gantry) -> None:
    neighbours = Neighbours(gantry)
    neighbours.check()
    channel = neighbours.channel
    channel.exchange_declare("flood", "topic", durable=True)
    healthy = Paho(gantry).start()
    healthy.subscribe(("flood/#", 1))
    deaf = {"mqtt": mqtt_subscriber(gantry), "amqp": amqp_consumer(gantry)}
    before = anonymous_mib(gantry)
    pub = Paho(gantry).start()
    for number in range(MESSAGES):
        pub.publish(f"flood/{number % 16}", BODY)
    deaf["remoting"] = puller(gantry)
    assert [len(body) for _, body in healthy.receive(MESSAGES)] == [len(BODY)] * MESSAGES
    neighbours.check()
    grown = anonymous_mib(gantry) - before
    assert grown < GROWTH_MIB_MAX, f"{grown:.0f} MiB more than before"
    for name, peer in deaf.items():
        until(lambda peer=peer: lines_of(gantry, peer.peer))
        assert any("slow reader" in line or "stalled reader" in line for line in lines_of(gantry, peer.peer)), name
        peer.sock.close()
    pub.stop()
    healthy.stop()
    neighbours.check()
    neighbours.close()


HALVES: list[tuple[str, Callable[[Gantry], Raw], bytes]] = [
    ("mqtt", lambda gantry: raw.mqtt(gantry, client_id=b"half"), publish(b"a/b", b"x" * 1000)[:500]),
    ("amqp", raw.amqp, frame(1, 1, b"x" * 100)[:50]),
    ("broker", lambda gantry: Raw(gantry, "broker"), raw.REMOTING_REQUEST[:20]),
    ("nameserver", lambda gantry: Raw(gantry, "nameserver"), raw.REMOTING_REQUEST[:20]),
    ("cloudevents", lambda gantry: Raw(gantry, "cloudevents"), b"POST /topics/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nab"),
]  # fmt: skip


def test_half_a_frame_and_then_the_end(gantry: Gantry) -> None:
    """End of stream, or a reset, in the middle of a frame: the connection is gone, nothing is taken for whole."""
    neighbours = Neighbours(gantry)
    for reset, (door, begin, data) in itertools.product((False, True), HALVES):
        with begin(gantry) as peer:
            peer.send(data)
            if reset:
                peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            else:
                peer.sock.shutdown(socket.SHUT_WR)
                peer.to_end()
        assert not failed_doors(gantry), (door, reset)
    neighbours.check()
    neighbours.close()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_slow_loris(own_server: Gantry) -> None:
    """A byte now and then does not keep a place before the greeting is whole; those who wait politely stay."""
    neighbours = Neighbours(own_server)
    stop = threading.Event()
    tricklers = {
        "mqtt": raw.MQTT_CONNECT,
        "amqp": raw.AMQP_HEADER[:7],
        "cloudevents": b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 1000,
    }
    peers = {door: Raw(own_server, door) for door in tricklers}

    def trickle() -> None:
        for at in range(1000):
            for door, data in tricklers.items():
                peers[door].send(data[at : at + 1])
            if stop.wait(1.5):
                return

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        for door, peer in peers.items():
            peer.sock.settimeout(90)
            end = peer.to_end()
            until(lambda peer=peer: lines_of(own_server, peer.peer))
            if door == "cloudevents":
                assert raw.problem(end.answer)[0] == 408
    finally:
        stop.set()
        thread.join()
    for peer in peers.values():
        peer.sock.close()
    neighbours.check()
    neighbours.close()
