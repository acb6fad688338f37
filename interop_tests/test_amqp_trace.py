"""The firehose as RabbitMQ's users know it: `gantry amqp trace on`, and a pika client at `amq.rabbitmq.trace`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from interop_tests.commands import gantry
from interop_tests.running import Gantry, free_port

LIMIT_S = 30.0


@pytest.fixture(params=("combined", "separated"))
def managed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Gantry, str]]:
    port = free_port()
    server = Gantry(tmp_path, request.param, (f"amqp.management_port={port}",)).start()
    yield server, f"http://127.0.0.1:{port}"
    server.stop()


def connect(server: Gantry) -> pika.BlockingConnection:
    host, port = server.address("amqp")
    return pika.BlockingConnection(pika.ConnectionParameters(host, port))


def copies(channel: Any, count: int) -> list[tuple[str, bytes, dict[str, Any]]]:
    found: list[tuple[str, bytes, dict[str, Any]]] = []
    end = time.monotonic() + LIMIT_S
    for method, properties, body in channel.consume("traces", auto_ack=True, inactivity_timeout=1):
        if method is not None:
            found.append((method.routing_key, body, properties.headers))
        if len(found) == count or time.monotonic() > end:
            break
    channel.cancel()
    return found


def test_what_is_published_and_delivered_is_copied_to_a_bound_queue(managed: tuple[Gantry, str]) -> None:
    server, address = managed
    where = ("--api", address)
    listening, working = connect(server), connect(server)
    traces, channel = listening.channel(), working.channel()
    traces.queue_declare("traces", durable=True)
    traces.queue_bind("traces", "amq.rabbitmq.trace", "#")
    channel.queue_declare("jobs", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "jobs", b"unseen")
    assert gantry("amqp", "trace", "on", *where).returncode == 0
    (row,) = httpx.get(f"{address}/api/vhosts", auth=("guest", "guest")).json()
    assert row["tracing"] is True
    properties = pika.BasicProperties(
        content_type="text/plain", headers={"a": 1}, delivery_mode=2, priority=3, timestamp=5
    )
    channel.basic_publish("", "jobs", b"seen", properties)
    assert [channel.basic_get("jobs", auto_ack=True)[2] for _ in range(2)] == [b"unseen", b"seen"]
    found = copies(traces, 3)
    assert [(key, body) for key, body, _ in found] == [
        ("publish.", b"seen"), ("deliver.jobs", b"unseen"), ("deliver.jobs", b"seen"),
    ]  # fmt: skip
    for key, _, headers in (found[0], found[2]):
        assert headers["exchange_name"] == ""
        assert headers["routing_keys"] == ["jobs"]
        assert headers["properties"] == {
            "content_type": "text/plain", "headers": {"a": 1}, "delivery_mode": 2, "priority": 3,
            "timestamp": headers["properties"]["timestamp"],
        }  # fmt: skip
        assert (headers["vhost"], headers["user"], headers["channel"]) == ("/", "guest", 1)
        assert headers.get("redelivered") == (0 if key == "deliver.jobs" else None)
        assert headers.get("routed_queues") == (["jobs"] if key == "publish." else None)
    assert gantry("amqp", "trace", "off", *where).returncode == 0
    channel.basic_publish("", "jobs", b"unseen again")
    assert traces.basic_get("traces")[0] is None
    assert gantry("amqp", "trace", "perhaps", *where).returncode == 2
    listening.close()
    working.close()


def test_it_stays_on_through_a_restart(managed: tuple[Gantry, str]) -> None:
    server, address = managed
    assert gantry("amqp", "trace", "on", "--api", address).returncode == 0
    channel = connect(server).channel()
    channel.queue_declare("traces", durable=True)
    channel.queue_bind("traces", "amq.rabbitmq.trace", "publish.#")
    server.kill_and_restart()
    channel = connect(server).channel()
    channel.confirm_delivery()
    channel.basic_publish("amq.fanout", "", b"seen")
    assert [(key, body) for key, body, _ in copies(channel, 1)] == [("publish.amq.fanout", b"seen")]
