"""Units: golden bytes, files, both ends, the bound on descriptors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.model.errors import GantryError
from gantrymq.store.queues.consume_queue import HOLE, HOLE_SIZE, HOLES_MAX, ConsumeQueue, QueueFiles, pack_units
from gantrymq.store.queues.queue_table import QueueTable
from gantrymq.store.testing import MemoryFileSystem

ROOT = Path("/d/consumequeue")


def table_on(files: MemoryFileSystem, handles_max: int = 8, file_size: int = 200) -> QueueTable:
    table = QueueTable(QueueFiles(files, ROOT, file_size, handles_max))
    table.load(size_known=False)
    return table


def queue_on(files: MemoryFileSystem, cut_at: int = -1) -> ConsumeQueue:
    queue = ConsumeQueue(QueueFiles(files, ROOT, 200, 8), ROOT / "T/0", 0)
    queue.open(cut_at)
    return queue


def put(queue: ConsumeQueue, count: int) -> None:
    for _ in range(count):
        queue.pending += (queue.next_offset * 100 + 7, 100, -queue.next_offset)
        queue.next_offset += 1


def unit(offset: int) -> tuple[int, int, int]:
    return (offset * 100 + 7, 100, -offset)


def test_golden_unit() -> None:
    packed = pack_units([0x0102030405060708, 0x11121314, -2, *HOLE])
    assert packed.hex() == "010203040506070811121314fffffffffffffffe00000000000000007fffffff0000000000000000"


@given(st.lists(st.tuples(st.integers(0, 25), st.booleans()), max_size=8), st.integers(0, 100), st.integers(0, 100))
def test_reads_what_was_put_whatever_is_written(steps: list[tuple[int, bool]], offset: int, count: int) -> None:
    files = MemoryFileSystem()
    queue = queue_on(files)
    for number, write in steps:
        put(queue, number)
        if write:
            queue.write_pending()
    total = sum(number for number, _ in steps)
    expected = [unit(n) for n in range(offset, min(offset + count, total))]
    assert queue.read(offset, count) == expected
    queue.write_pending()
    again = queue_on(files)
    assert (again.next_offset, again.min_offset) == (total, 0)
    assert again.read(offset, count) == expected
    assert again.read(-1, 5) == []


def test_files_have_full_length_and_names_of_their_first_byte() -> None:
    files = MemoryFileSystem()
    queue = queue_on(files)
    put(queue, 25)
    queue.write_pending()
    assert {path.name: len(data) for path, data in files.snapshot().items()} == {
        "00000000000000000000": 200, "00000000000000000200": 200, "00000000000000000400": 200,
    }  # fmt: skip


@pytest.mark.parametrize("cut", range(26))
def test_cut_removes_every_unit_at_or_above(cut: int) -> None:
    files = MemoryFileSystem()
    queue = queue_on(files)
    put(queue, 25)
    queue.write_pending()
    again = queue_on(files, unit(cut)[0])
    assert again.next_offset == cut
    assert again.read(0, 100) == [unit(n) for n in range(cut)]
    assert again.replay(cut, unit(cut))
    again.write_pending()
    assert queue_on(files).read(0, 100) == [unit(n) for n in range(cut + 1)]


def test_replay_into_an_empty_queue_begins_where_the_log_begins() -> None:
    files = MemoryFileSystem()
    queue = queue_on(files)
    assert queue.replay(13, unit(13))
    assert queue.replay(14, unit(14))
    queue.write_pending()
    again = queue_on(files)
    assert (again.min_offset, again.next_offset) == (13, 15)
    assert again.read(12, 3) == [HOLE, unit(13), unit(14)]
    assert [path.name for path in files.snapshot()] == ["00000000000000000200"]


def test_replay_fills_lost_offsets_and_refuses_jumps_that_cannot_be() -> None:
    queue = queue_on(MemoryFileSystem())
    assert queue.replay(0, unit(0))
    assert queue.replay(3, unit(3))
    assert queue.read(0, 9) == [unit(0), HOLE, HOLE, unit(3)]
    assert queue.replay(2, unit(2))  # already there
    assert not queue.replay(5 + HOLES_MAX, unit(1))
    assert not queue.replay(-1, unit(1))
    assert queue.next_offset == 4
    assert HOLE_SIZE == 0x7FFFFFFF


def test_min_offset_follows_the_log() -> None:
    files = MemoryFileSystem()
    queue = queue_on(files)
    put(queue, 25)
    queue.write_pending()
    later = QueueFiles(files, ROOT, 200, 8)
    later.log_min = unit(17)[0]
    again = ConsumeQueue(later, ROOT / "T/0", 0)
    again.open()
    assert (again.min_offset, again.next_offset) == (17, 25)


def test_hundreds_of_queues_with_eight_descriptors() -> None:
    files = MemoryFileSystem()
    table = table_on(files, handles_max=8)
    topic = table.topic("T")
    for queue_id in range(300):
        queue = table.add_queue(topic, queue_id)
        put(queue, 3)
        table.dirty.append(queue)
    assert table.pending_bytes() == 18_000
    table.write_pending()
    assert files.open_handles <= 8
    again = table_on(files)
    assert [again.find("T", n).read(0, 9) for n in (0, 150, 299)] == [[unit(0), unit(1), unit(2)]] * 3  # type: ignore[union-attr]
    assert files.open_handles <= 16
    assert again.find("T", 300) is None
    assert again.find("none", 0) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 128])
def test_a_topic_that_is_no_directory_name_is_refused(name: str) -> None:
    with pytest.raises(GantryError):
        table_on(MemoryFileSystem()).topic(name)


def test_length_of_the_files_that_are_there_wins() -> None:
    files = MemoryFileSystem()
    table = table_on(files)
    queue = table.add_queue(table.topic("T"), 0)
    put(queue, 15)
    table.dirty.append(queue)
    table.write_pending()
    assert table_on(files, file_size=400).find("T", 0).read(0, 99) == [unit(n) for n in range(15)]  # type: ignore[union-attr]


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(0, 62))
def test_the_minimum_is_found_whatever_records_are_lost(lost: list[bool], kept_from: int) -> None:
    files = MemoryFileSystem()
    queue = queue_on(files)
    for offset, gone in enumerate(lost):
        queue.pending += HOLE if gone else unit(offset)
        queue.next_offset += 1
    queue.write_pending()
    again = ConsumeQueue(QueueFiles(files, ROOT, 200, 8), ROOT / "T/0", 0)
    again._files.log_min = kept_from * 100
    again.open()
    assert again.next_offset == len(lost)
    kept = [offset for offset, gone in enumerate(lost) if not gone and offset >= kept_from]
    assert again.min_offset == min(kept, default=len(lost))


@pytest.mark.parametrize(
    ("log_min", "first"), [(unit(3)[0], 3), (unit(10)[0], 10), (unit(15)[0], 12), (unit(22)[0], 22)]
)
def test_blank_units_do_not_move_the_minimum(log_min: int, first: int) -> None:
    files = MemoryFileSystem()
    queue = queue_on(files)
    put(queue, 25)
    queue.write_pending()
    handle = files.open(ROOT / "T/0" / "200".zfill(20), False)
    files.pwrite(handle, bytes(160), 40)  # offsets 12 to 19
    files.close(handle)
    table = QueueFiles(files, ROOT, 200, 8)
    table.log_min = log_min
    again = ConsumeQueue(table, ROOT / "T/0", 0)
    again.open()
    assert (again.min_offset, again.next_offset) == (first, 25)
