"""A decision that is told by its likeness says what the general way says, or is left to it; several at once have the fates that each would have."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.broker import transactions
from gantrymq.broker.transaction_halves import HALF_TOPIC, OP_TOPIC
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.testing import FakeLink
from gantrymq.remoting import codec
from gantrymq.remoting.codec import Command, FrameReader, encode
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.end_shapes import Ends, EndShapes
from gantrymq.remoting.send_shapes import HEADER_BYTES_MAX
from gantrymq.remoting.shape_table import SHAPES_MAX, SHAPES_PER_LENGTH
from tests.remoting.bench import Bench, answers, request, send
from tests.remoting.test_transaction_requests import COMMIT, ROLLBACK, decide, decision, half, stored

FIELDS = {
    "commitLogOffset": "123456", "commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": "7F00AB01",
    "producerGroup": "group", "topic": "topic", "tranStateTableOffset": "41", "transactionId": "7F00AB01",
}  # fmt: skip


@pytest.fixture(autouse=True)
def forget() -> None:
    """What other tests decided."""
    codec._end_shapes.forget()


def fields_of(offset: int, position: int = 123789, unique: str = "7F00AB02") -> dict[str, str]:
    named = {"tranStateTableOffset": str(offset), "commitLogOffset": str(position)}
    return FIELDS | named | {"msgId": unique, "transactionId": unique}


def frame_of(fields: dict[str, str], opaque: int = 17, flag: int = 2, body: bytes = b"") -> bytes:
    return encode(Command(Code.END_TRANSACTION, fields, body, opaque, flag, language=0))


def is_alike(first: bytes, second: bytes) -> bool:
    """Whether a reader that had `first` tells `second` from it."""
    reader = FrameReader(typed_sends=True)
    reader.read(first)
    (found,) = reader.read(second)
    return isinstance(found, Ends)


@pytest.mark.parametrize("flag", [0, 2])
@pytest.mark.parametrize("ids", [{"msgId", "transactionId"}, {"msgId"}, {"transactionId"}, set()])
@pytest.mark.parametrize("backwards", [False, True])
def test_place_ids_and_opaque_may_differ(flag: int, ids: set[str], backwards: bool) -> None:
    left_out = {"msgId", "transactionId"} - ids
    first, second = (
        {name: fields[name] for name in sorted(fields, reverse=backwards) if name not in left_out}
        for fields in (FIELDS, fields_of(43))
    )
    assert is_alike(frame_of(first, flag=flag), frame_of(second, 99, flag))
    reader = FrameReader(typed_sends=True)
    reader.read(frame_of(first, flag=flag))
    (command,) = reader.feed(frame_of(second, 99, flag))
    assert command == FrameReader().feed(frame_of(second, 99, flag))[0]
    assert (command.opaque, command.flag) == (99, flag)


@pytest.mark.parametrize(
    "more",
    [
        {"producerGroup": "grouq"},
        {"topic": "topid"},
        {"commitOrRollback": "0"},
        {"fromTransactionCheck": "truth"},
        {"tranStateTableOffset": "4_"},
        {"tranStateTableOffset": " 1"},
        {"tranStateTableOffset": "01"},
        {"commitLogOffset": "-12345"},
        {"commitLogOffset": "012345"},
        {"msgId": "7F00AB0\\"},
        {"transactionId": '7F00AB"2'},
        {"transactionId": "7F00AB012"},
    ],
)
def test_anything_else_goes_the_general_way(more: dict[str, str]) -> None:
    assert is_alike(frame_of(FIELDS), frame_of(fields_of(42)))
    assert not is_alike(frame_of(FIELDS), frame_of(FIELDS | more))


def test_bodies_long_headers_and_answers_are_not_learned() -> None:
    long = FIELDS | {"topic": "t" * HEADER_BYTES_MAX}
    twice = FIELDS | {"producerGroup": '","msgId":"1'}
    for frame in (frame_of(FIELDS, body=b"x"), frame_of(long), frame_of(FIELDS, flag=1), frame_of(FIELDS, flag=6)):
        assert not is_alike(frame, frame)
    assert is_alike(frame_of(twice), frame_of(twice))  # what stands in a value is escaped
    assert not is_alike(frame_of(FIELDS), frame_of(fields_of(42), body=b"x"))


def test_what_was_read_with_a_decision_is_not_kept_for_it() -> None:
    """It may wait for the disk; a send beside it that was refused must not."""
    reader = FrameReader(typed_sends=True)
    reader.read(frame_of(FIELDS))
    data = encode(Command(Code.HEART_BEAT, {}, bytes(1 << 20))) + frame_of(fields_of(42)) + frame_of(fields_of(43))
    before = sys.getrefcount(data)
    _, found = reader.read(data)
    assert isinstance(found, Ends)
    assert sys.getrefcount(data) == before
    assert [command.fields for command in codec.as_commands([found])] == [fields_of(42), fields_of(43)]


def test_an_opaque_that_is_no_plain_number_of_32_bits_goes_the_general_way() -> None:
    for first, opaque in ((17, b"07"), (17, b" 7"), (17, b"-7"), (2_000_000_000, b"2147483648")):
        odd = frame_of(FIELDS, first).replace(b'"opaque":%d' % first, b'"opaque":' + opaque)
        reader = FrameReader(typed_sends=True)
        reader.read(frame_of(FIELDS, first))
        try:
            fresh: Any = FrameReader().feed(odd)[0].opaque
        except codec.FrameError:
            fresh = None
        try:
            assert reader.feed(odd)[0].opaque == fresh
        except codec.FrameError:
            assert fresh is None


@given(
    st.lists(st.tuples(st.integers(0, 120), st.integers(90, 110), st.integers(0, 12), st.sampled_from("abc")), max_size=12),
    st.lists(st.integers(1, 4000), max_size=4),
)  # fmt: skip
def test_any_stream_means_the_same_whatever_was_before(rows: list[tuple[int, int, int, str]], cuts: list[int]) -> None:
    frames = []
    for offset, position, opaque, kind in rows:
        fields = (
            fields_of(offset, position, f"7F{position}") if kind != "c" else {"topic": "topic", "subscription": "*"}
        )
        code = Code.PULL_MESSAGE if kind == "c" else Code.END_TRANSACTION
        frames.append(encode(Command(code, fields, b"", opaque, 2 if kind == "a" else 0, language=0)))
    data = b"".join(frames)
    edges = sorted({0, len(data), *[cut for cut in cuts if cut < len(data)]})
    reader = FrameReader(typed_sends=True)
    found = [one for begin, end in pairwise(edges) for one in reader.feed(data[begin:end])]
    assert found == FrameReader().feed(data)


def test_shapes_are_bounded() -> None:
    assert (SHAPES_MAX, SHAPES_PER_LENGTH) == (1024, 8)
    known = EndShapes()

    def decode(probe: bytes) -> tuple[dict[str, str], int]:
        command = codec.decode_json_header(probe, b"")
        return command.fields, command.opaque

    def learn(fields: dict[str, str]) -> None:
        known.learn(frame_of(fields)[8:], fields, 2, decode)

    for number in range(SHAPES_PER_LENGTH + 2):
        learn(FIELDS | {"producerGroup": f"group{number:02}"})
    assert [len(shapes) for shapes in known._shapes.values()] == [SHAPES_PER_LENGTH]
    for size in range(1, 200):
        for number in range(SHAPES_PER_LENGTH):
            learn(FIELDS | {"topic": f"t{number}".ljust(size + 2, "t")})
    assert sum(map(len, known._shapes.values())) <= SHAPES_MAX


# What a broker makes of them.


def decisions(made: list[Command], kind: int = COMMIT, flag: int = 0, **fields: Any) -> bytes:
    """Frames of one length, opaques from 20 on."""
    rows = [decision(answer, kind, **fields) for answer in made]
    return b"".join([request(Code.END_TRANSACTION, b"", 20 + at, flag=flag, **row) for at, row in enumerate(rows)])


def halves(link: FakeLink, first: int, count: int) -> list[Command]:
    return [half(link, f"u{number}") for number in range(first, first + count)]


def learned(link: FakeLink, kind: int = COMMIT, flag: int = 0) -> None:
    """The shape of decisions is known; positions have five digits from here on."""
    send(link, bytes(10_000))
    link.feed(decisions(halves(link, 1, 1), kind, flag))
    assert codec._end_shapes._shapes


@pytest.fixture
def batches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Of decisions that were told by their likeness: how many, and whether they were committed together."""
    found: list[tuple[int, bool]] = []
    all_ = bench.broker.transactions
    original = all_.commit_young

    def commit_young(group: str, places: list[tuple[int, int]], token: Any, on_done: Any) -> bool:
        found.append((len(places), False))
        done = original(group, places, token, on_done)
        found[-1] = len(places), done
        return done

    monkeypatch.setattr(all_, "commit_young", commit_young)
    return found


