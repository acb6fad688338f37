"""The management API as rabbitmqadmin, Terraform and scalers ask it, by httpx over real sockets beside a pika client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pika.exceptions
import pytest

from interop_tests.commands import gantry
from interop_tests.running import Gantry, free_port
from interop_tests.waiting import until

SHAPES = ("combined", "separated")


@pytest.fixture(scope="module", params=SHAPES)
def managed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gantry, Any]]:
    directory: Path = tmp_path_factory.mktemp("managed")
    port = free_port()
    server = Gantry(directory, request.param, (f"amqp.management_port={port}",)).start()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/", auth=("guest", "guest"), timeout=30) as client:
        yield server, client
    server.stop()


def test_the_requests_of_rabbitmqadmin(managed: tuple[Gantry, httpx.Client]) -> None:
    """In the order and form in which the tool of RabbitMQ 3 and 4 sends them: texts for flags, quoted names, its column lists."""
    server, api = managed
    put = api.put(
        "exchanges/%2F/orders", json={"durable": "true", "auto_delete": "false", "internal": "false", "type": "topic"}
    )
    assert put.status_code == 201
    assert (
        api.put("queues/%2F/paid", json={"durable": "true", "auto_delete": "false", "arguments": {}}).status_code == 201
    )
    bound = api.post("bindings/%2F/e/orders/q/paid", json={"routing_key": "#.paid", "arguments": {}})
    assert (bound.status_code, bound.headers["location"]) == (201, "%23.paid")
    body = {"properties": {}, "routing_key": "eu.paid", "payload": "hello", "payload_encoding": "string"}
    assert api.post("exchanges/%2F/orders/publish", json=body).json() == {"routed": True}
    (queue,) = api.get("queues", params={"columns": "name,messages"}).json()
    assert queue == {"name": "paid", "messages": 1}
    # KEDA's scaler and Celery's Flower read these.
    shown = api.get("queues/%2F/paid").json()
    assert {name: shown[name] for name in ("messages", "messages_unacknowledged", "consumers", "state")} == {
        "messages": 1, "messages_unacknowledged": 0, "consumers": 0, "state": "running"
    }  # fmt: skip
    host, port = server.address("amqp")
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(host, port, client_properties={"connection_name": "till"})
    )
    channel = connection.channel()
    method, _, text = channel.basic_get("paid")
    assert (method.exchange, method.routing_key, text) == ("orders", "eu.paid", b"hello")
    (row,) = api.get("connections").json()
    assert (row["user_provided_name"], row["channels"]) == ("till", 1)
    assert [found["name"] for found in api.get("connections/username/guest").json()] == [row["name"]]
    assert api.get("connections/username/nobody").json() == []
    channel.basic_consume("paid", lambda *_: None, consumer_tag="busy")
    (consumer,) = api.get("consumers").json()
    channel.basic_cancel("busy")
    # The rabbitmqadmin of RabbitMQ 4.1 and later does without a list where one of these is missing.
    assert (consumer["consumer_tag"], consumer["consumer_timeout"]) == ("busy", 1_800_000)
    assert [node["being_drained"] for node in api.get("nodes").json()] == [False]
    assert api.get("deprecated-features").json() == []
    stream = {"durable": True, "arguments": {"x-queue-type": "stream", "x-max-age": "7D"}}
    assert api.put("queues/%2F/trail", json=stream).status_code == 201
    to_trail = body | {"routing_key": "trail"}
    assert api.post("exchanges/%2F/amq.default/publish", json=to_trail).json() == {"routed": True}
    shown = api.get("queues/%2F/trail").json()
    assert (shown["type"], shown["messages"], shown["arguments"]["x-max-age"]) == ("stream", 1, "7D")
    assert api.post("queues/%2F/trail/get", json={"count": 1, "ackmode": "ack_requeue_true"}).status_code == 400
    assert api.delete("queues/%2F/trail/contents").status_code == 400
    assert api.delete("queues/%2F/trail").status_code == 204
    assert api.get("queues/%2F/paid").json()["messages_unacknowledged"] == 1
    connection.close()
    got = api.post(
        "queues/%2F/paid/get", json={"ackmode": "ack_requeue_false", "count": "1", "encoding": "auto"}
    ).json()
    assert (got[0]["payload"], got[0]["redelivered"]) == ("hello", True)
    definitions = api.get("definitions").json()
    assert api.delete("bindings/%2F/e/orders/q/paid/%2523.paid").status_code == 204
    assert api.delete("queues/%2F/paid").status_code == 204
    assert api.delete("exchanges/%2F/orders").status_code == 204
    assert api.get("queues").json() == []
    assert api.post("definitions", json=definitions).status_code == 204
    assert api.post("exchanges/%2F/orders/publish", json=body).json() == {"routed": True}
    assert api.delete("queues/%2F/paid/contents").status_code == 204
    assert api.get("overview").json()["queue_totals"]["messages"] == 0
    assert api.get("queues", auth=("guest", "wrong")).status_code == 401


def test_the_command_line(managed: tuple[Gantry, httpx.Client], tmp_path: Path) -> None:
    """A file as RabbitMQ 4.0.5 writes it goes in and comes out; what is in a queue is seen and stays there."""
    _, api = managed
    where = ("--api", str(api.base_url).removesuffix("/api/"))
    file = tmp_path / "definitions.json"
    queue = {"name": "cli", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    bound = {
        "source": "amq.headers",
        "vhost": "/",
        "destination": "cli",
        "destination_type": "queue",
        "routing_key": "",
        "arguments": {"x-match": "any", "n": 1},
    }
    file.write_text(
        json.dumps({"rabbit_version": "4.0.5", "users": [], "queues": [queue], "exchanges": [], "bindings": [bound]})
    )
    assert gantry("amqp", "import", str(file), *where).returncode == 0
    found = json.loads(gantry("amqp", "export", *where).stdout)
    assert queue in found["queues"]
    assert bound in found["bindings"]
    later = {"name": "cli-later", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    other = queue | {"arguments": {"x-max-length": 1}}
    file.write_text(json.dumps({"rabbit_version": "4.0.5", "queues": [other, later]}))
    done = gantry("amqp", "import", str(file), *where)
    assert done.returncode == 0, done.stderr  # what is there stays as it is, as with RabbitMQ
    found = json.loads(gantry("amqp", "export", *where).stdout)
    assert queue in found["queues"]
    assert later in found["queues"]
    api.post("exchanges/%2F/amq.default/publish", json={"routing_key": "cli", "payload": "x", "properties": {}})
    (line,) = gantry("amqp", "peek", "cli", *where).stdout.splitlines()
    assert json.loads(line)["payload"] == "x"
    rows = [json.loads(line) for line in gantry("amqp", "queues", "--json", *where).stdout.splitlines()]
    assert [row["messages"] for row in rows if row["name"] == "cli"] == [1]
    assert "cli" in gantry("amqp", "bindings", *where).stdout
    refused = gantry("amqp", "queues", *where, "--user", "guest:wrong")
    assert (refused.returncode, "401" in refused.stderr) == (1, True)
    assert gantry("amqp", "peek", "none", *where).returncode == 3
    assert gantry("amqp", "queues", "--api", f"http://127.0.0.1:{free_port()}").returncode == 4
    api.delete("queues/%2F/cli-later")
    api.delete("queues/%2F/cli")


def test_many_queues_hold_up_nobody(managed: tuple[Gantry, httpx.Client]) -> None:
    server, api = managed
    host, port = server.address("amqp")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    channel = connection.channel()
    for number in range(250):
        channel.queue_declare(f"many-{number}", exclusive=True)
    rows = api.get("queues", params={"name": "many-", "columns": "name,consumers"}).json()
    assert len(rows) == 250
    page = api.get("queues", params={"name": "many-", "page": 3, "page_size": 100}).json()
    assert (page["item_count"], page["total_count"], page["page_count"]) == (50, 250, 3)
    connection.close()


def test_policies_are_in_force_at_once(managed: tuple[Gantry, httpx.Client]) -> None:
    """On queues that exist, with messages in them, and on those that are declared later; what a policy took stays away when it is gone."""
    server, api = managed
    host, port = server.address("amqp")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    channel = connection.channel()
    channel.confirm_delivery()

    def ready(queue: str) -> int:
        return int(channel.queue_declare(queue, passive=True).method.message_count)

    for name in ("ruled.dead", "ruled.a", "free"):
        channel.queue_declare(name, durable=True)
        for number in range(5):
            channel.basic_publish("", name, b"%d" % number)
    where = ("--api", str(api.base_url).removesuffix("/api/"))
    settings = {"max-length": 2, "dead-letter-exchange": "", "dead-letter-routing-key": "ruled.dead"}
    set_ = gantry("amqp", "set-policy", "p", "^ruled[.][ab]", json.dumps(settings), "--apply-to", "queues", *where)
    assert (set_.returncode, set_.stderr) == (0, "")
    until(lambda: (ready("ruled.a"), ready("ruled.dead"), ready("free")) == (2, 8, 5))
    channel.queue_declare("ruled.b", durable=True)
    for _ in range(3):
        channel.basic_publish("", "ruled.b", b"x")
    until(lambda: (ready("ruled.b"), ready("ruled.dead")) == (2, 9))
    assert gantry("amqp", "set-policy", "o", "^ruled[.]b", '{"max-length": 1}', "--operator", *where).returncode == 0
    until(lambda: (ready("ruled.b"), ready("ruled.dead")) == (1, 10))
    shown = api.get("queues/%2F/ruled.b").json()
    assert (shown["policy"], shown["operator_policy"]) == ("p", "o")
    assert shown["effective_policy_definition"] == settings | {"max-length": 1}
    assert "^ruled[.][ab]" in gantry("amqp", "policies", *where).stdout
    assert gantry("amqp", "clear-policy", "p", *where).returncode == 0
    assert gantry("amqp", "clear-policy", "p", *where).returncode == 3
    for _ in range(3):
        channel.basic_publish("", "ruled.a", b"x")
    assert ready("ruled.a") == 5
    assert gantry("amqp", "set-policy", "t", "^ruled[.]a", '{"message-ttl": 50}', *where).returncode == 0
    until(lambda: ready("ruled.a") == 0)
    assert gantry("amqp", "set-policy", "t", "^ruled[.]a", "{", *where).returncode == 2
    connection.close()


def test_policies_survive_kill(tmp_path: Path) -> None:
    port = free_port()
    server = Gantry(tmp_path, settings=(f"amqp.management_port={port}",)).start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/", auth=("guest", "guest"), timeout=30) as api:
            api.put("queues/%2F/q", json={"durable": True})
            rule = {"pattern": "^q", "definition": {"max-length": 1, "overflow": "reject-publish"}}
            assert api.put("policies/%2F/p", json=rule).status_code == 201
        server.kill_and_restart()
        host, amqp_port = server.address("amqp")
        connection = pika.BlockingConnection(pika.ConnectionParameters(host, amqp_port))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"fits")
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "q", b"does not")
        connection.close()
    finally:
        server.stop()


def test_two_vhosts_and_the_end_of_one(managed: tuple[Gantry, httpx.Client]) -> None:
    """The same names in both, by pika: dead letters, limits and the deletion stay in their own."""
    server, api = managed
    host, port = server.address("amqp")
    words = ("--api", str(api.base_url).removesuffix("/api/"))
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="vhost shop not found"):
        pika.BlockingConnection(pika.ConnectionParameters(host, port, "shop"))
    added = gantry("amqp", "vhost", "add", "shop", "--description", "of the shop", "--max-queues", "2", *words)
    assert added.returncode == 0, added.stderr
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    connections = {
        vhost: pika.BlockingConnection(pika.ConnectionParameters(host, port, vhost)) for vhost in ("/", "shop")
    }
    channels = {vhost: connection.channel() for vhost, connection in connections.items()}
    for channel in channels.values():
        channel.confirm_delivery()
        channel.queue_declare("dead", durable=True)
        channel.queue_declare("work", durable=True, arguments=arguments)
    channels["shop"].basic_publish("", "work", b"x")
    method, _, _ = channels["shop"].basic_get("work")
    channels["shop"].basic_reject(method.delivery_tag, requeue=False)
    until(lambda: channels["shop"].queue_declare("dead", passive=True).method.message_count == 1)
    assert channels["/"].queue_declare("dead", passive=True).method.message_count == 0
    with pytest.raises(
        pika.exceptions.ChannelClosedByBroker, match="cannot declare queue 'third': queue limit in vhost 'shop'"
    ):
        channels["shop"].queue_declare("third")
    channel = connections["shop"].channel()
    method, properties, body = channel.basic_get("dead", auto_ack=True)
    assert (method.exchange, method.routing_key, body) == ("", "dead", b"x")
    assert properties.headers["x-death"][0]["queue"] == "work"
    listed = gantry("amqp", "queues", "--vhost", "shop", "--json", *words).stdout.splitlines()
    assert sorted(json.loads(line)["name"] for line in listed) == ["dead", "work"]
    assert "of the shop" in gantry("amqp", "vhost", "list", *words).stdout
    server.kill_and_restart()
    host, port = server.address("amqp")
    assert {row["name"] for row in api.get("queues/shop").json()} == {"dead", "work"}
    late = pika.BlockingConnection(pika.ConnectionParameters(host, port, "shop"))
    assert gantry("amqp", "vhost", "delete", "shop", *words).returncode == 0
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="vhost 'shop' is deleted"):
        late.channel()
    assert api.get("queues/shop").status_code == 404
    assert {row["vhost"] for row in api.get("queues").json()} == {"/"}
    for queue in ("dead", "work"):
        api.delete(f"queues/%2F/{queue}")
