"""Segments of the log that are gone or shorter than they were: refused, or, if the loss is accepted, gone round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gantrymq.model.errors import StoreCorruptError
from gantrymq.store.log.missing import Gap, describe, gaps_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Bench
    from gantrymq.model.message import Message
    from gantrymq.store.message_store import MessageStore

SIZE = 64 * 1024


@pytest.mark.parametrize(
    ("lengths", "begin", "flushed", "gaps"),
    [
        ({}, 0, 0, []),
        ({}, -1, 0, []),
        ({0: 10}, 0, 10, []),
        ({0: 10, 10: 10, 20: 0}, 0, 20, []),
        ({0: 10, 10: 10, 20: 3}, 0, 23, []),
        ({}, 0, 25, [Gap(0, 25, False)]),
        ({}, -1, 25, [Gap(20, 25, False)]),
        ({10: 10}, 0, 20, [Gap(0, 10, False)]),
        ({10: 10}, -1, 20, []),
        ({0: 10, 20: 10}, 0, 30, [Gap(10, 20, False)]),
        ({0: 10, 40: 10}, 0, 50, [Gap(10, 40, False)]),
        ({0: 10}, 0, 25, [Gap(10, 25, False)]),
        ({0: 10, 10: 4, 20: 10}, 0, 30, [Gap(14, 20, True)]),
        ({0: 10, 10: 4}, 0, 15, [Gap(14, 15, True)]),
        ({10: 0, 30: 9}, 0, 40, [Gap(0, 10, False), Gap(10, 20, True), Gap(20, 30, False), Gap(39, 40, True)]),
    ],
)
def test_gaps(lengths: dict[int, int], begin: int, flushed: int, gaps: list[Gap]) -> None:
    assert gaps_of(lengths, 10, begin, flushed) == gaps


def test_gaps_in_words() -> None:
    text = describe([Gap(0, 10, False), Gap(20, 50, False), Gap(53, 60, True)], 10)
    assert text == (
        f"segment {0:020d} is missing; segments {20:020d} to {40:020d} are missing; "
        f"segment {50:020d} ends after 3 bytes of 10"
    )


def paths(bench: Bench, *directory: str) -> list[Path]:
    return [path for path in bench.files.snapshot() if path.parent == bench.root.joinpath(*directory)]


def filled(bench: Bench, message_of: Callable[..., Message], count: int = 1200) -> list[Message]:
    """Five segments and a little, stopped cleanly; every tenth message is in light queue 1."""
    store = bench.open()
    messages = [message_of(number, bytes([65 + number % 26]) * 200, queue_id=number % 3) for number in range(count)]
    for number, message in enumerate(messages):
        store.append([message], [(1,) if number % 10 == 0 else ()])
    store.close()
    return messages


def served(store: MessageStore, queue_id: int) -> dict[int, bytes]:
    """Offset to body of every record that the queue has."""
    found = {}
    for offset in range(store.max_offset("T", queue_id)):
        for position, size, _ in store.units("T", queue_id, offset, 1):
            message = store.get(position) if 0 < size < SIZE else None
            if message is not None:
                found[offset] = message.body
    return found


def check_served(store: MessageStore, messages: list[Message], lost: Callable[[Message], bool]) -> None:
    """Whatever is not lost is where it was, and no offset is given twice."""
    for queue_id in range(3):
        mine = [message for message in messages if message.queue_id == queue_id]
        assert served(store, queue_id) == {m.queue_offset: m.body for m in mine if not lost(m)}
        assert store.max_offset("T", queue_id) == len(mine)
    assert store.written_position >= messages[-1].physical_offset + messages[-1].size


def check_listed(store: MessageStore, messages: list[Message], lost: Callable[[Message], bool]) -> None:
    """`gantry store damage list` says where each of the lost ones was, also when it looks again."""
    entries = list(store.damage.entries.values())
    assert not any(store.is_mended(entry) for entry in entries)
    for message in messages:
        at = message.physical_offset
        assert any(entry.position <= at < entry.position + entry.size for entry in entries) == lost(message)


def wreck(bench: Bench, which: str) -> Callable[[Message], bool]:
    """Take something of the log away; says what was lost with it."""
    log_ = paths(bench, "store", "commitlog")
    if which == "directory":
        bench.files.remove_tree(bench.root / "store" / "commitlog")
        return lambda message: True
    if which == "all":
        for path in log_:
            bench.files.remove(path)
        return lambda message: True
    place = {"first": 0, "middle": 2, "last": -1, "short": 2, "short last": -1}[which]
    base = int(log_[place].name)
    if not which.startswith("short"):
        bench.files.remove(log_[place])
        return lambda message: base <= message.physical_offset < base + SIZE
    handle = bench.files.open(log_[place], False)
    bench.files.truncate(handle, 1000)
    bench.files.close(handle)
    return lambda message: (
        base <= message.physical_offset < base + SIZE and (message.physical_offset + message.size > base + 1000)
    )


KINDS = ("directory", "all", "first", "middle", "last", "short", "short last")


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("which", KINDS)
def test_a_start_is_refused_and_changes_nothing(
    bench: Bench, message_of: Callable[..., Message], which: str, killed: bool
) -> None:
    filled(bench, message_of)
    if killed:
        store = bench.open()
        store.append([message_of(9999)], [()])
        store.flush()
        bench.crash()
    wreck(bench, which)
    before = bench.files.snapshot()
    for _ in range(2):
        with pytest.raises(StoreCorruptError, match=r"segment.*--accept-loss"):
            bench.open()
        assert bench.files.snapshot() == before
    assert not bench.files.open_handles


@pytest.mark.parametrize("which", KINDS)
def test_an_accepted_loss_takes_what_was_there_and_nothing_else(
    bench: Bench, message_of: Callable[..., Message], which: str
) -> None:
    messages = filled(bench, message_of)
    lost = wreck(bench, which)
    store = bench.open(accept_loss=True)
    check_served(store, messages, lost)
    check_listed(store, messages, lost)
    new = message_of(5000, b"after")
    store.append([new], [(1,)])
    assert new.queue_offset == 400
    assert new.physical_offset >= messages[-1].physical_offset + messages[-1].size
    bench.crash()
    store = bench.open()  # it is no loss any more
    assert served(store, 0)[400] == b"after"
    assert {m.body for m in messages if not lost(m)} <= set(served(store, 0).values()) | {
        body for queue_id in (1, 2) for body in served(store, queue_id).values()
    }
    store.close()
    store = bench.open()
    assert bench.report.clean
    assert served(store, 0)[400] == b"after"
    check_listed(store, messages, lost)
    for entry in list(store.damage.entries.values()):
        store.damage.skip(entry)
    assert not store.damage.entries


@pytest.mark.parametrize("back", [1, 4, 9, 40])
@pytest.mark.parametrize("dispatched", [False, True])
def test_a_record_that_the_end_of_a_short_segment_goes_through_is_not_whole(
    bench: Bench, message_of: Callable[..., Message], back: int, dispatched: bool
) -> None:
    """Though what is left of it has all of the body."""
    messages = filled(bench, message_of)
    cut = next(m for m in messages if m.physical_offset > 2 * SIZE and bool(m.dispatch) is dispatched)
    end = cut.physical_offset + cut.size - back
    handle = bench.files.open(paths(bench, "store", "commitlog")[2], False)
    bench.files.truncate(handle, end - 2 * SIZE)
    bench.files.close(handle)
    store = bench.open(accept_loss=True)
    assert bench.report.quarantined[0][0] == cut.physical_offset
    check_served(store, messages, lambda m: m.physical_offset >= cut.physical_offset and m.physical_offset < 3 * SIZE)
    store.close()


def test_what_retention_removed_is_not_missing(bench: Bench, message_of: Callable[..., Message]) -> None:
    messages = filled(bench, message_of)
    for crash in (False, True):
        store = bench.open()
        oldest = store.segments.oldest(store.written_position)
        assert oldest is not None
        removal = store.segments.removal(oldest[1])
        while not removal.step(1000):
            pass
        removal.unlink()
        if crash:
            bench.power_loss()
        else:
            store.close()
    store = bench.open()
    assert store.log_min_position == 2 * SIZE
    assert set(served(store, 0)) == {
        m.queue_offset for m in messages if m.queue_id == 0 and m.physical_offset >= 2 * SIZE
    }


def test_power_fails_before_the_segment_is_removed(bench: Bench, message_of: Callable[..., Message]) -> None:
    filled(bench, message_of)
    store = bench.open()
    removal = store.segments.removal(SIZE)
    while not removal.step(1000):
        pass
    store.segments.note_begin(SIZE)
    bench.power_loss()
    store = bench.open()
    assert store.log_min_position == 0
    store.close()


def test_positions_of_an_older_version_know_no_begin(bench: Bench, message_of: Callable[..., Message]) -> None:
    filled(bench, message_of)
    path = bench.root / "gantry" / "positions"
    data = bench.file("gantry", "positions")
    handle = bench.files.open(path, False)
    from zlib import crc32

    for at in (0, 512):
        old = data[at + 8 : at + 64]
        bench.files.pwrite(handle, b"GPO1" + crc32(old).to_bytes(4, "big") + old + bytes(8), at)
    bench.files.close(handle)
    bench.files.remove(paths(bench, "store", "commitlog")[0])
    store = bench.open()
    assert store.log_min_position == SIZE
    store.close()
    bench.files.remove(paths(bench, "store", "commitlog")[0])
    with pytest.raises(StoreCorruptError, match="is missing"):
        bench.open()
