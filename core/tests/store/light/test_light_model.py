"""Light queues against lists, over stops, crashes and power cuts; space is used again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gantrymq.store.light import cleaner as light_cleaner
from gantrymq.store.light import queues as light_queues
from gantrymq.store.light import stream as light_stream
from gantrymq.store.light.queues import LightQueues
from gantrymq.store.light.table import DELETED
from gantrymq.store.log.commit_log import file_name
from gantrymq.store.queues.consume_queue import HOLE, HOLE_SIZE
from gantrymq.store.testing import MemoryFileSystem

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    import pytest

    from conftest import Bench
    from gantrymq.model.message import Message

ROOT = Path("/d/light")
SEGMENT = 2048
IDS = [1, 2, 63, 64, 65, 1000]


class World:
    """Light queues and a log that is a list of (light ids, offsets): what a real log would hand to a replay."""

    def __init__(self) -> None:
        self.files = MemoryFileSystem()
        self.log: list[list[tuple[int, int]]] = []
        self.model: dict[int, list[int]] = {}
        self.floors: dict[int, int] = {}
        self.flushed = 0
        self.open()

    def open(self) -> None:
        self.lights = LightQueues(self.files, ROOT, SEGMENT)
        self.lights.open(len(self.log) * 100)
        for number in range(self.lights.log_position // 100, len(self.log)):
            for light, offset in self.log[number]:
                self.lights.replay(light, offset, (number * 100, 100, number))
        self.lights.write_pending(len(self.log) * 100)

    def add(self, targets: list[int]) -> None:
        position = len(self.log) * 100
        offsets = self.lights.offsets_of(tuple(targets))
        assert offsets == [len(self.model.get(light, ())) for light in targets]
        self.lights.add_all(tuple(targets), position, 100, len(self.log))
        self.log.append(list(zip(targets, offsets, strict=True)))
        for light in targets:
            self.model.setdefault(light, []).append(position)

    def trim(self, light: int, below: int) -> None:
        self.lights.trim(light, below)
        self.floors[light] = max(self.floors.get(light, 0), min(below, len(self.model.get(light, ()))))

    def checkpoint(self, publish: bool) -> None:
        """What the flusher does: files, then the snapshot's head."""
        self.lights.write_pending(len(self.log) * 100)
        paths, finish = self.lights.take_unsynced(), self.lights.snapshot()
        self.flushed = len(self.log)
        for path in paths:
            if self.files.exists(path):
                handle = self.files.open(path, False)
                self.files.datasync(handle)
                self.files.close(handle)
        self.files.sync_dir(ROOT)
        if publish and finish is not None:
            finish()

    def reopen(self, files: MemoryFileSystem, trims_known: bool) -> None:
        self.files = files
        self.open()
        if trims_known:
            return
        for light, floor in self.floors.items():  # consumers say again what they do not need
            if light in self.model:
                self.lights.trim(light, floor)

    def cut_log(self, records: int) -> None:
        """The log's end was not on stable storage."""
        del self.log[records:]
        for light, queue in self.model.items():
            self.model[light] = [position for position in queue if position < records * 100]
            self.floors[light] = min(self.floors.get(light, 0), len(self.model[light]))

    def verify(self) -> None:
        for light in (*IDS, 3):
            queue, floor = self.model.get(light, []), self.floors.get(light, 0)
            assert self.lights.next_offset(light) == len(queue), light
            for first in {floor, (floor + len(queue)) // 2, max(len(queue) - 3, floor)}:
                found = self.lights.read(light, first, 50)
                assert [unit[0] for unit in found] == queue[first : first + 50], (light, first)
            holes = self.lights.read(light, 0, min(floor, 5))
            assert all(unit[1] == HOLE_SIZE or unit[0] == queue[at] for at, unit in enumerate(holes))


def break_heads(files: MemoryFileSystem) -> None:
    """Both heads of the table are unreadable."""
    if files.exists(ROOT / "table"):
        handle = files.open(ROOT / "table", False)
        for side in range(2):
            if any(files.pread(handle, 8, side * 4096)):
                files.pwrite(handle, b"\xff", side * 4096 + 20)
        files.close(handle)


class Machine(RuleBasedStateMachine):
    """Any order of everything that light queues do."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.deleted: set[int] = set()

    @rule(ids=st.lists(st.sampled_from(IDS), min_size=1, unique=True), times=st.integers(1, 40))
    def add(self, ids: list[int], times: int) -> None:
        targets = [light for light in ids if light not in self.deleted]
        for _ in range(times if targets else 0):
            self.world.add(targets)

    @rule(times=st.integers(1, 20))
    def write(self, times: int) -> None:
        self.world.lights.write_pending(len(self.world.log) * 100)
        for _ in range(times):
            self.world.add([light for light in IDS[:3] if light not in self.deleted])
            self.world.lights.write_pending(len(self.world.log) * 100)

    @rule(times=st.integers(1, 20))
    def write_slices(self, times: int) -> None:
        """A frame at a time, and more comes before all is written."""
        for _ in range(times):
            self.world.add([light for light in IDS if light not in self.deleted])
            self.world.lights.write_some(len(self.world.log) * 100, 1)

    @rule(light=st.sampled_from(IDS), share=st.integers(0, 4))
    def trim(self, light: int, share: int) -> None:
        self.world.trim(light, len(self.world.model.get(light, ())) * share // 4)

    @rule(light=st.sampled_from(IDS[3:]))
    def delete(self, light: int) -> None:
        self.world.lights.delete(light)
        self.world.lights.write_pending(len(self.world.log) * 100)
        self.world.checkpoint(
            True
        )  # the broker's own record of it survives; a test of the queues alone needs the stream to
        self.world.model.pop(light, None)
        self.world.floors.pop(light, None)
        self.deleted.add(light)

    @rule(publish=st.booleans())
    def checkpoint(self, publish: bool) -> None:
        self.world.checkpoint(publish)

    @rule()
    def stop(self) -> None:
        self.world.checkpoint(True)
        self.world.lights.save_table()
        self.world.lights.close()
        self.world.reopen(self.world.files, True)

    @rule()
    def crash(self) -> None:
        self.world.reopen(self.world.files.after_process_crash(), False)

    @rule(random=st.randoms(use_true_random=False), torn=st.sampled_from([-1, 0, 7, 512]))
    def power_loss(self, random: random.Random, torn: int) -> None:
        files = self.world.files.after_power_loss(
            lambda path, count: [random.random() < 0.5 for _ in range(count)], torn
        )
        self.world.cut_log(random.randint(self.world.flushed, len(self.world.log)))
        self.world.reopen(files, False)

    @precondition(lambda self: not self.deleted)
    @rule()
    def lose_table(self) -> None:
        """Its file is damaged: cleaned or not, the stream tells where every queue's offsets go on."""
        files = self.world.files.after_process_crash()
        break_heads(files)
        self.world.reopen(files, False)

    @invariant()
    def same_as_lists(self) -> None:
        self.world.verify()


def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light_queues, "SNAPSHOT_BYTES", 3000)
    monkeypatch.setattr(light_queues, "SNAPSHOT_PAGES", 1)
    monkeypatch.setattr(light_queues, "SNAPSHOT_PAGES_PER_FRAME", 1)
    monkeypatch.setattr(light_stream, "FRAME_BYTES_MAX", 400)
    monkeypatch.setattr(light_cleaner, "SLACK_SEGMENTS", 1)
    monkeypatch.setattr(light_cleaner, "FRAMES_PER_STEP", 3)


