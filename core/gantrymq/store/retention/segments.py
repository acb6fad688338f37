"""Taking the oldest segment away, with what points into it: queue files, index files. The log has no holes, so nothing else goes.

In this order, so that a crash at any place leaves a store that opens and whose next removal finishes the work: minimum offsets are
raised (in memory; recovery finds them from the log's begin), the log forgets the segment, its file is unlinked and the
directory synced, then the files of queues and index that end below the log's begin are unlinked. Unlinking a large file takes
long: a thread does it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from gantrymq.store.log.commit_log import positions_in
from gantrymq.store.queues.consume_queue import HOLE_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gantrymq.store.index.index_file import Index
    from gantrymq.store.log.commit_log import CommitLog
    from gantrymq.store.queues.consume_queue import ConsumeQueue, QueueFiles
    from gantrymq.store.queues.queue_table import QueueTable

log = logging.getLogger(__name__)

HOLES_AT_ONCE: Final = 16
"""Units read to find one that is neither a hole nor blank; the first one nearly always is."""
QUEUE_COST_US: Final = 20
"""Of looking at one queue: two reads from the page cache."""


class Segments:
    """The old end of a store. Loop thread only; `unlink` and `note_begin` run in a thread. `note_begin(position)` puts on record where the log
    begins: a start that finds less of it takes that for a loss."""

    def __init__(
        self,
        log_: CommitLog,
        queue_files: QueueFiles,
        queues: QueueTable,
        index: Index,
        note_begin: Callable[[int], None],
    ) -> None:
        self._log = log_
        self._queue_files = queue_files
        self._queues = queues
        self._index = index
        self.note_begin = note_begin
        self._needs: list[Callable[[], int]] = []

    def keep_from(self, needed_from: Callable[[], int]) -> None:
        """Whoever calls this still needs the log from the position on that `needed_from()` says then: a segment above it stays."""
        self._needs.append(needed_from)

    def oldest(self, safe_position: int) -> tuple[int, int] | None:
        """[begin, end) of the oldest segment if it ends at or below `safe_position` and is not the one being written."""
        bases = self._log.bases
        if not bases:
            return None
        begin, end = bases[0], bases[0] + self._log.file_size
        safe_position = min([safe_position, *[needed_from() for needed_from in self._needs]])
        return (begin, end) if end <= safe_position and end <= self._log.writing_base else None

    @property
    def file_size(self) -> int:
        """Bytes of a segment."""
        return self._log.file_size

    def removal(self, end: int) -> Removal:
        """The work of removing the oldest segment, which ends at `end`."""
        return Removal(self, end)

    # --- the steps of a removal

    def _open_queues(self) -> Iterator[list[ConsumeQueue]]:
        """The queues that may have something to remove, topic by topic; a topic nobody used is opened only if it has old files."""
        files = self._queue_files.files
        for name in self._queues.names():
            topic = self._queues.open_topics.get(name)
            if topic is None:
                directory = self._queue_files.root / name
                old = [len(positions_in(files, directory / queue)) > 1 for queue in files.list_dir(directory)]
                if not any(old):
                    yield []
                    continue
                topic = self._queues.topic(name)
            yield list(topic.queues.values())

    def _raise_minimum(self, queue: ConsumeQueue, position: int) -> list[Path]:
        """Set the queue's minimum offset for a log that begins at `position`; returns the files that are all below it."""
        low, high = queue.min_offset, queue.next_offset
        if low < high and _below(queue, low, position):
            step = 1
            while low + step < high and _below(queue, low + step, position):  # most have few units in one segment
                low += step
                step *= 2
            high = min(low + step, high)
            while low + 1 < high:
                middle = (low + high) // 2
                if _below(queue, middle, position):
                    low = middle
                else:
                    high = middle
            queue.min_offset = high
        return queue.expired_files()

    def _forget_files(self, queue: ConsumeQueue, paths: list[Path]) -> None:
        for path in paths:
            self._queue_files.drop(path)
        queue.forget(len(paths))

    def _forget_index(self, position: int) -> list[Path]:
        paths = []
        while len(self._index.list) > 1 and self._index.list[0].end_position < position:
            file = self._index.list.pop(0)
            file.close()
            self._index.unsynced.discard(file.path)
            paths.append(file.path)
        return paths

    def unlink(self, segment: Path, end: int, derived: list[Path]) -> None:
        """Remove the files; the segment ends at `end`. Any thread; once more after a failure is no harm."""
        files = self._queue_files.files
        self.note_begin(end)
        files.remove(segment)
        files.sync_dir(segment.parent)  # before anything else goes: a segment that came back would find its queues
        for path in derived:
            files.remove(path)


class Removal:
    """One segment's removal. `step` until it returns True, then `unlink` in a thread."""

    def __init__(self, segments: Segments, end: int) -> None:
        self._segments = segments
        self._end = end
        self._topics = segments._open_queues()
        self._waiting: list[ConsumeQueue] = []
        self._old: list[tuple[ConsumeQueue, list[Path]]] = []
        segments._queue_files.log_min = end  # queues opened from now on begin there
        self.unlink: Callable[[], None] = lambda: None
        """Set when `step` has returned True."""
        self.paths = 0
        """Files that go."""

    def step(self, budget_us: int) -> bool:
        """A slice. May raise `Cold`; call it again then. True: the log has forgotten the segment."""
        segments = self._segments
        for _ in range(max(1, budget_us // QUEUE_COST_US)):
            if self._waiting:
                queue = self._waiting[-1]
                paths = segments._raise_minimum(queue, self._end)
                if paths:
                    self._old.append((queue, paths))
                self._waiting.pop()
                continue
            found = next(self._topics, None)
            if found is None:
                self._finish()
                return True
            self._waiting = found
        return False

    def _finish(self) -> None:
        segments = self._segments
        derived: list[Path] = []
        for queue, paths in self._old:
            segments._forget_files(queue, paths)
            derived += paths
        derived += segments._forget_index(self._end)
        segment = segments._log.drop_oldest(self._end)
        self.paths = 1 + len(derived)
        self.unlink = lambda: segments.unlink(segment, self._end, derived)


def _below(queue: ConsumeQueue, offset: int, position: int) -> bool:
    """Whether the record at `offset`, or the next one where that offset is lost or its unit blank, lies below `position`."""
    while units := queue.read(offset, HOLES_AT_ONCE):
        for at, size, _ in units:
            if 0 < size != HOLE_SIZE:
                return at < position
        offset += len(units)
    return True
