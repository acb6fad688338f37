"""Two gateways over one broker: definitions stay in step, and what lives in one is left alone by the other."""

from __future__ import annotations

from typing import Any

from gantrymq_gateways.amqp.gateway import ORPHANS_MS
from gantrymq_gateways.amqp.management.site import ManagementSite
from gantrymq_gateways.amqp.wire.values import Field
from gateways.tests.amqp.peer import Content, Peer, Server, call, parse, publish
from gateways.tests.amqp.test_management import Client


def two() -> tuple[Server, Server]:
    one = Server()
    return one, Server(one.port)


def test_definitions_of_one_are_known_to_the_other() -> None:
    one, other = two()
    a, b = one.client(), other.client()
    a.call("exchange.declare", 0, "e", "direct", False, True, False, False, False, [])
    a.declare("q")
    a.call("queue.bind", 0, "q", "e", "k", False, [])
    b.ask(publish(1, "e", "k", b"1"), publish(1, "", "q", b"2"))
    assert b.count("q") == 2
    assert b.call("queue.unbind", 0, "q", "e", "k", []) == [(1, "queue.unbind-ok", [])]
    a.ask(publish(1, "e", "k", b"3"))
    assert a.count("q") == 2
    b.call("exchange.delete", 0, "e", False, False)
    ((_, _, arguments),) = a.ask(publish(1, "e", "k", b"4"))
    assert arguments[0] == 404


def test_a_starting_gateway_leaves_transient_queues_of_another_alone() -> None:
    one = Server()
    a = one.client()
    a.declare("mine", durable=False, exclusive=True)
    a.declare("shared", durable=False)
    b = Server(one.port).client(1, 2)
    ((_, _, arguments),) = b.call("queue.declare", 0, "mine", True, False, False, False, False, [])
    assert arguments[0] == 405
    assert b.call("queue.declare", 0, "shared", True, False, False, False, False, [], channel=2) == [
        (2, "queue.declare-ok", ["shared", 0, 0])
    ]
    a.ask(publish(1, "", "mine", b"x"))
    assert a.count("mine") == 1


def test_transient_queues_of_a_gateway_that_is_gone_are_free() -> None:
    one, other = two()
    a, b = one.client(), other.client()
    for name in ("mine", "forgotten"):
        a.declare(name, durable=False, exclusive=True)
    b.declare("theirs", durable=False)
    other.wheel.advance(2 * ORPHANS_MS)
    other.settle()
    assert set(other.gateway.definitions.queues) == {"mine", "forgotten", "theirs"}, "it is still there"
    for lease in ("amqp/mine", "amqp/forgotten"):
        del one.port.leases[lease]  # the broker saw its connection end
    assert b.declare("mine", durable=False, exclusive=True) == [(1, "queue.declare-ok", ["mine", 0, 0])]
    other.wheel.advance(2 * ORPHANS_MS)
    other.settle()
    assert set(other.gateway.definitions.queues) == {"mine", "theirs"}


def test_deleting_elsewhere_cancels_consumers_here() -> None:
    one, other = two()
    a, b = one.client(), other.client()
    a.declare("q")
    a.call("basic.consume", 0, "q", "c", False, False, False, False, [])
    b.call("queue.delete", 0, "q", False, False, False)
    one.settle()
    assert parse(a.link.take()) == [(1, "basic.cancel", ["c", True])]
    assert a.declare("q") == [(1, "queue.declare-ok", ["q", 0, 0])]
    one.settle()
    b.ask(publish(1, "", "q", b"1"))
    assert a.count("q") == 1


def test_own_changes_that_come_back_late_undo_nothing() -> None:
    server = Server(mode="late")
    peer = server.client()
    for _ in range(3):
        assert peer.declare("q") == [(1, "queue.declare-ok", ["q", 0, 0])]
        assert peer.call("queue.delete", 0, "q", False, False, False) == [(1, "queue.delete-ok", [0])]
    peer.declare("q")
    definitions = server.gateway.definitions
    assert not definitions._own_rows
    assert definitions.queues["q"].light in server.port.lights


def consume(peer: Peer, queue: str, tag: str, exclusive: bool = False, no_ack: bool = False, **terms: int) -> list[Any]:
    arguments = [("x-" + name, Field("I", value)) for name, value in terms.items()]
    return peer.call("basic.consume", 0, queue, tag, False, no_ack, exclusive, False, arguments)


def delivered(peer: Peer) -> list[bytes]:
    peer.server.settle()
    return [content.body for _, content in parse(peer.link.take()) if isinstance(content, Content)]