def test_any_history(monkeypatch: pytest.MonkeyPatch) -> None:
    _small(monkeypatch)

    class Case(Machine):
        pass

    Case.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
    Case.TestCase().runTest()


def test_space_of_consumed_entries_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _small(monkeypatch)
    world = World()
    world.add([63])  # an idle queue, whose entry moves on and on
    for number in range(3000):
        world.add([1, 2])
        world.lights.write_pending(len(world.log) * 100)
        world.trim(1, number)
        world.trim(2, number)
        if number % 10 == 0:
            world.checkpoint(True)
        assert sum(map(len, world.files.snapshot().values())) < 16 * SEGMENT + 5 * 4096
    assert world.lights.begin > 50 * SEGMENT
    world.verify()
    for publish in (True, False):
        world.checkpoint(publish)
        world.reopen(world.files.after_process_crash(), False)
        world.verify()


def test_a_lost_table_restarts_no_offsets_although_the_stream_was_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    _small(monkeypatch)
    world = World()
    world.add([64, 65])  # one keeps an entry, of the other nothing is left
    world.trim(65, 1)
    for number in range(3000):
        world.add([1])
        world.lights.write_pending(len(world.log) * 100)
        world.trim(1, number)
        if number % 10 == 0:
            world.checkpoint(True)
    assert world.lights.begin > 50 * SEGMENT
    del world.log[:-10]  # retention took the rest
    files = world.files.after_process_crash()
    break_heads(files)
    lights = LightQueues(files, ROOT, SEGMENT)
    lights.open(1 << 40)
    assert [lights.next_offset(light) for light in (1, 64, 65)] == [3000, 1, 1]
    assert lights.read(64, 0, 9) == [(0, 100, 0)]
    assert lights.read(65, 0, 9) == [HOLE]


