#!/usr/bin/env python3
"""evict.py STORE TOPIC POSITION: puts a topic's queue files and the commit log below POSITION out of the page cache, twice a second, until it is
killed (written pages only). What is newer stays, as it would where memory is short."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

EVERY_S = 0.5


def evict(path: Path, size: int) -> None:
    """The first `size` bytes of a file; 0: all of it."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:  # gone meanwhile, or no file
        return
    try:
        os.posix_fadvise(handle, 0, size, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def evict_all(store: Path, topic: str, position: int) -> None:
    """One round. A file of the log is named by the position that it begins at."""
    for path in (store / "commitlog").iterdir():
        if path.name.isdigit() and int(path.name) < position:
            evict(path, position - int(path.name))
    for path in (store / "consumequeue" / topic).rglob("*"):
        evict(path, 0)


if __name__ == "__main__":
    while True:
        evict_all(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
        time.sleep(EVERY_S)
