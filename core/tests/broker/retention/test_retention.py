"""Retention over the real store: what goes, what stays, what is moved, and what a crash leaves."""

from __future__ import annotations

import errno
import random
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from gantrymq.broker.port import EARLIEST, END, Outcome, Route
from gantrymq.broker.topics import TopicConfig
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import Message
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.log.moved import MOVED_TOPIC
from gantrymq.store.queues.consume_queue import UNIT
from gantrymq.store.retention.rules import DiskLevel
from gantrymq.store.testing import MemoryFileSystem, PowerCut
from tests.broker.keeping import KEEP, SEGMENT, KeepingNode
from tests.broker.node import ROOT


def node_with_queue() -> tuple[KeepingNode, int, int]:
    """A node, a light queue for tags that begin with `a`, and a cursor over it."""
    node = KeepingNode(MemoryFileSystem())
    light = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "a", light))
    return node, light, node.call("open_cursor", f"~{light}", "g", END).cursor


def reopened(node: KeepingNode, clean: bool) -> KeepingNode:
    if clean:
        node.stop()
        return KeepingNode(node.files, node.clock)
    return KeepingNode(node.files.after_process_crash(), node.clock)


def test_expired_segments_go_with_queue_and_index_files() -> None:
    node = KeepingNode(MemoryFileSystem())
    batch = [
        Message("t", bytes(1000), props.encode([(props.KEYS, f"k{number}")]), keys=(f"k{number}",), queue_id=0)
        for number in range(400)
    ]
    node.call("submit", batch)
    assert node.retain() == 0
    before = node.files.snapshot()
    assert node.retain(hours=2) == 6
    first = node.broker.min_offset("t", 0)
    assert node.store.log_min_position == 6 * SEGMENT
    assert node.store.units("t", 0, first, 1)[0][0] == node.store.log_min_position
    assert node.store.units("t", 0, first - 1, 1) == []
    gone = set(before) - set(node.files.snapshot())
    assert len([path for path in gone if "commitlog" in path.parts]) == 6
    assert len([path for path in gone if "consumequeue" in path.parts]) >= first // 20 - 1
    assert len([path for path in gone if "index" in path.parts]) >= first // 40 - 1
    for clean in (True, False):
        node = reopened(node, clean)
        assert node.broker.min_offset("t", 0) == first
        assert node.store.max_offset("t", 0) == 400
        assert None not in node.store.get_many([unit[:2] for unit in node.store.units("t", 0, first, 99)])
        assert node.store.query("t", "k399", 1, 0, 1 << 62)[0].queue_offset == 399
        assert node.store.query("t", "k1", 1, 0, 1 << 62) == []
        assert node.retain() == 0


def test_the_newest_segment_and_one_not_on_stable_storage_stay() -> None:
    node = KeepingNode(MemoryFileSystem())
    node.send(100)
    node.clock.advance(1 << 40)
    node.retention.check(node.wheel.now_ms())
    assert node.retention.deleted == 0  # no checkpoint yet
    assert node.retain(hours=2) == 1
    assert node.segments() == [f"{SEGMENT:020d}"]
    assert node.retain(hours=2000) == 0


def test_unacknowledged_entries_keep_their_segment() -> None:
    node, _, cursor = node_with_queue()
    bodies = node.send(100, "a")
    assert node.retain(hours=2) == 0
    assert "alive" in node.retention.staying
    node = reopened(node, False)
    assert [body for _, body in node.drain(cursor)] == bodies


