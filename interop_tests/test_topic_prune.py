"""`gantry topic prune --unused` against real servers: what any door needs stays, and what is published meanwhile is not lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import httpx
import pika
import pytest

from gantrymq.client import BlockingProducer
from interop_tests import commands
from interop_tests.running import Cluster, Gantry
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import LIMIT_S, until

pytestmark = [
    # pika leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def gantry(server: Gantry, *words: str) -> list[dict[str, object]]:
    """Lines that a command prints."""
    nameservers = ";".join([each.doors["nameserver"] for each in server.processes if "nameserver" in each.doors])
    done = commands.gantry(*words, "--json", "--nameserver", nameservers)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def prune(server: Gantry, *words: str) -> set[str]:
    rows = gantry(server, "topic", "prune", "--unused", "--older-than", "0", *words)
    return {str(row["topic"]) for row in rows if row["removed"] or "--dry-run" in words}


def topics(server: Gantry) -> set[str]:
    """Those that the nameserver knows: a broker tells it of made and removed topics a moment after it has answered."""
    return {str(row["topic"]) for row in gantry(server, "topic", "list")}


def use(server: Gantry) -> Paho:
    """A topic for each way to need one, `nobodys-*` that nobody needs; the clean session of the client that is returned needs `live`."""
    paho = Paho(server).start()
    paho.subscribe(("live/#", 1), ("nobodys-heard/#", 1))
    paho.client.unsubscribe("nobodys-heard/#")
    paho.event("unsubscribe")
    paho.publish("spoken/a", b"x")
    sleeper = Paho(server, client_id="sleeper", clean=False).start()
    sleeper.subscribe(("slept/#", 1))
    sleeper.stop()
    with pika.BlockingConnection(pika.ConnectionParameters(*server.address("amqp"))) as connection:
        channel = connection.channel()
        channel.exchange_declare("declared", "topic", durable=True)
        channel.queue_declare("queued", durable=True)
        channel.exchange_declare("nobodys-exchange", "fanout", durable=True)
        channel.exchange_delete("nobodys-exchange")
    host, port = server.address("cloudevents")
    made = httpx.post(
        f"http://{host}:{port}/subscriptions",
        json={"protocol": "HTTP", "sink": "http://127.0.0.1:9/", "config": {"topic": "pushed"}},
        timeout=LIMIT_S,
    )
    assert made.status_code == 201, made.text
    return paho


NEEDED = {"live", "spoken", "slept", "declared", "queued", "pushed"}
NOBODYS = {"nobodys-heard", "nobodys-exchange"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("prune"), brokers=2, gateways=1)
    try:
        yield made.start()
    finally:
        made.stop()


def check(server: Gantry, doors: Gantry) -> None:
    paho = use(doors)
    try:
        assert prune(server, "--dry-run") == NOBODYS
        until(lambda: topics(server) >= NEEDED | NOBODYS)
        assert prune(server, "--yes") == NOBODYS
        until(lambda: not topics(server) & NOBODYS)
        assert topics(server) >= NEEDED
    finally:
        paho.stop()


def test_one_server(own_server: Gantry) -> None:
    check(own_server, own_server)
    own_server.kill_and_restart()
    assert not topics(own_server) & NOBODYS


def test_several_brokers(cluster: Cluster) -> None:
    check(cluster, cluster.at("gateway0"))


def test_without_a_terminal_and_yes_nothing_is_removed(own_server: Gantry) -> None:
    paho = use(own_server)
    paho.stop()
    words = ["topic", "prune", "--unused", "--older-than", "0", "--nameserver", own_server.doors["nameserver"]]
    done = commands.gantry(*words)
    assert done.returncode == 2
    assert "--yes" in done.stderr
    until(lambda: topics(own_server) >= NOBODYS)


def test_what_is_published_while_topics_go_is_not_lost(own_server: Gantry) -> None:
    """A publisher makes topics and comes back to them later, while they are removed again and again."""
    over = threading.Event()
    removed: set[str] = set()

    def clean() -> None:
        while not over.is_set():
            removed.update(prune(own_server, "--yes"))

    paho = Paho(own_server).start()
    thread = threading.Thread(target=clean)
    thread.start()
    try:
        for number in range(60):
            paho.subscribe((f"race{number}/#", 1))  # makes the topic, and needs it
            paho.client.unsubscribe(f"race{number}/#")
            paho.event("unsubscribe")
            paho.publish(f"race{number // 2}/a", b"%d" % number)
        until(lambda: removed)  # the later half of the names got no message
    finally:
        over.set()
        thread.join(LIMIT_S)
        paho.stop()
    until(lambda: topics(own_server) >= {f"race{number}" for number in range(30)})
    rows = {str(row["topic"]): row for row in gantry(own_server, "topic", "list")}
    assert [rows[f"race{number}"]["messages"] for number in range(30)] == [2] * 30
    with BlockingProducer(own_server.doors["nameserver"], timeout_s=LIMIT_S) as producer:
        producer.send("race1", b"again")
