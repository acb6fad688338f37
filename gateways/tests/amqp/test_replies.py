"""Reply codes and texts: the table is in `replies.py`."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq_gateways.amqp.wire.constants import METHODS
from gateways.tests.amqp.peer import Peer, Server, call
from gateways.tests.amqp.replies import CHANNEL, CONNECTION, HELD, IGNORED, PREPARED, UNKNOWN_METHOD


@pytest.fixture
def peer() -> Peer:
    server = Server()
    other = server.client()
    other.ask(HELD, *PREPARED)
    return server.client(1, 2)


def assert_closed(reply: list[Any], code: int, text: str, method: str) -> None:
    if text.endswith("..."):
        assert reply[1].startswith(text[:-3])
    else:
        assert reply[1] == text
    number = METHODS[method].number if method else 0
    assert [reply[0], reply[2] << 16 | reply[3]] == [code, number]


@pytest.mark.parametrize(
    ("frames", "code", "text", "method"), [case[1:] for case in CHANNEL], ids=[c[0] for c in CHANNEL]
)
def test_channel_error(peer: Peer, frames: bytes, code: int, text: str, method: str) -> None:
    *_, (channel, name, reply) = peer.ask(frames)
    assert (channel, name) == (1, "channel.close")
    assert_closed(reply, code, text, method)
    # What follows on the channel is ignored until close-ok, then the number can be opened again; others go on.
    assert peer.call("basic.qos", 0, 1, False) == []
    assert peer.call("basic.qos", 0, 1, False, channel=2) == [(2, "basic.qos-ok", [])]
    assert peer.ask(call(1, "channel.close-ok"), call(1, "channel.open", "")) == [(1, "channel.open-ok", [b""])]


@pytest.mark.parametrize(
    ("frames", "code", "text", "method"), [case[1:] for case in CONNECTION], ids=[c[0] for c in CONNECTION]
)
def test_connection_error(peer: Peer, frames: bytes, code: int, text: str, method: str) -> None:
    *_, (channel, name, reply) = peer.ask(frames)
    assert (channel, name) == (0, "connection.close")
    assert_closed(reply, code, text, method)
    if not text.startswith("FRAME_ERROR - type"):
        assert peer.raw(call(1, "basic.qos", 0, 1, False)) == b""
        assert peer.raw(call(0, "connection.close-ok")) == b""
        assert peer.link.closed_by == "close"


@pytest.mark.parametrize(("frames", "name", "arguments"), [case[1:] for case in IGNORED], ids=[c[0] for c in IGNORED])
def test_accepted(peer: Peer, frames: bytes, name: str, arguments: list[Any]) -> None:
    assert peer.ask(frames) == [(1, name, arguments)]


def test_ack_of_everything_is_never_an_error(peer: Peer) -> None:
    assert peer.call("basic.ack", 0, True) == []
    assert peer.call("basic.nack", 0, True, True) == []
    assert peer.call("basic.qos", 0, 1, False) == [(1, "basic.qos-ok", [])]


def test_unknown_method_closes_the_socket_without_a_word(peer: Peer) -> None:
    assert peer.raw(UNKNOWN_METHOD) == b""
    assert peer.link.closed_by == "abort"
