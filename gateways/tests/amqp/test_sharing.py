"""Who gets a message: a limit that consumers share, a fetch beside consumers, a message without time to live and a consumer that waits."""

from __future__ import annotations

from typing import Any

import pytest

from gateways.tests.amqp.peer import Peer, Server, call, publish

AT_ONCE = b"\x01\x00\x010"
"""Property list with expiration 0."""


@pytest.fixture(params=["immediate", "late", "shuffled"])
def peer(request: pytest.FixtureRequest) -> Peer:
    return Server(mode=request.param).client()


def consume(peer: Peer, queue: str, no_ack: bool = False) -> list[Any]:
    return peer.call("basic.consume", 0, queue, f"c-{queue}-{no_ack}", False, no_ack, False, False, [])


def bodies(out: list[Any]) -> list[bytes]:
    return [content.body for _, content, *rest in out if not rest]


def test_a_shared_limit_serves_every_queue(peer: Peer) -> None:
    """What one answer frees goes to the queue that waited longest, not to the same one again (rabbit_limiter)."""
    for queue in "abc":
        peer.declare(queue)
        peer.ask(*[publish(1, "", queue, queue.encode()) for _ in range(10)])
    peer.call("basic.qos", 0, 1, True)
    got = [body for queue in "abc" for body in bodies(consume(peer, queue))]
    for tag in range(1, 9):
        got += bodies(peer.call("basic.ack", tag, False))
    assert len(got) == 9
    assert set(got) == {b"a", b"b", b"c"}


def test_a_shared_limit_stops_consumers_without_acknowledgement(peer: Peer) -> None:
    """They do not count towards it, but get nothing while it is reached (rabbit_limiter: can_send)."""
    peer.declare("acked")
    peer.declare("not")
    peer.call("basic.qos", 0, 1, True)
    consume(peer, "acked")
    assert bodies(peer.ask(publish(1, "", "acked", b"1"))) == [b"1"]
    consume(peer, "not", no_ack=True)
    assert peer.ask(*[publish(1, "", "not", b"%d" % n) for n in (2, 3)]) == []
    assert bodies(peer.call("basic.ack", 1, False)) == [b"2", b"3"]
    assert bodies(peer.ask(publish(1, "", "not", b"4"), publish(1, "", "not", b"5"))) == [b"4", b"5"]


def test_a_fetch_leaves_consumers_what_they_can_take(peer: Peer) -> None:
    """RabbitMQ hands a message to a consumer with credit before it looks at what comes behind it on the channel."""
    peer.declare("q")
    consume(peer, "q")
    out = peer.ask(publish(1, "", "q", b"1"), call(1, "basic.get", 0, "q", True))
    assert bodies(out) == [b"1"]
    assert (1, "basic.get-empty", [""]) in out
    assert [content.name for _, content, *rest in out if not rest] == ["basic.deliver"]


def test_a_fetch_takes_what_consumers_cannot(peer: Peer) -> None:
    peer.declare("q")
    peer.call("basic.qos", 0, 1, False)
    consume(peer, "q")
    out = peer.ask(publish(1, "", "q", b"1"), publish(1, "", "q", b"2"), call(1, "basic.get", 0, "q", True))
    assert {content.name: content.body for _, content in out} == {"basic.deliver": b"1", "basic.get-ok": b"2"}


def test_without_time_to_live_only_a_waiting_consumer_gets_it(peer: Peer) -> None:
    """RabbitMQ: a time to live of 0 expires a message unless it can be delivered to a consumer immediately."""
    peer.declare("q")
    peer.ask(publish(1, "", "q", b"nobody waits", AT_ONCE))
    assert peer.call("basic.get", 0, "q", True) == [(1, "basic.get-empty", [""])]
    peer.ask(publish(1, "", "q", b"nobody waits yet", AT_ONCE))
    peer.call("basic.qos", 0, 2, False)
    assert bodies(consume(peer, "q")) == []
    assert bodies(peer.ask(*[publish(1, "", "q", b"%d" % n, AT_ONCE) for n in (1, 2, 3)])) == [b"1", b"2"]
    assert bodies(peer.call("basic.nack", 1, False, True)) == []
    assert bodies(peer.ask(publish(1, "", "q", b"4", AT_ONCE))) == [b"4"]


def test_without_time_to_live_the_first_message_of_a_queue_reaches_who_waits(peer: Peer) -> None:
    peer.declare("q")
    consume(peer, "q")
    assert bodies(peer.ask(publish(1, "", "q", b"1", AT_ONCE))) == [b"1"]


@pytest.mark.parametrize("at_a_time", [1, 3])
def test_what_is_over_does_not_reach_who_got_less_than_asked_for(
    monkeypatch: pytest.MonkeyPatch, at_a_time: int
) -> None:
    """A short answer is not an empty queue: it is what one of several brokers had."""
    server = Server()
    acquire = server.port.acquire
    monkeypatch.setattr(
        server.port,
        "acquire",
        lambda cursor, holder, count, *rest: acquire(cursor, holder, min(count, at_a_time), *rest),
    )
    peer = server.client()
    peer.declare("q")
    peer.ask(*[publish(1, "", "q", b"%d" % n, b"\x01\x00\x041000") for n in range(6)])
    server.clock.advance(5000)
    assert bodies(consume(peer, "q")) == []
    assert bodies(peer.ask(publish(1, "", "q", b"new", AT_ONCE))) == [b"new"]


def test_what_is_over_does_not_reach_who_could_not_take_more_at_once() -> None:
    """Nor is one that is short because the next message is large."""
    server = Server()
    peer = server.client()
    peer.declare("q")
    peer.call("basic.qos", 0, 2, False)
    large = [publish(1, "", "q", b"a" * 200_000), publish(1, "", "q", b"b" * 400_000, b"\x01\x00\x041000")]
    peer.ask(publish(1, "", "q", b"1"), publish(1, "", "q", b"2"), *large)
    server.clock.advance(5000)
    assert bodies(consume(peer, "q")) == [b"1", b"2"]
    assert [len(body) for body in bodies(peer.call("basic.ack", 2, True))] == [200_000]
    assert peer.count("q") == 0
