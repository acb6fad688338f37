"""The file `store/abort`: there while a broker runs, with its process id, and after it was killed.

A copy lies in `D/gantry`, written first: an abort file that differs from it is a real broker's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from gantrymq.store.files import FileSystem


def mark_running(files: FileSystem, store: Path, own: Path) -> tuple[bool, bool]:
    """Put the file there. Returns (the last stop was clean, it was our own process that was killed)."""
    clean = not files.exists(store / "abort")
    own_crash = not clean and _read(files, store / "abort") == _read(files, own / "abort")
    if not own_crash:
        for directory in (own, store):
            _write(files, directory)
    return clean, own_crash


def _read(files: FileSystem, path: Path) -> bytes:
    if not files.exists(path):
        return b""
    handle = files.open(path, False)
    try:
        return files.pread(handle, 64, 0)
    finally:
        files.close(handle)


def _write(files: FileSystem, directory: Path) -> None:
    handle = files.open(directory / "abort", True)
    try:
        files.truncate(handle, 0)
        files.pwrite(handle, str(files.process_id()).encode(), 0)
        files.datasync(handle)
    finally:
        files.close(handle)
    files.sync_dir(directory)
