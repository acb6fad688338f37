"""`amqp.keep_exchange_records = false`: segments go when all queues have acknowledged what is in them, and nothing else goes, through kill -9."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from interop_tests.commands import gantry
from interop_tests.running import Gantry
from interop_tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

SEGMENT = 1 << 20
BODY = bytes(4096)
EXCHANGE, WORK, LATE, JOBS = "orders", "work", "late", "jobs"
SETTINGS = (
    f"store.commitlog_file_size={SEGMENT}", "message.body_bytes_max=65536", "amqp.keep_exchange_records=false", "server.log_level=debug",
)  # fmt: skip


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Gantry]:
    gantry = Gantry(tmp_path, request.param, SETTINGS)
    try:
        yield gantry.start()
    finally:
        gantry.stop()


def connect(server: Gantry) -> tuple[Any, Any]:
    """A connection, and its channel with confirms."""
    host, port = server.address("amqp")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    channel = connection.channel()
    channel.confirm_delivery()
    return connection, channel


def log_begin(server: Gantry) -> int:
    """As the command tells it."""
    found = gantry("broker", "show", "broker-a", "--json", "--nameserver", server.doors["nameserver"])
    assert found.returncode == 0, found.stderr
    return int(json.loads(found.stdout)["logBegin"])


def publish(channel: Any, exchange: str, key: str, count: int, first: int = 0) -> list[bytes]:
    bodies = [b"%08d" % number + BODY for number in range(first, first + count)]
    for body in bodies:
        channel.basic_publish(exchange, key, body, pika.BasicProperties(delivery_mode=2))
    return bodies


def take(channel: Any, queue: str, count: int, acknowledge: bool = True) -> list[bytes]:
    """So many of a queue; the next one, too, has come when it returns, if there is one."""
    got = []
    for method, _, body in channel.consume(queue, inactivity_timeout=30):
        assert method is not None, f"{len(got)} of {count} came from {queue}"
        got.append(body)
        if acknowledge:
            channel.basic_ack(method.delivery_tag)
        if len(got) == count:
            break
    channel.cancel()
    return got


@pytest.mark.parametrize("server", ["combined"], indirect=True)
def test_segments_go_when_all_is_acknowledged_and_only_then(server: Gantry) -> None:
    connection, channel = connect(server)
    channel.exchange_declare(EXCHANGE, "topic", durable=True)
    for queue, key in ((WORK, "#"), (LATE, "late.#")):
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, EXCHANGE, key)
    channel.queue_declare(JOBS, durable=True)
    reply = channel.queue_declare("", exclusive=True).method.queue

    late = publish(channel, EXCHANGE, "late.bird", 5)
    sent = publish(channel, EXCHANGE, "early", 600, 5)
    tasks = publish(channel, "", JOBS, 300)
    answers = publish(channel, "", reply, 50)
    assert take(channel, WORK, 605) == late + sent
    assert take(channel, JOBS, 300) == tasks
    assert take(channel, reply, 50) == answers
    connection.close()
    until(lambda: log_begin(server) >= 2 * SEGMENT)  # with two of the five late ones in the first

    server.kill_and_restart()
    assert log_begin(server) >= 2 * SEGMENT
    connection, channel = connect(server)
    assert channel.queue_declare(WORK, durable=True, passive=True).method.message_count == 0
    assert take(channel, LATE, 5) == late

    held = publish(channel, EXCHANGE, "early", 1000, 1000)
    assert take(channel, WORK, 1000, acknowledge=False) == held
    publish(channel, "", JOBS, 600)
    take(channel, JOBS, 600)
    until(lambda: "does not go early: more than 10% of it is alive" in server.log())
    begin = log_begin(server)
    server.kill_and_restart()
    assert log_begin(server) == begin
    connection, channel = connect(server)
    assert take(channel, WORK, 1000) == held
    channel.queue_delete(WORK)
    connection.close()


@pytest.mark.parametrize("server", ["separated"], indirect=True)
def test_the_attribute_of_one_topic_goes_before_the_setting(server: Gantry) -> None:
    connection, channel = connect(server)
    channel.exchange_declare(EXCHANGE, "fanout", durable=True)
    where = ("--nameserver", server.doors["nameserver"])
    said = gantry("topic", "update", EXCHANGE, "--attribute", "keep.records=true", *where)
    assert said.returncode == 0, said.stderr
    shown = gantry("topic", "show", EXCHANGE, *where, COLUMNS="200")
    assert "keep.records=true" in shown.stdout
    assert gantry("topic", "update", EXCHANGE, "--attribute", "keep.records=perhaps", *where).returncode != 0
    channel.queue_declare(WORK, durable=True)
    channel.queue_bind(WORK, EXCHANGE)
    publish(channel, EXCHANGE, "", 600)
    take(channel, WORK, 600)
    until(lambda: f"it has records of topic {EXCHANGE}" in server.log())
    assert log_begin(server) == 0
    assert gantry("topic", "update", EXCHANGE, "--attribute", "keep.records=", *where).returncode == 0
    until(lambda: log_begin(server) >= SEGMENT)
    connection.close()