@pytest.mark.parametrize("flag", [0, 2])
def test_commits_of_one_read_are_stored_together_and_answered(
    bench: Bench, batches: list[tuple[int, bool]], flag: int
) -> None:
    link = bench.connect()
    learned(link, flag=flag)
    made = halves(link, 2, 4)
    assert stored(link) == [b"body of u1"]
    found = answers(link.feed(decisions(made, flag=flag)))
    assert batches == [(4, True)]
    assert [(one.code, one.opaque) for one in found] == ([(0, 20), (0, 21), (0, 22), (0, 23)] if flag == 0 else [])
    assert stored(link) == [b"body of u%d" % number for number in range(1, 6)]
    all_ = bench.broker.transactions
    assert (all_.pending, all_.decided[1], all_.kept_bytes, all_.table) == (0, 5, 0, {})
    assert [unit[2] for unit in bench.store.units(OP_TOPIC, 0, 0, 9)] != []
    assert bench.store.max_offset(OP_TOPIC, 0) == 2  # a record for each read
    assert decide(link, made[0], ROLLBACK).code == 604
    assert decide(link, made[1], COMMIT).code == 0
    assert len(stored(link)) == 5


def test_one_that_is_refused_does_not_keep_the_others_from_their_fates(
    bench: Bench, batches: list[tuple[int, bool]]
) -> None:
    link = bench.connect()
    learned(link)
    made = halves(link, 2, 4)
    assert decide(link, made[1], ROLLBACK).code == 0
    found = answers(link.feed(decisions(made)))
    assert batches[-1] == (4, False)
    assert [one.code for one in found if one.opaque != 21] == [0, 0, 0]
    assert [one.code for one in found if one.opaque == 21] == [604]
    assert stored(link) == [b"body of u1", b"body of u2", b"body of u4", b"body of u5"]