def test_a_backlog_that_nobody_reads_stays_readable_while_others_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    _small(monkeypatch)
    world = World()
    for number in range(4000):
        world.add([63, 1] if number % 20 == 0 else [1])
        world.lights.write_pending(len(world.log) * 100)
        world.trim(1, len(world.model[1]) - 3)
        if number % 50 == 0:
            world.checkpoint(True)
    assert world.lights.begin > 0
    assert [unit[0] for unit in world.lights.read(63, 0, 999)] == world.model[63]
    world.verify()


def test_ids_that_come_and_go_leave_nothing_behind() -> None:
    world = World()
    for light in range(1, 64 * 200):
        world.lights.add(light, 0, 100, 0)
        world.lights.delete(light)
        if light % 640 == 0:
            world.lights.write_pending(light)
            world.lights.save_table()
    world.lights.write_pending(1 << 40)
    world.lights.save_table()
    assert len(world.lights.table.pages) <= 1
    assert len(world.files.snapshot()[ROOT / "table"]) <= 2 * 4096 * (2 + 10 + 11)
    assert world.lights.next_offset(77) == 0


def test_a_deleted_queue_is_not_filled_again_by_a_replay() -> None:
    world = World()
    world.add([5, 6])
    world.lights.write_pending(100)
    world.lights.delete(5)
    world.lights.write_pending(100)
    again = LightQueues(world.files.after_process_crash(), ROOT, SEGMENT)
    again.open(1 << 40)
    again.replay(5, 1, (100, 100, 0))
    again.replay(6, 1, (100, 100, 0))
    assert (again.next_offset(5), again.next_offset(6)) == (0, 2)
    assert again.table.slot(5)[0][5 * 7] == DELETED


def test_a_damaged_table_is_made_again_from_the_stream() -> None:
    for at in (100, 4096 + 100, 2 * 4096 + 50, 3 * 4096 + 50):
        world = World()
        for _ in range(30):
            world.add([1, 2, 64])
            world.lights.write_pending(len(world.log) * 100)
            world.lights.save_table()
        handle = world.files.open(ROOT / "table", False)
        world.files.pwrite(handle, b"\xff\xfe", at)
        world.reopen(world.files.after_process_crash(), False)
        world.verify()


def test_a_queue_whose_first_records_are_gone_begins_where_the_log_does() -> None:
    lights = LightQueues(MemoryFileSystem(), ROOT)
    lights.open(1 << 40)
    lights.replay(1, 1_000_000, (5, 100, 0))
    assert (lights.min_offset(1), lights.next_offset(1)) == (1_000_000, 1_000_001)
    assert lights.read(1, 1_000_000, 9) == [(5, 100, 0)]


def test_names_of_segments() -> None:
    world = World()
    for _ in range(200):
        world.add([1])
        world.lights.write_pending(len(world.log) * 100)
    assert ROOT / file_name(SEGMENT) in world.files.snapshot()


def test_twenty_thousand_queues_match_one_record(bench: Bench, message_of: Callable[..., Message]) -> None:
    bench.settings["commitlog_file_size"] = 1024 * 1024
    store = bench.open()
    targets = tuple(range(1, 20_001))
    for number in range(3):
        store.append([message_of(number), message_of(number + 10)], [targets, (7, 30_000)])
    expected = {light: store.light_units(light, 0, 99) for light in (*targets, 30_000)}
    assert [len(expected[light]) for light in (1, 7, 20_000, 30_000)] == [3, 6, 3, 3]
    bench.crash()
    store = bench.open()  # nothing of it had left memory
    assert {light: store.light_units(light, 0, 99) for light in (*targets, 30_000)} == expected
    store.append([message_of(99)], [targets])
    store.flush_derived()
    bench.crash()
    store = bench.open()
    assert [len(store.light_units(light, 0, 99)) for light in (1, 7, 20_000, 30_000)] == [4, 7, 4, 3]
    store.trim_light(7, 3)
    assert (store._lights.min_offset(7), store.light_visible_end(7)) == (3, 7)
