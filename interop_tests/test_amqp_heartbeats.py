"""Peers of AMQP that are silent, gone without a word, slow or busy, over real sockets: who says nothing is closed in its time (AMQP 0-9-1, 4.2.7), nobody else."""

from __future__ import annotations

import gc
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pika
import pika.exceptions
import pytest

from interop_tests import raw_peers
from interop_tests.running import Gantry
from interop_tests.test_amqp_clients import unique
from interop_tests.waiting import LIMIT_S, until

pytestmark = [
    # pika leaves the sockets of connections that were cut to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

BEAT_S = 1
LEAST_S = 2.0 * BEAT_S
"""Nobody is given up before."""
LONG_S = 6.0 * BEAT_S
"""Twice what the server gives a silent peer: who is there now stays."""
HEARTBEAT = raw_peers.frame(8, 0, b"")
MISSED = "closed: missed heartbeats from client"


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


def connect(server: Gantry, heartbeat_s: int = 0, port: int = 0) -> Any:
    host, own = server.address("amqp")
    return pika.BlockingConnection(pika.ConnectionParameters(host, port or own, heartbeat=heartbeat_s))


@pytest.fixture
def queue(combined: Gantry) -> Iterator[str]:
    name = unique("beats")
    connection = connect(combined)
    channel = connection.channel()
    channel.queue_declare(name)
    channel.confirm_delivery()
    for number in range(3):
        channel.basic_publish("", name, b"%d" % number)
    combined.mark_log()
    yield name
    channel.queue_delete(name)
    connection.close()


def shortstr(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def take(queue: str) -> bytes:
    """basic.get"""
    return raw_peers.method(1, 60, 70, b"\x00\x00" + shortstr(queue) + b"\x00")


def consume(queue: str) -> bytes:
    """basic.consume without acknowledgements"""
    return raw_peers.method(1, 60, 20, b"\x00\x00" + shortstr(queue) + b"\x00\x02" + bytes(4))


def publish(queue: str, body: bytes) -> bytes:
    header = struct.pack(">HHQH", 60, 0, len(body), 0)
    return (
        raw_peers.method(1, 60, 40, b"\x00\x00\x00" + shortstr(queue) + b"\x00")
        + raw_peers.frame(2, 1, header) + raw_peers.frame(3, 1, body)
    )  # fmt: skip


def read_until_closed(raw: raw_peers.Raw) -> float:
    """Seconds until the server ends the connection, however it does."""
    begin = time.monotonic()
    with suppress(ConnectionResetError):
        while raw.sock.recv(65536):
            pass
    return time.monotonic() - begin


def is_open(raw: raw_peers.Raw) -> bool:
    """Reads what is there."""
    while select.select([raw.sock], [], [], 0)[0]:
        try:
            if not raw.sock.recv(65536):
                return False
        except ConnectionResetError:
            return False
    return True


def everything(server: Gantry, queue: str) -> list[tuple[bytes, bool]]:
    connection = connect(server)
    channel = connection.channel()
    until(lambda: channel.queue_declare(queue, passive=True).method.message_count == 3)
    found = [channel.basic_get(queue, auto_ack=True) for _ in range(3)]
    connection.close()
    return [(body, method.redelivered) for method, _, body in found]


def test_a_silent_client_is_closed_and_its_messages_go_back(combined: Gantry, queue: str) -> None:
    silent = raw_peers.amqp(combined, heartbeat_s=BEAT_S)
    patient = raw_peers.amqp(combined, heartbeat_s=60)
    busy = connect(combined)
    done = threading.Event()
    rounds: list[float] = []

    def work() -> None:
        channel = busy.channel()
        while not done.is_set():
            begin = time.monotonic()
            channel.queue_declare(queue, passive=True)
            rounds.append(time.monotonic() - begin)

    worker = threading.Thread(target=work)
    worker.start()
    silent.send(take(queue) + take(queue))
    took_s = read_until_closed(silent)
    done.set()
    worker.join(LIMIT_S)
    assert LEAST_S <= took_s < LIMIT_S
    assert len(rounds) > 10, "others went on"
    assert max(rounds) < took_s
    assert everything(combined, queue) == [(b"0", True), (b"1", True), (b"2", False)]
    assert f"{silent.peer}: {MISSED}" in combined.new_log()
    assert is_open(patient), "it has agreed to a minute"
    patient.sock.close()
    silent.sock.close()
    busy.close()


class Relay:
    """Between a client and the server, until the cable is pulled: then nothing passes, and nobody is told."""

    def __init__(self, server: Gantry) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._target = server.address("amqp")
        self.pulled = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        client, _ = self._listening.accept()
        with client, socket.create_connection(self._target) as server:
            self.peer = "{}:{}".format(*server.getsockname())
            while not self.pulled.is_set():
                for ready in select.select([client, server], [], [], 0.02)[0]:
                    other = server if ready is client else client
                    data = ready.recv(65536)
                    if not data:
                        return
                    other.sendall(data)
            self._end.wait(LIMIT_S)

    def close(self) -> None:
        self.pulled.set()
        self._end.set()
        self._thread.join(LIMIT_S)
        self._listening.close()


def test_a_peer_that_vanishes_without_a_word(combined: Gantry, queue: str) -> None:
    relay = Relay(combined)
    gone = connect(combined, BEAT_S, relay.port)
    try:
        channel = gone.channel()
        channel.basic_get(queue)
        channel.basic_get(queue)
        relay.pulled.set()
        begin = time.monotonic()
        until(lambda: f"{relay.peer}: {MISSED}" in combined.new_log())
        assert time.monotonic() - begin >= LEAST_S / 2
        assert everything(combined, queue) == [(b"0", True), (b"1", True), (b"2", False)]
        with pytest.raises(pika.exceptions.AMQPHeartbeatTimeout):
            until(lambda: gone.process_data_events(time_limit=0.1))
    finally:
        relay.close()


def test_a_vanished_consumer_amid_a_flood(combined: Gantry, queue: str) -> None:
    """The server has more for it than any buffer on the way takes."""
    flood = unique("flood")
    sender = connect(combined)
    channel = sender.channel()
    channel.queue_declare(flood)
    channel.confirm_delivery()
    for _ in range(32):
        channel.basic_publish("", flood, bytes(1 << 20))
    gone = raw_peers.amqp(combined, receive_bytes=4096, heartbeat_s=BEAT_S)
    gone.send(take(queue) + take(queue) + consume(flood))
    until(lambda: channel.queue_declare(flood, passive=True).method.consumer_count == 1)
    until(lambda: f"{gone.peer}: {MISSED}" in combined.new_log())
    assert everything(combined, queue) == [(b"0", True), (b"1", True), (b"2", False)]
    assert channel.queue_declare(flood, passive=True).method.consumer_count == 0
    channel.queue_delete(flood)
    gone.sock.close()
    sender.close()


def test_a_busy_publisher_needs_no_heartbeats(combined: Gantry, queue: str) -> None:
    busy = raw_peers.amqp(combined, heartbeat_s=BEAT_S)
    never = threading.Event()
    end = time.monotonic() + LONG_S
    sent = 0
    while time.monotonic() < end:
        busy.send(publish(queue, b"m"))
        sent += 1
        never.wait(0.3 * BEAT_S)
        assert is_open(busy)
    assert read_until_closed(busy) >= LEAST_S / 2, "now it is silent"
    connection = connect(combined)
    assert connection.channel().queue_declare(queue, passive=True).method.message_count == 3 + sent
    connection.close()
    busy.sock.close()


def test_one_frame_in_pieces_is_no_silence(combined: Gantry, queue: str) -> None:
    """Octets count, not frames."""
    slow = raw_peers.amqp(combined, heartbeat_s=BEAT_S)
    never = threading.Event()
    data = publish(queue, b"m" * 20)
    step = len(data) * BEAT_S / LONG_S * 0.3
    at = 0.0
    while at < len(data):
        slow.send(data[int(at) : int(at + step)])
        at += step
        never.wait(0.3 * BEAT_S)
        assert is_open(slow)
    connection = connect(combined)
    channel = connection.channel()
    until(lambda: channel.queue_declare(queue, passive=True).method.message_count == 4)
    connection.close()
    slow.sock.close()


def test_who_reads_slowly_is_judged_by_what_it_says(combined: Gantry, queue: str) -> None:
    """Two read hardly anything while the server writes all the time: the one that sends heartbeats stays."""
    flood = unique("flood")
    sender = connect(combined)
    channel = sender.channel()
    channel.exchange_declare(flood, "fanout")
    channel.confirm_delivery()
    beating, silent = (raw_peers.amqp(combined, receive_bytes=4096, heartbeat_s=BEAT_S) for _ in range(2))
    for number, raw in enumerate((beating, silent)):
        channel.queue_declare(f"{flood}{number}")
        channel.queue_bind(f"{flood}{number}", flood)
        raw.send(consume(f"{flood}{number}"))
    for _ in range(32):
        channel.basic_publish(flood, "", bytes(1 << 20))
    never = threading.Event()
    end = time.monotonic() + LONG_S
    while time.monotonic() < end or f"{silent.peer}: {MISSED}" not in combined.new_log():
        assert time.monotonic() < end + LIMIT_S
        beating.send(HEARTBEAT)
        for raw in (beating, silent):
            with suppress(ConnectionResetError):
                raw.sock.recv(100)
        never.wait(0.3 * BEAT_S)
    assert beating.peer not in combined.new_log()
    assert channel.queue_declare(f"{flood}0", passive=True).method.consumer_count == 1
    assert channel.queue_declare(f"{flood}1", passive=True).method.consumer_count == 0
    for raw in (beating, silent):
        raw.sock.close()
    for number in range(2):
        channel.queue_delete(f"{flood}{number}")
    channel.exchange_delete(flood)
    sender.close()
