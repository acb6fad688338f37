"""`gantry` on a disk whose flushes wait while somebody else has a file locked: `held_disk.py FILE WORD...`"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

from gantrymq.cli.main import main


def hold(file: Path) -> None:
    """From now on a flush waits for the file; only threads flush, so nothing else does."""
    flush = os.fdatasync

    def patiently(handle: int) -> None:
        with file.open() as gate:
            fcntl.flock(gate, fcntl.LOCK_SH)
            flush(handle)

    os.fdatasync = patiently


if __name__ == "__main__":
    hold(Path(sys.argv.pop(1)))
    sys.exit(main())
