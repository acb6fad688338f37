"""Channels that close while something is under way: both sides at once, late answers of the log, a number that is used again."""

from __future__ import annotations

import pytest

from gantrymq.model.errors import ErrorCode
from gateways.tests.amqp.peer import Server, call, parse, publish

CLOSE = call(1, "channel.close", 200, "bye", 0, 0)


@pytest.mark.parametrize("mode", ["immediate", "late", "shuffled"])
def test_a_close_that_crosses_an_error_is_answered_too(mode: str) -> None:
    """AMQP 1.5.2.6: without its close-ok a client that published to an unknown exchange and closes would wait for ever."""
    peer = Server(mode=mode).client()
    out = peer.ask(publish(1, "nowhere", "k", b"x"), CLOSE)
    assert [name for _, name, _ in out] == ["channel.close", "channel.close-ok"]
    assert out[0][2][0] == 404
    assert peer.ask(call(1, "channel.close-ok"), call(1, "channel.open", "")) == [(1, "channel.open-ok", [b""])]


def test_a_close_that_comes_after_an_error_is_answered_too() -> None:
    peer = Server().client()
    peer.ask(publish(1, "nowhere", "k", b"x"))
    assert peer.ask(CLOSE) == [(1, "channel.close-ok", [])]


@pytest.mark.parametrize("code", [None, ErrorCode.BUSY, ErrorCode.NO_ROUTE])
def test_a_late_answer_of_the_log_is_not_for_the_next_channel_of_that_number(code: ErrorCode | None) -> None:
    """A stale basic.ack would confirm a message of the new channel that nobody has stored."""
    server = Server(mode="late")
    peer = server.client()
    peer.declare("q")
    peer.call("confirm.select", False)
    server.port.refuse = lambda message: code
    sent = publish(1, "", "q", b"old", mandatory=True)
    peer.door.received(sent + call(1, "basic.ack", 99, False))
    server.turn.run_until_quiet()  # the log has not answered yet
    out = parse(peer.link.take())
    assert [(name, arguments[0]) for _, name, arguments in out] == [("channel.close", 406)]
    peer.door.received(call(1, "channel.close-ok") + call(1, "channel.open", ""))
    out = peer.ask(call(1, "confirm.select", False))
    assert [item[1] for item in out if item[0] == 1] == ["channel.open-ok", "confirm.select-ok"]


def test_nothing_follows_connection_close() -> None:
    """AMQP 2.2.4: the side that sent connection.close sends nothing more."""
    server = Server(mode="late")
    peer = server.client()
    peer.declare("q")
    peer.call("confirm.select", False)
    peer.door.received(publish(1, "", "q", b"x") + call(1, "basic.qos", 5, 0, False))
    server.settle()
    assert [item[1] for item in parse(peer.link.take())] == ["connection.close"]


def test_a_body_that_was_begun_counts_no_more_when_its_connection_is_lost() -> None:
    """The process would otherwise be full one day."""
    peer = Server().client()
    whole = publish(1, "", "q", bytes(300_000))
    peer.door.received(whole[:200_000])
    assert peer.settings.assembling.size > 100_000
    peer.door.closed("reset by peer")
    assert peer.settings.assembling.size == 0
