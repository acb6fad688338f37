"""Counts of records that outlive a clean stop."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock
from gantrymq.store.config import StoreConfig
from gantrymq.store.message_store import MessageStore
from gantrymq.store.testing import MemoryFileSystem

ROOT = Path("/d")
ENDS = ROOT / "gantry" / "ends"
CONFIG = StoreConfig(commitlog_file_size=65536, consumequeue_file_size=2000)


def opened(files: MemoryFileSystem) -> MessageStore:
    store = MessageStore(files, ROOT, CONFIG, ManualClock())
    store.load()
    return store


def append(store: MessageStore, topic: str, queue: int) -> None:
    store.append([Message(topic, b"x", queue_id=queue)], [()])


@pytest.fixture
def files() -> MemoryFileSystem:
    """Topic A with three records in two queues, B with one; stopped cleanly."""
    files = MemoryFileSystem()
    store = opened(files)
    for topic, queue in (("A", 0), ("A", 0), ("A", 1), ("B", 0)):
        append(store, topic, queue)
    store.close()
    return files


def test_known_without_opening_a_queue(files: MemoryFileSystem) -> None:
    store = opened(files)
    assert (store.known_ends("A"), store.known_ends("B"), store.known_ends("none")) == ((3, 0), (1, 0), (0, 0))
    assert not store.used_topics
    append(store, "A", 1)
    assert store.known_ends("A") == (4, 0)
    store.close()
    store = opened(files)  # B was not used in between
    assert (store.known_ends("A"), store.known_ends("B")) == ((4, 0), (1, 0))
    assert not store.used_topics


def test_not_believed_after_something_was_appended_and_no_clean_stop(files: MemoryFileSystem) -> None:
    store = opened(files)
    append(store, "A", 0)
    store.flush_derived()
    store.flush()
    store = opened(files.after_process_crash())
    assert store.known_ends("A") == (4, 0), "it was replayed"
    assert store.known_ends("B") is None
    assert store.visible_sum("B") == 1
    assert store.known_ends("B") == (1, 0)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"position": 1}', b'{"topics": {}, "position": "x"}', b"\xff"])
def test_what_cannot_be_read_is_nothing(files: MemoryFileSystem, content: bytes) -> None:
    handle = files.open(ENDS, True)
    files.truncate(handle, 0)
    files.pwrite(handle, content, 0)
    files.close(handle)
    assert opened(files).known_ends("A") is None


@pytest.mark.parametrize("topics", ['{"A": 1}', '{"A": [1]}', '{"A": ["x", 1]}', "[]"])
def test_entries_of_another_shape_are_nothing(files: MemoryFileSystem, topics: str) -> None:
    store = opened(files)
    position = store.written_position
    store.close()
    head = f'{{"position": {position}, "begin": 0, "index": [], "light": [], "least": {{}}, "topics": '
    for content, found in ((topics, None), ('{"A": [0, 2, 0, 1, 1, 0]}', (3, 0))):
        handle = files.open(ENDS, True)
        files.truncate(handle, 0)
        files.pwrite(handle, f"{head}{content}}}".encode(), 0)
        files.close(handle)
        store = opened(files)
        assert store.known_ends("A") == found
        store.close()


def test_a_full_disk_keeps_no_stop_from_being_clean(files: MemoryFileSystem) -> None:
    store = opened(files)
    append(store, "A", 0)

    def fault(operation: str, path: Path) -> OSError | None:
        return OSError(errno.ENOSPC, "No space left on device") if path.name.startswith("ends") else None

    files.fault = fault
    store.close()
    files.fault = lambda operation, path: None
    store = MessageStore(files, ROOT, CONFIG, ManualClock())
    assert store.load().clean
    assert store.known_ends("A") is None