@pytest.mark.parametrize("clean", [True, False])
def test_few_survivors_are_moved(clean: bool) -> None:
    node, _, cursor = node_with_queue()
    bodies = node.send(300, "a")
    for offset, _ in node.drain(cursor):
        if offset % 50:
            node.port.settle([(cursor, offset, Outcome.ACK)])
    node.turn.run_until_quiet()
    assert node.retain(hours=2) >= 4
    assert node.retention.moved >= 4
    topic_end = node.store.max_offset("t", 0)
    assert topic_end == 300  # never again in the topic's own queue
    node = reopened(node, clean)
    got = node.drain(cursor)
    assert [body for _, body in got] == bodies[::50]
    assert [offset for offset, _ in got] == list(range(0, 300, 50))
    assert node.broker.cursors.moved.count >= 4
    for offset, _ in got:
        node.port.settle([(cursor, offset, Outcome.ACK)])
    node.turn.run_until_quiet()
    node = reopened(node, not clean)
    assert node.drain(cursor) == []
    assert node.broker.cursors.moved.count == 0
    node.send(100, "b")
    assert node.retain(hours=2) >= 1


def test_a_moved_record_is_as_it_was_and_moves_again() -> None:
    node, _, cursor = node_with_queue()
    node.send(10, "x", topic="u")
    text = props.encode([(props.TAGS, "ab"), ("color", "red")])
    sent = Message("u", b"precious", text, "ab", queue_id=2)
    node.call("submit", [sent])
    node.send(100)
    for _ in range(3):
        node.send(100)
        assert node.retain(hours=2) >= 1
    assert node.retention.moved >= 2
    [found] = node.call("acquire", cursor, 1, 10, 1 << 20)
    message = found.message
    assert (message.topic, message.queue_id, message.queue_offset, message.body) == ("u", 2, 0, b"precious")
    assert (message.properties, message.tag, message.store_ms) == (text, "ab", sent.store_ms)
    assert message.physical_offset >= node.store.log_min_position
    assert node.call("read", [(message.physical_offset, message.size)])[0].body == b"precious"


def test_webhook_cursor_over_a_topics_queue() -> None:
    node = KeepingNode(MemoryFileSystem())
    node.send(1)
    cursor = node.call("open_cursor", "t/0", "ce:1", EARLIEST).cursor
    bodies = node.send(200, first=1)
    got = node.drain(cursor)
    node.port.settle([(cursor, offset, Outcome.ACK) for offset, _ in got if offset not in (3, 70)])
    node.turn.run_until_quiet()
    assert node.retain(hours=2) == 3
    assert node.broker.min_offset("t", 0) > 100
    node = reopened(node, False)
    assert node.drain(cursor) == [(3, bodies[2]), (70, bodies[69])]


def test_rows_and_acknowledgements_outlive_their_segment() -> None:
    node, light, cursor = node_with_queue()
    node.call("put", "x", [("a", b"1"), ("b", b"2"), ("c", b"3")])
    node.call("put", "x", [("b", None), ("c", b"4")])
    node.send(100, "a")
    got = node.drain(cursor)
    node.port.settle([(cursor, offset, Outcome.ACK) for offset, _ in got if offset != 90])
    node.port.settle([(cursor, 90, Outcome.REQUEUE)])
    node.turn.run_until_quiet()
    for _ in range(4):
        node.send(200)
        assert node.retain(hours=2) >= 2
    for clean in (False, True, False):
        node = reopened(node, clean)
        assert node.call("watch_table", "x", None) == {"a": b"1", "c": b"4"}
        assert node.broker.topics.get("t") is not None
        [info] = node.call("stats", [cursor])
        assert (info.ready, info.next_offset) == (1, 100)
        [found] = node.call("acquire", cursor, 1, 10, 1 << 20)
        assert (found.offset, found.count) == (90, 2)
        node.port.settle([(cursor, 90, Outcome.RELEASE)])
        assert node.call("create_light") > light
        node.turn.run_until_quiet()


def test_deleted_rows_do_not_come_back() -> None:
    node, light, cursor = node_with_queue()
    node.send(40, "a")
    node.call("delete_light", light)
    for _ in range(3):
        node.send(100)
        assert node.retain(hours=2)
        node = reopened(node, False)
        assert node.broker.tables.rows("route") == {}
        assert node.call("stats", [cursor]) == [None]
        assert str(light) not in node.broker.tables.rows("light")


