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
EXCHANGE, WORK, LATE, HELD, JOBS = "orders", "work", "late", "held", "jobs"
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


@pytest.mark.parametrize("server", ["separated"], indirect=True)
def test_segments_go_when_all_is_acknowledged_and_only_then(server: Gantry) -> None:
    connection, channel = connect(server)
    channel.exchange_declare(EXCHANGE, "topic", durable=True)
    for queue, key in ((WORK, "early"), (LATE, "late.#"), (HELD, "held")):
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, EXCHANGE, key)
    channel.queue_declare(JOBS, durable=True)
    reply = channel.queue_declare("", exclusive=True).method.queue
    attribute(server, "keep.records=true")

    late = publish(channel, EXCHANGE, "late.bird", 5)
    sent = publish(channel, EXCHANGE, "early", 600, 5)
    tasks = publish(channel, "", JOBS, 300)
    answers = publish(channel, "", reply, 50)
    held = publish(channel, EXCHANGE, "held", 500, 1000)
    assert take(channel, WORK, 600) == sent
    assert take(channel, JOBS, 300) == tasks
    assert take(channel, reply, 50) == answers
    assert take(channel, HELD, 500, acknowledge=False) == held
    connection.close()

    until(lambda: f"it has records of topic {EXCHANGE}" in server.log())
    assert log_begin(server) == 0
    attribute(server, "keep.records=")  # the setting counts
    until(lambda: "does not go early: more than 10% of it is alive" in server.log())
    begin = log_begin(server)
    assert begin >= 3 * SEGMENT  # all but two of what was acknowledged, though the first has what is late

    server.kill_and_restart()
    assert log_begin(server) == begin
    connection, channel = connect(server)
    assert take(channel, LATE, 5) == late
    assert take(channel, HELD, 500) == held
    for queue in (WORK, JOBS):
        assert channel.queue_declare(queue, durable=True, passive=True).method.message_count == 0
    connection.close()


def attribute(server: Gantry, given: str) -> None:
    where = ("--nameserver", server.doors["nameserver"])
    server.wait_for_topic(EXCHANGE)
    said = gantry("topic", "update", EXCHANGE, "--attribute", given, *where)
    assert said.returncode == 0, said.stderr
    shown = gantry("topic", "show", EXCHANGE, *where, COLUMNS="200")
    assert (given in shown.stdout) == (not given.endswith("="))
