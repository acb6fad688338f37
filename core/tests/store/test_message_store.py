"""Append, read, dispatch, roll, limits and failures of a whole store."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.model.names import java_hash
from gantrymq.store import derived, message_store
from gantrymq.store.log import record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Bench


def fill(
    store: message_store.MessageStore, message_of: Callable[..., Message], count: int, size: int = 1000
) -> list[Message]:
    messages = [message_of(number, bytes([number % 256]) * size, queue_id=number % 2) for number in range(count)]
    for message in messages:
        store.append([message], [()])
    return messages


def test_append_sets_fields_and_is_readable_at_once(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    batch = [message_of(0, b"a", tag="red"), message_of(1, b"b"), message_of(2, b"c", queue_id=1)]
    end = store.append(batch, [(), (), ()])
    assert end == store.written_position == store.dispatched_position == sum(message.size for message in batch)
    assert [message.queue_offset for message in batch] == [0, 1, 0]
    assert [message.physical_offset for message in batch] == [0, batch[0].size, batch[0].size + batch[1].size]
    assert batch[0].store_ms == batch[0].born_ms == bench.clock.wall_ms
    assert store.units("T", 0, 0, 10) == [
        (0, batch[0].size, java_hash("red")), (batch[1].physical_offset, batch[1].size, 0),
    ]  # fmt: skip
    assert (store.min_offset("T", 0), store.max_offset("T", 0), store.max_offset("T", 1)) == (0, 2, 1)
    assert (store.topics(), store.queues_of("T"), store.queues_of("none")) == (["T"], [0, 1], [])
    got = store.get(batch[0].physical_offset)
    assert got is not None
    assert (got.body, got.tag, got.properties, got.dispatch) == (b"a", "red", batch[0].properties, b"")
    assert bench.file("store", "commitlog", "0" * 20)[: batch[0].size] == record.encode(batch[0])
    store.close()
    assert bench.files.open_handles == 0


def test_bytes_equal_the_plain_encoder(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    batch = [message_of(0), message_of(1, b""), message_of(2, b"x" * 2000)]
    batch[1].sys_flag, batch[1].born_host = 0x10, bytes(range(20))
    batch[2].properties = b"P\x01" + b"v" * 2000
    batch[2].flag, batch[2].reconsume_times = -5, 3
    end = store.append(batch, [(), (7,), (7, 9)])
    assert bench.file("store", "commitlog", "0" * 20)[:end] == b"".join([record.encode(message) for message in batch])
    assert batch[2].dispatch.startswith(
        b"\x02INNER_MULTI_DISPATCH\x01%LMQ%~7,%LMQ%~9\x02INNER_MULTI_QUEUE_OFFSET\x011,0\x02"
    )


def test_one_write_per_batch_and_two_when_a_segment_rolls(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()

    def writes(batch: list[Message]) -> int:
        before = len(bench.files.operations)
        store.append(batch, [()] * len(batch))
        return sum(
            1 for name, path in bench.files.operations[before:] if name == "pwrite" and path.parent.name == "commitlog"
        )

    assert writes([message_of(n, b"x" * 100) for n in range(50)]) == 1
    assert writes([message_of(n, b"x" * 9000) for n in range(7)]) == 2
    assert bench.files.list_dir(bench.root / "store/commitlog") == ["00000000000000000000", "00000000000000065536"]


def test_roll_leaves_a_blank_record_and_the_order(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    messages = fill(store, message_of, 150)
    first_of_second = next(message for message in messages if message.physical_offset >= 65536)
    assert first_of_second.physical_offset == 65536
    last = messages[messages.index(first_of_second) - 1]
    end = last.physical_offset + last.size
    data = bench.file("store", "commitlog", "0" * 20)
    assert data[end : end + 8] == record.blank(65536 - end)
    units = store.units("T", 0, 0, 100)
    assert [store.get_many([unit[:2]])[0].body for unit in units] == [m.body for m in messages if m.queue_id == 0]  # type: ignore[union-attr]


@pytest.mark.parametrize("spare", [7, 8, 9])
def test_a_record_leaves_room_for_a_blank(bench: Bench, message_of: Callable[..., Message], spare: int) -> None:
    store = bench.open()
    overhead = 91 + 1 + len(message_of(0).properties)
    store.append([message_of(0, b"x" * (65536 - overhead - spare - overhead))], [()])
    second = message_of(1, b"")
    store.append([second], [()])
    assert (second.physical_offset == 65536) == (spare < 8)


def test_read_records_joins_neighbours(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    messages = fill(store, message_of, 150)
    units = sorted(store.units("T", 0, 0, 100) + store.units("T", 1, 0, 100))
    pieces, taken = store.read_records(units, 1 << 30)
    assert taken == 150
    assert len(pieces) == 3  # one per segment
    assert b"".join(pieces) == b"".join([record.encode(message) for message in messages])
    pieces, taken = store.read_records(units, 1)
    assert (taken, b"".join(pieces)) == (1, record.encode(messages[0]))
    pieces, taken = store.read_records(units[::2], messages[0].size * 3)
    assert (taken, len(pieces)) == (3, 3)
    assert store.read_records([], 100) == ([], 0)


def test_get_believes_no_record_inside_a_body(bench: Bench) -> None:
    store = bench.open()
    inner = Message("T", b"fake", queue_id=0, born_ms=1)
    inner.queue_offset, inner.physical_offset = 0, 88
    store.append([Message("T", record.encode(inner), queue_id=0)], [()])
    assert store.get(0) is not None
    for position in range(-2, store.written_position + 10):
        if position:
            assert store.get(position) is None, position
    assert store.get(0, 50) is None
    assert store.get_many([(0, 50), (0, 0), (1 << 60, 100), (-5, 100)]) == [None] * 4


def test_prepared_and_rolled_back_records_enter_no_queue(bench: Bench) -> None:
    store = bench.open()
    batch = [Message("T", b"", queue_id=0) for _ in range(4)]
    for message, flags in zip(batch, (4, 12, 8, 0), strict=True):
        message.sys_flag = flags
    store.append(batch, [(1,)] * 4)
    assert [message.queue_offset for message in batch] == [0, 0, 0, 1]
    assert store.max_offset("T", 0) == 2
    assert store.light_visible_end(1) == 2
    bench.crash()
    again = bench.open()
    assert (again.max_offset("T", 0), again.light_visible_end(1)) == (2, 2)


@pytest.mark.parametrize("stop", ["close", "crash"])
def test_everything_is_there_after_a_restart(bench: Bench, message_of: Callable[..., Message], stop: str) -> None:
    store = bench.open()
    messages = fill(store, message_of, 150)
    for message in messages:
        assert len(store.query("T", message.keys[0], 5, 0, 1 << 60)) == 1
    if stop == "close":
        store.close()
    bench.crash()
    again = bench.open()
    assert bench.report.clean == (stop == "close")
    assert bench.report.end == store.written_position
    assert again.queues_of("T") == [0, 1]
    for message in messages:
        found = again.query("T", message.keys[0], 5, 0, 1 << 60)
        assert [hit.physical_offset for hit in found] == [message.physical_offset]
        assert again.units("T", message.queue_id, message.queue_offset, 1)[0][0] == message.physical_offset
    after = message_of(1000)
    again.append([after], [()])
    assert after.queue_offset == 75


def test_sizes_of_the_directory_win(
    bench: Bench, message_of: Callable[..., Message], caplog: pytest.LogCaptureFixture
) -> None:
    fill(bench.open(), message_of, 100)
    bench.crash()
    bench.settings |= {
        "commitlog_file_size": 128 * 1024,
        "consumequeue_file_size": 800,
        "index_slots": 9,
        "index_entries": 99,
    }
    store = bench.open()
    assert "are ignored" in caplog.text
    assert store.max_offset("T", 0) == 50
    assert store.record_bytes_max == 64 * 1024 - 8


def test_second_process_is_refused(bench: Bench) -> None:
    bench.open()
    with pytest.raises(GantryError, match="in use by another process"):
        bench.open()


def test_check_knows_every_limit(bench: Bench) -> None:
    bench.settings["body_bytes_max"] = 1000
    store = bench.open()

    def code(body: int = 0, properties: bytes = b"", topic: str = "T") -> ErrorCode | None:
        return store.check(Message(topic, bytes(body), properties, queue_id=0))

    assert code(1000) is None
    assert code(1001) is ErrorCode.MESSAGE_TOO_LARGE
    assert code(properties=b"p" * record.SENDER_PROPERTIES_MAX) is None
    assert code(properties=b"p" * (record.SENDER_PROPERTIES_MAX + 1)) is ErrorCode.PROPERTIES_TOO_LARGE
    assert code(properties=b"a\x01\0\x02") is ErrorCode.MESSAGE_ILLEGAL
    assert code(topic="../x") is ErrorCode.NAME_INVALID
    assert code(topic="t" * 128) is ErrorCode.NAME_INVALID


def test_the_message_limit_shrinks_to_the_segment(bench: Bench) -> None:
    store = bench.open()
    largest = next(n for n in range(65536, 0, -1) if store.check(Message("T", bytes(n), queue_id=0)) is None)
    assert 65536 - 400 < largest < 65536
    message = Message("T", bytes(largest), queue_id=0)
    message.sys_flag, message.born_host = 0x10, bytes(20)
    store.append([message], [tuple(range(1, 200))])
    assert store.light_visible_end(199) == 1


def test_full_disk_changes_nothing_and_is_no_end(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    kept = fill(store, message_of, 3)
    end = store.written_position
    bench.files.room_bytes = 300
    with pytest.raises(GantryError) as caught:
        store.append([message_of(8, b"x" * 100), message_of(9, b"x" * 5000, queue_id=1)], [(1, 2), (1,)])
    assert caught.value.code is ErrorCode.STORE_FULL
    assert store.written_position == end
    assert (store.max_offset("T", 0), store.max_offset("T", 1), store.light_visible_end(1)) == (2, 1, 0)
    assert store.query("T", "K8", 5, 0, 1 << 60) == []
    bench.files.room_bytes = -1
    after = message_of(10)
    store.append([after], [(1,)])
    assert (after.physical_offset, after.queue_offset, store.light_visible_end(1)) == (end, 2, 1)
    bench.crash()
    again = bench.open()
    assert [unit[0] for unit in again.units("T", 0, 0, 9)] == [kept[0].physical_offset, kept[2].physical_offset, end]


def test_a_batch_refused_by_a_full_disk_does_not_come_back(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    kept = fill(store, message_of, 1)[0]
    bench.files.room_bytes = 450  # the first record of the batch gets there whole

    def room_comes_back(operation: str, path: Path) -> OSError | None:
        if bench.files.room_bytes == 0 and operation == "pwrite":
            bench.files.room_bytes = -1
        return None

    bench.files.fault = room_comes_back
    with pytest.raises(GantryError):
        store.append([message_of(8, b"x" * 100), message_of(9, b"x" * 5000)], [(), ()])
    bench.crash()
    again = bench.open()
    assert bench.report.end == kept.size
    assert again.max_offset("T", 0) == 1


def test_full_disk_for_queues_only(
    bench: Bench, message_of: Callable[..., Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "UNITS_PENDING_MAX", 200)
    store = bench.open()

    def fault(operation: str, path: Path) -> OSError | None:
        full = operation == "pwrite" and "consumequeue" in path.parts
        return OSError(errno.ENOSPC, "full") if full else None

    bench.files.fault = fault
    fill(store, message_of, 20)
    assert not store.flush_derived()
    assert len(store.units("T", 0, 0, 20)) == 10
    with pytest.raises(GantryError) as caught:
        store.append([message_of(99)], [()])
    assert caught.value.code is ErrorCode.STORE_FULL
    bench.files.fault = lambda operation, path: None
    assert store.flush_derived()
    store.append([message_of(99)], [()])
    store.close()
    assert bench.open().max_offset("T", 0) == 11
    assert bench.report.clean


@pytest.mark.parametrize("operation", ["pwrite", "datasync"])
def test_an_io_error_stops_the_store_for_good(bench: Bench, message_of: Callable[..., Message], operation: str) -> None:
    store = bench.open()
    fill(store, message_of, 3)
    bench.files.fault = lambda name, path: OSError(errno.EIO, "I/O error") if name == operation else None
    use = store.flush if operation == "datasync" else lambda: store.append([message_of(5)], [()])
    with pytest.raises(GantryError) as caught:
        use()
    assert caught.value.code is ErrorCode.STORE_FAILED
    bench.files.fault = lambda name, path: None
    with pytest.raises(GantryError):
        store.append([message_of(6)], [()])
    with pytest.raises(GantryError):
        store.flush()
    assert store.failure is not None
    assert not store.run_background(1000)
    store.close()
    assert bench.files.exists(bench.root / "store/abort")


def test_units_are_written_after_a_second_or_64_kib(bench: Bench, message_of: Callable[..., Message]) -> None:
    bench.settings |= {"commitlog_file_size": 16 << 20, "consumequeue_file_size": 6_000_000}
    store = bench.open()

    def written() -> int:
        return sum(1 for name, path in bench.files.operations if name == "pwrite" and "consumequeue" in path.parts)

    store.append([message_of(1)], [()])
    store.run_background(100)
    assert written() == 0
    bench.clock.advance(1000)
    store.run_background(100)
    assert written() == 1
    store.append([Message("T", b"", queue_id=0) for _ in range(4000)], [()] * 4000)
    store.run_background(100)
    assert written() == 2


def test_store_time_never_goes_back(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    first, second = message_of(1), message_of(2)
    store.append([first], [()])
    bench.clock.wall_ms -= 5000
    store.append([second], [()])
    assert second.store_ms == first.store_ms


def test_offset_by_time(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    times = []
    for number in range(10):
        bench.clock.advance(10 * (number % 2))
        message = message_of(number)
        if number % 3 == 0:
            message.sys_flag, message.born_host = 0x10, bytes(20)
        store.append([message], [()])
        times.append(bench.clock.wall_ms)
    for ms in range(times[0] - 5, times[-1] + 6):
        first = next((n for n, at in enumerate(times) if at >= ms), 10)
        last = max([n for n, at in enumerate(times) if at <= ms], default=0)
        assert store.offset_by_time("T", 0, ms, True) == first
        assert store.offset_by_time("T", 0, ms, False) == last


def test_query_sees_pending_and_indexed_newest_first(bench: Bench) -> None:
    store = bench.open()
    for number in range(30):
        bench.clock.advance(1000)
        text = f"UNIQ_KEY\x01U{number}\x02KEYS\x01order x{number % 3}\x02"
        keys = (f"U{number}", "order", f"x{number % 3}")
        store.append([Message("T", b"%d" % number, text.encode(), "", keys, 0)], [()])
        if number == 15:
            while store.run_background(1000):
                pass
    bodies = [int(message.body) for message in store.query("T", "order", 100, 0, 1 << 60)]
    assert bodies == list(range(29, -1, -1))
    assert [int(message.body) for message in store.query("T", "x1", 3, 0, 1 << 60)] == [28, 25, 22]
    begin = 1_700_000_000_000
    assert [int(m.body) for m in store.query("T", "order", 9, begin + 3000, begin + 5000)] == [4, 3, 2]
    assert store.query("Other", "order", 9, 0, 1 << 60) == []
    assert store.query("T", "none", 9, 0, 1 << 60) == []


def test_derived_positions_follow(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    fill(store, message_of, 3)
    assert store.indexed_position == 0
    assert store.flushed_position == 0
    assert store.flush() == store.flushed_position == store.written_position
    while store.run_background(1000):
        pass
    assert store.indexed_position == store.written_position
    bench.clock.advance(60_000)
    while store.run_background(1000):
        pass
    checkpoint = store.take_checkpoint()
    assert checkpoint is not None
    store.sync_checkpoint(checkpoint)
    bench.power_loss()
    assert bench.open().max_offset("T", 0) == 2
    assert bench.report.start == bench.report.end == store.written_position
    assert bench.file("store", "checkpoint")[:8] == (1_700_000_000_000).to_bytes(8, "big")
    assert len(bench.file("store", "checkpoint")) == 4096


def test_the_index_lags_by_a_bounded_time_also_where_the_loop_is_never_idle(
    bench: Bench, message_of: Callable[..., Message]
) -> None:
    store = bench.open()
    store.append([message_of(number) for number in range(500)], [()] * 500)
    longest = 0
    for number in range(500, 1500):
        bench.clock.advance(10)
        store.append([message_of(number)], [()])  # and never `run_background`
        longest = max(longest, store.index_lag_ms)
    assert longest <= derived.INDEX_LAG_MS_MAX + 500 * 10 / derived.ENTRIES_PER_SLICE_MIN
    assert store.index_lag_records <= derived.INDEX_LAG_MS_MAX / 10 + derived.ENTRIES_PER_SLICE_MIN


def test_the_index_follows_closely_however_much_is_appended(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    for first in range(0, 2000, 50):
        store.append([message_of(number) for number in range(first, first + 50)], [()] * 50)
        assert store.index_lag_records <= derived.INDEX_BEHIND_MAX + 50  # and never `run_background`
    assert store.query("T", "K7", 9, 0, 1 << 60)


def test_a_checkpoint_comes_also_where_the_loop_is_never_idle(bench: Bench, message_of: Callable[..., Message]) -> None:
    bench.settings["index_slots"] = 200_000  # 50 chunks: several slices
    store = bench.open()
    for number in range(2000):
        store.append([message_of(number)], [()])
    bench.clock.advance(60_000)
    store.run_background(0)
    indexed = store.indexed_position
    for number in range(2000, 2500):
        bench.clock.advance(100)
        store.append([message_of(number)], [()])  # and never `run_background` again
        if (checkpoint := store.take_checkpoint()) is not None:
            break
    else:
        pytest.fail("no checkpoint")
    store.sync_checkpoint(checkpoint)
    assert store.derived_position >= indexed > 0
    while store.index_lag_ms > derived.INDEX_LAG_MS_MAX:
        store.append([message_of(number)], [()])


def test_queries_look_through_what_is_not_indexed_yet(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    store.append([message_of(number) for number in range(50)], [()] * 50)
    bench.clock.advance(700)
    assert (store.index_lag_records, store.index_lag_ms) == (50, 700)
    assert store.query("T", "K49", 9, 0, 1 << 60)[0].queue_offset == 49
    assert store.run_background(40)
    assert 0 < store.index_lag_records < 50
    assert [store.query("T", f"K{number}", 9, 0, 1 << 60)[0].queue_offset for number in (0, 49)] == [0, 49]
    while store.run_background(1000):
        pass
    assert (store.index_lag_records, store.index_lag_ms, store.indexed_position) == (0, 0, store.written_position)
    assert store.query("T", "K49", 9, 0, 1 << 60)[0].queue_offset == 49


def test_a_hole_costs_no_read_however_long_the_log_is(bench: Bench, message_of: Callable[..., Message]) -> None:
    """Its unit says position 0 and 2 GiB: in a longer log that would be a whole segment read into memory."""
    store = bench.open()
    store.append([message_of(0)], [(7,)])
    store.append([message_of(1)], [(7,)])
    store.trim_light(7, 1)
    units = store.light_units(7, 0, 2)
    end = store._appender.position
    store._appender.position = 1 << 33
    reads: list[int] = []
    read = store._log.read
    store._log.read = lambda at, count: reads.append(count) or read(at, count)  # type: ignore[assignment, func-returns-value]
    found = store.get_many([unit[:2] for unit in units])
    assert found[0] is None
    assert found[1] is not None
    assert found[1].physical_offset == units[1][0]
    assert max(reads) < 1 << 20
    store._appender.position = end
    store.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_no_descriptor_is_no_broken_disk(bench: Bench, message_of: Callable[..., Message], number: int) -> None:
    """The machine has none left for a while: what needs one is refused or waits, nothing is lost."""
    store = bench.open()
    fill(store, message_of, 3)

    def fault(operation: str, path: Path) -> OSError | None:
        return OSError(number, os.strerror(number)) if operation == "open" else None

    bench.files.fault = fault
    stored = 0

    def fill_the_segment() -> None:
        nonlocal stored
        while True:
            store.append([message_of(100 + stored, bytes(3000), "new")], [(2,)])
            stored += 1

    with pytest.raises(GantryError, match=os.strerror(number)) as caught:
        fill_the_segment()
    assert caught.value.code is ErrorCode.STORE_FULL
    assert store.flush_derived() is False
    checkpoint = store.take_checkpoint(force=True)
    assert checkpoint is None
    assert store.failure is None
    bench.files.fault = lambda operation, path: None
    while store.run_background(10_000):
        pass
    checkpoint = store.take_checkpoint(force=True)
    assert checkpoint is not None
    bench.files.fault = fault
    store.sync_checkpoint(checkpoint)
    assert store.failure is None
    assert store.derived_position < store.written_position
    bench.files.fault = lambda operation, path: None
    kept = store.take_checkpoint()
    assert kept is not None
    store.sync_checkpoint(kept)
    assert store.derived_position == store.written_position
    store.append([message_of(500, bytes(3000), "new")], [(2,)])
    assert (store.max_offset("new", 0), store.light_visible_end(2)) == (stored + 1, stored + 1)
    store.close()
    bench.open()
    assert bench.report.clean
