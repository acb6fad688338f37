"""Derived files are written in slices: however much waits, a turn of the loop writes little, and what was read stays readable."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from gantrymq.store import derived, message_store
from gantrymq.store.light import stream as light_stream
from gantrymq.store.light.stream import FRAME, RUN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Bench
    from gantrymq.model.message import Message
    from gantrymq.store.message_store import MessageStore


def test_many_queues_and_light_queues_are_written_in_slices(
    bench: Bench, message_of: Callable[..., Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.settings["commitlog_file_size"] = 1024 * 1024
    store = bench.open()
    targets = tuple(range(1, 5001))
    store.append([message_of(number, queue_id=number) for number in range(300)], [targets] + [()] * 299)
    written: list[int] = []
    original = bench.files.pwrite

    def counted(handle: int, data: bytes, at: int) -> None:
        written.append(len(data))
        original(handle, data, at)

    monkeypatch.setattr(bench.files, "pwrite", counted)
    bench.clock.advance(2000)
    rounds = 0
    while True:
        more = store.run_background(1)
        rounds += 1
        queues = [size for size in written if size == 20]
        frames = [size for size in written if size > 10_000]
        assert len(queues) <= derived.QUEUES_PER_SLICE
        assert len(frames) <= 1
        assert all(size <= light_stream.FRAME_BYTES_MAX + FRAME.size for size in frames)
        written.clear()
        assert store.units("T", 299, 0, 9) != []
        assert store.light_units(5000, 0, 9) == store.light_units(1, 0, 9) != []
        if rounds == 3:  # what comes meanwhile keeps nothing waiting
            store.append([message_of(1000, queue_id=number) for number in range(300, 330)], [()] * 30)
        if not more and not store.index_lag_records:
            break
    assert rounds >= 300 // derived.QUEUES_PER_SLICE + 5000 * (RUN.size + 20) // light_stream.FRAME_BYTES_MAX
    bench.clock.advance(2000)
    store.run_background(1)
    bench.crash()
    again = bench.open()
    assert [again.max_offset("T", queue) for queue in (0, 299, 329)] == [1, 1, 1]
    assert len(again.light_units(5000, 0, 9)) == 1


class Writes:
    """How many writes to queues and to the stream of light queues each call makes."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.most = 0
        self._count = 0
        bench.files.fault = self._seen

    def _seen(self, operation: str, path: Path) -> OSError | None:
        self._count += operation == "pwrite" and not {"consumequeue", "light"}.isdisjoint(path.parts)
        return None

    def background(self, store: MessageStore) -> bool:
        self._count = 0
        more = store.run_background(1)
        self.most = max(self.most, self._count)
        return more


QUEUES = 240
PER_APPEND = 30


