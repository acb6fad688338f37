"""A server without room, by pika: who publishes is held up and told so, all others go on, and nothing that was sent is missing when there is room again."""

from __future__ import annotations

import fcntl
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from interop_tests import held_disk, small_disk
from interop_tests.running import Gantry
from interop_tests.waiting import until

pytestmark = [
    # pika leaves the sockets of connections that were cut to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

BEAT_S = 1
LONG_S = 5.0 * BEAT_S
"""Longer than the server waits for a word of a client."""
WAITING = 20
DISK_MS = 100
BODY = bytes(64 * 1024)


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


class Room:
    """A server that can be without room. `kind`: `disk` (the watermark) or `memory` (what waits for the disk)."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.kind = kind
        self.file = directory / "disk"
        memory = ("store.flush=sync", f"broker.pending_ms_max={DISK_MS}")
        self.server = Gantry(directory, settings=memory if kind == "memory" else ())
        self.server.program = [(held_disk if kind == "memory" else small_disk).__file__, str(self.file)]
        self.reason = "server busy" if kind == "memory" else "no space left in the store"

    @contextmanager
    def none(self) -> Iterator[None]:
        """Meanwhile there is no room."""
        self.file.touch()
        if self.kind == "memory":
            with self.file.open() as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                yield
        else:
            yield
            self.file.unlink()


@pytest.fixture(params=["disk", "memory"])
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Room]:
    room = Room(tmp_path, request.param)
    room.file.touch(exist_ok=True)
    if room.kind == "disk":
        room.file.unlink()
    try:
        room.server.start()
        yield room
        room.server.stop()
    finally:
        room.server.kill()


class Client:
    """A connection with a channel, and what it was told."""

    def __init__(self, server: Gantry) -> None:
        host, port = server.address("amqp")
        self.connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=BEAT_S))
        self.channel: Any = self.connection.channel()
        self.told: list[str] = []
        self.connection.add_on_connection_blocked_callback(
            lambda connection, frame: self.told.append(f"blocked: {frame.method.reason}")
        )
        self.connection.add_on_connection_unblocked_callback(lambda connection, frame: self.told.append("unblocked"))

    def listen(self) -> None:
        self.connection.process_data_events(time_limit=0.02)

    def ready(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)


def test_publishers_wait_and_all_others_go_on(room: Room) -> None:
    first, publisher, confirming, consumer, other = (Client(room.server) for _ in range(5))
    for queue in ("jobs", "full"):
        other.channel.queue_declare(queue, durable=True)
    confirming.channel.confirm_delivery()
    for number in range(WAITING):
        confirming.channel.basic_publish("", "jobs", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    sent = WAITING
    with room.none():
        for _ in range(WAITING):  # what waits for the disk; who sent it is told in its turn
            first.channel.basic_publish("", "full", BODY, pika.BasicProperties(delivery_mode=2))
        begin = time.monotonic()  # for longer than it may the disk answers nobody
        until(lambda: time.monotonic() > begin + 10 * DISK_MS / 1000)
        while not publisher.told:
            publisher.channel.basic_publish("", "full", BODY, pika.BasicProperties(delivery_mode=2))
            sent += 1
            for client in (first, publisher, confirming, consumer, other):
                client.listen()
        end = time.monotonic() + LONG_S
        got: list[bytes] = []

        def taken(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            got.append(body)
            channel.basic_ack(method.delivery_tag)

        consumer.channel.basic_qos(prefetch_count=1)
        consumer.channel.basic_consume("jobs", taken)
        while time.monotonic() < end or len(got) < WAITING:
            assert time.monotonic() < end + 60
            for client in (first, publisher, consumer, confirming):
                client.listen()
            other.channel.queue_declare("jobs", passive=True)
        assert got == [b"%d" % number for number in range(WAITING)]
        assert publisher.told == [f"blocked: {room.reason}"]
        assert [client.told for client in (confirming, consumer, other)] == [[], [], []]
        with pytest.raises(pika.exceptions.NackError):
            confirming.channel.basic_publish("", "full", BODY)

    def room_again() -> bool:
        for client in (first, publisher, confirming, consumer, other):
            client.listen()
        return all(not client.told or client.told[-1] == "unblocked" for client in (first, publisher, confirming))

    until(room_again)
    assert publisher.told == [f"blocked: {room.reason}", "unblocked"]
    publisher.channel.basic_publish("", "full", BODY, pika.BasicProperties(delivery_mode=2))
    until(lambda: publisher.ready("full") == sent + 1)
    confirming.channel.basic_publish("", "full", BODY)
    until(lambda: room_again() and other.ready("full") == sent + 2)
    assert [client.told for client in (consumer, other)] == [[], []]
    for client in (first, publisher, confirming, consumer, other):
        client.connection.close()
