"""`gantry amqp shovel`: queues in from another broker and out to it, with kill -9 at every place; a real RabbitMQ where there is one."""

from __future__ import annotations

import os
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

from interop_tests import guard
from interop_tests.running import Gantry
from interop_tests.test_amqp_clients import Served, connect, unique, url
from interop_tests.waiting import until

COUNT = 300


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gantry, Gantry]]:
    """Two installations: to the shovel neither is special."""
    both = [Gantry(tmp_path_factory.mktemp("shovel")).start() for _ in range(2)]
    yield both[0], both[1]
    for each in both:
        each.stop()


def command(source: str, queue: str, destination: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "gantrymq", "amqp", "shovel", queue, "--from", source, "--to", destination, *words]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=120, check=False)


def fill(server: Served, queue: str, count: int, **properties: Any) -> None:
    connection = connect(server)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True)
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2, **properties))
    connection.close()


def empty(server: Served, queue: str) -> None:
    connection = connect(server)
    connection.channel().queue_declare(queue, durable=True)
    connection.close()


def ready(server: Served, queue: str) -> int:
    connection = connect(server)
    found = connection.channel().queue_declare(queue, passive=True).method.message_count
    connection.close()
    return int(found)


def take_all(server: Served, queue: str) -> list[Any]:
    connection = connect(server)
    channel = connection.channel()
    found = []
    while (taken := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(taken)
    connection.close()
    return found


def test_everything_in_order_with_its_properties(pair: tuple[Gantry, Gantry]) -> None:
    one, two = pair
    queue = unique("q")
    given = {"headers": {"n": 5, "CC": [queue]}, "priority": 3, "type": "t", "user_id": "guest", "expiration": "600000"}
    fill(one, queue, COUNT, **given)
    take_all(one, queue)[: COUNT // 2]  # CC of the source has doubled them
    fill(one, queue, COUNT, **given | {"headers": {"n": 5}, "message_id": "the same"})
    empty(two, queue)
    done = run(url(one), queue, url(two), "--until-empty")
    assert done.returncode == 0, done.stderr
    assert f"{COUNT} messages moved" in done.stderr
    found = take_all(two, queue)
    assert [body for _, _, body in found] == [b"%d" % number for number in range(COUNT)]
    _, properties, _ = found[0]
    assert (properties.headers, properties.priority, properties.type, properties.message_id) == (
        {"n": 5},
        3,
        "t",
        "the same",
    )
    assert (properties.expiration, properties.delivery_mode, properties.user_id) == ("600000", 2, None)
    assert ready(one, queue) == 0


def test_to_an_exchange_with_the_messages_own_keys(pair: tuple[Gantry, Gantry]) -> None:
    one, two = pair
    queue, exchange = unique("q"), unique("e")
    fill(one, queue, 3)
    connection = connect(two)
    channel = connection.channel()
    channel.exchange_declare(exchange, "topic", durable=True)
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, exchange, queue)
    assert run(url(one), queue, url(two), "--to-exchange", exchange, "--until-empty").returncode == 0
    assert [(method.exchange, method.routing_key) for method, _, _ in take_all(two, queue)] == [(exchange, queue)] * 3
    connection.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"queue": "no-such-queue"}, "no queue 'no-such-queue'"),
        ({"to": "no-such-target"}, "nobody at the destination gets what is sent to queue 'no-such-target'"),
        ({"user": "guest:wrong"}, "ACCESS_REFUSED"),
    ],
)
def test_what_stops_it_is_said_and_nothing_is_lost(
    pair: tuple[Gantry, Gantry], change: dict[str, str], words: str
) -> None:
    one, two = pair
    queue = unique("q")
    fill(one, queue, 5)
    empty(two, queue)
    where = url(two).replace("guest:guest", change.get("user", "guest:guest"))
    done = run(url(one), change.get("queue", queue), where, "--to-queue", change.get("to", queue))
    assert (done.returncode, words in done.stderr) == (1, True), done.stderr
    assert "Traceback" not in done.stderr
    assert ready(one, queue) == 5


def test_a_rate(pair: tuple[Gantry, Gantry]) -> None:
    one, two = pair
    queue = unique("q")
    fill(one, queue, 30)
    empty(two, queue)
    begun = time.monotonic()
    assert run(url(one), queue, url(two), "--until-empty", "--rate", "20").returncode == 0
    assert time.monotonic() - begun >= 29 / 20
    assert len(take_all(two, queue)) == 30


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["source", "destination", "shovel"])
def test_nothing_is_lost_when_one_is_killed(tmp_path: Path, victim: str) -> None:
    servers = [Gantry(tmp_path / name).start() for name in ("source", "destination") if not (tmp_path / name).mkdir()]
    source, destination = servers
    log = (tmp_path / "shovel.log").open("wb")

    def begin() -> subprocess.Popen[bytes]:
        words = command(url(source), "q", url(destination), "--rate", "200")
        return subprocess.Popen(words, stdout=log, stderr=log, env=dict(os.environ) | guard.mark())

    shovel = None
    try:
        fill(source, "q", COUNT)
        empty(destination, "q")
        shovel = begin()
        until(lambda: ready(destination, "q") >= COUNT // 6)
        if victim == "shovel":
            shovel.kill()
            shovel.wait()
            shovel = begin()
        else:
            servers[victim == "destination"].kill_and_restart()
        wanted = {b"%d" % number for number in range(COUNT)}
        seen: set[bytes] = set()

        def all_there() -> bool:
            seen.update(body for _, _, body in take_all(destination, "q"))
            return seen == wanted

        until(all_there, ignored=(pika.exceptions.AMQPError,))
        until(lambda: ready(source, "q") == 0, ignored=(pika.exceptions.AMQPError,))
        shovel.send_signal(signal.SIGINT)
        assert shovel.wait(30) == 130
    finally:
        if shovel is not None and shovel.poll() is None:
            shovel.kill()
            shovel.wait()
        log.close()
        for server in servers:
            server.stop()