def test_size_limit() -> None:
    node = KeepingNode(MemoryFileSystem(), config=replace(KEEP, file_reserved_hours=72, log_bytes_max=3 * SEGMENT))
    node.send(600)
    assert node.retain() >= 5
    assert node.store.written_position - node.store.log_min_position <= 3 * SEGMENT


def test_reserve_time_of_a_topic_shortens_what_readers_see() -> None:
    node = KeepingNode(MemoryFileSystem(), config=replace(KEEP, file_reserved_hours=72))
    node.broker.topics.create(TopicConfig("t", attributes={"reserve.time": "3600000"}))
    node.broker.topics.create(TopicConfig("u"))
    node.turn.run_until_quiet()
    cursor = node.call("open_cursor", "t/0", "ce:1", EARLIEST).cursor
    node.send(10)
    node.send(10, topic="u")
    node.clock.advance(2 * 3_600_000)
    node.send(5)
    assert node.retain() == 0
    assert node.broker.min_offset("t", 0) == 10
    assert node.broker.min_offset("u", 0) == 0
    assert len(node.drain(cursor)) == 15


def test_hour_and_watermarks() -> None:
    node = KeepingNode(MemoryFileSystem(), config=replace(KEEP, delete_when="4"))
    while datetime.fromtimestamp(node.clock.now_ms() / 1000).hour != 6:  # local time
        node.clock.advance(3_600_000)
    node.send(100)
    assert node.retain(hours=2) == 0
    node.files.disk = (1000, 240)
    assert node.retain() == 1
    assert node.retention.level is DiskLevel.WARN


def test_clean_early_then_refuse_then_recover() -> None:
    node, _, cursor = node_with_queue()
    kept = node.send(100, "a")
    node.files.disk = (1000, 140)
    assert node.retain() == 0  # alive: it stays and counts
    node.files.disk = (1000, 99)
    node.retain()
    assert node.retention.level is DiskLevel.FULL
    assert node.call("submit", [Message("t", b"x")]) == [ErrorCode.STORE_FULL]
    got = node.drain(cursor)
    assert [body for _, body in got] == kept  # reading goes on
    node.port.settle([(cursor, offset, Outcome.ACK) for offset, _ in got])
    node.turn.run_until_quiet()
    assert node.retain() == 1  # what is acknowledged frees space, though it has not expired
    node.files.disk = (1000, 500)
    node.retain()
    assert isinstance(node.call("submit", [Message("t", b"x")])[0], int)


def test_no_room_to_move_survivors() -> None:
    node, _, cursor = node_with_queue()
    bodies = node.send(100, "a")
    node.port.settle([(cursor, offset, Outcome.ACK) for offset, _ in node.drain(cursor) if offset != 7])
    node.turn.run_until_quiet()
    node.settle_down()
    node.files.fault = lambda operation, path: (
        OSError(errno.ENOSPC, "full") if operation in ("pwrite", "allocate") and "commitlog" in path.parts else None
    )
    assert node.retain(hours=2) == 0
    node.files.fault = lambda operation, path: None
    assert node.retain(hours=2) == 1
    node = reopened(node, False)
    assert node.drain(cursor) == [(7, bodies[7])]


def test_a_file_that_cannot_be_unlinked_ends_deletion() -> None:
    node = KeepingNode(MemoryFileSystem())
    node.send(300)
    node.files.fault = lambda operation, path: OSError(errno.EIO, "broken") if operation == "remove" else None
    assert node.retain(hours=2) == 0
    node.files.fault = lambda operation, path: None
    assert node.retain(hours=2) == 0  # the one behind it must not go: the log would have a hole
    node.send(1)
    node = reopened(node, False)
    assert node.retain(hours=2) == 5


