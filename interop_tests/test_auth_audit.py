"""The audit trail of a whole installation: gateways in a process of their own, clients nobody here wrote, and a restart."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import paho.mqtt.client as paho
import pika
import pika.exceptions
import pytest

from gantrymq.client import Producer
from gantrymq.client.client import Client
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.names import AUDIT_TOPIC
from interop_tests import commands
from interop_tests.accounts import ADMIN, PASSWORD, Guarded
from interop_tests.waiting import until

SECRETS = ("wrong-password", "the-secret-of-alice", PASSWORD)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    gantry = Guarded(tmp_path_factory.mktemp("gantry"), "separated", ("amqp.management_port=0",))
    try:
        gantry.start()
        gantry.add_user("alice", SECRETS[1], ("mqtt:own/#", "pub,sub"), ("topic:own", "pub"))
        yield gantry
    finally:
        gantry.stop()


def trail(server: Guarded) -> list[dict[str, Any]]:
    found = server.accounts(lambda accounts: accounts.audit(last=500))
    return [event for answer in found.values() for _, event in answer["events"]]


def seen(server: Guarded, kind: str, door: str, **wanted: Any) -> dict[str, Any]:
    """An event that has all of this, as soon as it is there."""

    def find() -> dict[str, Any] | None:
        wanted_ = {"kind": kind, "door": door, **wanted}
        return next((event for event in trail(server) if wanted_.items() <= event.items()), None)

    return until(find)


def gantry(server: Guarded, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.gantry(
        *words, "--nameserver", server.nameserver, GANTRY_USER=ADMIN, GANTRY_PASSWORD=PASSWORD, COLUMNS="200"
    )


def test_mqtt(server: Guarded) -> None:
    for password, good in (("wrong-password", None), (SECRETS[1], True)):
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="a", protocol=paho.MQTTv5)
        client.username_pw_set("alice", password)
        client.connect(*server.address("mqtt"))
        client.loop_start()
        event = seen(
            server,
            "login",
            "mqtt",
            user="alice",
            **({"good": True} if good else {"why": "the user name or password is wrong"}),
        )
        assert event["address"].startswith("127.0.0.1:")
        if good:
            client.publish("other/x", b"body-of-a-message", 1)
            denied = seen(server, "denied", "mqtt", user="alice", action="pub")
            assert (denied["resource"], denied["why"]) == ("mqtt:other/x", "no rule")
            client.subscribe("#")
            seen(server, "denied", "mqtt", user="alice", action="sub", resource="mqtt:#")
        client.disconnect()
        client.loop_stop()


def test_amqp(server: Guarded) -> None:
    host, port = server.address("amqp")

    def connect(password: str) -> pika.BlockingConnection:
        credentials = pika.PlainCredentials("alice", password)
        return pika.BlockingConnection(pika.ConnectionParameters(host, port, credentials=credentials))

    with pytest.raises(pika.exceptions.AMQPError):
        connect("wrong-password")
    seen(server, "login", "amqp", user="alice", why="the user name or password is wrong")
    connection = connect(SECRETS[1])
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
        connection.channel().queue_declare("jobs")
    connection.close()
    seen(server, "login", "amqp", user="alice", good=True)
    seen(server, "denied", "amqp", user="alice", action="configure", resource="queue jobs", why="no rule")


def test_what_amqp_clients_make_and_delete_is_told_once(server: Guarded) -> None:
    host, port = server.address("amqp")
    credentials = pika.PlainCredentials(ADMIN, PASSWORD)
    with pika.BlockingConnection(pika.ConnectionParameters(host, port, credentials=credentials)) as connection:
        channel = connection.channel()
        for _ in range(3):
            channel.queue_declare("kept", durable=True)
            channel.exchange_declare("told", "topic", durable=True)
        channel.queue_declare("kept", passive=True)
        channel.queue_declare("", exclusive=True)
        channel.queue_declare("mine", exclusive=True)
        channel.queue_purge("kept")
        channel.queue_delete("kept")
        channel.queue_delete("kept")
        channel.exchange_delete("told")
    seen(server, "change", "amqp", user=ADMIN, action="exchange.delete", resource="exchange told")
    found = [
        (event["action"], event["resource"])
        for event in trail(server)
        if (event["kind"], event["door"]) == ("change", "amqp")
    ]
    assert found == [
        ("queue.declare", "queue kept"), ("exchange.declare", "exchange told"), ("queue.purge", "queue kept"),
        ("queue.delete", "queue kept"), ("exchange.delete", "exchange told"),
    ]  # fmt: skip


def test_what_operators_do_to_mqtt_clients(server: Guarded) -> None:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="kick-me", reconnect_on_failure=False)
    client.username_pw_set("alice", SECRETS[1])
    client.connect(*server.address("mqtt"))
    client.loop_start()
    until(lambda: gantry(server, "mqtt", "kick", "kick-me").returncode == 0)
    client.loop_stop()
    seen(server, "change", "mqtt", user=ADMIN, action="kick", resource="client kick-me")
    assert gantry(server, "mqtt", "ban", "--client", "kick-me", "--reason", "noise").returncode == 0
    assert gantry(server, "mqtt", "unban", "--client", "kick-me").returncode == 0
    seen(server, "change", "mqtt", user=ADMIN, action="ban", resource="client:kick-me")
    seen(server, "change", "mqtt", action="unban", resource="client:kick-me")


def test_cloudevents(server: Guarded) -> None:
    url = "http://{}:{}/topics/other".format(*server.address("cloudevents"))
    event = {"Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "/s", "Ce-Type": "t"}
    assert httpx.post(url, content="x", headers=event, auth=("alice", "wrong-password"), timeout=20).status_code == 401
    with httpx.Client() as session:
        for _ in range(3):
            assert (
                session.post(url, content="x", headers=event, auth=("alice", SECRETS[1]), timeout=20).status_code == 403
            )
    seen(server, "login", "cloudevents", user="alice", why="the user name or password is wrong")
    seen(server, "denied", "cloudevents", user="alice", action="pub", resource="topic:other")
    good = [event for event in trail(server) if event["door"] == "cloudevents" and event.get("good")]
    assert len(good) == 1, "one login per connection"


def test_remoting_and_changes(server: Guarded) -> None:
    async def send(password: str) -> None:
        async with Client(server.nameserver, "alice", password) as client, Producer(client=client) as producer:
            await producer.send("other", b"x")

    for password in ("wrong-password", SECRETS[1]):
        with pytest.raises(GantryError) as caught:
            asyncio.run(send(password))
        assert caught.value.code is ErrorCode.NO_PERMISSION
    seen(
        server, "login", "remoting", user="alice", action="signature", why="the signature of AccessKey 'alice' is wrong"
    )
    seen(server, "login", "remoting", user="alice", good=True)
    seen(server, "denied", "remoting", user="alice", resource="topic:other")
    server.add_user("gone", "the-secret-of-alice")
    server.accounts(lambda accounts: accounts.delete_user("gone"))
    made = seen(server, "change", "remoting", user=ADMIN, resource="username=gone", good=True)
    assert made["action"].startswith("AUTH_CREATE_USER")
    deleted = until(lambda: [event for event in trail(server) if "DELETE_USER" in event.get("action", "")])
    assert deleted[0]["user"] == ADMIN


def test_nobody_reads_or_writes_it_as_a_topic(server: Guarded) -> None:
    async def forge() -> None:
        async with Client(server.nameserver, ADMIN, PASSWORD) as client, Producer(client=client) as producer:
            await producer.send(AUDIT_TOPIC, b"forged")

    with pytest.raises(GantryError):
        asyncio.run(forge())

    async def ask(accounts: Any) -> Any:
        return await accounts.audit()

    with pytest.raises(GantryError, match="no administrator"):
        server.accounts(ask, "alice", SECRETS[1])


def test_the_command_line_and_no_secrets(server: Guarded) -> None:
    lines = [
        json.loads(line) for line in gantry(server, "auth", "audit", "--last", "500", "--json").stdout.splitlines()
    ]
    assert {"login", "denied", "change"} <= {line["kind"] for line in lines}
    assert [line["atMs"] for line in lines] == sorted(line["atMs"] for line in lines)
    text = gantry(server, "auth", "audit", "--failed", "--user", "alice").stdout
    assert "alice from 127.0.0.1:" in text
    assert "refused: the user name or password is wrong" in text
    assert "came in" not in text
    everything = json.dumps(lines) + text
    assert not [secret for secret in (*SECRETS, "body-of-a-message") if secret in everything]
    status = gantry(server, "auth", "status")
    assert "1 administrators" in status.stdout, status.stderr
    assert "users are asked for" in status.stdout
    found = json.loads(gantry(server, "auth", "status", "--json").stdout)
    doors = {door["door"]: door for door in found["doors"]}
    assert (doors["broker"]["reach"], doors["broker"]["tls"], doors["broker"]["asks"]) == ("this machine", "no", True)
    assert found["audit"]["written"] > 0


def test_it_outlives_a_crash(server: Guarded) -> None:
    before = trail(server)
    server.kill_and_restart()
    after = until(lambda: trail(server), ignored=(GantryError,))
    assert after[: len(before)] == before
    server.add_user("late", "late-pass")
    seen(server, "change", "remoting", resource="username=late")
