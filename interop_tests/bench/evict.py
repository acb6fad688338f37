#!/usr/bin/env python3
"""evict.py DIRECTORY: puts the files below it out of the page cache, twice a second, until it is killed (written pages only)."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

EVERY_S = 0.5


def evict(directory: Path) -> None:
    for path in directory.rglob("*"):
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError:  # gone meanwhile, or no file
            continue
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


if __name__ == "__main__":
    while True:
        evict(Path(sys.argv[1]))
        time.sleep(EVERY_S)
