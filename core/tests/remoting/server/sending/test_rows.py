"""Rows: many messages as one half message, and batches that are stored once however often they are sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq.broker.topics import TopicConfig
from gantrymq.model.batch import block
from gantrymq.net.testing import FakeLink
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.overview_codes import LIST_OWN_TRANSACTIONS, SEND_HALF_ROWS, SEND_ROWS_ONCE
from gantrymq.store.log import record
from tests.remoting.bench import TOPIC, Bench, ask, pull, send
from tests.remoting.server.sending.test_sends import batch_body

COMMIT, ROLLBACK = 8, 12


PREFIX = b"0123456789ABCDEF0123"
BLOCKS = [False]
"""Whether `rows` are a block (the fixture `form` says so)."""


@pytest.fixture(params=["items", "block"])
def form(request: pytest.FixtureRequest) -> Iterator[None]:
    """Rows come as items of a batch, or as a block."""
    BLOCKS[0] = request.param == "block"
    yield
    BLOCKS[0] = False


def rows(first: int, count: int = 5) -> bytes:
    if BLOCKS[0]:
        numbers = range(first, first + count)
        return block.encode(
            PREFIX,
            first,
            [b"%d" % n for n in numbers],
            [b""] * count,
            [b"t%d" % (n % 2) for n in numbers],
            [b""] * count,
        )
    return batch_body(
        *[(b"%d" % n, f"TAGS\x01t{n % 2}\x02UNIQ_KEY\x01ROW{n:05d}\x02") for n in range(first, first + count)]
    )


def half(link: FakeLink, first: int, group: str = "spark-q-1", count: int = 5) -> Command:
    unique = f"{PREFIX.decode()}{first:012X}" if BLOCKS[0] else f"ROW{first:05d}"
    text = f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02GANTRY_ROWS\x01{count}\x02UNIQ_KEY\x01{unique}\x02"
    return send(link, rows(first, count), text, code=SEND_HALF_ROWS, f=4, e=1)


def end(link: FakeLink, answer: Command, kind: int, group: str = "spark-q-1") -> Command:
    return ask(
        link, Code.END_TRANSACTION, producerGroup=group, tranStateTableOffset=answer.fields["queueOffset"],
        commitLogOffset=int(answer.fields["msgId"][16:], 16), commitOrRollback=kind, fromTransactionCheck=False, msgId="x", transactionId="x",
    )  # fmt: skip


def read(link: FakeLink) -> list[Any]:
    body = pull(link, queueId=1).body
    found, at = [], 0
    while at < len(body):
        message = record.decode(body, at)
        found.append(message)
        at += message.size
    return found


def numbers(link: FakeLink) -> list[int]:
    return [int(message.body) for message in read(link)]


def listed(link: FakeLink, prefix: str) -> list[str]:
    return [row["group"] for row in json.loads(ask(link, LIST_OWN_TRANSACTIONS, prefix=prefix).body)["transactions"]]


@pytest.fixture(params=["plain", "routed"])
def topic(bench: Bench, request: pytest.FixtureRequest) -> None:
    """Messages of a routed topic are looked at one by one."""
    bench.broker.topics.create(TopicConfig(TOPIC, 4, 4)).routed = request.param == "routed"
    bench.turn.run_until_quiet()


@pytest.mark.usefixtures("form", "topic")
def test_rows_come_with_their_commit(bench: Bench) -> None:
    link = bench.connect()
    first, second, third = half(link, 0), half(link, 100), half(link, 200, "spark-q-2")
    assert read(link) == []
    assert listed(link, "spark-q-") == ["spark-q-1", "spark-q-1", "spark-q-2"]
    assert listed(link, "other") == []
    assert end(link, second, ROLLBACK).code == Answer.SUCCESS
    assert end(link, first, COMMIT).code == Answer.SUCCESS
    assert numbers(link) == [0, 1, 2, 3, 4]
    message = read(link)[3]
    unique = f"{PREFIX.decode()}{3:012X}" if BLOCKS[0] else "ROW00003"
    assert (message.tag, message.queue_offset, message.property("UNIQ_KEY")) == ("t1", 3, unique)
    assert end(link, first, COMMIT).code == Answer.SUCCESS  # again: nothing more
    assert end(link, third, COMMIT, "spark-q-2").code == Answer.SUCCESS
    assert numbers(link) == [0, 1, 2, 3, 4, 200, 201, 202, 203, 204]
    assert listed(link, "spark") == []


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("routed", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_what_is_decided_is_known_after_a_start(tmp_path: Path, commit: bool, routed: bool) -> None:
    bench = Bench(tmp_path)
    bench.broker.topics.create(TopicConfig(TOPIC, 4, 4)).routed = routed
    link = bench.connect()
    answer = half(link, 0)
    if commit:
        end(link, answer, COMMIT)
    bench.close()
    bench = Bench(tmp_path)
    try:
        link = bench.connect()
        assert listed(link, "spark-q-1") == ([] if commit else ["spark-q-1"])
        if not commit:
            assert end(link, answer, COMMIT).code == Answer.SUCCESS
        assert numbers(link) == [0, 1, 2, 3, 4]
    finally:
        bench.close()


@pytest.mark.usefixtures("form", "topic")
def test_rows_are_stored_once(bench: Bench) -> None:
    link = bench.connect()
    for _ in range(3):
        assert send(link, rows(0), code=SEND_ROWS_ONCE, e=1).code == Answer.SUCCESS
    assert send(link, rows(5), code=SEND_ROWS_ONCE, e=1).code == Answer.SUCCESS
    assert numbers(link) == list(range(10))
    answer = send(link, rows(8), code=SEND_ROWS_ONCE, e=1)
    assert answer.code == Answer.MESSAGE_ILLEGAL
    assert "some are stored and some are not" in str(answer.remark)
    assert numbers(link) == list(range(10))


@pytest.mark.usefixtures("form")
def test_rows_are_stored_once_through_a_start(tmp_path: Path) -> None:
    for _ in range(2):
        bench = Bench(tmp_path)
        link = bench.connect()
        assert send(link, rows(0), code=SEND_ROWS_ONCE, e=1).code == Answer.SUCCESS
        assert numbers(link) == [0, 1, 2, 3, 4]
        bench.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        rows(0, 1001),
        batch_body((b"x", "")),
        batch_body((b"x", "DELAY\x011\x02UNIQ_KEY\x01U\x02")),
        rows(0)[:-1],
        block.encode(PREFIX, 0, [b"x"], [b"DELAY\x011\x02"], [b""], [b""]),
        block.encode(PREFIX, 0, [b"x"], [b""], [b""], [b""])[:-1],
        block.encode(PREFIX, 0, [b"x"], [b""], [b"\xff"], [b""]),
        block.encode(PREFIX, 0, [b"x"], [b""], [b"t" * 40_000], [b""]),
        block.encode(PREFIX, 0, [b"x", b"y"], [b""] * 2, [b""] * 2, ["ä".encode()[:1], "ä".encode()[1:]]),
        block.encode(PREFIX, 0, [b"x"], [b"a\x01" + b"v" * 40_000 + b"\x02"], [b""], [b""]),
        block.encode(PREFIX, 0, [bytes(15 * 1024 * 1024 + 1)], [b""], [b""], [b""]),
    ],
    ids=lambda body: str(len(body)),
)
@pytest.mark.parametrize("code", [SEND_ROWS_ONCE, SEND_HALF_ROWS])
def test_what_is_no_row_is_refused(bench: Bench, body: bytes, code: int) -> None:
    link = bench.connect()
    text = "TRAN_MSG\x01true\x02PGROUP\x01g\x02GANTRY_ROWS\x015\x02" if code == SEND_HALF_ROWS else ""
    assert send(link, body, text, code=code, e=1, f=4 if text else 0).code == Answer.MESSAGE_ILLEGAL
    assert send(link, rows(0), text, code=code, e=99, f=4 if text else 0).code != Answer.SUCCESS
    assert read(link) == []


def test_rows_without_a_transaction_are_no_half_message(bench: Bench) -> None:
    assert send(bench.connect(), rows(0), code=SEND_HALF_ROWS, e=1).code == Answer.MESSAGE_ILLEGAL
