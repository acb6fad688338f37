"""Deliveries that nobody answers close their channel."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.net.procedures.driver import run
from gantrymq_gateways.amqp.config import AmqpConfig
from gantrymq_gateways.amqp.messages import timeouts
from gantrymq_gateways.amqp.messages.timeouts import PERIOD_MS_MAX, Ages
from gantrymq_gateways.amqp.queues.policies import USER, new_policy
from gantrymq_gateways.amqp.wire.values import Field
from gateways.tests.amqp.peer import Peer, Server, parse, publish

HOUR_MS = 3_600_000


def later(peer: Peer, ms: int) -> list[Any]:
    peer.server.wheel.advance(ms)
    peer.server.settle()
    return parse(peer.link.take())


def busy(peer: Peer, timeout_ms: int | None = None) -> None:
    """A consumer of `q` with a message that waits for its answer."""
    arguments = [] if timeout_ms is None else [("x-consumer-timeout", Field("l", timeout_ms))]
    peer.call("queue.declare", 0, "q", False, True, False, False, False, arguments)
    peer.call("basic.consume", 0, "q", "c", False, False, False, False, [])
    peer.ask(publish(1, "", "q", b"1"))


def channel_ends(found: list[Any]) -> list[Any]:
    return [entry for entry in found if entry[1:2] == ("channel.close",)]


def test_the_channel_is_closed_and_the_message_is_back() -> None:
    server = Server(config=AmqpConfig(heartbeat=0))
    peer = server.client(1, 2)
    busy(peer, 2000)
    assert later(peer, 1900) == []
    ((channel, name, arguments),) = later(peer, 1200)
    assert (channel, name, arguments[0], arguments[2:]) == (1, "channel.close", 406, [0, 0])
    assert arguments[1].startswith(
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 2000 ms. "
        "This timeout value can be configured"
    )
    assert server.port.cursors[1].leased == {}
    assert peer.call("basic.qos", 0, 1, False, channel=2) == [(2, "basic.qos-ok", [])], "the others go on"


def test_the_queue_without_a_time_has_that_of_the_settings() -> None:
    server = Server(config=AmqpConfig(heartbeat=0, consumer_timeout_ms=HOUR_MS))
    peer = server.client()
    busy(peer)
    assert later(peer, HOUR_MS - 1000) == []
    assert len(channel_ends(later(peer, 2 * PERIOD_MS_MAX))) == 1


@pytest.mark.parametrize("timeout_ms", [0, None])
def test_without_a_time_nothing_ends(timeout_ms: int | None) -> None:
    peer = Server(config=AmqpConfig(heartbeat=0, consumer_timeout_ms=0)).client()
    busy(peer, timeout_ms)
    assert later(peer, HOUR_MS) == []


def test_who_answers_goes_on() -> None:
    peer = Server(config=AmqpConfig(heartbeat=0)).client()
    busy(peer, 1000)
    for tag in range(1, 8):
        assert channel_ends(later(peer, 700)) == []
        peer.ask(publish(1, "", "q", b"more"))
        peer.call("basic.ack", tag, False)


def test_basic_get_is_timed_too() -> None:
    peer = Server(config=AmqpConfig(heartbeat=0)).client()
    peer.call("queue.declare", 0, "q", False, True, False, False, False, [("x-consumer-timeout", Field("l", 1000))])
    peer.ask(publish(1, "", "q", b"1"))
    peer.call("basic.get", 0, "q", False)
    assert len(channel_ends(later(peer, 2000))) == 1


def set_policy(server: Server, definition: dict[str, Any] | None) -> None:
    made = new_policy(USER, {"pattern": "", "definition": definition}) if definition else None
    ended: list[Any] = []
    run(server.gateway.definitions.set_policy(USER, "p", made), ended.append, Exception)
    server.settle()
    assert ended == [None]


def test_a_policy_says_it_too_and_at_once() -> None:
    server = Server(config=AmqpConfig(heartbeat=0))
    peer = server.client()
    busy(peer)
    set_policy(server, {"consumer-timeout": 1000})
    (closed,) = channel_ends(later(peer, 2000))
    assert "Timeout value used: 1000 ms" in closed[2][1]
    set_policy(server, None)
    other = server.client()
    busy(other)
    assert channel_ends(later(other, 5000)) == []


def test_of_argument_and_policy_the_lower_counts() -> None:
    server = Server(config=AmqpConfig(heartbeat=0))
    set_policy(server, {"consumer-timeout": 60_000})
    peer = server.client()
    busy(peer, 1000)
    assert len(channel_ends(later(peer, 2000))) == 1


def test_notes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "MARKS_MAX", 8)

    class Slow:
        timeout_ms = 1000

    ages, found = Ages(), None
    for now_ms in range(0, 1000, 10):
        found = ages.overdue({1: (Slow(), 0, None)}, 2 + now_ms, now_ms)  # type: ignore[dict-item]
        assert found is None
        assert len(ages._marks) <= 8
    found = ages.overdue({1: (Slow(), 0, None)}, 2000, 1000)  # type: ignore[dict-item]
    assert found is not None
    assert ages.overdue({}, 2000, 1000) is None
    assert not ages._marks
