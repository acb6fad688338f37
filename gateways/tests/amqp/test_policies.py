"""Policies: which counts, what it says of queues and exchanges, and that what exists has it at once."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq_gateways.amqp.config import AmqpConfig
from gantrymq_gateways.amqp.definitions import GROUP
from gantrymq_gateways.amqp.gateway import Gateway
from gantrymq_gateways.amqp.management.site import ManagementSite
from gantrymq_gateways.amqp.queues import policies as server
from gantrymq_gateways.amqp.queues.arguments import parse
from gantrymq_gateways.amqp.queues.policies import (
    OPERATOR,
    POLICIES_MAX,
    USER,
    Policies,
    effective_arguments,
    new_policy,
)
from gantrymq_gateways.amqp.wire.values import Field, Table, encode_table
from gateways.tests.amqp.peer import Server, call, publish
from gateways.tests.amqp.test_management import Client


@pytest.fixture
def gateway_server() -> Server:
    return Server()


@pytest.fixture
def client(gateway_server: Server) -> Client:
    return Client(gateway_server, ManagementSite(gateway_server.gateway, "127.0.0.1", ()))


def broker_policy(server: Server, queue: str) -> Any:
    """What the broker was told last."""
    light = server.gateway.definitions.queues[queue].light
    return server.port.policies.get(server.port.cursor_by_name[(f"~{light}", GROUP)])


def put(policies: Policies, sort: str, name: str, pattern: str, **more: Any) -> None:
    body = {"pattern": pattern, "definition": {"max-length": 5}} | {key.replace("_", "-"): v for key, v in more.items()}
    policies.changed(server.row_key(sort, name), server.row_value(new_policy(sort, body)))


def test_the_highest_priority_counts_alone() -> None:
    policies = Policies()
    put(policies, USER, "low", "^jobs", definition={"max-length": 5, "message-ttl": 7})
    put(policies, USER, "high", "^jobs\\.", priority=3)
    put(policies, USER, "elsewhere", "^other", priority=9)
    put(policies, USER, "exchanges", "", priority=9, apply_to="exchanges")
    assert policies.of_queue("jobs", b"") == ("low", None, {"max-length": 5, "message-ttl": 7})
    assert policies.of_queue("jobs.a", b"") == ("high", None, {"max-length": 5})
    assert policies.of_queue("my jobs", b"") == (None, None, {})
    assert policies.of_exchange("jobs.a")[0] == "exchanges"


@pytest.mark.parametrize(
    ("apply_to", "classic", "quorum"),
    [("all", True, True), ("queues", True, True), ("classic_queues", True, False), ("quorum_queues", False, True), ("streams", False, False)],
)  # fmt: skip
def test_apply_to(apply_to: str, classic: bool, quorum: bool) -> None:
    policies = Policies()
    put(policies, USER, "p", "", apply_to=apply_to)
    table = encode_table([("x-queue-type", Field("S", b"quorum"))])
    assert (policies.of_queue("q", b"")[0] == "p", policies.of_queue("q", table)[0] == "p") == (classic, quorum)
    table = encode_table([("x-queue-type", Field("S", b"stream"))])
    assert (policies.of_queue("q", table)[0] == "p") is (apply_to in ("all", "queues", "streams"))
    assert (policies.of_exchange("e")[0] == "p") is (apply_to == "all")


def test_an_operator_lowers_limits_and_arguments_count_more_than_policies() -> None:
    policies = Policies()
    put(
        policies,
        USER,
        "p",
        "",
        definition={"max-length": 10, "expires": 9, "overflow": "drop-head", "dead-letter-exchange": "d"},
    )
    put(policies, OPERATOR, "o", "", definition={"max-length": 20, "expires": 5, "overflow": "reject-publish"})
    _, _, said = policies.of_queue("q", b"")
    assert said == {"max-length": 10, "expires": 5, "overflow": "reject-publish", "dead-letter-exchange": "d"}
    own = [
        ("x-max-length", Field("l", 4)),
        ("x-expires", Field("l", 99)),
        ("x-dead-letter-exchange", Field("S", b"mine")),
    ]
    found = dict(parse(effective_arguments(encode_table(own), said)))
    assert {name: field.value for name, field in found.items()} == {
        "x-max-length": 4, "x-expires": 5, "x-dead-letter-exchange": b"mine", "x-overflow": b"reject-publish"
    }  # fmt: skip
    assert effective_arguments(b"", {}) == b""


@pytest.mark.parametrize(
    ("sort", "change", "wrong"),
    [
        (USER, {"pattern": None}, "pattern: a text is needed"),
        (USER, {"pattern": "("}, "pattern '(': "),
        (USER, {"definition": {}}, "at least one setting"),
        (USER, {"definition": {"colour": "red"}}, "'colour' is no setting of a policy"),
        (OPERATOR, {"definition": {"dead-letter-exchange": "d"}}, "no setting of an operator policy"),
        (USER, {"definition": {"max-length": -1}}, "max-length: {value_negative,-1}"),
        (USER, {"definition": {"max-length": "9"}}, "max-length: '9' is not of its type"),
        (USER, {"definition": {"max-length": True}}, "max-length: 'True' is not of its type"),
        (USER, {"definition": {"overflow": "spill"}}, "overflow: invalid_overflow"),
        (USER, {"priority": "high"}, "a whole number is needed"),
        (USER, {"priority": 1 << 40}, "a whole number is needed"),
        (USER, {"apply-to": "people"}, "apply-to 'people' is none of"),
        (OPERATOR, {"apply-to": "exchanges"}, "apply-to 'exchanges' is none of"),
        (USER, {"pattern": "a" * 4000, "definition": {"ha-mode": "b" * 16_000}}, "over 16384 bytes"),
    ],
)
def test_what_is_refused(client: Client, sort: str, change: dict[str, Any], wrong: str) -> None:
    word = "policies" if sort == USER else "operator-policies"
    body = {"pattern": "^q", "definition": {"max-length": 5}} | change
    status, answer = client.ask("PUT", f"{word}/%2F/p", body)
    assert (status, answer["error"]) == (400, "bad_request")
    assert wrong in answer["reason"]
    assert client.ask("GET", word) == (200, [])


def test_queues_have_it_at_once_and_lose_it_at_once(client: Client, gateway_server: Server) -> None:
    client.ask("PUT", "queues/%2F/jobs", {})
    client.ask("PUT", "queues/%2F/other", {})
    body = {
        "pattern": "^jobs",
        "apply-to": "queues",
        "priority": "2",
        "definition": {"max-length": 3, "message-ttl": 500},
    }
    assert client.ask("PUT", "policies/%2F/p%201", body) == (201, None)
    assert client.ask("PUT", "policies/%2F/p%201", body) == (204, None)
    shown = {**body, "vhost": "/", "name": "p 1", "priority": 2}
    assert client.ask("GET", "policies/%2F/p%201") == (200, shown)
    assert client.ask("GET", "policies/%2F") == (200, [shown])
    told = broker_policy(gateway_server, "jobs")
    assert (told.max_length, told.message_ttl_ms, told.row) == (3, 500, ("amqp_queue", "jobs"))
    assert broker_policy(gateway_server, "other") is None
    client.ask("PUT", "queues/%2F/jobs.late", {"arguments": {"x-max-length": 2}})
    assert broker_policy(gateway_server, "jobs.late").max_length == 2
    assert broker_policy(gateway_server, "jobs.late").message_ttl_ms == 500
    _, queue = client.ask("GET", "queues/%2F/jobs")
    assert (queue["policy"], queue["operator_policy"], queue["arguments"]) == ("p 1", None, {})
    assert queue["effective_policy_definition"] == {"max-length": 3, "message-ttl": 500}
    assert client.ask("PUT", "operator-policies/%2F/o", {"pattern": "", "definition": {"max-length": 1}})[0] == 201
    assert broker_policy(gateway_server, "jobs").max_length == 1
    assert broker_policy(gateway_server, "other").max_length == 1
    assert client.ask("DELETE", "operator-policies/%2F/o") == (204, None)
    assert client.ask("DELETE", "policies/%2F/p%201") == (204, None)
    assert client.ask("DELETE", "policies/%2F/p%201")[0] == 404
    assert client.ask("GET", "policies") == (200, [])
    gone = broker_policy(gateway_server, "jobs")
    assert (gone.max_length, gone.message_ttl_ms, gone.row) == (None, None, ("amqp_queue", "jobs"))


def test_a_declaration_is_the_same_whatever_policies_say(client: Client, gateway_server: Server) -> None:
    client.ask("PUT", "policies/%2F/p", {"pattern": "", "definition": {"max-length": 3}})
    assert client.ask("PUT", "queues/%2F/q", {})[0] == 201
    assert client.ask("PUT", "queues/%2F/q", {})[0] == 204
    status, answer = client.ask("PUT", "queues/%2F/q", {"arguments": {"x-max-length": 3}})
    assert (status, "inequivalent arg" in answer["reason"]) == (400, True)


@pytest.mark.parametrize("exchange", ["e", "amq.direct"])
def test_an_alternate_exchange(client: Client, gateway_server: Server, exchange: str) -> None:
    """Of exchanges that exist, and gone again."""
    if exchange == "e":
        client.ask("PUT", "exchanges/%2F/e", {"type": "direct"})
    client.ask("PUT", "exchanges/%2F/rest", {"type": "fanout"})
    client.ask("PUT", "queues/%2F/rest", {})
    client.ask("POST", "bindings/%2F/e/rest/q/rest", {})
    message = {"properties": {}, "routing_key": "nobody", "payload": "x", "payload_encoding": "string"}
    assert client.ask("POST", f"exchanges/%2F/{exchange}/publish", message) == (200, {"routed": False})
    rule = {"pattern": "^" + exchange, "apply-to": "exchanges", "definition": {"alternate-exchange": "rest"}}
    client.ask("PUT", "policies/%2F/p", rule)
    assert client.ask("POST", f"exchanges/%2F/{exchange}/publish", message) == (200, {"routed": True})
    _, shown = client.ask("GET", f"exchanges/%2F/{exchange}")
    assert (shown["policy"], shown["effective_policy_definition"]) == ("p", {"alternate-exchange": "rest"})
    client.ask("DELETE", "policies/%2F/p")
    assert client.ask("POST", f"exchanges/%2F/{exchange}/publish", message) == (200, {"routed": False})


def test_definitions_carry_both_sorts(client: Client, gateway_server: Server) -> None:
    client.ask("PUT", "policies/%2F/p", {"pattern": "^q", "definition": {"max-length": 3}})
    client.ask("PUT", "operator-policies/%2F/o", {"pattern": "", "definition": {"expires": 9000}})
    _, file = client.ask("GET", "definitions")
    assert [row["name"] for row in file["policies"]] == ["p"]
    assert [(row["component"], row["name"]) for row in file["parameters"]] == [("operator_policy", "o")]
    other = Server()
    taker = Client(other, ManagementSite(other.gateway, "127.0.0.1", ()))
    file["queues"] = [{"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}]
    file["parameters"].append({"component": "federation-upstream", "name": "f", "vhost": "/", "value": {}})
    assert taker.ask("POST", "definitions", file) == (204, None)
    assert (broker_policy(other, "q").max_length, broker_policy(other, "q").expires_ms) == (3, 9000)
    assert taker.ask("GET", "definitions")[1]["policies"] == file["policies"]


def test_what_a_crash_left_is_finished_at_the_next_start(gateway_server: Server, client: Client) -> None:
    client.ask("PUT", "queues/%2F/q", {})
    client.ask("PUT", "policies/%2F/gone", {"pattern": "^q", "definition": {"message-ttl": 9}})
    begun = new_policy(USER, {"pattern": "^q", "definition": {"max-length": 3}})
    rows = [
        (server.row_key(USER, "p"), server.row_value(server.ServerPolicy("^q", "all", 1, begun.definition, finished=False))),
        (server.row_key(USER, "gone"), server.row_value(server.ServerPolicy("^q", definition={"message-ttl": 9}, gone=True))),
    ]  # fmt: skip
    gateway_server.port.put(server.TABLE, rows, None, lambda token, result: None)
    gateway_server.settle()
    again = Gateway(
        gateway_server.config, gateway_server.port, gateway_server.clock, gateway_server.turn, gateway_server.wheel, str
    )
    errors: list[Exception | None] = []
    again.start(errors.append)
    gateway_server.settle()
    assert errors == [None]
    told = broker_policy(gateway_server, "q")
    assert (told.max_length, told.message_ttl_ms) == (3, None)
    assert list(again.definitions.policies.unfinished()) == []
    assert [name for name, _ in again.definitions.policies.all(USER)] == ["p"]


def test_an_expired_message_is_the_brokers_where_a_policy_says_so(gateway_server: Server, client: Client) -> None:
    """As with an argument: the gateway drops nothing that has a dead letter."""
    peer = gateway_server.client()
    peer.ask(call(1, "queue.declare", 0, "q", False, True, False, False, False, {}))
    queue = gateway_server.gateway.queues["q"]
    assert not queue.managed
    client.ask("PUT", "policies/%2F/p", {"pattern": "^q", "definition": {"dead-letter-exchange": "d"}})
    assert queue.managed
    peer.ask(publish(1, "", "q", b"x"))
    client.ask("DELETE", "policies/%2F/p")
    assert not queue.managed


def test_there_are_no_more_than_so_many(client: Client, gateway_server: Server) -> None:
    policies = gateway_server.gateway.definitions.policies
    for number in range(POLICIES_MAX):
        put(policies, USER, f"p{number}", "^none$")
    body = {"pattern": "", "definition": {"max-length": 3}}
    assert client.ask("PUT", "policies/%2F/p5", body)[0] == 204
    status, answer = client.ask("PUT", "policies/%2F/more", body)
    assert (status, answer["reason"]) == (
        400,
        "cannot set policy 'more' in vhost '/': limit of 1000 is reached",
    )


@pytest.mark.parametrize(("configured", "own", "limit"), [(20, None, 20), (3, None, 3), (3, 7, 7), (-1, None, None)])
def test_how_often_a_quorum_queue_delivers(configured: int, own: int | None, limit: int | None) -> None:
    server = Server(config=AmqpConfig(delivery_limit=configured))
    table: Table = [("x-queue-type", Field("S", b"quorum"))]
    if own is not None:
        table.append(("x-delivery-limit", Field("I", own)))
    server.client().call("queue.declare", 0, "jobs", False, True, False, False, False, table)
    policy = broker_policy(server, "jobs")
    assert (policy.delivery_limit if policy is not None else None) == limit
