"""tx.select, tx.commit, tx.rollback: nothing is seen before the commit, and all of it after."""

from __future__ import annotations

import pytest

from gantrymq.broker.port import ONE_PIECE
from gantrymq.model.errors import ErrorCode
from gantrymq_gateways.amqp.config import AmqpConfig
from gateways.tests.amqp.peer import Content, Peer, Server, call, publish


@pytest.fixture
def peer() -> Peer:
    peer = Server().client(1, 2)
    peer.declare("in")
    peer.declare("out")
    for number in range(4):
        peer.ask(publish(2, "", "in", b"%d" % number))
    return peer


def get(peer: Peer, queue: str, channel: int = 1, no_ack: bool = False) -> Content:
    ((_, content),) = peer.call("basic.get", 0, queue, no_ack, channel=channel)
    assert isinstance(content, Content), content
    return content


def test_commit(peer: Peer) -> None:
    assert peer.call("tx.select") == [(1, "tx.select-ok", [])]
    for _ in range(2):
        get(peer, "in")
    peer.ask(publish(1, "", "out", b"a"), call(1, "basic.ack", 1, False), publish(1, "", "out", b"b"))
    assert peer.count("out") == 0
    assert peer.call("tx.commit") == [(1, "tx.commit-ok", [])]
    assert peer.count("out") == 2
    # The second delivery was not answered: it is the only one that comes back.
    peer.call("channel.close", 200, "", 0, 0)
    assert get(peer, "in", 2).body == b"1"
    assert [get(peer, "out", 2, no_ack=True).body for _ in range(2)] == [b"a", b"b"]


def test_rollback(peer: Peer) -> None:
    peer.call("tx.select")
    get(peer, "in")
    peer.ask(publish(1, "", "out", b"a"), call(1, "basic.ack", 0, True))
    assert peer.call("tx.rollback") == [(1, "tx.rollback-ok", [])]
    assert peer.call("tx.commit") == [(1, "tx.commit-ok", [])]
    assert peer.count("out") == 0
    # The delivery waits for its answer as before.
    assert peer.call("basic.ack", 1, False) == []
    peer.call("tx.commit")
    peer.call("channel.close", 200, "", 0, 0)
    assert peer.ask(call(1, "channel.open", "")) == [(1, "channel.open-ok", [b""])]
    assert get(peer, "in").body == b"1"


def test_what_is_not_committed_is_gone_with_the_channel(peer: Peer) -> None:
    peer.call("tx.select")
    get(peer, "in")
    peer.ask(publish(1, "", "out", b"a"), call(1, "basic.ack", 1, False))
    peer.call("channel.close", 200, "", 0, 0)
    assert get(peer, "in", 2).body == b"0"
    peer.ask(call(1, "channel.open", ""))
    assert peer.count("out") == 0


def test_rejects_follow_the_commit(peer: Peer) -> None:
    peer.call("tx.select")
    for _ in range(3):
        get(peer, "in")
    peer.ask(call(1, "basic.reject", 1, True), call(1, "basic.nack", 2, False, False))
    assert peer.count("in") == 1
    peer.call("tx.commit")
    assert peer.count("in") == 2
    assert [get(peer, "in", 2).body for _ in range(2)] == [b"0", b"3"]


def test_it_is_one_submit(peer: Peer) -> None:
    peer.call("tx.select")
    peer.ask(publish(1, "", "out", b"a"), publish(1, "amq.topic", "k", b"b"))
    before = len(peer.server.port.submitted)
    peer.call("tx.commit")
    assert [[m.body for m in batch] for batch in peer.server.port.submitted[before:]] == [[b"a", b"b"]]
    assert ONE_PIECE[0][0] == 0


def test_what_no_queue_wants_is_returned_and_the_rest_is_stored(peer: Peer) -> None:
    peer.call("tx.select")
    peer.ask(
        publish(1, "", "nobody", b"a", mandatory=True), publish(1, "", "out", b"b"), publish(1, "", "nobody", b"c")
    )
    (_, returned), (_, committed, _) = peer.call("tx.commit")
    assert (returned.name, returned.body, committed) == ("basic.return", b"a", "tx.commit-ok")
    assert peer.count("out") == 1


def test_a_refused_commit_changes_nothing(peer: Peer) -> None:
    peer.call("tx.select")
    get(peer, "in")
    peer.ask(publish(1, "", "out", b"a"), call(1, "basic.ack", 1, False))
    peer.server.port.refuse = lambda message: ErrorCode.MESSAGE_TOO_LARGE
    ((_, name, reply),) = peer.call("tx.commit")
    assert (name, reply[0]) == ("channel.close", 406)
    peer.server.port.refuse = lambda message: None
    peer.ask(call(1, "channel.close-ok"), call(1, "channel.open", ""))
    assert peer.count("out") == 0
    assert get(peer, "in", 2).body == b"0"


def test_a_full_queue_refuses_the_commit(peer: Peer) -> None:
    peer.call("tx.select")
    peer.ask(publish(1, "", "out", b"a"))
    peer.server.port.refuse = lambda message: ErrorCode.QUEUE_FULL
    ((_, name, reply),) = peer.call("tx.commit")
    assert (name, reply[:2]) == ("channel.close", [406, "PRECONDITION_FAILED - partial tx completion"])


def test_a_transaction_has_a_limit() -> None:
    peer = Server(config=AmqpConfig(tx_bytes_max=65536)).client()
    peer.declare("out")
    peer.call("tx.select")
    assert peer.ask(publish(1, "", "out", bytes(60_000))) == []
    ((_, name, reply),) = peer.ask(publish(1, "", "out", bytes(6_000)))
    assert (name, reply[0]) == ("channel.close", 506)
    assert "amqp.tx_bytes_max" in reply[1]