def test_the_same_one_twice_in_a_read_is_committed_once(bench: Bench, batches: list[tuple[int, bool]]) -> None:
    link = bench.connect()
    learned(link)
    made = halves(link, 2, 2)
    found = answers(link.feed(decisions([made[0], made[1], made[0]])))
    assert batches == [(3, False)]
    assert sorted((one.opaque, one.code) for one in found) == [(20, 0), (21, 0), (22, Answer.SYSTEM_BUSY)]
    assert stored(link) == [b"body of u1", b"body of u2", b"body of u3"]


def test_rollbacks_of_one_read(bench: Bench) -> None:
    link = bench.connect()
    learned(link, ROLLBACK)
    found = answers(link.feed(decisions(halves(link, 2, 3), ROLLBACK)))
    assert [(one.code, one.opaque) for one in found] == [(0, 20), (0, 21), (0, 22)]
    assert stored(link) == []
    assert bench.broker.transactions.decided == {1: 0, 2: 4, 3: 0}


def test_the_checks_of_a_decision_hold_for_several(bench: Bench, batches: list[tuple[int, bool]]) -> None:
    link = bench.connect()
    learned(link)
    link.feed(decisions(halves(link, 2, 1), producerGroup="PX"))
    made = [*halves(link, 3, 2), half(link, "u5", "CHECK_IMMUNITY_TIME_IN_SECONDS\x018\x02", g=bench.clock.now_ms())]
    found = answers(link.feed(decisions(made, producerGroup="PX")))
    assert batches[-1] == (3, False)
    assert {(one.code, one.remark) for one in found} == {(Answer.SYSTEM_ERROR, "The producer group wrong")}
    bench.wheel.advance(8_001)
    assert [one.code for one in answers(link.feed(decisions(made[2:] + made[:2])))].count(604) == 1
    assert batches[-1] == (3, False)
    assert stored(link) == [b"body of u1", b"body of u3", b"body of u4"]


