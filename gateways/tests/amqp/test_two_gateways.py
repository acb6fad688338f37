"""Two gateways over one broker: definitions stay in step, and what lives in one is left alone by the other."""

from __future__ import annotations

from gateways.tests.amqp.peer import Server, parse, publish


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
