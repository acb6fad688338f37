"""What waits (delays, timers, transactions, pops) goes on after what went wrong on the way: limits, unreadable disks, a full disk, a stop in between."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from gantrymq.broker.consuming import cursors
from gantrymq.broker.consuming.offsets import FLUSH_MS, ROWS_STEP, STEP_EVERY_MS
from gantrymq.broker.delay import levels
from gantrymq.broker.deletion.refused import FULL_RETRY_MS, Refused
from gantrymq.broker.due.waiting import STEP, UNREADABLE_MS, UNREADABLE_TRIES
from gantrymq.broker.pop.dead_letters import AGAIN_MS
from gantrymq.broker.tables.tables import item_message, row_of
from gantrymq.broker.topics import TopicConfig
from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import Message
from gantrymq.model.names import SCHEDULE_TOPIC
from gantrymq.store.derived import UNITS_PENDING_MS
from gantrymq.store.schedule import TIMER_TOPIC
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node, full_disk
from tests.broker.pop.test_pops import GROUP, TOPIC, node_with_topic, pass_ms, pop
from tests.broker.transactions.test_transactions import Teller, end, prepare
from tests.broker.waiting_node import WaitingNode

WAYS: list[dict[str, Any]] = [{"DELAY": 1}, {"TIMER_DELAY_MS": 1_000}]


def broken(*_arguments: Any) -> Any:
    raise OSError(errno.EIO, "Input/output error")


@pytest.fixture
def node() -> WaitingNode:
    return WaitingNode(MemoryFileSystem())


@pytest.mark.parametrize("pairs", WAYS)
def test_without_room_for_a_cursor_the_message_is_refused(
    node: WaitingNode, monkeypatch: pytest.MonkeyPatch, pairs: dict[str, Any]
) -> None:
    monkeypatch.setattr(cursors, "CURSORS_MAX", 0)
    assert node.later(b"x", **pairs) is ErrorCode.LIMIT_REACHED
    monkeypatch.undo()
    assert node.later(b"y", **pairs) == 0
    node.wait(2_000)
    assert node.bodies() == [b"y"]


@pytest.mark.parametrize("pairs", WAYS)
def test_a_clean_stop_between_firing_and_storing_repeats_nothing(node: WaitingNode, pairs: dict[str, Any]) -> None:
    node.later(b"x", **pairs)
    while not node.broker._submitted:
        node.wheel.advance(50)
        while node.turn.pending and not node.broker._submitted:
            node.turn.run()
    again = node.reborn()
    again.wait(3_000)
    assert again.bodies() == [b"x"]


@pytest.mark.parametrize("pairs", WAYS)
def test_a_record_that_cannot_be_read_for_a_while_comes_later(node: WaitingNode, pairs: dict[str, Any]) -> None:
    node.later(b"x", **pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.store, "get_many", broken)
        node.wait(3_000)
        assert node.bodies() == []
    node.wait(UNREADABLE_MS)
    assert node.bodies() == [b"x"]


def bad_place(node: WaitingNode, topic: str, patch: pytest.MonkeyPatch) -> None:
    """The disk cannot read the first record of that topic."""
    position = node.store.units(topic, 0, 0, 1)[0][0]
    real = node.store.get_many

    def get_many(refs: Any) -> Any:
        if any(ref[0] == position for ref in refs):
            broken()
        return real(refs)

    patch.setattr(node.store, "get_many", get_many)


@pytest.mark.parametrize("heals", [True, False])
@pytest.mark.parametrize("pairs", WAYS)
def test_a_record_that_cannot_be_read_holds_up_nothing_and_is_given_up_in_the_end(
    node: WaitingNode, pairs: dict[str, Any], heals: bool, caplog: pytest.LogCaptureFixture
) -> None:
    topic = SCHEDULE_TOPIC if "DELAY" in pairs else TIMER_TOPIC
    for body in (b"bad", b"b", b"c"):
        node.later(body, **pairs)
    cursor = node.broker.delays.levels.by_number[1].cursor if "DELAY" in pairs else node.broker.delays.timers.cursor
    assert cursor is not None
    with pytest.MonkeyPatch.context() as patch:
        bad_place(node, topic, patch)
        node.wait(2_000)
        assert node.bodies() == [b"b", b"c"]
        node.later(b"d", **pairs)
        node.wait(2_000)
        assert node.bodies() == [b"b", b"c", b"d"]
        assert cursor.window.floor == 0, "it is not forgotten"
        node.wait((UNREADABLE_TRIES - 2) * UNREADABLE_MS)
        assert cursor.window.floor == 0
        if not heals:
            node.wait(2 * UNREADABLE_MS)
    node.wait(2 * UNREADABLE_MS)
    assert node.bodies() == [b"b", b"c", b"d"] + [b"bad"] * heals
    assert cursor.window.floor == 4
    assert node.broker.delays.damaged.value == (not heals)
    assert ("it is left out" in caplog.text) is not heals
    again = node.reborn()
    again.wait(5_000)
    assert again.bodies() == node.bodies(), "nothing comes twice"


@pytest.mark.parametrize("pairs", WAYS)
def test_a_record_whose_bytes_are_damaged_is_left_out_at_once(
    node: WaitingNode, pairs: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    topic = SCHEDULE_TOPIC if "DELAY" in pairs else TIMER_TOPIC
    for body in (b"bad", b"b"):
        node.later(body, **pairs)
    position = node.store.units(topic, 0, 0, 1)[0][0]
    real = node.store.get_many

    def get_many(refs: Any) -> Any:
        return [None if ref[0] == position else found for ref, found in zip(refs, real(refs), strict=True)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.store, "get_many", get_many)
        node.wait(2_000)
    assert node.bodies() == [b"b"]
    assert node.broker.delays.damaged.value == 1
    assert "offset 0: no record with a topic" in caplog.text
    again = node.reborn(clean=False)
    again.wait(5_000)
    assert again.bodies()[0] == b"b"
    assert again.broker.delays.levels.pending() == again.broker.delays.timers.pending() == 0


def test_a_record_set_aside_waits_while_its_topic_is_refused(node: WaitingNode) -> None:
    node.later(b"bad", DELAY=1)
    with pytest.MonkeyPatch.context() as patch:
        bad_place(node, SCHEDULE_TOPIC, patch)
        node.wait(2_000)
    with full_disk(node.files):
        node.wait(UNREADABLE_MS)
    node.wait(UNREADABLE_MS)
    assert node.bodies() == [b"bad"]


def test_all_that_was_set_aside_comes_when_it_can_be_read(node: WaitingNode) -> None:
    bodies = [b"%d" % number for number in range(3 * STEP + 7)]
    for body in bodies:
        node.later(body, DELAY=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.store, "get_many", broken)
        node.wait(3_000)
        assert len(node.broker.delays.levels.by_number[1].quarantined) == len(bodies)
    node.wait(UNREADABLE_MS)
    assert node.bodies() == bodies
    assert node.broker.delays.levels.pending() == 0


def test_beyond_the_limit_of_records_set_aside_the_level_waits(
    node: WaitingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "QUARANTINED_MAX", 0)
    for body in (b"bad", b"b"):
        node.later(body, DELAY=1)
    with pytest.MonkeyPatch.context() as patch:
        bad_place(node, SCHEDULE_TOPIC, patch)
        node.wait(UNREADABLE_MS - 1_000)
        assert node.bodies() == []
    node.wait(UNREADABLE_MS)
    assert node.bodies() == [b"bad", b"b"]


def test_an_order_whose_record_cannot_be_read_is_carried_out_later(node: WaitingNode) -> None:
    _, message = node.send_later(b"x", TIMER_DELAY_MS=600_000)
    at_ms = int(message.property("TIMER_OUT_MS")) + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.store, "get_many", broken)
        node.later(b"0", UNIQ_KEY="Ux", TIMER_DEL_UNIQKEY="t+Ux", TIMER_DELIVER_MS=at_ms)
        node.wait(2_000)
        assert node.broker.delays.timers.pending() > 0
    node.wait(2 * UNREADABLE_MS)
    assert node.broker.delays.timers.pending() == 0


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("pairs", WAYS)
def test_a_queue_that_went_away_meanwhile_loses_nothing(
    node: WaitingNode, pairs: dict[str, Any], deleted: bool
) -> None:
    node.broker.topics.create(TopicConfig("t", 8, 8))
    for queue in (3, 7):
        node.later(b"%d" % queue, queue_id=queue, **pairs)
    if deleted:
        node.broker.delete_topic("t")
    else:
        node.broker.topics.create(TopicConfig("t", 4, 4))
    node.wait(2_000)
    assert sorted([message.body for message in node.records() if message.queue_id < 4]) == [b"3", b"7"]
    assert b"3" in [message.body for message in node.records() if message.queue_id == 3]


def test_a_commit_for_a_queue_that_went_away_loses_nothing() -> None:
    node = Node(MemoryFileSystem(), False)
    node.broker.topics.create(TopicConfig("orders", 8, 8))
    message = prepare(node, b"x", "U1", queue=7)
    node.broker.topics.create(TopicConfig("orders", 4, 4))
    assert end(node, message, True) == [None]
    assert sum([node.store.max_offset("orders", queue) for queue in range(4)]) == 1


@pytest.mark.parametrize("pairs", WAYS)
def test_a_full_disk_at_the_first_of_all_forgets_no_cursor(node: WaitingNode, pairs: dict[str, Any]) -> None:
    node.call("submit", [Message("t", b"p", queue_id=0)])
    with full_disk(node.files):
        assert node.later(b"x", **pairs) is ErrorCode.STORE_FULL
    node.later(b"y", **pairs)
    node.wait(3_000)
    assert node.bodies() == [b"p", b"y"]
    again = node.reborn(clean=False)
    again.wait(5_000)
    assert again.bodies() == [b"p", b"y"]


def test_offsets_that_a_full_disk_refuses_are_written_later(node: WaitingNode) -> None:
    node.call("submit", [Message("t", b"p", queue_id=0)])
    with full_disk(node.files):
        node.broker.commits.commit("g", "t", 0, 1)
        node.wait(FLUSH_MS + 100)
    node.wait(FLUSH_MS + 100)
    assert node.reborn(clean=False).broker.offsets.query("g", "t", 0) == 1


def test_a_reset_that_was_taken_while_the_disk_was_full_does_not_come_again(node: WaitingNode) -> None:
    node.call("submit", [Message("t", b"p", queue_id=0)])
    node.broker.commits.reset("g", "t", 0, 1)
    node.wait(FLUSH_MS + 100)
    assert node.broker.tables.rows("reset") == {"t@g": b'{"0":1}'}
    with full_disk(node.files):
        assert node.broker.offsets.take_reset("g", "t", 0) == 1
        node.broker.commits.write()
        node.wait(FLUSH_MS + 100)
    node.wait(2 * FLUSH_MS)
    assert node.broker.tables.rows("reset") == {}
    assert node.reborn(clean=False).broker.offsets.resets == {}


def test_a_topic_that_a_full_disk_refuses_is_written_later(node: WaitingNode) -> None:
    with full_disk(node.files):
        node.broker.topics.create(TopicConfig("first", 8, 8))
        node.wait(FULL_RETRY_MS + 100)
        for queues in (4, 2):
            node.broker.topics.create(TopicConfig("first", queues, queues))
            node.wait(10)
    node.wait(FULL_RETRY_MS + 100)
    topic = node.reborn(clean=False).broker.topics.get("first")
    assert topic is not None
    assert topic.config.write_queues == 2, "in the order in which they were handed over"


def test_what_a_full_disk_refuses_is_kept_once_per_key(node: WaitingNode) -> None:
    refused = Refused(node.broker.wheel, lambda: None, node.broker.cursors)
    deletion = [
        item_message("topic", "t2", b"begin"),
        item_message("offset", "g", None),
        item_message("topic", "t2", b"end"),
    ]
    again = [item_message("topic", "t1", None)]
    made = [[item_message("topic", f"t{number % 3}", b"%d" % number)] for number in range(10)]
    rows = [("topic", "t0", b"9"), *map(row_of, deletion), ("topic", "t1", None)]
    assert refused.keep([*made, deletion, again]) == rows
    assert refused.keep([[item_message(*row) for row in rows], [item_message("topic", "t2", b"new")]]) == [
        ("topic", "t0", b"9"),
        ("offset", "g", None),
        ("topic", "t1", None),
        ("topic", "t2", b"new"),
    ]


def test_who_waits_for_an_offset_waits_for_no_slices(node: WaitingNode) -> None:
    for number in range(2 * ROWS_STEP):
        node.broker.commits.commit(f"g{number}", "t", 0, number)
    node.broker.commits.write()
    node.turn.run_until_quiet()
    assert len(node.broker.tables.rows("offset")) == 2 * ROWS_STEP


@pytest.mark.parametrize("clean", [True, False])
def test_many_offsets_are_written_in_slices(node: WaitingNode, clean: bool) -> None:
    count = 3 * ROWS_STEP + 5
    for number in range(count):
        node.broker.commits.commit(f"g{number}", "t", 0, number)
    written = []
    for _ in range(1 if clean else 4):
        node.wait(STEP_EVERY_MS if written else FLUSH_MS)
        written.append(node.store.max_offset("rmq_sys_gantry_offset", 0))
    assert written == [ROWS_STEP, 2 * ROWS_STEP, 3 * ROWS_STEP, count][: len(written)]
    again = node.reborn(clean)
    rows = again.broker.tables.rows("offset")
    assert rows == {f"t@g{number}": b'{"0":%d}' % number for number in range(count)}


def test_a_stop_with_a_full_disk_ends_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    node = WaitingNode(MemoryFileSystem())
    node.later(b"long", TIMER_DELAY_MS=60_000)
    node.later(b"short", TIMER_DELAY_MS=1_000)  # delivered, it lies behind one that waits: the stop appends that again
    node.wait(2_000)
    with full_disk(node.files):
        node.broker.close()
    node.store.close()
    assert "may come again" in caplog.text
    again = WaitingNode(node.files, node.clock)
    again.wait(60_000)
    assert again.bodies().count(b"long") == 1


def test_half_messages_that_cannot_be_read_do_not_end_the_checks() -> None:
    node = Node(MemoryFileSystem(), False)
    first, second = prepare(node, b"one", "U1"), prepare(node, b"two", "U2")
    teller = Teller("g")
    checks = node.broker.transactions.checks
    checks.producers = teller
    for offset in (first.queue_offset, second.queue_offset):
        node.broker.transactions.drop_message(node.broker.transactions.table[offset])
    real = node.store.read_records

    def damaged(units: Any, bytes_max: int) -> Any:
        return broken() if units[0][0] == first.physical_offset else real(units, bytes_max)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.store, "read_records", damaged)
        for _ in range(500):
            node.wheel.advance(100)
            node.turn.run_until_quiet()
    assert teller.asked == [("U2", second.queue_offset)]
    for _ in range(350):
        node.wheel.advance(100)
        node.turn.run_until_quiet()
    assert ("U1", first.queue_offset) in teller.asked


def test_dead_letters_that_cannot_be_read_hold_up_no_other_deadline() -> None:
    node = node_with_topic()
    node.broker.topics.create(TopicConfig("other", 1, 1))
    node.broker.put("group", [(GROUP, json.dumps({"groupName": GROUP, "retryMaxTimes": 0}).encode())], None, None)
    node.send(1)
    node.send(1, topic="other")
    for topic in (TOPIC, "other"):
        assert len(pop(node, invisible_ms=1_000, topic=topic)) == 1
    real = node.store.get_many
    at = node.store.units(TOPIC, 0, 0, 1)[0][0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.store, "get_many", lambda refs: broken() if refs[0][0] == at else real(refs))
        pass_ms(node, 2_000)
        assert node.store.max_offset(f"%DLQ%{GROUP}", 0) == 1
    pass_ms(node, AGAIN_MS + 100)
    assert node.store.max_offset(f"%DLQ%{GROUP}", 0) == 2


def test_queue_units_are_written_in_time_though_nothing_more_is_appended(node: WaitingNode) -> None:
    node.broker.topics.create(TopicConfig("first", 4, 4))
    for _ in range(20):
        node.wait(50)  # the first checkpoint, which writes them as well
    node.broker.topics.create(TopicConfig("last", 4, 4))
    node.wait(10)
    assert node.store.units_waiting
    for _ in range(UNITS_PENDING_MS // 50 + 4):  # the first look comes long before they are due
        node.wait(50)
    assert not node.store.units_waiting
