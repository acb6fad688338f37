"""Slots over sockets: names have one owner, whatever happens to the brokers; an operator moves slots and gives away those of a broker that is gone."""

from __future__ import annotations

import os
import shutil
import signal
import time

import pika
import pika.exceptions
import pytest

from gantrymq.broker.tables.slot_table import SLOTS
from interop_tests.running import Cluster, Gantry
from interop_tests.slots import client_of, forget, gantry, owned
from interop_tests.test_amqp_clients import connect
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(240),
]


def counts(cluster: Cluster) -> dict[str, int]:
    return {name: len(slots) for name, slots in owned(cluster).items()}


def comes_in(gateway: Gantry, client: str) -> bool:
    """With a session that is kept: clean ones have a deputy."""
    try:
        Paho(gateway, client, False).start().stop()
    except AssertionError:
        return False
    return True


def refused_after_s(gateway: Gantry, client: str) -> float:
    """How long a client with a session that is kept waits until it is told that it cannot come in."""
    paho = Paho(gateway, client, False)
    began = time.monotonic()
    paho.client.connect(*gateway.address("mqtt"))
    paho.client.loop_start()
    _, code = paho.event("connect")
    waited_s = time.monotonic() - began
    paho.client.loop_stop()
    assert code != 0
    return waited_s


def test_slots_are_shared_moved_and_shown(cluster: Cluster) -> None:
    shown = gantry(cluster, "cluster", "slots")
    assert "broker-0 (metadata group)" in shown
    one, other = connect(cluster.at("gateway0")), connect(cluster.at("gateway1"))
    channel = one.channel()
    for number in range(20):
        channel.queue_declare(f"mine{number}", exclusive=True)
        channel.queue_declare(f"shared{number}", durable=True)
        channel.basic_consume(f"shared{number}", lambda *_: None, exclusive=True)
    assert "slots moved" in gantry(cluster, "cluster", "rebalance")
    until(lambda: sorted(counts(cluster).values()) == [341, 341, 342])
    assert "every broker has its share already" in gantry(cluster, "cluster", "rebalance")
    for number in range(20):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="405"):
            other.channel().queue_declare(f"mine{number}", exclusive=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="in exclusive use"):
            other.channel().basic_consume(f"shared{number}", lambda *_: None)
    assert channel.is_open
    one.close()

    def free(number: int) -> bool:
        try:
            other.channel().queue_declare(f"mine{number}", exclusive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return False
        return True

    until(lambda: all(free(number) for number in range(20)))
    other.close()


def test_names_of_a_broker_that_is_away_wait_and_others_go_on(cluster: Cluster) -> None:
    theirs, others = client_of(cluster, "broker-2", "x"), client_of(cluster, "broker-1", "y")
    gateways = [cluster.at(f"gateway{number}") for number in range(2)]
    third = cluster.process("broker2")
    third.kill()
    for gateway in gateways:
        until(lambda gateway=gateway: not comes_in(gateway, theirs))  # type: ignore[misc]
        assert comes_in(gateway, others)
    third.start()
    for gateway in gateways:
        until(lambda gateway=gateway: comes_in(gateway, theirs))  # type: ignore[misc]
    subscriber = Paho(gateways[0], client_of(cluster, "broker-1", "z"), False).start()
    os.kill(third.pid, signal.SIGSTOP)
    try:
        for gateway in gateways:
            assert refused_after_s(gateway, theirs) < 2, "first it is found to say nothing"
            assert refused_after_s(gateway, theirs) < 0.5
            assert comes_in(gateway, others)
        subscriber.subscribe(("after/#", 1))  # as soon as the connection is given up
        began = time.monotonic()
        for number in range(20):
            subscriber.subscribe((f"more{number}/#", 1))
        assert time.monotonic() - began < 5, "nothing waits for it any more"
    finally:
        os.kill(third.pid, signal.SIGCONT)
        subscriber.stop()
    for gateway in gateways:
        until(lambda gateway=gateway: comes_in(gateway, theirs))  # type: ignore[misc]
    assert "is registered, so it is there" in gantry(cluster, "cluster", "forget", "broker-2", "--yes", code=1)
    assert third.stop() == 0
    shutil.rmtree(cluster.directory / "broker2.data")
    forget(cluster, "broker-2")
    for gateway in gateways:
        until(lambda gateway=gateway: comes_in(gateway, theirs))  # type: ignore[misc]
    assert sum(counts(cluster).values()) == SLOTS
    assert set(counts(cluster)) == {"broker-0", "broker-1"}


def test_nothing_but_starts_waits_for_the_metadata_group(cluster: Cluster) -> None:
    theirs = client_of(cluster, "broker-1", "x")
    first = cluster.process("broker0")
    first.kill()
    for number in range(2):
        assert comes_in(cluster.at(f"gateway{number}"), theirs)
    first.start()
    until(lambda: sum(counts(cluster).values()) == SLOTS)


def test_a_metadata_group_with_an_empty_disk_waits_for_those_that_have_the_table(cluster: Cluster) -> None:
    before = owned(cluster)
    first, third = cluster.process("broker0"), cluster.process("broker2")
    first.kill()
    shutil.rmtree(cluster.directory / "broker0.data")
    os.kill(third.pid, signal.SIGSTOP)
    try:
        first.start()
        until(lambda: "waits until these have said whether they have a copy: broker-2" in first.log())
        assert "waits until these have said" in gantry(cluster, "broker", "show", "broker-0")
    finally:
        os.kill(third.pid, signal.SIGCONT)
    until(lambda: sum(counts(cluster).values()) == SLOTS)
    assert owned(cluster) == before
    assert "it goes on from the copy of broker group broker-" in first.log()