def test_an_exclusive_consumer_is_alone_in_all_gateways() -> None:
    one, other = two()
    a, b = one.client(), other.client(1, 2)
    a.declare("q")
    consume(a, "q", "c", exclusive=True)
    ((_, _, arguments),) = consume(b, "q", "c")
    assert arguments[:2] == [403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"]
    a.call("basic.cancel", "c", False)
    reply = b.call("basic.consume", 0, "q", "c", False, False, False, False, [], channel=2)
    assert reply == [(2, "basic.consume-ok", ["c"])]


def test_a_consumer_that_lost_its_place_to_an_exclusive_one_is_cancelled() -> None:
    """Its broker was away, and the other gateway's was not: RabbitMQ's consumer_cancel_notify."""
    one, _ = two()
    a = one.client()
    a.declare("q")
    consume(a, "q", "c")
    (cursor,) = [cursor for cursor in one.port.cursors.values() if cursor.seats]
    ((seat, (_, on_turn)),) = cursor.seats.items()
    on_turn(seat, None)
    one.settle()
    assert parse(a.link.take()) == [(1, "basic.cancel", ["c", True])]
    a.ask(publish(1, "", "q", b"1"))
    assert delivered(a) == []
    assert a.count("q") == 1
    cursor.seats.clear()  # as the broker's are
    assert consume(a, "q", "c")[0] == (1, "basic.consume-ok", ["c"])


def test_consumers_are_counted_and_an_auto_delete_queue_goes_with_the_last_anywhere() -> None:
    one, other = two()
    a, b = one.client(), other.client(1, 2)
    a.declare("q", auto_delete=True)
    consume(a, "q", "c")
    consume(b, "q", "c")
    assert a.declare("q", auto_delete=True) == [(1, "queue.declare-ok", ["q", 0, 2])]
    ((_, _, arguments),) = b.call("queue.delete", 0, "q", True, False, False, channel=2)
    assert arguments[0] == 406
    a.call("basic.cancel", "c", False)
    assert b.declare("q", auto_delete=True) == [(1, "queue.declare-ok", ["q", 0, 1])]
    b.call("basic.cancel", "c", False)
    ((_, _, arguments),) = a.call("queue.declare", 0, "q", True, False, False, False, False, [])
    assert arguments[0] == 404


def test_the_single_active_consumer_is_one_of_all_gateways() -> None:
    one, other = two()
    a, b = one.client(), other.client()
    arguments = [("x-single-active-consumer", Field("t", True))]
    a.call("queue.declare", 0, "q", False, True, False, False, False, arguments)
    consume(a, "q", "first")
    consume(b, "q", "second")
    a.ask(publish(1, "", "q", b"1"))
    other.settle()
    assert delivered(b) == []
    a.ask(publish(1, "", "q", b"2"))
    a.ask(call(1, "basic.cancel", "first", False))
    a.ask(publish(1, "", "q", b"3"))
    assert delivered(b) == [b"3"]
    a.link.lose()
    one.settle()
    assert delivered(b) == [b"1", b"2"], "what the first held comes back to its turn"


def test_the_higher_priority_is_served_first() -> None:
    peer = Server().client(1, 2)
    peer.declare("q")
    peer.call("basic.qos", 0, 1, False)
    consume(peer, "q", "low")
    peer.call("basic.qos", 0, 2, False)
    consume(peer, "q", "high", priority=5)
    answer = peer.ask(
        publish(2, "", "q", b"1"), publish(2, "", "q", b"2"), publish(2, "", "q", b"3"), publish(2, "", "q", b"4")
    )
    assert [(content.arguments[0], content.body) for _, content in answer] == [
        ("high", b"1"),
        ("high", b"2"),
        ("low", b"3"),
    ]


def test_a_vhost_that_one_deletes_is_closed_at_the_other() -> None:
    one, other = two()
    Client(one, ManagementSite(one.gateway, "127.0.0.1", ())).ask("PUT", "vhosts/v")
    b, root = other.client(vhost="v"), other.client()
    b.declare("mine", durable=False, exclusive=True)
    b.declare("jobs")
    assert Client(one, ManagementSite(one.gateway, "127.0.0.1", ())).ask("DELETE", "vhosts/v") == (204, None)
    other.settle()
    ((_, name, arguments),) = parse(b.link.take())
    assert (name, arguments[:2]) == ("connection.close", [320, "CONNECTION_FORCED - vhost 'v' is deleted"])
    for server in (one, other):
        assert not server.gateway.definitions.queues
        assert server.gateway.definitions.vhosts.names() == ["/"]
    ((_, _, arguments),) = other.connect().enter("v")
    assert arguments[1] == "NOT_ALLOWED - vhost v not found"
    assert root.declare("jobs") == [(1, "queue.declare-ok", ["jobs", 0, 0])]


def test_a_queue_that_is_gone_with_its_broker_is_declared_anew() -> None:
    one, other = two()
    a, b = one.client(), other.client()
    a.call("exchange.declare", 0, "e", "direct", False, True, False, False, False, [])
    for name in ("q", "own"):
        a.declare(name, exclusive=name == "own")
        a.call("queue.bind", 0, name, "e", "k", False, [])
    b.declare("q")
    for name in ("q", "own"):
        light = one.gateway.definitions.queues[name].light
        one.port.delete_light(light, None, lambda token, result: None)
        a.declare(name, exclusive=name == "own")
        assert one.gateway.definitions.queues[name].light != light
    assert b.call("queue.bind", 0, "q", "e", "k", False, []) == [(1, "queue.bind-ok", [])]
    b.ask(publish(1, "e", "k", b"1"), publish(1, "", "own", b"2"))
    assert (a.count("q"), b.count("q"), a.count("own")) == (1, 1, 1)
