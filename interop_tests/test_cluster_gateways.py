"""Two gateways: what one of them holds is free at the other when it is killed, and when its host vanishes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from interop_tests.running import Cluster
from interop_tests.test_amqp_clients import connect
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path, nameservers=1, brokers=2, gateways=2)
    try:
        yield found.start()
    finally:
        found.stop()
        assert "Traceback" not in found.log()


class Names:
    """Exclusive queues and consumers of a connection at the first gateway, tried at the second."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.here, self.there = connect(cluster.at("gateway0")), connect(cluster.at("gateway1"))
        channel = self.here.channel()
        self.queues = [f"mine{number}" for number in range(8)]
        self.cancelled: list[str] = []
        channel.add_on_cancel_callback(lambda frame: self.cancelled.append(frame.method.consumer_tag))
        for name in self.queues:
            channel.queue_declare(name, exclusive=True)
        for name, auto_delete in (("alone", False), ("both", True)):
            channel.queue_declare(name, durable=True, auto_delete=auto_delete)
            channel.basic_consume(name, lambda *_: None, exclusive=name == "alone", consumer_tag=name)
        self.elsewhere = self.there.channel()
        self.elsewhere.basic_consume("both", lambda *_: None)

    def try_there(self, call: Any) -> bool:
        channel = self.there.channel()
        try:
            call(channel)
        except pika.exceptions.ChannelClosedByBroker:
            return False
        return True

    def are_held(self) -> bool:
        mine = [
            self.try_there(lambda channel, name=name: channel.queue_declare(name, exclusive=True))
            for name in self.queues
        ]
        return not any(mine) and not self.try_there(lambda channel: channel.basic_consume("alone", lambda *_: None))

    def are_lost(self) -> bool:
        """The first connection heard that it lost its names: it ends where all brokers ended those of its gateway; one may not have yet."""
        try:
            self.here.process_data_events(0.1)
        except pika.exceptions.AMQPError:
            return True
        return "alone" in self.cancelled

    def free_after_s(self, limit_s: float) -> float:
        """How long until all can be had at the second gateway."""
        began = time.monotonic()
        for name in self.queues:
            until(
                lambda name=name: self.try_there(lambda channel: channel.queue_declare(name, exclusive=True)), limit_s
            )  # type: ignore[misc]
        until(
            lambda: self.try_there(lambda channel: channel.basic_consume("alone", lambda *_: None, exclusive=True)),
            limit_s,
        )
        return time.monotonic() - began

    def consumers(self, queue: str) -> int:
        return int(self.elsewhere.queue_declare(queue, passive=True).method.consumer_count)


def test_what_a_killed_gateway_held_is_free_at_once(cluster: Cluster) -> None:
    names = Names(cluster)
    assert names.are_held()
    assert names.consumers("both") == 2
    cluster.process("gateway0").kill()
    assert names.free_after_s(60) < 3, "0.1 s on a quiet machine"
    assert names.consumers("both") == 1, "an auto-delete queue stays while somebody else consumes"
    names.there.close()


def test_what_a_gateway_held_whose_host_vanished_is_free_within_ten_seconds(cluster: Cluster) -> None:
    names = Names(cluster)
    client = Paho(cluster.at("gateway0"), "one", False).start()
    first = cluster.process("gateway0")
    os.kill(first.pid, signal.SIGSTOP)
    try:
        assert names.are_held()
        assert names.free_after_s(60) < 12, "8 to 9 s on a quiet machine"
        assert names.consumers("both") == 1
        Paho(cluster.at("gateway1"), "one", False).start().stop()
    finally:
        os.kill(first.pid, signal.SIGCONT)
    until(names.are_lost)
    client.client.disconnect()
    client.client.loop_stop()
    fresh = until(lambda: connected(cluster))  # as soon as it has its brokers again
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="405"):
        fresh.channel().queue_declare("mine0", exclusive=True)
    until(lambda: names.consumers("both") == 1 + names.here.is_open)
    assert names.cancelled in ([], ["alone"])
    fresh.close()
    names.there.close()


def connected(cluster: Cluster) -> Any:
    try:
        return connect(cluster.at("gateway0"))
    except (pika.exceptions.AMQPError, ValueError):  # ValueError: accepted, and the door closed before pika looked
        return None
