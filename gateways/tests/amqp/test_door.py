"""The door over a port in memory: publish, route, deliver, settle."""

from __future__ import annotations

import pytest

from gantrymq.model import names
from gantrymq_gateways.amqp.wire.connection import EVENT_WORK, GOODBYE_MS, WORK_MAX
from gateways.tests.amqp.peer import NO_PROPERTIES, Server, call, parse, publish


@pytest.fixture(params=["immediate", "late", "shuffled"])
def server(request: pytest.FixtureRequest) -> Server:
    return Server(mode=request.param)


def test_a_message_goes_through_a_durable_queue(server: Server) -> None:
    peer = server.client()
    assert peer.declare("jobs") == [(1, "queue.declare-ok", ["jobs", 0, 0])]
    assert peer.call("confirm.select", False) == [(1, "confirm.select-ok", [])]
    assert peer.ask(publish(1, "", "jobs", b"one")) == [(1, "basic.ack", [1, False])]
    assert peer.count("jobs") == 1
    assert peer.call("basic.consume", 0, "jobs", "c1", False, False, False, False, [])[0] == (
        1,
        "basic.consume-ok",
        ["c1"],
    )


def test_consumer_gets_message(server: Server) -> None:
    peer = server.client()
    peer.declare("jobs")
    peer.ask(publish(1, "", "jobs", b"one", b"\x10\x00\x02"))
    consume_ok, (_, delivery) = peer.call("basic.consume", 0, "jobs", "c1", False, False, False, False, [])
    assert consume_ok == (1, "basic.consume-ok", ["c1"])
    assert delivery.arguments == ["c1", 1, False, "", "jobs"]
    assert (delivery.properties, delivery.body) == (b"\x10\x00\x02", b"one")
    assert peer.call("basic.ack", 1, False) == []
    assert peer.count("jobs") == 0
    ((_, name, arguments),) = peer.call("basic.ack", 1, False)
    assert (name, arguments[:2]) == ("channel.close", [406, "PRECONDITION_FAILED - unknown delivery tag 1"])


def test_topic_exchange_and_native_record(server: Server) -> None:
    peer = server.client()
    assert peer.call("exchange.declare", 0, "factory", "topic", False, True, False, False, False, []) == [
        (1, "exchange.declare-ok", [])
    ]
    peer.declare("all")
    assert peer.call("queue.bind", 0, "all", "factory", "*.temp", False, []) == [(1, "queue.bind-ok", [])]
    peer.ask(publish(1, "factory", "line1.temp", b"21"), publish(1, "factory", "line1.speed", b"3"))
    first, second = server.port.log[-2:]
    assert (first.topic, first.tag, first.exchange, first.body) == ("factory", "line1.temp", "factory", b"21")
    assert first.property("GANTRY_ORIGIN") == "amqp"
    assert second.tag == "line1.speed"
    ((_, got),) = peer.call("basic.get", 0, "all", True)
    assert got.arguments == [1, False, "factory", "line1.temp", 0]
    assert got.properties == NO_PROPERTIES
    assert peer.call("basic.get", 0, "all", True) == [(1, "basic.get-empty", [""])]


