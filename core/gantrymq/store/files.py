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
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence
    from pathlib import Path

    Buffer = bytes | bytearray | memoryview | array[int]
    """What can be written (collections.abc.Buffer needs Python 3.12)."""

SCRATCH_BYTES: Final = 256 * 1024
"""Target of reads that must not wait: they may fail, and a buffer made for each would cost more than the copy out of this one."""
ASKED_BYTES_MIN: Final = 16 * 1024
"""Of a longer read that must not wait the kernel is asked whether it has every page (cachestat, 3 us). A read that finds one missing copies all
before it and begins to read from the disk in the caller's time: 0.15 ms for nothing of 256 KiB (measured)."""
ASKED_AFTER_MISS: Final = 64
"""Long reads of a file that are asked about since one was not in memory: where all are, asking is a tenth of what a pull takes."""
VECTORS_MAX: Final = 1024
"""Buffers in one `pwritev` (IOV_MAX)."""
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_syncfs = ctypes.CDLL(None, use_errno=True).syncfs
_syscall = ctypes.PyDLL(None, use_errno=True).syscall
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
CACHESTAT: Final = 451
"""Linux 6.5; the same number on every architecture."""
PAGE_BYTES: Final = mmap.PAGESIZE
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class ReadFiles(Protocol):
    """Bytes out of open files."""

    def pread(self, handle: int, count: int, at: int) -> bytes:
        """Up to `count` bytes at `at`; shorter only at the end of the file."""

    def pread_now(self, handle: int, count: int, at: int) -> bytes | None:
        """As `pread` if that need not wait for the disk, else None; EOPNOTSUPP where the file system cannot tell."""

    def read_file(self, path: Path, count: int, at: int, ahead: int) -> bytes:
        """As `pread`, by name, from any thread; `ahead`: bytes behind it that the kernel may begin to read."""

    def size(self, handle: int) -> int:
        """Length of the file in bytes."""

    def close(self, handle: int) -> None:
        """Give the handle back."""

    def map_read(self, handle: int, length: int) -> mmap.mmap | None:
        """A shared read-only map of the first `length` bytes, or None where the file system has none: use `pread`."""


class WriteFiles(Protocol):
    """Bytes into open files."""

    def open(self, path: Path, create: bool) -> int:
        """Open for reading and writing; FileNotFoundError unless it exists or `create`."""

    def pwrite(self, handle: int, data: Buffer, at: int) -> None:
        """Write all of `data` or raise; what was written of it before a failure is undefined."""

    def pwritev(self, handle: int, parts: Sequence[Buffer], at: int) -> None:
        """As `pwrite` of all parts joined."""

    def truncate(self, handle: int, length: int) -> None:
        """Set the length; what is new reads as zeros and takes no space."""

    def allocate(self, handle: int, at: int, count: int) -> None:
        """Reserve space for a range, so that writing there cannot run out of it. Never shortens."""

    def datasync(self, handle: int) -> None:
        """Return when the file's data and length are on stable storage. Called from threads; holds no lock of Python."""


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

    def boot_id(self) -> bytes:
        """The same as long as what was written cannot be lost, synced or not: until the machine starts again. Empty where unknown."""

    def sync_all(self, path: Path) -> None:
        """Return when everything written to the file system that holds `path` is on stable storage."""

    def usage(self, path: Path) -> tuple[int, int]:
        """(size, free) of the file system that holds `path`, in bytes. free: what this process may still take; size: that and what is in use."""


class FileSystem(ReadFiles, WriteFiles, NameFiles, GuardFiles, Protocol):
    """The four groups together."""


def read_small(files: FileSystem, path: Path, count: int | None = None) -> bytes | None:
    """The begin of a file that is read at once; None if there is none. `count`: at most so many bytes, None: all of it."""
    if not files.exists(path):
        return None
    handle = files.open(path, False)
    try:
        return files.pread(handle, files.size(handle) if count is None else count, 0)
    finally:
        files.close(handle)


