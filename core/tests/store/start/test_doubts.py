"""A record whose head was changed on disk: a rebuild believes its neighbours, names it, and serves the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gantrymq.store.log.record import LONG
from gantrymq.store.queues.consume_queue import HOLE_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Bench
    from gantrymq.model.message import Message
    from gantrymq.store.message_store import MessageStore

COUNT = 60
ALL = frozenset({"queues", "index", "lights"})
QUEUE_ID_AT, QUEUE_OFFSET_AT = 12, 20


def fill(bench: Bench, message_of: Callable[..., Message], clean: bool = True) -> list[Message]:
    """Queues T/0 and T/1 in turn; light queue 1 has every message."""
    store = bench.open()
    messages = [message_of(number, b"body", "T", number % 2) for number in range(COUNT)]
    for message in messages:
        store.append([message], [(1,)])
    if clean:
        store.close()
    else:
        store.flush()
        bench.crash()
    return messages


def write(bench: Bench, message: Message, at: int, data: bytes) -> None:
    assert message.physical_offset + at + len(data) <= 64 * 1024
    bench.damage(message.physical_offset + at, data, "store", "commitlog", f"{0:020d}")


def served(store: MessageStore, queue_id: int) -> list[int]:
    return [
        unit[0] for unit in store.units("T", queue_id, store.min_offset("T", queue_id), COUNT) if unit[1] != HOLE_SIZE
    ]


@pytest.mark.parametrize("offset", [0, 9, 11, 12, 500, 2_000_000, 1 << 56, -1])
@pytest.mark.parametrize("clean", [True, False])
def test_an_offset_that_its_neighbours_contradict(
    bench: Bench, message_of: Callable[..., Message], offset: int, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    messages = fill(bench, message_of, clean)
    bad = messages[20]
    assert (bad.queue_id, bad.queue_offset) == (0, 10)
    write(bench, bad, QUEUE_OFFSET_AT, LONG.pack(offset))
    store = bench.open(anew=ALL)
    assert served(store, 0) == [m.physical_offset for m in messages[::2] if m is not bad]
    assert served(store, 1) == [m.physical_offset for m in messages[1::2]]
    assert (store.max_offset("T", 0), store.min_offset("T", 0)) == (COUNT // 2, 0)
    assert bench.report.quarantined == [(bad.physical_offset, bad.size)]
    assert f"record at {bad.physical_offset} is damaged: it says offset {offset}" in caplog.text
    assert store.query("T", bad.keys[0], 9, 0, 1 << 60) == []
    store.append([message_of(99, b"new", "T", 0)], [()])
    assert store.units("T", 0, COUNT // 2, 1)
    store.close()
    again = bench.open(anew=ALL)
    assert bench.report.quarantined == []
    assert again.max_offset("T", 0) == COUNT // 2 + 1


@pytest.mark.parametrize("offset", [0, 28, 30, 5000])
def test_the_newest_record_is_judged_by_what_was_noted_at_the_stop(
    bench: Bench, message_of: Callable[..., Message], offset: int
) -> None:
    messages = fill(bench, message_of)
    bad = messages[-2]
    assert (bad.queue_id, bad.queue_offset) == (0, 29)
    write(bench, bad, QUEUE_OFFSET_AT, LONG.pack(offset))
    store = bench.open(anew=ALL)
    assert served(store, 0) == [m.physical_offset for m in messages[:-2:2]]
    assert store.max_offset("T", 0) == COUNT // 2, "no offset is given twice"
    assert bench.report.quarantined == [(bad.physical_offset, bad.size)]


def test_the_first_record_is_judged_by_those_behind_it(bench: Bench, message_of: Callable[..., Message]) -> None:
    messages = fill(bench, message_of)
    write(bench, messages[0], QUEUE_OFFSET_AT, LONG.pack(77))
    store = bench.open(anew=ALL)
    assert served(store, 0) == [m.physical_offset for m in messages[2::2]]
    assert bench.report.quarantined == [(messages[0].physical_offset, messages[0].size)]


@pytest.mark.parametrize("queue_id", [7, 255])
def test_a_queue_id_that_was_never_used(bench: Bench, message_of: Callable[..., Message], queue_id: int) -> None:
    messages = fill(bench, message_of)
    for bad in (messages[0], messages[30]):
        write(bench, bad, QUEUE_ID_AT, queue_id.to_bytes(4, "big"))
    store = bench.open(anew=ALL)
    assert served(store, 0) == [m.physical_offset for m in messages[::2] if m not in (messages[0], messages[30])]
    assert store.queues_of("T") == [0, 1, queue_id]
    assert served(store, queue_id) == []
    assert {at for at, _ in bench.report.quarantined} == {messages[0].physical_offset, messages[30].physical_offset}


def test_what_says_that_it_belongs_to_another_queue_that_has_gone_on(
    bench: Bench, message_of: Callable[..., Message]
) -> None:
    messages = fill(bench, message_of)
    bad = messages[40]
    write(bench, bad, QUEUE_ID_AT, (1).to_bytes(4, "big"))
    write(bench, bad, QUEUE_OFFSET_AT, LONG.pack(90))
    store = bench.open(anew=ALL)
    assert served(store, 1) == [m.physical_offset for m in messages[1::2]]
    assert store.max_offset("T", 1) == COUNT // 2
    assert bench.report.quarantined == [(bad.physical_offset, bad.size)]


def test_a_gap_that_two_records_agree_on_is_believed_and_said(
    bench: Bench, message_of: Callable[..., Message], caplog: pytest.LogCaptureFixture
) -> None:
    """As where a broker had lost records before."""
    messages = fill(bench, message_of)
    for message in messages[20::2]:
        write(bench, message, QUEUE_OFFSET_AT, LONG.pack(message.queue_offset + 100))
    bench.files.remove(bench.root / "gantry" / "ends")
    store = bench.open(anew=ALL)
    assert bench.report.quarantined == []
    assert store.max_offset("T", 0) == COUNT // 2 + 100
    assert len(served(store, 0)) == 10
    assert [unit[0] for unit in store.units("T", 0, 110, 20)] == [m.physical_offset for m in messages[20::2]]
    assert "queue T/0: no record says that it has an offset from 10 to 109" in caplog.text


@pytest.mark.parametrize("digit", [b"9", b"0"])
def test_a_wrong_digit_of_a_light_queues_offset_takes_no_other_entry_along(
    bench: Bench, message_of: Callable[..., Message], digit: bytes
) -> None:
    messages = fill(bench, message_of)
    bad = messages[12]
    data = bench.file("store", "commitlog", f"{0:020d}")[bad.physical_offset : bad.physical_offset + bad.size]
    at = data.rindex(b"INNER_MULTI_QUEUE_OFFSET\x0112\x02") + len(b"INNER_MULTI_QUEUE_OFFSET\x01")
    write(bench, bad, at, digit)
    bench.files.remove(bench.root / "gantry" / "light" / f"{0:020d}")
    store = bench.open(anew=ALL)
    assert [unit[0] for unit in store.light_units(1, 0, COUNT)] == [m.physical_offset for m in messages]


def test_claims_that_contradict_each_other_are_bounded(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    messages = [message_of(number, b"body", "T", 0) for number in range(200)]
    for message in messages:
        store.append([message], [()])
    store.close()
    for number, message in enumerate(messages[50:]):
        write(bench, message, QUEUE_OFFSET_AT, LONG.pack(1000 + number * 7))
    bench.files.remove(bench.root / "gantry" / "ends")
    store = bench.open(anew=ALL)
    assert store.max_offset("T", 0) >= 200
    assert [unit[0] for unit in store.units("T", 0, 0, 50)] == [m.physical_offset for m in messages[:50]]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("slices", range(1, 9))
def test_entries_that_were_written_before_the_process_was_killed_are_no_damage(
    bench: Bench, message_of: Callable[..., Message], slices: int, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It was killed between two slices of writing light queues: some had these entries, others had not."""
    store = bench.open()
    lights = tuple(range(1, 9_000))
    for number in range(count):
        store.append([message_of(number, b"body", "T", 0)], [lights])
    for _ in range(slices):
        store.run_background(0)
    store.append([message_of(count, b"body", "T", 0)], [lights])
    bench.crash()
    store = bench.open()
    assert "is damaged" not in caplog.text
    places = [unit[0] for unit in store.units("T", 0, 0, count + 2)]
    for light in lights[::100]:
        assert [unit[0] for unit in store.light_units(light, 0, count + 2)] == places
