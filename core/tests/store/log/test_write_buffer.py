"""`store.transient_pool`: what waits in memory is read like the rest, is bounded, and a crash loses it and nothing else."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.store.log import commit_log
from gantrymq.store.log.write_buffer import WriteBuffer

if TYPE_CHECKING:
    from conftest import Bench


def message(number: int, size: int = 10) -> Message:
    return Message("T", b"%d" % number + bytes(size), queue_id=0)


def test_records_reach_the_file_in_large_writes_and_are_read_before(bench: Bench) -> None:
    bench.settings["transient_pool"] = True
    store = bench.open()
    writes = len([1 for name, _ in bench.files.operations if name == "pwrite"])
    for number in range(50):
        store.append([message(number)], [()])
    assert len([1 for name, _ in bench.files.operations if name == "pwrite"]) == writes
    units = store.units("T", 0, 0, 50)
    before = store.read_records(units, 1 << 20)
    store.work_ahead()
    assert store._log.buffer is not None
    assert store._log.buffer.bytes == 0
    assert store.read_records(units, 1 << 20) == before
    assert store.flush() == store.written_position


def test_a_crash_loses_what_waited_and_nothing_flushed(bench: Bench) -> None:
    bench.settings["transient_pool"] = True
    store = bench.open()
    store.append([message(1)], [(5,)])
    store.flush()
    store.append([message(2)], [(5,)])
    store.flush_derived()  # queues may be ahead of the log's file
    bench.crash()
    again = bench.open()
    assert again.max_offset("T", 0) == 1
    assert again.light_visible_end(5) == 1
    again.append([message(3)], [(5,)])
    assert [
        found.body[:1] for found in again.get_many([(at, size) for at, size, _ in again.units("T", 0, 0, 9)]) if found
    ] == [b"1", b"3"]


def test_a_clean_stop_loses_nothing(bench: Bench) -> None:
    bench.settings["transient_pool"] = True
    store = bench.open()
    for number in range(20):
        store.append([message(number, 5000)], [()])  # over two segments
    store.close()
    again = bench.open()
    assert bench.report.clean
    assert again.max_offset("T", 0) == 20


def test_a_full_disk_refuses_new_records_and_goes_on_when_there_is_room(bench: Bench) -> None:
    bench.settings["transient_pool"] = True
    store = bench.open()
    store.append([message(1)], [()])
    bench.files.room_bytes = 0
    before = store.flushed_position
    assert store.flush() == before
    with pytest.raises(GantryError) as caught:
        store.append([message(2)], [()])
    assert caught.value.code is ErrorCode.STORE_FULL
    assert store.failure is None
    bench.files.room_bytes = -1
    store.work_ahead()
    store.append([message(2)], [()])
    assert store.flush() == store.written_position


def test_an_io_error_of_the_large_write_stops_the_store(bench: Bench) -> None:
    bench.settings["transient_pool"] = True
    store = bench.open()
    store.append([message(1)], [()])
    bench.files.fault = lambda name, path: OSError(errno.EIO, "I/O error") if name == "pwrite" else None
    with pytest.raises(GantryError):
        store.work_ahead()
    with pytest.raises(GantryError) as caught:
        store.append([message(2)], [()])
    assert caught.value.code is ErrorCode.STORE_FAILED


def test_the_limit_writes_through(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "BUFFER_BYTES_MAX", 1000)
    bench.settings["transient_pool"] = True
    store = bench.open()
    for number in range(50):
        store.append([message(number)], [()])
        assert store._log.buffer is not None
        assert store._log.buffer.bytes <= 1000


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(0, 400), st.integers(1, 300))
def test_read_gives_the_end_of_a_range(sizes: list[int], at: int, count: int) -> None:
    buffer = WriteBuffer()
    start = 100
    data = bytes(index % 251 for index in range(start + sum(sizes)))
    position = start
    for size in sizes:
        buffer.add(position, data[position : position + size])
        position += size
    begin, found = buffer.read(at, count)
    if at + count <= start:
        assert found == b""
    else:
        assert begin <= max(at, start) or not found
        for place in range(max(at, start), min(at + count, position)):
            assert found[place - begin] == data[place]


def test_cut_forgets_a_batch() -> None:
    buffer = WriteBuffer()
    buffer.add(0, b"abc")
    buffer.add(3, b"defg")
    buffer.cut(3)
    assert buffer.bytes == 3
    assert buffer.read(0, 10) == (0, b"abc")
