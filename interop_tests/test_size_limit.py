"""One size limit for every door (`message.body_bytes_max`): a body of exactly that passes through all of them, one more byte through none."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pika
import pytest

from gantrymq.client import BlockingProducer, BrokerError, OutMessage
from interop_tests.cross_matrix import EXITS, SOURCES, Exits, Said
from interop_tests.running import Gantry
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import LIMIT_S

pytestmark = [
    # pika leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

MIB = 1 << 20
NAMES = {"paho": ("big/a", ""), "pika": ("big", "a"), "binary events": ("big", "a"), "producer": ("big", "a")}


@pytest.fixture(scope="module", params=[(64 * 1024, "separated"), (4 * MIB, ""), (15 * MIB, "separated")], ids=str)
def limited(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gantry, int]]:
    limit, shape = request.param
    settings = () if limit == 4 * MIB else (f"message.body_bytes_max={limit}",)
    gantry = Gantry(tmp_path_factory.mktemp("limited"), shape or "combined", settings)
    try:
        yield gantry.start(), limit
    finally:
        gantry.stop()


def test_exactly_the_limit_passes_every_door(limited: tuple[Gantry, int]) -> None:
    server, limit = limited
    exits = Exits(server, "big", ["big"], ["big"])
    try:
        bodies = []
        for number, (source, name) in enumerate(NAMES.items()):
            bodies.append(bytes([number]) * limit)
            SOURCES[source](server, [Said(name, bodies[-1], number)])
        for door in EXITS:
            heard = sorted(line.body for line in exits.collect(door, len(bodies)))
            assert heard == bodies, door
    finally:
        exits.close()


def test_a_retained_message_of_exactly_the_limit(limited: tuple[Gantry, int]) -> None:
    server, limit = limited
    topic = "kept/" + "t" * 4000
    publisher = Paho(server).start()
    publisher.publish(topic, b"r" * limit, 1, True)
    publisher.stop()
    reader = Paho(server).start()
    reader.subscribe(("kept/#", 1))
    assert reader.receive(1) == [(topic, b"r" * limit)]
    reader.stop()


def paho_refuses(server: Gantry, body: bytes) -> None:
    for retain in (False, True):
        client = Paho(server).start()
        client.client.publish("over/a", body, 1, retain)
        assert client.event("disconnect").is_failure
        client.client.loop_stop()
    reader = Paho(server).start()
    reader.subscribe(("over/#", 1))
    reader.publish("over/b", b"small")
    assert reader.receive(1) == [("over/b", b"small")]
    reader.stop()


def pika_refuses(server: Gantry, body: bytes) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(*server.address("amqp")))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("over", "topic", durable=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as failure:
        channel.basic_publish("over", "a", body)
    assert failure.value.reply_code == 406
    connection.close()


def http_refuses(server: Gantry, body: bytes) -> None:
    host, port = server.address("cloudevents")
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "a"}
    answer = httpx.post(f"http://{host}:{port}/topics/over", content=body, headers=headers, timeout=LIMIT_S)
    assert answer.status_code == 413


def producer_is_refused(server: Gantry, body: bytes) -> None:
    body = random.Random(1).randbytes(len(body))  # what the client's compression does not make smaller
    with BlockingProducer(server.doors["nameserver"]) as producer, pytest.raises(Exception, match=r"bytes") as failure:
        producer.send(OutMessage("over", body))
    assert isinstance(failure.value, BrokerError) or "15728640" in str(failure.value)


@pytest.mark.parametrize("refused", [paho_refuses, pika_refuses, http_refuses, producer_is_refused])
def test_one_more_byte_is_refused(limited: tuple[Gantry, int], refused: Callable[[Gantry, bytes], Any]) -> None:
    server, limit = limited
    refused(server, b"x" * (limit + 1))
