"""kill -9 in the middle of acknowledged publishes on every door at once: what was acknowledged is there, what was not sent is not, and what a
consumer has acknowledged does not come again."""

from __future__ import annotations

import gc
import itertools
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pika.exceptions
import pytest

from gantrymq.client import BlockingProducer, BlockingPullConsumer, MessageQueue, OutMessage
from gantrymq.model.errors import GantryError
from interop_tests.cloudevents_sinks import Sink, assigned
from interop_tests.running import Gantry
from interop_tests.test_mqtt_paho import WAIT_S, Paho
from interop_tests.waiting import until

pytestmark = [
    pytest.mark.crash,
    # pika leaves the sockets of connections that were cut to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ROUNDS = 3
PER_ROUND = 60
"""Acknowledgements that each door gives before the kill."""
ANSWER_S = 60.0
"""No publisher may give up before the kill, however slow the machine."""
PACE_S = 0.02
"""Between two windows of MQTT: no door is so much quicker than the slowest that webhooks have thousands to deliver."""
OFFSETS = re.compile(rb'\{"\d+":\d+(?:,"\d+":\d+)*\}')
LOG_BYTES_MAX = 8 << 20
"""The test that looks into the log writes far less."""
DOORS = ("mqtt", "amqp", "event", "native")


@pytest.fixture(params=["combined", "separated"])
def gantry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gantry]:
    gantry = Gantry(tmp_path, request.param, ("cloudevents.retry_first_ms=100",))
    try:
        yield gantry.start()
    finally:
        gantry.stop()
    gc.collect()


class Publisher(threading.Thread):
    """Publishes `<door>-<number>` to topic `crash`, tag `t.<number % 3>`, until the server is gone. Nothing is sent twice."""

    def __init__(self, server: Gantry, door: str, numbers: Iterator[int]) -> None:
        super().__init__(name=door)
        self.server = server
        self.door = door
        self.numbers = numbers
        self.sent: list[str] = []
        self.acknowledged: list[str] = []
        self.failure: BaseException | None = None
        self.over = threading.Event()
        """The server is killed: whoever has not noticed yet must not go on with its successor."""

    def next(self) -> tuple[str, str]:
        number = next(self.numbers)
        self.sent.append(f"{self.door}-{number}")
        return self.sent[-1], f"t.{number % 3}"

    def run(self) -> None:
        try:
            getattr(self, f"_{self.door}")()
        except (pika.exceptions.AMQPError, OSError, httpx.TransportError, GantryError, RuntimeError, ValueError):
            return
        except BaseException as error:
            self.failure = error
            raise

    def _mqtt(self) -> None:
        """Pipelined: 20 at a time."""
        paho = Paho(self.server)
        paho.client.reconnect_delay_set(600, 600)  # or it would send what was not acknowledged once more, rounds later
        paho.start()
        lost = threading.Event()
        paho.client.on_disconnect = lambda *_: lost.set()
        try:
            while not lost.wait(PACE_S):
                waiting = []
                for _ in range(20):
                    body, tag = self.next()
                    waiting.append((body, paho.client.publish(f"crash/{tag.replace('.', '/')}", body, 1)))
                until(lambda waiting=waiting: lost.is_set() or all(info.is_published() for _, info in waiting))
                self.acknowledged += [body for body, info in waiting if info.is_published()]
        finally:
            paho.client.loop_stop()

    def _amqp(self) -> None:
        channel = pika.BlockingConnection(pika.ConnectionParameters(*self.server.address("amqp"))).channel()
        channel.confirm_delivery()
        while not self.over.is_set():
            body, tag = self.next()
            channel.basic_publish("crash", tag, body.encode(), pika.BasicProperties(delivery_mode=2))
            self.acknowledged.append(body)

    def _event(self) -> None:
        host, port = self.server.address("cloudevents")
        with httpx.Client(timeout=ANSWER_S) as http:
            while not self.over.is_set():
                body, tag = self.next()
                headers = {"ce-id": body, "ce-source": "/crash", "ce-type": tag, "ce-specversion": "1.0"}
                headers["content-type"] = "text/plain"
                answer = http.post(f"http://{host}:{port}/topics/crash", headers=headers, content=body)
                if answer.status_code == 202:
                    self.acknowledged.append(body)
                else:
                    assert answer.status_code == 503, answer.text  # gateway alive, broker gone

    def _native(self) -> None:
        with BlockingProducer(self.server.doors["nameserver"], timeout_s=ANSWER_S, retries=0) as producer:
            while not self.over.is_set():
                body, tag = self.next()
                producer.send(OutMessage("crash", body.encode(), tag, sharding_key="one"))
                self.acknowledged.append(body)


def amqp(server: Gantry) -> Any:
    return pika.BlockingConnection(pika.ConnectionParameters(*server.address("amqp"))).channel()


def prepare(server: Gantry, sink: Sink) -> None:
    channel = amqp(server)
    channel.exchange_declare("crash", "topic", durable=True)
    channel.queue_declare("crash", durable=True)
    channel.queue_bind("crash", "crash", "#")
    channel.connection.close()
    session = Paho(server, "crash", False).start()
    session.subscribe(("crash/#", 1))
    session.stop()
    host, port = server.address("cloudevents")
    body = {"sink": sink.url, "protocol": "HTTP", "config": {"topic": "crash"}}
    assert httpx.post(f"http://{host}:{port}/subscriptions", json=body, timeout=ANSWER_S).status_code == 201


def from_queue(server: Gantry) -> list[str]:
    channel = amqp(server)
    got = []
    while True:
        method, _, body = channel.basic_get("crash", auto_ack=True)
        if method is None:
            break
        got.append(body.decode())
    channel.connection.close()
    return got


