"""Reads that must not hold up the loop: from memory at once, else by a bounded pool of threads.

`ColdReads.read` asks the kernel for what it has in memory (`preadv` with RWF_NOWAIT) and raises `Cold` where that would wait for
the disk. Whoever began the operation catches it, calls `fetch`, and does the operation again when `fetch` says so: the bytes
are then at hand, also if the kernel has dropped them meanwhile. An operation must therefore change nothing before its last read.
A thread opens the file by its name and only makes system calls; a file deleted meanwhile reads as empty.
"""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gantrymq.store.files import FileSystem

log = logging.getLogger(__name__)

THREADS_MAX: Final = 4
"""Reads under way at once: enough to keep a disk busy, few enough that their wake-ups do not crowd the loop."""
QUEUED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes asked for and not yet handed over; beyond it operations are refused with BUSY. Each of them may be kept in memory."""
QUEUED_MAX: Final = 16_384
"""Operations that wait."""
ROUNDS_MAX: Final = 1024
"""Times that one operation may come upon cold data (a walk through a chain meets a new place each time)."""
AHEAD_BYTES: Final = 256 * 1024
"""Asked from the kernel behind a read that continues the one before it in its file: a scan waits once in so many bytes and its own. Measured with
pulls of 256 KiB: p99 of sends beside it 0.36, 0.35, 0.46, 0.63 ms and 396, 467, 563, 605 MiB/s with 0, 128, 256, 512 KiB (0.25 ms alone); the
longer a read of the disk, the longer the interrupt that ends it holds up whoever is running."""
NEIGHBOUR_BYTES: Final = 1024 * 1024
"""A read that begins so close behind the last one of its file continues it."""
TRAILS_MAX: Final = 256
"""Files whose last read is remembered."""

Want = tuple["Path", int, int]
"""File, position in it, bytes."""


class Cold(Exception):
    """What was asked for is not in memory. Not a failure: see the module."""

    def __init__(self, wanted: list[Want], warm: Callable[[], None] | None = None) -> None:
        super().__init__(wanted)
        self.wanted = wanted
        self.warm = warm
        """Reads, in a thread, what else the operation needs to be in the kernel's memory."""


class _Job:
    __slots__ = ("again", "answers", "bytes", "rounds", "token", "wanted", "warm")

    def __init__(
        self,
        wanted: list[tuple[Path, int, int, int]],
        token: object,
        again: Callable[[Any], None],
        warm: Callable[[], None] | None = None,
    ) -> None:
        self.wanted = wanted
        """With the bytes to ask for behind each."""
        self.warm = warm
        self.token = token
        self.again = again
        self.answers: dict[Want, bytes | OSError] = {}
        self.bytes = sum([count for _, _, count, _ in wanted])
        self.rounds = 1


class ColdReads:
    """Loop thread only; its threads run `_run`. `post(callback, value)` calls back on the loop."""

    def __init__(self, files: FileSystem, post: Callable[[Callable[[Any], None], Any], object]) -> None:
        self._files = files
        self._post = post
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._answers: dict[Want, bytes | OSError] = {}
        self._current: _Job | None = None
        self._trails: dict[Path, int] = {}
        self._nowait = True
        self._stopped = False
        self.queued = 0
        """Operations that wait."""
        self.queued_bytes = 0
        self.fetched = 0
        """Operations that waited, since the start (a metric)."""

    def read(self, path: Path, handle: int, count: int, at: int, fresh_from: int) -> bytes:
        """As `FileSystem.pread`, or `Cold`. From `fresh_from` on the file was written by this process: where the file system knows
        no RWF_NOWAIT, only that is taken to be in memory."""
        if self._answers:
            answer = self._answers.get((path, at, count))
            if answer is not None:
                if isinstance(answer, OSError):
                    raise answer
                return answer
        if self._nowait:
            try:
                data = self._files.pread_now(handle, count, at)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                    raise
                self._nowait = False
                log.info("%s: no reading without waiting on this file system; cold data goes through threads", path)
            else:
                if data is None:
                    raise Cold([(path, at, count)])
                return data
        if at < fresh_from:
            raise Cold([(path, at, count)])
        return self._files.pread(handle, count, at)

    @property
    def answering(self) -> bool:
        """The operation under way had to wait for the disk: some of what it reads comes from there."""
        return bool(self._answers)

    def warm_first(self, path: Path, work: Callable[[], None]) -> None:
        """Raise `Cold` unless a thread has done `work`, which reads what is below `path`, for the operation that is under way."""
        if (path, 0, 0) not in self._answers:
            raise Cold([(path, 0, 0)], work)

    def fetch(self, cold: Cold, token: Any, again: Callable[[Any], None]) -> None:
        """Read what was cold, then call `again(token)` on the loop; `token` is the operation, the same object each time it comes
        here. Raises BUSY at the limits."""
        job = _Job([(*want, self._ahead(want)) for want in cold.wanted], token, again, cold.warm)
        current = self._current
        if current is not None and current.token is token:
            job.answers = current.answers
            job.rounds = current.rounds + 1
        if (
            self.queued >= QUEUED_MAX
            or (self.queued and self.queued_bytes + job.bytes > QUEUED_BYTES_MAX)
            or job.rounds > ROUNDS_MAX
        ):
            raise GantryError(
                ErrorCode.BUSY,
                f"{self.queued} reads of old records ({self.queued_bytes} bytes) wait for the disk; try again later",
            )
        self.fetched += 1
        self._start(job)

    def warm(self, work: Callable[[], None], token: Any, again: Callable[[Any], None]) -> None:
        """Have a thread do `work`, which reads so that the kernel has it in memory, then call `again(token)` on the loop. Its failure is
        met again, and told, by whoever reads in earnest."""
        if not self._stopped:
            self._start(_Job([], token, again, work))

    def _start(self, job: _Job) -> None:
        self.queued += 1
        self.queued_bytes += job.bytes
        if len(self._threads) < min(THREADS_MAX, self.queued):
            thread = Thread(target=self._run, name=f"gantry-read-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put(job)

    def _ahead(self, want: Want) -> int:
        path, at, count = want
        end = self._trails.pop(path, -1)
        if len(self._trails) >= TRAILS_MAX:
            del self._trails[next(iter(self._trails))]
        self._trails[path] = at + count
        return AHEAD_BYTES if 0 <= at - end <= NEIGHBOUR_BYTES + AHEAD_BYTES else 0

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            if job.warm is not None:
                with suppress(OSError):
                    job.warm()
            for path, at, count, ahead in job.wanted:
                if job.warm is not None:
                    job.answers[path, at, count] = b""
                    continue
                try:
                    job.answers[path, at, count] = self._files.read_file(path, count, at, ahead)
                except FileNotFoundError:
                    job.answers[path, at, count] = b""
                except OSError as error:
                    job.answers[path, at, count] = error
            self._post(self._arrived, job)

    def _arrived(self, job: _Job) -> None:
        self.queued -= 1
        self.queued_bytes -= job.bytes
        self._current, self._answers = job, job.answers
        try:
            job.again(job.token)
        finally:
            self._current, self._answers = None, {}

    def stop(self) -> None:
        """End the threads after the reads they are in; what is queued behind is forgotten. Any thread."""
        self._stopped = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
