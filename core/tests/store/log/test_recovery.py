"""Damage, torn tails, groups of continuation records, foreign stores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gantrymq.model.message import Message
from gantrymq.model.properties import OWN_CRC_SIZE, has_own_crc
from gantrymq.net.testing import ManualClock
from gantrymq.store.checkpoints.positions import Sizes
from gantrymq.store.config import StoreConfig
from gantrymq.store.log import record
from gantrymq.store.log.recovery import FILLER_BYTES_MAX, RecoveryReport, fillers
from gantrymq.store.message_store import MessageStore
from gantrymq.store.queues.consume_queue import HOLE_SIZE
from gantrymq.store.testing import MemoryFileSystem, PowerCut

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Bench

SMALL = StoreConfig(commitlog_file_size=65536, consumequeue_file_size=2000)
LOG = ("store", "commitlog", "0" * 20)


def filled(
    bench: Bench, message_of: Callable[..., Message], count: int = 20, size: int = 200
) -> tuple[MessageStore, list[Message]]:
    store = bench.open()
    messages = [message_of(number, bytes([65 + number % 26]) * size) for number in range(count)]
    for message in messages:
        store.append([message], [(1,)])
    return store, messages


@pytest.mark.parametrize("place", [0, 5, 8, 30, 85, 90, 120])
def test_damage_below_the_flushed_position_is_replaced_by_a_filler(
    bench: Bench, message_of: Callable[..., Message], place: int
) -> None:
    store, messages = filled(bench, message_of)
    store.flush()
    bench.crash()
    hurt = messages[7]
    bench.damage(hurt.physical_offset + place, b"\xee\xee\xee", *LOG)
    before = bench.file(*LOG)[hurt.physical_offset : hurt.physical_offset + hurt.size]
    again = bench.open()
    assert bench.report.quarantined == [(hurt.physical_offset, hurt.size)]
    assert bench.report.end == store.written_position
    assert bench.file("gantry", "quarantine", f"{hurt.physical_offset:020d}-{hurt.size}") == before
    filler = record.decode(bench.file(*LOG), hurt.physical_offset)
    assert (filler.size, filler.sys_flag, filler.physical_offset) == (hurt.size, 12, hurt.physical_offset)
    units = again.units("T", 0, 0, 99)
    assert len(units) == 20
    assert units[7][1] == HOLE_SIZE
    assert again.get(hurt.physical_offset) is None
    pieces, taken = again.read_records(units, 1 << 30)
    assert taken == 20
    assert b"".join(pieces) == b"".join([record.encode(m) for m in messages if m is not hurt])
    assert len(again.light_units(1, 0, 99)) == 20
    again.close()
    bench.open()
    assert bench.report.clean
    assert bench.report.quarantined == []


def test_two_damaged_neighbours_are_one_gap(bench: Bench, message_of: Callable[..., Message]) -> None:
    store, messages = filled(bench, message_of)
    store.flush()
    bench.crash()
    for hurt in messages[5:7]:
        bench.damage(hurt.physical_offset, b"\xff" * 60, *LOG)
    bench.open()
    assert bench.report.quarantined == [(messages[5].physical_offset, messages[5].size + messages[6].size)]
    assert bench.report.end == store.written_position


def test_damage_up_to_the_end_of_what_was_flushed(bench: Bench, message_of: Callable[..., Message]) -> None:
    store, messages = filled(bench, message_of)
    store.flush()
    bench.crash()
    bench.damage(messages[18].physical_offset, bytes(2 * messages[18].size), *LOG)
    again = bench.open()
    assert bench.report.quarantined == [(messages[18].physical_offset, 2 * messages[18].size)]
    assert bench.report.end == store.written_position
    assert again.max_offset("T", 0) == 18
    after = message_of(99)
    again.append([after], [(1,)])
    assert again.get(after.physical_offset) is not None


def test_damage_in_a_full_segment_and_its_end(bench: Bench, message_of: Callable[..., Message]) -> None:
    store, messages = filled(bench, message_of, 80, 2000)
    store.flush()
    bench.crash()
    last = [message for message in messages if message.physical_offset < 65536][-1]
    bench.damage(last.physical_offset, bytes(65536 - last.physical_offset), *LOG)
    again = bench.open()
    assert bench.report.quarantined == [(last.physical_offset, 65536 - last.physical_offset)]
    assert bench.report.end == store.written_position
    assert again.max_offset("T", 0) == 80
    assert again.units("T", 0, messages.index(last), 1)[0][1] == HOLE_SIZE


def test_a_torn_tail_is_cut_though_valid_records_follow(bench: Bench, message_of: Callable[..., Message]) -> None:
    _, messages = filled(bench, message_of)
    bench.crash()
    bench.damage(messages[15].physical_offset + 95, b"\xff", *LOG)
    again = bench.open()
    assert (bench.report.end, bench.report.quarantined) == (messages[15].physical_offset, [])
    assert bench.report.cut_bytes == messages[-1].physical_offset + messages[-1].size - messages[15].physical_offset
    assert bench.file(*LOG)[bench.report.end :] == bytes(65536 - bench.report.end)
    assert (again.max_offset("T", 0), again.light_visible_end(1)) == (15, 15)
    # A record of the same size must not make the old ones valid again.
    same = message_of(15, messages[15].body)
    again.append([same], [(1,)])
    bench.crash()
    bench.open()
    assert bench.report.end == same.physical_offset + same.size


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_group_without_all_its_continuation_records_is_cut(
    bench: Bench, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.store.appender.CONTINUATION_PAIRS_MAX", 20)
    store = bench.open()
    first = Message("T", b"first", queue_id=0)
    store.append([first], [()])
    main = Message("T", b"main", b"A\x01b\x02", queue_id=0)
    store.append([main], [tuple(range(1, 125))])
    units = store.units("rmq_sys_gantry_dispatch", 0, 0, 9)
    assert len(units) == 3
    bench.crash()
    if kept < 3:
        bench.damage(units[kept][0], bytes(65536 - units[kept][0]), *LOG)
    again = bench.open()
    assert bench.report.end == main.physical_offset
    assert (again.max_offset("T", 0), again.light_visible_end(1), again.light_visible_end(124)) == (1, 0, 0)


@pytest.mark.parametrize("properties", [b"", b"A\x01" + b"v" * 32000 + b"\x02"])
def test_any_number_of_light_queues(bench: Bench, properties: bytes) -> None:
    store = bench.open()
    targets = tuple(range(1, 3000))
    messages = [Message("T", b"%d" % n, properties, "", (), 0) for n in range(3)]
    for message in messages:
        assert store.check(message) is None
        store.append([message], [targets])
    expected = [(message.physical_offset, message.size, 0) for message in messages]
    assert [store.light_units(light, 0, 9) for light in (1, 64, 65, 2999)] == [expected] * 4
    bench.crash()
    again = bench.open()
    assert [again.light_units(light, 0, 9) for light in (1, 64, 65, 2999)] == [expected] * 4
    got = again.get(messages[0].physical_offset)
    assert got is not None
    assert got.properties == properties
    assert not any(
        record.MORE_MARK in message.properties
        for message in again.get_many([(p, s) for p, s, _ in expected])
        if message
    )


def test_deleted_light_queue_stays_deleted(bench: Bench) -> None:
    store = bench.open()
    for _ in range(3):
        store.append([Message("T", b"", queue_id=0)], [(1, 2)])
    store.delete_light(1)
    assert (store.light_visible_end(1), store.light_units(1, 0, 9)) == (0, [])
    store.close()
    again = bench.open()
    assert (again.light_visible_end(1), again.light_visible_end(2)) == (0, 3)


def test_a_store_without_our_files_is_read_from_its_log(bench: Bench, message_of: Callable[..., Message]) -> None:
    store, messages = filled(bench, message_of, 400)
    store.close()
    for path in [path for path in bench.files.snapshot() if "gantry" in path.parts]:
        bench.files.remove(path)
    again = bench.open()
    assert bench.report.clean
    assert (bench.report.start, bench.report.end, bench.report.records) == (0, store.written_position, 400)
    assert [unit[0] for unit in again.units("T", 0, 0, 999)] == [message.physical_offset for message in messages]
    assert [unit[0] for unit in again.light_units(1, 0, 999)] == [message.physical_offset for message in messages]


def test_light_queues_of_a_real_broker_keep_their_files(bench: Bench) -> None:
    store = bench.open()
    dispatch = b"INNER_MULTI_DISPATCH\x01%LMQ%device\x02INNER_MULTI_QUEUE_OFFSET\x010\x02"
    store.append([Message("T", b"", dispatch, queue_id=0)], [()])
    bench.crash()
    again = bench.open()
    assert again.units("%LMQ%device", 0, 0, 9) == again.units("T", 0, 0, 9)


def test_progress_is_told(bench: Bench, message_of: Callable[..., Message]) -> None:
    filled(bench, message_of, 30)
    bench.crash()
    told: list[tuple[int, int]] = []
    bench.open(lambda done, total: told.append((done, total)))
    assert told[-1] == (bench.report.end, bench.report.end)


@pytest.mark.parametrize(
    "size", [92, 93, 111, 112, 5000, FILLER_BYTES_MAX, FILLER_BYTES_MAX + 1, 3 * FILLER_BYTES_MAX + 77]
)
@pytest.mark.parametrize("own_crcs", [False, True])
def test_fillers_take_exactly_the_gap(size: int, own_crcs: bool) -> None:
    data = fillers(1000, size, False, own_crcs)
    assert len(data) == size
    assert has_own_crc(data) is (own_crcs and size >= record.RECORD_SIZE_MIN + OWN_CRC_SIZE)
    at = 0
    while at < size:
        message = record.decode(data, at)
        assert (message.physical_offset, message.sys_flag) == (1000 + at, 12)
        at += message.size
    assert at == size


@pytest.mark.parametrize(("field", "bad"), [(36, b"\x40"), (56, b"\x40"), (52, b"\x01"), (-9, bytes(8))])
def test_a_rebuild_puts_aside_what_no_reader_would_get(
    bench: Bench, message_of: Callable[..., Message], field: int, bad: bytes
) -> None:
    """And a start that has not to make everything again leaves it: readers say that it is damaged."""
    store, messages = filled(bench, message_of)
    store.close()
    hurt = messages[7]
    bench.damage(hurt.physical_offset + (field if field > 0 else hurt.size + field), bad, *LOG)
    store = bench.open()
    assert not bench.report.quarantined
    assert store.read_units("T", 0, [7], store.units("T", 0, 7, 1), 1 << 20) == ([b""], 1)
    store.close()
    store = bench.open(anew=frozenset({"queues", "index", "lights"}))
    assert bench.report.quarantined == [(hurt.physical_offset, hurt.size)]
    assert [unit[1] == HOLE_SIZE for unit in store.units("T", 0, 0, 99)] == [number == 7 for number in range(20)]
    store.close()


def test_the_line_of_the_log_is_for_people() -> None:
    assert str(RecoveryReport(True, 0, 500)) == "closed cleanly; the log ends at 500"
    assert str(RecoveryReport(True, 0, 0)) == "empty; a new log begins"
    report = RecoveryReport(False, 100, 500, 7, [(place, 10) for place in range(200, 212)], 3)
    text = str(report)
    assert text.startswith(
        "not closed cleanly; checked the log from 100 to 500; 3 records put into their queues again; a torn tail of 7 bytes removed;"
    )
    assert text.endswith("10 bytes at 209 and 2 more places")
    assert "slots" in str(Sizes(1, 2, 3, 4))


def test_a_torn_index_file_above_the_derived_position_costs_its_own_records_only(
    bench: Bench, message_of: Callable[..., Message]
) -> None:
    bench.settings = {**bench.settings, "index_slots": 50, "index_entries": 40}
    store = bench.open()
    for number in range(39):
        store.append([message_of(number)], [()])
    while store.run_background(100_000):
        pass
    checkpoint = store.take_checkpoint(force=True)
    assert checkpoint is not None
    store.sync_checkpoint(checkpoint)
    for number in range(39, 60):
        store.append([message_of(number)], [()])
    while store.run_background(100_000):
        pass
    store.flush()
    store.flush_derived()
    store._index.write_pending()
    bench.crash()
    _, name = bench.files.list_dir(bench.root / "store" / "index")
    handle = bench.files.open(bench.root / "store" / "index" / name, False)
    bench.files.truncate(handle, 40 + 50 * 4 + 20 * 5)
    bench.files.pwrite(handle, b"\x7f" * 60, 40 + 50 * 4 + 20)
    bench.files.close(handle)
    store = bench.open()
    assert bench.report.records == 21  # not 60
    for number in (0, 38, 39, 59):
        assert [message.queue_offset for message in store.query("T", f"K{number}", 9, 0, 1 << 60)] == [number]
    store.close()


@pytest.mark.parametrize("late_log", [False, True])
@pytest.mark.parametrize("power_lost", [False, True])
def test_queues_are_opened_after_a_kill_only_where_records_were_behind_the_checkpoint(
    late_log: bool, power_lost: bool
) -> None:
    files: MemoryFileSystem = MemoryFileSystem()
    config = StoreConfig(commitlog_file_size=65536, consumequeue_file_size=2000, transient_pool=late_log)

    def opened() -> MessageStore:
        store = MessageStore(files, Path("/d"), config, ManualClock())
        store.load()
        return store

    store = opened()
    for number in range(20):
        store.append([Message(f"topic{number}", b"x", queue_id=0)], [()])
    store.close()
    store = opened()
    store.append([Message("topic3", b"y", queue_id=0)], [()])
    store.work_ahead()
    store.flush_derived()
    store.flush()
    files = files.after_power_loss(lambda path, count: [True] * count) if power_lost else files.after_process_crash()
    store = opened()
    assert set(store.used_topics) == ({f"topic{n}" for n in range(20)} if power_lost or late_log else {"topic3"})
    assert [store.max_offset(f"topic{number}", 0) for number in range(20)] == [1, 1, 1, 2, *[1] * 16]


def test_a_kill_under_recovery_after_a_loss_of_power_forgets_nothing() -> None:
    """The queues of the first start after it are not all cut yet: the second must not take them as they are."""
    first = MemoryFileSystem()
    store = MessageStore(first, Path("/d"), SMALL, ManualClock())
    store.load()
    for number in range(6):
        store.append([Message(f"topic{number}", b"x", queue_id=0)], [()])
    store.flush_derived()
    # Units are there, the log's bytes are not.
    lost = first.after_power_loss(lambda path, count: ["commitlog" not in str(path)] * count)
    probe = lost.after_process_crash()
    MessageStore(probe, Path("/d"), SMALL, ManualClock()).load()
    for cut in range(len(probe.operations)):
        files = lost.after_process_crash()
        files.power_cut_at = cut
        with pytest.raises(PowerCut):
            MessageStore(files, Path("/d"), SMALL, ManualClock()).load()
        again = MessageStore(files.after_process_crash(), Path("/d"), SMALL, ManualClock())
        again.load()
        for topic in again.topics():
            assert again.max_offset(topic, 0) == 0, (cut, topic)


def test_a_file_system_that_lost_the_end_of_the_log_while_the_machine_ran_on() -> None:
    files = MemoryFileSystem()
    store = MessageStore(files, Path("/d"), SMALL, ManualClock())
    store.load()
    for number in range(6):
        store.append([Message(f"topic{number}", b"x", queue_id=0)], [()])
    store.flush_derived()
    lost = files.after_power_loss(lambda path, count: ["commitlog" not in str(path)] * count)
    lost._boots = files._boots
    store = MessageStore(lost, Path("/d"), SMALL, ManualClock())
    store.load()
    for number in range(6):
        assert store.max_offset(f"topic{number}", 0) == 0
        store.append([Message(f"topic{number}", b"y", queue_id=0)], [()])
        store.work_ahead()
        assert [
            message.body
            for message in store.get_many([unit[:2] for unit in store.units(f"topic{number}", 0, 0, 9)])
            if message
        ] == [b"y"]


def test_a_time_is_found_whatever_records_are_lost(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    messages = [message_of(number) for number in range(15)]
    for message in messages:
        store.append([message], [()])
        bench.clock.advance(1000)
    store.flush()
    bench.crash()
    hurt = {3, 6, 7, 8, 11}
    for number in hurt:
        bench.damage(messages[number].physical_offset, b"\xff" * 20, *LOG)
    again = bench.open()
    units = again.units("T", 0, 0, 99)
    assert {number for number, unit in enumerate(units) if unit[1] == HOLE_SIZE} == hurt
    for number, message in enumerate(messages):
        first = again.offset_by_time("T", 0, message.store_ms, True)
        assert first <= number
        assert {*range(first, number)} <= hurt, "nothing older"
        last = again.offset_by_time("T", 0, message.store_ms, False)
        assert number in hurt or last >= number
        assert {*range(number + 1, last + 1)} <= hurt, "nothing younger"
    again.close()
