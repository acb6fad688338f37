"""Random histories of sending, acknowledging, deleting, compaction, retention, crashes and lost power against a model of dictionaries."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gantrymq.broker.port import EARLIEST, END, Outcome, Route
from gantrymq.broker.tables.snapshots import SnapshotWork
from gantrymq.broker.topics import TopicConfig
from gantrymq.net.testing import ManualClock
from gantrymq.store.checkpoints.snapshot_file import SnapshotFiles
from gantrymq.store.log.moved import MOVED_TOPIC
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.keeping import KeepingNode, now
from tests.broker.node import ROOT, compaction_of
from tests.broker.retention.test_compaction import CompactNode, Hand

SIZES = (10, 1_000, 4_000)
KEYS = tuple(f"k{number}" for number in range(9))


class EverythingNode(KeepingNode):
    """With compaction and snapshots, too."""

    def __init__(self, files: MemoryFileSystem, clock: ManualClock | None = None) -> None:
        super().__init__(files, clock)
        self.hand = Hand()
        self.compaction = compaction_of(self.broker, self.hand)

    def prepare(self) -> None:
        files = SnapshotFiles(self.files, ROOT / "gantry" / "snapshots")
        self.snapshots = self.broker.keep_snapshots(files)
        self.work = SnapshotWork(self.snapshots, files, self.store, self.wheel, now)

    def stop(self) -> None:
        self.work.stop()
        self.broker.close()
        self.snapshots.write_now()
        self.store.close()

    def retain(self, hours: float = 0) -> int:
        self.retention._early_at = 0
        return super().retain(hours)

    put_key = CompactNode.put
    compact = CompactNode.compact
    read = CompactNode.read
    values = CompactNode.values


class RetentionMachine(RuleBasedStateMachine):
    """`live`: by cursor, offset to body of what nobody has acknowledged."""

    node: EverythingNode
    rows: ClassVar[tuple[str, ...]] = ("r0", "r1", "r2")
    attributes: ClassVar[dict[str, str]] = {}
    """Of all topics."""

    @initialize()
    def begin(self) -> None:
        self.node = EverythingNode(MemoryFileSystem())
        self.node.broker.topics.create(TopicConfig("t", attributes=self.attributes))
        compacted = {"cleanup.policy": "COMPACTION", **self.attributes}
        self.node.broker.topics.create(TopicConfig("c", 2, 2, attributes=compacted))
        self.node.turn.run_until_quiet()
        self.values: list[dict[str, bytes]] = [{}, {}]
        self.cursors: dict[str, int] = {}
        self.live: dict[str, dict[int, bytes]] = {}
        self.ends: dict[str, int] = {}
        self.tags: dict[str, str] = {}
        self.table: dict[str, bytes] = {}
        self.sent = 0
        for tag in "ab":
            light = self.node.call("create_light")
            self.node.call("add_route", Route(f"r-{tag}", "prefix", None, tag, light))
            for group in ("g", "h") if tag == "a" else ("g",):
                self._cursor(f"~{light}", group, tag)
        self.node.send(1, "z")
        self.sent = 1
        self.node.call("open_cursor", "t/0", "ce:1", EARLIEST)
        self._cursor("t/0", "ce:2", "")

    def _cursor(self, queue: str, group: str, tag: str) -> None:
        name = f"{queue} {group}"
        self.cursors[name] = self.node.call("open_cursor", queue, group, END).cursor
        self.live[name] = {}
        self.ends[name] = self.node.call("stats", [self.cursors[name]])[0].next_offset
        self.tags[name] = tag
        if queue == "t/0":
            self.node.call("delete_cursor", self.node.call("open_cursor", "t/0", "ce:1", EARLIEST).cursor)

    @rule(count=st.integers(1, 80), tag=st.sampled_from(["a", "ab", "b", "c"]), size=st.sampled_from(SIZES))
    def send(self, count: int, tag: str, size: int) -> None:
        for body in self.node.send(count, tag, size=size, first=self.sent):
            self.sent += 1
            for name, prefix in self.tags.items():
                if tag.startswith(prefix):
                    self.live[name][self.ends[name]] = body
                    self.ends[name] += 1

    @rule(
        which=st.integers(0, 3),
        count=st.integers(1, 200),
        keep=st.integers(0, 40),
        random=st.randoms(use_true_random=False),
    )
    def consume(self, which: int, count: int, keep: int, random: object) -> None:
        """Acknowledge all but a few of what is taken; those stay in flight or go back."""
        name = sorted(self.cursors)[which]
        cursor = self.cursors[name]
        taken = self.node.drain(cursor, count)
        for number, (offset, body) in enumerate(taken):
            assert self.live[name][offset] == body
            if not keep or number % (keep + 1):
                self.node.port.settle([(cursor, offset, Outcome.ACK)])
                del self.live[name][offset]
            elif random.random() < 0.5:  # type: ignore[attr-defined]
                self.node.port.settle([(cursor, offset, Outcome.REQUEUE)])
        self.node.turn.run_until_quiet()

    @rule(
        keep=st.sampled_from([0, 30, 60]),
        hours=st.sampled_from([0.0, 3.0]),
        then=st.sampled_from([0, 1000]),
        random=st.randoms(use_true_random=False),
    )
    def consume_all(self, keep: int, hours: float, then: int, random: object) -> None:
        """Nearly everything is acknowledged, then retention runs: what is left is moved; perhaps a snapshot has it then."""
        self.node.port.release(1)
        self.node.turn.run_until_quiet()
        for which in range(len(self.cursors)):
            self.consume(which, 1 << 30, keep, random)
        self.node.compact()
        self.node.retain(hours)
        if then:
            self.snapshot(then)

    @rule(key=st.sampled_from(rows), value=st.sampled_from([None, b"1", b"2"]))
    def put(self, key: str, value: bytes | None) -> None:
        self.node.call("put", "x", [(key, value)])
        self.table.pop(key, None)
        if value is not None:
            self.table[key] = value

    @rule(
        queue_id=st.integers(0, 1),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=12),
        size=st.sampled_from([0, 20, 4000]),
    )
    def put_values(self, queue_id: int, keys: list[str], size: int) -> None:
        """Into the compacted topic; without a body the key is deleted."""
        for key in keys:
            self.sent += 1
            body = b"%08d" % self.sent + bytes(size) if size else b""
            self.node.put_key(key, body, queue_id)
            self.values[queue_id].pop(key, None)
            if body:
                self.values[queue_id][key] = body

    @rule()
    def compact(self) -> None:
        self.node.compact()

    @rule(slices=st.sampled_from([1, 2, 5, 1000]))
    def snapshot(self, slices: int) -> None:
        """Begin one, or go on with the one that was begun."""
        if not self.node.work.busy:
            self.node.work.begin()
        for _ in range(slices):
            if not self.node.work.busy:
                break
            self.node.flush()
            self.node.wheel.advance(50)
            self.node.turn.run_until_quiet()

    @rule(torn=st.sampled_from([-1, 0, 512]), random=st.randoms(use_true_random=False))
    def flush_and_lose_power(self, torn: int, random: Random) -> None:
        """The log is on stable storage; of everything else whatever the disk had got round to."""
        self.node.flush()
        files = self.node.files.after_power_loss(
            lambda path, count: [random.random() < 0.5 for _ in range(count)], torn
        )
        self.node = EverythingNode(files, self.node.clock)

    @rule()
    def delete_and_make_again(self) -> None:
        """A light queue goes with its routes and cursors; another takes its place."""
        name = next((name for name in sorted(self.cursors) if self.tags[name] == "b"), None)
        assert name is not None
        self.node.port.release(1)
        self.node.turn.run_until_quiet()
        self.node.call("delete_light", int(name.split()[0][1:]))
        for table in (self.cursors, self.live, self.ends, self.tags):
            del table[name]
        light = self.node.call("create_light")
        self.node.call("add_route", Route("r-b", "prefix", None, "b", light))
        self._cursor(f"~{light}", "g", "b")

    @rule(which=st.integers(0, 3))
    def purge(self, which: int) -> None:
        name = sorted(self.cursors)[which]
        self.node.port.release(1)
        self.node.turn.run_until_quiet()
        self.node.call("purge", self.cursors[name])
        self.live[name].clear()

    @rule(hours=st.sampled_from([0.0, 0.5, 3.0]))
    def retain(self, hours: float) -> None:
        self.node.retain(hours)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.node.port.release(1)
            self.node.turn.run_until_quiet()
            self.node.stop()
            files = self.node.files
        else:
            files = self.node.files.after_process_crash()
        self.node = EverythingNode(files, self.node.clock)

    @rule()
    def everything_live_is_there(self) -> None:
        """And nothing else."""
        self.node.port.release(1)
        self.node.turn.run_until_quiet()
        for name, cursor in self.cursors.items():
            assert dict(self.node.drain(cursor)) == self.live[name], name
        self.node.port.release(1)
        self.node.turn.run_until_quiet()
        assert self.node.call("watch_table", "x", None) == self.table
        assert [self.node.values(queue_id) for queue_id in range(2)] == self.values

    def teardown(self) -> None:
        if hasattr(self, "node"):
            self.everything_live_is_there()
            self.restart(False)
            self.everything_live_is_there()


class TestRetention(RetentionMachine.TestCase):
    settings = settings(
        max_examples=25, stateful_step_count=25,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )  # fmt: skip


class EarlyMachine(RetentionMachine):
    """No topic is kept by time: a segment goes as soon as little in it is alive."""

    attributes: ClassVar[dict[str, str]] = {"keep.records": "false"}

    @rule()
    def early(self) -> None:
        """Nothing is left but the segment that is written, what comes behind it, and what is alive."""
        self.node.port.release(1)
        self.node.turn.run_until_quiet()
        for which in range(len(self.cursors)):
            self.consume(which, 1 << 30, 0, None)
        for name in self.live:
            assert not self.live[name]
        self.node.send(100, "c", size=4_000, first=self.sent)
        self.sent += 100
        self.live["t/0 ce:2"].clear()
        self.ends["t/0 ce:2"] += 100
        self.node.call("purge", self.cursors["t/0 ce:2"])
        self.node.compact()
        assert self.node.retain() > 0


class TestEarlyRetention(EarlyMachine.TestCase):
    settings = TestRetention.settings


def test_moved_entries_come_from_the_snapshot() -> None:
    """A start reads none of the moved records that the snapshot holds, and those that followed."""
    node = EverythingNode(MemoryFileSystem())
    light = node.call("create_light")
    node.call("add_route", Route("r", "prefix", None, "a", light))
    cursor = node.call("open_cursor", f"~{light}", "g", END).cursor
    bodies: list[bytes] = []

    def survivors() -> None:
        begin = len(bodies)
        bodies.extend(node.send(300, "a", first=begin))
        for offset, _ in node.drain(cursor):
            if offset % 100:
                node.port.settle([(cursor, offset, Outcome.ACK)])
        node.port.release(1)
        node.turn.run_until_quiet()
        node.compact()
        assert node.retain(hours=2) >= 3

    survivors()
    first = node.store.max_offset(MOVED_TOPIC, 0)
    node.work.begin()
    for _ in range(100):
        node.flush()
        node.wheel.advance(50)
    assert not node.work.busy
    survivors()
    moved = dict(node.broker.cursors.moved.queues[f"~{light}"])
    end = node.store.max_offset(MOVED_TOPIC, 0)
    assert 0 < first < end
    looked: list[int] = []

    class Counting(EverythingNode):
        def prepare(self) -> None:
            super().prepare()
            units = self.store.units

            def counted(topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
                if topic == MOVED_TOPIC:
                    looked.append(offset)
                return units(topic, queue_id, offset, count)

            self.store.units = counted  # type: ignore[method-assign]

    node = Counting(node.files.after_process_crash(), node.clock)
    assert node.broker.cursors.moved.queues[f"~{light}"] == moved
    assert looked
    assert min(looked) >= first - 1  # one: is the last record that the snapshot knew still the same?
    assert [body for _, body in node.drain(cursor)] == bodies[::100]
