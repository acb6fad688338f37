"""Rows of the broker's own tables that cannot be read: put aside at a start, kept for whoever can read them; everything else is there."""

from __future__ import annotations

import logging

import pytest

from gantrymq.broker.own_rows import CHECKS
from gantrymq.broker.port import EARLIEST, FIND, Outcome, Route
from gantrymq.broker.row_checks import why_unreadable
from gantrymq.broker.tables.tables import item_message, topic_of
from gantrymq.broker.topics import TopicConfig
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.remoting.server.table_rows import CHECKS as ALL_CHECKS
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.keeping import KeepingNode
from tests.broker.node import Node
from tests.broker.tables.test_snapshots import SnapshotNode
from tests.store.crash_states import CrashFiles

TOPIC_ROW = TopicConfig("t", 4, 4).to_bytes()
GARBAGE: dict[str, list[tuple[str, bytes]]] = {
    "topic": [
        ("t1", b"{"),
        ("t2", b"{}"),
        ("t3", TOPIC_ROW.replace(b":4", b':"4"')),
        ("t4", TOPIC_ROW.replace(b":4", b":0")),
        ("t5", TOPIC_ROW.replace(b'"first":{}', b'"first":{"x":1}')),
        ("t6", b"\xff\xfe"),
        ("t7", TOPIC_ROW[:-1] + b',"deleting":[1]}'),
    ],
    "route": [
        ("r1", b"{"),
        ("r2", b'["prefix","t"]'),
        ("r3", b'["prefix","t","a",-1]'),
        ("r4", b'["prefix",1,"a",1]'),
        ("r5", b'["of a later version",null,"a",1]'),
    ],
    "light": [("x", b"{}"), ("-1", b"{}"), ("next", b"{"), ("0", b"{}")],
    "cursor": [("7000", b"{"), ("7001", b'["~x","g",0]'), ("x", b'["~1","g",0]'), ("next", b"one"), ("7002", b'["~1","g",-1]')],
    "offset": [("t@g1", b"{"), ("t@g2", b'{"0":"x"}'), ("t@g3", b"[]"), ("nobody", b'{"0":1}')],
    "reset": [("t@g1", b"{"), ("t@g2", b'{"zero":0}')],
    "group": [("g1", b"{"), ("g2", b"[]"), ("g3", b'{"groupName":"g3","retryMaxTimes":"often"}'), ("g4", b"{}")],
    "setting": [("fileReservedTime", b"long"), ("ofALaterVersion", b"1"), ("deleteWhen", b"\xff")],
    "request_mode": [("t@g1", b"{"), ("t@g2", b'{"mode":"PUSH"}')],
    "pop_lease": [
        ("1", b"{"),
        ("x", b"{}"),
        ("1", b'{"next":9,"ordered":false,"attempt":"","recovered":0,"leases":[[1,2,[3]]]}'),
        ("1", b'{"next":9000000000,"ordered":false,"attempt":"","recovered":0,"leases":[[1,2,[0,8000000000]]]}'),
    ],
    "forward": [("to/b", b"x"), ("read/b/1", b"-1"), ("other/b", b"1"), ("source/", b"1"), ("to", b"1"), ("start/1", b"")],
    "queue": [("1", b"{"), ("x", b"{}"), ("1", b'{"max_length":-1}'), ("1", b'{"overflow":"x"}'), ("1", b'{"name":"\xff"}')],
    "cluster": [("tag/x", b"1"), ("member", b"\xff")],
    "cluster_light": [("x", b"1"), ("1", b"x")],
    "cluster_moved": [("x", b"1 1"), ("1", b"1"), ("1", b"-1 0")],
    "cluster_slot": [("7", b"{"), ("1024", b"{\"owner\":\"a\",\"epoch\":1}"), ("head", b"[]"), ("group/b", b"{}")],
    "auth_user": [("u", b"{"), ("u", b'{"name":1}')],
    "auth_token": [("t", b"{"), ("t", b'{"id":"t","user":"u","hash":"x","expires_ms":1}')],
    "auth_policy": [("user:u", b"[]"), ("user:u", b'{"subject":"user:u"}')],
}  # fmt: skip


