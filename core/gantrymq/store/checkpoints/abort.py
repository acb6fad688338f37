"""The file `store/abort`: there while a broker runs, with its process id, and after it was killed.

A copy lies in `D/gantry`, written first: an abort file that differs from it is a real broker's. Beside it lies `D/gantry/boot`: during which
run of the machine the last process wrote, so that a start knows whether the power may have failed meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.store.files import read_small

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


def nothing_lost(files: FileSystem, own: Path) -> bool:
    """Everything that the last process wrote is there: the machine ran on, and records never came to the log later than to their queues."""
    boot = files.boot_id()
    return bool(boot) and _read(files, own / "boot") == boot


def note_boot(files: FileSystem, own: Path, late_log: bool) -> None:
    """Once recovery is through. `late_log`: queues may be written ahead of the log (`store.transient_pool`). Not synced: after a loss of
    power the machine's run is another one, whatever is left of the file."""
    content = b"" if late_log else files.boot_id()
    if _read(files, own / "boot") == content:
        return
    handle = files.open(own / "boot", True)
    try:
        files.truncate(handle, 0)
        files.pwrite(handle, content, 0)
    finally:
        files.close(handle)


def _read(files: FileSystem, path: Path) -> bytes:
    return read_small(files, path, 64) or b""


def _write(files: FileSystem, directory: Path) -> None:
    handle = files.open(directory / "abort", True)
    try:
        files.truncate(handle, 0)
        files.pwrite(handle, str(files.process_id()).encode(), 0)
        files.datasync(handle)
    finally:
        files.close(handle)
    files.sync_dir(directory)
