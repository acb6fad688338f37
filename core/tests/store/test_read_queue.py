"""What pulls read: the same records as `units` and `read_records`, wherever units and records lie."""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.store.checked import LOOKED_AT_MAX
from gantrymq.store.cold import Cold, ColdReads
from gantrymq.store.log import commit_log
from gantrymq.store.queues import consume_queue
from gantrymq.store.queues.consume_queue import HOLE
from gantrymq.store.queues.unit_words import spans_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Bench
    from gantrymq.model.message import Message
    from gantrymq.store.message_store import MessageStore


def fill(store: MessageStore, message_of: Callable[..., Message], count: int = 60, size: int = 100) -> None:
    """Two queues, whose records lie one by one beside each other, and at the end some of one alone."""
    for number in range(count):
        queue_id = number % 2 if number < count * 2 // 3 else 0
        store.append([message_of(number, bytes([number]) * (size + number), queue_id=queue_id)], [()])


def assert_same(store: MessageStore, queue_id: int, offset: int, count: int, bytes_max: int) -> None:
    queue = store.queue("T", queue_id)
    assert queue is not None
    pieces, taken, size = store.read_queue(queue, offset, count, bytes_max)
    wanted, covered = store.read_records(store.units("T", queue_id, offset, count), bytes_max)
    assert (b"".join(pieces), taken, size) == (b"".join(wanted), covered, sum(map(len, wanted)))


def assert_all_same(store: MessageStore) -> None:
    for queue_id in (0, 1):
        end = store.max_offset("T", queue_id)
        for offset in range(-1, end + 2):
            for count in (1, 3, 32, 100):
                assert_same(store, queue_id, offset, count, 1 << 20)
        for bytes_max in (1, 300, 1000, 4000, 4001):
            assert_same(store, queue_id, 0, 100, bytes_max)


@pytest.mark.parametrize("size", [100, 3000])
def test_records_of_two_queues(bench: Bench, message_of: Callable[..., Message], size: int) -> None:
    """Queue files of 20 units, segments of 64 KiB: both are crossed."""
    store = bench.open()
    fill(store, message_of, size=size)
    assert_all_same(store)  # units in memory, records written by this process
    store.flush_derived()
    assert_all_same(store)
    store.append([message_of(99, b"last", queue_id=1)], [()])
    assert_all_same(store)  # one unit in memory, the others in the file
    store.close()
    assert_all_same(again := bench.open())  # records of an earlier process: nothing is mapped
    again.close()


def test_a_map_is_cut_as_a_read_is(bench: Bench, message_of: Callable[..., Message], tmp_path: object) -> None:
    store = bench.open()
    fill(store, message_of)
    data = bench.file("store", "commitlog", "0" * 20)

    class View(bytes):
        def close(self) -> None:
            """Maps are closed."""

    bench.files.map_read = lambda handle, length: View(data)  # type: ignore[assignment,method-assign,return-value]
    calls: list[int] = []
    store.read_records(store.units("T", 0, 0, 1), 1)  # maps the segment
    read = store._log.read
    store._log.read = lambda at, count: calls.append(at) or read(at, count)  # type: ignore[method-assign,func-returns-value]
    queue = store.queue("T", 1)
    assert queue is not None
    pieces, taken, _ = store.read_queue(queue, 0, 20, 1 << 20)
    assert (len(pieces), taken, calls) == (20, 20, [])
    assert_all_same(store)


def test_what_waits_to_be_written_is_read_from_memory(bench: Bench, message_of: Callable[..., Message]) -> None:
    bench.settings["transient_pool"] = True
    store = bench.open()
    fill(store, message_of)
    assert_all_same(store)


