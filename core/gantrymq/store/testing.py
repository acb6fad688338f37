"""A `FileSystem` in memory that can lose power, crash, fill up and break: for tests and simulation.

It keeps, beside what a process sees, what is on stable storage: a file's writes since its last `datasync` may be kept or lost one by
one, the last of them torn at a sector; a name made, renamed or removed since its directory's last `sync_dir` may be either.
Directories themselves are always kept.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gantrymq.store.files import Buffer

SECTOR: Final = 512


class PowerCut(BaseException):
    """Raised by the operation at which the machine goes off; nothing after it happens."""


class _Inode:
    """`unsynced`: (at, data) of writes and (length, None) of truncations since the last sync, over `durable`."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.unsynced: list[tuple[int, bytes | None]] = []


def _apply(data: bytearray, at: int, change: bytes | None) -> None:
    if change is None:
        del data[at:]
        data.extend(bytes(at - len(data)))
        return
    if len(data) < at:
        data.extend(bytes(at - len(data)))
    data[at : at + len(change)] = change


class MemoryFileSystem:
    """See the module. `fault(operation, path)` may return an error to raise; `power_cut_at`: number of the last operation."""

    def __init__(self) -> None:
        self._names: dict[Path, _Inode] = {}
        self._durable_names: dict[Path, _Inode] = {}
        self._directories: set[Path] = set()
        self._handles: dict[int, tuple[Path, _Inode]] = {}
        self._next_handle = 3
        self._locked: dict[Path, int] = {}
        self.operations: list[tuple[str, Path]] = []
        """Every change so far: operation and path."""
        self.power_cut_at = -1
        self.fault: Callable[[str, Path], OSError | None] = lambda operation, path: None
        self.is_cold: Callable[[Path, int], bool] = lambda path, at: False
        """Whether a position of a file is out of memory: `pread_now` returns None there."""
        self.room_bytes = -1
        """Bytes that further writes may take, -1: no limit. Overwriting counts too, which is harsher than a disk."""
        self._boots = 1
        self.disk = (1 << 40, 1 << 40)
        """What `usage` says: size and free bytes."""

    def _change(self, operation: str, path: Path) -> None:
        error = self.fault(operation, path)
        if error is not None:
            raise error
        if len(self.operations) == self.power_cut_at:
            raise PowerCut
        self.operations.append((operation, path))

    # --- crashes

    def after_process_crash(self) -> MemoryFileSystem:
        """What the next process finds: everything written, no handle, no lock."""
        other = MemoryFileSystem()
        for path, inode in self._names.items():
            other._names[path] = copy = _Inode()
            copy.data = bytearray(inode.data)
            copy.durable, copy.unsynced = inode.durable, list(inode.unsynced)
        other._durable_names = {path: other._names.get(path, inode) for path, inode in self._durable_names.items()}
        other._directories = set(self._directories)
        other._boots = self._boots
        return other

    def after_power_loss(self, keep: Callable[[Path, int], list[bool]], torn_bytes: int = -1) -> MemoryFileSystem:
        """What is left. `keep(path, changes)`: which unsynced changes of a file were kept; for a directory: of its names.

        `torn_bytes`: each file's last kept write reaches the disk only up to this many bytes.
        """
        names = dict(self._durable_names)
        changed = sorted(path for path in {*self._names, *names} if self._names.get(path) is not names.get(path))
        for path, kept in zip(changed, keep(self._root(), len(changed)), strict=True):
            if kept:
                inode = self._names.get(path)
                if inode is None:
                    names.pop(path)
                else:
                    names[path] = inode
        other = MemoryFileSystem()
        other._directories = set(self._directories)
        other._boots = self._boots + 1
        for path, inode in names.items():
            data = bytearray(inode.durable)
            kept_changes = [
                change for change, kept in zip(inode.unsynced, keep(path, len(inode.unsynced)), strict=True) if kept
            ]
            for place, (at, change) in enumerate(kept_changes):
                torn = torn_bytes >= 0 and change is not None and place == len(kept_changes) - 1
                _apply(data, at, change[:torn_bytes] if torn and change is not None else change)
            other._names[path] = copy = _Inode()
            copy.data, copy.durable = data, bytes(data)
        other._durable_names = dict(other._names)
        return other

    def _root(self) -> Path:
        return min(self._directories)

    def snapshot(self) -> dict[Path, bytes]:
        """Every file as a process sees it."""
        return {path: bytes(inode.data) for path, inode in sorted(self._names.items())}

    def remove_tree(self, path: Path) -> None:
        """As `rm -r` does it while nobody has the files open; no change that a fault could meet."""
        for name in [name for name in self._names if path in name.parents]:
            del self._names[name]
            self._durable_names.pop(name, None)
        self._directories -= {name for name in self._directories if name == path or path in name.parents}

    @property
    def open_handles(self) -> int:
        return len(self._handles)

    # --- ReadFiles

    def pread(self, handle: int, count: int, at: int) -> bytes:
        path, inode = self._handles[handle]
        error = self.fault("pread", path)
        if error is not None:
            raise error
        return bytes(inode.data[at : at + count])

    def pread_now(self, handle: int, count: int, at: int) -> bytes | None:
        path, _ = self._handles[handle]
        return None if self.is_cold(path, at) else self.pread(handle, count, at)

    def read_file(self, path: Path, count: int, at: int, ahead: int) -> bytes:
        handle = self.open(path, False)
        try:
            return self.pread(handle, count, at)
        finally:
            self.close(handle)

    def size(self, handle: int) -> int:
        return len(self._handles[handle][1].data)

    def map_read(self, handle: int, length: int) -> mmap.mmap | None:
        return None

    # --- WriteFiles

    def open(self, path: Path, create: bool) -> int:
        error = self.fault("open", path)
        if error is not None:
            raise error
        inode = self._names.get(path)
        if inode is None:
            if not create or path.parent not in self._directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self._change("create", path)
            inode = self._names[path] = _Inode()
        self._next_handle += 1
        self._handles[self._next_handle] = (path, inode)
        return self._next_handle

    def pwrite(self, handle: int, data: Buffer, at: int) -> None:
        path, inode = self._handles[handle]
        self._change("pwrite", path)
        change = bytes(data)
        if 0 <= self.room_bytes < len(change):
            change = change[: self.room_bytes]
            self.room_bytes = 0
            _apply(inode.data, at, change)
            inode.unsynced.append((at, change))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.room_bytes > 0:
            self.room_bytes -= len(change)
        _apply(inode.data, at, change)
        inode.unsynced.append((at, change))

    def pwritev(self, handle: int, parts: Sequence[Buffer], at: int) -> None:
        self.pwrite(handle, b"".join(parts), at)

    def truncate(self, handle: int, length: int) -> None:
        path, inode = self._handles[handle]
        self._change("truncate", path)
        _apply(inode.data, length, None)
        inode.unsynced.append((length, None))

    def allocate(self, handle: int, at: int, count: int) -> None:
        path, _ = self._handles[handle]
        self._change("allocate", path)
        if 0 <= self.room_bytes < count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def datasync(self, handle: int) -> None:
        path, inode = self._handles[handle]
        self._change("datasync", path)
        inode.durable = bytes(inode.data)
        inode.unsynced.clear()

    def close(self, handle: int) -> None:
        path, _ = self._handles.pop(handle)
        if self._locked.get(path) == handle:
            del self._locked[path]

    # --- NameFiles

    def list_dir(self, path: Path) -> list[str]:
        directories = [directory.name for directory in self._directories if directory.parent == path]
        return sorted({*directories, *[file.name for file in self._names if file.parent == path]})

    def exists(self, path: Path) -> bool:
        return path in self._names or path in self._directories

    def rename(self, source: Path, target: Path) -> None:
        self._change("rename", target)
        self._names[target] = self._names.pop(source)

    def remove(self, path: Path) -> None:
        if path in self._names:
            self._change("remove", path)
            del self._names[path]

    def make_dirs(self, path: Path) -> None:
        self._directories.update((path, *path.parents))

    def sync_dir(self, path: Path) -> None:
        self._change("sync_dir", path)
        for name in [name for name in self._durable_names if name.parent == path]:
            del self._durable_names[name]
        self._durable_names.update({name: inode for name, inode in self._names.items() if name.parent == path})

    # --- GuardFiles

    def lock(self, path: Path) -> int | None:
        if path in self._locked:
            return None
        handle = self.open(path, True)
        self._locked[path] = handle
        return handle

    def process_id(self) -> int:
        return 4711

    def boot_id(self) -> bytes:
        return b"boot %d" % self._boots

    def sync_all(self, path: Path) -> None:
        self._change("sync_all", path)
        for inode in self._names.values():
            inode.durable = bytes(inode.data)
            inode.unsynced.clear()
        self._durable_names = dict(self._names)

    def usage(self, path: Path) -> tuple[int, int]:
        return self.disk