class CheckingNode(Node):
    """With the checks of a real broker's start."""

    def prepare(self) -> None:
        self.broker.row_checks = ALL_CHECKS


def spoil(node: Node, table: str) -> list[str]:
    """Write the garbage of a table; returns its keys."""
    rows = GARBAGE[table]
    node.store.append([item_message(table, key, value) for key, value in rows], [()] * len(rows))
    return list(dict.fromkeys([key for key, _ in rows]))


def test_every_table_has_garbage() -> None:
    assert set(CHECKS) < set(ALL_CHECKS) == set(GARBAGE)


@pytest.mark.parametrize(("table", "key", "value"), [(t, *row) for t, rows in GARBAGE.items() for row in rows])
def test_garbage_is_known_for_garbage(table: str, key: str, value: bytes) -> None:
    kind_unknown = key == "r5"  # for the router to say
    assert bool(why_unreadable(ALL_CHECKS[table], key, value)) is not kind_unknown


def used(node: Node) -> int:
    """A bit of everything; returns the light queue."""
    broker = node.broker
    broker.topics.create(TopicConfig("t", 4, 4))
    light: int = node.call("create_light")
    node.call("add_route", Route("route", "prefix", "t", "a", light))
    node.call("submit", [Message("t", b"%d" % number, tag="a1", queue_id=0) for number in range(4)])
    cursor = node.call("open_cursor", f"~{light}", "reader", EARLIEST).cursor
    node.call("acquire", cursor, 1, 1, 1 << 20)
    node.port.settle([(cursor, 0, Outcome.ACK)])
    broker.commits.commit("g", "t", 0, 3)
    broker.commits.write()
    node.port.release(1)
    node.turn.run_until_quiet()
    return light


def check_used(node: Node, light: int) -> None:
    found = node.call("open_cursor", f"~{light}", "reader", FIND)
    entries = node.call("acquire", found.cursor, 1, 10, 1 << 20)
    assert [entry.message.body for entry in entries] == [b"1", b"2", b"3"]
    node.port.release(1)
    assert node.broker.offsets.query("g", "t", 0) == 3
    assert list(node.broker.router.routes) == ["route"]
    assert node.call("create_light") > light
    assert node.call("open_cursor", f"~{light}", "another", EARLIEST).cursor > found.cursor
    node.call("submit", [Message("t", b"later", tag="a2")])
    assert node.store.light_visible_end(light) == 5


