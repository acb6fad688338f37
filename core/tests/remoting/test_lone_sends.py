"""Sends that come alone in their reads: one batch for all connections of a turn, and every promise of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.broker.topics import FLUSH, TopicConfig
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.testing import FakeLink
from gantrymq.remoting import codec
from gantrymq.remoting.broker_door import BrokerDoor
from gantrymq.remoting.codec import FrameError, FrameReader
from tests.remoting.bench import TOPIC, Bench, answers, send_frame


@pytest.fixture(autouse=True)
def forget() -> None:
    """What other tests sent."""
    codec._send_shapes.forget()


def frame(number: int, body: bytes = b"body", topic: str = TOPIC, tag: str = "t") -> bytes:
    return send_frame(body, f"UNIQ_KEY\x01AB{number:04d}\x02TAGS\x01{tag}\x02", opaque=100 + number, b=topic)


def knowing(bench: Bench, count: int, topic: str = TOPIC) -> list[FakeLink]:
    """Connections that have sent before, so that their next sends are told by their likeness."""
    links = [bench.connect(f"127.0.0.1:{50_000 + number}") for number in range(count)]
    for number, link in enumerate(links):
        link.feed(frame(number, topic=topic))
    return links


def receive(link: FakeLink, data: bytes) -> None:
    """As `feed`, without the turn."""
    assert link.door is not None
    link.door.received(data)


def opaques(data: bytes) -> list[int]:
    return [answer.opaque for answer in answers(data)]


def stored(bench: Bench) -> list[bytes]:
    """Bodies in the order of the queue."""
    units = bench.store.units(TOPIC, 0, 0, 100)
    return [
        message.body for message in bench.store.get_many([(at, size) for at, size, _ in units]) if message is not None
    ]


def counts(bench: Bench) -> tuple[int, int]:
    """(appends, batches that were answered in their turn) until now."""
    times = bench.broker.pending.times
    return sum(times.batch_messages.counts), sum(times.send_seconds.counts)


def test_those_of_one_turn_are_one_batch(bench: Bench) -> None:
    links = knowing(bench, 5)
    appends, batches = counts(bench)
    for number, link in enumerate(links):
        receive(link, frame(10 + number, b"m%d" % number))
    bench.turn.run_until_quiet()
    assert counts(bench) == (appends + 1, batches + 1)
    assert stored(bench)[5:] == [b"m0", b"m1", b"m2", b"m3", b"m4"]
    assert [opaques(link.take()) for link in links] == [[110], [111], [112], [113], [114]]
    receive(links[0], frame(20, b"next"))
    bench.turn.run_until_quiet()
    assert counts(bench) == (appends + 2, batches + 2)
    assert (stored(bench)[10:], opaques(links[0].take())) == ([b"next"], [120])


def test_a_connection_keeps_its_order_whichever_way_its_sends_go(bench: Bench) -> None:
    one, two = knowing(bench, 2)
    receive(one, frame(10, b"a"))
    receive(two, frame(11, b"b") + frame(12, b"c"))
    receive(two, frame(13, b"d"))
    receive(one, frame(14, b"e"))
    bench.turn.run_until_quiet()
    assert stored(bench)[2:] == [b"a", b"b", b"c", b"d", b"e"]
    assert (opaques(one.take()), opaques(two.take())) == ([110, 114], [111, 112, 113])


def test_nobody_waits_for_the_disk_because_of_anothers_topic(bench: Bench) -> None:
    bench.broker.topics.create(TopicConfig("Strict", 4, 4, attributes={FLUSH: "sync"}))
    bench.turn.run_until_quiet()
    (careful,) = knowing(bench, 1, "Strict")
    (careless,) = knowing(bench, 1)
    for number, (link, topic) in enumerate(((careless, TOPIC), (careful, "Strict"), (careless, TOPIC))):
        receive(link, frame(10 + number, topic=topic))
    bench.turn.run_until_quiet()
    assert (opaques(careless.take()), opaques(careful.take())) == ([110, 112], [])
    bench.broker.gate.advance(bench.store.written_position)
    bench.turn.run_until_quiet()
    assert opaques(careful.take()) == [100, 111]


def test_synchronous_flush_answers_when_flushed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    links = knowing(bench, 2)
    bench.broker.gate.advance(bench.store.written_position)
    bench.turn.run_until_quiet()
    for link in links:
        link.take()
        receive(link, frame(10))
    bench.turn.run_until_quiet()
    assert [link.take() for link in links] == [b"", b""]
    assert links[0].door is not None
    links[0].door.shutdown()
    closed = [links[0].closed_by]
    bench.broker.gate.advance(bench.store.written_position)
    bench.turn.run_until_quiet()
    assert [opaques(link.take()) for link in links] == [[110], [110]]
    assert [*closed, links[0].closed_by] == [None, "close"]
    bench.close()


def test_one_that_is_refused_is_told_so_and_the_others_are_stored(bench: Bench) -> None:
    one, two = knowing(bench, 2)
    two.feed(frame(1, b"x" * 100, tag="u"))
    receive(one, frame(10))
    receive(two, frame(11, bytes(5 << 20)))
    bench.turn.run_until_quiet()
    (answer,) = answers(two.take())
    assert (answer.opaque, answer.code, opaques(one.take())) == (111, 13, [110])
    assert "its body has 5242880 bytes" in (answer.remark or "")


def test_a_store_that_fails_is_told_to_each(bench: Bench) -> None:
    links = knowing(bench, 3)
    bench.files.full = True
    for number, link in enumerate(links):
        receive(link, frame(10 + number))
    bench.turn.run_until_quiet()
    found = [answers(link.take()) for link in links]
    assert [[(answer.opaque, answer.code) for answer in each] for each in found] == [
        [(110, 14)],
        [(111, 14)],
        [(112, 14)],
    ]


def test_a_broker_that_answers_with_one_error(bench: Bench) -> None:
    """`Broker` gives one error for a whole batch where its gate has failed."""
    links = knowing(bench, 2)
    bench.broker.gate.fail(GantryError(ErrorCode.STORE_FAILED, "the disk is gone"))
    for link in links:
        receive(link, frame(10))
    bench.turn.run_until_quiet()
    assert [[answer.code for answer in answers(link.take())] for link in links] == [[14], [14]]


def test_a_connection_that_is_gone_or_closing(bench: Bench) -> None:
    one, two, three = knowing(bench, 3)
    for link in (one, two, three):
        receive(link, frame(10))
    one.lose()
    assert two.door is not None
    two.door.shutdown()
    bench.turn.run_until_quiet()
    assert (one.take(), opaques(two.take()), two.closed_by, opaques(three.take())) == (b"", [110], "close", [110])


def test_too_much_that_waits_refuses_also_what_comes_alone(bench: Bench) -> None:
    (link,) = knowing(bench, 1)
    assert link.door is not None
    link.door.batch_begins(1 << 40)  # type: ignore[attr-defined]
    assert [answer.code for answer in answers(link.feed(frame(10)))] == [2]


@pytest.mark.parametrize("cut", [1, 4, 7, 8, 20, -1])
def test_a_frame_in_two_reads_is_not_alone(cut: int) -> None:
    reader = FrameReader(typed_sends=True)
    reader.read(frame(1))
    data = frame(2)
    assert reader.lone(data[:cut]) is None
    assert reader.read(data[:cut]) == []
    assert reader.lone(data[cut:]) is None
    (found,) = reader.read(data[cut:])
    assert found[4] == 102  # type: ignore[index]
    again = reader.lone(data)
    assert again is not None
    assert again[4] == 102
    assert reader.lone(data + data) is None


def test_a_header_longer_than_its_frame_is_not_alone() -> None:
    reader = FrameReader(typed_sends=True)
    reader.read(frame(1))
    data = frame(2)[:-10]
    data = (len(data) - 4).to_bytes(4, "big") + data[4:]
    assert reader.lone(data) is None


def test_nothing_is_alone_behind_what_is_no_frame() -> None:
    reader = FrameReader(typed_sends=True)
    reader.read(frame(1))
    assert reader.lone(frame(2)) is not None
    with pytest.raises(FrameError):
        reader.read(b"GET / HTTP/1.1\r\n")
    assert reader.lone(frame(3)) is None


def test_an_answer_goes_behind_those_that_wait(bench: Bench) -> None:
    one, two = knowing(bench, 2)
    receive(one, frame(10))
    receive(two, frame(11))
    assert isinstance(one.door, BrokerDoor)
    one.door.push(40, {})
    bench.turn.run_until_quiet()
    assert (one.writes, opaques(one.take())) == (2, [1, 110]), "one write for its first send, one for both of this turn"
    assert opaques(two.take()) == [111]


def test_what_is_answered_while_it_is_read_is_written_then(bench: Bench) -> None:
    (link,) = knowing(bench, 1)
    receive(link, codec.encode(codec.Command(30, {"topic": TOPIC, "queueId": "0"}, b"", 7)))
    assert opaques(link.take()) == [7], "without waiting for the turn"
    receive(link, codec.encode(codec.Command(30, {"topic": TOPIC, "queueId": "0"}, b"", 8)) + frame(10))
    assert link.take() == b"", "the send's answer is still to come: one write for both"
    bench.turn.run_until_quiet()
    assert opaques(link.take()) == [8, 110]
