"""Consumers of one queue take turns; those that are full stand aside and come back."""

from __future__ import annotations

from typing import Any

from gantrymq_gateways.amqp.config import AmqpConfig
from gantrymq_gateways.amqp.messages.consumers import Consumer
from gateways.tests.amqp.peer import Content, Peer, Server, publish


def served(answers: list[Any]) -> list[str]:
    """Tags of the consumers that got something, in order."""
    return [content.arguments[0] for _, content in answers if isinstance(content, Content)]


def consumers(peer: Peer, count: int, prefetch: int = 1) -> None:
    peer.call("queue.declare", 0, "q", False, True, False, False, False, [])
    peer.call("basic.qos", 0, prefetch, False)
    for number in range(count):
        peer.call("basic.consume", 0, "q", f"c{number}", False, False, False, False, [])


def send(peer: Peer, count: int) -> list[str]:
    return [tag for _ in range(count) for tag in served(peer.ask(publish(1, "", "q", b"x")))]


def test_who_answers_is_served_next_and_behind_those_that_wait() -> None:
    peer = Server(config=AmqpConfig(heartbeat=0)).client()
    consumers(peer, 3)
    assert send(peer, 5) == ["c0", "c1", "c2"]
    assert served(peer.call("basic.ack", 2, False)) == ["c1"]
    assert served(peer.call("basic.ack", 3, True)) == ["c0"]
    peer.call("basic.ack", 5, True)  # c1 and c0; c2 answered before them and waits longest
    assert send(peer, 3) == ["c2", "c1", "c0"]


def test_a_full_one_may_go_and_comes_back_by_a_reject() -> None:
    peer = Server(config=AmqpConfig(heartbeat=0)).client()
    consumers(peer, 2)
    assert send(peer, 2) == ["c0", "c1"]
    peer.call("basic.cancel", "c0", False)
    assert send(peer, 1) == []
    peer.call("basic.reject", 1, False)  # of the one that is gone
    assert served(peer.call("basic.nack", 2, False, True)) == ["c1"]
    peer.call("basic.cancel", "c1", False)
    peer.call("basic.consume", 0, "q", "last", False, False, False, False, [])
    assert peer.count("q") == 0


def test_an_answer_looks_at_one_consumer_however_many_are_full(monkeypatch: Any) -> None:
    peer = Server(config=AmqpConfig(heartbeat=0)).client()
    consumers(peer, 500)
    assert len(send(peer, 510)) == 500
    peer.call("basic.ack", 1, False)  # those that are full stand aside from here on
    looked = 0
    credit = Consumer.credit

    def counted(consumer: Consumer) -> int:
        nonlocal looked
        looked += 1
        return credit(consumer)

    monkeypatch.setattr(Consumer, "credit", counted)
    for tag in range(2, 7):
        assert len(served(peer.call("basic.ack", tag, False))) == 1
    assert looked <= 20
