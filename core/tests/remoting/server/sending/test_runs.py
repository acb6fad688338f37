"""Batches whose messages are only stored go into the log as runs: what is stored is the same as message by message."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from gantrymq.broker.topics import TopicConfig
from gantrymq.client.records import decode_records
from gantrymq.model.batch import block
from gantrymq.model.properties import OWN_CRC_MARK
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.overview_codes import SEND_BLOCK
from gantrymq.remoting.server.sending.sends import Sends
from gantrymq.store.log import record
from gantrymq.store.log.run import Run, fill
from tests.remoting.bench import TOPIC, Bench, pull, send
from tests.remoting.server.sending.test_sends import batch_body

ITEMS = (
    (b"one", "site\x01a\x02TAGS\x01red\x02UNIQ_KEY\x01U1\x02"),
    (b"", "UNIQ_KEY\x01U2\x02"),
    (b"three", "KEYS\x01k1 k2\x02device_id\x017\x02__SHARDINGKEY\x01s\x02UNIQ_KEY\x01U3\x02"),
    ("größe".encode(), "TAGS\x01größe\x02UNIQ_KEY\x01U4\x02"),
)


def made(root: Path, crc: bool = False, **fields: Any) -> tuple[Any, bytes]:
    """The answer to a batch of `ITEMS`, and what is read back."""
    bench = Bench(root)
    bench.store._appender.own_crcs = crc
    try:
        bench.broker.topics.create(TopicConfig(TOPIC, 4, 4))
        link = bench.connect()
        answer = send(link, batch_body(*ITEMS), code=320, e=2, **fields)
        bench.turn.run_until_quiet()
        assert bench.broker.stats.put_total == len(ITEMS)
        found = [message.queue_offset for message in bench.store.query(TOPIC, "k2", 9, 0, 2**62)]
        assert found == [2]
        return answer, pull(link, queueId=2).body
    finally:
        bench.close()


@pytest.mark.parametrize("crc", [False, True])
def test_a_run_is_stored_as_its_messages_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crc: bool) -> None:
    runs: list[Run] = []
    monkeypatch.setattr(
        "gantrymq.remoting.server.sending.batches.fill", lambda run, *more: (runs.append(run), fill(run, *more))[1]
    )
    as_run = made(tmp_path / "run", crc)
    assert [len(run.bodies) for run in runs] == [len(ITEMS)]
    monkeypatch.setattr(Sends, "takes_run", lambda self, header: False)
    one_by_one = made(tmp_path / "messages", crc)
    assert as_run[0].fields == one_by_one[0].fields
    assert as_run[1] == one_by_one[1]
    assert len(runs) == 1
    assert len(decode_records(as_run[1], check_crc=True)) == len(ITEMS)
    assert as_run[1].count(OWN_CRC_MARK) == crc * len(ITEMS)


@pytest.mark.parametrize(
    "odd",
    [(b"x", "UNIQ_KEY\x01U9\x02MYTAGS\x01a\x02"), (b"x", "p\x01v\x02"), (b"x", "UNIQ_KEY\x01U9\x02REPLY_TO_CLIENT\x01c\x02"),
     (b"x", "TAGS\x01" + "t" * 5000 + "\x02UNIQ_KEY\x01U9\x02"), (b"x", "UNIQ_KEY\x01U9"), (b"x", "UNIQ_KEY\x01U9\x02__CRC32#\x010123456789\x02"), (b"x", "UNIQ_KEY\x01U9\x02a\x01\0\x02")],
)  # fmt: skip
def test_what_is_not_ordinary_is_looked_at_alone(odd: tuple[bytes, str]) -> None:
    body = batch_body(*ITEMS, odd)
    assert fill(Run("T", 0, 1, b""), body, 0, 9, 100, 9000, 9000) == -1
    assert fill(Run("T", 0, 1, b""), body, 0, len(ITEMS), 100, 9000, 9000) > 0


@pytest.mark.parametrize("limits", [(4, 9000, 9000), (100, 50, 9000), (100, 9000, 40)])
def test_limits_of_a_run(limits: tuple[int, int, int]) -> None:
    assert fill(Run("T", 0, 1, b""), batch_body(*ITEMS), 0, 9, *limits) == -1


def test_every_cut_is_noticed() -> None:
    body = batch_body(*ITEMS)
    whole = [0]
    for item in ITEMS:
        whole.append(whole[-1] + len(batch_body(item)))
    for end in range(len(body)):
        run = Run("T", 0, 1, b"")
        assert (fill(run, body[:end], 0, 9, 100, 9000, 9000) == end) == (end in whole)


PREFIX = b"0123456789ABCDEF0123"
ROWS = (
    (b"one", b"site\x01a\x02", b"red", b"k1 k2"),
    (b"", b"", b"", b"k3"),
    (b"three", b"device_id\x017\x02__SHARDINGKEY\x01s\x02", b"red", b""),
    ("größe".encode(), b"", "größe".encode(), b"k3"),
)


def block_body(*rows: tuple[bytes, bytes, bytes, bytes], first: int = 0xFFE) -> bytes:
    return block.encode(PREFIX, first, *[list(column) for column in zip(*rows, strict=True)])


def as_items(body: bytes) -> bytes:
    """The same messages as items of a batch, with the flag that a block's have."""
    return b"".join(
        struct.pack(">iiiii", 22 + len(one) + len(text), 0, 0, 0, len(one)) + one + struct.pack(">H", len(text)) + text
        for one, text in block.parse(body, 1000).messages()
    )


