"""Vhosts: the same names in two of them, what stays apart, limits, and the end of one with all that is in it."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.model.message import Message
from gantrymq.net.procedures.driver import run
from gantrymq_gateways.amqp.exchanges.bindings import default_routes
from gantrymq_gateways.amqp.gateway import Gateway
from gantrymq_gateways.amqp.management.site import ManagementSite
from gantrymq_gateways.amqp.properties.mapping import native_target
from gantrymq_gateways.amqp.properties.writing import Renderer
from gantrymq_gateways.amqp.routes import AmqpRoutes
from gantrymq_gateways.amqp.rows import QueueDefinition
from gantrymq_gateways.amqp.wire.constants import AmqpError
from gantrymq_gateways.amqp.wire.content import Properties, decode_properties, encode_properties
from gantrymq_gateways.amqp.wire.values import Field, Table, lookup
from gateways.tests.amqp.peer import Content, Peer, Server, call, parse, publish
from gateways.tests.amqp.test_management import Client
from gateways.tests.amqp.test_policies import broker_policy


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def api(server: Server) -> Client:
    found = Client(server, ManagementSite(server.gateway, "127.0.0.1", ()))
    assert found.ask("PUT", "vhosts/v") == (201, None)
    return found


def get(peer: Peer, queue: str) -> Content | None:
    """A message, taken."""
    ((_, found, *_),) = peer.call("basic.get", 0, queue, True)
    return found if isinstance(found, Content) else None


def declare(peer: Peer, queue: str, table: Table | None = None) -> list[Any]:
    return peer.call("queue.declare", 0, queue, False, True, False, False, False, table or [])


def test_a_vhost_that_is_not_there(server: Server) -> None:
    ((_, name, arguments),) = server.connect().enter("v")
    assert (name, arguments[:2]) == ("connection.close", [530, "NOT_ALLOWED - vhost v not found"])


def test_the_same_names_in_two_vhosts_are_different_things(server: Server, api: Client) -> None:
    root, other = server.client(), server.client(vhost="v")
    for peer in (root, other):
        assert declare(peer, "jobs")[0][2] == ["jobs", 0, 0]
        assert peer.call("exchange.declare", 0, "e", "topic", False, True, False, False, False, [])[0][1].endswith(
            "-ok"
        )
        assert peer.call("queue.bind", 0, "jobs", "e", "a.*", False, [])[0][1] == "queue.bind-ok"
        assert peer.call("queue.bind", 0, "jobs", "amq.topic", "t.#", False, [])[0][1] == "queue.bind-ok"
    other.raw(publish(1, "", "jobs", b"1") + publish(1, "e", "a.b", b"2") + publish(1, "amq.topic", "t.x", b"3"))
    assert (root.count("jobs"), other.count("jobs")) == (0, 3)
    for body, exchange, key in ((b"1", "", "jobs"), (b"2", "e", "a.b"), (b"3", "amq.topic", "t.x")):
        found = get(other, "jobs")
        assert found is not None
        assert (found.body, found.arguments[2:4]) == (body, [exchange, key])
    root.raw(publish(1, "", "jobs", b"1") + publish(1, "amq.topic", "t.x", b"3"))
    assert (root.count("jobs"), other.count("jobs")) == (2, 0)


def test_texts_of_errors_name_the_vhost(server: Server, api: Client) -> None:
    peer = server.client(1, 2, 3, 4, 5, vhost="v")
    declare(peer, "jobs")
    for channel, asked, text in (
        (1, call(1, "queue.declare", 0, "none", True, False, False, False, False, []), "NOT_FOUND - no queue 'none' in vhost 'v'"),
        (2, publish(2, "none", "k", b""), "NOT_FOUND - no exchange 'none' in vhost 'v'"),
        (3, call(3, "queue.declare", 0, "amq.x", False, True, False, False, False, []), "ACCESS_REFUSED - queue name 'amq.x' contains reserved prefix 'amq.*'"),
        (4, call(4, "exchange.delete", 0, "amq.topic", False, False), "ACCESS_REFUSED - deletion of system exchange 'amq.topic' in vhost 'v' not allowed"),
        (5, call(5, "queue.declare", 0, "jobs", False, True, False, True, False, []), "PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue 'jobs' in vhost 'v': received 'true' but current is 'false'"),
    ):  # fmt: skip
        answers = peer.ask(asked)
        assert [(number, name, arguments[1]) for number, name, arguments in answers] == [
            (channel, "channel.close", text)
        ]


def test_dead_letters_stay_in_their_vhost(server: Server, api: Client) -> None:
    peer = server.client(vhost="v")
    letters: Table = [("x-dead-letter-exchange", Field("S", b"")), ("x-dead-letter-routing-key", Field("S", b"dead"))]
    declare(peer, "jobs", letters)
    assert broker_policy(server, "v\njobs").dead_target == {"exchange": "", "key": "dead"}
    declare(peer, "more", [("x-dead-letter-exchange", Field("S", b"e"))])
    assert broker_policy(server, "v\nmore").dead_target == {"exchange": "v\ne", "key": None}
    routes = AmqpRoutes()
    for vhost in ("", "v\n"):
        queue = QueueDefinition(vhost + "dead", 1, True, False, False, b"")
        for route in default_routes(queue):
            routes.add(len(vhost) + 1, route.topic, route.expression)
    message = Message("v%0Ajobs", b"x", native_target("", "", ""), "")
    made = routes.dead_letters.copy(message, "v\njobs", {"exchange": "", "key": "dead"}, "rejected", 0)
    assert made is not None
    dead, _ = made
    assert dead.topic == "v%0Adead"
    assert list(routes.match(dead)) == [3]
    shown = Renderer({}).render(dead)
    assert shown.tail == b"\x00\x04dead"
    deaths = lookup(decode_properties(shown.properties).headers or [], "x-death")
    assert deaths is not None
    assert lookup(deaths.value[0].value, "queue") == Field("S", b"jobs")
    _, rounds = routes.dead_letters.copy(message, "v\njobs", {"exchange": "", "key": "dead"}, "expired", 0) or (
        None,
        (),
    )
    assert rounds == {"v\njobs"}


def test_further_keys_alternates_and_replies(server: Server, api: Client) -> None:
    root, peer = server.client(), server.client(vhost="v")
    for each in (root, peer):
        for queue in ("one", "two", "rest"):
            declare(each, queue)
        each.call("exchange.declare", 0, "alt", "fanout", False, True, False, False, False, [])
        each.call("queue.bind", 0, "rest", "alt", "", False, [])
    table: Table = [("alternate-exchange", Field("S", b"alt"))]
    peer.call("exchange.declare", 0, "e", "direct", False, True, False, False, False, table)
    peer.raw(publish(1, "e", "nowhere", b"a"))
    assert (root.count("rest"), peer.count("rest")) == (0, 1)
    headers = b"\x20\x00" + (19).to_bytes(4, "big") + b"\x02CCA" + (8).to_bytes(4, "big") + b"S\x00\x00\x00\x03two"
    headers = headers.replace((19).to_bytes(4, "big"), (len(headers) - 6).to_bytes(4, "big"), 1)
    peer.raw(publish(1, "", "one", b"b", headers))
    assert [peer.count(queue) for queue in ("one", "two")] == [1, 1]
    assert [root.count(queue) for queue in ("one", "two")] == [0, 0]
    # A reply goes to the one who asked, in its vhost.
    peer.call("basic.consume", 0, "amq.rabbitmq.reply-to", "c", False, True, False, False, [])
    asked = b"\x02\x00" + bytes([len("amq.rabbitmq.reply-to")]) + b"amq.rabbitmq.reply-to"
    peer.raw(publish(1, "", "one", b"?", asked))
    get(peer, "one")
    question = get(peer, "one")
    assert question is not None
    reply_to = decode_properties(question.properties).reply_to or ""
    assert reply_to.startswith("amq.rabbitmq.reply-to.")
    ((_, answer),) = peer.ask(publish(1, "", reply_to, b"!"))
    assert answer.body == b"!"


def header(name: str, value: Field) -> bytes:
    """A property list with this header alone."""
    return encode_properties(Properties(headers=[(name, value)]))


def test_what_has_a_line_end_leads_into_no_other_vhost(server: Server, api: Client) -> None:
    """Full names are `vhost, line end, name`: a client of `/` that sends one whole reaches nothing with it."""
    root, peer = server.client(1, 2), server.client(vhost="v")
    declare(root, "own")
    declare(peer, "jobs")
    peer.call("exchange.declare", 0, "e", "fanout", False, True, False, False, False, [])
    peer.call("queue.bind", 0, "jobs", "e", "", False, [])
    (returned, *_) = root.ask(publish(1, "", "v\njobs", b"key", mandatory=True))
    assert returned[1].arguments[0] == 312
    for name in ("CC", "BCC"):
        further = Field("A", [Field("S", b"v\njobs")])
        root.raw(
            publish(1, "", "nowhere", b"key", header(name, further))
            + publish(1, "", "own", b"key", header(name, further))
        )
    assert root.ask(publish(2, "v\ne", "", b"exchange"))[0][2][0] == 404
    table: Table = [("alternate-exchange", Field("S", b"v\ne"))]
    root.call("exchange.declare", 0, "x", "direct", False, True, False, False, False, table)
    root.raw(publish(1, "x", "nowhere", b"alternate"))
    declare(root, "letters", [("x-dead-letter-exchange", Field("S", b"v\ne"))])
    policy = broker_policy(server, "letters")
    assert policy is not None
    assert policy.dead_target == {"exchange": "v\re", "key": None}
    routes = AmqpRoutes()
    for route in default_routes(QueueDefinition("v\njobs", 1, True, False, False, b"")):
        routes.add(1, route.topic, route.expression)
    message = Message("letters", b"x", native_target("", "", ""), "")
    for key, found in (("v\njobs", []), ("jobs", [])):
        made = routes.dead_letters.copy(message, "letters", {"exchange": "", "key": key}, "rejected", 0)
        assert made is not None
        assert list(routes.match(made[0])) == found
    api.ask("POST", "exchanges/%2F/amq.default/publish", {"routing_key": "v\njobs", "payload": "", "properties": {}})
    api.ask("POST", "exchanges/%2F/v%0Ae/publish", {"routing_key": "", "payload": "", "properties": {}})
    assert api.ask("GET", "queues/%2F/v%0Ajobs")[0] == 404
    assert api.ask("DELETE", "queues/%2F/v%0Ajobs")[0] == 404
    assert api.ask("PUT", "policies/%2F/v%0Ap", {"pattern": "", "definition": {"max-length": 0}})[0] in (201, 204, 400)
    assert api.ask("GET", "policies/v")[1] == []
    assert peer.count("jobs") == 0


def test_policies_are_a_vhosts_own(server: Server, api: Client) -> None:
    root, peer = server.client(), server.client(vhost="v")
    for each in (root, peer):
        declare(each, "jobs")
    body = {"pattern": "^jobs$", "definition": {"max-length": 1}}
    assert api.ask("PUT", "policies/v/p", body) == (201, None)
    assert broker_policy(server, "v\njobs").max_length == 1
    assert broker_policy(server, "jobs") is None
    assert [row["vhost"] for row in api.ask("GET", "policies")[1]] == ["v"]
    assert api.ask("GET", "policies/%2F") == (200, [])
    assert api.ask("GET", "queues/v/jobs")[1]["policy"] == "p"
    assert api.ask("GET", "queues/%2F/jobs")[1]["policy"] is None


def test_limits_of_vhosts_and_users(server: Server, api: Client) -> None:
    assert api.ask("PUT", "vhost-limits/v/max-queues", {"value": 1}) == (204, None)
    assert api.ask("PUT", "vhost-limits/v/max-connections", {"value": 1}) == (204, None)
    assert api.ask("PUT", "user-limits/guest/max-channels", {"value": 2}) == (204, None)
    assert api.ask("GET", "vhost-limits")[1] == [{"vhost": "v", "value": {"max-queues": 1, "max-connections": 1}}]
    assert api.ask("GET", "user-limits/guest")[1] == [{"user": "guest", "value": {"max-channels": 2}}]
    assert api.ask("PUT", "vhost-limits/v/max-songs", {"value": 1})[0] == 400
    peer = server.client(1, vhost="v")
    declare(peer, "one")
    ((_, name, arguments),) = declare(peer, "two")
    assert (name, arguments[1]) == (
        "channel.close",
        "PRECONDITION_FAILED - cannot declare queue 'two': queue limit in vhost 'v' (1) is reached",
    )
    peer.call("channel.close-ok")
    ((_, _, arguments),) = server.connect().enter("v")
    text = "NOT_ALLOWED - access to vhost 'v' refused for user 'guest': connection limit (1) is reached"
    assert arguments[:2] == [530, text]
    server.client(7)  # the user's first channel: the failed one counts no more
    peer.call("channel.open", "", channel=2)
    ((_, name, arguments),) = peer.call("channel.open", "", channel=3)
    assert (name, arguments[0]) == ("connection.close", 530)
    assert (
        arguments[1]
        == "NOT_ALLOWED - number of channels opened for user 'guest' has reached the maximum allowed user limit of (2)"
    )
    peer.call("connection.close-ok", channel=0)
    server.client(1, vhost="v")  # there is room again
    assert api.ask("DELETE", "vhost-limits/v/max-connections") == (204, None)
    server.connect().handshake(vhost="v")
    assert api.ask("PUT", "user-limits/guest/max-connections", {"value": 0}) == (204, None)
    ((_, _, arguments),) = server.connect().enter("/")
    assert arguments[1] == "NOT_ALLOWED - connection refused for user 'guest': user connection limit (0) is reached"


def test_the_type_of_queues_that_name_none(server: Server, api: Client) -> None:
    assert api.ask("PUT", "vhosts/v", {"default_queue_type": "quorum"}) == (204, None)
    peer = server.client(vhost="v")
    declare(peer, "jobs")
    declare(peer, "own", [("x-queue-type", Field("S", b"classic"))])
    peer.declare("transient", durable=False)
    found = {row["name"]: row["type"] for row in api.ask("GET", "queues/v")[1]}
    assert found == {"jobs": "quorum", "own": "classic", "transient": "classic"}
    assert declare(peer, "jobs")[0][1] == "queue.declare-ok"


def test_a_vhost_goes_with_all_that_is_in_it(server: Server, api: Client) -> None:
    root, peer = server.client(), server.client(vhost="v")
    declare(root, "jobs")
    declare(peer, "jobs")
    peer.declare("mine", durable=False, exclusive=True)
    peer.call("exchange.declare", 0, "e", "direct", False, True, False, False, False, [])
    peer.call("exchange.bind", 0, "amq.fanout", "amq.topic", "#", False, [])
    api.ask("PUT", "policies/v/p", {"pattern": "", "definition": {"alternate-exchange": "e"}})
    ((_, name, arguments),) = _deleted(server, api, peer)
    assert (name, arguments[:2]) == ("connection.close", [320, "CONNECTION_FORCED - vhost 'v' is deleted"])
    definitions = server.gateway.definitions
    assert list(definitions.queues) == ["jobs"]
    assert not definitions.exchanges()
    assert not definitions.bindings()
    assert api.ask("GET", "vhosts/v")[0] == api.ask("GET", "queues/v")[0] == 404
    assert [row["name"] for row in api.ask("GET", "vhosts")[1]] == ["/"]
    assert root.count("jobs") == 0
    # One of the same name later has nothing of it.
    assert api.ask("PUT", "vhosts/v") == (201, None)
    again = server.client(vhost="v")
    ((_, name, arguments),) = again.call("exchange.declare", 0, "e", "direct", True, False, False, False, False, [])
    assert (name, arguments[0]) == ("channel.close", 404)


def _deleted(server: Server, api: Client, peer: Peer) -> list[Any]:
    """What the connection gets."""
    assert api.ask("DELETE", "vhosts/v") == (204, None)
    return parse(peer.link.take())


def test_the_root_stays(api: Client) -> None:
    status, answer = api.ask("DELETE", "vhosts/%2F")
    assert (status, answer["reason"]) == (400, "vhost '/' cannot be deleted")


def test_one_that_was_being_deleted_goes_at_the_next_start(server: Server, api: Client) -> None:
    peer = server.client(vhost="v")
    declare(peer, "jobs")
    definitions = server.gateway.definitions
    steps = definitions.delete_vhost("v")
    first = next(steps)  # the row says it; then the process dies
    answers: list[Any] = []
    first(None, lambda token, result: answers.append(result))
    server.settle()
    gateway = Gateway(server.config, server.port, server.clock, server.turn, server.wheel, lambda: "t" * 22)
    errors: list[Exception | None] = []
    gateway.start(errors.append)
    server.settle()
    assert errors == [None]
    assert gateway.definitions.vhosts.names() == ["/"]
    assert not gateway.definitions.queues


def test_a_declaration_that_waited_for_the_deletion_is_refused(server: Server, api: Client) -> None:
    api.ask("DELETE", "vhosts/v")
    results: list[Any] = []
    wanted = QueueDefinition("v\njobs", 0, True, False, False, b"")
    run(server.gateway.definitions.create_queue(wanted), results.append, Exception)
    server.settle()
    assert isinstance(results[0], AmqpError)
    assert results[0].text == "vhost 'v' does not exist"


def test_definitions_of_several_vhosts_come_back(server: Server, api: Client) -> None:
    api.ask("PUT", "vhost-limits/v/max-queues", {"value": 9})
    api.ask("PUT", "queues/v/jobs", {"durable": True})
    api.ask("PUT", "queues/%2F/jobs", {"durable": True})
    api.ask("POST", "bindings/v/e/amq.topic/q/jobs", {"routing_key": "a.#"})
    api.ask("PUT", "policies/v/p", {"pattern": "x", "definition": {"max-length": 1}})
    found = api.ask("GET", "definitions")[1]
    assert [row["name"] for row in found["vhosts"]] == ["/", "v"]
    only = api.ask("GET", "definitions/v")[1]
    assert [row["vhost"] for kind in ("queues", "bindings", "policies", "parameters") for row in only[kind]] == [
        "v"
    ] * 4
    other = Server()
    second = Client(other, ManagementSite(other.gateway, "127.0.0.1", ()))
    assert second.ask("POST", "definitions", found) == (204, None)
    assert second.ask("GET", "definitions")[1] == found
    assert second.ask("PUT", "vhosts/w") == (201, None)
    assert second.ask("POST", "definitions/w", only) == (204, None)
    assert [row["name"] for row in second.ask("GET", "queues/w")[1]] == ["jobs"]