class OsFileSystem:
    """The real one (Linux). `pread_now` from one thread only."""

    def __init__(self) -> None:
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._advised: set[int] = set()
        """Handles on which the kernel was told not to read ahead: `pread_now` would do it in the caller's time (0.4 ms for 256 KiB
        that are in memory, measured, against 0.02)."""
        self._asked: dict[int, int] = {}
        """Handles of files that lately were not all in memory, to the number of long reads that are still asked about."""
        self._stats = True
        """The kernel has cachestat, as far as is known."""
        self._range = (ctypes.c_uint64 * 2)()
        self._pages = (ctypes.c_uint64 * 5)()
        self._range_at, self._pages_at = ctypes.addressof(self._range), ctypes.addressof(self._pages)

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

    def pread_now(self, handle: int, count: int, at: int) -> bytes | None:
        buffer = self._scratch if count <= SCRATCH_BYTES else memoryview(bytearray(count))
        target = buffer[:count]
        if handle not in self._advised:
            self._advised.add(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
        if count > ASKED_BYTES_MIN and handle in self._asked and not self._surely_has(handle, count, at):
            return None
        try:
            got = os.preadv(handle, (target,), at, os.RWF_NOWAIT)
        except BlockingIOError:
            got = -1
        if got == count or (got >= 0 and at + got >= os.fstat(handle).st_size):
            return bytes(target[:got])
        if self._stats:
            self._asked[handle] = ASKED_AFTER_MISS
        return None

    def _surely_has(self, handle: int, count: int, at: int) -> bool:
        """`_has`, of a file that was not all in memory lately."""
        if not self._has(handle, count, at):
            self._asked[handle] = ASKED_AFTER_MISS
            return False
        left = self._asked.pop(handle, 1) - 1
        if left:
            self._asked[handle] = left
        return True

    def _has(self, handle: int, count: int, at: int) -> bool:
        """Whether the kernel has, or is just reading, every page of the range; True where it does not tell."""
        self._range[:] = [at, count]
        if _syscall(CACHESTAT, handle, self._range_at, self._pages_at, 0):
            self._stats = False  # an older kernel, or one that keeps it to itself
            self._asked.clear()
            return True
        end = at + count
        if self._pages[0] < (end - 1) // PAGE_BYTES - at // PAGE_BYTES + 1:
            end = min(end, os.fstat(handle).st_size)
        return self._pages[0] >= (end - 1) // PAGE_BYTES - at // PAGE_BYTES + 1

    def read_file(self, path: Path, count: int, at: int, ahead: int) -> bytes:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if ahead:
                os.posix_fadvise(handle, at, count + ahead, os.POSIX_FADV_WILLNEED)
            return self.pread(handle, count, at)
        finally:
            os.close(handle)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def map_read(self, handle: int, length: int) -> mmap.mmap | None:
        return mmap.mmap(handle, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)

    def open(self, path: Path, create: bool) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

    def pwrite(self, handle: int, data: Buffer, at: int) -> None:
        done = os.pwrite(handle, data, at)
        if type(data) is bytes and done == len(data):
            return
        view = memoryview(data).cast("B")
        while done < len(view):
            done += os.pwrite(handle, view[done:], at + done)

    def pwritev(self, handle: int, parts: Sequence[Buffer], at: int) -> None:
        for first in range(0, len(parts), VECTORS_MAX):
            some = parts[first : first + VECTORS_MAX]
            done = os.pwritev(handle, some, at)
            size = sum([memoryview(part).nbytes for part in some])
            if done < size:
                self.pwrite(handle, b"".join(some)[done:], at + done)
            at += size

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
        self._advised.discard(handle)
        self._asked.pop(handle, None)
        os.close(handle)

    def list_dir(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
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

    def boot_id(self) -> bytes:
        try:
            with open("/proc/sys/kernel/random/boot_id", "rb") as file:
                return file.read().strip()
        except OSError:
            return b""

    def sync_all(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _syncfs(handle):
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error))
        finally:
            os.close(handle)

    def usage(self, path: Path) -> tuple[int, int]:
        found = os.statvfs(path)
        used = found.f_blocks - found.f_bfree  # what is reserved for root is neither, as df counts
        return (used + found.f_bavail) * found.f_frsize, found.f_bavail * found.f_frsize
