"""Messages that are rows of a table, too: one record, so that no crash leaves one without the other."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.broker.tables.snapshots import Snapshots
from gantrymq.model import names
from gantrymq.model import properties as props
from gantrymq.model.message import Message
from gantrymq.model.tables import message_rows
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.keeping import KeepingNode
from tests.broker.node import Node
from tests.broker.tables.test_snapshots import PLACE, SnapshotNode, same_both_ways
from tests.store.crash_states import MODES, CrashFiles, draw_mode

TABLE = "kept"
QUEUE = names.OWN_ROWS_PREFIX + TABLE
KEYS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\x01\x02"), min_size=1, max_size=20)


def row_message(key: str, body: bytes, head: bytes = b"H", topic: str = "t") -> Message:
    message = Message(topic, body, message_rows.row_pair(key, head), queue_id=0)
    message.lmq = message_rows.queues_of(TABLE)
    return message


def rows(node: Node) -> dict[str, bytes]:
    return dict(node.broker.tables.rows(TABLE))


def stored(node: Node) -> dict[str, bytes]:
    """What the messages of topic `t` say that the table has."""
    found: dict[str, bytes] = {}
    units = node.store.units("t", 0, node.store.min_offset("t", 0), 10_000)
    for message in node.store.get_many([unit[:2] for unit in units]):
        assert message is not None
        row = message_rows.row_of(message.properties, message.body)
        assert row is not None
        key, value = row
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found


@given(key=KEYS, head=st.binary(max_size=40), body=st.binary(max_size=40))
def test_the_property_says_key_and_value(key: str, head: bytes, body: bytes) -> None:
    pair = props.encode([("a", "b")]) + message_rows.row_pair(key, head)
    assert message_rows.row_of(pair, body) == (key, head + body if body else None)
    assert message_rows.key_of(pair) == key


@pytest.mark.parametrize("text", ["", "x", "*** key", " key", "QQ= key"])
def test_a_property_that_is_none_is_no_row(text: str) -> None:
    found = message_rows.row_of(props.encode([(props.ROW, text)]), b"body")
    assert found is None or found == ("key", b"body")


def test_one_append_is_message_and_row() -> None:
    node = Node(MemoryFileSystem(), False)
    told: list[tuple[str, bytes | None]] = []
    node.broker.tables.watch(TABLE, lambda key, value: told.append((key, value)))
    node.call("ensure_topic", "t", True)
    before = node.store.written_position
    node.call("submit", [row_message("a", b"1"), row_message("b", b"2"), row_message("a", b"")])
    assert rows(node) == {"b": b"H2"}
    assert told == [("a", b"H1"), ("b", b"H2"), ("a", None)]
    records = node.store.max_offset("t", 0) + node.store.max_offset(names.SYSTEM_PREFIX + TABLE, 0)
    assert (records, node.store.max_offset(QUEUE, 0)) == (3, 3)
    assert node.store.written_position - before < 3 * 300


def test_rows_and_messages_that_are_rows_are_replayed_in_the_order_of_the_log() -> None:
    node = Node(MemoryFileSystem(), False)
    lot = random.Random(3)
    wanted: dict[str, bytes] = {}
    for number in range(200):
        key, body = f"k{lot.randrange(12)}", b"%d" % number if lot.random() < 0.8 else b""
        if lot.random() < 0.5:
            node.call("put", TABLE, [(key, b"P" + body if body else None)])
            wanted[key] = b"P" + body
        else:
            node.call("submit", [row_message(key, body)])
            wanted[key] = b"H" + body
        if not body:
            del wanted[key]
        assert rows(node) == wanted
        if number % 40 == 20:
            node = Node(node.files.after_process_crash(), False)
            assert rows(node) == wanted
    node.stop()
    assert rows(Node(node.files, False)) == wanted


@pytest.mark.parametrize("row_first", [True, False])
def test_a_row_in_one_piece_with_messages_in_the_same_turn_keeps_its_place(row_first: bool) -> None:
    node = Node(MemoryFileSystem(), False)
    node.call("ensure_topic", "t", True)

    def done(token: Any, result: Any) -> None:
        assert isinstance(result, list)

    def put() -> None:
        node.port.submit([Message("t", b"m", queue_id=0)], None, done, 1, rows=[(TABLE, "k", b"row")])

    if row_first:
        put()
    node.port.submit([row_message("k", b"message")], None, done, 1)
    if not row_first:
        put()
    node.turn.run_until_quiet()
    assert rows(node) == {"k": b"Hmessage" if row_first else b"row"}
    assert rows(Node(node.files.after_process_crash(), False)) == rows(node)


@pytest.mark.parametrize("mode", [*MODES, "killed"])
def test_no_crash_leaves_a_message_without_its_row_or_a_row_without_its_message(mode: str) -> None:
    for stop in range(3, 60):
        node = SnapshotNode(CrashFiles(), sync=True)
        lot = random.Random(stop)
        states: list[dict[str, bytes]] = [{}]
        acknowledged = 0
        node.disk.power_cut_at = len(node.disk.operations) + stop
        try:
            node.call("ensure_topic", "t", True)
            for number in range(30):
                key, body = f"k{lot.randrange(6)}", b"%d" % number if lot.random() < 0.8 else b""
                states.append({k: v for k, v in states[-1].items() if k != key} | ({key: b"H" + body} if body else {}))
                node.call("submit", [row_message(key, body)])
                acknowledged += 1
                if number == 15:
                    node.make()
        except BaseException as error:
            if type(error).__name__ != "PowerCut":
                raise
        node.disk.power_cut_at = -1
        after = same_both_ways(draw_mode(node.disk, mode, lot))
        assert rows(after) == stored(after)
        assert rows(after) in states[acknowledged:]


def test_snapshots_cover_them_and_one_that_does_not_know_of_them_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    node = SnapshotNode(CrashFiles())
    node.call("submit", [row_message(f"k{number}", b"%d" % number) for number in range(20)])
    node.make()
    node.call("submit", [row_message("k1", b""), row_message("k2", b"new")])
    after = same_both_ways(node.disk.after_process_crash())
    assert len(rows(after)) == 19
    assert rows(after)["k2"] == b"Hnew"
    assert 0 < after.snapshots.changes() < 4

    whole = Snapshots._offsets

    def without(self: Snapshots) -> dict[str, int]:
        return {topic: at for topic, at in whole(self).items() if not topic.startswith(names.OWN_ROWS_PREFIX)}

    monkeypatch.setattr(Snapshots, "_offsets", without)
    after.call("put", TABLE, [("k2", b"by an earlier version")])
    after.make()
    monkeypatch.undo()
    again = SnapshotNode(after.disk.after_process_crash())
    assert len(again.files.list_dir(PLACE)) == 1, "that one is gone, the one before it is used"
    assert rows(again)["k2"] == b"by an earlier version"
    assert len(rows(again)) == 19


def test_retention_keeps_the_rows_and_lets_the_messages_go() -> None:
    node = KeepingNode(MemoryFileSystem())
    node.call("submit", [row_message(f"k{number}", b"%d" % number * 50) for number in range(40)])
    node.call("submit", [row_message("k3", b""), row_message("k4", b"newer")])
    wanted = rows(node)
    assert len(wanted) == 39
    node.send(300, topic="other")
    assert node.retain(hours=2) >= 3
    assert node.store.units("t", 0, 0, 1) == []
    assert node.store.log_min_position > 0
    assert rows(node) == wanted
    for clean in (False, True):
        if clean:
            node.stop()
        node = KeepingNode(node.files if clean else node.files.after_process_crash(), node.clock)
        assert rows(node) == wanted
        node.call("submit", [row_message("k5", b"after"), row_message("k6", b"")])
        wanted |= {"k5": b"Hafter"}
        wanted.pop("k6", None)
        assert rows(node) == wanted


def test_a_damaged_one_is_listed_and_the_others_are_rows() -> None:
    node = Node(MemoryFileSystem(), False)
    node.call("submit", [row_message(f"k{number}", b"%d" % number) for number in range(5)])
    at = node.store.units(QUEUE, 0, 2, 1)[0][0]
    files = node.files.after_process_crash()
    path = next(path for path in files.snapshot() if "commitlog" in path.parts)
    handle = files.open(path, False)
    files.pwrite(handle, b"\xff", at + 89)
    files.close(handle)
    node.flush()
    found = Node(files, False)
    assert "k2" not in rows(found)
    assert {"k0", "k1"} <= rows(found).keys()


def test_the_queue_is_nobody_s_topic() -> None:
    node = Node(MemoryFileSystem(), False)
    node.call("submit", [row_message("k", b"1")])
    assert names.is_own_system_topic(QUEUE)
    assert [info.name for info in node.call("topics")] == ["t"]
    assert QUEUE not in [config.name for config in node.broker.topics.configs()]
    assert [row[0] for row in node.broker.tables.rows("topic").items()] == ["t"]
    after = Node(node.files.after_process_crash(), False)
    assert QUEUE not in [config.name for config in after.broker.topics.configs()]
    assert list(after.broker.tables.rows("topic")) == ["t"]