def test_lost_offsets_are_covered_without_a_record(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    fill(store, message_of, 30)
    queue = store.queue("T", 0)
    assert queue is not None
    queue.pending[9:12] = HOLE
    for offset in (0, 2, 3, 4):
        for count in (1, 2, 32):
            assert_same(store, 0, offset, count, 1 << 20)
            assert_same(store, 0, offset, count, 500)
    assert store.read_queue(queue, 3, 1, 1000) == ([], 1, 0)


def test_below_the_minimum_is_nothing(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    fill(store, message_of, 30)
    queue = store.queue("T", 0)
    assert queue is not None
    queue.min_offset = 5
    assert store.read_queue(queue, 4, 10, 1 << 20) == ([], 0, 0)
    assert store.queue("T", 7) is None


def test_a_queue_file_that_is_short_gives_what_it_has(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    fill(store, message_of, 30)
    store.flush_derived()
    handle = bench.files.open(bench.root / "store/consumequeue/T/0" / ("0" * 20), False)
    bench.files.truncate(handle, 60)
    assert_same(store, 0, 0, 10, 1 << 20)


def test_records_that_lie_far_apart_are_read_one_by_one(
    bench: Bench, message_of: Callable[..., Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open()
    fill(store, message_of)
    queue = store.queue("T", 1)
    assert queue is not None
    places, sizes, base = queue.spans(0, 10)  # type: ignore[misc]
    assert len(store._log.read_many(places, sizes, base, sum(sizes)) or ()) == 10
    assert store._log.read_many(places[::-1], sizes, base, sum(sizes)) is None  # a queue that is damaged
    monkeypatch.setattr(commit_log, "GAP_BYTES_MAX", 10)
    assert store._log.read_many(places, sizes, base, sum(sizes)) is None


@pytest.mark.parametrize("size", [100, 3000])
def test_many_records_take_several_reads(
    bench: Bench, message_of: Callable[..., Message], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Three, and one where a record alone is longer; what lies between two reads is not read."""
    store = bench.open()
    fill(store, message_of, size=size)
    monkeypatch.setattr(commit_log, "SPAN_BYTES_MAX", 2000)
    reads: list[tuple[int, int]] = []
    read = store._log.read
    store._log.read = lambda at, count: reads.append((at, count)) or read(at, count)  # type: ignore[method-assign,func-returns-value]
    queue = store.queue("T", 1)
    assert queue is not None
    places, sizes, base = queue.spans(0, 10)  # type: ignore[misc]
    pieces = store._log.read_many(places, sizes, base, sum(sizes))
    assert pieces is not None
    assert list(map(len, pieces)) == list(sizes)
    ends = [at + count for at, count in reads]
    assert {at for at, _ in reads} <= {base + place for place in places}
    assert {*ends} <= {base + place + length for place, length in zip(places, sizes, strict=True)}
    assert all(count <= 2000 or (at - base, count) in zip(places, sizes, strict=True) for at, count in reads)
    assert len(reads) < 10 if size == 100 else len(reads) == 10
    assert store._log.read_many([places[0], *places[:0:-1]], sizes, base, sum(sizes)) is None  # a queue that is damaged
    assert_all_same(store)


def test_all_of_several_reads_that_are_cold_are_asked_for_at_once(
    bench: Bench, message_of: Callable[..., Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open()
    fill(store, message_of)
    monkeypatch.setattr(commit_log, "SPAN_BYTES_MAX", 1000)
    queue = store.queue("T", 1)
    assert queue is not None
    expected = b"".join(store.read_queue(queue, 0, 10, 1 << 20)[0])
    bench.files.pread_now = lambda handle, count, at: None  # type: ignore[method-assign,assignment]
    reads = ColdReads(bench.files, lambda again, token: again(token))
    store.read_without_waiting(reads)
    with pytest.raises(Cold) as caught:
        store.read_queue(queue, 0, 10, 1 << 20)
    assert len(caught.value.wanted) > 2
    found: list[bytes] = []
    reads.fetch(caught.value, queue, lambda token: found.extend(store.read_queue(token, 0, 10, 1 << 20)[0]))
    reads.stop()
    assert b"".join(found) == expected


def test_what_is_cold_is_asked_for_at_once(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    fill(store, message_of)
    bench.files.pread_now = lambda handle, count, at: None  # type: ignore[method-assign,assignment]
    store.read_without_waiting(ColdReads(bench.files, lambda again, token: None))
    queue = store.queue("T", 1)
    assert queue is not None
    with pytest.raises(Cold) as caught:
        store.read_queue(queue, 0, 10, 1 << 20)
    assert len(caught.value.wanted) == 1


def test_paths_that_are_kept(bench: Bench, message_of: Callable[..., Message], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_queue, "PATHS_MAX", 2)
    store = bench.open()
    fill(store, message_of, 200)
    store.flush_derived()
    assert_all_same(store)
    assert 0 < len(store._queue_files.paths) <= 2


@given(
    st.integers(0, 1 << 33),
    st.lists(
        st.tuples(st.integers(0, 100_000), st.integers(1, 100_000), st.integers(-(1 << 63), (1 << 63) - 1)), min_size=1
    ),
)
def test_units_as_words(first: int, rows: list[tuple[int, int, int]]) -> None:
    units, at = [], first
    for gap, size, code in rows:
        units.append((at + gap, size, code))
        at += gap + size
    found = spans_of(b"".join([pack(">qiq", *unit) for unit in units]))
    if units[0][0] >> 32 != units[-1][0] >> 32:
        assert found is None
    else:
        assert found is not None
        places, sizes, base = found
        assert [place + base for place in places] == [unit[0] for unit in units]
        assert list(sizes) == [unit[1] for unit in units]


def test_records_that_were_selected(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    fill(store, message_of)
    for queue_id, step, bytes_max in ((0, 1, 1 << 20), (0, 1, 1000), (0, 3, 1 << 20), (1, 2, 1), (1, 2, 900)):
        units = store.units("T", queue_id, 0, 100)[::step]
        wanted, covered = store.read_scattered(units, bytes_max)
        places, sizes = [unit[0] for unit in units], [unit[1] for unit in units]
        pieces, taken, size = store.read_places(
            "T", queue_id, range(0, 100, step)[: len(units)], places, sizes, bytes_max
        )
        assert (b"".join(pieces), taken, size) == (b"".join(wanted), covered, sum(map(len, wanted)))
    assert store.read_places("T", 0, [], [], [], 1 << 20) == ([], 0, 0)


def test_records_that_need_a_look_come_in_answers_of_bounded_work(
    bench: Bench, message_of: Callable[..., Message]
) -> None:
    store = bench.open()
    store.append([message_of(number, b"x") for number in range(LOOKED_AT_MAX + 9)], [()] * (LOOKED_AT_MAX + 9))
    queue = store.queue("T", 0)
    assert queue is not None
    assert store.read_queue(queue, 0, 1024, 1 << 20)[1] == LOOKED_AT_MAX + 9
    store.close()
    store = bench.open()
    queue = store.queue("T", 0)
    assert queue is not None
    assert [store.read_queue(queue, offset, 1024, 1 << 20)[1] for offset in (0, LOOKED_AT_MAX)] == [LOOKED_AT_MAX, 9]
    assert store.read_queue(queue, 0, 1024, 1 << 20)[1] == LOOKED_AT_MAX + 9


def test_what_was_looked_at_is_known_whatever_the_order(bench: Bench, message_of: Callable[..., Message]) -> None:
    """A reader with several pulls on the way skips, comes back, and a second one begins at the front again."""
    count = LOOKED_AT_MAX * 4
    store = bench.open()
    store.append([message_of(number, b"x") for number in range(count)], [()] * count)
    store.close()
    store = bench.open()
    queue = store.queue("T", 0)
    assert queue is not None

    def covered(offset: int) -> int:
        return store.read_queue(queue, offset, count, 1 << 22)[1]

    for place in (0, 2, 1, 3):
        assert covered(place * LOOKED_AT_MAX) == LOOKED_AT_MAX
    assert covered(0) == count
