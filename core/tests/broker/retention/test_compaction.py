"""Compacted topics: the last value of every key is there, whatever was compacted, deleted, crashed or lost with the power."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gantrymq.broker.port import EARLIEST, Outcome
from gantrymq.broker.retention import compaction
from gantrymq.broker.retention.compaction import DIRTY_MIN, RECORDS_MAX, TOMBSTONE_MS
from gantrymq.broker.slices import Slices
from gantrymq.broker.topics import TopicConfig
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.store.checkpoints.positions import Positions
from gantrymq.store.queues.compaction import VIRTUAL
from gantrymq.store.queues.consume_queue import HOLE_SIZE
from tests.broker.node import ROOT, Node, compaction_of
from tests.store.crash_states import MODES, CrashFiles, draw_mode

PLACE = ROOT / "gantry" / "compaction" / "c" / "0"
POLICY = {"cleanup.policy": "COMPACTION"}


class Hand:
    """`Background` that a test drives."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def in_thread(self, work: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        try:
            work()
        except OSError as error:
            done(error)
        else:
            done(None)

    def later(self, call: Callable[[], None]) -> None:
        self.waiting.append(call)

    def run(self) -> None:
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()


class CompactNode(Node):
    def __init__(self, files: CrashFiles) -> None:
        super().__init__(files, False)
        self.hand = Hand()
        self.compaction = compaction_of(self.broker, self.hand)

    @property
    def disk(self) -> CrashFiles:
        assert isinstance(self.files, CrashFiles)
        return self.files

    def put(self, key: str, body: bytes, queue_id: int = 0) -> Any:
        properties = props.encode([(props.KEYS, key)] if key else [])
        return self.call("submit", [Message("c", body, properties, keys=(key,), queue_id=queue_id)])[0]

    def compact(self) -> None:
        self.compaction.begin(force=True)
        for _ in range(10_000):
            self.flush()
            if not self.compaction.busy:
                return
            self.hand.run()
        raise AssertionError("not finished")

    def read(self, queue_id: int = 0) -> list[tuple[int, Message]]:
        """Every record that a reader gets, from the first offset on."""
        store = self.store
        found = []
        offset, end = self.broker.min_offset("c", queue_id), store.max_offset("c", queue_id)
        while offset < end:
            units = store.units("c", queue_id, offset, 7)
            assert units, (offset, end)
            for at, unit in enumerate(units, offset):
                if unit[1] != HOLE_SIZE:
                    (message,) = store.get_many([(unit[0], unit[1])])
                    assert message is not None
                    assert message.queue_offset == at
                    pieces, _ = store.read_records([unit], unit[1])
                    assert len(b"".join(pieces)) == unit[1]
                    found.append((at, message))
            offset += len(units)
        return found

    def values(self, queue_id: int = 0) -> dict[str, bytes]:
        """Key to value, as a reader that replays the topic has it."""
        found: dict[str, bytes] = {}
        for _, message in self.read(queue_id):
            key = message.property(props.KEYS)
            found.pop(key, None)
            if message.body:
                found[key] = message.body
        return found

    def drop_log(self) -> int:
        """Remove every segment that nothing needs; their number."""
        count = 0
        while self.store.run_background(1000):
            pass
        checkpoint = self.store.take_checkpoint(force=True)
        if checkpoint is not None:
            self.store.sync_checkpoint(checkpoint)
        while (
            segment := self.store.segments.oldest(min(self.store.flushed_position, self.store.derived_position))
        ) is not None:
            removal = self.store.segments.removal(segment[1])
            while not removal.step(1000):
                pass
            removal.unlink()
            count += 1
        return count


def compacted(files: CrashFiles | None = None) -> CompactNode:
    node = CompactNode(files or CrashFiles())
    node.broker.topics.create(TopicConfig("c", 2, 2, attributes=dict(POLICY)))
    node.turn.run_until_quiet()
    return node


def test_last_value_of_each_key_stays_and_offsets_too() -> None:
    node = compacted()
    for number in range(20):
        node.put(f"k{number % 3}", b"%d" % number)
    node.compact()
    assert [(at, message.body) for at, message in node.read()] == [(17, b"17"), (18, b"18"), (19, b"19")]
    assert node.broker.min_offset("c", 0) == 0
    node.put("k0", b"new")
    assert [at for at, _ in node.read()] == [17, 18, 19, 20]
    node.compact()
    assert [at for at, _ in node.read()] == [17, 19, 20]
    assert len(node.files.list_dir(PLACE)) == 2, "the file that readers may still be at, and the new one"
    node.put("k1", b"again")
    node.compact()
    assert len(node.files.list_dir(PLACE)) == 2


