"""Queues move to other brokers with what is in them while clients publish and consume: a broker is drained, another one comes and takes its share."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from interop_tests.running import Cluster
from interop_tests.slots import are_shared, forget, gantry, owned
from interop_tests.test_amqp_clients import connect
from interop_tests.test_cluster_forward import are_followed
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]

QUEUES = 12
"""So many that every broker owns some."""


class Publisher(threading.Thread):
    """Publishes with confirms, each message behind the answer for the one before."""

    def __init__(self, cluster: Cluster, gateway: str, exchange: str) -> None:
        super().__init__(daemon=True)
        self.confirmed: list[bytes] = []
        self.gateway = gateway
        self._cluster, self._exchange = cluster, exchange
        self._ending = threading.Event()

    def run(self) -> None:
        connection = connect(self._cluster.at(self.gateway))
        channel = connection.channel()
        channel.confirm_delivery()
        number = 0
        while not self._ending.is_set():
            body = b"%s %d" % (self.gateway.encode(), number)
            channel.basic_publish(self._exchange, "", body)
            self.confirmed.append(body)
            number += 1
        connection.close()

    def end(self) -> list[bytes]:
        """What was confirmed."""
        self._ending.set()
        self.join(60)
        assert not self.is_alive()
        return self.confirmed


class Consumer(threading.Thread):
    """Consumes from all queues, acknowledging each message."""

    def __init__(self, cluster: Cluster, gateway: str, queues: list[str]) -> None:
        super().__init__(daemon=True)
        self.found: dict[str, list[bytes]] = {queue: [] for queue in queues}
        self.cancelled: list[str] = []
        self._cluster, self._gateway = cluster, gateway
        self._ending = threading.Event()

    def run(self) -> None:
        connection = connect(self._cluster.at(self._gateway))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=20)
        channel.add_on_cancel_callback(lambda frame: self.cancelled.append(frame.method.consumer_tag))
        for queue in self.found:
            channel.basic_consume(queue, self._got(queue))
        while not self._ending.is_set():
            connection.process_data_events(0.1)
        connection.close()

    def _got(self, queue: str) -> Any:
        def got(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            self.found[queue].append(body)
            channel.basic_ack(method.delivery_tag)

        return got

    def end(self) -> None:
        self._ending.set()
        self.join(60)


def in_order(found: list[bytes], gateway: str) -> list[bytes]:
    """A publisher's messages, each as it came first: what was not acknowledged when its queue moved comes again."""
    return [body for body in dict.fromkeys(found) if body.startswith(gateway.encode())]


def test_a_broker_is_drained_and_another_one_comes_under_load(cluster: Cluster) -> None:
    until(lambda: are_followed(cluster))
    setup = connect(cluster.at("gateway0"))
    channel = setup.channel()
    channel.exchange_declare("load", "fanout", durable=True)
    queues = [f"load{number}" for number in range(QUEUES)]
    kept = [f"kept{number}" for number in range(QUEUES)]
    for name in (*queues, *kept):
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, "load")
    device = Paho(cluster.at("gateway1"), "device", clean=False).start()
    device.subscribe(("dev/#", 1))
    device.stop()
    publishers = [Publisher(cluster, gateway, "load") for gateway in ("gateway0", "gateway1")]
    consumer = Consumer(cluster, "gateway1", queues)
    consumer.start()
    for publisher in publishers:
        publisher.start()
    sender = Paho(cluster.at("gateway0"), "sender").start()
    until(lambda: all(len(publisher.confirmed) > 50 for publisher in publishers))
    for number in range(50):
        sender.publish(f"dev/{number % 3}", b"%d" % number, 1)
    said = gantry(cluster, "broker", "drain", "broker-1", "--yes", "--no-wait")
    assert "queues moved" in said, said
    assert not owned(cluster)["broker-1"]
    for number in range(50, 100):
        sender.publish(f"dev/{number % 3}", b"%d" % number, 1)
    said = gantry(cluster, "broker", "drain", "broker-1", "--yes", "--timeout", "60")
    assert "may be stopped" in said, said
    assert cluster.process("broker1").stop() == 0
    forget(cluster, "broker-1")
    cluster.add_broker(3)
    until(lambda: are_shared(cluster, 3))
    said = gantry(cluster, "cluster", "rebalance")
    assert "slots moved" in said, said
    before = [len(publisher.confirmed) for publisher in publishers]
    until(lambda: all(len(each.confirmed) > count + 50 for each, count in zip(publishers, before, strict=True)))
    confirmed = {publisher.gateway: publisher.end() for publisher in publishers}
    everything = {body for bodies in confirmed.values() for body in bodies}
    until(lambda: all(everything <= set(found) for found in consumer.found.values()), 60)
    consumer.end()
    assert not consumer.cancelled
    for gateway, bodies in confirmed.items():
        for queue, found in consumer.found.items():
            assert in_order(found, gateway) == bodies, queue
    for name in kept:
        count = channel.queue_declare(name, durable=True, passive=True).method.message_count
        assert count == len(everything), name
    device = Paho(cluster.at("gateway0"), "device", clean=False).start()
    assert sorted({payload for _, payload in device.receive(100)}) == sorted(b"%d" % number for number in range(100))
    device.stop()
    sender.stop()
    setup.close()
    cluster.processes.remove(cluster.process("broker1"))
