"""Overload: refused early, with the reason, counted; what must never be refused is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.turn.submitted import ENTRY_BYTES, MESSAGE_ENTRIES
from gantrymq.metrics import Metrics
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.json_bodies import ConsumerData, Heartbeat, encode
from gantrymq.remoting.server import broker_door
from gantrymq.remoting.server.pressure import NEVER_SHED, SEND_BYTES
from tests.remoting.bench import Bench, answers, ask, pull_frame, request, send, send_frame


def flushed(bench: Bench) -> None:
    bench.broker.gate.advance(bench.store.written_position)


def test_one_connection_with_too_much_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_door, "UNACKED_BYTES_MAX", 9_000)
    bench = Bench(tmp_path, sync=True)
    greedy, modest = bench.connect(), bench.connect()
    frames = [send_frame(b"x" * 1_000, opaque=i) for i in range(10)]
    found = [answers(greedy.feed(frame)) for frame in frames]
    accepted = [i for i, answer in enumerate(found) if not answer]
    assert accepted == [
        0,
        1,
        2,
        3,
        4,
    ]  # 1,150 bytes each and what a send takes beside: the limit is passed by the fifth, felt by what follows it
    for answer in [answer for group in found for answer in group]:
        assert answer.code == Answer.SYSTEM_BUSY
        assert "bytes of this connection's sends wait for the disk" in (answer.remark or "")
    (answer,) = answers(greedy.feed(send_frame(b"x", opaque=50, code=320)))  # a batch, however small (and broken)
    assert answer.code in (Answer.SYSTEM_BUSY, Answer.MESSAGE_ILLEGAL)
    (answer,) = answers(greedy.feed(send_frame(b"x", opaque=51, binary=True)))
    assert answer.code == Answer.SYSTEM_BUSY
    assert modest.feed(send_frame(opaque=60)) == b""
    flushed(bench)
    assert [answer.opaque for answer in answers(greedy.feed(b""))] == accepted
    assert [answer.opaque for answer in answers(modest.feed(b""))] == [60]
    assert greedy.feed(send_frame(opaque=70)) == b""
    assert bench.doors.pressure.connection_sends == 6
    bench.close()


@pytest.mark.parametrize("binary", [False, True])
def test_empty_messages_cost_their_sender_credit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, binary: bool) -> None:
    monkeypatch.setattr(broker_door, "UNACKED_BYTES_MAX", 5 * SEND_BYTES)
    bench = Bench(tmp_path, sync=True)
    link = bench.connect()
    found = [answers(link.feed(send_frame(b"", opaque=i, binary=binary))) for i in range(10)]
    assert [bool(answer) for answer in found].index(True) in (5, 6)
    bench.close()


def test_a_large_frame_counts_whole_however_it_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_door, "UNACKED_BYTES_MAX", 50_000)
    bench = Bench(tmp_path, sync=True)
    link = bench.connect()
    frame = send_frame(b"x" * 60_000)
    for at in range(0, len(frame), 7_000):
        assert link.feed(frame[at : at + 7_000]) == b""
    (answer,) = answers(link.feed(send_frame(opaque=8)))
    assert answer.code == Answer.SYSTEM_BUSY
    # Other requests count only until they are whole.
    reader = bench.connect()
    for _ in range(30):
        reader.feed(request(9999, bytes(3_000)))
    assert reader.feed(send_frame(opaque=1)) == b""
    assert reader.feed(send_frame(opaque=2)) == b""
    bench.close()


def test_a_disk_that_does_not_move(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    link = bench.connect()
    assert link.feed(send_frame(opaque=1)) == b""
    bench.clock.advance(3_000)
    assert link.feed(send_frame(opaque=2)) == b""
    bench.clock.advance(1)
    (answer,) = answers(link.feed(send_frame(opaque=3)))
    assert (answer.code, "broker.pending_ms_max" in (answer.remark or "")) == (Answer.SYSTEM_BUSY, True)
    flushed(bench)
    assert [answer.opaque for answer in answers(link.feed(b""))] == [1, 2]
    assert link.feed(send_frame(opaque=4)) == b""
    assert bench.broker.pending.refused == 1
    bench.close()


def test_a_disk_that_takes_as_long_for_each_flush(tmp_path: Path) -> None:
    """Nobody waits in vain: what comes while nothing else waits finds out whether the disk is quicker again, all else is refused by name."""
    bench = Bench(tmp_path, sync=True)
    link = bench.connect()
    assert link.feed(send_frame(opaque=1)) == b""
    assert link.feed(send_frame(opaque=2)) == b""
    bench.clock.advance(3_000)
    flushed(bench)
    assert [answer.opaque for answer in answers(link.feed(b""))] == [1, 2]
    for opaque in (10, 20):
        assert link.feed(send_frame(opaque=opaque)) == b""
        (answer,) = answers(link.feed(send_frame(opaque=opaque + 1)))
        assert (answer.code, answer.opaque) == (Answer.SYSTEM_BUSY, opaque + 1)
        assert "broker.pending_ms_max" in (answer.remark or "")
        bench.clock.advance(3_000 if opaque == 10 else 5)
        flushed(bench)
        assert [answer.opaque for answer in answers(link.feed(b""))] == [opaque]
    for opaque in (30, 31):
        assert link.feed(send_frame(opaque=opaque)) == b"", "the disk is quick again"
    bench.close()


def test_a_disk_that_moves_slowly_is_not_stuck(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    link = bench.connect()
    for opaque in range(10):
        assert answers(link.feed(send_frame(opaque=2 * opaque))) == []
        middle = bench.store.written_position
        assert answers(link.feed(send_frame(opaque=2 * opaque + 1))) == []  # waits into the next round
        bench.clock.advance(2_900)
        bench.broker.gate.advance(middle)
        (answer,) = answers(link.feed(b""))[-1:]
        assert (answer.code, answer.opaque) == (0, 2 * opaque)
    bench.close()


def test_all_that_waits_together(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    bench.broker.config = BrokerConfig(pending_bytes_max=1_000)
    links = [bench.connect() for _ in range(9)]
    found = [answers(link.feed(send_frame(b""))) for link in links]  # empty bodies weigh as much as their records
    assert [answer.code for group in found for answer in group].count(Answer.SYSTEM_BUSY) >= 2
    assert not found[0]
    assert bench.broker.pending.bytes <= 1_000 + 200 + MESSAGE_ENTRIES * ENTRY_BYTES
    flushed(bench)
    assert bench.broker.pending.bytes == 0
    bench.close()


def test_what_is_never_shed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_door, "DEFERRED_MAX", 3)
    link = bench.connect()
    send(link)
    assert link.door is not None
    link.door.full = lambda: True  # type: ignore[attr-defined]  # it does not read
    found = answers(link.feed(b"".join(pull_frame(opaque) for opaque in range(6))))
    assert [answer.code for answer in found] == [Answer.SYSTEM_BUSY] * 2
    assert bench.doors.pressure.pulls == 2
    beat = encode(Heartbeat("c", [], [ConsumerData("g")]))
    assert ask(link, Code.HEART_BEAT, beat).code == 0
    where = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
    assert ask(link, Code.UPDATE_CONSUMER_OFFSET, **where).code == 0
    assert bench.broker.offsets.query("g", "T", 0) == 1
    assert ask(link, Code.UNREGISTER_CLIENT, clientID="c", consumerGroup="g").code == 0
    for code in NEVER_SHED:
        assert ask(link, code).code != Answer.SYSTEM_BUSY
    assert ask(link, Code.GET_MAX_OFFSET, topic="T", queueId=0).code == Answer.SYSTEM_BUSY
    assert send(link).code == 0  # sends have limits of their own


def test_heartbeats_and_offsets_pass_while_sends_are_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    link = bench.connect()
    link.feed(send_frame(opaque=1))
    bench.clock.advance(10_000)
    (answer,) = answers(link.feed(send_frame(opaque=2)))
    assert answer.code == Answer.SYSTEM_BUSY
    assert ask(link, Code.HEART_BEAT, encode(Heartbeat("c", [], [ConsumerData("g")]))).code == 0
    where = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
    assert ask(link, Code.UPDATE_CONSUMER_OFFSET, **where).code == 0
    assert ask(link, Code.GET_MAX_OFFSET, topic="T", queueId=0).code == 0
    bench.close()


def test_metrics(bench: Bench) -> None:
    metrics = Metrics()
    bench.doors.pressure.connection_sends, bench.doors.pressure.pulls = 3, 4
    bench.doors.sends.dead_letters.value = 5
    bench.doors.pressure.show(metrics, lambda: 6)
    bench.doors.sends.show(metrics)
    text = metrics.render()
    for line in (
        'gantry_busy_total{limit="connection"} 3', 'gantry_busy_total{limit="reader"} 4', 'gantry_busy_total{limit="disk"} 6',
        "gantry_dead_letters_total 5", "gantry_retries_total 0",
    ):  # fmt: skip
        assert line in text.splitlines()


def test_what_is_unfinished_has_a_number_of_its_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    link = bench.connect()
    door = link.door
    assert door is not None
    frame = send_frame(b"x" * 60_000)
    seen, last = [], 0
    for cut in (1, 5, 9, 100, 50_000):
        link.feed(frame[last:cut])
        last = cut
        seen.append(door.unfinished())
        assert (door.inbound_bytes(), door.missing_bytes()) == (cut, (8 if cut < 8 else len(frame)) - cut)
    assert len(set(seen)) == 1
    assert seen[0]
    link.feed(frame[last:] + frame[:10])
    assert door.unfinished() not in (0, seen[0])
    link.feed(frame[10:])
    assert (door.unfinished(), door.inbound_bytes(), door.missing_bytes()) == (0, 0, 0)
    bench.close()


@pytest.mark.parametrize(("busy", "code"), [(True, Answer.SYSTEM_BUSY), (False, Answer.SYSTEM_ERROR)])
def test_a_frame_that_is_given_up_is_answered_and_forgotten(tmp_path: Path, busy: bool, code: Answer) -> None:
    bench = Bench(tmp_path)
    link = bench.connect()
    door = link.door
    assert door is not None
    link.feed(send_frame(b"x" * 60_000)[:50_000])
    door.overdue("too slow (server.frame_timeout_ms)", busy)
    (answer,) = answers(link.feed(b""))
    assert (answer.code, answer.remark) == (code, "too slow (server.frame_timeout_ms)")
    assert link.closed_by == "close"
    assert door.inbound_bytes() == 0
    bench.close()
