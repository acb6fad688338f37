"""Power loss and process crash at every change of the disk, with unsynced writes kept, lost or torn."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock
from gantrymq.store.config import StoreConfig
from gantrymq.store.message_store import MessageStore
from gantrymq.store.testing import MemoryFileSystem, PowerCut

ROOT = Path("/d")
CONFIG = StoreConfig(
    commitlog_file_size=64 * 1024, consumequeue_file_size=400, index_slots=50, index_entries=40, queue_files_max=8,
    checkpoint_interval_ms=100,
)  # fmt: skip


class Workload:
    """A deterministic stream of batches; remembers what was attempted, appended and flushed."""

    def __init__(self, files: MemoryFileSystem, seed: int, big_fanout: bool = True) -> None:
        self.clock = ManualClock()
        self.random = random.Random(seed)
        self.files = files
        self.store = MessageStore(files, ROOT, CONFIG, self.clock)
        self.big_fanout = big_fanout
        self.attempted: dict[str, bytes] = {}
        self.appended: list[tuple[int, str]] = []  # (end of batch, key)
        self.acked_end = 0
        self.written_end = 0

    def run(self, steps: int) -> None:
        self.store.load()
        for step in range(steps):
            self.clock.advance(30)
            batch, lights = [], []
            for _ in range(self.random.randrange(1, 5)):
                key = f"K{len(self.attempted)}"
                body = self.random.randbytes(self.random.choice((0, 10, 700, 9000)))
                self.attempted[key] = body
                batch.append(
                    Message(
                        f"t{self.random.randrange(2)}", body, f"UNIQ_KEY\x01{key}\x02".encode(), "", (key,),
                        self.random.randrange(2),
                    )
                )  # fmt: skip
                fan = self.random.choice((0, 0, 1, 3, 70 if self.big_fanout else 2))
                lights.append(tuple(range(1, 1 + fan)))
            end = self.store.append(batch, lights)
            self.written_end = end
            self.appended += [(end, message.keys[0]) for message in batch]
            while self.store.run_background(100):
                pass
            if step % 3 == 2:
                self.acked_end = self.store.flush()
            checkpoint = self.store.take_checkpoint()
            if checkpoint is not None:
                self.store.sync_checkpoint(checkpoint)


def survivors(store: MessageStore) -> dict[str, Message]:
    """Every message that the queues name; checks that offsets are dense and positions ascend."""
    found: dict[str, Message] = {}
    for topic in store.topics():
        for queue_id in store.queues_of(topic):
            low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            units = store.units(topic, queue_id, low, high - low)
            assert len(units) == high - low
            assert [unit[0] for unit in units] == sorted({unit[0] for unit in units})
            for offset, (position, size, _) in enumerate(units, low):
                message = store.get(position, size)
                assert message is not None, (topic, queue_id, offset)
                assert (message.topic, message.queue_id, message.queue_offset) == (topic, queue_id, offset)
                if not topic.startswith("rmq_sys"):
                    found[message.property("UNIQ_KEY")] = message
    return found


def check_store(store: MessageStore, work: Workload, must_have: set[str]) -> None:
    found = survivors(store)
    assert must_have <= found.keys(), sorted(must_have - found.keys())
    in_lights: dict[int, list[int]] = {}
    for key, message in sorted(found.items(), key=lambda item: item[1].physical_offset):
        assert message.body == work.attempted[key]
        matches = store.query(message.topic, key, 10, 0, 1 << 60)
        assert [hit.physical_offset for hit in matches] == [message.physical_offset]
        fan = int(message.property("UNIQ_KEY") == key) and len(fanout_of(store, message))
        for light in range(1, 1 + fan):
            in_lights.setdefault(light, []).append(message.physical_offset)
    for light in range(1, 72):
        high = store.light_visible_end(light)
        assert [unit[0] for unit in store.light_units(light, 0, high)] == in_lights.get(light, []), light


def fanout_of(store: MessageStore, message: Message) -> range:
    text = message.dispatch.decode()
    inline = text.partition("INNER_MULTI_DISPATCH\x01")[2].partition("\x02")[0]
    more = text.partition("GANTRY_DISPATCH_MORE\x01")[2].partition("\x02")[0]
    return range((inline.count(",") + 1 if inline else 0) + int(more or 0))


def files_that_count(files: MemoryFileSystem) -> dict[Path, bytes]:
    return {
        path: data
        for path, data in files.snapshot().items()
        if path.name not in ("positions", "checkpoint", "abort", "lock", "ends") and "quarantine" not in path.parts
    }


def recover_and_check(files: MemoryFileSystem, work: Workload, must_have: set[str]) -> None:
    store = MessageStore(files, ROOT, CONFIG, ManualClock())
    report = store.load()
    assert not report.quarantined
    check_store(store, work, must_have)
    once = files_that_count(files)
    again = files.after_process_crash()
    second = MessageStore(again, ROOT, CONFIG, ManualClock())
    assert second.load().end == report.end
    assert files_that_count(again) == once
    check_store(second, work, must_have)
    end = second.append([Message("after", b"crash", queue_id=0)], [(1,)])
    assert end > report.end
    second.close()
    assert again.open_handles == 0
    third = MessageStore(again, ROOT, CONFIG, ManualClock())
    assert third.load().clean
    assert third.get(third.units("after", 0, 0, 1)[0][0]) is not None
    third.close()


def count_operations(seed: int, steps: int) -> int:
    files = MemoryFileSystem()
    Workload(files, seed).run(steps)
    return len(files.operations)


STEPS = 12


@pytest.mark.parametrize("seed", [1, 2])
def test_process_crash_at_every_change_loses_nothing_appended(seed: int) -> None:
    total = count_operations(seed, STEPS)
    for cut in range(0, total, 2):
        files = MemoryFileSystem()
        files.power_cut_at = cut
        work = Workload(files, seed)
        with pytest.raises(PowerCut):
            work.run(STEPS)
        recover_and_check(files.after_process_crash(), work, {key for _, key in work.appended})


@pytest.mark.parametrize("mode", ["lost", "kept", "torn", "random"])
def test_power_loss_at_every_change_loses_nothing_flushed(mode: str) -> None:
    seed = 3
    total = count_operations(seed, STEPS)
    for cut in range(0, total, 3):
        files = MemoryFileSystem()
        files.power_cut_at = cut
        work = Workload(files, seed)
        with pytest.raises(PowerCut):
            work.run(STEPS)
        choose = random.Random(cut)
        keep = {
            "lost": lambda path, count: [False] * count,
            "kept": lambda path, count: [True] * count,
            "torn": lambda path, count: [True] * count,
            "random": lambda path, count, choose=choose: [choose.random() < 0.5 for _ in range(count)],
        }[mode]
        after = files.after_power_loss(keep, torn_bytes=512 if mode == "torn" else -1)
        acked = {key for end, key in work.appended if end <= work.acked_end}
        recover_and_check(after, work, acked)


def test_killed_while_recovering() -> None:
    files = MemoryFileSystem()
    work = Workload(files, 5)
    work.run(STEPS)
    crashed = files.after_process_crash()
    probe = crashed.after_process_crash()
    MessageStore(probe, ROOT, CONFIG, ManualClock()).load()
    for cut in range(len(probe.operations)):
        again = crashed.after_process_crash()
        again.power_cut_at = cut
        with pytest.raises(PowerCut):
            MessageStore(again, ROOT, CONFIG, ManualClock()).load()
        recover_and_check(again.after_process_crash(), work, {key for _, key in work.appended})