def sent(root: Path, body: bytes, code: int, crc: bool) -> tuple[Any, bytes, tuple[list[int], ...], dict[str, bytes]]:
    """Answer, what is read back, offsets that queries find, and the files, of a batch that is sent to a broker of its own."""
    bench = Bench(root)
    bench.store._appender.own_crcs = crc
    try:
        bench.broker.topics.create(TopicConfig(TOPIC, 4, 4))
        link = bench.connect()
        answer = send(link, body, code=code, e=2)
        waiting = [message.queue_offset for message in bench.store.query(TOPIC, "k3", 9, 0, 2**62)]
        bench.turn.run_until_quiet()
        bench.store._index_some(1 << 30)
        assert bench.store.index_lag_records == 0
        indexed = [message.queue_offset for message in bench.store.query(TOPIC, "k3", 9, 0, 2**62)]
        unique = [
            message.queue_offset
            for number in range(0xFFE, 0x1002)
            for message in bench.store.query(TOPIC, f"{PREFIX.decode()}{number:012X}", 9, 0, 2**62)
        ]
        found = pull(link, queueId=2).body
    finally:
        bench.close()
    folders = ("commitlog", "consumequeue", "index")
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for folder in folders
        for path in sorted((root / "store" / folder).rglob("*"))
        if path.is_file()
    }
    assert len(files) > len(folders)
    return answer, found, (waiting, indexed, unique), files


@pytest.mark.parametrize("crc", [False, True])
def test_a_block_is_stored_as_its_messages_would_be(tmp_path: Path, crc: bool) -> None:
    body = block_body(*ROWS)
    found, other = sent(tmp_path / "block", body, SEND_BLOCK, crc), sent(tmp_path / "items", as_items(body), 320, crc)
    assert found[1:] == other[1:]
    assert found[2] == ([3, 1], [3, 1], [0, 1, 2, 3])
    records = decode_records(found[1], check_crc=True)
    assert [(one.body, one.tag, one.keys) for one in records] == [
        (b"one", "red", "k1 k2"), (b"", "", "k3"), (b"three", "red", ""), ("größe".encode(), "größe", "k3"),
    ]  # fmt: skip
    answer = found[0]
    places = struct.unpack(">4q", answer.body)
    assert other[0].fields["msgId"] == ",".join([f"7F00000100002A9F{place:016X}" for place in places])
    assert answer.fields == {**other[0].fields, "msgId": f"7F00000100002A9F{places[0]:016X}"}


@pytest.mark.parametrize("keys", ["k3", "k3 k%d", "größe k3", "%s k3" % ("l" * 65)])
@pytest.mark.parametrize("differ", [False, True])
def test_many_items_are_indexed_as_each_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str, differ: bool
) -> None:
    """Hashes of many keys are made together, whatever the keys are and however many a message has."""
    items = [
        (b"%d" % number, f"KEYS\x01{keys.replace('%d', str(number))}\x02" * (not differ or number % 3 > 0) + f"UNIQ_KEY\x01{PREFIX.decode()}{number:012X}\x02")
        for number in range(0xFFE, 0x1002 + 90)
    ]  # fmt: skip
    together = sent(tmp_path / "run", batch_body(*items), 320, False)
    monkeypatch.setattr(Sends, "takes_run", lambda self, header: False)
    alone = sent(tmp_path / "messages", batch_body(*items), 320, False)
    assert together[1:] == alone[1:]
    assert (len(together[2][0]), together[2][2]) == (9, [0, 1, 2, 3])


@pytest.mark.parametrize("crc", [False, True])
def test_a_block_goes_over_the_end_of_a_segment(tmp_path: Path, crc: bool) -> None:
    rows = [
        (b"x" * (number * 7919 % 40_000), b"n\x01%d\x02" % number, b"t%d" % (number % 3), b"k%d" % (number % 9))
        for number in range(80)
    ]
    body = block_body(*rows)
    found = sent(tmp_path / "block", body, SEND_BLOCK, crc)
    other = sent(tmp_path / "items", as_items(body), 320, crc)
    assert found[1:] == other[1:]
    assert len([name for name in found[3] if "commitlog" in name]) > 1
    assert len(struct.unpack(">80q", found[0].body)) == 80


