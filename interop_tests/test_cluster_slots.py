"""Slots over sockets: names have one owner, whatever happens to the brokers; an operator moves slots and gives away those of a broker that is gone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from gantrymq.broker.port import lease_name, row_name
from gantrymq.broker.tables.slot_table import SLOTS, slot_of
from gantrymq_gateways.mqtt.sessions.lifecycle import GROUP_PREFIX
from gantrymq_gateways.mqtt.tables import SESSION_TABLE
from interop_tests.running import Cluster, Gantry
from interop_tests.test_amqp_clients import connect
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(240),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path, nameservers=1, brokers=3, gateways=2)
    found.slots = True
    try:
        yield found.start()
    finally:
        found.stop()
        assert "Traceback" not in found.log()


def gantry(cluster: Cluster, *words: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "gantrymq", *words, "--nameserver", cluster.nameservers]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def slots(cluster: Cluster) -> dict[str, Any]:
    """Rows of `gantry cluster slots`, by broker."""
    return {row["broker"]: row for row in map(json.loads, gantry(cluster, "cluster", "slots", "--json").splitlines())}


def counts(cluster: Cluster) -> dict[str, int]:
    return {name: len(row["slots"]) for name, row in slots(cluster).items() if not row["silent"]}


def are_shared(found: dict[str, int]) -> bool:
    """Each of the three answers for some."""
    return sum(found.values()) == SLOTS and len([count for count in found.values() if count]) == 3


def client_of(cluster: Cluster, owner: str, prefix: str) -> str:
    """A client id whose lease and session are that broker's."""
    owned = set(slots(cluster)[owner]["slots"])
    names = (f"{prefix}{number}" for number in range(10_000))
    return next(
        name
        for name in names
        if {slot_of(lease_name(GROUP_PREFIX + name)), slot_of(row_name(SESSION_TABLE, name))} <= owned
    )


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
    until(lambda: are_shared(counts(cluster)))
    shown = gantry(cluster, "cluster", "slots")
    assert "broker-0 (metadata group)" in " ".join(shown.split())
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
    until(lambda: are_shared(counts(cluster)))
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
    assert "is registered, so it is there" in " ".join(
        gantry(cluster, "cluster", "forget", "broker-2", "--yes", code=1).split()
    )
    assert third.stop() == 0
    shutil.rmtree(cluster.directory / "broker2.data")
    until(lambda: "slots of broker broker-2 are other brokers' now" in forgotten(cluster))
    for gateway in gateways:
        until(lambda gateway=gateway: comes_in(gateway, theirs))  # type: ignore[misc]
    assert sum(counts(cluster).values()) == SLOTS
    assert set(counts(cluster)) == {"broker-0", "broker-1"}


def forgotten(cluster: Cluster) -> str:
    """What `gantry cluster forget broker-2` says, once the nameserver has dropped it."""
    command = [
        sys.executable,
        "-m",
        "gantrymq",
        "cluster",
        "forget",
        "broker-2",
        "--yes",
        "--nameserver",
        cluster.nameservers,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return " ".join((done.stdout + done.stderr).split())


def test_nothing_but_starts_waits_for_the_metadata_group(cluster: Cluster) -> None:
    until(lambda: are_shared(counts(cluster)))
    theirs = client_of(cluster, "broker-1", "x")
    first = cluster.process("broker0")
    first.kill()
    for number in range(2):
        assert comes_in(cluster.at(f"gateway{number}"), theirs)
    first.start()
    until(lambda: sum(counts(cluster).values()) == SLOTS)