def test_a_record_without_key_is_refused() -> None:
    node = compacted()
    assert node.put("", b"x") is ErrorCode.MESSAGE_ILLEGAL
    assert node.put(" ", b"x") is ErrorCode.MESSAGE_ILLEGAL
    assert node.put("k", b"x") == 0


def test_the_policy_cannot_be_changed() -> None:
    node = compacted()
    with pytest.raises(GantryError, match="cannot be changed"):
        node.broker.topics.create(TopicConfig("c", 2, 2))
    node.broker.topics.create(TopicConfig("c", 4, 4, attributes=dict(POLICY)))
    assert node.broker.topics.topics["c"].compacted


def test_tombstones_can_be_read_for_a_day_and_go_with_their_key() -> None:
    node = compacted()
    node.put("a", b"1")
    node.put("b", b"1")
    node.put("a", b"")
    node.compact()
    assert [(at, message.body) for at, message in node.read()] == [(1, b"1"), (2, b"")]
    node.wheel.manual_clock.advance(TOMBSTONE_MS + 1)
    node.put("b", b"2")
    node.compact()
    assert [(at, message.body) for at, message in node.read()] == [(3, b"2")]


def test_log_goes_only_when_it_is_compacted_and_the_values_stay() -> None:
    node = compacted()
    for number in range(60):
        node.put(f"k{number % 7}", b"%d " % number * 2000)
    node.flush()
    assert node.drop_log() == 0
    node.compact()
    assert node.drop_log() > 3
    expected = {f"k{number % 7}": b"%d " % number * 2000 for number in range(60)}
    assert node.values() == expected
    assert node.store.units("c", 0, 59, 1)[0][0] > VIRTUAL
    after = CompactNode(node.disk.after_process_crash())
    assert after.values() == expected
    after.put("k0", b"new")
    after.compact()
    assert after.values() == expected | {"k0": b"new"}
    after.stop()
    assert after.files.open_handles == 0


@pytest.mark.parametrize("left", [(), ("00000000000000000000",)])
def test_a_queue_that_is_gone_goes_on_behind_its_file(left: tuple[str, ...]) -> None:
    """Its directory was lost, and the log has none of its records: they would take offsets that the file has, and nobody would see them."""
    node = compacted()
    for number in range(30):
        node.put(f"k{number % 7}", b"%d " % number * 2000)
    for number in range(30):
        node.put("other", b"%d " % number * 2000, 1)
    node.compact()
    assert node.drop_log() > 3
    expected = {f"k{number % 7}": b"%d " % number * 2000 for number in range(30)}
    assert node.store.min_offset("c", 0) == 0
    files = node.disk.after_process_crash()
    directory = ROOT / "store" / "consumequeue" / "c" / "0"
    for name in files.list_dir(directory):
        files.remove(directory / name)
    for name in left:  # an empty one, as a crash leaves it
        files.close(files.open(directory / name, True))
    after = CompactNode(files)
    assert after.store.max_offset("c", 0) == 30
    assert after.values() == expected
    once_more = CompactNode(after.disk.after_process_crash())
    assert once_more.put("k0", b"new") == 30
    assert [at for at, _ in once_more.read()][-2:] == [29, 30]
    assert once_more.values() == expected | {"k0": b"new"}
    again = CompactNode(once_more.disk.after_process_crash())
    assert again.values() == expected | {"k0": b"new"}
    assert again.store.max_offset("c", 0) == 31


def test_log_behind_the_last_run_is_needed() -> None:
    node = compacted()
    node.put("a", b"1")
    node.compact()
    for number in range(30):
        node.put(f"k{number}", b"%d " % number * 4000)
    node.flush()
    before = node.values()
    assert node.drop_log() == 0
    assert node.values() == before
    node.compact()
    assert node.drop_log() > 3
    assert node.values() == before


def test_a_file_knows_nothing_that_is_not_flushed() -> None:
    node = compacted()
    node.put("a", b"1")
    node.compaction.begin(force=True)
    for _ in range(50):
        node.hand.run()
    assert node.compaction.busy
    assert [name for name in node.files.list_dir(PLACE) if name.endswith(".compacted")] == []
    node.flush()
    node.hand.run()
    assert [name for name in node.files.list_dir(PLACE) if name.endswith(".compacted")] != []


