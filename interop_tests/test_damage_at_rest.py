"""One byte of a message's body changes while the server is stopped: every other message comes through every door, that one through none, it is
named, and it comes when the byte is what it was."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pika
import pytest

from gantrymq.client import BlockingProducer, BlockingPullConsumer, BlockingSimpleConsumer, OutMessage
from interop_tests.cloudevents_sinks import Sink, assigned
from interop_tests.running import Gantry
from interop_tests.test_mqtt_paho import WAIT_S, Paho
from interop_tests.waiting import LIMIT_S, until

COUNT = 60
VICTIM = b"message 33 of sixty"
ALL = [b"message %d of sixty" % number for number in range(COUNT)]
OTHERS = [body for body in ALL if body != VICTIM]


class Doors:
    """One consumer of each kind, with a place of its own in the server."""

    def __init__(self, server: Gantry) -> None:
        self.server = server
        self.nameserver = server.doors["nameserver"]

    def prepare(self) -> None:
        """Make what gets the messages, then send them."""
        with BlockingProducer(self.nameserver) as producer:
            producer.send(OutMessage("d", b"first", tag="none"))
            sub = Paho(self.server, "keeper", False).start()
            sub.subscribe(("d/k", 1))
            sub.stop()
            with self.channel() as channel:
                channel.queue_declare("q", durable=True)
                channel.queue_bind("q", "d", "k")
            for body in ALL:
                producer.send(OutMessage("d", body, tag="k"))

    def channel(self) -> pika.adapters.blocking_connection.BlockingChannel:
        host, port = self.server.address("amqp")
        return pika.BlockingConnection(pika.ConnectionParameters(host, port)).channel()

    def mqtt(self, count: int) -> list[bytes]:
        sub = Paho(self.server, "keeper", False).start()
        found = [sub.messages.get(timeout=WAIT_S).payload for _ in range(count)]
        sub.publish("other", "what was acknowledged went before this")
        sub.stop()
        return found

    def amqp(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        with self.channel() as channel:
            while len(found) < count:
                _, _, body = channel.basic_get("q", auto_ack=True)
                if body is not None:
                    found.append(body)
            assert channel.basic_get("q", auto_ack=True)[2] is None
        return found

    def pull(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        with BlockingPullConsumer(self.nameserver, group="pullers", tags="k", auto_commit=False) as consumer:
            assigned(consumer, "d")
            while len(found) < count:
                found += [message.body for message in consumer.pull(wait_s=5)]
            assert consumer.pull(wait_s=0.1) == []
        return found

    def pop(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        with BlockingSimpleConsumer(self.nameserver, group="poppers") as consumer:
            consumer.subscribe("d", tags="k")
            while len(found) < count:
                for received in consumer.receive("d", wait_s=5):
                    found.append(received.message.body)
                    consumer.ack(received)
        return found

    def damage(self) -> list[dict[str, object]]:
        command = [
            sys.executable,
            "-m",
            "gantrymq",
            "store",
            "damage",
            "list",
            "--json",
            "--nameserver",
            self.nameserver,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]


def invert(server: Gantry, at: int = -1) -> int:
    """A byte of the victim's body in the log, there and back; returns its place."""
    path = min((Path(server.directory) / "data" / "store" / "commitlog").iterdir())
    with path.open("r+b") as file:
        at = file.read().find(VICTIM) + 5 if at < 0 else at
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0x80]))
    return at


@pytest.fixture
def hook() -> Iterator[Sink]:
    with Sink() as sink:
        yield sink


def test_a_changed_byte_hides_its_message_alone_and_not_for_ever(own_server: Gantry, hook: Sink) -> None:
    doors = Doors(own_server)
    doors.prepare()
    own_server.stop()
    at = invert(own_server)
    own_server.restart()
    host, port = own_server.address("cloudevents")
    with ExitStack() as stack:
        http = stack.enter_context(httpx.Client(timeout=LIMIT_S))
        config = {"topic": "d", "from": "earliest"}
        wanted = {"sink": hook.url, "protocol": "HTTP", "config": config}
        assert http.post(f"http://{host}:{port}/subscriptions", json=wanted).status_code == 201
    count = len(OTHERS)
    assert sorted(doors.pull(count)) == sorted(OTHERS)
    assert sorted(doors.pop(count)) == sorted(OTHERS)
    assert sorted(doors.amqp(count)) == sorted(OTHERS)
    assert sorted(doors.mqtt(count)) == sorted(OTHERS)
    hook.wait(lambda hooks: len(hooks) == count + 1)
    assert sorted(each.body for each in hook.hooks if each.body != b"first") == sorted(OTHERS)
    (row,) = until(lambda: [row for row in doors.damage() if len(row["waiting"]) == 4] or None)  # type: ignore[arg-type]
    assert isinstance(row["position"], int)
    assert isinstance(row["bytes"], int)
    assert row["position"] < at < row["position"] + row["bytes"]
    assert f"record at position {row['position']} " in own_server.log()
    own_server.stop()
    invert(own_server, at)
    own_server.restart()
    assert doors.pop(1) == doors.amqp(1) == doors.mqtt(1) == [VICTIM]
    hook.wait(lambda hooks: len(hooks) == count + 2)
    assert VICTIM in [each.body for each in hook.hooks]
    assert sorted(doors.pull(COUNT)) == sorted(ALL)
    assert doors.damage() == []
