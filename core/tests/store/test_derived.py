"""Derived files are written in slices: however much waits, a turn of the loop writes little, and what was read stays readable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gantrymq.store import derived, message_store
from gantrymq.store.light import stream as light_stream
from gantrymq.store.light.stream import FRAME, RUN

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Bench
    from gantrymq.model.message import Message


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


def test_where_slices_do_not_keep_up_all_is_written_at_once(
    bench: Bench, message_of: Callable[..., Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "UNITS_BEHIND_BYTES", 100 * 20)
    monkeypatch.setattr(derived, "UNITS_PENDING_BYTES", 10 * 20)
    store = bench.open()
    for number in range(2000):
        store.append([message_of(number, queue_id=number)], [()])
        if number % 100 == 99:
            store.run_background(1)
            assert len(store._queues.dirty) + len(store._queues._writing) <= 200


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