def test_by_time() -> None:
    node = compacted()
    for number in range(10):
        node.put(f"k{number}", b"%d" % number)
        node.wheel.manual_clock.advance(1000)
    times = [message.store_ms for _, message in node.read()]
    before = [node.store.offset_by_time("c", 0, ms, lower) for ms in times for lower in (True, False)]
    node.compact()
    assert [node.store.offset_by_time("c", 0, ms, lower) for ms in times for lower in (True, False)] == before


def test_cursor_passes_over_gaps_and_goes_on_in_the_log() -> None:
    node = compacted()
    for number in range(100):
        node.put(f"k{number % 5}", b"%d" % number)
    node.compact()
    node.put("x", b"last")
    cursor = node.call("open_cursor", "c/0", "g", EARLIEST).cursor
    got: list[bytes] = []
    for _ in range(100):
        deliveries = node.call("acquire", cursor, 1, 8, 1 << 20)
        got += [delivery.message.body for delivery in deliveries]
        node.port.settle([(cursor, delivery.offset, Outcome.ACK) for delivery in deliveries])
        node.turn.run_until_quiet()
    assert got == [b"95", b"96", b"97", b"98", b"99", b"last"]


def test_a_deleted_topic_loses_its_files_and_comes_back_empty() -> None:
    node = compacted()
    node.put("a", b"old")
    node.compact()
    assert node.broker.delete_topic("c")
    node.broker.topics.create(TopicConfig("c", 2, 2, attributes=dict(POLICY)))
    node.turn.run_until_quiet()
    assert node.read() == []
    assert node.put("b", b"new") == 1
    node.compact()
    assert node.values() == {"b": b"new"}
    assert node.broker.delete_topic("c")
    node.turn.run_until_quiet()
    node.compact()
    assert node.files.list_dir(PLACE) == []


def test_a_damaged_file_is_not_used() -> None:
    node = compacted()
    for number in range(10):
        node.put("a", b"%d" % number)
        node.put(f"b{number}", b"")
    node.compact()
    files = node.disk.after_process_crash()
    files._names[PLACE / files.list_dir(PLACE)[0]].data[-50] ^= 1
    after = CompactNode(files)
    assert after.store.compacted.end("c", 0) == 0
    assert after.values() == {"a": b"9"}


def test_a_file_beyond_the_end_of_its_queue_is_cut() -> None:
    """Only a disk that lied makes one: new records take the offsets, and must be seen."""
    node = compacted()
    for number in range(90):
        node.put(f"k{number}", b"%d " % number * 1500)
        if number == 50:
            node.compact()
            assert node.drop_log() > 1
    node.compact()
    queue = node.store._queues.find("c", 0)
    assert queue is not None
    assert 0 < queue.min_offset < 50
    files = node.disk.after_process_crash()
    last = files.list_dir(ROOT / "store" / "commitlog")[-1]
    files.remove(ROOT / "store" / "commitlog" / last)
    positions = Positions(files, ROOT / "gantry" / "positions")
    positions.open()
    positions.save(min(positions.flushed, int(last)), min(positions.derived, int(last)))
    positions.close()
    after = CompactNode(files)
    end = after.store.max_offset("c", 0)
    assert 50 < end < 90
    assert after.put("k0", b"new") == end
    seen = [at for at, _ in after.read()]
    assert seen == list(range(end + 1))
    again = CompactNode(after.disk.after_process_crash())
    assert [at for at, _ in again.read()] == seen
    assert again.values()["k0"] == b"new"


def test_full_disk_gives_the_run_up_and_the_old_file_stays() -> None:
    node = compacted()
    node.put("a", b"1" * 1000)
    node.compact()
    node.put("b", b"2" * 1000)
    node.store.flush()
    node.files.room_bytes = 10
    node.compact()
    node.files.room_bytes = -1
    assert node.store.compacted.end("c", 0) == 1
    assert len(node.files.list_dir(PLACE)) == 1
    node.compact()
    assert node.store.compacted.end("c", 0) == 2
    assert node.values() == {"a": b"1" * 1000, "b": b"2" * 1000}