def test_where_more_comes_than_a_slice_writes_no_slice_writes_all_and_what_waits_stays_bounded(
    bench: Bench, message_of: Callable[..., Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "UNITS_BEHIND_BYTES", 100 * 20)
    monkeypatch.setattr(derived, "UNITS_PENDING_BYTES", 10 * 20)
    monkeypatch.setattr(derived, "QUEUES_PER_SLICE", 8)
    bench.settings |= {
        "commitlog_file_size": 1024 * 1024,
        "queue_files_max": 2 * QUEUES,
        "checkpoint_interval_ms": 3_600_000,
        "consumequeue_file_size": 20_000,
    }
    store, writes = bench.open(), Writes(bench)
    most = late = 0
    for number in range(200):
        first = number * PER_APPEND
        batch = [message_of(place, queue_id=place % QUEUES) for place in range(first, first + PER_APPEND)]
        store.append(batch, [()] * PER_APPEND)
        writes.background(store)
        most = max(most, store._queues.pending_bytes() // 20)
        late += store.units_behind
    assert late > 50
    assert writes.most <= 8 * derived.SLICE_TIMES_MAX + 1, "and the frame that says how far the log is dispatched"
    slices = QUEUES // 8 + 2
    assert most <= 2 * slices * PER_APPEND, "a round writes all that a queue has: what waits is bounded by two of them"
    bench.crash()
    again = bench.open()
    assert [again.max_offset("T", queue) for queue in range(QUEUES)] == [200 * PER_APPEND // QUEUES] * QUEUES


def test_light_queues_that_are_late_are_written_a_few_frames_at_a_time(
    bench: Bench, message_of: Callable[..., Message]
) -> None:
    bench.settings["commitlog_file_size"] = 4 * 1024 * 1024
    store, writes = bench.open(), Writes(bench)
    targets = tuple(range(1, 30_001))
    for number in range(4):
        store.append([message_of(number)], [targets])
    assert store.units_behind
    while writes.background(store):
        pass
    assert 1 < writes.most <= derived.FRAMES_PER_SLICE_MAX + 1  # frames and T's own queue
    assert not store.units_behind
    assert len(store.light_units(30_000, 0, 9)) == 4


def test_a_checkpoint_is_made_in_slices_although_more_comes_all_the_time(
    bench: Bench, message_of: Callable[..., Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "QUEUES_PER_SLICE", 8)
    bench.settings |= {
        "commitlog_file_size": 1024 * 1024,
        "queue_files_max": 2 * QUEUES,
        "index_slots": 5_000,
        "index_entries": 5_000,
    }
    store, writes = bench.open(), Writes(bench)
    store.append([message_of(place, queue_id=place) for place in range(QUEUES)], [()] * QUEUES)
    bench.clock.advance(store.config.checkpoint_interval_ms)
    begun = store.written_position
    checkpoint = None
    number = QUEUES
    while checkpoint is None:
        store.append([message_of(number, queue_id=number % QUEUES)], [()])
        number += 1
        writes.background(store)
        checkpoint = store.take_checkpoint()
    assert number > QUEUES + 25, "slices, with appends between them"
    assert writes.most <= 8 + 2
    assert begun <= checkpoint.position < store.written_position
    store.sync_checkpoint(checkpoint)
    store.flush()
    bench.power_loss()
    again = bench.open()
    assert sum(again.max_offset("T", queue) for queue in range(QUEUES)) == number
    assert again.max_offset("T", number % QUEUES) == number // QUEUES


def test_no_checkpoint_is_made_of_what_found_no_room(bench: Bench, message_of: Callable[..., Message]) -> None:
    """It would say that units are in their files which only memory has."""
    bench.settings["checkpoint_interval_ms"] = derived.UNITS_PENDING_MS // 2  # before units are written anyway
    store = bench.open()
    store.append([message_of(0)], [()])
    bench.clock.advance(store.config.checkpoint_interval_ms)
    bench.files.fault = lambda operation, path: OSError(errno.ENOSPC, "full") if "consumequeue" in path.parts else None
    while store.run_background(1000):
        pass
    assert store.take_checkpoint() is None
    bench.files.fault = lambda operation, path: None
    store.flush()
    bench.clock.advance(store.config.checkpoint_interval_ms)
    while store.take_checkpoint() is None:
        store.append([message_of(1)], [()])
        store.run_background(1000)
    bench.crash()
    assert len(bench.open().units("T", 0, 0, 9)) > 1


def test_where_the_disk_has_room_again_slices_write_what_waited(
    bench: Bench, message_of: Callable[..., Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "QUEUES_PER_SLICE", 8)
    bench.settings |= {"commitlog_file_size": 1024 * 1024, "queue_files_max": 2 * QUEUES}
    store = bench.open()
    bench.files.fault = lambda operation, path: OSError(errno.ENOSPC, "full") if "consumequeue" in path.parts else None
    store.append([message_of(place, queue_id=place) for place in range(QUEUES)], [()] * QUEUES)
    bench.clock.advance(derived.UNITS_PENDING_MS)
    store.run_background(1)
    assert not store.units_waiting, "nobody tries again and again"
    writes = Writes(bench)
    store.append([message_of(QUEUES)], [()])
    while writes.background(store) or store.index_lag_records:
        pass
    assert writes.most <= 8 + 2
    assert store.flush_derived()
    bench.crash()
    assert bench.open().max_offset("T", QUEUES - 1) == 1


def test_the_units_of_many_records_and_their_entries_of_the_index_are_written_in_slices_of_their_own(
    bench: Bench, message_of: Callable[..., Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.settings |= {"consumequeue_file_size": 20_000, "index_slots": 1_000, "index_entries": 1_000}
    store = bench.open()
    store.append([message_of(0)], [()])
    while store.run_background(1000):  # the first checkpoint
        pass
    count = derived.ENTRIES_SAME_SLICE + 1
    for number in range(1, count + 1):
        store.append([message_of(number)], [()])
    while store.run_background(1000):
        pass
    assert not store.index_lag_records
    written: list[int] = []
    original = bench.files.pwrite

    def counted(handle: int, data: bytes, at: int) -> None:
        written.append(len(memoryview(data).cast("B")))
        original(handle, data, at)

    monkeypatch.setattr(bench.files, "pwrite", counted)
    bench.clock.advance(derived.UNITS_PENDING_MS)
    slices = []
    more = True
    while more:
        more = store.run_background(1)
        slices.append([size for size in written if size > count * 20])
        written.clear()
    assert [len(large) for large in slices[:2]] == [1, 1]  # units, entries


def test_few_records_wait_for_the_index_while_slots_are_written(
    bench: Bench, message_of: Callable[..., Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under full load the background work gets no time: whoever appends writes slots then."""
    monkeypatch.setattr(message_store, "INDEX_SWEEPING_MAX", 200)
    assert derived.INDEX_SWEEPING_MAX * 270 < 4 * 1024 * 1024
    bench.settings |= {"commitlog_file_size": 4 * 1024 * 1024, "index_slots": 400_000, "index_entries": 20_000}
    store = bench.open()
    batch = 50
    number = 0

    def append() -> None:
        nonlocal number
        store.append([message_of(number + step) for step in range(batch)], [()] * batch)
        number += batch

    for _ in range(20):
        append()
    while store.index_lag_records:
        store.run_background(1_000_000)
    bench.clock.advance(store.config.checkpoint_interval_ms)
    while not store._sweeping:
        append()
        store.run_background(1)
    limit = 200 + (400_000 // 4096 // derived.SLOT_CHUNKS_PER_SLICE + 2) * batch
    most = 0
    while store._sweeping and most <= limit:
        append()
        most = max(most, store.index_lag_records)
    assert 200 < most <= limit
