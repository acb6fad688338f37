"""Users, permissions and topic permissions by the management API, as rabbitmqadmin and Terraform's provider set them, and what pika may do then."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pika.exceptions
import pytest

from interop_tests.accounts import ADMIN, PASSWORD, Guarded
from interop_tests.running import Gantry, free_port

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
SHA256 = "rabbit_password_hashing_sha256"


def rabbit_hash(password: str) -> str:
    return base64.b64encode(b"salt" + hashlib.sha256(b"salt" + password.encode()).digest()).decode()


def api_at(port: int, user: str, password: str) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{port}/api/", auth=(user, password), timeout=60)


@pytest.fixture(scope="module", params=["combined", "separated"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Guarded, httpx.Client]]:
    port = free_port()
    settings = (f"amqp.management_port={port}", "auth.scram=true")
    server = Guarded(tmp_path_factory.mktemp("guarded"), request.param, settings)
    try:
        server.start()
        with api_at(port, ADMIN, PASSWORD) as api:
            yield server, api
        server.stop()
    finally:
        server.kill()


def connect(server: Gantry, user: str, password: str, vhost: str = "/") -> pika.BlockingConnection:
    host, port = server.address("amqp")
    return pika.BlockingConnection(pika.ConnectionParameters(host, port, vhost, pika.PlainCredentials(user, password)))


def refused(act: Callable[[], Any]) -> int:
    """The reply code of what must not work."""
    with pytest.raises((pika.exceptions.ChannelClosedByBroker, pika.exceptions.ConnectionClosedByBroker)) as failure:
        act()
    return int(failure.value.reply_code)


def test_the_life_of_a_user(guarded: tuple[Guarded, httpx.Client]) -> None:
    """PUT makes, the same PUT changes nothing, what was set is shown as it was set, and rights hold at once."""
    server, api = guarded
    made = {"password": "first-pass", "tags": "management, policymaker"}
    assert [api.put("users/till", json=made).status_code for _ in range(2)] == [201, 204]
    shown = api.get("users/till").json()
    assert (shown["name"], shown["tags"], shown["password_hash"]) == ("till", ["management", "policymaker"], "")
    rights = {"configure": "^till[.]", "write": "^(till[.]|amq.default)", "read": "^till[.]"}
    assert [api.put("permissions/%2F/till", json=rights).status_code for _ in range(2)] == [201, 204]
    assert api.get("permissions/%2F/till").json() == {"user": "till", "vhost": "/", **rights}
    assert api.get("users/till/permissions").json() == [{"user": "till", "vhost": "/", **rights}]
    assert {"user": "till", "vhost": "/", **rights} in api.get("vhosts/%2F/permissions").json()
    with api_at(api.base_url.port, "till", "first-pass") as mine:  # type: ignore[arg-type]
        assert mine.put("vhosts/%2F", json={"tracing": True}).status_code in (401, 403)
    assert [row["tracing"] for row in api.get("vhosts").json()] == [False]
    connection = connect(server, "till", "first-pass")
    channel = connection.channel()
    channel.queue_declare("till.jobs", durable=True)
    assert refused(lambda: connection.channel().queue_declare("others", durable=True)) == 403
    # A right that is taken is gone for those who are connected, too.
    assert api.put("permissions/%2F/till", json=rights | {"configure": "^$"}).status_code == 204
    assert refused(lambda: connection.channel().queue_declare("till.more", durable=True)) == 403
    assert api.put("users/till", json={"password": "second-pass", "tags": []}).status_code == 204
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(server, "till", "first-pass")
    connect(server, "till", "second-pass").close()
    assert api.put("users/till", json={"tags": []}).status_code == 204
    connect(server, "till", "second-pass").close()
    assert [api.delete("permissions/%2F/till").status_code for _ in range(2)] == [204, 404]
    assert [api.delete("users/till").status_code for _ in range(2)] == [204, 404]
    with pytest.raises(pika.exceptions.AMQPError):
        connection.channel()


def test_topic_permissions(guarded: tuple[Guarded, httpx.Client]) -> None:
    server, api = guarded
    api.put("users/sensor", json={"password": "sensor-pass", "tags": ""})
    api.put("permissions/%2F/sensor", json=EVERYTHING)
    right = {"exchange": "amq.topic", "write": "^{username}[.]", "read": ".*"}
    assert [api.put("topic-permissions/%2F/sensor", json=right).status_code for _ in range(2)] == [201, 204]
    assert api.get("topic-permissions/%2F/sensor").json() == [{"user": "sensor", "vhost": "/", **right}]
    connection = connect(server, "sensor", "sensor-pass")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", "sensor.temp", b"1")
    assert refused(lambda: channel.basic_publish("amq.topic", "other.temp", b"1")) == 403
    assert api.delete("topic-permissions/%2F/sensor/amq.topic").status_code == 204
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", "other.temp", b"1")
    assert api.delete("topic-permissions/%2F/sensor").status_code == 404
    connection.close()
    assert api.post("users/bulk-delete", json={"users": ["sensor", "nobody"]}).status_code == 204
    assert api.get("users/sensor").status_code == 404


def test_a_file_of_definitions_with_users(guarded: tuple[Guarded, httpx.Client]) -> None:
    """As RabbitMQ exports it: hashes, tags, permissions of a vhost in the same file."""
    server, api = guarded
    guest = {
        "name": "guest",
        "password_hash": rabbit_hash("guest"),
        "hashing_algorithm": SHA256,
        "tags": ["administrator"],
    }
    clerk = {
        "name": "clerk",
        "password_hash": rabbit_hash("clerk-pass"),
        "hashing_algorithm": SHA256,
        "tags": ["monitoring"],
        "limits": {},
    }
    body = {
        "rabbit_version": "4.0.5", "users": [guest, clerk], "vhosts": [{"name": "shop"}],
        "permissions": [{"user": "clerk", "vhost": "shop", **EVERYTHING}, {"user": "guest", "vhost": "/", **EVERYTHING}],
        "topic_permissions": [{"user": "clerk", "vhost": "shop", "exchange": "amq.topic", "write": "^a", "read": "^a"}],
        "queues": [{"name": "q", "vhost": "shop", "durable": True, "arguments": {}}],
    }  # fmt: skip
    assert [api.post("definitions", json=body).status_code for _ in range(2)] == [204, 204]
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(server, "guest", "guest")
    connection = connect(server, "clerk", "clerk-pass", "shop")
    connection.channel().queue_declare("q", passive=True)
    connection.close()
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        connect(server, "clerk", "clerk-pass", "/")
    found = api.get("definitions").json()
    assert [user["tags"] for user in found["users"] if user["name"] == "clerk"] == [["monitoring"]]
    assert [row for row in found["permissions"] if row["user"] == "clerk"] == body["permissions"][:1]
    assert found["topic_permissions"] == body["topic_permissions"]
    # What an export says comes in again, and passwords stay.
    assert api.post("definitions", json=found).status_code == 204
    connect(server, "clerk", "clerk-pass", "shop").close()
    with api_at(api.base_url.port or 0, "clerk", "clerk-pass") as looking:
        assert looking.get("queues").status_code == 200
        assert looking.get("whoami").json()["tags"] == ["monitoring"]
        assert looking.put("users/clerk", json={"password": "x", "tags": "administrator"}).status_code == 401


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("users/a+b", {"password": "x", "tags": ""}, 400, "is no name"),
        ("users/u", {"password": "x", "password_hash": "y", "tags": ""}, 400, "both password and password_hash"),
        ("users/u", {"password_hash": "AAAA", "tags": ""}, 400, "length"),
        (
            "users/u",
            {"password_hash": "x", "hashing_algorithm": "rabbit_password_hashing_md5", "tags": ""},
            400,
            "none of",
        ),
        ("users/u", {"password": 5, "tags": ""}, 400, "are texts"),
        ("users/u", {"password": "x" * 2000, "tags": ""}, 400, "1024 bytes"),
        ("users/u", {"password": "x", "tags": [1]}, 400, "list of texts"),
        ("permissions/%2F/nobody", EVERYTHING, 404, "user_not_found"),
        ("permissions/nowhere/root", EVERYTHING, 404, "vhost_not_found"),
        ("permissions/%2F/root", {"configure": ".*", "write": ".*"}, 400, "read: an expression is needed"),
        ("permissions/%2F/root", EVERYTHING | {"read": "(?=x)"}, 400, "read: "),
        ("topic-permissions/%2F/root", {"write": ".*", "read": ".*"}, 400, "exchange: a name is needed"),
    ],
)
def test_what_is_refused(
    guarded: tuple[Guarded, httpx.Client], path: str, body: dict[str, Any], status: int, words: str
) -> None:
    _, api = guarded
    answer = api.put(path, json=body)
    assert (answer.status_code, words in answer.json()["reason"]) == (status, True), answer.text


def test_the_last_administrator_stays(guarded: tuple[Guarded, httpx.Client]) -> None:
    _, api = guarded
    answer = api.delete(f"users/{ADMIN}")
    assert (answer.status_code, "last administrator" in answer.text) == (400, True)


def test_without_authentication(tmp_path: Path) -> None:
    """Tools that make sure of guest's rights find them there; what they would change is refused in words."""
    port = free_port()
    server = Gantry(tmp_path, settings=(f"amqp.management_port={port}",)).start()
    try:
        with api_at(port, "guest", "guest") as api:
            assert api.put("permissions/%2F/guest", json=EVERYTHING).status_code == 204
            assert api.get("permissions/%2F/guest").json() == {"user": "guest", "vhost": "/", **EVERYTHING}
            assert api.get("users").json()[0]["tags"] == ["administrator"]
            for path, body in (
                ("permissions/%2F/guest", EVERYTHING | {"read": "^a"}),
                ("permissions/%2F/bob", EVERYTHING),
                ("users/bob", {"password": "x", "tags": ""}),
            ):
                answer = api.put(path, json=body)
                assert (answer.status_code, "auth.enabled=true" in answer.text) == (400, True)
            body = {
                "users": [{"name": "bob", "password_hash": "", "tags": []}],
                "permissions": [{"user": "bob", "vhost": "/", **EVERYTHING}],
            }
            assert api.post("definitions", json=body).status_code == 204
    finally:
        server.stop()
