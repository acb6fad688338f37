"""One owner for every queue, over sockets: what is published anywhere reaches it, in order, through kills, silence and a broker that comes later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pika
import pika.exceptions
import pytest

from interop_tests.running import Cluster
from interop_tests.slots import are_shared, rows
from interop_tests.test_amqp_clients import connect
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]

BROKERS = 3
QUEUES = 24
"""So many that every broker owns some."""


def are_followed(cluster: Cluster) -> bool:
    """Every broker knows the routes of every other, and nothing waits."""
    found = rows(cluster, "cluster", "forwards")
    return len(found) == BROKERS * (BROKERS - 1) and all(row["lease_ms"] and not row["behind"] for row in found)


def is_silent(cluster: Cluster, name: str) -> bool:
    """The others know its routes no longer."""
    return [row["lease_ms"] for row in rows(cluster, "cluster", "forwards") if row["for"] == name] == [0] * (
        BROKERS - 1
    )


def rebalance(cluster: Cluster) -> None:
    """Slots move under load, as soon as all brokers answer."""
    command = [sys.executable, "-m", "gantrymq", "cluster", "rebalance", "--nameserver", cluster.nameservers]
    until(lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0, 60)


def bound(channel: Any, exchange: str, count: int = QUEUES) -> list[str]:
    """Queues of a fanout exchange, all over the brokers."""
    channel.exchange_declare(exchange, "fanout", durable=True)
    names = [f"{exchange}{number}" for number in range(count)]
    for name in names:
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, exchange)
    return names


def is_served(connection: Any, queue: str) -> bool:
    """The gateway has joined the broker that has the queue: brokers find each other sooner. Only the channel ends until then."""
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        if error.reply_code != 404 or "is not connected" not in error.reply_text:
            raise
        return False
    channel.close()
    return True


def drained(channel: Any, queue: str) -> list[bytes]:
    """All that is there."""
    found = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append(body)


def consumed(channel: Any, queue: str) -> list[bytes]:
    """All that is there, in one go."""
    count = channel.queue_declare(queue, passive=True).method.message_count
    found = []
    for _, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=60):
        found.append(body)
        if body is None or len(found) >= count:
            break
    channel.cancel()
    return found


def arrived(channel: Any, queue: str, count: int) -> list[bytes]:
    """So many messages, or more, once they are there."""
    until(lambda: channel.queue_declare(queue, passive=True).method.message_count >= count, 60)
    return drained(channel, queue)


def test_every_queue_gets_what_is_published_at_either_gateway(cluster: Cluster) -> None:
    until(lambda: are_followed(cluster))
    one, other = connect(cluster.at("gateway0")), connect(cluster.at("gateway1"))
    here, there = one.channel(), other.channel()
    names = bound(here, "all")
    here.confirm_delivery()
    there.confirm_delivery()
    for number in range(50):
        here.basic_publish("all", "", b"here%d" % number)
        there.basic_publish("all", "", b"there%d" % number)
    for name in names:
        found = arrived(there, name, 100)
        assert [body for body in found if body.startswith(b"here")] == [b"here%d" % number for number in range(50)]
        assert [body for body in found if body.startswith(b"there")] == [b"there%d" % number for number in range(50)]
        assert len(found) == 100
    makers = {row["broker"] for row in rows(cluster, "cluster", "forwards") if row["behind"] == 0}
    assert len(makers) == BROKERS
    one.close()
    other.close()


def test_one_reads_at_once_what_one_has_published(cluster: Cluster) -> None:
    until(lambda: are_followed(cluster))
    connection = connect(cluster.at("gateway0"))
    channel = connection.channel()
    names = bound(channel, "all")
    channel.confirm_delivery()
    for number in range(5):
        channel.basic_publish("all", "", b"%d" % number)
        for name in names:
            assert channel.queue_declare(name, passive=True).method.message_count == 1
            assert drained(channel, name) == [b"%d" % number]
    for name in names:
        channel.queue_unbind(name, "all")
    channel.basic_publish("all", "", b"for nobody")
    for name in names:
        assert drained(channel, name) == []
    connection.close()


def test_mqtt_sessions_get_what_amqp_and_mqtt_publish(cluster: Cluster) -> None:
    until(lambda: are_followed(cluster))
    gateways = [cluster.at("gateway0"), cluster.at("gateway1")]
    clients = [Paho(gateways[number % 2], f"device{number}", False).start() for number in range(12)]
    for client in clients:
        client.subscribe(("plant/+/state", 1))
    for client in clients[:6]:
        client.stop()
    publishers = [Paho(gateway, f"publisher{number}").start() for number, gateway in enumerate(gateways)]
    for number in range(30):
        publishers[number % 2].publish(f"plant/{number}/state", b"%d" % number)
    connection = connect(gateways[0])
    channel = connection.channel()
    channel.exchange_declare("plant", "topic", durable=True)
    channel.basic_publish("plant", "99.state", b"amqp")
    expected = {b"%d" % number for number in range(30)} | {b"amqp"}
    away = [Paho(gateways[(number + 1) % 2], f"device{number}", False).start() for number in range(6)]
    for client in [*away, *clients[6:]]:
        payloads = [payload for _, payload in client.receive(len(expected))]
        assert set(payloads) == expected
        for side in (0, 1):
            mine = [int(payload) for payload in payloads if payload.isdigit() and int(payload) % 2 == side]
            assert mine == sorted(mine)
        client.stop()
    for publisher in publishers:
        publisher.stop()
    connection.close()


def test_kept_sessions_come_in_while_a_broker_with_some_of_their_filters_is_away(cluster: Cluster) -> None:
    until(lambda: are_followed(cluster))
    gateway = cluster.at("gateway0")
    filters = [(f"area{number}/#", 1) for number in range(QUEUES)]
    names = [f"device{number}" for number in range(QUEUES)]
    for name in names:
        client = Paho(gateway, name, False).start()
        client.subscribe(*filters)
        client.stop()
    third = cluster.process("broker2")
    third.kill()
    publisher = Paho(gateway, "publisher").start()
    for number in range(QUEUES):
        publisher.publish(f"area{number}/x", b"%d" % number)
    publisher.stop()
    came = []
    for name in names:
        client = Paho(gateway, name, False)
        try:
            came.append(client.start())
        except AssertionError:
            continue  # the broker that is away decides about its name
    assert 0 < len(came) < len(names)
    assert all(client.present for client in came)
    third.start()
    for client in came:
        payloads = {int(payload) for _, payload in client.receive(QUEUES)}
        assert payloads == set(range(QUEUES))
        client.stop()


class Load(threading.Thread):
    """Publishes with confirms, in order, until it is told to end; what was not confirmed is published again."""

    def __init__(self, cluster: Cluster, gateway: str, exchange: str) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self.gateway = gateway
        self._exchange = exchange
        self._end = threading.Event()
        self.confirmed = 0

    def run(self) -> None:
        channel = None
        while not self._end.is_set():
            try:
                if channel is None:
                    channel = connect(self._cluster.at(self.gateway)).channel()
                    channel.confirm_delivery()
                channel.basic_publish(self._exchange, "", b"%s %d" % (self.gateway.encode(), self.confirmed))
                self.confirmed += 1
                self._end.wait(0.005)  # enough for the faults; every queue is read to its end
            except (pika.exceptions.AMQPError, OSError):
                channel = None

    def end(self) -> None:
        self._end.set()
        self.join(60)


def test_brokers_are_killed_stopped_and_rebalanced_under_load(cluster: Cluster) -> None:
    until(lambda: are_followed(cluster))
    connection = connect(cluster.at("gateway1"))
    channel = connection.channel()
    names = bound(channel, "all")
    cluster.add_gateway(2)
    loads = [Load(cluster, f"gateway{number}", "all") for number in range(3)]
    for load in loads:
        load.start()
    for number in range(BROKERS):
        until(lambda: all(load.confirmed > 100 * (number + 1) for load in loads), 120)  # noqa: B023 (called at once)
        broker = cluster.process(f"broker{number}")
        if number == 1:
            os.kill(broker.pid, signal.SIGSTOP)
            until(lambda: is_silent(cluster, "broker-1"))
            os.kill(broker.pid, signal.SIGCONT)
        else:
            broker.kill()
            broker.start()
        rebalance(cluster)
    for load in loads:
        load.end()
    until(lambda: are_followed(cluster), 120)
    reader = connect(cluster.at("gateway0"))
    for name in names:
        until(lambda: is_served(reader, name))  # noqa: B023 (called at once)
        found = consumed(reader.channel(), name)
        for load in loads:
            mine = [int(body.split()[1]) for body in found if body.startswith(load.gateway.encode())]
            assert set(mine) >= set(range(load.confirmed)), f"{name}: lost"
            assert len(mine) - len(set(mine)) <= 4 * BROKERS, "published again, as nobody confirmed it"


def test_a_stopped_broker_delays_a_bind_once(cluster: Cluster) -> None:
    until(lambda: are_followed(cluster))
    connection = connect(cluster.at("gateway0"))
    channel = connection.channel()
    channel.exchange_declare("all", "fanout", durable=True)
    names = [f"q{number}" for number in range(QUEUES)]
    for name in names:
        channel.queue_declare(name, durable=True)
    third = cluster.process("broker2")
    os.kill(third.pid, signal.SIGSTOP)
    waits, refused = [], 0
    try:
        for name in names:
            began = time.monotonic()
            try:
                channel.queue_bind(name, "all")
            except pika.exceptions.AMQPError:
                refused += 1
                if not connection.is_open:
                    connection = connect(cluster.at("gateway0"))
                channel = connection.channel()
            waits.append(time.monotonic() - began)
    finally:
        os.kill(third.pid, signal.SIGCONT)
    assert 0 < refused < QUEUES, "queues of the broker that hangs are refused, all others are bound"
    assert max(waits) < 5
    assert sorted(waits)[-4] < 1.5, "it is waited for once at each other broker, and refused within a second"
    until(lambda: are_followed(cluster), 60)


def test_a_broker_that_comes_later_takes_part(cluster: Cluster) -> None:
    until(lambda: are_followed(cluster))
    connection = connect(cluster.at("gateway0"))
    channel = connection.channel()
    names = bound(channel, "all")
    cluster.add_broker(BROKERS)

    def shared() -> bool:
        leases = [row["lease_ms"] for row in rows(cluster, "cluster", "forwards") if row["lease_ms"]]
        return are_shared(cluster, BROKERS + 1) and len(leases) == (BROKERS + 1) * BROKERS

    until(shared, 60)
    names += bound(channel, "all", 2 * QUEUES)[QUEUES:]
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish("all", "", b"%d" % number)
    for name in names:
        assert arrived(channel, name, 20) == [b"%d" % number for number in range(20)]
    connection.close()