def from_session(server: Gantry, wanted: set[str]) -> list[str]:
    session = Paho(server, "crash", False).start()
    assert session.present
    got: list[str] = []
    while not wanted <= set(got):
        got.append(session.messages.get(timeout=WAIT_S).payload.decode())
    session.stop()
    return got + [message.payload.decode() for message in list(session.messages.queue)]


def from_pull(server: Gantry) -> list[str]:
    got = []
    with BlockingPullConsumer(server.doors["nameserver"], group="crash") as consumer:
        for queue in assigned(consumer, "crash"):
            offset = 0
            end = consumer.pull_queue(queue, offset).max_offset
            while offset < end:
                result = consumer.pull_queue(queue, offset)
                offset = result.next_offset
                got += [message.body.decode() for message in result.messages]
    return got


def in_the_log(server: Gantry, places: dict[MessageQueue, int]) -> bool:
    """Whether a record holds these committed offsets."""
    wanted = {str(queue.queue_id): offset for queue, offset in places.items()}
    first = min((server.directory / "data" / "store" / "commitlog").iterdir())
    with first.open("rb") as file:
        begin = file.read(LOG_BYTES_MAX)
    return any(json.loads(row) == wanted for row in OFFSETS.findall(begin))


def in_order(got: list[str], key: Callable[[int], int]) -> bool:
    """Whether what every door published is in order, per key of the number."""
    for door in DOORS:
        numbers = [int(body.partition("-")[2]) for body in got if body.startswith(door)]
        for value in {key(number) for number in numbers}:
            mine = [number for number in numbers if key(number) == value]
            if mine != sorted(mine):
                return False
    return True


def test_nothing_acknowledged_is_lost(gantry: Gantry) -> None:
    sent: set[str] = set()
    acknowledged: set[str] = set()
    counters = {door: itertools.count() for door in DOORS}
    with Sink() as sink:
        prepare(gantry, sink)
        for _ in range(ROUNDS):
            publishers = [Publisher(gantry, door, counters[door]) for door in DOORS]
            for publisher in publishers:
                publisher.start()
            until(lambda publishers=publishers: all(len(p.acknowledged) >= PER_ROUND for p in publishers), 120)
            gantry.kill()
            for publisher in publishers:
                publisher.over.set()
            gantry.restart()
            for publisher in publishers:
                publisher.join(2 * ANSWER_S)
                assert not publisher.is_alive()
                assert publisher.failure is None
                sent.update(publisher.sent)
                acknowledged.update(publisher.acknowledged)
        assert len(acknowledged) >= ROUNDS * PER_ROUND * len(DOORS)
        stored = from_pull(gantry)  # also what was stored and not acknowledged any more: it reaches everybody as well
        exits = {"queue": from_queue(gantry), "session": from_session(gantry, set(stored)), "pull": stored}
        for name, got in exits.items():
            assert acknowledged <= set(got), (name, sorted(acknowledged - set(got))[:10])
            assert set(got) <= sent, (name, sorted(set(got) - sent)[:10])
            again = [body for body, count in Counter(got).items() if count > 1]
            assert not again, (name, again[:10])
            assert in_order(got, lambda number: number % 3), name
        assert set(exits["queue"]) == set(exits["session"]) == set(stored)
        hooks = sink.wait(lambda hooks: set(stored) <= {hook.body.decode() for hook in hooks})
        assert {hook.body.decode() for hook in hooks} == set(stored)


def test_acknowledged_consumption_stays_so(gantry: Gantry) -> None:
    with Sink() as sink:
        prepare(gantry, sink)
        producer = BlockingProducer(gantry.doors["nameserver"], timeout_s=ANSWER_S)
        producer.send_many(
            [OutMessage("crash", b"native-%d" % number, "t.0", sharding_key="one") for number in range(90)]
        )
        producer.close()
        everything = [f"native-{number}" for number in range(90)]
        sink.wait(lambda hooks: len(hooks) >= 90)
        for round_ in range(3):
            part = everything[round_ * 20 : round_ * 20 + 20]
            channel = amqp(gantry)
            channel.confirm_delivery()
            for body in part:
                method, _, got = channel.basic_get("crash")
                assert got.decode() == body
                # After a crash what was possibly delivered counts as redelivered: the mark goes one basic.get ahead.
                assert not method.redelivered or (round_ and body == part[0])
                channel.basic_ack(method.delivery_tag)
            channel.basic_publish("", "nobody", b"")  # its confirm follows the acknowledgements

            session = Paho(gantry, "crash", False, manual_ack=True)
            session.client.max_inflight_messages_set(100)
            session.start()
            for body in part:
                message = session.messages.get(timeout=WAIT_S)
                assert message.payload.decode() == body
                session.client.ack(message.mid, message.qos)
            session.publish("other", "the acknowledgements went before this")
            session.client.loop_stop()

            with BlockingPullConsumer(gantry.doors["nameserver"], group="committed") as consumer:
                places = {}
                for queue in assigned(consumer, "crash"):
                    top = consumer.pull_queue(queue, 0).max_offset
                    places[queue] = min(top, (round_ + 1) * 20)
                consumer.commit(places)
            until(lambda places=places: in_the_log(gantry, places))  # within FLUSH_MS, if the machine is not busy
            gantry.kill_and_restart()
            with BlockingPullConsumer(gantry.doors["nameserver"], group="committed") as consumer:
                assigned(consumer, "crash")
                assert {queue: consumer.committed(queue) for queue in places} == places
        left = everything[60:]
        assert from_queue(gantry) == left
        assert from_session(gantry, set(left)) == left