@pytest.mark.parametrize("kept", ["all", "nothing", "some"])
def test_power_cut_at_every_step(kept: str) -> None:
    """`kept`: of what was written and not yet put on stable storage."""
    dice = random.Random(4)

    def keep(path: Path, count: int) -> list[bool]:
        return [kept == "all" or (kept == "some" and dice.random() < 0.5) for _ in range(count)]

    def prepared() -> tuple[KeepingNode, int, list[bytes]]:
        node, _, cursor = node_with_queue()
        bodies = node.send(200, "a")
        node.port.settle([(cursor, offset, Outcome.ACK) for offset, _ in node.drain(cursor) if offset % 60])
        node.turn.run_until_quiet()
        node.clock.advance(2 * 3_600_000)
        node.settle_down()
        return node, cursor, bodies

    node, cursor, bodies = prepared()
    first = len(node.files.operations)
    assert node.retain() >= 2
    last = len(node.files.operations)
    assert last - first > 10
    for cut in range(first, last):
        node, cursor, bodies = prepared()
        node.files.power_cut_at = cut
        with pytest.raises(PowerCut):
            node.retain()
        files = node.files.after_power_loss(keep)
        for again in range(2):
            node = KeepingNode(files, node.clock)
            node.send(1, "b", first=10_000 + again)
            node.retain()
            files = node.files.after_process_crash()
        node = KeepingNode(files, node.clock)
        assert node.store.log_min_position >= 2 * SEGMENT
        assert node.drain(cursor) == [(offset, bodies[offset]) for offset in range(0, 200, 60)]


def test_a_reader_in_the_middle_meets_no_error() -> None:
    node = KeepingNode(MemoryFileSystem())
    node.send(300)
    units = node.store.units("t", 0, 0, 50)
    node.store.get_many([units[0][:2]])  # open descriptors and maps
    assert node.retain(hours=2) >= 4
    assert node.store.get_many([unit[:2] for unit in units]) == [None] * 50
    pieces, _ = node.store.read_records(units, 1 << 20)
    assert b"".join(pieces) == b""
    assert node.store.units("t", 0, 0, 50) == []
    handles = node.files.open_handles
    node.stop()
    assert handles > node.files.open_handles == 0


def test_moved_topic_is_refused_at_the_door() -> None:
    node = KeepingNode(MemoryFileSystem())
    assert node.call("submit", [Message(MOVED_TOPIC, b"x")]) == [ErrorCode.NO_PERMISSION]


def test_a_disk_that_hovers_at_a_watermark_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    node = KeepingNode(MemoryFileSystem())
    for free, level in ((249, 1), (251, 0), (249, 1), (251, 0), (99, 3), (101, 2), (99, 3), (300, 0)):
        node.files.disk = (1000, free)
        node.retention.check(node.wheel.now_ms())
        assert node.retention.level == level
        assert bool(node.broker.full) == (level == DiskLevel.FULL)
    told = [text for text in caplog.messages if "of the store's file system" in text]
    assert [text.split("%")[0] for text in told] == ["75.1", "90.1", "70.0"]


def write_units(node: KeepingNode, topic: str, first: int, data: bytes) -> None:
    """Put bytes into the file of queue 0 from a unit on."""
    size = KEEP.consumequeue_file_size
    at = first * UNIT_SIZE
    for begin in range(0, len(data), UNIT_SIZE):
        base = (at + begin) // size * size
        handle = node.files.open(ROOT / "store" / "consumequeue" / topic / "0" / f"{base:020d}", False)
        node.files.pwrite(handle, data[begin : begin + UNIT_SIZE], at + begin - base)
        node.files.close(handle)


@pytest.mark.parametrize("wrong", ["a position beyond the log", "a later segment's record", "nothing"])
def test_one_wrong_unit_does_not_hide_the_live_entries_behind_it(wrong: str) -> None:
    node = KeepingNode(MemoryFileSystem())
    node.send(1)
    cursor = node.call("open_cursor", "t/0", "ce:1", EARLIEST).cursor
    bodies = node.send(200, first=1)
    node.port.settle([(cursor, offset, Outcome.ACK) for offset, _ in node.drain(cursor) if not 2 <= offset < 6])
    node.turn.run_until_quiet()
    units = node.store.units("t", 0, 0, 201)
    node.stop()
    position, size, code = {
        "a position beyond the log": (units[2][0] | 1 << 60, *units[2][1:]),
        "a later segment's record": units[190],
        "nothing": (0, 0, 0),
    }[wrong]
    write_units(node, "t", 2, UNIT.pack(position, size, code))
    node = KeepingNode(node.files, node.clock)
    assert node.retain(hours=2) == 0
    assert "damaged records of it wait" in node.retention.staying
    assert [(entry.queue, entry.offset) for entry in node.store.damage.entries.values()] == [("t/0", 2)]
    node.stop()
    write_units(node, "t", 2, UNIT.pack(*units[2]))
    node = KeepingNode(node.files, node.clock)
    assert node.retain(hours=4) >= 2
    assert node.drain(cursor) == [(offset, bodies[offset - 1]) for offset in range(2, 6)]


