"""Rows out of the log: what is read in large pieces says the same as each record read alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.broker.tables.tables import LogReader, item_message, replay_rows, replay_topic, row_in, row_of, topic_of
from gantrymq.model import properties as props
from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock
from gantrymq.store.log import record
from gantrymq.store.message_store import MessageStore
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import ROOT, SMALL

TOPIC = topic_of("one")

KEYS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\x01\x02"), min_size=1, max_size=12)
CHANGES = st.lists(st.tuples(st.sampled_from(("one", "two")), KEYS, st.none() | st.binary(max_size=40)), max_size=40)


def store_with(changes: list[tuple[str, str, bytes | None]], crc: bool, step: int) -> MessageStore:
    store = MessageStore(MemoryFileSystem(), ROOT, replace(SMALL, properties_crc=crc), ManualClock())
    store.load()
    for first in range(0, len(changes), step):
        batch = [item_message(*change) for change in changes[first : first + step]]
        store.append(batch, [()] * len(batch))
    return store


def one_by_one(store: LogReader) -> list[tuple[str, bytes | None]]:
    return [row_of(message)[1:] for message in replay_topic(store, TOPIC, 0)]


def whole(store: MessageStore) -> list[bytes | None]:
    units = store.units(TOPIC, 0, 0, 1 << 20)
    return store.whole_records(TOPIC, 0, 0, units) if units else []


@settings(max_examples=60, deadline=None)
@given(changes=CHANGES, crc=st.booleans(), step=st.integers(1, 8))
def test_rows_are_the_same_as_one_by_one(changes: list[tuple[str, str, bytes | None]], crc: bool, step: int) -> None:
    store = store_with(changes, crc, step)
    wanted = [(key, value) for table, key, value in changes if table == "one"]
    assert list(replay_rows(store, TOPIC, 0, lambda offset, unit: pytest.fail("nothing is damaged"))) == wanted
    assert one_by_one(store) == wanted
    store.close()


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("others", [False, True])
def test_plain_rows_make_no_message(crc: bool, others: bool) -> None:
    changes: list[tuple[str, str, bytes | None]] = []
    for number in range(20):
        changes.append(("one", f"key {number}", b"value" if number % 3 else None))
        changes += [("two", "other", b"x")] if others else []
    store = store_with(changes, crc, 3)
    read = [data and row_in(data) for data in whole(store)]
    assert read == [(key, value) for table, key, value in changes if table == "one"]
    store.close()


@pytest.mark.parametrize("crc", [False, True])
def test_a_damaged_record_is_told_and_the_others_are_read(crc: bool) -> None:
    store = store_with([("one", f"key {number}", b"value") for number in range(20)], crc, 5)
    position = store.units(TOPIC, 0, 7, 1)[0][0]
    handle = store.files.open(ROOT / "store" / "commitlog" / f"{0:020d}", False)
    at = position + record.HEAD.size + 1
    store.files.pwrite(handle, bytes([store.files.pread(handle, 1, at)[0] ^ 0xFF]), at)
    store.files.close(handle)
    damaged: list[tuple[int, int]] = []
    rows = list(replay_rows(store, TOPIC, 0, lambda offset, unit: damaged.append((offset, unit[0]))))
    assert [key for key, _ in rows] == [f"key {number}" for number in range(20) if number != 7]
    assert damaged == [(7, position)]
    store.close()


@pytest.mark.parametrize(
    "pairs",
    [
        [("GANTRY_KEY", "k"), ("other", "1")],
        [("other", "1"), ("GANTRY_KEY", "k")],
        [("GANTRY_KEY", "first"), ("GANTRY_KEY", "k")],
        [("GANTRY_KEY", "k"), ("GANTRY_DELETED", "yes")],
    ],
)
def test_what_another_version_adds_is_read_the_long_way(pairs: list[tuple[str, str]]) -> None:
    store = store_with([], False, 1)
    store.append([Message(TOPIC, b"value", props.encode(pairs), queue_id=0)], [()])
    assert [data and row_in(data) for data in whole(store)] == [None]
    assert list(replay_rows(store, TOPIC, 0, lambda offset, unit: pytest.fail("whole"))) == one_by_one(store)
    assert one_by_one(store)[0][0] == "k"
    store.close()


def test_across_segments() -> None:
    store = store_with([("one", f"key {number}", bytes(9_000)) for number in range(40)], False, 1)
    assert [key for key, _ in replay_rows(store, TOPIC, 0, lambda offset, unit: None)] == [
        f"key {n}" for n in range(40)
    ]
    store.close()
