"""Messages, settlements and rows in one piece: all or nothing, in memory and through any power loss."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.port import EARLIEST, Outcome, Route
from gantrymq.broker.queues import companions
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node, full_disk
from tests.store.crash_states import CrashFiles, cut_everywhere

HUGE = 1 << 30


def message(body: bytes, topic: str = "t", demand: str = "") -> Message:
    made = Message(topic, body, b"TAGS\x01a\x02", "a", (), 0)
    made.demand_route = demand
    return made


def piece(node: Node, batch: list[Message], settle: Any = (), rows: Any = ()) -> list[Any]:
    """The results come into the list."""
    box: list[Any] = []
    node.port.submit(batch, None, lambda token, result: box.append(result), settle=settle, rows=rows)
    node.turn.run_until_quiet()
    return box


class Site:
    """A light queue of topic `t` with some entries in flight."""

    def __init__(self, node: Node, entries: int = 3) -> None:
        self.node = node
        light = node.call("create_light")
        node.call("add_route", Route("r", "prefix", "t", "a", light))
        self.cursor = node.call("open_cursor", f"~{light}", "g", EARLIEST).cursor
        node.call("submit", [message(b"%d" % number) for number in range(entries)])
        self.acquire()

    def acquire(self) -> list[tuple[bytes, int]]:
        got = self.node.call("acquire", self.cursor, 1, 100, HUGE)
        return [(delivery.message.body, delivery.count) for delivery in got]

    def counts(self) -> tuple[int, int]:
        (info,) = self.node.call("stats", [self.cursor])
        return info.ready, info.unacked


@pytest.fixture
def node() -> Node:
    return Node(MemoryFileSystem(), sync=False)


def test_all_of_it_is_seen_when_it_is_stored(node: Node) -> None:
    site = Site(node)
    settle = [
        (site.cursor, 0, Outcome.ACK),
        (site.cursor, 1, Outcome.REQUEUE),
        (site.cursor, 2, Outcome.DROP),
        (site.cursor, 9, Outcome.ACK),
    ]
    assert piece(node, [message(b"new")], settle, [("mine", "k", b"v"), ("mine", "gone", None)]) == [[3]]
    assert node.call("watch_table", "mine", None) == {"k": b"v"}
    assert site.acquire() == [(b"1", 2), (b"new", 1)]


def test_without_messages(node: Node) -> None:
    site = Site(node)
    assert piece(node, [], [(site.cursor, 0, Outcome.ACK)], [("mine", "k", b"v")]) == [[]]
    assert site.counts() == (0, 2)


def test_released_entries_come_back_as_not_delivered(node: Node) -> None:
    site = Site(node)
    assert piece(node, [], [(site.cursor, 0, Outcome.RELEASE)]) == [[]]
    assert site.acquire() == [(b"0", 1)]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (message(b"", demand="other"), ErrorCode.NO_ROUTE),
        (message(b"x" * (5 << 20)), ErrorCode.MESSAGE_TOO_LARGE),
        (message(b"", topic="rmq_sys_gantry_mine"), ErrorCode.NO_PERMISSION),
    ],
)
def test_one_refused_message_refuses_all(node: Node, bad: Message, code: ErrorCode) -> None:
    site = Site(node)
    settle = [(site.cursor, 0, Outcome.ACK)]
    end = node.store.written_position
    assert piece(node, [message(b"good"), bad], settle, [("mine", "k", b"v")]) == [[ErrorCode.NOT_ALONE, code]]
    assert node.store.written_position == end
    assert node.call("watch_table", "mine", None) == {}
    assert site.counts() == (0, 3)
    assert piece(node, [message(b"good")], settle) == [[3]]
    assert site.counts() == (1, 2)


def test_a_full_disk_refuses_all(node: Node) -> None:
    site = Site(node)
    settle, rows = [(site.cursor, 0, Outcome.ACK)], [("mine", "k", b"v")]
    with full_disk(node.files):
        assert piece(node, [message(b"new")], settle, rows) == [[ErrorCode.STORE_FULL]]
        (alone,) = piece(node, [], settle, rows)
        assert isinstance(alone, GantryError)
        assert alone.code is ErrorCode.STORE_FULL
    assert site.counts() == (0, 3)
    assert node.call("watch_table", "mine", None) == {}
    assert piece(node, [message(b"new")], settle, rows) == [[3]]


def test_a_watermark_refuses_messages_and_not_what_frees_room(node: Node) -> None:
    site = Site(node)
    node.broker.full = "the disk is nearly full"
    settle = [(site.cursor, 0, Outcome.ACK)]
    assert piece(node, [message(b"new")], settle) == [[ErrorCode.STORE_FULL]]
    assert piece(node, [], settle) == [[]]
    assert site.counts() == (0, 2)


def test_a_row_that_fits_no_record_refuses_all(node: Node) -> None:
    site = Site(node)
    row: Any = ("mine", "k", "text")
    (result,) = piece(node, [message(b"new")], [(site.cursor, 0, Outcome.ACK)], [row])
    assert isinstance(result, GantryError)
    (result,) = piece(node, [], [(site.cursor, 0, Outcome.ACK)], [("cursor", "1", b"")])
    assert result.code is ErrorCode.NO_PERMISSION
    assert site.counts() == (0, 3)


def test_a_message_that_fits_no_record_refuses_all(node: Node) -> None:
    site = Site(node)
    unfit = message(b"new")
    unfit.flag = 1 << 40
    (result,) = piece(node, [message(b"good"), unfit], [(site.cursor, 0, Outcome.ACK)], [("mine", "k", b"v")])
    assert set(result) == {ErrorCode.MESSAGE_ILLEGAL}
    assert site.counts() == (0, 3)
    assert node.call("watch_table", "mine", None) == {}


def test_what_its_holder_loses_meanwhile_stays_settled(node: Node) -> None:
    site = Site(node)
    box: list[Any] = []
    node.port.submit([], None, lambda token, result: box.append(result), settle=[(site.cursor, 0, Outcome.ACK)])
    node.port.release(1)
    node.port.settle([(site.cursor, 0, Outcome.REQUEUE)])
    node.turn.run_until_quiet()
    assert box == [[]]
    assert site.acquire() == [(b"1", 2), (b"2", 2)]


def test_refused_after_its_holder_went_it_comes_back(node: Node) -> None:
    site = Site(node)
    with full_disk(node.files):
        node.port.submit([], None, lambda token, result: None, settle=[(site.cursor, 0, Outcome.ACK)])
        node.port.release(1)
        node.turn.run_until_quiet()
    assert site.acquire() == [(b"0", 2), (b"1", 2), (b"2", 2)]


def test_limits(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(companions, "RECORDS_MAX", 2)
    monkeypatch.setattr(companions, "SETTLED_MAX", 2)
    monkeypatch.setattr(companions, "BYTES_MAX", 8)
    rows = [("mine", "a", b"1"), ("mine", "b", b"2"), ("mine", "c", b"3")]
    for refused in (
        piece(node, [], (), rows),
        piece(node, [], [(1, number, Outcome.ACK) for number in range(3)]),
        piece(node, [message(b"123456789")], (), rows[:1]),
    ):
        assert refused[0].code is ErrorCode.LIMIT_REACHED
    assert piece(node, [message(b"1234567")], (), rows[:1]) == [[0]]


class PatientNode(Node):
    """Its disk may stand still for as long as the story wants."""

    config = BrokerConfig(pending_ms_max=3_600_000)


class Story:
    """Moves numbers from queue to table and back into the queue: each number is in the queue, or its row is there, never both or neither."""

    def __init__(self, files: CrashFiles, seed: int, steps: int) -> None:
        self.files = files
        self.steps = steps
        self.lot = random.Random(seed)
        self.stored = False

    def run(self) -> None:
        node = PatientNode(self.files, sync=True)
        light = node.call("create_light")
        node.call("add_route", Route("r", "prefix", "t", "a", light))
        cursor = node.call("open_cursor", f"~{light}", "g", EARLIEST).cursor
        node.call("submit", [message(b"%d" % number + b"-" * 700) for number in range(6)])
        self.stored = True
        for _ in range(self.steps):
            got = node.call("acquire", cursor, 1, self.lot.randrange(1, 4), HUGE)
            taken = [(cursor, delivery.offset, Outcome.ACK) for delivery in got]
            rows: list[Any] = [("mine", number_of(delivery.message.body), delivery.message.body) for delivery in got]
            kept = sorted(node.broker.tables.rows("mine").items())
            back = dict(self.lot.sample(kept, 1)) if kept and self.lot.random() < 0.7 else {}
            rows += [("mine", number, None) for number in back]
            box = piece(node, [message(body) for body in back.values()], taken, rows)
            if self.lot.random() < 0.5:
                node.flush()
                assert all(isinstance(one, int) for result in box for one in result)
            if self.lot.random() < 0.2:
                node.background()

    def after_the_cut(self, files: CrashFiles, lot: random.Random) -> None:
        node = Node(files, sync=True)
        if not self.stored:
            return
        cursor = node.call("open_cursor", "~1", "g", EARLIEST).cursor
        queued = [number_of(delivery.message.body) for delivery in node.call("acquire", cursor, 1, 4096, HUGE)]
        rows = node.call("watch_table", "mine", None)
        assert sorted([*queued, *rows]) == [str(number) for number in range(6)]


def number_of(body: bytes) -> str:
    return body.decode().rstrip("-")


def test_no_power_loss_leaves_half_of_it() -> None:
    cut_everywhere(lambda files: Story(files, 1, 10), 1, 9)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("seed", "stride"), [(2, 1), (3, 2)])
def test_no_power_loss_leaves_half_of_it_whatever_the_moment(seed: int, stride: int) -> None:
    cut_everywhere(lambda files: Story(files, seed, 30), seed, stride)


@pytest.mark.slow
@pytest.mark.crash
def test_without_the_head_halves_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The story finds it where nothing holds the records together."""
    monkeypatch.setattr(companions, "group_head", lambda records: Message("rmq_sys_gantry_dispatch", b"", queue_id=0))
    with pytest.raises(AssertionError):
        cut_everywhere(lambda files: Story(files, 1, 10), 1, 3)