@pytest.mark.parametrize("damage", ["record", "unit"])
def test_what_nobody_has_acquired_can_be_skipped(damage: str) -> None:
    node = KeepingNode(MemoryFileSystem())
    node.send(1)
    cursor = node.call("open_cursor", "t/0", "ce:1", EARLIEST).cursor
    bodies = node.send(200, first=1)
    got = [offset for offset, _ in node.drain(cursor)]
    keep = [1, 3, 5]
    node.port.settle([(cursor, offset, Outcome.ACK) for offset in got if offset not in keep])
    node.turn.run_until_quiet()
    position, size, _ = node.store.units("t", 0, 3, 1)[0]
    node.stop()
    if damage == "unit":
        write_units(node, "t", 3, bytes(UNIT_SIZE))
    else:
        handle = node.files.open(ROOT / "store" / "commitlog" / f"{0:020d}", False)
        node.files.pwrite(handle, bytes(size), position)
        node.files.close(handle)
    node = KeepingNode(node.files, node.clock)
    for _ in range(2):  # it stays until somebody decides
        assert node.retain(hours=2) == 0
        assert "1 damaged records of it wait" in node.retention.staying
    [entry] = node.store.damage.entries.values()
    assert (entry.queue, entry.offset, entry.is_unit) == ("t/0", 3, damage == "unit")
    assert not node.store.is_mended(entry)
    assert node.broker.cursors.end_waiting(entry.position, deliver=False) == 0
    node.store.damage.skip(entry)
    assert node.retain(hours=2) >= 2
    assert node.drain(cursor) == [(offset, bodies[offset - 1]) for offset in (1, 5)]


def test_one_wrong_unit_does_not_hide_rows() -> None:
    node = KeepingNode(MemoryFileSystem())
    node.call("put", "x", [("a", b"1")])
    node.call("put", "x", [("b", b"2")])
    node.call("put", "x", [("c", b"3")])
    node.send(200)
    position, size, code = node.store.units("rmq_sys_gantry_x", 0, 1, 1)[0]
    node.settle_down()
    write_units(node, "rmq_sys_gantry_x", 1, UNIT.pack(position | 1 << 60, size, code))
    assert node.retain(hours=2) == 0
    [entry] = node.store.damage.entries.values()
    assert (entry.queue, entry.offset, entry.is_unit) == ("rmq_sys_gantry_x/0", 1, True)
    node.store.damage.skip(entry)
    assert node.retain(hours=4) >= 2
    assert node.retention.rewritten >= 2


def test_blank_units_hide_no_whole_ones() -> None:
    node = KeepingNode(MemoryFileSystem(), config=replace(KEEP, file_reserved_hours=72, log_bytes_max=4 * SEGMENT))
    node.send(300)
    units = node.store.units("t", 0, 0, 300)
    first = next(offset for offset, unit in enumerate(units) if unit[0] >= 2 * SEGMENT)
    node.settle_down()
    write_units(node, "t", 125, bytes(140 * UNIT_SIZE))  # where the search looks
    assert first < 125
    assert node.retain() == 2
    assert node.broker.min_offset("t", 0) == first
    for clean in (False, True):
        node = reopened(node, clean)
        assert node.broker.min_offset("t", 0) == first
        assert node.store.units("t", 0, first, 125 - first) == units[first:125]
