"""kill -9 in the middle of confirmed publishing: nothing that was confirmed is missing, in order, in a durable queue."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from interop_tests.running import Gantry
from interop_tests.waiting import LIMIT_S

pytestmark = [
    pytest.mark.crash,
    # pika leaves the sockets of connections that were cut to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Abandoned sockets are collected while their warnings are expected."""
    yield
    gc.collect()


QUEUE = "crash"
EXCHANGE = "plant"
CONFIRMED_BEFORE_KILL = 300


def connect(server: Gantry) -> Any:
    host, port = server.address("amqp")
    return pika.BlockingConnection(pika.ConnectionParameters(host, port))


def publish_until_lost(server: Gantry, confirmed: list[int], enough: threading.Event) -> None:
    channel = connect(server).channel()
    channel.confirm_delivery()
    number = 0
    try:
        while True:
            channel.basic_publish(EXCHANGE, f"line.{number % 3}", b"%d" % number, pika.BasicProperties(delivery_mode=2))
            confirmed.append(number)
            number += 1
            if number == CONFIRMED_BEFORE_KILL:
                enough.set()
    except (pika.exceptions.AMQPError, OSError):
        return


def test_confirmed_messages_survive_kill(own_server: Gantry) -> None:
    connection = connect(own_server)
    channel = connection.channel()
    channel.exchange_declare(EXCHANGE, "topic", durable=True)
    channel.queue_declare(QUEUE, durable=True)
    channel.queue_bind(QUEUE, EXCHANGE, "line.*")
    channel.queue_declare("gone", durable=False)
    for _ in range(2):
        channel.basic_publish(EXCHANGE, "line.x", b"-1")
    assert channel.queue_declare(QUEUE, passive=True).method.message_count == 2
    method, _, _ = channel.basic_get(QUEUE)
    channel.basic_ack(method.delivery_tag)
    channel.basic_get(QUEUE)  # delivered, never acknowledged: comes back as redelivered

    confirmed: list[int] = []
    enough = threading.Event()
    publisher = threading.Thread(target=publish_until_lost, args=(own_server, confirmed, enough))
    publisher.start()
    assert enough.wait(LIMIT_S)
    own_server.kill_and_restart()
    publisher.join(LIMIT_S)
    assert not publisher.is_alive()
    assert len(confirmed) >= CONFIRMED_BEFORE_KILL

    channel = connect(own_server).channel()
    channel.exchange_declare(EXCHANGE, "topic", durable=True, passive=True)
    got: list[tuple[int, bool]] = []
    while True:
        method, _, body = channel.basic_get(QUEUE, auto_ack=True)
        if method is None:
            break
        got.append((int(body), method.redelivered))
    assert got[0] == (-1, True)
    numbers = [number for number, _ in got[1:]]
    # At most one publish was stored and not confirmed when the process died.
    assert numbers[: len(confirmed)] == confirmed
    assert len(numbers) - len(confirmed) <= 1
    channel.confirm_delivery()
    channel.basic_publish(EXCHANGE, "line.y", b"after")
    assert channel.basic_get(QUEUE, auto_ack=True)[2] == b"after"
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        channel.queue_declare("gone", passive=True)


def test_gateway_outlives_its_broker(tmp_path: Path) -> None:
    """The broker of a separated installation is killed: clients are told, and find everything durable when it is back."""
    installation = Gantry(tmp_path, "separated").start()
    try:
        channel = connect(installation).channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.queue_declare("mine", exclusive=True)
        channel.confirm_delivery()
        channel.basic_publish("", QUEUE, b"kept")
        broker = installation.process("broker")
        broker.kill()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
            channel.connection.process_data_events(time_limit=LIMIT_S)
        assert caught.value.reply_code == 320
        broker.start()
        host, port = installation.address("amqp")
        again = pika.BlockingConnection(pika.ConnectionParameters(host, port, connection_attempts=300, retry_delay=0.2))
        channel = again.channel()
        assert channel.queue_declare(QUEUE, durable=True).method.message_count == 1
        assert channel.basic_get(QUEUE, auto_ack=True)[2] == b"kept"
        channel.queue_declare("mine", exclusive=True)
        again.close()
    finally:
        installation.stop()


def transact_until_lost(server: Gantry, committed: list[int], enough: threading.Event) -> None:
    """Each transaction takes one number off `in` and puts it into `left` and `right`."""
    channel = connect(server).channel()
    channel.tx_select()
    try:
        while True:
            method, _, body = channel.basic_get("in")
            channel.basic_publish("", "left", body)
            channel.basic_ack(method.delivery_tag)
            channel.basic_publish("", "right", body)
            channel.tx_commit()
            committed.append(int(body))
            if len(committed) == CONFIRMED_BEFORE_KILL:
                enough.set()
    except (pika.exceptions.AMQPError, OSError):
        return


def test_a_transaction_is_all_or_nothing_through_kill(own_server: Gantry) -> None:
    channel = connect(own_server).channel()
    channel.tx_select()
    for queue in ("in", "left", "right"):
        channel.queue_declare(queue, durable=True)
    for number in range(20 * CONFIRMED_BEFORE_KILL):
        channel.basic_publish("", "in", b"%d" % number)
    channel.tx_commit()

    committed: list[int] = []
    enough = threading.Event()
    worker = threading.Thread(target=transact_until_lost, args=(own_server, committed, enough))
    worker.start()
    assert enough.wait(LIMIT_S)
    own_server.kill_and_restart()
    worker.join(LIMIT_S)
    assert not worker.is_alive()

    channel = connect(own_server).channel()
    found = {}
    for queue in ("in", "left", "right"):
        count = channel.queue_declare(queue, passive=True).method.message_count
        found[queue] = [int(channel.basic_get(queue, auto_ack=True)[2]) for _ in range(count)]
    assert found["left"] == found["right"]
    assert found["left"][: len(committed)] == committed
    assert len(found["left"]) - len(committed) <= 1
    assert found["left"] + found["in"] == list(range(20 * CONFIRMED_BEFORE_KILL))