def test_confirms_are_merged(server: Server) -> None:
    peer = server.client()
    peer.declare("jobs")
    peer.call("confirm.select", False)
    confirms = peer.ask(*[publish(1, "", "jobs", b"%d" % n) for n in range(100)])
    batches = [*range(WORK_MAX // EVENT_WORK, 100, WORK_MAX // EVENT_WORK), 100]
    assert all(confirm in [(1, "basic.ack", [upto, True]) for upto in batches] for confirm in confirms)
    assert confirms[-1] == (1, "basic.ack", [100, True])
    assert peer.ask(publish(1, "", "jobs", b"x")) == [(1, "basic.ack", [101, False])]
    assert peer.count("jobs") == 101


def test_mandatory_returns_before_confirm(server: Server) -> None:
    peer = server.client()
    peer.call("confirm.select", False)
    (_, returned), confirm = peer.ask(publish(1, "", "nobody", b"x", mandatory=True))
    assert (returned.name, returned.arguments) == ("basic.return", [312, "NO_ROUTE", "", "nobody"])
    assert returned.body == b"x"
    assert confirm == (1, "basic.ack", [1, False])
    assert not [m for m in server.port.log if m.body == b"x"]
    assert peer.ask(publish(1, "", "nobody", b"y")) == [(1, "basic.ack", [2, False])]
    (_, returned), _ = peer.ask(publish(1, "amq.topic", "a.b", b"z", mandatory=True))
    assert returned.arguments == [312, "NO_ROUTE", "amq.topic", "a.b"]


def test_prefetch_requeue_and_order(server: Server) -> None:
    peer = server.client()
    peer.declare("q")
    peer.ask(*[publish(1, "", "q", b"%d" % n) for n in range(1, 7)])
    peer.call("basic.qos", 0, 3, False)
    out = peer.call("basic.consume", 0, "q", "c", False, False, False, False, [])
    assert [m.body for _, m in out[1:]] == [b"1", b"2", b"3"]
    assert peer.call("basic.cancel", "c", False) == [(1, "basic.cancel-ok", ["c"])]
    peer.call("basic.nack", 3, False, True)
    peer.call("basic.nack", 1, False, True)
    got = [peer.call("basic.get", 0, "q", True)[0][1] for _ in range(5)]
    assert [(m.body, m.arguments[1]) for m in got] == [
        (b"1", True),
        (b"3", True),
        (b"4", False),
        (b"5", False),
        (b"6", False),
    ]
    peer.call("basic.ack", 2, False)
    assert peer.call("basic.get", 0, "q", True) == [(1, "basic.get-empty", [""])]


def test_shared_prefetch_counts_all_consumers_of_a_channel(server: Server) -> None:
    peer = server.client()
    for queue in ("a", "b"):
        peer.declare(queue)
        peer.ask(*[publish(1, "", queue, b"%d" % n) for n in range(5)])
    peer.call("basic.qos", 0, 3, True)
    first = peer.call("basic.consume", 0, "a", "ca", False, False, False, False, [])
    second = peer.call("basic.consume", 0, "b", "cb", False, False, False, False, [])
    assert len(first) + len(second) == 2 + 3
    out = peer.call("basic.ack", 0, True)
    assert len(out) == 3


def test_what_was_got_does_not_count_as_prefetched(server: Server) -> None:
    """RabbitMQ's limiter knows consumers alone: who fetched one without answering yet still gets his prefetch."""
    peer = server.client()
    peer.declare("q")
    peer.ask(*[publish(1, "", "q", b"%d" % n) for n in range(6)])
    peer.call("basic.get", 0, "q", False)
    peer.call("basic.get", 0, "q", False)
    peer.call("basic.qos", 0, 2, True)
    out = peer.call("basic.consume", 0, "q", "c", False, False, False, False, [])
    assert [m.body for _, m in out[1:]] == [b"2", b"3"]
    assert peer.call("basic.ack", 1, False) == []
    assert peer.call("basic.nack", 2, True, False) == []
    ((_, message),) = peer.call("basic.ack", 3, True)
    assert message.body == b"4"
    ((_, message),) = peer.call("basic.ack", 0, True)[:1]
    assert message.body == b"5"


def test_lost_connection_requeues_and_frees_exclusive_queues(server: Server) -> None:
    peer, other = server.client(), server.client()
    peer.declare("q")
    peer.declare("mine", durable=False, exclusive=True)
    ((_, name, arguments),) = other.declare("mine", durable=False, exclusive=True)
    assert (name, arguments[0]) == ("channel.close", 405)
    peer.ask(publish(1, "", "q", b"x"))
    peer.call("basic.consume", 0, "q", "c", False, False, False, False, [])
    peer.link.peer_closes()
    other = server.client()
    assert other.declare("mine", durable=False, exclusive=True) == [(1, "queue.declare-ok", ["mine", 0, 0])]
    ((_, got),) = other.call("basic.get", 0, "q", False)
    assert (got.body, got.arguments[1]) == (b"x", True)


def test_round_robin(server: Server) -> None:
    one, two = server.client(), server.client()
    one.declare("q")
    for peer in (one, two):
        peer.call("basic.consume", 0, "q", "c", False, True, False, False, [])
    one.link.take()
    sent = one.link.feed(b"".join(publish(1, "", "q", b"%d" % n) for n in range(10)))
    server.settle()
    mine = parse(sent + one.link.take())
    theirs = parse(two.link.take())
    assert len(mine) == len(theirs) == 5
    assert sorted(int(m.body) for _, m in mine + theirs) == list(range(10))


def test_deleted_queue_cancels_its_consumers(server: Server) -> None:
    peer = server.client(1, 2)
    peer.declare("q")
    peer.call("basic.consume", 0, "q", "c", False, False, False, False, [])
    out = peer.call("queue.delete", 0, "q", False, False, False, channel=2)
    assert sorted(out) == [(1, "basic.cancel", ["c", True]), (2, "queue.delete-ok", [0])]


def test_own_delete_is_answered_before_the_cancel(server: Server) -> None:
    peer = server.client()
    peer.declare("q")
    peer.call("basic.consume", 0, "q", "c", False, False, False, False, [])
    out = peer.call("queue.delete", 0, "q", False, False, False)
    assert out == [(1, "queue.delete-ok", [0]), (1, "basic.cancel", ["c", True])]


def test_auto_delete_goes_with_its_last_consumer(server: Server) -> None:
    peer = server.client()
    peer.declare("q", durable=False, auto_delete=True)
    peer.call("basic.consume", 0, "q", "c", False, False, False, False, [])
    peer.call("basic.cancel", "c", False)
    ((_, name, arguments),) = peer.call("queue.declare", 0, "q", True, False, False, False, False, [])
    assert (name, arguments[1]) == ("channel.close", "NOT_FOUND - no queue 'q' in vhost '/'")


def test_server_named_queue_and_default_binding(server: Server) -> None:
    peer = server.client()
    ((_, _, (name, _, _)),) = peer.declare("", durable=False, exclusive=True)
    assert name == "amq.gen-token00000000000000001"
    assert peer.call("queue.bind", 0, "", "amq.direct", "", False, []) == [(1, "queue.bind-ok", [])]
    peer.ask(publish(1, "amq.direct", name, b"x"), publish(1, "", name, b"y"))
    got = [peer.call("basic.get", 0, "", True)[0][1] for _ in range(2)]
    assert [(m.body, m.arguments[2:4]) for m in got] == [(b"x", ["amq.direct", name]), (b"y", ["", name])]


def test_exchange_to_exchange(server: Server) -> None:
    peer = server.client()
    for name, kind in (("a", "topic"), ("b", "fanout")):
        peer.call("exchange.declare", 0, name, kind, False, True, False, False, False, [])
    assert peer.call("exchange.bind", 0, "b", "a", "x.#", False, []) == [(1, "exchange.bind-ok", [])]
    peer.declare("q")
    peer.call("queue.bind", 0, "q", "b", "", False, [])
    peer.ask(publish(1, "a", "x.y.z", b"1"), publish(1, "a", "y", b"2"), publish(1, "b", "q", b"3"))
    assert peer.count("q") == 2
    peer.call("exchange.unbind", 0, "b", "a", "x.#", False, [])
    peer.ask(publish(1, "a", "x.y.z", b"1"))
    assert peer.count("q") == 2


def test_everything_durable_survives_a_crash(server: Server) -> None:
    peer = server.client()
    peer.call("exchange.declare", 0, "e", "direct", False, True, False, False, False, [])
    peer.declare("q")
    peer.declare("gone", durable=False)
    peer.declare("mine", durable=False, exclusive=True)
    peer.call("queue.bind", 0, "q", "e", "k", False, [])
    peer.call("confirm.select", False)
    peer.ask(publish(1, "e", "k", b"1"), publish(1, "", "q", b"2"))
    again = Server(server.port.crash())
    peer = again.client()
    assert peer.count("q") == 2
    peer.ask(publish(1, "e", "k", b"3"))
    assert peer.count("q") == 3
    assert set(again.gateway.definitions.queues) == {"q"}
    assert len(again.port.lights) == 1


def test_purge_and_delete(server: Server) -> None:
    peer = server.client()
    peer.declare("q")
    peer.ask(publish(1, "", "q", b"1"), publish(1, "", "q", b"2"))
    assert peer.call("queue.purge", 0, "q", False) == [(1, "queue.purge-ok", [2])]
    peer.ask(publish(1, "", "q", b"3"))
    assert peer.call("queue.delete", 0, "q", False, False, False) == [(1, "queue.delete-ok", [1])]
    assert peer.call("queue.delete", 0, "q", False, False, False) == [(1, "queue.delete-ok", [0])]
    assert not server.port.lights


def test_recover(server: Server) -> None:
    peer = server.client()
    peer.declare("q")
    peer.ask(publish(1, "", "q", b"1"))
    peer.call("basic.get", 0, "q", False)
    assert peer.call("basic.recover", True) == [(1, "basic.recover-ok", [])]
    ((_, got),) = peer.call("basic.get", 0, "q", False)
    assert got.arguments[:2] == [2, True]


def test_pipelined_get_sees_what_was_published_before(server: Server) -> None:
    peer = server.client()
    peer.declare("q")
    out = peer.ask(publish(1, "", "q", b"1"), call(1, "basic.get", 0, "q", True), publish(1, "", "q", b"2"))
    assert [m.body for _, m in out] == [b"1"]
    assert peer.count("q") == 1


def test_pipelined_get_sees_what_was_requeued_before(server: Server) -> None:
    peer = server.client()
    peer.declare("q")
    peer.ask(publish(1, "", "q", b"1"), publish(1, "", "q", b"2"))
    peer.call("basic.get", 0, "q", False)
    ((_, got),) = peer.ask(call(1, "basic.nack", 1, False, True), call(1, "basic.get", 0, "q", False))
    assert (got.body, got.arguments[1]) == (b"1", True)


def test_publish_then_close_loses_nothing(server: Server) -> None:
    peer = server.client()
    peer.declare("q")
    out = peer.ask(publish(1, "", "q", b"1"), call(0, "connection.close", 200, "bye", 0, 0))
    assert out == [(0, "connection.close-ok", [])]
    server.wheel.advance(GOODBYE_MS)
    assert peer.link.closed_by == "abort"
    assert server.client().count("q") == 1


def test_native_topic_is_found_as_a_topic_exchange(server: Server) -> None:
    server.port.topic_queues["plant"] = 4
    peer = server.client()
    peer.declare("q")
    assert peer.call("queue.bind", 0, "q", "plant", "#", False, []) == [(1, "queue.bind-ok", [])]
    peer.ask(publish(1, "plant", "x", b"1"))
    assert peer.count("q") == 1
    peer.call("exchange.delete", 0, "plant", False, False)
    ((_, _, arguments),) = peer.ask(publish(1, "plant", "x", b"1"))
    assert arguments[:2] == [404, "NOT_FOUND - no exchange 'plant' in vhost '/'"]


def test_expired_messages_are_not_delivered(server: Server) -> None:
    peer = server.client()
    peer.declare("q")
    peer.ask(publish(1, "", "q", b"1", b"\x01\x00\x021000"[:2] + b"\x041000"), publish(1, "", "q", b"2"))
    ((_, got),) = peer.call("basic.get", 0, "q", False)
    assert (got.body, got.properties) == (b"1", b"\x01\x00\x041000")
    peer.call("basic.nack", 1, False, True)
    server.clock.advance(1500)
    ((_, got),) = peer.call("basic.get", 0, "q", False)
    assert got.body == b"2"


def test_long_names_are_noted_for_the_other_doors_and_learned_from_them(server: Server) -> None:
    peer = server.client()
    name = "x" * 200
    native = names.encode_topic(name)
    peer.call("exchange.declare", 0, name, "topic", False, True, False, False, False, [])
    peer.declare("y" * 200)
    assert server.port.tables["long_topic"] == {
        native: name.encode(),
        names.encode_topic("y" * 200): b"y" * 200,
    }
    peer.declare("q")
    peer.call("queue.bind", 0, "q", name, "#", False, [])
    peer.ask(publish(1, name, "k", b"1"))
    ((_, got),) = peer.call("basic.get", 0, "q", True)
    assert got.arguments[2:4] == [name, "k"]