@pytest.mark.parametrize(
    "row",
    [
        (b"x", b"DELAY\x011\x02", b"", b""),
        (b"x", b"TRAN_MSG\x01true\x02", b"", b""),
        (b"x", b"TIMER_DELIVER_MS\x011\x02", b"", b""),
    ],
)
def test_a_block_takes_nothing_special(bench: Bench, row: tuple[bytes, bytes, bytes, bytes]) -> None:
    bench.broker.topics.create(TopicConfig(TOPIC, 4, 4))
    answer = send(bench.connect(), block_body(*ROWS, row), code=SEND_BLOCK, e=2)
    assert answer.code == Answer.MESSAGE_ILLEGAL
    assert bench.store.max_offset(TOPIC, 2) == 0


def test_a_block_that_looks_special_is_taken_message_by_message(bench: Bench) -> None:
    bench.broker.topics.create(TopicConfig(TOPIC, 4, 4))
    link = bench.connect()
    answer = send(link, block_body(*ROWS, (b"x", b"state\x01DELAYED\x02", b"t", b"k")), code=SEND_BLOCK, e=2)
    assert answer.code == Answer.SUCCESS, answer.remark
    assert len(answer.body) == 8 * 5
    assert [one.property_map().get("state") for one in decode_records(pull(link, queueId=2).body)][4] == "DELAYED"


@pytest.mark.parametrize("body", [b"", b"GBLK", block_body(*ROWS)[:-1], batch_body(*ITEMS)])
def test_what_is_no_block(bench: Bench, body: bytes) -> None:
    bench.broker.topics.create(TopicConfig(TOPIC, 4, 4))
    answer = send(bench.connect(), body, code=SEND_BLOCK, e=2)
    assert answer.code == Answer.MESSAGE_ILLEGAL
    assert str(answer.remark).startswith("block: ")


def test_large_messages_of_a_block_are_refused(bench: Bench) -> None:
    bench.broker.topics.create(TopicConfig(TOPIC, 4, 4))
    row = (b"x", b"a\x01" + b"v" * 40_000 + b"\x02", b"", b"")
    answer = send(bench.connect(), block_body(*ROWS, row), code=SEND_BLOCK, e=2)
    assert answer.code == Answer.MESSAGE_ILLEGAL
    assert "message 4 of the batch" in str(answer.remark)
    assert bench.store.max_offset(TOPIC, 2) == 0


def test_a_full_disk_leaves_nothing_of_a_block(bench: Bench) -> None:
    bench.broker.topics.create(TopicConfig(TOPIC, 4, 4))
    bench.turn.run_until_quiet()
    link = bench.connect()
    bench.files.full = True
    try:
        assert send(link, block_body(*ROWS), code=SEND_BLOCK, e=2).code != Answer.SUCCESS
    finally:
        bench.files.full = False
    bench.turn.run_until_quiet()
    assert bench.store.max_offset(TOPIC, 2) == 0
    assert bench.store.query(TOPIC, "k3", 9, 0, 2**62) == []
    assert (bench.store._appender.hashed, bench.store._appender.hashed_more) == ({}, 0)
    assert send(link, block_body(*ROWS), code=SEND_BLOCK, e=2).code == Answer.SUCCESS
    assert bench.store.max_offset(TOPIC, 2) == 4


def test_whom_routes_concern_gets_each_message(tmp_path: Path) -> None:
    """A route that comes between the look at the batch and its turn: it is to be sent again."""
    bench = Bench(tmp_path)
    try:
        topic = bench.broker.topics.create(TopicConfig(TOPIC, 4, 4))
        run = Run(TOPIC, 0, 1, b"")
        fill(run, batch_body(*ITEMS), 0, 9, 100, 9000, 9000)
        topic.routed = True
        results: list[Any] = []
        bench.broker.submit([run], None, lambda token, result: results.append(result))
        bench.turn.run_until_quiet()
        assert [code.name for code in results[0]] == ["BUSY"]
        assert bench.store.max_offset(TOPIC, 0) == 0
    finally:
        bench.close()


def test_a_full_disk_leaves_nothing_of_a_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    try:
        bench.broker.topics.create(TopicConfig(TOPIC, 4, 4))
        bench.turn.run_until_quiet()
        link = bench.connect()
        bench.files.full = True
        assert send(link, batch_body(*ITEMS), code=320, e=2).code != Answer.SUCCESS
        bench.files.full = False
        bench.turn.run_until_quiet()
        assert bench.store.max_offset(TOPIC, 2) == 0
    finally:
        bench.files.full = False
        bench.close()


def test_a_run_goes_over_the_end_of_a_segment(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    try:
        bench.broker.topics.create(TopicConfig(TOPIC, 4, 4))
        link = bench.connect()
        items = [(bytes(9000), f"UNIQ_KEY\x01U{number}\x02") for number in range(40)]
        for _ in range(4):  # segments of 1 MiB
            assert send(link, batch_body(*items), code=320, e=1).code == Answer.SUCCESS
        assert bench.store.max_offset(TOPIC, 1) == 160
        (last,) = bench.store.query(TOPIC, "U39", 1, 0, 2**62)
        assert len(last.body) == 9000
        assert record.encode(last)
    finally:
        bench.close()
