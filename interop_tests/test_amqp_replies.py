"""RabbitMQ's table of replies (`gateways/tests/amqp/replies.py`), each row over a socket to `gantry up`, beside a connection that must notice nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gantrymq_gateways.amqp.wire.codec import decode_arguments
from gantrymq_gateways.amqp.wire.constants import METHODS, METHODS_BY_NUMBER
from gateways.tests.amqp.peer import call
from gateways.tests.amqp.replies import CHANNEL, CONNECTION, HELD, IGNORED, PREPARED, UNKNOWN_METHOD
from interop_tests import raw_peers as raw
from interop_tests.running import Gantry

MADE = ("q", "new", "c", "ab", "é $1", "n" * 255)
"""Queues of the table: each row finds them as the others do."""

Answer = tuple[int, str, list[Any]]


def answer(peer: raw.Raw) -> Answer:
    """The next method, whose content is left out."""
    while True:
        kind, channel, payload = raw.read_frame(peer)
        if kind == 1:
            method = METHODS_BY_NUMBER[int.from_bytes(payload[:4], "big")]
            return channel, method.name, decode_arguments(method.spec, payload, 4)


def until(peer: raw.Raw, *names: str) -> Answer:
    """The first of these methods."""
    while (found := answer(peer))[1] not in names:
        pass
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gantry]:
    gantry = Gantry(tmp_path_factory.mktemp("replies"))
    try:
        gantry.start()
        yield gantry
        gantry.stop()
    finally:
        gantry.kill()


@pytest.fixture(scope="module")
def neighbour(server: Gantry) -> Iterator[raw.Raw]:
    """Has an exclusive queue, and prepares what the rows need."""
    with raw.amqp(server) as peer:
        peer.send(HELD)
        until(peer, "queue.declare-ok")
        yield peer


@pytest.fixture
def peer(server: Gantry, neighbour: raw.Raw) -> Iterator[raw.Raw]:
    """Channels 1 and 2 are open; when the row is over, its neighbour still works."""
    for queue in MADE:
        neighbour.send(call(1, "queue.delete", 0, queue, False, False, False))
        until(neighbour, "queue.delete-ok")
    for exchange in ("e", "inner", "h"):
        neighbour.send(call(1, "exchange.delete", 0, exchange, False, False))
        until(neighbour, "exchange.delete-ok")
    neighbour.send(b"".join(PREPARED))
    until(neighbour, "queue.bind-ok")
    with raw.amqp(server) as made:
        made.send(call(2, "channel.open", ""))
        until(made, "channel.open-ok")
        yield made
    neighbour.send(call(1, "queue.declare", 0, "xq", True, False, True, False, False, []))
    assert answer(neighbour)[1] == "queue.declare-ok"


def assert_reply(reply: list[Any], code: int, text: str, method: str) -> None:
    assert reply[1].startswith(text[:-3]) if text.endswith("...") else reply[1] == text
    assert [reply[0], reply[2] << 16 | reply[3]] == [code, METHODS[method].number if method else 0]


@pytest.mark.parametrize(
    ("frames", "code", "text", "method"), [row[1:] for row in CHANNEL], ids=[r[0] for r in CHANNEL]
)
def test_closes_the_channel(peer: raw.Raw, frames: bytes, code: int, text: str, method: str) -> None:
    peer.send(frames)
    channel, _, reply = until(peer, "channel.close", "connection.close")
    assert channel == 1
    assert_reply(reply, code, text, method)
    peer.send(call(2, "basic.qos", 0, 1, False) + call(1, "channel.close-ok") + call(1, "channel.open", ""))
    assert {answer(peer)[:2] for _ in range(2)} == {(2, "basic.qos-ok"), (1, "channel.open-ok")}


@pytest.mark.parametrize(
    ("frames", "code", "text", "method"), [row[1:] for row in CONNECTION], ids=[r[0] for r in CONNECTION]
)
def test_closes_the_connection(peer: raw.Raw, frames: bytes, code: int, text: str, method: str) -> None:
    peer.send(frames)
    channel, _, reply = until(peer, "channel.close", "connection.close")
    assert channel == 0
    assert_reply(reply, code, text, method)
    peer.send(call(0, "connection.close-ok"))
    assert peer.to_end().answer == b""


@pytest.mark.parametrize(("frames", "name", "arguments"), [row[1:] for row in IGNORED], ids=[r[0] for r in IGNORED])
def test_is_no_error(peer: raw.Raw, frames: bytes, name: str, arguments: list[Any]) -> None:
    peer.send(frames)
    assert answer(peer) == (1, name, arguments)


def test_an_unknown_method_closes_the_socket_without_a_word(peer: raw.Raw) -> None:
    peer.send(UNKNOWN_METHOD)
    assert peer.to_end().answer == b""
