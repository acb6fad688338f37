"""IndexFiles: golden bytes, chains, rolling, cutting."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gantrymq.store.index import index_file
from gantrymq.store.index.index_file import CHUNK, MARKED_MAX, Index
from gantrymq.store.index.key_hashes import key_hash
from gantrymq.store.testing import MemoryFileSystem

ROOT = Path("/d/index")
NOW = 1_700_000_000_000


def index_on(files: MemoryFileSystem, slots: int = 3, entries: int = 10) -> Index:
    index = Index(files, ROOT, slots, entries)
    index.open(size_known=False)
    return index


def test_hash_is_absolute_and_has_no_minimum() -> None:
    assert key_hash("T", "a") == 84 * 31 * 31 + 35 * 31 + 97
    assert key_hash("T", "order-1") >= 0


def test_golden_file() -> None:
    files = MemoryFileSystem()
    index = index_on(files)
    # hash("T#a") = 81906 = 0x00013ff2, slot 0; "T#d" = 81909, slot 0; "T#b" = 81907, slot 1
    index.add([("T", ("a",), 500, NOW), ("T", ("d", "b"), 600, NOW + 2500)])
    index.write_pending()
    [(path, data)] = files.snapshot().items()
    assert path.name == datetime.fromtimestamp(NOW / 1000).strftime("%Y%m%d%H%M%S") + "000"
    header = (
        "0000018bcfe56800"  # begin
        "0000018bcfe571c4"  # end
        "00000000000001f4" "0000000000000258"  # positions
        "00000002"  # used slots
        "00000004"  # next entry
    )  # fmt: skip
    slots = "000000020000000300000000"
    first = "0001 3ff200000000000001f40000000000000000"
    second = "0001 3ff500000000000002580000000200000001"
    third = "0001 3ff300000000000002580000000200000000"
    expected = bytes.fromhex(header + slots) + bytes(20) + bytes.fromhex(first + second + third)
    assert data[: len(expected)] == expected
    assert len(data) == 40 + 3 * 4 + 10 * 20


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=40), st.integers(0, 45))
def test_finds_every_entry_newest_first_also_after_a_cut(steps: list[tuple[str, bool]], cut: int) -> None:
    files = MemoryFileSystem()
    index = index_on(files)
    for number, (key, write) in enumerate(steps):
        index.add([("T", (key,), number * 100, NOW + number * 400)])
        if write:
            index.write_pending()

    def expect(live: Index, stop: int) -> None:
        for key in "abcdefg":
            wanted = [n * 100 for n in range(min(stop, len(steps)) - 1, -1, -1) if steps[n][0] == key]
            assert live.find("T", key, 0, 1 << 60, 1000) == wanted

    expect(index, 99)
    index.write_pending()
    expect(index_on(files), 99)
    again = index_on(files)
    again.cut(cut * 100, lambda position: NOW + position * 4)
    expect(again, cut)
    for number in range(cut, len(steps)):
        again.add([("T", (steps[number][0],), number * 100, NOW + number * 400)])
    expect(again, 99)


def test_time_range_to_the_second() -> None:
    index = index_on(MemoryFileSystem(), entries=100)
    for number in range(20):
        index.add([("T", ("k",), number, NOW + number * 1000)])
    assert index.find("T", "k", NOW + 5000, NOW + 7000, 100) == [7, 6, 5, 4]  # one second of slack, records are checked
    assert index.find("T", "k", 0, 1 << 60, 3) == [19, 18, 17]


def test_a_full_file_is_followed_by_a_new_one_with_its_own_name() -> None:
    files = MemoryFileSystem()
    index = index_on(files)
    for number in range(25):
        index.add([("T", ("k",), number, NOW)])
    index.write_pending()
    names = [file.path.name for file in index.list]
    assert len(names) == 3 == len(set(names))
    assert [file.next_entry for file in index.list] == [10, 10, 8]  # entry 0 is never used
    assert index.find("T", "k", 0, 1 << 60, 99) == list(range(24, -1, -1))


def test_cut_below_a_file_removes_it() -> None:
    files = MemoryFileSystem()
    index = index_on(files)
    for number in range(25):
        index.add([("T", ("k",), number, NOW)])
    index.write_pending()
    again = index_on(files)
    again.cut(9, lambda position: NOW)
    assert len(again.list) == 1
    assert again.find("T", "k", 0, 1 << 60, 99) == list(range(8, -1, -1))
    again.cut(0, lambda position: NOW)
    assert files.list_dir(ROOT) == []


def test_a_damaged_chain_ends() -> None:
    files = MemoryFileSystem()
    index = index_on(files)
    index.add([("T", ("a",), 1, NOW), ("T", ("a",), 2, NOW)])
    index.write_pending()
    handle = files.open(index.list[0].path, False)
    files.pwrite(handle, (2).to_bytes(4, "big"), 40 + 12 + 20 + 16)  # entry 1 names entry 2 as its previous
    assert index_on(files).find("T", "a", 0, 1 << 60, 99) == [2, 1]


@pytest.mark.parametrize("entries", [10, 50])
def test_number_of_entries_of_the_directory_wins(entries: int) -> None:
    files = MemoryFileSystem()
    index = index_on(files)
    index.add([("T", ("a",), 1, NOW)])
    index.write_pending()
    again = index_on(files, entries=entries)
    assert again.entries == 10
    assert again.find("T", "a", 0, 1 << 60, 9) == [1]


@given(
    st.lists(
        st.tuples(st.sampled_from(["T", "topic-é"]), st.lists(st.text("ab€", max_size=9), min_size=1, max_size=3)),
        max_size=9,
    ),
    st.integers(0, 30),
)
@example([("T", ["k" * 510, "k" * 511, "é" * 600])], 30)
def test_one_pass_makes_the_same_file_as_two(rows: list[tuple[str, list[str]]], room: int) -> None:
    """`add_records` while there is surely room, key by key at the end of a file."""
    records = [(topic, tuple(keys), at * 10, NOW + at * 700) for at, (topic, keys) in enumerate(rows)]
    before = index_file.KEYS_MAX
    found = []
    try:
        for keys_max in (5, 1 << 30):  # the second: never in one pass
            index_file.KEYS_MAX = keys_max  # type: ignore[misc]
            files = MemoryFileSystem()
            index = Index(files, ROOT, 7, 10 + room)
            index.open(True)
            for first in range(0, len(records), 4):
                index.add(records[first : first + 4])
            index.write_pending()
            assert all(file.next_entry <= file.entries for file in index.list)
            found.append(files.snapshot())
        assert found[0] == found[1]
    finally:
        index_file.KEYS_MAX = before  # type: ignore[misc]


@pytest.mark.parametrize("batch", [1, 7, 400])
def test_what_is_written_is_what_was_added_however_many_chunks_are_marked(batch: int) -> None:
    """From some entries on all chunks of slots count as changed; a later checkpoint marks them one by one again."""
    slots, entries = 3 * CHUNK + 5, 5_000
    files = MemoryFileSystem()
    index = index_on(files, slots, entries)
    number = 0
    for count in (3, MARKED_MAX * 4 + 1, 400, 2, 900):
        for first in range(number, number + count, batch):
            some = range(first, min(first + batch, number + count))
            index.add([("T", (f"key{one:06d}",), one * 10, NOW) for one in some])
        number += count
        index.write_entries()
        index.write_pending()
        again = Index(files, ROOT, slots, entries)
        assert again.open(True)
        for one in range(number):
            assert again.find("T", f"key{one:06d}", 0, 1 << 62, 9)[-1:] == [one * 10]


def test_slots_that_name_entries_beyond_the_last_are_empty() -> None:
    files = MemoryFileSystem()
    index = index_on(files, 3, 50)
    index.add([("T", ("a",), 0, NOW)])
    index.write_pending()
    path = index.list[0].path
    index.close()
    handle = files.open(path, True)
    files.pwrite(handle, b"\0\0\0\x09" * 3, 40)
    files.close(handle)
    index = Index(files, ROOT, 3, 50)
    index.open(True)
    index.load_slots()
    index.add([("T", (f"k{number}",), 10 + number, NOW) for number in range(9)])
    for number in range(9):
        assert index.find("T", f"k{number}", 0, 1 << 62, 99) == [10 + number]


@given(
    st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=60),
    st.lists(st.sampled_from("abcdefgh"), max_size=60),
    st.integers(0, 70),
    st.booleans(),
)
def test_slots_are_taken_back_as_they_would_be_made(before: list[str], after: list[str], cut: int, swept: bool) -> None:
    """A process that was killed: with what slots and header say, or from every entry, the index is the same."""
    files = MemoryFileSystem()
    index = index_on(files, slots=5, entries=200)
    index.add([("T", (key,), 100 + place, NOW + place * 700) for place, key in enumerate(before)])
    index.write_pending()
    place = len(before)
    index.add([("T", (key,), 100 + place + n, NOW + (place + n) * 700) for n, key in enumerate(after)])
    index.write_entries()
    if swept and after:
        index.list[-1]._write_chunks(0, 1)  # slots of the next checkpoint, whose header never came
    position = 100 + min(cut, len(before))
    states = []
    for whole in (True, False):
        copy = files.after_process_crash()
        again = Index(copy, ROOT, 5, 200)
        again.open(size_known=True)
        again.cut(position, lambda at: NOW + (at - 100) * 700, whole)
        if not again.list:
            states.append(None)
            continue
        file = again.list[-1]
        assert file._table is not None
        found = {key: again.find("T", key, 0, 1 << 60, 99) for key in "abcdefgh"}
        states.append(
            (
                list(file._table),
                file.next_entry,
                file.used_slots,
                file.end_ms,
                file.end_position,
                found,
                copy.snapshot(),
            )
        )
    assert states[0] == states[1]


def test_slots_that_do_not_fit_are_made_from_the_entries() -> None:
    files = MemoryFileSystem()
    index = index_on(files, slots=5, entries=200)
    index.add([("T", (key,), 100 + place, NOW) for place, key in enumerate("abcdefgh")])
    index.write_pending()
    path = index.list[-1].path
    handle = files.open(path, False)
    files.pwrite(handle, b"\x00\x00\x00\x50" + b"\xff" * 4, 40)
    again = Index(files, ROOT, 5, 200)
    again.open(size_known=True)
    again.cut(105, lambda at: NOW, True)
    assert {key: again.find("T", key, 0, 1 << 60, 99) for key in "abcdef"} == {
        key: [100 + place] if place < 5 else [] for place, key in enumerate("abcdef")
    }
