"""Every access to the disk goes through `FileSystem`, so that tests can lose power, fill the disk and break it.

Four small groups. Files are named by `Path`, open ones by an integer handle (a descriptor). Failures are `OSError` with
the system's errno; the store decides what they mean. Nothing here knows the store's layout.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from array import array
    from pathlib import Path

    Buffer = bytes | bytearray | memoryview | array[int]
    """What can be written (collections.abc.Buffer needs Python 3.12)."""

_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_syncfs = ctypes.CDLL(None, use_errno=True).syncfs
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class ReadFiles(Protocol):
    """Bytes out of open files."""

    def pread(self, handle: int, count: int, at: int) -> bytes:
        """Up to `count` bytes at `at`; shorter only at the end of the file."""

    def size(self, handle: int) -> int:
        """Length of the file in bytes."""

    def map_read(self, handle: int, length: int) -> mmap.mmap | None:
        """A shared read-only map of the first `length` bytes, or None where the file system has none: use `pread`."""


class WriteFiles(Protocol):
    """Bytes into open files."""

    def open(self, path: Path, create: bool) -> int:
        """Open for reading and writing; FileNotFoundError unless it exists or `create`."""

    def pwrite(self, handle: int, data: Buffer, at: int) -> None:
        """Write all of `data` or raise; what was written of it before a failure is undefined."""

    def truncate(self, handle: int, length: int) -> None:
        """Set the length; what is new reads as zeros and takes no space."""

    def allocate(self, handle: int, at: int, count: int) -> None:
        """Reserve space for a range, so that writing there cannot run out of it. Never shortens."""

    def datasync(self, handle: int) -> None:
        """Return when the file's data and length are on stable storage. Called from threads; holds no lock of Python."""

    def close(self, handle: int) -> None:
        """Give the handle back."""


class NameFiles(Protocol):
    """Directories and names."""

    def list_dir(self, path: Path) -> list[str]:
        """Names in a directory, sorted; empty if there is none."""

    def exists(self, path: Path) -> bool:
        """True for a file or a directory."""

    def rename(self, source: Path, target: Path) -> None:
        """Atomic; replaces `target`."""

    def remove(self, path: Path) -> None:
        """Remove a file; a missing one is no error."""

    def make_dirs(self, path: Path) -> None:
        """Create a directory and its parents."""

    def sync_dir(self, path: Path) -> None:
        """Return when the names in the directory are on stable storage."""


class GuardFiles(Protocol):
    """Process and file system as a whole."""

    def lock(self, path: Path) -> int | None:
        """Take the record lock on byte 0 (as Java's tryLock(0, 1)); None if another process has it. Held until closed."""

    def process_id(self) -> int:
        """For the abort file."""

    def sync_all(self, path: Path) -> None:
        """Return when everything written to the file system that holds `path` is on stable storage."""


class FileSystem(ReadFiles, WriteFiles, NameFiles, GuardFiles, Protocol):
    """The four groups together."""


class OsFileSystem:
    """The real one (Linux)."""

    def pread(self, handle: int, count: int, at: int) -> bytes:
        data = os.pread(handle, count, at)
        if len(data) == count or not data:
            return data
        parts = [data]  # the kernel returns at most 2 GiB and less around signals
        got = len(data)
        while got < count and (data := os.pread(handle, count - got, at + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def map_read(self, handle: int, length: int) -> mmap.mmap | None:
        return mmap.mmap(handle, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)

    def open(self, path: Path, create: bool) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

    def pwrite(self, handle: int, data: Buffer, at: int) -> None:
        done = os.pwrite(handle, data, at)
        view = memoryview(data).cast("B")
        while done < len(view):
            done += os.pwrite(handle, view[done:], at + done)

    def truncate(self, handle: int, length: int) -> None:
        os.ftruncate(handle, length)

    def allocate(self, handle: int, at: int, count: int) -> None:
        # Not os.posix_fallocate: where the file system cannot reserve, glibc writes into every block, under our writes.
        if _fallocate(handle, 0, at, count):
            error = ctypes.get_errno()
            if error not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise OSError(error, os.strerror(error))

    def datasync(self, handle: int) -> None:
        os.fdatasync(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def list_dir(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def make_dirs(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def sync_dir(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def lock(self, path: Path) -> int | None:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except (BlockingIOError, PermissionError):
            os.close(handle)
            return None
        os.pwrite(handle, b"lock", 0)
        return handle

    def process_id(self) -> int:
        return os.getpid()

    def sync_all(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _syncfs(handle):
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error))
        finally:
            os.close(handle)