def test_those_that_are_not_kept_whole_are_read(bench: Bench, batches: list[tuple[int, bool]]) -> None:
    link = bench.connect()
    learned(link)
    made = halves(link, 2, 3)
    all_ = bench.broker.transactions
    all_.drop_message(all_.table[2])
    assert [one.code for one in answers(link.feed(decisions(made)))] == [0, 0, 0]
    assert batches == [(3, False)]
    assert stored(link) == [b"body of u%d" % number for number in range(1, 5)]


def test_a_batch_that_was_not_written_decides_nothing(bench: Bench, batches: list[tuple[int, bool]]) -> None:
    link = bench.connect()
    learned(link)
    made = halves(link, 2, 3)
    bench.files.full = True
    found = answers(link.feed(decisions(made)))
    assert [one.code for one in found] == [Answer.SERVICE_NOT_AVAILABLE] * 3
    bench.files.full = False
    assert stored(link) == [b"body of u1"]
    assert [one.code for one in answers(link.feed(decisions(made)))] == [0, 0, 0]
    assert batches == [(3, True)] * 2
    assert stored(link) == [b"body of u%d" % number for number in range(1, 5)]
    assert bench.store.max_offset(HALF_TOPIC, 0) == 4


def test_light_queues_that_cannot_be_made_refuse_each_by_itself(
    bench: Bench, batches: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    link = bench.connect()
    learned(link)
    made = [half(link, f"u{number}", "INNER_MULTI_DISPATCH\x01%LMQ%x\x02") for number in (2, 3)]

    def refuse(*_arguments: object) -> None:
        raise GantryError(ErrorCode.TOPIC_LIMIT, "too many")

    monkeypatch.setattr(transactions, "keep_readable", refuse)  # as a light queue that cannot be made does
    found = answers(link.feed(decisions(made)))
    assert batches == [(2, False)]
    assert [(one.opaque, one.remark) for one in found] == [(20, "too many"), (21, "too many")]
    assert bench.broker.transactions.pending == 2


def test_commits_of_one_read_wait_for_the_flush(tmp_path: Any) -> None:
    bench = Bench(tmp_path, sync=True)
    link = bench.connect()

    def flushed(data: bytes) -> list[Command]:
        return answers(data) + answers(_flush(bench, link))

    made: list[Command] = []
    for number in range(1, 4):
        text = f"TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01u{number}\x02"
        fields = {"a": "p", "b": "T", "c": "TBW102", "d": 4, "e": 1, "f": 4, "g": 1, "h": 0, "i": text, "j": 0}
        made += flushed(link.feed(request(Code.SEND_MESSAGE_V2, b"x", **fields)))
    assert [one.code for one in flushed(link.feed(decisions(made[:1])))] == [0]
    assert link.feed(decisions(made[1:])) == b""
    assert [(one.code, one.opaque) for one in answers(_flush(bench, link))] == [(0, 20), (0, 21)]


def _flush(bench: Bench, link: FakeLink) -> bytes:
    bench.broker.gate.advance(bench.store.flush())
    bench.turn.run_until_quiet()
    return link.take()
