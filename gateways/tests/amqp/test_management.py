"""The management API over a link without sockets: what RabbitMQ's tools ask, and what is refused."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from gantrymq.auth.audit import Audit
from gantrymq.auth.authority import Authority
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.logins import WRONG
from gantrymq.auth.rows import POLICIES, TOKENS, USERS, Policy, Rule, Token, User, encode
from gantrymq.auth.tokens import own
from gantrymq.net.testing import FakeLink
from gantrymq_gateways.amqp.management.http import BODY_BYTES_MAX, CONNECTIONS_MAX
from gantrymq_gateways.amqp.management.site import ManagementSite
from gateways.tests.amqp.peer import Peer, Server, call, publish

GUEST = b"Basic " + b64encode(b"guest:guest")


class Client:
    """One connection."""

    def __init__(self, server: Server, site: ManagementSite, loopback: bool = True) -> None:
        self.server = server
        self.link = FakeLink(server.wheel, server.turn)
        self.link.peer_is_loopback = loopback
        self.link.attach(site.door(server.clock.monotonic_ms, server.turn.in_slices))

    def send(self, head: bytes, body: bytes = b"") -> tuple[int, bytes, bytes]:
        """Status, head and body of the answer."""
        out = self.link.feed(head + b"\r\n\r\n" + body)
        self.server.settle()
        answer, _, text = (out + self.link.take()).partition(b"\r\n\r\n")
        return int(answer.split(b" ")[1]), answer, text

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """As tools ask; `path` behind /api/."""
        data = json.dumps(body).encode() if body is not None else b""
        head = f"{method} /api/{path} HTTP/1.1\r\nHost: localhost:15672\r\nContent-Length: {len(data)}\r\n".encode()
        status, _, text = self.send(head + b"Authorization: " + GUEST, data)
        return status, json.loads(text) if text else None


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def site(server: Server) -> ManagementSite:
    return ManagementSite(server.gateway, "127.0.0.1", ())


@pytest.fixture
def client(server: Server, site: ManagementSite) -> Client:
    return Client(server, site)


def test_declare_publish_get_and_delete(client: Client) -> None:
    assert client.ask("PUT", "exchanges/%2F/e", {"type": "topic", "durable": "true"}) == (201, None)
    assert client.ask("PUT", "exchanges/%2F/e", {"type": "topic", "durable": True}) == (204, None)
    assert client.ask("PUT", "queues/%2F/q%20one", {"durable": True, "arguments": {}}) == (201, None)
    assert client.ask("PUT", "queues/%2F/q%20one", {}) == (204, None)
    bound = {"routing_key": "a.#", "arguments": {"n": 1}}
    assert client.ask("POST", "bindings/%2F/e/e/q/q%20one", bound) == (201, None)
    message = {"properties": {"headers": {"k": 5}}, "routing_key": "a.b", "payload": "hi", "payload_encoding": "string"}
    assert client.ask("POST", "exchanges/%2F/e/publish", message) == (200, {"routed": True})
    assert client.ask("POST", "exchanges/%2F/e/publish", message | {"routing_key": "z"}) == (200, {"routed": False})
    default = message | {"routing_key": "q one", "payload": b64encode(b"\xff").decode(), "payload_encoding": "base64"}
    assert client.ask("POST", "exchanges/%2F/amq.default/publish", default) == (200, {"routed": True})
    status, queue = client.ask("GET", "queues/%2F/q%20one")
    assert (status, queue["messages"], queue["messages_ready"], queue["consumers"]) == (200, 2, 2, 0)
    for mode, redelivered in (("ack_requeue_true", False), ("ack_requeue_false", True)):
        _, got = client.ask("POST", "queues/%2F/q%20one/get", {"count": 5, "ackmode": mode, "encoding": "auto"})
        assert [(m["payload"], m["payload_encoding"], m["redelivered"]) for m in got] == [
            ("hi", "string", redelivered), ("/w==", "base64", redelivered)
        ]  # fmt: skip
        assert got[0]["properties"] == {"headers": {"k": 5}}
        assert (got[0]["exchange"], got[0]["routing_key"], got[1]["exchange"]) == ("e", "a.b", "")
    _, rows = client.ask("GET", "queues/%2F/q%20one/bindings")
    assert [row["source"] for row in rows] == ["", "e"]
    key = quote(rows[1]["properties_key"], safe="")
    assert client.ask("GET", f"bindings/%2F/e/e/q/q%20one/{key}")[1]["arguments"] == {"n": 1}
    assert client.ask("DELETE", f"bindings/%2F/e/e/q/q%20one/{key}") == (204, None)
    assert client.ask("GET", f"bindings/%2F/e/e/q/q%20one/{key}")[0] == 404
    client.ask("POST", "exchanges/%2F/amq.default/publish", message | {"routing_key": "q one"})
    assert client.ask("DELETE", "queues/%2F/q%20one/contents") == (204, None)
    assert client.ask("GET", "queues/%2F/q%20one")[1]["messages"] == 0
    assert client.ask("DELETE", "queues/%2F/q%20one") == (204, None)
    assert client.ask("DELETE", "exchanges/%2F/e") == (204, None)
    assert client.ask("DELETE", "exchanges/%2F/e")[0] == 404


def test_what_is_refused_is_said_in_rabbitmqs_words(client: Client) -> None:
    client.ask("PUT", "exchanges/%2F/e", {"type": "topic"})
    status, body = client.ask("PUT", "exchanges/%2F/e", {"type": "fanout"})
    assert (status, body["error"]) == (400, "bad_request")
    assert body["reason"].startswith("inequivalent arg 'type' for exchange 'e'")
    assert client.ask("PUT", "queues/%2F/q", {"durable": "perhaps"})[0] == 400
    assert client.ask("PUT", "queues/other/q", {})[0] == 404
    assert client.ask("POST", "queues/%2F/none/get", {})[0] == 404
    assert client.ask("GET", "no/such/thing")[0] == 404
    assert client.ask("DELETE", "overview")[0] == 405
    assert client.ask("POST", "definitions", ["no object"])[0] == 400
    assert client.ask("GET", "queues?page=7")[0] == 400


def test_lists(server: Server, client: Client) -> None:
    peer = server.client()
    peer.declare("b")
    peer.declare("a")
    peer.declare("", durable=False, exclusive=True)
    peer.call("basic.consume", 0, "a", "tag", False, False, False, False, [])
    peer.ask(publish(1, "", "a", b"x"), publish(1, "", "b", b"y"))
    _, rows = client.ask("GET", "queues/%2F?columns=name,messages,messages_unacknowledged&sort=name")
    assert [rows[0]["name"], rows[2]["name"]] == ["a", "b"]
    assert rows[0] == {"name": "a", "messages": 1, "messages_unacknowledged": 1}
    _, page = client.ask("GET", "queues?page=2&page_size=1&sort=name&name=")
    assert (page["total_count"], page["page_count"], page["items"][0]["name"][:8]) == (3, 3, "amq.gen-")
    for name, wanted in (
        ("%5E%5BAB%5D%24", ["a", "b"]),
        ("%5E%5CD%24", ["a", "b"]),
        ("%5E%5Cd%24", []),
        ("B%7CX", ["b"]),
    ):
        _, page = client.ask("GET", f"queues/%2F?page=1&use_regex=true&pagination=false&page_size=100&name={name}")
        assert sorted(row["name"] for row in page["items"] if not row["name"].startswith("amq.")) == wanted, name
    assert client.ask("GET", "queues?use_regex=true&name=%28")[0] == 400
    _, consumers = client.ask("GET", "consumers")
    assert (consumers[0]["consumer_tag"], consumers[0]["queue"]["name"]) == ("tag", "a")
    _, channels = client.ask("GET", "channels")
    assert (channels[0]["number"], channels[0]["messages_unacknowledged"], channels[0]["consumer_count"]) == (1, 1, 1)
    _, overview = client.ask("GET", "overview")
    assert overview["object_totals"]["queues"] == 3
    assert overview["queue_totals"] == {"messages": 2, "messages_ready": 1, "messages_unacknowledged": 1}
    for path in ("nodes", "vhosts", "users", "permissions", "policies", "exchanges", "bindings", "whoami",
                 "health/checks/alarms", "aliveness-test/%2F", "cluster-name"):  # fmt: skip
        assert client.ask("GET", path)[0] == 200, path
        assert client.ask("GET", path + "/") == client.ask("GET", path), path  # as amqp091-go's own tests ask
    assert client.ask("GET", "queues/%2F/")[1] == client.ask("GET", "queues/%2F")[1]


def test_a_connection_is_closed_for_an_operator(server: Server, client: Client) -> None:
    peer = server.client()
    peer.declare("mine", durable=False, exclusive=True)
    _, (row,) = client.ask("GET", "connections")
    assert (row["user"], row["channels"], row["state"]) == ("guest", 1, "running")
    assert client.ask("DELETE", "connections/" + quote(row["name"], safe="")) == (204, None)
    ((_, name, reply),) = peer.ask(call(1, "basic.qos", 0, 1, False))
    assert (name, reply[:2]) == ("connection.close", [320, "CONNECTION_FORCED - Closed via management API"])
    assert client.ask("GET", "queues") == (200, [])


DEFINITIONS = {
    "rabbit_version": "4.0.5",
    "users": [{"name": "someone"}],
    "vhosts": [{"name": "/"}, {"name": "other"}],
    "policies": [],
    "exchanges": [
        {"name": "rest", "vhost": "/", "type": "fanout", "durable": True, "auto_delete": False, "internal": False, "arguments": {}},
        {"name": "orders", "vhost": "/", "type": "headers", "durable": True, "auto_delete": False, "internal": True, "arguments": {"alternate-exchange": "rest"}},
        {"name": "far", "vhost": "other", "type": "fanout", "durable": True, "auto_delete": False, "internal": False, "arguments": {}},
    ],
    "queues": [{"name": "paid", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}],
    "bindings": [
        {"source": "orders", "vhost": "/", "destination": "paid", "destination_type": "queue", "routing_key": "", "arguments": {"x-match": "any", "n": 7}},
        {"source": "orders", "vhost": "/", "destination": "rest", "destination_type": "exchange", "routing_key": "k", "arguments": {}},
    ],
}  # fmt: skip


def test_definitions_come_back(client: Client) -> None:
    assert client.ask("POST", "definitions", DEFINITIONS) == (204, None)
    assert client.ask("POST", "definitions", DEFINITIONS) == (204, None)
    status, found = client.ask("GET", "definitions")
    assert status == 200
    assert sorted(found["exchanges"], key=str) == sorted(DEFINITIONS["exchanges"], key=str)
    assert found["queues"] == DEFINITIONS["queues"]
    assert sorted(found["bindings"], key=str) == sorted(DEFINITIONS["bindings"], key=str)


def test_who_may_ask(server: Server, site: ManagementSite) -> None:
    head = b"GET /api/overview HTTP/1.1\r\nHost: localhost"
    status, answer, _ = Client(server, site).send(head)
    assert status == 401
    assert b"www-authenticate: Basic" in answer
    for text in (b"guest:wrong", b"guest", b"\xff"):
        assert Client(server, site).send(head + b"\r\nAuthorization: Basic " + b64encode(text))[0] == 401
    assert Client(server, site, loopback=False).send(head + b"\r\nAuthorization: " + GUEST)[0] == 401
    assert (
        Client(server, site).send(head.replace(b"localhost", b"evil.example") + b"\r\nAuthorization: " + GUEST)[0]
        == 421
    )


def guarded(server: Server) -> tuple[bytes, bytes]:
    """`root` may do everything, `reader` may look; tokens of both."""
    authority = Authority(
        AuthConfig(enabled=True), Unasked(), lambda callback: callback(), Audit(server.wheel, lambda: 0, "test")
    )
    rows, texts = {}, []
    for number, user in enumerate(("root", "reader")):
        name, text = own.make(lambda size, number=number: bytes([number + 1]) * size)
        rows[name] = encode(Token(name, user, own.parse(text)[1], 1))
        texts.append(text.encode())
    authority.load(USERS, {"root": encode(User("root", admin=True)), "reader": encode(User("reader"))})
    authority.load(TOKENS, rows)
    policy = Policy("user:reader", (Rule("cluster:*", ("get",)),))
    authority.load(POLICIES, {"user:reader": encode(policy)})
    server.gateway.authority = authority
    return texts[0], texts[1]


class Unasked:
    """Passwords: there are none."""

    def check(self, user: str, known: str, password: str, address: str, answer: Callable[[str], None]) -> None:
        answer(WRONG)


def as_who(server: Server, site: ManagementSite, authorization: bytes, target: bytes = b"/api/whoami") -> Any:
    head = b"GET %b HTTP/1.1\r\nHost: localhost\r\n" % target
    status, _, text = Client(server, site).send(head + authorization)
    return json.loads(text)["name"] if status == 200 else status


def test_whoever_a_token_stands_for_is_who_asks(server: Server, site: ManagementSite) -> None:
    """Not who is named beside it: rights are asked of the one, and what is done would be noted of the other."""
    root, reader = guarded(server)
    named = b"Authorization: Basic " + b64encode(b"reader:" + root)
    assert as_who(server, site, named) == "root"
    assert as_who(server, site, b"Authorization: Bearer " + root) == "root"
    assert as_who(server, site, b"Authorization: Bearer " + reader) == "reader"
    assert as_who(server, site, b"Authorization: Basic " + b64encode(b"root:" + reader)) == "reader"
    users = []
    site._api.answer = lambda request: users.append(request.user) or iter(())
    asked = b"PUT /api/queues/%2F/q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
    link = Client(server, site)
    link.link.feed(asked + named + b"\r\n\r\n{}")
    assert users == ["root"]


def test_two_authorizations_are_none(server: Server, site: ManagementSite) -> None:
    root, reader = guarded(server)
    first, second = (b"Authorization: Bearer " + text for text in (reader, root))
    assert as_who(server, site, first + b"\r\n" + second) == 401
    assert as_who(server, site, second + b"\r\n" + first) == 401


@pytest.mark.parametrize("path", ["queues/%2F/q%FF", "queues/%2F/%C0%AFq", "queues/%ED%A0%80/q"])
def test_a_path_that_is_no_text_names_nothing(client: Client, path: str) -> None:
    """Else many of them would name one queue: with U+FFFD where nobody wrote it."""
    assert client.ask("PUT", "queues/%2F/q%EF%BF%BD", {})[0] == 201
    for method in ("GET", "PUT", "DELETE"):
        status, found = client.ask(method, path, {})
        assert (status, found["reason"]) == (400, "the path is not UTF-8 after percent-decoding")


def test_the_host_of_the_target_counts(server: Server, site: ManagementSite) -> None:
    asked = b"GET http://evil.example/api/overview HTTP/1.1\r\nHost: localhost\r\nAuthorization: " + GUEST
    assert Client(server, site).send(asked)[0] == 421


def test_limits(server: Server, site: ManagementSite) -> None:
    long = b"POST /api/definitions HTTP/1.1\r\nHost: localhost\r\nAuthorization: %b\r\nContent-Length: %d"
    client = Client(server, site)
    assert b" 413 " in client.link.feed(long % (GUEST, BODY_BYTES_MAX + 1) + b"\r\n\r\n")
    # Who has not logged in sends no body at all.
    assert Client(server, site).send(long % (b"x", 5))[0] == 401
    site.connections = CONNECTIONS_MAX
    late = Client(server, site)
    server.settle()
    assert b" 503 " in late.link.take()


def test_without_a_broker_nothing_is_answered(server: Server, client: Client) -> None:
    server.gateway.ready = False
    assert client.ask("GET", "queues")[0] == 503


def test_a_peer_sees_what_was_published(server: Server, client: Client) -> None:
    peer: Peer = server.client()
    peer.declare("q")
    client.ask(
        "POST",
        "exchanges/%2F/amq.default/publish",
        {"routing_key": "q", "payload": "x", "properties": {"delivery_mode": 2}},
    )
    ((_, content),) = peer.call("basic.get", 0, "q", True)
    assert content.body == b"x"