@pytest.mark.parametrize("table", [*GARBAGE, "every"])
def test_garbage_stops_no_start(table: str, caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryFileSystem()
    node = CheckingNode(disk, sync=False)
    light = used(node)
    keys = {name: spoil(node, name) for name in (GARBAGE if table == "every" else [table])}
    node.stop()
    again = CheckingNode(disk, sync=False)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    for name, of_table in keys.items():
        assert set(again.broker.tables.quarantined(name)) == set(of_table)
        for key in of_table:
            assert any(f"row {key!r} of table {name} " in line for line in lines), (name, key)
    check_used(again, light)
    again.stop()


def test_a_topic_with_an_unreadable_row_is_served_until_somebody_changes_it() -> None:
    disk = MemoryFileSystem()
    node = CheckingNode(disk, sync=False)
    node.broker.topics.create(TopicConfig("t", 6, 6))
    node.call("submit", [Message("t", b"kept", queue_id=2), Message("t", b"too", queue_id=4)])
    node.store.append([item_message("topic", "t", b"{")], [()])
    node.stop()
    again = CheckingNode(disk, sync=False)
    topic = again.broker.topics.get("t")
    assert topic is not None
    assert topic.config.read_queues == 5  # as far as queues have records
    assert [m.body for m in again.store.get_many([(u[0], u[1]) for u in again.store.units("t", 4, 0, 9)]) if m] == [
        b"too"
    ]
    assert again.call("submit", [Message("t", b"new", queue_id=2)])[0] == 1
    assert list(again.broker.tables.quarantined("topic")) == ["t"]
    again.broker.topics.create(TopicConfig("t", 8, 8))
    again.turn.run_until_quiet()
    assert not again.broker.tables.quarantined("topic")
    again.stop()
    last = CheckingNode(disk, sync=False)
    changed = last.broker.topics.get("t")
    assert changed is not None
    assert (changed.config.read_queues, last.store.max_offset("t", 2)) == (8, 2)
    last.stop()


def test_a_damaged_record_is_named_and_what_it_hid_is_served(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryFileSystem()
    node = CheckingNode(disk, sync=False)
    node.broker.topics.create(TopicConfig("gone", 4, 4))
    node.broker.topics.create(TopicConfig("other", 4, 4))
    node.call("submit", [Message("gone", b"kept", queue_id=1)])
    position, size, _ = node.store.units(topic_of("topic"), 0, 0, 1)[0]
    node.stop()
    log = next(path for path in disk.snapshot() if "commitlog" in path.parts)
    handle = disk.open(log, create=False)
    disk.pwrite(handle, bytes(size), position)
    disk.close(handle)
    again = CheckingNode(disk, sync=False)
    assert f"table topic: record 0, at {position} of the log, is damaged" in caplog.text
    (entry,) = again.store.damage.at(position)
    assert (entry.queue, entry.offset) == ("rmq_sys_gantry_topic/0", 0)
    assert set(again.broker.tables.rows("topic")) >= {"gone", "other"}
    assert again.call("submit", [Message("gone", b"more", queue_id=1)])[0] == 1
    again.stop()
    assert set(CheckingNode(disk, sync=False).broker.topics.topics) >= {"gone", "other"}  # also from a snapshot


@pytest.mark.parametrize("record", [1, 2])
def test_one_damaged_record_brings_no_deleted_topic_back(record: int) -> None:
    disk = MemoryFileSystem()
    node = CheckingNode(disk, sync=False)
    node.broker.topics.create(TopicConfig("gone", 4, 4))
    node.call("submit", [Message("gone", b"kept", queue_id=1)])
    assert node.broker.delete_topic("gone")
    node.turn.run_until_quiet()
    position, size, _ = node.store.units(topic_of("topic"), 0, record, 1)[0]
    node.stop()
    log = next(path for path in disk.snapshot() if "commitlog" in path.parts)
    handle = disk.open(log, create=False)
    disk.pwrite(handle, bytes(size), position)
    disk.close(handle)
    again = CheckingNode(disk, sync=False)
    assert "gone" not in again.broker.topics.topics
    again.broker.topics.create(TopicConfig("gone", 4, 4))
    assert again.broker.topics.first_offset("gone", 1) == 1
    again.stop()


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_topic_put_aside_is_served_unless_its_row_says_that_it_is_deleted(used: bool, deleted: bool) -> None:
    """Were one without a record not there, its first use would make it, and replace the row that another version can read."""
    disk = MemoryFileSystem()
    node = CheckingNode(disk, sync=False)
    node.broker.topics.create(TopicConfig("t", 2, 2))
    if used:
        node.call("submit", [Message("t", b"kept", queue_id=1)])
    node.turn.run_until_quiet()
    row = TopicConfig("t", 2, 2, deleted=deleted).to_bytes().replace(b'"perm":6', b'"perm":"6"')
    node.store.append([item_message("topic", "t", row)], [()])
    node.stop()
    again = CheckingNode(disk, sync=False)
    assert ("t" in again.broker.topics.topics) is not deleted
    if not deleted:
        again.call("submit", [Message("t", b"more", queue_id=0)])
        again.turn.run_until_quiet()
    assert again.broker.tables.quarantined("topic") == {"t": row}
    again.stop()


def test_queues_that_can_be_read_of_an_offset_row_put_aside_are_kept_by_the_next_commit() -> None:
    disk = MemoryFileSystem()
    node = CheckingNode(disk, sync=False)
    used(node)
    node.store.append([item_message("offset", "t@g1", b'{"0":2,"1":"x","x":1,"2":-1}')], [()])
    node.stop()
    again = CheckingNode(disk, sync=False)
    assert again.broker.offsets.all_of("g1", "t") == {0: 2}
    again.broker.commits.commit("g1", "t", 3, 0)
    again.broker.commits.write()
    again.turn.run_until_quiet()
    again.stop()
    assert CheckingNode(disk, sync=False).broker.offsets.all_of("g1", "t") == {0: 2, 3: 0}


def test_an_offset_row_that_was_put_aside_is_kept_when_the_group_commits() -> None:
    """In the batch of the row that takes its place; also if that batch is refused the first time."""
    disk = CrashFiles()
    node = CheckingSnapshots(disk)
    used(node)
    unread = {"t@g1": b"of a later version", "t@g2": b'{"0":"x"}'}
    node.store.append([item_message("offset", key, value) for key, value in unread.items()], [()] * 2)
    again = CheckingSnapshots(disk.after_process_crash())
    assert again.broker.tables.quarantined("offset") == unread
    offsets = again.broker.offsets
    offsets.commit("g1", "t", 0, 1)
    rows = offsets.take_dirty()
    assert rows == [("unread", "offset/t@g1", unread["t@g1"]), ("offset", "t@g1", b'{"0":1}')]
    offsets.written(rows, lambda: None, GantryError(ErrorCode.STORE_FULL, "full"))
    again.broker.commits.commit("g1", "t", 0, 2)
    again.broker.commits.write()
    again.turn.run_until_quiet()
    assert again.broker.tables.rows("unread") == {"offset/t@g1": unread["t@g1"]}
    offsets.commit("g1", "t", 0, 3)
    assert [row[0] for row in offsets.take_dirty()] == ["offset"], "once"
    again.make()
    last = CheckingSnapshots(again.disk.after_process_crash())
    assert last.broker.tables.rows("unread") == {"offset/t@g1": unread["t@g1"]}
    assert last.broker.offsets.all_of("g1", "t") == {0: 2}
    assert last.broker.tables.quarantined("offset") == {"t@g2": unread["t@g2"]}, "nobody has committed there"


def test_with_its_group_a_row_that_was_put_aside_goes() -> None:
    disk = MemoryFileSystem()
    node = CheckingNode(disk, sync=False)
    used(node)
    node.store.append([item_message("offset", "t@g1", b'{"0":2,"1":"x"}')], [()])
    node.stop()
    again = CheckingNode(disk, sync=False)
    assert [row for rows in again.broker.offsets.drop([("t", "g1")]) for row in rows] == [("offset", "t@g1", None)]
    again.broker.commits.commit("g1", "t", 0, 1)
    assert [row[0] for row in again.broker.offsets.take_dirty()] == ["offset"]


class CheckingSnapshots(SnapshotNode):
    def prepare(self) -> None:
        super().prepare()
        self.broker.row_checks = ALL_CHECKS


def test_rows_that_were_put_aside_stay_in_snapshots() -> None:
    """Whoever can read them, a newer version say, finds them again."""
    disk = CrashFiles()
    node = CheckingSnapshots(disk)
    light = used(node)
    for table in GARBAGE:
        spoil(node, table)
    again = CheckingSnapshots(disk.after_process_crash())
    again.make()
    last = CheckingSnapshots(again.disk.after_process_crash())
    for table, rows in GARBAGE.items():
        assert last.broker.tables.quarantined(table) == dict(rows)
    check_used(last, light)


class CheckingKeeper(KeepingNode):
    def prepare(self) -> None:
        self.broker.row_checks = ALL_CHECKS


def test_rows_that_were_put_aside_outlive_their_segment() -> None:
    disk = MemoryFileSystem()
    node = CheckingKeeper(disk)
    node.broker.topics.create(TopicConfig("t", 1, 1))
    node.turn.run_until_quiet()
    spoil(node, "topic")
    node.stop()
    again = CheckingKeeper(disk, node.clock)
    again.send(200)
    assert again.retain(hours=3) > 0
    again.stop()
    last = CheckingKeeper(disk, node.clock)
    assert last.broker.tables.quarantined("topic") == dict(GARBAGE["topic"])
    last.stop()
