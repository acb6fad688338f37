"""Stores on a disk in memory, with small files so that segments roll."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock
from gantrymq.store.config import StoreConfig
from gantrymq.store.message_store import MessageStore
from gantrymq.store.testing import MemoryFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable


class Bench:
    """One directory that stores are opened on, again and again."""

    root = Path("/d")

    def __init__(self) -> None:
        self.files = MemoryFileSystem()
        self.clock = ManualClock()
        self.settings: dict[str, int] = {
            "commitlog_file_size": 64 * 1024, "consumequeue_file_size": 400, "index_slots": 50, "index_entries": 40,
            "queue_files_max": 8,
        }  # fmt: skip

    def open(
        self,
        progress: Callable[[int, int], None] | None = None,
        anew: frozenset[str] = frozenset(),
        accept_loss: bool = False,
    ) -> MessageStore:
        store = MessageStore(self.files, self.root, StoreConfig(**self.settings), self.clock)  # type: ignore[arg-type]
        self.report = store.load(progress, anew, accept_loss)
        return store

    def crash(self) -> None:
        self.files = self.files.after_process_crash()

    def power_loss(self) -> None:
        self.files = self.files.after_power_loss(lambda path, count: [False] * count)

    def file(self, *parts: str) -> bytes:
        return self.files.snapshot()[self.root.joinpath(*parts)]

    def damage(self, position: int, data: bytes, *parts: str) -> None:
        handle = self.files.open(self.root.joinpath(*parts), False)
        self.files.pwrite(handle, data, position)
        self.files.datasync(handle)
        self.files.close(handle)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def keyed(number: int, body: bytes = b"body", topic: str = "T", queue_id: int = 0, tag: str = "") -> Message:
    """A message with UNIQ_KEY `K<number>`."""
    text = f"UNIQ_KEY\x01K{number}\x02" + (f"TAGS\x01{tag}\x02" if tag else "")
    return Message(topic, body, text.encode(), tag, (f"K{number}",), queue_id)


@pytest.fixture
def message_of():  # type: ignore[no-untyped-def]
    return keyed
