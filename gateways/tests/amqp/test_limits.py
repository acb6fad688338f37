"""Every limit and both directions of back-pressure; and what happens when the broker fails."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from gantrymq.model.errors import ErrorCode
from gantrymq_gateways.amqp.config import AmqpConfig
from gantrymq_gateways.amqp.door import BACKLOG_MAX, BLOCKED_MS
from gantrymq_gateways.amqp.messages import publish as publishing
from gantrymq_gateways.amqp.messages.consumers import ACQUIRE_COUNT_MAX, Ledger
from gantrymq_gateways.amqp.messages.publish import Unstored
from gantrymq_gateways.amqp.properties.writing import RENDERED_MAX
from gantrymq_gateways.amqp.routes import AmqpRoutes
from gantrymq_gateways.amqp.wire.content import Properties, encode_properties
from gateways.tests.amqp.peer import NO_PROPERTIES, Peer, Server, call, parse, publish
from gateways.tests.fakeport import FakePort


def closed(reply: list[Any]) -> tuple[int, str]:
    ((_, name, arguments),) = reply
    assert name.endswith(".close")
    return arguments[0], arguments[1]


def consume(peer: Peer, queue: str, no_ack: bool = False) -> list[Any]:
    return peer.call("basic.consume", 0, queue, "", False, no_ack, False, False, [])


def test_exchange_limit() -> None:
    peer = Server(config=AmqpConfig(exchanges_max=2)).client()
    for name in ("a", "b"):
        peer.call("exchange.declare", 0, name, "direct", False, True, False, False, False, [])
    for number in range(5):
        peer.declare(f"q{number}")  # topics of queues are no exchanges
    reply = peer.call("exchange.declare", 0, "c", "direct", False, True, False, False, False, [])
    assert closed(reply) == (
        406,
        "PRECONDITION_FAILED - cannot declare exchange 'c' in vhost '/': limit of 2 is reached",
    )


def test_queue_limit() -> None:
    peer = Server(config=AmqpConfig(queues_max=1)).client()
    peer.declare("a")
    assert closed(peer.declare("b"))[0] == 406


def test_binding_limit() -> None:
    peer = Server(config=AmqpConfig(bindings_max=1)).client()
    peer.declare("a")
    peer.call("queue.bind", 0, "a", "amq.direct", "1", False, [])
    peer.call("queue.bind", 0, "a", "amq.direct", "1", False, [])
    assert closed(peer.call("queue.bind", 0, "a", "amq.direct", "2", False, []))[0] == 406


def test_consumer_limit() -> None:
    peer = Server(config=AmqpConfig(consumers_max=2)).client()
    peer.declare("a")
    consume(peer, "a")
    consume(peer, "a")
    assert closed(consume(peer, "a"))[0] == 506


def test_unacknowledged_limit() -> None:
    peer = Server(config=AmqpConfig(unacked_max=3)).client()
    peer.declare("a")
    peer.ask(*[publish(1, "", "a", b"%d" % n) for n in range(5)])
    assert len(consume(peer, "a")) == 1 + 3
    assert len(peer.call("basic.ack", 1, False)) == 1
    assert len(peer.call("basic.ack", 0, True)) == 1


@pytest.mark.parametrize("multiple", [False, True])
def test_credit_that_comes_back_serves_every_queue_of_the_channel(multiple: bool) -> None:
    """One queue had used up what may be unacknowledged: the other is not asked again by anything but the answer."""
    peer = Server(config=AmqpConfig(unacked_max=3)).client()
    peer.declare("a")
    peer.declare("b")
    peer.ask(*[publish(1, "", queue, b"%d" % n) for n in range(3) for queue in ("a", "b")])
    assert len(consume(peer, "a")) == 1 + 3
    assert len(consume(peer, "b")) == 1
    assert len(peer.call("basic.ack", 3 if multiple else 1, multiple)) == (3 if multiple else 1)
    assert peer.count("b") == (0 if multiple else 2)


def test_body_limit() -> None:
    server = Server()
    server.body_bytes_max = 10
    peer = server.client()
    peer.declare("a")
    assert peer.ask(publish(1, "", "a", b"0123456789")) == []
    text = "PRECONDITION_FAILED - message size 11 is larger than configured max size 10"
    assert closed(peer.ask(publish(1, "", "a", b"0123456789x"))) == (406, text)


def test_the_limit_of_bodies_is_that_of_now_at_the_content_header() -> None:
    """A broker that takes less has joined, or is gone again."""
    server = Server()
    peer = server.client()
    peer.declare("a")
    method, header, *bodies = split(publish(1, "", "a", bytes(400_000)))
    assert parse(peer.raw(method + header + b"".join(bodies))) == []
    server.body_bytes_max = 300_000
    text = "PRECONDITION_FAILED - message size 400000 is larger than configured max size 300000"
    assert closed(parse(peer.raw(method + header))) == (406, text)
    peer.ask(b"".join(bodies) + call(1, "channel.close-ok"), call(1, "channel.open", ""))
    server.body_bytes_max = 400_000
    assert parse(peer.raw(method + header + b"".join(bodies))) == []
    assert peer.count("a") == 2


def test_a_slow_reader_stops_being_fetched_for() -> None:
    server = Server(config=AmqpConfig(outbound_bytes_max=50_000))
    peer = server.client()
    peer.declare("a")
    count = 3 * ACQUIRE_COUNT_MAX
    peer.ask(*[publish(1, "", "a", b"x" * 1000) for _ in range(count)])
    peer.link.waiting = 50_000
    out = consume(peer, "a", no_ack=True)
    assert len(out) == 1
    assert server.client().count("a") == count
    peer.link.drain()
    got = parse(peer.link.take())
    assert len(got) > 0
    for _ in range(count):
        server.settle()
    got += parse(peer.link.take())
    assert len(got) == count


def test_long_pipelines_stop_reading() -> None:
    server = Server(mode="late")
    peer = server.client()
    frames = call(1, "queue.declare", 0, "a", False, True, False, False, False, [])
    frames += call(1, "queue.declare", 0, "a", True, True, False, False, False, []) * (BACKLOG_MAX + 10)
    peer.push(frames)
    assert not peer.link.reading
    server.settle()
    assert peer.link.reading
    assert len(parse(peer.link.take())) == BACKLOG_MAX + 11


def test_unstored_bodies_stop_reading() -> None:
    server = Server(config=AmqpConfig(inbound_bytes_max=5000), mode="late")
    peer = server.client()
    peer.declare("a")
    peer.door.received(publish(1, "", "a", b"x" * 1000) * 6)
    assert not peer.link.reading
    server.settle()
    assert peer.link.reading


@pytest.mark.parametrize("dies", [False, True])
def test_bodies_behind_a_slow_method_stop_reading(dies: bool) -> None:
    """The log is asked for nothing yet, so its limit does not see them."""
    server = Server(config=AmqpConfig(inbound_bytes_max=5000), mode="late")
    peer = server.client()
    peer.declare("a")
    slow = call(1, "queue.declare", 0, "b", False, True, False, dies, False, [])
    if dies:
        slow += call(1, "basic.ack", 99, False)
    peer.door.received(slow + publish(1, "", "a", b"x" * 1000) * 6)
    assert not peer.link.reading
    server.settle()
    assert peer.link.reading
    assert server.client().count("a") == (0 if dies else 6)


def room_again(server: Server) -> None:
    """What waits is stored, then who was blocked hears of it."""
    for passed_ms in (BLOCKED_MS + 50, BLOCKED_MS // 5):
        server.wheel.advance(passed_ms)
        server.settle()


def test_blocked_publisher_is_told_and_its_message_sent_again() -> None:
    server = Server()
    peer = server.client()
    peer.declare("a")
    full = [True]
    server.port.refuse = lambda message: ErrorCode.STORE_FULL if full[0] else None
    assert peer.ask(publish(1, "", "a", b"1")) == [(0, "connection.blocked", ["no space left in the store"])]
    for _ in range(30):  # it is tried again, and nobody hears of that
        server.wheel.advance(200)
        server.settle()
        assert not peer.link.reading
        assert {frame for frame in parse(peer.link.take()) if frame != ("heartbeat",)} == set()
    full[0] = False
    room_again(server)
    assert parse(peer.link.take()) == [(0, "connection.unblocked", [])]
    assert peer.link.reading
    assert peer.count("a") == 1


def test_blocked_publisher_with_confirms_gets_a_nack() -> None:
    server = Server()
    peer = server.client()
    peer.declare("a")
    peer.call("confirm.select", False)
    server.port.refuse = lambda message: ErrorCode.BUSY if message.body == b"2" else None
    out = peer.ask(*[publish(1, "", "a", b"%d" % n) for n in range(1, 5)])
    assert out == [
        (1, "basic.ack", [1, False]),
        (1, "basic.nack", [2, False, False]),
        (0, "connection.blocked", ["server busy"]),
        (1, "basic.ack", [4, True]),
    ]
    assert peer.count("a") == 3


def test_refused_message_without_confirms_closes_the_channel() -> None:
    server = Server()
    peer = server.client()
    server.port.refuse = lambda message: ErrorCode.TOPIC_LIMIT
    assert closed(peer.ask(publish(1, "amq.topic", "a", b"1"))) == (
        406,
        "PRECONDITION_FAILED - limit of topics reached",
    )


def test_failed_submit_is_nacked() -> None:
    server = Server()
    peer = server.client()
    peer.call("confirm.select", False)
    server.port.fail_next("submit", ErrorCode.FLUSH_TIMEOUT)
    assert peer.ask(publish(1, "amq.topic", "a", b"1")) == [(1, "basic.nack", [1, False, False])]
    assert server.gateway.unstored == {Unstored.REFUSED: 1}
    assert peer.ask(publish(1, "amq.topic", "a", b"1")) == [(1, "basic.ack", [2, False])]


def test_failed_declaration_leaves_nothing_behind() -> None:
    server = Server()
    for call_ in ("ensure_topic", "create_light", "open_cursor", "add_route", "put"):
        server.port.fail_next(call_, ErrorCode.BUSY)
        peer = server.client()
        assert closed(peer.declare("q"))[0] == 506
        assert server.client().declare("q") == [(1, "queue.declare-ok", ["q", 0, 0])]
        assert len(server.port.lights) <= 1 + (call_ == "put")
        peer = server.client()
        peer.ask(publish(1, "", "q", b"1"))
        assert peer.count("q") == 1
        peer.call("queue.delete", 0, "q", False, False, False)


def test_failed_binding_can_be_made_again() -> None:
    server = Server()
    peer = server.client()
    peer.declare("q")
    server.port.fail_next("add_route", ErrorCode.BUSY)
    assert closed(peer.call("queue.bind", 0, "q", "amq.direct", "k", False, []))[0] == 506
    peer = server.client()
    peer.call("queue.bind", 0, "q", "amq.direct", "k", False, [])
    peer.ask(publish(1, "amq.direct", "k", b"1"))
    assert peer.count("q") == 1


def test_a_call_that_is_open_when_the_only_broker_is_lost_ends_the_connection() -> None:
    """Not the channel with 404: nobody said that there is no such queue."""
    server = Server()
    peer = server.client()
    server.port.fail_next("create_light", ErrorCode.UNAVAILABLE)
    server.port.up = False
    ((_, name, arguments),) = peer.call("queue.declare", 0, "q", False, True, False, False, False, [])
    assert (name, arguments[0]) == ("connection.close", 541)


def test_lost_broker_closes_connections_and_comes_back() -> None:
    server = Server()
    server.port.watch_state(server.gateway.broker_state)
    peer = server.client()
    peer.declare("q")
    peer.ask(publish(1, "", "q", b"1"))
    server.port.lose()
    server.settle()
    ((_, name, arguments),) = parse(peer.link.take())
    assert (name, arguments[0]) == ("connection.close", 320)
    late = server.connect()
    late.raw(b"AMQP\x00\x00\x09\x01")
    late.call("connection.start-ok", [], "PLAIN", b"\0guest\0guest", "en_US", channel=0)
    out = late.ask(call(0, "connection.tune-ok", 10, 131072, 0), call(0, "connection.open", "/", "", False))
    assert out[-1][1:] == ("connection.close", [541, "INTERNAL_ERROR - the broker is not reachable", 0, 0])
    server.port.return_()
    server.settle()
    assert server.client().count("q") == 1


def test_caches_stay_bounded() -> None:
    server = Server()
    peer = server.client()
    peer.declare("q")
    for number in range(0, 5000, 100):
        chunk = [publish(1, "", "q", b"", b"\x80\x00" + b"\x06%06d" % (number + n)) for n in range(100)]
        peer.ask(*chunk)
    contents = server.gateway.contents("guest")
    assert len(contents._cache) <= publishing.CONTENTS_MAX
    peer.call("basic.consume", 0, "q", "", False, True, False, False, [])
    assert len(server.gateway.renderer._cache) <= RENDERED_MAX
    for number in range(0, publishing.TARGETS_MAX + 200, 100):
        peer.ask(*[publish(1, "amq.topic", f"k{number + n}", b"") for n in range(100)])
    assert len(server.gateway.targets._cache) <= publishing.TARGETS_MAX


def test_idle_connection_is_small() -> None:
    import tracemalloc

    server = Server()
    server.client()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    peers = [server.client() for _ in range(50)]
    gc.collect()
    per_peer = (tracemalloc.get_traced_memory()[0] - before) / len(peers)
    tracemalloc.stop()
    assert per_peer < 6 * 1024, per_peer


@pytest.mark.parametrize("properties", [NO_PROPERTIES, b"\x10\x00\x02"])
def test_order_of_one_channel_is_kept_over_many_batches(properties: bytes) -> None:
    server = Server(mode="shuffled")
    peer = server.client()
    peer.declare("q")
    peer.call("confirm.select", False)
    for number in range(20):
        peer.door.received(
            publish(1, "", "q", b"%d" % number, properties) + publish(1, "", "nobody", b"x", mandatory=True)
        )
    server.settle()
    out = parse(peer.link.take())
    acks = [arguments[0] for _, *rest in out if len(rest) == 2 for name, arguments in [rest] if name == "basic.ack"]
    assert acks == sorted(acks)
    assert acks[-1] == 40
    returned = [item[1].name for item in out if len(item) == 2]
    assert returned == ["basic.return"] * 20


def test_get_passes_over_any_number_of_expired_messages() -> None:
    server = Server()
    peer = server.client()
    peer.declare("jobs")
    expiration = encode_properties(Properties(expiration="1"))
    peer.ask(*[publish(1, "", "jobs", b"old", expiration) for _ in range(1500)])
    server.clock.advance(5)
    peer.ask(publish(1, "", "jobs", b"new"))
    ((_, got),) = peer.call("basic.get", 0, "jobs", True)
    assert got.body == b"new"
    assert peer.count("jobs") == 0


def test_hundreds_of_declarations_wait_for_one() -> None:
    server = Server()
    peer = server.client(*range(1, 402))
    peer.declare("old")
    server.port.mode = "late"
    names = ["new"] + ["old"] * 400
    declare = [
        call(channel, "queue.declare", 0, name, False, True, False, False, False, [])
        for channel, name in enumerate(names, 1)
    ]
    out = peer.link.feed(b"".join(declare))
    server.port.mode = "immediate"
    server.settle()
    answers = parse(out + peer.link.take())
    assert sorted(answers) == [(channel, "queue.declare-ok", [name, 0, 0]) for channel, name in enumerate(names, 1)]


def test_an_answer_to_many_looks_at_what_is_open_only() -> None:
    ledger = Ledger(10)
    ledger.next_tag = 1 << 60  # a channel that has delivered for long, each message answered by itself
    queue: Any = None
    tags = [ledger.add(queue, offset, None) for offset in range(3)]
    assert ledger.take(tags[1], True) == [(queue, 0, None), (queue, 1, None)]
    assert list(ledger.open) == [tags[2]]


@pytest.mark.parametrize("mode", ["immediate", "late", "shuffled"])
@pytest.mark.parametrize("seed", range(5))
def test_what_came_behind_a_refused_message_is_stored_behind_it(mode: str, seed: int) -> None:
    server = Server(FakePort(seed, mode, {"amqp": AmqpRoutes}))
    peer = server.client()
    peer.declare("q")
    refusals = [False, True, False, True, True]
    server.port.refuse = lambda m: ErrorCode.BUSY if m.body in (b"1", b"3") and refusals and refusals.pop() else None
    for number in range(6):
        peer.door.received(publish(1, "", "q", b"%d" % number))
        if number == 3:
            server.settle()
    server.settle()
    for _ in range(5):
        room_again(server)
    assert [m.body for m in server.port.log if len(m.body) == 1] == [b"%d" % number for number in range(6)]
    assert peer.link.reading


def test_a_channel_closes_when_what_waits_behind_a_refused_message_is_stored() -> None:
    server = Server(mode="late")
    peer = server.client()
    peer.declare("q")
    refusals = [True]
    server.port.refuse = lambda m: ErrorCode.BUSY if m.body == b"1" and refusals and refusals.pop() else None
    peer.ask(publish(1, "", "q", b"1"))
    assert peer.ask(call(1, "confirm.select", False), publish(1, "", "q", b"2")) == [(1, "confirm.select-ok", [])]
    assert peer.ask(call(1, "channel.close", 200, "", 0, 0)) == []
    room_again(server)
    assert [name for _, name, _ in parse(peer.link.take())] == ["basic.ack", "channel.close-ok", "connection.unblocked"]
    assert [m.body for m in server.port.log if len(m.body) == 1] == [b"1", b"2"]


@pytest.mark.parametrize("mode", ["immediate", "late"])
def test_definitions_that_cannot_be_loaded_again_are_tried_until_they_can(mode: str) -> None:
    server = Server(mode=mode)
    server.port.watch_state(server.gateway.broker_state)
    server.client().declare("q")
    server.port.lose()
    server.port.fail_next("watch_table", ErrorCode.BUSY, ErrorCode.UNAVAILABLE)
    server.port.return_()
    server.settle()
    for _ in range(2):
        assert not server.gateway.ready
        server.wheel.advance(1100)
        server.settle()
    assert server.gateway.ready
    assert server.client().count("q") == 0


@pytest.mark.parametrize("mode", ["immediate", "late"])
def test_more_than_one_fetch_is_delivered_without_an_acknowledgement(mode: str) -> None:
    """RabbitMQ: without basic.qos nothing but the reader limits deliveries; an answer that comes later (cold disk, another process)
    must not end them."""
    server = Server(mode=mode)
    peer = server.client()
    peer.declare("a")
    count = 3 * ACQUIRE_COUNT_MAX + 1
    peer.ask(*[publish(1, "", "a", b"%d" % n) for n in range(count)])
    assert len(consume(peer, "a")) == 1 + count


def test_a_body_in_frames_is_unfinished_until_it_is_whole() -> None:
    peer = Server().client(1, 2)
    door = peer.door
    assert door.unfinished() == 0
    method, header, *bodies = split(publish(1, "", "q", b"x" * 300_000))
    peer.raw(method + header)
    peer.raw(bodies[0][:1000])
    first = door.unfinished()
    assert door.missing_bytes() == len(bodies[0]) - 1000
    peer.raw(bodies[0][1000:])
    assert door.missing_bytes() == 0
    begun = door.unfinished()
    assert first
    assert begun not in (0, first)
    assert door.inbound_bytes() == 131_064
    for _ in range(5):  # another channel goes on: the body that waits is still the same
        peer.raw(publish(2, "", "q", b"y" * 300_000))
        assert door.unfinished() == begun
    peer.raw(bodies[1] + bodies[2])
    assert (door.unfinished(), door.inbound_bytes()) == (0, 0)


@pytest.mark.parametrize(("busy", "code"), [(True, 506), (False, 501)])
def test_a_body_that_is_given_up_closes_the_connection_and_is_forgotten(busy: bool, code: int) -> None:
    peer = Server().client()
    method, header, *bodies = split(publish(1, "", "q", b"x" * 300_000))
    peer.raw(method + header + bodies[0] + bodies[1][:500])
    peer.door.overdue("too slow", busy)
    assert closed(parse(peer.raw(b"")))[0] == code
    assert peer.link.closed_by == "close"
    assert peer.door.inbound_bytes() == 0


def split(data: bytes) -> list[bytes]:
    frames = []
    while data:
        size = 8 + int.from_bytes(data[3:7], "big")
        frames.append(data[:size])
        data = data[size:]
    return frames


def test_what_is_not_stored_is_counted() -> None:
    server = Server()
    counts = server.gateway.unstored
    peer = server.client()
    peer.declare("q")
    peer.ask(publish(1, "", "q", b"1"), publish(1, "", "nobody", b"2"))
    peer.ask(publish(1, "", "nobody", b"3", mandatory=True))
    assert counts == {Unstored.UNROUTED: 1, Unstored.RETURNED: 1}
    peer.call("tx.select")
    peer.ask(publish(1, "", "nobody", b"4"), publish(1, "", "nobody", b"5", mandatory=True))
    peer.call("tx.commit")
    assert counts == {Unstored.UNROUTED: 2, Unstored.RETURNED: 2}