def test_topics_are_looked_through_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    node = compacted()
    node.put("a", b"1")
    for number in range(6):
        node.broker.topics.create(TopicConfig(f"t{number}", 1, 1))
    monkeypatch.setattr(compaction, "TOPICS_STEP", 2)
    found = []

    def check() -> Slices[None]:
        found.extend((yield from node.compaction._queues()))

    looked = list(check())
    assert found == [("c", 0)]
    assert len(looked) == (len(node.broker.topics.topics) + 1) // 2


def test_when_it_is_due() -> None:
    node = compacted()
    node.put("a", b"1")
    node.flush()
    node.compaction.start()
    node.hand.run()
    assert node.compaction.runs == 0
    for number in range(DIRTY_MIN):
        node.call("submit", [Message("c", b"%d" % number, props.encode([(props.KEYS, "a")]), queue_id=0)])
    node.flush()
    node.wheel.advance(6_000)
    for _ in range(1000):
        node.flush()
        node.hand.run()
    assert node.compaction.runs == 1
    assert len(node.read()) == 1
    assert RECORDS_MAX > DIRTY_MIN


@pytest.mark.parametrize("mode", MODES)
def test_power_loss_at_every_operation_of_a_run(mode: str) -> None:
    def begin() -> CompactNode:
        node = compacted()
        for number in range(12):
            node.put(f"k{number % 4}", b"%d" % number)
        node.compact()
        node.drop_log()
        for number in range(12):
            node.put(f"k{number % 5}", b"%d " % number * 4000)
        node.flush()
        return node

    node = begin()
    first = len(node.disk.operations)
    node.compact()
    node.drop_log()
    last = len(node.disk.operations)
    expected = node.values()
    assert last - first > 8
    for stop in range(first, last + 1):
        node = begin()
        node.disk.power_cut_at = stop
        try:
            node.compact()
            node.drop_log()
        except BaseException as error:
            if type(error).__name__ != "PowerCut":
                raise
        after = CompactNode(draw_mode(node.disk, mode, random.Random(stop)))
        assert after.values() == expected, stop
        after.compact()
        assert after.values() == expected
        assert not [name for name in after.files.list_dir(PLACE) if name.endswith(".tmp")]


class Histories(RuleBasedStateMachine):
    """Puts, deletes, runs of compaction in slices, deleted segments, crashes: readers have the last value of every key."""

    def __init__(self) -> None:
        super().__init__()
        self.node = compacted()
        self.written: list[tuple[int, str, bytes, int]] = []
        self.number = 0

    @initialize()
    def flushed(self) -> None:
        self.node.flush()

    @rule(key=st.sampled_from("abc"), queue_id=st.integers(0, 1), size=st.sampled_from([0, 1, 9_000]))
    def put(self, key: str, queue_id: int, size: int) -> None:
        self.number += 1
        body = (b"%d " % self.number * (size // 2 + 1))[:size]
        self.node.put(key, body, queue_id)
        self.written.append((queue_id, key, body, self.node.store.written_position))

    @rule()
    def begin_compaction(self) -> None:
        if not self.node.compaction.busy:
            self.node.compaction.begin(force=True)

    @rule()
    def slice_of_compaction(self) -> None:
        self.node.hand.run()

    @rule()
    def whole_compaction(self) -> None:
        if not self.node.compaction.busy:
            self.node.compact()

    @rule()
    def delete_segments(self) -> None:
        self.node.flush()
        self.node.drop_log()

    @rule()
    def flush(self) -> None:
        self.node.flush()

    @rule()
    def check(self) -> None:
        for queue_id in range(2):
            expected = {key: body for queue, key, body, _ in self.written if queue == queue_id}
            assert self.node.values(queue_id) == {key: body for key, body in expected.items() if body}

    @rule()
    def stop(self) -> None:
        self.node.stop()
        self._again(self.node.disk.after_process_crash())

    @rule()
    def kill(self) -> None:
        self._again(self.node.disk.after_process_crash())

    @rule(mode=st.sampled_from(MODES), seed=st.integers(0, 1 << 20))
    def power_loss(self, mode: str, seed: int) -> None:
        flushed = self.node.store.flushed_position
        self._again(draw_mode(self.node.disk, mode, random.Random(seed)))
        assert self.node.report.end >= flushed

    def _again(self, files: CrashFiles) -> None:
        self.node = CompactNode(files)
        self.written = [row for row in self.written if row[3] <= self.node.report.end]
        self.check()


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
