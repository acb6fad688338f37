"""Classes of RabbitMQ's security advisories that no other test has, each against a running server: what its clients may send, harms nobody."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from interop_tests.running import Gantry, free_port
from interop_tests.test_amqp_clients import connect, unique

VALUES: list[Any] = [
    [],
    {},
    [[]],
    [{}],
    {"a": []},
    None,
    True,
    -1,
    1 << 62,
    Decimal("0.5"),
    b"",
    b"\xff",
    "",
    "x" * 10_000,
]
"""Of a header; an empty array ended RabbitMQ's hash exchange (GHSA-pj8f-mw2q-3xjj)."""

SLOW_PATTERN = "(a+)+$"
"""Takes an engine that goes back twice the time for each more letter (CVE-2026-66074)."""


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gantry, httpx.Client]]:
    directory: Path = tmp_path_factory.mktemp("managed")
    port = free_port()
    server = Gantry(directory, settings=(f"amqp.management_port={port}",)).start()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/", auth=("guest", "guest"), timeout=30) as client:
        yield server, client
    server.stop()


@pytest.fixture
def channel(managed: tuple[Gantry, httpx.Client]) -> Iterator[Any]:
    connection = connect(managed[0])
    yield connection.channel()
    connection.close()


def test_whatever_is_hashed_goes_to_one_queue(channel: Any) -> None:
    exchange = unique("hash")
    channel.confirm_delivery()
    channel.exchange_declare(exchange, "x-consistent-hash", arguments={"hash-header": "user"}, auto_delete=True)
    names = [channel.queue_declare("", exclusive=True).method.queue for _ in range(2)]
    for name in names:
        channel.queue_bind(name, exchange, "1")
    for value in VALUES:
        channel.basic_publish(exchange, "k", b"x", pika.BasicProperties(headers={"user": value}), mandatory=True)
    counts = [channel.queue_declare(name, passive=True).method.message_count for name in names]
    assert sum(counts) == len(VALUES)


@pytest.mark.parametrize("kind", ["all", "any", "all-with-x", "any-with-x"])
def test_headers_of_every_type_are_compared(channel: Any, kind: str) -> None:
    exchange, queue = unique("headers"), channel.queue_declare("", exclusive=True).method.queue
    channel.confirm_delivery()
    channel.exchange_declare(exchange, "headers", auto_delete=True)
    channel.queue_bind(queue, exchange, arguments={"x-match": kind, "user": "one"})
    for value in [*VALUES, "one"]:
        channel.basic_publish(exchange, "", b"x", pika.BasicProperties(headers={"user": value}))
    assert channel.queue_declare(queue, passive=True).method.message_count == 1


def test_an_answer_goes_to_nobody_whose_name_was_guessed(channel: Any) -> None:
    """CVE-2026-57215, CVE-2026-67238: the rest of the name is a random token, not something to be taken apart."""
    replies: list[bytes] = []
    channel.basic_consume("amq.rabbitmq.reply-to", lambda *args: replies.append(args[3]), auto_ack=True)
    channel.confirm_delivery()
    for rest in ("", "1", "g2dkAA9yYWJiaXRAbG9jYWxob3N0", "../../x", "a" * 200):
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish("", f"amq.rabbitmq.reply-to.{rest}", b"forged", mandatory=True)
    channel.connection.process_data_events(0)
    assert replies == []


def test_a_name_to_look_for_is_no_program(managed: tuple[Gantry, httpx.Client], channel: Any) -> None:
    _, api = managed
    queue = channel.queue_declare("a" * 200 + "b", auto_delete=True).method.queue
    for words in (
        {"use_regex": "true"},
        {"use_regex": "true", "page": "1", "page_size": "100"},
        {"page": "1", "page_size": "1"},
    ):
        answer = api.get("queues", params={"name": SLOW_PATTERN, **words}, timeout=5)
        assert answer.status_code in (200, 400), answer.text
    channel.queue_delete(queue)


def test_no_page_of_another_origin_may_read_an_answer(managed: tuple[Gantry, httpx.Client]) -> None:
    """CVE-2026-66070: nothing says that others may, whatever they call themselves."""
    _, api = managed
    for origin in ("https://evil.example", "null", "http://127.0.0.1"):
        for method in ("GET", "OPTIONS", "POST"):
            headers = {"origin": origin, "access-control-request-method": "DELETE"}
            answer = api.request(method, "overview", headers=headers)
            assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_names_come_back_as_json_text(managed: tuple[Gantry, httpx.Client], channel: Any) -> None:
    """No name is markup where a browser shows it: answers are JSON, and say so."""
    _, api = managed
    name = "<script>alert(1)</script>"
    channel.queue_declare(name, exclusive=True)
    answer = api.get("queues")
    assert answer.headers["content-type"].startswith("application/json")
    assert name in [row["name"] for row in answer.json()]
