"""Tokens of `gantry token add` at every door, with clients nobody here wrote."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import httpx
import pika
import pika.exceptions
import pytest

from gantrymq.client.client import Client
from gantrymq.client.consuming.consumer import PullConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.model.errors import GantryError
from interop_tests.accounts import ADMIN, PASSWORD, Guarded
from interop_tests.commands import gantry
from interop_tests.test_auth_tokens import amqp, mqtt
from interop_tests.waiting import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("gantry"))
    try:
        made.start()
        made.add_user("alice", "alice-pass", ("topic:t", "pub,sub"), ("queue:q*", "all"))
        yield made
    finally:
        made.stop()


def gantry_cli(server: Guarded, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {"GANTRY_USER": ADMIN, "GANTRY_PASSWORD": PASSWORD, "NAMESRV_ADDR": server.nameserver, **environment}
    return gantry(*arguments, **given)


def new_token(server: Guarded, seconds: float = 600) -> tuple[str, str]:
    """Id and text of one of alice's."""
    expires_ms = int((time.time() + seconds) * 1000)
    made: tuple[str, str] = server.accounts(lambda accounts: accounts.add_token("alice", expires_ms, "a test"))
    return made


async def send(server: Guarded, token: str, topic: str = "t") -> None:
    async with Client(server.nameserver, token=token) as client, Producer(client=client) as producer:
        await producer.send(topic, b"hello")


async def forever(call: Callable[[], Awaitable[object]]) -> None:
    while True:
        await call()


def post(server: Guarded, token: str) -> httpx.Response:
    url = "http://{}:{}/topics/t".format(*server.address("cloudevents"))
    event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
    return httpx.post(url, headers={**event, "Authorization": f"Bearer {token}"}, content=b"x", timeout=20)


def test_the_command_makes_shows_and_deletes_them(server: Guarded) -> None:
    made = gantry_cli(server, "token", "add", "alice", "--for", "1h", "--note", "of the press")
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    assert "it is shown this once" in made.stderr
    assert token not in made.stderr
    rows = [json.loads(line) for line in gantry_cli(server, "token", "list", "alice", "--json").stdout.splitlines()]
    (row,) = [row for row in rows if row.get("note") == "of the press"]
    assert (row["username"], row["state"]) == ("alice", "good")
    assert row["id"] in token
    assert 3_500_000 < row["expiresMs"] - time.time() * 1000 <= 3_600_000
    assert "of the press" in gantry_cli(server, "token", "show", row["id"]).stdout
    listed = gantry_cli(server, "topic", "list", GANTRY_USER="", GANTRY_PASSWORD="", GANTRY_TOKEN=token)
    assert "alice" in listed.stderr, "it is alice who asks, and she may not"
    asyncio.run(send(server, token))
    assert gantry_cli(server, "token", "delete", row["id"], "--yes").returncode == 0
    assert gantry_cli(server, "token", "show", row["id"]).returncode == 1
    with pytest.raises(GantryError, match="the token is refused"):
        asyncio.run(send(server, token))
    for arguments, text in (
        (("add", "nobody"), "there is no user 'nobody'"),
        (("add", "alice", "--for", "never"), "write 90s, 10m, 6h or 7d"),
        (("add", "alice", "--for", "9999d"), "3660 days at most"),
        (("delete", "00", "--yes"), "there is no token '00'"),
    ):
        refused = gantry_cli(server, "token", *arguments)
        assert refused.returncode != 0
        assert text in refused.stderr
    asked = gantry_cli(server, "token", "list", GANTRY_USER="alice", GANTRY_PASSWORD="alice-pass")
    assert "no administrator" in asked.stderr


def test_every_door_takes_one_and_lets_go_when_it_is_deleted(server: Guarded) -> None:
    name, token = new_token(server)
    said, client, lost = mqtt(server, "", token)
    assert said == "Success"
    client.publish("t/x", b"1", 1).wait_for_publish(20)
    connection = amqp(server, token)
    connection.channel().queue_declare("q1")
    assert post(server, token).status_code == 202
    asyncio.run(send(server, token))
    with pytest.raises(GantryError, match="no permission pub on topic:other"):
        asyncio.run(send(server, token, "other"))
    server.accounts(lambda accounts: accounts.delete_token(name))
    assert lost.wait(20)
    client.loop_stop()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="has expired or was deleted"):
        until(lambda: connection.process_data_events(0.05), 20)
    assert post(server, token).status_code == 401
    assert mqtt(server, "alice", token)[0] == "Bad user name or password"
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        amqp(server, token)
    assert token not in server.log()


def test_a_consumer_ends_with_its_token(server: Guarded) -> None:
    """A poll that waits longer than its token is good gets nothing any more."""

    async def consume() -> None:
        _, token = await asyncio.to_thread(new_token, server, 1.5)
        async with (
            Client(server.nameserver, token=token) as client,
            PullConsumer(group="g", client=client) as consumer,
        ):
            queue = (await consumer.queues("t"))[0]
            end = await consumer.max_offset(queue)
            with pytest.raises(GantryError, match=r"the token|closed|lost"):
                await forever(partial(consumer.pull_queue, queue, end, wait_s=10))

    server.accounts(lambda accounts: accounts.add_rules("user:alice", [{"resource": "group:g", "actions": ["sub"]}]))
    asyncio.run(send(server, new_token(server)[1]))
    began = time.monotonic()
    asyncio.run(consume())
    assert time.monotonic() - began < 9, "before the poll would have ended"


def test_they_outlive_a_restart_and_go_with_their_user(server: Guarded) -> None:
    _, token = new_token(server)
    server.stop()
    server.start()
    assert post(server, token).status_code == 202
    server.accounts(lambda accounts: accounts.delete_user("alice"))
    server.add_user("alice", "alice-pass", ("topic:t", "pub,sub"))
    assert post(server, token).status_code == 401, "whoever has the name now is somebody else"
