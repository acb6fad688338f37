"""While a broker group is away queues that the server names are declared, bound and consumed; their names are those of groups that answer."""

from __future__ import annotations

import pytest

from gantrymq.broker.port import lease_name, row_name, seat_name
from gantrymq.broker.tables.slot_table import slot_of
from gantrymq.model.errors import ErrorCode
from gantrymq_gateways.amqp.channels.declare import SERVER_NAMED_TRIES
from gantrymq_gateways.amqp.definitions import GROUP, LIGHT_TRIES
from gantrymq_gateways.amqp.gateway import ORPHANS_MS
from gantrymq_gateways.amqp.rows import QUEUE_TABLE
from gateways.tests.amqp.peer import Peer, Server, publish


def third(name: str) -> bool:
    """Names whose group is away."""
    return slot_of(name) % 3 == 0


def server_named(peer: Peer) -> str:
    ((_, reply, arguments),) = peer.declare("", durable=False, exclusive=True)
    assert reply == "queue.declare-ok", arguments
    name: str = arguments[0]
    return name


def test_queues_that_the_server_names_work() -> None:
    server = Server()
    peer = server.client()
    server.port.unanswered = third
    for number in range(30):
        name = server_named(peer)
        light = server.gateway.definitions.queues[name].light
        decided = [lease_name("amqp/" + name), row_name(QUEUE_TABLE, name), seat_name(f"~{light}", GROUP)]
        assert not any(map(third, decided))
        bound = peer.call("queue.bind", 0, name, "amq.topic", f"k{number}", False, [])
        assert bound == [(1, "queue.bind-ok", [])]
        peer.ask(publish(1, "amq.topic", f"k{number}", b"1"), publish(1, "", name, b"2"))
        assert peer.count(name) == 2
    used = {queue.light for queue in server.gateway.definitions.queues.values()}
    assert server.port.lights == used, "those that were passed over are deleted"


def test_queues_are_deleted_where_nobody_knows_of_routes_that_went_with_them() -> None:
    """A broker that is away might have them."""
    server = Server()
    peer = server.client()
    name = server_named(peer)
    peer.call("queue.bind", 0, name, "amq.topic", "k", False, [])
    server.port.fail_next("remove_routes", ErrorCode.UNAVAILABLE)
    peer.link.lose()
    server.settle()
    assert not server.gateway.definitions.queues
    assert not server.gateway.definitions.bindings()
    assert not server.port.routes
    assert not server.port.tables[QUEUE_TABLE]
    assert not server.port.leases


def test_bindings_of_a_lasting_queue_wait_for_their_group() -> None:
    server = Server()
    peer = server.client()
    peer.declare("q")
    server.port.unanswered = lambda name: name.startswith("amqp_binding/")
    ((_, reply, arguments),) = peer.call("queue.bind", 0, "q", "amq.topic", "k", False, [])
    assert reply == "channel.close"
    assert arguments[0] == 404, "as RabbitMQ says of a queue whose node is down: the other channels go on"
    other = server.client()
    other.call("channel.open", "", channel=2)


def test_a_queue_is_made_though_nobody_answers_for_its_consumers() -> None:
    server = Server()
    server.port.unanswered = lambda name: name.startswith("seat/")
    name = server_named(server.client())
    assert server.port.lights == {server.gateway.definitions.queues[name].light} == {LIGHT_TRIES + 1}


@pytest.mark.parametrize("call", ["take_lease", "create_light", "put", "open_cursor", "add_route"])
def test_a_name_whose_group_is_away_when_it_is_asked_is_followed_by_another(call: str) -> None:
    server = Server()
    peer = server.client()
    server.port.fail_next(call, ErrorCode.UNAVAILABLE)
    name = server_named(peer)
    peer.ask(publish(1, "", name, b"1"))
    assert peer.count(name) == 1
    for _ in range(2):
        server.wheel.advance(ORPHANS_MS)
        server.settle()
    assert set(server.gateway.definitions.queues) == {name}, "nothing is left of the first"
    assert set(server.port.leases) == {"amqp/" + name}


def test_after_some_names_it_is_refused() -> None:
    server = Server()
    peer = server.client()
    server.port.fail_next("take_lease", *[ErrorCode.UNAVAILABLE] * SERVER_NAMED_TRIES)
    ((_, reply, _),) = peer.declare("", durable=False, exclusive=True)
    assert reply != "queue.declare-ok"
    assert not server.port.leases
    assert server_named(server.client(1))
