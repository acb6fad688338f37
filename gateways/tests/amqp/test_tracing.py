"""The firehose: copies of what is published and delivered, off by default, bounded, never of itself."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.model.errors import ErrorCode
from gantrymq_gateways.amqp.messages import routed as routing
from gantrymq_gateways.amqp.messages import tracing
from gantrymq_gateways.amqp.vhosts.registry import TABLE, VirtualHost, new_vhost, row_value
from gantrymq_gateways.amqp.wire.content import Properties, decode_properties, encode_properties
from gantrymq_gateways.amqp.wire.values import Field, Table, lookup, text_of
from gateways.tests.amqp.peer import Content, Peer, Server, call, publish

PROPERTIES = encode_properties(
    Properties(content_type="text/plain", headers=[("a", Field("S", b"b"))], delivery_mode=2, message_id="m1")
)


@pytest.fixture
def server() -> Server:
    return Server()


def trace(server: Server, on: bool, vhost: str = "/") -> None:
    row = row_value(VirtualHost(tracing=on))
    server.port.put(TABLE, [(vhost, row)], None, lambda token, result: None)
    server.settle()


def listener(server: Server, key: str = "#", vhost: str = "/") -> Peer:
    peer = server.client(vhost=vhost)
    peer.call("queue.declare", 0, "traces", False, True, False, False, False, [])
    peer.call("queue.bind", 0, "traces", "amq.rabbitmq.trace", key, False, [])
    return peer


def copies(peer: Peer) -> list[tuple[str, bytes, Table]]:
    found: list[tuple[str, bytes, Table]] = []
    while True:
        ((_, got, *_),) = peer.ask(call(1, "basic.get", 0, "traces", True))
        if not isinstance(got, Content):
            return found
        properties = decode_properties(got.properties)
        found.append((str(got.arguments[3]), got.body, properties.headers or []))


def value(headers: Table, name: str) -> Any:
    field = lookup(headers, name)
    return None if field is None else field.value


def test_publishes_and_deliveries_are_copied_with_what_they_were(server: Server) -> None:
    traces, peer = listener(server), server.client(1, 7)
    peer.declare("jobs")
    peer.call("queue.bind", 0, "jobs", "amq.topic", "eu.#", False, [])
    trace(server, True)
    peer.raw(publish(7, "amq.topic", "eu.paid", b"hello", PROPERTIES))
    peer.ask(call(1, "basic.get", 0, "jobs", False))
    trace(server, False)
    (sent, got) = copies(traces)
    assert (sent[0], sent[1]) == ("publish.amq.topic", b"hello")
    assert (got[0], got[1]) == ("deliver.jobs", b"hello")
    for _, _, headers in (sent, got):
        assert value(headers, "exchange_name") == b"amq.topic"
        assert [text_of(key) for key in value(headers, "routing_keys")] == ["eu.paid"]
        assert value(headers, "node") == b"gantrymq@localhost"
        assert value(headers, "vhost") == b"/"
        assert value(headers, "user") == b"guest"
        table = value(headers, "properties")
        assert value(table, "content_type") == b"text/plain"
        assert value(table, "message_id") == b"m1"
        assert value(table, "delivery_mode") == 2
        assert value(table, "headers") == [("a", Field("S", b"b"))]
    assert [text_of(queue) for queue in value(sent[2], "routed_queues")] == ["jobs"]
    assert value(got[2], "routed_queues") is None
    assert (value(sent[2], "channel"), value(sent[2], "redelivered")) == (7, None)
    assert (value(got[2], "channel"), value(got[2], "redelivered")) == (1, 0)


def test_a_consumer_and_a_second_delivery(server: Server) -> None:
    traces, peer = listener(server, "deliver.#"), server.client()
    peer.declare("jobs")
    trace(server, True)
    peer.raw(publish(1, "", "jobs", b"1"))
    peer.call("basic.consume", 0, "jobs", "c", False, False, False, False, [])
    peer.ask(call(1, "basic.reject", 1, True))
    peer.call("basic.cancel", "c", False)
    trace(server, False)
    assert [(key, value(headers, "redelivered")) for key, _, headers in copies(traces)] == [
        ("deliver.jobs", 0), ("deliver.jobs", 1),
    ]  # fmt: skip


def test_nothing_is_copied_where_tracing_is_off(server: Server) -> None:
    traces, peer = listener(server), server.client()
    peer.declare("jobs")
    peer.raw(publish(1, "", "jobs", b"1"))
    peer.ask(call(1, "basic.get", 0, "jobs", True))
    trace(server, True)
    trace(server, False)
    peer.raw(publish(1, "", "jobs", b"2"))
    assert copies(traces) == []


def test_copies_are_not_traced(server: Server) -> None:
    traces, peer = listener(server), server.client()
    trace(server, True)
    peer.raw(publish(1, "amq.fanout", "", b"1"))
    assert [key for key, _, _ in copies(traces)] == ["publish.amq.fanout"]
    assert copies(traces) == []


def test_what_a_transaction_publishes_is_copied_when_it_is_committed(server: Server) -> None:
    traces, peer = listener(server), server.client(1, 2)
    peer.declare("jobs")
    trace(server, True)
    peer.call("tx.select")
    peer.raw(publish(1, "", "jobs", b"regretted"))
    peer.call("tx.rollback")
    peer.raw(publish(1, "", "jobs", b"meant") + publish(1, "amq.fanout", "", b"for nobody"))
    assert copies(traces) == []
    peer.raw(publish(2, "", "jobs", b"meanwhile"))
    assert peer.call("tx.commit") == [(1, "tx.commit-ok", [])]
    assert [(key, body) for key, body, _ in copies(traces) if key.startswith("publish.")] == [
        ("publish.", b"meanwhile"), ("publish.", b"meant"), ("publish.amq.fanout", b"for nobody"),
    ]  # fmt: skip
    assert copies(traces) == []


def test_what_a_refused_commit_would_have_published_is_not_copied(server: Server) -> None:
    traces, peer = listener(server, "publish.#"), server.client()
    peer.declare("jobs")
    trace(server, True)
    peer.call("tx.select")
    peer.raw(publish(1, "", "jobs", b"1"))
    server.port.refuse = lambda message: ErrorCode.QUEUE_FULL
    ((_, name, _),) = peer.call("tx.commit")
    server.port.refuse = lambda message: None
    assert name == "channel.close"
    assert copies(traces) == []


def test_what_clients_publish_to_it_is_refused(server: Server) -> None:
    ((_, name, arguments),) = server.client().ask(publish(1, "amq.rabbitmq.trace", "publish.x", b"forged"))
    assert (name, arguments[0]) == ("channel.close", 403)


def test_a_vhost_is_traced_for_itself(server: Server) -> None:
    server.port.put(TABLE, [("v", row_value(VirtualHost()))], None, lambda token, result: None)
    server.settle()
    root, peer = listener(server), listener(server, vhost="v")
    trace(server, True, "v")
    server.client().raw(publish(1, "amq.fanout", "", b"root"))
    server.client(vhost="v").raw(publish(1, "amq.fanout", "", b"v"))
    assert copies(root) == []
    ((key, body, headers),) = copies(peer)
    assert (key, body, value(headers, "vhost")) == ("publish.amq.fanout", b"v", b"v")
    peer.declare("later")
    peer.raw(publish(1, "", "later", b"2"))
    peer.ask(call(1, "basic.get", 0, "later", True))
    assert [key for key, _, _ in copies(peer)] == ["publish.", "deliver.later"]


def test_copies_on_their_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "OPEN_BYTES_MAX", 5 * (tracing.COPY_BYTES + 100))
    server = Server()
    traces, peer = listener(server), server.client()
    trace(server, True)
    tracer = server.gateway.tracers["/"]
    held: list[Any] = []
    submit = server.port.submit
    monkeypatch.setattr(server.port, "submit", lambda *arguments: held.append(arguments))
    for _ in range(20):
        tracer.published(
            call(1, "basic.publish", 0, "amq.fanout", "", False, False)[11:-1], b"\0\0", bytes(100), 1, ("", "")
        )
    assert (len(held), server.gateway.trace_dropped.value) == (5, 15)
    for arguments in held:
        submit(*arguments)
    server.settle()
    monkeypatch.undo()
    assert len(copies(traces)) == 5
    peer.raw(publish(1, "amq.fanout", "", b"after"))
    assert [body for _, body, _ in copies(traces)] == [b"after"]


def test_properties_that_leave_no_room_are_a_gap_and_no_error(server: Server) -> None:
    traces, peer = listener(server), server.client()
    trace(server, True)
    headers: Table = [(f"h{number}", Field("S", b"x" * 200)) for number in range(90)]
    (answer, *_) = peer.ask(
        call(1, "confirm.select", False),
        publish(1, "amq.fanout", "", b"1", encode_properties(Properties(headers=headers))),
    )
    assert answer[1] == "confirm.select-ok"
    assert server.gateway.trace_dropped.value == 1
    assert copies(traces) == []


@pytest.mark.parametrize(("said", "on"), [(True, True), ("true", True), ("false", False), (False, False)])
def test_it_is_said_as_json_or_as_its_text(said: Any, on: bool) -> None:
    assert new_vhost({"tracing": said}, VirtualHost(tracing=not on)).tracing is on
    assert new_vhost({}, VirtualHost(tracing=on)).tracing is on
    with pytest.raises(ValueError, match="tracing"):
        new_vhost({"tracing": "perhaps"}, None)


def routed(peer: Peer) -> list[list[str] | None]:
    found = [value(headers, "routed_queues") for _, _, headers in copies(peer)]
    return [None if queues is None else sorted(text_of(queue) for queue in queues) for queues in found]


@pytest.mark.parametrize("vhost", ["/", "v"])
def test_a_publish_names_the_queues_that_it_went_to(server: Server, vhost: str) -> None:
    server.port.put(TABLE, [("v", row_value(VirtualHost()))], None, lambda token, result: None)
    server.settle()
    traces, peer = listener(server, "publish.#", vhost), server.client(vhost=vhost)
    for queue in "abc":
        peer.declare(queue)
    other: Table = [("alternate-exchange", Field("S", b"others"))]
    peer.call("exchange.declare", 0, "orders", "topic", False, True, False, False, False, other)
    peer.call("exchange.declare", 0, "others", "fanout", False, True, False, False, False, [])
    peer.call("exchange.declare", 0, "eu", "headers", False, True, False, False, False, [])
    peer.call("queue.bind", 0, "a", "orders", "us.#", False, [])
    peer.call("exchange.bind", 0, "eu", "orders", "eu.*", False, [])
    peer.call("queue.bind", 0, "b", "eu", "", False, [("kind", Field("S", b"paid"))])
    peer.call("queue.bind", 0, "c", "others", "", False, [])
    trace(server, True, vhost)
    paid = encode_properties(Properties(headers=[("kind", Field("S", b"paid"))]))
    keys = Field("A", [Field("S", b"us.2"), Field("S", b"c")])
    both = encode_properties(Properties(headers=[("CC", keys)]))
    sent = [
        publish(1, "orders", "us.1", b"1"), publish(1, "orders", "eu.1", b"2", paid), publish(1, "orders", "eu.1", b"3"),
        publish(1, "orders", "jp", b"4"), publish(1, "", "b", b"5"), publish(1, "", "nobody", b"6"),
        publish(1, "orders", "eu.1", b"7", both), publish(1, "", "b", b"8", both),
    ]  # fmt: skip
    for each in sent:
        peer.raw(each)
    expected = [["a"], ["b"], [], ["c"], ["b"], [], ["a"], ["b", "c"]]
    assert routed(traces) == expected
    for name, body in (("a", b"1"), ("b", b"2"), ("c", b"4")):
        ((_, got, *_),) = peer.ask(call(1, "basic.get", 0, name, True))
        assert got.body == body


def test_a_copy_knows_bindings_as_they_are_now(server: Server) -> None:
    traces, peer = listener(server, "publish.#"), server.client()
    peer.declare("a")
    peer.call("exchange.declare", 0, "orders", "direct", False, True, False, False, False, [])
    trace(server, True)
    publishes = publish(1, "orders", "k", b"1")
    peer.raw(publishes)
    peer.call("queue.bind", 0, "a", "orders", "k", False, [])
    peer.raw(publishes)
    peer.call("queue.unbind", 0, "a", "orders", "k", [])
    peer.raw(publishes)
    peer.call("exchange.delete", 0, "orders", False, False)
    peer.call("exchange.declare", 0, "orders", "fanout", False, True, False, False, False, [])
    peer.call("queue.bind", 0, "a", "orders", "other", False, [])
    peer.raw(publishes)
    peer.call("queue.delete", 0, "a", False, False, False)
    peer.raw(publishes)
    assert routed(traces) == [[], ["a"], [], ["a"], []]


def test_queues_that_nobody_can_name_are_not_named(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setattr(routing, "BINDINGS_MAX", 2)
    traces, peer = listener(server, "publish.#"), server.client()
    peer.declare("a")
    peer.call("exchange.declare", 0, "dice", "x-random", False, True, False, False, False, [])
    peer.call("queue.bind", 0, "a", "dice", "", False, [])
    trace(server, True)
    peer.raw(publish(1, "dice", "", b"1"))
    for key in ("1", "2", "3"):
        peer.call("queue.bind", 0, "a", "amq.direct", key, False, [])
    peer.raw(publish(1, "amq.direct", "1", b"2"))
    peer.call("queue.unbind", 0, "a", "amq.direct", "3", [])
    peer.raw(publish(1, "amq.direct", "1", b"3"))
    assert routed(traces) == [None, None, ["a"]]
