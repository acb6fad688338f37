"""Damaged conversations: whatever comes, the answer is AMQP, the connection alone suffers, and a neighbour's messages stay.

1,500 inputs every day (8832: a queue that goes as somebody begins to consume); 100,000 marked slow.
"""

from __future__ import annotations

import logging
import random

import pytest

from gantrymq_gateways.amqp.wire.codec import FRAME
from gantrymq_gateways.amqp.wire.constants import METHODS, PROTOCOL_HEADER
from gantrymq_gateways.amqp.wire.content import Properties, encode_properties
from gantrymq_gateways.amqp.wire.values import Field, Table
from gateways.tests.amqp.peer import Peer, Server, call, parse, publish

ROUND = 500
"""Inputs of one server: what they leave behind may meet."""

NESTED: Table = [
    ("a", Field("A", [Field("F", [("b", Field("A", []))])])),
    ("t", Field("T", 5)),
    ("v", Field("V", None)),
]
LIST = encode_properties(
    Properties(headers=[("CC", Field("A", [Field("S", b"q")])), ("x-delay", Field("I", 9)), *NESTED], reply_to="r", expiration="60000")
)  # fmt: skip

GOOD = [
    call(1, "queue.declare", 0, "q", False, True, False, False, False, []),
    call(1, "queue.declare", 0, "", False, False, True, False, False, NESTED),
    call(1, "exchange.declare", 0, "e", "headers", False, True, False, False, False, [("alternate-exchange", Field("S", b"a"))]),
    call(1, "exchange.declare", 0, "d", "x-delayed-message", False, True, False, False, False, [("x-delayed-type", Field("S", b"topic"))]),
    call(1, "exchange.declare", 0, "h", "x-consistent-hash", False, True, False, False, False, []),
    call(1, "queue.bind", 0, "q", "h", "3", False, []),
    call(1, "queue.bind", 0, "q", "e", "", False, [("x-match", Field("S", b"any")), *NESTED]),
    call(1, "queue.bind", 0, "q", "amq.topic", "#.a.*.#", False, []),
    call(1, "exchange.bind", 0, "e", "amq.fanout", "", False, []),
    call(1, "queue.unbind", 0, "q", "amq.topic", "#.a.*.#", []),
    call(1, "basic.consume", 0, "q", "t", False, False, False, False, []),
    call(1, "basic.consume", 0, "amq.rabbitmq.reply-to", "r", False, True, False, False, []),
    call(1, "basic.get", 0, "q", False), call(1, "basic.qos", 0, 3, True), call(1, "basic.cancel", "t", False),
    call(1, "basic.ack", 1, True), call(1, "basic.nack", 0, True, True), call(1, "basic.recover", True),
    call(1, "confirm.select", False), call(2, "tx.select"), call(2, "tx.commit"), call(2, "tx.rollback"),
    publish(1, "", "q", b"body"), publish(2, "amq.topic", "x.a.b", b"", LIST), publish(1, "d", "k", b"late", LIST),
    publish(1, "e", "", bytes(300), LIST, mandatory=True), call(1, "queue.purge", 0, "q", False),
    call(1, "channel.close", 200, "", 0, 0), call(1, "channel.open", ""), call(0, "connection.update-secret", b"x", "why"),
]  # fmt: skip


def damaged(chance: random.Random) -> bytes:
    """A few good frames, some of them changed."""
    frames = [chance.choice(GOOD) for _ in range(chance.randint(1, 6))]
    data = bytearray(b"".join(frames))
    kind = chance.randrange(6)
    if kind == 0:
        data[chance.randrange(len(data))] = chance.randrange(256)
    elif kind == 1:
        del data[chance.randrange(len(data)) :]
    elif kind == 2:
        at = chance.randrange(len(data))
        data[at:at] = chance.randbytes(chance.randint(1, 20))
    elif kind == 3:
        payload = chance.randbytes(chance.randint(0, 40))
        data += FRAME.pack(chance.randint(1, 8), chance.randint(0, 3), len(payload)) + payload + b"\xce"
    elif kind == 4:
        method = chance.choice(list(METHODS.values()))
        payload = method.number.to_bytes(4, "big") + chance.randbytes(chance.randint(0, 30))
        data += FRAME.pack(1, chance.randint(0, 3), len(payload)) + payload + b"\xce"
    return bytes(data)


def check(seed: int, count: int) -> None:
    chance = random.Random(seed)
    server = Server()
    neighbour = server.client()
    neighbour.declare("kept")
    neighbour.ask(publish(1, "", "kept", b"message"))
    for _ in range(count):
        peer = Peer(server)
        if chance.random() < 0.1:
            peer.raw(PROTOCOL_HEADER + damaged(chance))
        else:
            peer.handshake()
            peer.ask(call(1, "channel.open", ""), call(2, "channel.open", ""))
            data = damaged(chance)
            cut = chance.randint(0, len(data))
            for part in (data[:cut], data[cut:]):
                parse(peer.raw(part))
        peer.door.eof()
        peer.door.closed("")
        server.settle()
    assert neighbour.count("kept") == 1
    assert server.gateway.doors == {neighbour.door}


@pytest.mark.parametrize("seed", [0, 1, 8832])
def test_damaged_conversations(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    check(seed, ROUND)
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_many_damaged_conversations(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    check(seed, ROUND)
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
