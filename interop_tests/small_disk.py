"""`gantry` on a disk that is full while a file is there: `small_disk.py FILE WORD...`"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gantrymq.cli.main import main


def fill(file: Path) -> None:
    """From now on no file system has room while the file is there."""
    ask = os.statvfs

    def full(path: os.PathLike[str] | str | int) -> os.statvfs_result:
        found = ask(path)
        return os.statvfs_result([*found[:3], 0, 0, *found[5:]]) if file.exists() else found

    os.statvfs = full


if __name__ == "__main__":
    fill(Path(sys.argv.pop(1)))
    sys.exit(main())
