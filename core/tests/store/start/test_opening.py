"""Derived files that somebody deleted or cut while the store was stopped: made again from the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Bench
    from gantrymq.model.message import Message
    from gantrymq.store.message_store import MessageStore

COUNT = 200


def files_below(bench: Bench, *directory: str) -> list[Path]:
    root = bench.root.joinpath(*directory)
    return [path for path in bench.files.snapshot() if root in path.parents]


def fill(bench: Bench, message_of: Callable[..., Message], stop: str = "clean") -> list[Message]:
    store = bench.open()
    messages = [message_of(number, b"body" * 20, "TU"[number % 2], number // 2 % 3) for number in range(COUNT)]
    for number, message in enumerate(messages):
        store.append([message], [(1 + number % 2,)])
    if stop == "clean":
        store.close()
        return messages
    store.flush()
    checkpoint = store.take_checkpoint(force=True)
    assert checkpoint is not None
    while store.run_background(10_000):
        pass
    store.sync_checkpoint(store.take_checkpoint(force=True))  # type: ignore[arg-type]
    bench.crash()
    return messages


def check_all(store: MessageStore, messages: list[Message]) -> None:
    for topic in "TU":
        for queue_id in range(3):
            mine = [m for m in messages if (m.topic, m.queue_id) == (topic, queue_id)]
            units = store.units(topic, queue_id, 0, COUNT)
            assert [unit[0] for unit in units] == [m.physical_offset for m in mine]
            assert store.max_offset(topic, queue_id) == len(mine)
            assert store.min_offset(topic, queue_id) == 0
    for message in messages:
        found = store.get(message.physical_offset)
        assert found is not None
        assert found.body == message.body
        assert store.query(message.topic, message.keys[0], 9, 0, 1 << 60)[0].queue_offset == message.queue_offset
    for light in (1, 2):
        positions = [unit[0] for unit in store.light_units(light, 0, COUNT)]
        assert positions == [m.physical_offset for number, m in enumerate(messages) if 1 + number % 2 == light]


def remove(bench: Bench, paths: list[Path]) -> None:
    assert paths
    for path in paths:
        bench.files.remove(path)


def shorten(bench: Bench, path: Path, length: int) -> None:
    handle = bench.files.open(path, False)
    bench.files.truncate(handle, length)
    bench.files.datasync(handle)
    bench.files.close(handle)


def blank(bench: Bench, path: Path, count: int) -> None:
    """The first bytes become zeros; its length stays."""
    handle = bench.files.open(path, False)
    bench.files.pwrite(handle, bytes(count), 0)
    bench.files.datasync(handle)
    bench.files.close(handle)


def queue_file(bench: Bench, place: int) -> Path:
    return [path for path in files_below(bench, "store", "consumequeue", "T") if path.parent.name == "1"][place]


DAMAGES: dict[str, Callable[[Bench], None]] = {
    "consumequeue and index": lambda b: remove(
        b, files_below(b, "store", "consumequeue") + files_below(b, "store", "index")
    ),
    "all queues": lambda b: remove(b, files_below(b, "store", "consumequeue")),
    "all of one topic": lambda b: remove(b, files_below(b, "store", "consumequeue", "T")),
    "first file of a queue": lambda b: remove(b, [queue_file(b, 0)]),
    "last file of a queue": lambda b: remove(b, [queue_file(b, -1)]),
    "a queue, shorter in the middle": lambda b: shorten(b, queue_file(b, 0), 40),
    "a queue, shorter": lambda b: shorten(b, queue_file(b, -1), 40),
    "a queue, its begin zeros": lambda b: blank(b, queue_file(b, -1), 40),
    "a queue, zeros before its end": lambda b: blank(b, queue_file(b, 0), 80),
    "a queue, emptied": lambda b: shorten(b, queue_file(b, -1), 0),
    "index": lambda b: remove(b, files_below(b, "store", "index")),
    "one index file": lambda b: remove(b, files_below(b, "store", "index")[1:2]),
    "an index file, shorter": lambda b: shorten(b, files_below(b, "store", "index")[-1], 300),
    "an index file, emptied": lambda b: shorten(b, files_below(b, "store", "index")[-1], 0),
    "light": lambda b: remove(b, files_below(b, "gantry", "light")),
    "light stream": lambda b: remove(b, [p for p in files_below(b, "gantry", "light") if p.name != "table"]),
    "light stream, shorter": lambda b: shorten(b, files_below(b, "gantry", "light")[0], 500),
    "light table": lambda b: remove(b, [p for p in files_below(b, "gantry", "light") if p.name == "table"]),
}


NOTICED_AT_ONCE = ("consumequeue and index", "all queues", "index", "light")
"""After the very first life of a store, which nobody stopped: there was no moment yet to note how far files reach."""
CASES = [(damage, stop) for damage in DAMAGES for stop in ("clean", "killed twice")] + [
    (damage, "killed") for damage in NOTICED_AT_ONCE
]


@pytest.mark.parametrize(("damage", "stop"), CASES)
def test_what_is_short_is_made_again(
    bench: Bench, message_of: Callable[..., Message], damage: str, stop: str, caplog: pytest.LogCaptureFixture
) -> None:
    messages = fill(bench, message_of, stop)
    if stop == "killed twice":  # what a start notes is there without any clean stop
        bench.open()
        bench.crash()
    DAMAGES[damage](bench)
    gone = [path for path in bench.files._directories if path.parts[3:4] in (("index",), ("consumequeue",))]
    left = bench.files.snapshot()
    for directory in gone:
        if not any(directory in path.parents for path in left):
            bench.files._directories.discard(directory)
    with caplog.at_level(logging.ERROR):
        store = bench.open()
    if "light" not in damage:
        assert any("made again from the log" in line for line in caplog.messages)
    check_all(store, messages)
    again = message_of(COUNT, b"next", "T", 0)
    store.append([again], [(1,)])
    assert again.queue_offset == len([m for m in messages if (m.topic, m.queue_id) == ("T", 0)])
    store.close()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        store = bench.open()
    assert bench.report.clean
    assert not caplog.messages
    assert store.max_offset("T", 0) == again.queue_offset + 1


def test_nothing_is_made_again_where_nothing_is_short(bench: Bench, message_of: Callable[..., Message]) -> None:
    fill(bench, message_of)
    bench.open()
    assert (bench.report.clean, bench.report.records) == (True, 0)
    bench.crash()
    bench.open()
    assert (bench.report.clean, bench.report.records) == (False, 0)


def test_ten_kills_read_no_more_than_the_first(bench: Bench, message_of: Callable[..., Message]) -> None:
    read = []
    for number in range(10):
        store = bench.open()
        read.append(bench.report.end - bench.report.start)
        for _ in range(50):
            store.append([message_of(number)], [(1,)])
        bench.crash()
    assert read[0] == 0
    assert max(read) < 60 * store.units("T", 0, 0, 1)[0][1], "one life, not all before it"


def test_a_queue_whose_records_are_gone_goes_on_where_it_was(bench: Bench, message_of: Callable[..., Message]) -> None:
    """No offset is given twice, though the log does not know it any more."""
    store = bench.open()
    for number in range(30):
        store.append([message_of(number, b"x" * 50, "old")], [()])
    for number in range(700):
        store.append([message_of(number, b"x" * 200)], [()])
    oldest = store.segments.oldest(store.written_position)
    assert oldest is not None
    removal = store.segments.removal(oldest[1])
    while not removal.step(1000):
        pass
    removal.unlink()
    low = store.min_offset("T", 0)
    assert low > 0
    store.close()
    for directory in ("consumequeue", "index"):
        remove(bench, files_below(bench, "store", directory))
    store = bench.open()
    assert (store.min_offset("old", 0), store.max_offset("old", 0)) == (30, 30)
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (low, 700)
    store.close()
    store = bench.open()
    assert bench.report.clean
    assert (store.min_offset("old", 0), store.max_offset("old", 0)) == (30, 30)


@pytest.mark.parametrize("what", [{"queues"}, {"index"}, {"lights"}, {"queues", "index", "lights"}])
def test_made_again_because_somebody_asks(bench: Bench, message_of: Callable[..., Message], what: set[str]) -> None:
    messages = fill(bench, message_of)
    if "queues" in what:
        bench.damage(20 * 3, b"\xff" * 37, *queue_file(bench, 0).relative_to(bench.root).parts)
    if "index" in what:
        name = files_below(bench, "store", "index")[0].name
        bench.damage(40, b"\xff" * 200, "store", "index", name)
    if "lights" in what:
        name = next(p.name for p in files_below(bench, "gantry", "light") if p.name != "table")
        bench.damage(100, b"\xff" * 50, "gantry", "light", name)
    store = bench.open(anew=frozenset(what))
    check_all(store, messages)
    store.close()
    store = bench.open()
    assert bench.report.clean
    check_all(store, messages)


def test_damage_in_the_log_that_a_rebuild_comes_upon(bench: Bench, message_of: Callable[..., Message]) -> None:
    messages = fill(bench, message_of)
    hurt = messages[17]
    bench.damage(hurt.physical_offset + 100, b"\xee\xee", "store", "commitlog", "0" * 20)
    store = bench.open(anew=frozenset({"queues"}))
    assert bench.report.quarantined == [(hurt.physical_offset, hurt.size)]
    assert not bench.report.clean
    assert [(entry.position, entry.size) for entry in store.damage.entries.values()] == [
        (hurt.physical_offset, hurt.size)
    ]
    mine = [m for m in messages if (m.topic, m.queue_id) == (hurt.topic, hurt.queue_id)]
    units = store.units(hurt.topic, hurt.queue_id, 0, COUNT)
    assert [unit[0] for unit in units] == [0 if m is hurt else m.physical_offset for m in mine]
