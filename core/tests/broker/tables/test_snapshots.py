"""Snapshots: a start from one gives what a replay of everything gives; one that is not true of the log is never used."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gantrymq.broker.port import EARLIEST, Outcome
from gantrymq.broker.tables.snapshots import CHUNK_BYTES, Snapshots, SnapshotWork
from gantrymq.model.indexes import packed
from gantrymq.model.indexes.packed import PackedRows
from gantrymq.model.message import Message
from gantrymq.store.checkpoints.snapshot_file import (
    KEPT,
    SHARED_BYTES,
    BlockKind,
    SnapshotError,
    SnapshotFiles,
    read_rows,
    rows_block,
)
from tests.broker.node import ROOT, Node
from tests.store.crash_states import MODES, CrashFiles, LyingFiles, draw_mode

PLACE = ROOT / "gantry" / "snapshots"


class SnapshotNode(Node):
    """A node that keeps snapshots; with `use` False one that replays everything."""

    def __init__(self, files: CrashFiles, sync: bool = False, use: bool = True) -> None:
        self.use = use
        self.snapshot_files = SnapshotFiles(files, PLACE)
        super().__init__(files, sync)

    @property
    def disk(self) -> CrashFiles:
        assert isinstance(self.files, CrashFiles)
        return self.files

    def prepare(self) -> None:
        if self.use:
            self.snapshots = self.broker.keep_snapshots(self.snapshot_files)
            self.waiting: list[Any] = []
            self.work = SnapshotWork(
                self.snapshots, self.snapshot_files, self.store, self.wheel, lambda call, done: self._thread(call, done)
            )

    def _thread(self, call: Any, done: Any) -> None:
        try:
            call()
        except OSError as error:
            done(error)
        else:
            done(None)

    def make(self) -> None:
        """A whole snapshot, flushed."""
        self.work.begin()
        self.finish()

    def finish(self) -> None:
        self.flush()
        for _ in range(1000):
            if not self.work.busy:
                return
            self.wheel.advance(50)
            self.flush()
        raise AssertionError("not finished")

    def state(self) -> tuple[dict[str, dict[str, bytes]], dict[int, Any]]:
        """Rows and windows as they are."""
        tables = {name: dict(rows) for name, rows in self.broker.tables._tables.items() if rows}
        windows = {
            cursor.id: (cursor.queue, window.floor, window.next_offset, window.marked, window.returned, window.counts)
            for cursor in self.broker.cursors.views()
            for window in (cursor.window,)
        }
        return tables, windows


def same_both_ways(files: CrashFiles) -> SnapshotNode:
    """A node started from the snapshot, after it was compared with one that replays everything."""
    plain = SnapshotNode(files.after_process_crash(), use=False)
    node = SnapshotNode(files.after_process_crash())
    assert node.state() == plain.state()
    return node


def filled(files: CrashFiles | None = None) -> tuple[SnapshotNode, int]:
    node = SnapshotNode(files or CrashFiles())
    node.call("ensure_topic", "t", True)
    for number in range(20):
        node.call("put", "x", [(f"k{number}", b"v%d" % number), ("schlüssel", b"")])
    node.call("put", "x", [("k3", None)])
    cursor = node.call("open_cursor", "t/0", "g", EARLIEST).cursor
    node.call("submit", [Message("t", b"%d" % number, queue_id=0) for number in range(30)])
    got = node.call("acquire", cursor, 1, 20, 1 << 20)
    node.port.settle([(cursor, delivery.offset, Outcome.ACK) for delivery in got if delivery.offset % 3])
    node.port.settle([(cursor, delivery.offset, Outcome.REQUEUE) for delivery in got if not delivery.offset % 6])
    node.turn.run_until_quiet()
    return node, cursor


def test_start_from_a_snapshot_replays_only_what_followed() -> None:
    node, cursor = filled()
    node.make()
    node.call("put", "x", [("k1", None), ("new", b"1")])
    node.port.settle([(cursor, 3, Outcome.ACK)])
    node.turn.run_until_quiet()
    after = same_both_ways(node.disk.after_process_crash())
    assert after.broker.tables.rows("x")["new"] == b"1"
    assert "k3" not in after.broker.tables.rows("x")
    assert 0 < after.snapshots.changes() < 5


def test_packed_rows_are_in_the_next_one_with_what_changed_while_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "PACKED_MIN", 1)
    node = SnapshotNode(CrashFiles())
    lights = [node.call("create_light") for _ in range(100)]
    for light in lights[:50]:
        node.call("open_cursor", f"~{light}", "g", EARLIEST)
    node = same_both_ways(node.disk.after_process_crash())
    rows = node.broker.tables.rows("light")
    assert isinstance(rows, PackedRows)
    assert rows.resting >= 100
    node.call("delete_light", lights[3])
    node.work.begin()
    for light in lights[10:30]:
        node.work.step(1)
        node.call("delete_light", light)
        node.call("create_light")
    node.finish()
    node.call("delete_light", lights[50])
    after = same_both_ways(node.disk.after_process_crash())
    found = after.broker.tables.rows("light")
    gone = {lights[3], lights[50], *lights[10:30]}
    assert {int(key) for key in found if key != "next"} >= set(lights) - gone
    assert not [light for light in gone if str(light) in found]
    assert after.broker.tables.rows("cursor").keys() == node.broker.tables.rows("cursor").keys()


def test_without_change_a_clean_stop_writes_none_and_with_one_it_does() -> None:
    node, _ = filled()
    node.broker.close()
    node.snapshots.write_now()
    node.store.close()
    files = node.disk.after_process_crash()
    names = files.list_dir(PLACE)
    assert len(names) == 1
    after = same_both_ways(files)
    assert after.snapshots.changes() == 0
    after.snapshots.write_now()
    assert after.files.list_dir(PLACE) == names


def test_only_so_many_are_kept() -> None:
    node, _ = filled()
    for number in range(KEPT + 2):
        node.call("put", "x", [("n", b"%d" % number)])
        node.make()
    assert len(node.disk.list_dir(PLACE)) == KEPT


@pytest.mark.parametrize("cut", range(0, 600, 13))
def test_a_torn_or_damaged_one_is_ignored_and_removed(cut: int) -> None:
    node, _ = filled()
    node.make()
    node.call("put", "x", [("later", b"")])
    node.make()
    files = node.disk.after_process_crash()
    newest = PLACE / files.list_dir(PLACE)[-1]
    data = files._names[newest].data
    at = cut * len(data) // 600
    if cut % 2:
        del data[at:]
    else:
        data[at] ^= 0x40
    after = same_both_ways(files)
    assert newest.name not in after.files.list_dir(PLACE)
    assert "later" in after.broker.tables.rows("x")


def test_every_snapshot_damaged_means_full_replay() -> None:
    node, _ = filled()
    node.make()
    files = node.disk.after_process_crash()
    for name in files.list_dir(PLACE):
        files._names[PLACE / name].data[-1] ^= 1
    after = same_both_ways(files)
    assert after.files.list_dir(PLACE) == []


def test_it_gets_its_name_only_when_the_log_is_flushed_so_far() -> None:
    node, _ = filled()
    node.work.begin()
    for _ in range(100):
        node.wheel.advance(50)
    assert node.disk.list_dir(PLACE) == ["new.snapshot.tmp"]
    assert node.work.busy
    node.finish()
    assert [name[20:] for name in node.disk.list_dir(PLACE)] == [".snapshot"]


def test_what_changes_while_it_is_rendered_counts_once() -> None:
    node, cursor = filled()
    node.work.begin()
    node.work.step(1)  # the head: from here on records are replayed
    got = node.call("acquire", cursor, 1, 5, 1 << 20)
    node.port.settle([(cursor, delivery.offset, Outcome.REQUEUE) for delivery in got])
    node.call("put", "x", [("k1", None), ("while", b"1")])
    node.finish()
    after = same_both_ways(node.disk.after_process_crash())
    assert max(after.broker.cursors.by_id[cursor].window.counts.values()) == 2
    assert after.snapshots.changes() == 0


def test_every_entry_of_a_record_is_held_by_the_snapshot_or_replayed() -> None:
    """One record speaks of several cursors and in several kinds of entries: each is for the record's place in the log, not for an offset in
    an entry before it."""
    node, cursor = filled()
    other = node.call("open_cursor", "t/0", "h", EARLIEST).cursor
    mine, theirs = (node.call("acquire", number, 1, 15, 1 << 20) for number in (cursor, other))
    node.work.begin()
    node.work.step(1)  # the head: from here on records are replayed
    last = [(cursor, mine[-1].offset, Outcome.REQUEUE), (other, theirs[-1].offset, Outcome.REQUEUE)]
    node.port.settle(last)
    node.turn.run_until_quiet()
    while node.snapshots.tail.limit == 0:
        node.work.step(1)
    node.port.settle([(cursor, mine[0].offset, Outcome.REQUEUE), (cursor, mine[1].offset, Outcome.ACK)])
    node.port.settle([(other, theirs[0].offset, Outcome.REQUEUE), (other, theirs[1].offset, Outcome.ACK)])
    node.turn.run_until_quiet()
    node.finish()
    after = same_both_ways(node.disk.after_process_crash())
    for number, first in ((cursor, mine), (other, theirs)):
        window = after.broker.cursors.by_id[number].window
        assert window.is_done(first[1].offset)
        assert window.counts[first[-1].offset] == node.broker.cursors.by_id[number].window.counts[first[-1].offset]


def test_a_finished_one_outlives_power() -> None:
    node, _ = filled()
    node.make()
    node.flush()
    after = same_both_ways(draw_mode(node.disk, "lost", random.Random(0)))
    assert after.snapshots.changes() == 0


def test_records_that_retention_deleted_behind_it_make_it_useless() -> None:
    node = SnapshotNode(CrashFiles())
    node.call("put", "x", [("a", b"1"), ("b", b"1")])
    node.make()
    node.call("put", "x", [("a", None)])
    for _ in range(8):
        node.call("put", "y", [("large", bytes(30_000))])
    node.call("put", "x", [("b", b"1")])  # as retention does before it deletes the segment
    while node.store.run_background(1000):
        pass
    checkpoint = node.store.take_checkpoint(force=True)
    assert checkpoint is not None
    node.store.sync_checkpoint(checkpoint)
    segment = node.store.segments.oldest(node.store.flushed_position)
    assert segment is not None
    removal = node.store.segments.removal(segment[1])
    while not removal.step(1000):
        pass
    removal.unlink()
    after = same_both_ways(node.disk.after_process_crash())
    assert after.broker.tables.rows("x") == {"b": b"1"}
    assert after.files.list_dir(PLACE) == []


@pytest.mark.parametrize("mode", MODES)
def test_power_loss_at_every_operation_of_making_one(mode: str) -> None:
    node, _ = filled()
    node.flush()
    begin = len(node.disk.operations)
    node.make()
    end = len(node.disk.operations)
    assert end - begin > 4
    for stop in range(begin, end + 1):
        node, _ = filled()
        node.flush()
        flushed = node.store.flushed_position
        node.disk.power_cut_at = stop
        cut = False
        try:
            node.make()
        except BaseException as error:
            if type(error).__name__ != "PowerCut":
                raise
            cut = True
        node.disk.power_cut_at = -1
        assert cut == (stop < end)
        files = draw_mode(node.disk, mode, random.Random(stop))
        after = same_both_ways(files)
        assert after.report.end >= flushed
        assert after.broker.tables.rows("x")["k1"] == b"v1"


def test_a_disk_that_lies_is_found_out() -> None:
    """Negative control: had the log been lost below what the snapshot says, it is not believed."""
    node, _ = filled(LyingFiles())
    node.make()
    kept = {path for path in node.disk._names if path.is_relative_to(PLACE)}
    files = node.disk.after_power_loss(
        lambda path, count: [path in kept or path == min(node.disk._directories)] * count
    )
    assert len(files.list_dir(PLACE)) == 1
    after = SnapshotNode(files)
    assert after.files.list_dir(PLACE) == []
    assert after.snapshots.changes() == 0


def test_a_log_that_grew_again_with_other_records_is_noticed() -> None:
    node, _ = filled()
    node.make()
    name = node.disk.list_dir(PLACE)[0]
    data = bytes(node.disk._names[PLACE / name].data)
    other = SnapshotNode(CrashFiles(), use=False)  # same shape, other values
    other.call("ensure_topic", "t", True)
    for number in range(300):
        other.call("put", "x", [(f"k{number}", b"w%d" % number), ("schlüssel", b"")])
    other.flush()
    files = other.disk
    files.make_dirs(PLACE)
    handle = files.open(PLACE / name, True)
    files.pwrite(handle, data, 0)
    files.close(handle)
    after = same_both_ways(files)
    assert after.files.list_dir(PLACE) == []


def test_full_disk_gives_the_snapshot_up_and_nothing_else() -> None:
    node, _ = filled()
    node.disk.room_bytes = 100
    node.work.begin()
    for _ in range(100):
        node.wheel.advance(50)
    assert not node.work.busy
    node.disk.room_bytes = -1
    assert node.disk.list_dir(PLACE) == []
    node.make()
    assert len(node.disk.list_dir(PLACE)) == 1


def test_a_record_that_cannot_be_read_gives_up_this_one_and_not_all_to_come() -> None:
    node, _ = filled()

    def fault(operation: str, path: Path) -> OSError | None:
        return OSError(errno.EIO, "bad sector") if operation == "pread" and "commitlog" in path.parts else None

    node.work.begin()
    node.disk.fault = fault
    node.finish()
    node.disk.fault = lambda operation, path: None
    assert node.snapshot_files.names() == []
    node.make()
    assert len(node.snapshot_files.names()) == 1
    same_both_ways(node.disk.after_process_crash())


def test_large_rows_end_a_block_and_chunks_are_bounded() -> None:
    node, _ = filled()
    value = bytes(20_000)
    for number in range(120):
        node.call("put", "big", [(f"b{number}", value)])
    written: list[int] = []
    write = node.snapshot_files.write

    def note(data: bytes) -> None:
        written.append(len(data))
        write(data)

    node.snapshot_files.write = note  # type: ignore[method-assign]
    node.make()
    assert max(written) < CHUNK_BYTES + 100_000
    same_both_ways(node.disk)


def test_when_one_is_due() -> None:
    node, _ = filled()
    node.work.start(10_000, 60_000)
    assert not node.work.is_due(node.wheel.now_ms())
    node.work.records = node.snapshots.changes()
    assert node.work.is_due(node.wheel.now_ms())
    node.work.records = node.snapshots.changes() * 10
    assert not node.work.is_due(node.wheel.now_ms())
    assert node.work.is_due(node.wheel.now_ms() + 60_000)
    node.flush()
    node.wheel.advance(70_000)
    assert node.snapshots.changes() == 0
    node.work.stop()


@pytest.mark.parametrize("payload", [b"", b"\0\1x\0\0\0\5", b"\0\1x\xff\xff\xff\xff"])
def test_rows_that_do_not_add_up(payload: bytes) -> None:
    with pytest.raises((SnapshotError, ValueError, Exception)):
        read_rows(payload, {}, {})


def test_rows_block_round_trip() -> None:
    tables: dict[str, dict[str, bytes]] = {}
    data = rows_block("x", ["a", "zé", "長"], [b"1", b"", b"\xff" * 300])
    assert data[8] == BlockKind.ROWS
    read_rows(data[9:], tables, {})
    assert tables == {"x": {"a": b"1", "zé": b"", "長": b"\xff" * 300}}


class Histories(RuleBasedStateMachine):
    """Puts, deletes, acknowledgements, slices of a snapshot, crashes in any order: both starts are the same."""

    def __init__(self) -> None:
        super().__init__()
        self.node = SnapshotNode(CrashFiles())
        self.rows: list[tuple[str, bytes | None, int]] = []
        self.cursors: list[int] = []

    @initialize()
    def queues(self) -> None:
        self.node.call("ensure_topic", "t", True)
        for queue_id in range(2):
            for group in ("g", "h"):
                self.cursors.append(self.node.call("open_cursor", f"t/{queue_id}", group, EARLIEST).cursor)
        self.node.flush()

    @rule(key=st.sampled_from("abc"), value=st.none() | st.binary(max_size=3))
    def put(self, key: str, value: bytes | None) -> None:
        self.node.call("put", "x", [(key, value)])
        self.rows.append((key, value, self.node.store.written_position))

    @rule(queue_id=st.integers(0, 1), count=st.integers(1, 5))
    def send(self, queue_id: int, count: int) -> None:
        self.node.call("submit", [Message("t", b"x", queue_id=queue_id) for _ in range(count)])

    @rule(which=st.integers(0, 3), count=st.integers(1, 5), lot=st.randoms(use_true_random=False), turn=st.booleans())
    def work(self, which: int, count: int, lot: random.Random, turn: bool) -> None:
        cursor = self.cursors[which]
        got = self.node.call("acquire", cursor, 1, count, 1 << 20)
        outcomes = [Outcome.ACK, Outcome.REQUEUE, Outcome.RELEASE, Outcome.DROP]
        self.node.port.settle(
            [(cursor, delivery.offset, lot.choice(outcomes)) for delivery in got if lot.random() < 0.8]
        )
        if turn:
            self.node.turn.run_until_quiet()

    @rule(which=st.integers(0, 3))
    def purge(self, which: int) -> None:
        self.node.call("purge", self.cursors[which])

    @rule(which=st.integers(0, 3))
    def another_cursor(self, which: int) -> None:
        self.node.call("delete_cursor", self.cursors[which])
        name = f"t/{which // 2}"
        self.cursors[which] = self.node.call("open_cursor", name, "gh"[which % 2], EARLIEST).cursor

    @rule()
    def begin_snapshot(self) -> None:
        if not self.node.work.busy:
            self.node.work.begin()

    @rule()
    def slice_of_snapshot(self) -> None:
        self.node.work.step(1)

    @rule()
    def flush(self) -> None:
        self.node.flush()

    @rule()
    def time(self) -> None:
        self.node.wheel.advance(50)
        self.node.turn.run_until_quiet()

    @rule()
    def stop(self) -> None:
        self.node.work.stop()
        self.node.broker.close()
        self.node.snapshots.write_now()
        self.node.store.close()
        self._again(self.node.disk.after_process_crash())
        assert self.node.snapshots.changes() == 0

    @rule()
    def kill(self) -> None:
        self._again(self.node.disk.after_process_crash())

    @rule(mode=st.sampled_from(MODES), seed=st.integers(0, 1 << 20))
    def power_loss(self, mode: str, seed: int) -> None:
        self.node.flush()
        self._again(draw_mode(self.node.disk, mode, random.Random(seed)))

    @rule(mode=st.sampled_from(MODES), seed=st.integers(0, 1 << 20))
    def power_loss_unflushed(self, mode: str, seed: int) -> None:
        flushed = self.node.store.flushed_position
        self._again(draw_mode(self.node.disk, mode, random.Random(seed)))
        assert self.node.report.end >= flushed
        for which, cursor in enumerate(self.cursors):  # a definition may have gone with the power
            if not self.node.broker.cursors.has_id(cursor):
                name = f"t/{which // 2}"
                self.cursors[which] = self.node.call("open_cursor", name, "gh"[which % 2], EARLIEST).cursor

    def _again(self, files: CrashFiles) -> None:
        self.node = same_both_ways(files)
        self.rows = [row for row in self.rows if row[2] <= self.node.report.end]
        expected: dict[str, bytes] = {}
        for key, value, _ in self.rows:
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = value
        assert self.node.broker.tables.rows("x") == expected


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_files_of_a_directory_that_is_not_there() -> None:
    assert SnapshotFiles(CrashFiles(), Path("/nowhere")).names() == []
    assert Snapshots.__doc__


def test_equal_values_of_a_snapshot_are_one_object() -> None:
    row = b"r" * SHARED_BYTES
    tables: dict[str, dict[str, bytes]] = {}
    shared: dict[Any, Any] = {}
    for table, values in (("a", [row, bytes(bytearray(row))]), ("b", [bytes(bytearray(row)), row + b"."])):
        read_rows(rows_block(table, ["1", "2"], values)[9:], tables, shared)
    assert tables["a"]["1"] is tables["a"]["2"] is tables["b"]["1"]
    assert tables["b"]["2"] == row + b"."
    known = len(shared)
    read_rows(rows_block("c", ["1", "3"], [row, row])[9:], tables, shared, ("c",))
    assert tables["c"] == {"1": row, "3": row}
    assert len(shared) == known, "these are packed next"
