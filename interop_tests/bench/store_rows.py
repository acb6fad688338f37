"""What the cases of `./run bench store` share: a line of its table, stores that go when they were measured, messages as a door makes them."""

from __future__ import annotations

import gc
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from gantrymq.broker_service import SWITCH_S
from gantrymq.clock import SystemClock
from gantrymq.model.message import Message
from gantrymq.server import GC_YOUNG_MAX
from gantrymq.store.cold import Cold
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore

BATCH: Final = 256
"""Records per append: what a loaded broker gathers in one turn of its loop."""
PULL_BYTES: Final = 256 * 1024
"""A pull's default size."""
MIB: Final = 1024 * 1024
Found = TypeVar("Found")


@dataclass
class Row:
    """One line of the table."""

    name: str
    target: str
    result: str
    reached: bool
    raw: dict[str, Any]


@contextmanager
def opened(directory: Path, **settings: Any) -> Iterator[MessageStore]:
    """A new store, closed and removed at the end."""
    store = MessageStore(OsFileSystem(), directory, StoreConfig(**settings), SystemClock())
    store.load()
    try:
        yield store
    finally:
        store.close()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def as_served() -> Iterator[None]:
    """With the server's settings of the collector and the interpreter; what was made before is not looked at again."""
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_MAX, 10, 10)
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def batches(count: int, body: bytes, batch: int = BATCH) -> list[list[Message]]:
    """Messages as a door makes them, with UNIQ_KEY, over four queues."""
    return [
        [
            Message("Bench", body, b"UNIQ_KEY\x01%032d\x02" % number, "", (f"{number:032d}",), number & 3)
            for number in range(first, first + batch)
        ]
        for first in range(0, count, batch)
    ]


def warmly(store: MessageStore, read: Callable[[], Found]) -> Found:
    """A read of what should be in memory; where the kernel has dropped it, or is writing it, it is read again."""
    while True:
        try:
            return read()
        except Cold as cold:
            for path, at, count in cold.wanted:
                store.files.read_file(path, count, at, 0)


def at_share(values: list[float], share: float) -> float:
    """A quantile."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
