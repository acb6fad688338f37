"""x-queue-type=stream at the door: where consumers begin, a place for each, credit, what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.model.errors import ErrorCode
from gantrymq_gateways.amqp.messages import streams
from gantrymq_gateways.amqp.messages.streams import with_offset
from gantrymq_gateways.amqp.routes import AmqpRoutes
from gantrymq_gateways.amqp.wire.content import Properties, decode_properties, encode_properties
from gantrymq_gateways.amqp.wire.values import Field, Table
from gateways.tests.amqp.peer import Content, Peer, Server, call, parse, publish
from gateways.tests.fakeport import FakePort

STREAM = ("x-queue-type", Field("S", b"stream"))


def declare(peer: Peer, name: str = "s", durable: bool = True, exclusive: bool = False, auto_delete: bool = False, *more: tuple[str, Field]) -> list[Any]:  # fmt: skip
    return peer.call("queue.declare", 0, name, False, durable, exclusive, auto_delete, False, [STREAM, *more])


def consume(peer: Peer, *arguments: tuple[str, Field], tag: str = "c", prefetch: int = 100, no_ack: bool = False, channel: int = 1) -> list[Any]:  # fmt: skip
    return peer.ask(
        call(channel, "basic.qos", 0, prefetch, False),
        call(channel, "basic.consume", 0, "s", tag, False, no_ack, False, False, list(arguments)),
    )[1:]


def offset(kind: str, value: Any) -> tuple[str, Field]:
    return "x-stream-offset", Field(kind, value)


def headers(content: Content) -> Table:
    return decode_properties(content.properties).headers or []


def got(replies: list[Any]) -> list[tuple[int, bytes]]:
    """(offset, body) of deliveries."""
    found = []
    for _, content in [reply for reply in replies if len(reply) == 2]:
        (place,) = [field.value for name, field in headers(content) if name == "x-stream-offset"]
        assert not content.arguments[2], "redelivered"
        found.append((place, content.body))
    return found


def filled(count: int = 5, **config: Any) -> tuple[Server, Peer]:
    server = Server(**config)
    peer = server.client(1, 2)
    assert declare(peer) == [(1, "queue.declare-ok", ["s", 0, 0])]
    for number in range(count):
        server.port.now_ms += 1000
        peer.ask(publish(1, "", "s", b"%d" % number))
    return server, peer


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        ((), 5), ((offset("S", b"next"),), 5), ((offset("S", b"first"),), 0), ((offset("S", b"last"),), 4), ((offset("l", 3),), 3),
        ((offset("I", 0),), 0), ((offset("l", -1),), 0), ((offset("l", 99),), 5),
    ],
)  # fmt: skip
def test_where_a_consumer_begins(arguments: tuple[tuple[str, Field]], first: int) -> None:
    _, peer = filled()
    replies = consume(peer, *arguments)
    assert replies[0][1:] == ("basic.consume-ok", ["c"])
    assert got(replies) == [(at, b"%d" % at) for at in range(first, 5)]
    assert got(peer.ask(publish(1, "", "s", b"new"))) == [(5, b"new")]
    assert peer.count("s") == 6, "what was read stays"


def test_by_time() -> None:
    server, peer = filled(0)
    begin_s = server.port.now_ms // 1000
    for number in range(5):
        server.port.now_ms = (begin_s + number) * 1000
        peer.ask(publish(1, "", "s", b"%d" % number))
    assert [at for at, _ in got(consume(peer, offset("T", begin_s + 3)))] == [3, 4]
    server.clock.wall_ms = server.port.now_ms
    age = server.gateway.clock.now_ms() // 1000 - begin_s - 2
    assert [at for at, _ in got(consume(peer, offset("S", b"%ds" % age), tag="d", channel=2))] == [2, 3, 4]


def test_acknowledgements_give_credit_and_nothing_else() -> None:
    server, peer = filled()
    replies = consume(peer, offset("S", b"first"), prefetch=2)
    assert [at for at, _ in got(replies)] == [0, 1]
    assert [at for at, _ in got(peer.ask(call(1, "basic.ack", 1, False)))] == [2]
    assert [at for at, _ in got(peer.ask(call(1, "basic.nack", 3, True, True)))] == [3, 4]
    assert got(peer.ask(call(1, "basic.reject", 4, False))) == []
    assert "settle" not in server.port.calls
    assert peer.count("s") == 5


def test_each_consumer_has_its_own_place() -> None:
    server, peer = filled()
    assert len(got(consume(peer, offset("S", b"first")))) == 5
    assert [at for at, _ in got(consume(peer, offset("l", 3), tag="d"))] == [3, 4]
    other = server.client()
    assert got(consume(other, offset("S", b"last"))) == [(4, b"4")]
    scans = server.port.calls.count("scan")
    assert sorted(got(peer.ask(publish(1, "", "s", b"5")))) == [(5, b"5"), (5, b"5")]
    assert got(parse(other.link.take())) == [(5, b"5")]
    assert server.port.calls.count("scan") == scans + 1, "who waits at the end shares what one has read"
    peer.call("basic.cancel", "c", False)
    assert got(peer.ask(publish(1, "", "s", b"6"))) == [(6, b"6")]
    peer.call("basic.cancel", "d", False)
    assert got(parse(other.raw(b""))) == [(6, b"6")]


def test_two_gateways() -> None:
    one, peer = filled()
    other = Server(one.port).client()
    assert len(got(consume(other, offset("S", b"first")))) == 5
    peer.ask(publish(1, "", "s", b"5"))
    other.server.settle()
    assert got(parse(other.link.take())) == [(5, b"5")]


@pytest.mark.parametrize("mode", ["late", "shuffled"])
@pytest.mark.parametrize("seed", range(5))
def test_answers_that_come_late(mode: str, seed: int) -> None:
    _, peer = filled(7, port=FakePort(seed, mode, {"amqp": AmqpRoutes}))
    replies = consume(peer, offset("S", b"first"), prefetch=3)
    found = got(replies)
    while replies:
        replies = peer.ask(call(1, "basic.ack", 0, True))
        found += got(replies)
    assert [at for at, _ in found] == list(range(7))
    for number in range(7, 12):
        found = got(peer.ask(publish(1, "", "s", b"%d" % number)))
        peer.ask(call(1, "basic.ack", 0, True))
        assert found == [(number, b"%d" % number)]


def test_a_filter() -> None:
    server, peer = filled(0)
    for number in range(3000):
        value = [b"a", b"b", None][number % 3]
        given = [("x-stream-filter-value", Field("S", value))] if value else [("other", Field("l", 1))]
        peer.push(publish(1, "", "s", b"%d" % number, encode_properties(Properties(headers=given))))
    server.settle()
    peer.link.take()
    wanted = Field("A", [Field("S", b"b"), Field("S", b"c")])
    found = got(consume(peer, offset("S", b"first"), ("x-stream-filter", wanted), prefetch=2000))
    assert [at for at, _ in found] == list(range(1, 3000, 3))
    unfiltered = (("x-stream-filter", Field("S", b"c")), ("x-stream-match-unfiltered", Field("t", True)))
    found = got(consume(peer, offset("l", 2990), *unfiltered, tag="d", channel=2))
    assert [at for at, _ in found] == [2990, 2993, 2996, 2999]


def test_a_filter_that_takes_nothing_gives_others_their_turn() -> None:
    server, peer = filled(0)
    for number in range(6000):
        peer.push(publish(1, "", "s", b"%d" % number))
    server.settle()
    peer.link.take()
    scans = server.port.calls.count("scan")
    frames = call(1, "basic.qos", 0, 10, False) + call(
        1, "basic.consume", 0, "s", "c", False, False, False, False,
        [offset("S", b"first"), ("x-stream-filter", Field("S", b"x"))],
    )  # fmt: skip
    peer.push(frames)
    assert server.port.calls.count("scan") - scans == streams.READS_AT_ONCE
    server.settle()
    assert server.port.calls.count("scan") - scans > 20
    assert got(parse(peer.link.take())) == []


def test_a_slow_reader_is_not_read_for() -> None:
    server, peer = filled(0)
    for _ in range(40):
        peer.push(publish(1, "", "s", bytes(100_000)))
    server.settle()
    peer.link.take()
    peer.link.waiting = 1 << 30
    assert got(consume(peer, offset("S", b"first"), prefetch=1000)) == []
    assert server.port.calls.count("scan") == 0
    peer.link.waiting = 0
    peer.door.writable()
    server.settle()
    assert len(got(parse(peer.link.take()))) == 40


def test_a_queue_that_cannot_be_read_is_tried_again() -> None:
    server, peer = filled()
    server.port.fail_next("scan", ErrorCode.STORE_FAILED)
    assert len(got(consume(peer, offset("S", b"first")))) == 5, "the watcher called again"
    assert server.port.calls.count("scan") == 2


@pytest.mark.parametrize(
    ("send", "code", "text"),
    [
        (lambda peer: declare(peer, "n", auto_delete=True), 406, "PRECONDITION_FAILED - invalid property 'auto-delete' for queue 'n' in vhost '/'"),
        (lambda peer: declare(peer, "n", exclusive=True), 406, "PRECONDITION_FAILED - invalid property 'exclusive-owner' for queue 'n' in vhost '/'"),
        (lambda peer: declare(peer, "n", durable=False), 406, "PRECONDITION_FAILED - invalid property 'non-durable' for queue 'n' in vhost '/'"),
        (lambda peer: declare(peer, ""), 406, "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_stream_queue"),
        (lambda peer: declare(peer, "n", True, False, False, ("x-max-age", Field("S", b"1w"))), 406, "PRECONDITION_FAILED - invalid arg 'x-max-age' for queue 'n' in vhost '/': invalid_max_age"),
        (lambda peer: declare(peer, "n", True, False, False, ("x-max-age", Field("S", b"0s"))), 406, "PRECONDITION_FAILED - invalid arg 'x-max-age' for queue 'n' in vhost '/': invalid_max_age"),
        (lambda peer: declare(peer, "n", True, False, False, ("x-stream-max-segment-size-bytes", Field("l", 3_000_000_001))), 406, "PRECONDITION_FAILED - Exceeded max value for x-stream-max-segment-size-bytes"),
        (lambda peer: consume(peer, prefetch=0), 406, "PRECONDITION_FAILED - consumer prefetch count is not set for stream queue 's' in vhost '/'"),
        (lambda peer: consume(peer, no_ack=True), 540, "NOT_IMPLEMENTED - automatic acknowledgement not supported by stream queue 's' in vhost '/'"),
        (lambda peer: peer.ask(call(1, "basic.qos", 0, 5, True), call(1, "basic.qos", 0, 5, False), call(1, "basic.consume", 0, "s", "c", False, False, False, False, []))[2:], 540, "NOT_IMPLEMENTED - queue 's' in vhost '/' does not support global qos"),
        (lambda peer: consume(peer, offset("S", b"soon")), 406, "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 's' in vhost '/': {invalid_stream_offset_arg,{longstr,<<\"soon\">>}}"),
        (lambda peer: consume(peer, offset("t", True)), 406, "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 's' in vhost '/': {invalid_stream_offset_arg,{bool,<<\"true\">>}}"),
        (lambda peer: peer.call("basic.get", 0, "s", False), 540, "NOT_IMPLEMENTED - basic.get not supported by stream queues queue 's' in vhost '/'"),
        (lambda peer: peer.call("queue.purge", 0, "s", False), 540, "NOT_IMPLEMENTED - queue.purge not supported by stream queues queue 's' in vhost '/'"),
        (lambda peer: peer.call("queue.declare", 0, "n", False, True, False, False, False, [("x-max-age", Field("S", b"1h"))]), 406, "PRECONDITION_FAILED - invalid arg 'x-max-age' for queue 'n' in vhost '/' of queue type rabbit_classic_queue"),
        (lambda peer: peer.call("queue.declare", 0, "s", False, True, False, False, False, []), 406, "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 's' in vhost '/': received none but current is the value 'stream' of type 'longstr'"),
    ],
)  # fmt: skip
def test_what_is_refused(send: Any, code: int, text: str) -> None:
    _, peer = filled()
    ((_, name, arguments),) = send(peer)
    assert (name, arguments[:2]) == ("connection.close" if code == 540 else "channel.close", [code, text])


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("x-message-ttl", Field("l", 1)), ("x-expires", Field("l", 1)), ("x-max-length", Field("l", 1)), ("x-overflow", Field("S", b"drop-head")),
        ("x-dead-letter-exchange", Field("S", b"")), ("x-delivery-limit", Field("l", 1)), ("x-max-priority", Field("l", 1)),
        ("x-single-active-consumer", Field("t", True)), ("x-queue-mode", Field("S", b"lazy")),
    ],
)  # fmt: skip
def test_arguments_of_other_queues(name: str, field: Field) -> None:
    peer = Server().client()
    ((_, _, arguments),) = declare(peer, "n", True, False, False, (name, field))
    assert arguments[:2] == [
        406,
        f"PRECONDITION_FAILED - invalid arg '{name}' for queue 'n' in vhost '/' of queue type rabbit_stream_queue",
    ]


def test_limits_are_the_brokers() -> None:
    server = Server()
    peer = server.client()
    declare(peer, "n", True, False, False, ("x-max-age", Field("S", b"2h")), ("x-max-length-bytes", Field("l", 5000)),
            ("x-stream-max-segment-size-bytes", Field("l", 1000)))  # fmt: skip
    (policy,) = server.port.policies.values()
    assert (policy.stream, policy.message_ttl_ms, policy.max_bytes) == (True, 7_200_000, 5000)


def test_a_deleted_stream_cancels_its_consumers() -> None:
    server, peer = filled()
    consume(peer, channel=2)
    (cancelled, deleted) = sorted(peer.call("queue.delete", 0, "s", False, False, False), key=str)
    assert (deleted[1], cancelled[1]) == ("basic.cancel", "queue.delete-ok")
    assert server.gateway.queues == {}


def test_answers_of_a_transaction_are_credit_too() -> None:
    _, peer = filled()
    peer.call("tx.select")
    assert len(got(consume(peer, offset("S", b"first"), prefetch=3))) == 3
    assert peer.ask(call(1, "basic.ack", 0, True)) == []
    replies = peer.call("tx.commit")
    assert [at for at, _ in got(replies)] == [3, 4]
    assert peer.count("s") == 5


def test_the_header_of_an_offset() -> None:
    lists = [
        Properties(), Properties(content_type="a/b"), Properties(content_encoding="e", delivery_mode=2), Properties(headers=[]),
        Properties(content_type="a", content_encoding="b", headers=[("k", Field("S", b"v"))], priority=3, message_id="m", app_id="x"),
        Properties(headers=[("x-stream-offset", Field("S", b"old")), ("k", Field("l", 1))]),
        Properties(headers=[("k", Field("S", b"\x0fx-stream-offset"))]),
    ]  # fmt: skip
    for given in lists:
        found = decode_properties(with_offset(encode_properties(given), 1 << 40))
        assert found.headers is not None
        assert found.headers[-1] == ("x-stream-offset", Field("l", 1 << 40))
        assert found.headers[:-1] == [pair for pair in given.headers or [] if pair[0] != "x-stream-offset"]
        found.headers = given.headers
        assert found == given
