"""Power loss between any two changes of the disk, in every state that it may leave, also while recovering from another one.

All states of short histories, states drawn by lot of long ones (`crash_states.py` says what a state is). The control: over a disk that
lies about syncing the same check reports losses.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock
from gantrymq.store.message_store import MessageStore
from gantrymq.store.testing import MemoryFileSystem, PowerCut
from tests.store.crash_states import CrashFiles, Loss, LyingFiles
from tests.store.test_crash_states import CONFIG, ROOT, Workload, recover_and_check

STATES_MAX = 1000
"""Of one moment: of a history with more (a record of many pages) as many are drawn by lot."""
DRAWN = 60


class Short(Workload):
    """A few small batches with a flush and a checkpoint in between; the last one rolls into a second segment."""

    def __init__(self, files: MemoryFileSystem, seed: int = 0) -> None:
        super().__init__(files, seed)

    def run(self, steps: int) -> None:
        self.store.load()
        for step in range(steps):
            self.clock.advance(30)
            batch, lights = [], []
            for _ in range(1 + step % 2):
                key = f"K{len(self.attempted)}"
                body = bytes([65 + step]) * (62_000 if step == 3 else 20)
                self.attempted[key] = body
                batch.append(Message("t0", body, f"UNIQ_KEY\x01{key}\x02".encode(), "", (key,), 0))
                lights.append((1,) if step % 2 else ())
            end = self.store.append(batch, lights)
            self.written_end = end
            self.appended += [(end, message.keys[0]) for message in batch]
            if step == 1:
                self.acked_end = self.store.flush()
                self.store.run_background(1000)
                checkpoint = self.store.take_checkpoint(force=True)
                assert checkpoint is not None
                self.store.sync_checkpoint(checkpoint)
                self.acked_end = self.store.flushed_position


def cut_short(files: CrashFiles, make: Callable[[MemoryFileSystem], Workload], steps: int, cut: int) -> Workload:
    """Run until the machine goes off at change number `cut`."""
    files.power_cut_at = cut
    work = make(files)
    with pytest.raises(PowerCut):
        work.run(steps)
    return work


def changes(make: Callable[[MemoryFileSystem], Workload], steps: int) -> int:
    files = MemoryFileSystem()
    make(files).run(steps)
    return len(files.operations)


def acked(work: Workload) -> set[str]:
    return {key for end, key in work.appended if end <= work.acked_end}


def every_state(steps: int, stride: int) -> int:
    """Recover from every state of every `stride`-th moment; returns how many there were."""
    seen = 0
    for cut in range(0, changes(Short, steps), stride):
        files = CrashFiles()
        work = cut_short(files, Short, steps, cut)
        lot = random.Random(cut)
        short = files.count_states() <= STATES_MAX
        known: set[int] = set()
        for state in files.all_states() if short else [files.drawn(lot) for _ in range(DRAWN)]:
            content = hash(tuple(state.snapshot().items()))
            if content not in known:
                known.add(content)
                recover_and_check(state, work, acked(work))
        seen += len(known)
    return seen


def test_every_state_of_a_short_history() -> None:
    assert every_state(3, 6) > 20


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(300)
def test_every_state_of_every_moment() -> None:
    assert every_state(4, 1) > 500


def drawn_states(seed: int, steps: int, stride: int, per_moment: int, at_recovery: bool) -> None:
    def make(files: MemoryFileSystem) -> Workload:
        return Workload(files, seed)

    for cut in range(seed % stride, changes(make, steps), stride):
        files = CrashFiles()
        work = cut_short(files, make, steps, cut)
        lot = random.Random(cut)
        for _ in range(per_moment):
            state = files.drawn(lot)
            if at_recovery:
                state = interrupted(state, lot)
            recover_and_check(state, work, acked(work))


def interrupted(files: CrashFiles, lot: random.Random) -> CrashFiles:
    """What is left when the power fails once more, at a step of recovery chosen by lot."""
    probe = files.after_process_crash()
    MessageStore(probe, ROOT, CONFIG, ManualClock()).load()
    files.power_cut_at = lot.randrange(len(probe.operations))
    with pytest.raises(PowerCut):
        MessageStore(files, ROOT, CONFIG, ManualClock()).load()
    return files.drawn(lot)


def test_drawn_states() -> None:
    drawn_states(11, 12, 7, 1, False)


def test_drawn_states_with_a_second_loss_while_recovering() -> None:
    drawn_states(12, 12, 7, 1, True)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(20, 24))
@pytest.mark.parametrize("at_recovery", [False, True])
def test_drawn_states_of_long_histories(seed: int, at_recovery: bool) -> None:
    drawn_states(seed, 30, 5, 2, at_recovery)


@pytest.mark.parametrize("seed", [31, 32])
def test_power_loss_at_every_step_of_recovery(seed: int) -> None:
    lot = random.Random(seed)
    files = CrashFiles()
    work = Workload(files, seed)
    work.run(14)
    state = files.drawn(lot)
    probe = state.after_process_crash()
    MessageStore(probe, ROOT, CONFIG, ManualClock()).load()
    for cut in range(len(probe.operations)):
        again = state.after_process_crash()
        again.power_cut_at = cut
        with pytest.raises(PowerCut):
            MessageStore(again, ROOT, CONFIG, ManualClock()).load()
        recover_and_check(again.drawn(lot), work, acked(work))


def test_names_left_unsynced_by_a_killed_process_are_synced_by_the_next() -> None:
    files = CrashFiles()
    store = MessageStore(files, ROOT, CONFIG, ManualClock())
    store.load()
    for _ in range(3):
        store.append([Message("t", bytes(40_000), queue_id=0)], [()])
    after = files.after_process_crash()
    second = MessageStore(after, ROOT, CONFIG, ManualClock())
    second.load()
    end = second.flush()
    third = MessageStore(after.after_power_loss(lambda path, count: [False] * count), ROOT, CONFIG, ManualClock())
    assert third.load().end == end


def test_segment_behind_a_lost_one_is_a_torn_tail() -> None:
    files = CrashFiles()
    store = MessageStore(files, ROOT, CONFIG, ManualClock())
    store.load()
    store.append([Message("t", b"flushed", queue_id=0)], [()])
    end = store.flush()
    for _ in range(4):
        store.append([Message("t", bytes(40_000), queue_id=0)], [()])
    lost = ROOT / "store" / "commitlog" / f"{CONFIG.commitlog_file_size:020d}"
    versions, names = files.choices()
    state = files.state(Loss(versions, {name: name != lost for name in names}))
    again = MessageStore(state, ROOT, CONFIG, ManualClock())
    assert again.load().end >= end
    assert again.max_offset("t", 0) == 2
    assert len([name for name in state.snapshot() if name.parent == lost.parent]) == 1


@pytest.mark.parametrize("make", [Short, lambda files: Workload(files, 3)], ids=["short", "long"])
def test_a_disk_that_lies_is_found_out(make: Callable[[MemoryFileSystem], Workload]) -> None:
    found = 0
    total = changes(make, 4)
    for cut in range(0, total, 2):
        files = LyingFiles()
        work = cut_short(files, make, 4, cut)
        state = files.after_power_loss(lambda path, count: [False] * count)
        try:
            recover_and_check(state, work, acked(work))
        except AssertionError:
            found += 1
    assert found > total // 10


def test_no_room_for_the_note_of_a_flush_stops_nothing() -> None:
    files = CrashFiles()
    store = MessageStore(files, ROOT, CONFIG, ManualClock())
    store.load()
    store.append([Message("t", b"1", queue_id=0)], [()])
    store.flush()
    full = OSError(errno.ENOSPC, "full")
    files.fault = lambda operation, path: full if path.name == "positions" and operation == "pwrite" else None
    end = store.append([Message("t", b"2", queue_id=0)], [()])
    assert store.flush() == store.flushed_position == end
    checkpoint = store.take_checkpoint(force=True)
    assert checkpoint is not None
    store.sync_checkpoint(checkpoint)
    assert store.failure is None
    again = MessageStore(files.after_power_loss(lambda path, count: [False] * count), ROOT, CONFIG, ManualClock())
    assert again.load().end == end


def test_killed_while_an_unreadable_index_is_made_again() -> None:
    files = CrashFiles()
    work = Workload(files, 41)
    work.run(14)
    work.store.close()
    left = files.after_process_crash()
    for path in [path for path in left.snapshot() if path.parent.name == "index"]:
        handle = left.open(path, False)
        left.truncate(handle, 5000)
        left.datasync(handle)
        left.close(handle)
    probe = left.after_process_crash()
    MessageStore(probe, ROOT, CONFIG, ManualClock()).load()
    everything = {key for _, key in work.appended}
    for cut in range(0, len(probe.operations), 2):
        again = left.after_process_crash()
        again.power_cut_at = cut
        with pytest.raises(PowerCut):
            MessageStore(again, ROOT, CONFIG, ManualClock()).load()
        recover_and_check(again.after_process_crash(), work, everything)
