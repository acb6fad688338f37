"""One size limit for every door: a body of exactly that passes through all of them, one more byte through none. It is `message.body_bytes_max`,
else RocketMQ's where a directory was taken over from it, else the largest; of a cluster's brokers the smallest.
"""

from __future__ import annotations

import queue
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import paho.mqtt.client as mqtt
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from gantrymq.client import BlockingProducer, BrokerError, OutMessage
from gantrymq_gateways.mqtt.wire.connection import HEADER_BYTES_MAX
from interop_tests.cross_matrix import EXITS, SOURCES, Exits, Said
from interop_tests.running import Cluster, Gantry
from interop_tests.test_mqtt_paho import WAIT_S, Paho
from interop_tests.waiting import LIMIT_S, until
from tests.store.rocketmq_fixture import with_large_segments

pytestmark = [
    # pika leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

MIB = 1 << 20
NAMES = {"paho": ("big/a", ""), "pika": ("big", "a"), "binary events": ("big", "a"), "producer": ("big", "a")}


@pytest.fixture(
    scope="module", params=[(64 * 1024, "separated"), (4 * MIB, "combined"), (15 * MIB, "separated")], ids=str
)
def limited(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gantry, int]]:
    limit, shape = request.param
    directory = tmp_path_factory.mktemp("limited")
    if limit == 4 * MIB:
        with_large_segments(directory / "data")
    settings = (f"message.body_bytes_max={limit}",) if limit < 4 * MIB else ()
    gantry = Gantry(directory, shape, settings)
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
    with pika.BlockingConnection(pika.ConnectionParameters(*server.address("amqp"))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("over", "topic", durable=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as failure:
            channel.basic_publish("over", "a", body)
    assert failure.value.reply_code == 406
    assert "is larger than configured max size" in failure.value.reply_text


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


def test_a_cluster_takes_the_limit_of_its_smallest_broker(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, brokers=1, gateways=1)
    cluster.start()
    try:
        gateway = cluster.at("gateway0")
        body = bytes(4 * MIB + 1)
        connection = pika.BlockingConnection(pika.ConnectionParameters(*gateway.address("amqp")))
        channel = connection.channel()
        channel.queue_declare("mixed", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "mixed", body)
        with_large_segments(tmp_path / "broker1.data")
        cluster.add_broker(1)
        until(lambda: announced(gateway) < 5 * MIB)
        # Of a packet, whether its last 64 KiB are body decides the broker that stores it.
        for refuses, size in ((pika_refuses, len(body)), (http_refuses, len(body)), (paho_refuses, 5 * MIB)):
            refused = partial(
                does_refuse, refuses, gateway, bytes(size)
            )  # each door hears of the broker by itself, and joins it
            # While a door joins it, names of its slots are refused as unavailable.
            until(refused, ignored=(pytest.fail.Exception, AssertionError, pika.exceptions.AMQPError))
        with pytest.raises(
            pika.exceptions.ChannelClosedByBroker
        ) as failure:  # the connection was there before the broker
            channel.basic_publish("", "mixed", body)
        text = f"PRECONDITION_FAILED - message size {len(body)} is larger than configured max size {4 * MIB}"
        assert (failure.value.reply_code, failure.value.reply_text) == (406, text)
        connection.close()
        assert announced(gateway) == 4 * MIB + HEADER_BYTES_MAX
    finally:
        cluster.stop()


def does_refuse(refuses: Callable[[Gantry, bytes], None], server: Gantry, body: bytes) -> bool:
    refuses(server, body)
    return True


def announced(server: Gantry) -> int:
    """What MQTT 5.0's CONNACK says of packets; much if the connection is refused for now."""
    said: queue.Queue[int] = queue.Queue()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.on_connect = lambda client, data, flags, code, properties: said.put(
        getattr(properties, "MaximumPacketSize", 1 << 30)
    )
    client.connect(*server.address("mqtt"))
    client.loop_start()
    try:
        return said.get(timeout=WAIT_S)
    finally:
        client.disconnect()
        client.loop_stop()
