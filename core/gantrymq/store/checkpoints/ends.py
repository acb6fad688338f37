"""`D/gantry/ends`: how far queues, index and the stream of light queues reached at the last stop, or start after a crash.

It tells how many records a topic has, so that nobody opens 80,000 queues to know, and which derived files somebody has deleted or cut
since (`shortage`). JSON:

    {"position": end of the log, "begin": its begin, "topics": {name: [queue, maximum, minimum offset, queue, ...]}, "least": {as topics},
     "index": [[name, next entry, end position], ...], "light": [[first position, bytes], ...]}

Offsets under `topics`, and `light`, hold where the log ends at that position: nothing was appended since. A maximum offset never becomes
less, so all of them say what a queue must have at least; under `least` stand those that are known as that only. The file is not synced:
one that is missing or unreadable is as if nothing were known.
"""

from __future__ import annotations

import json
import logging
from array import array
from typing import TYPE_CHECKING, Any, Final

from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.files import read_small
from gantrymq.store.log.commit_log import positions_in
from gantrymq.store.queues.consume_queue import UNIT, first_free

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gantrymq.store.files import FileSystem
    from gantrymq.store.index.index_file import Index
    from gantrymq.store.queues.consume_queue import QueueFiles
    from gantrymq.store.queues.queue_table import Topic

log = logging.getLogger(__name__)

Ends = tuple[int, int]
"""Sums of the maximum and of the minimum offsets of a topic's queues."""
LOOKED_AT_MAX: Final = 20_000
"""Queues whose last unit is read at a start, 25 us each; of more topics only the directory must be there."""


class RememberedEnds:
    """Of what nobody has used since the start."""

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self._path = path
        self._known: dict[str, array[int]] = {}
        self._least: dict[str, array[int]] = {}
        self.position = -1
        """Where the log ended when the file was written."""
        self.begin = -1
        """...and began."""
        self._index: list[tuple[str, int, int]] = []
        self._light: list[tuple[int, int]] = []

    def load(self) -> None:
        """Read the file."""
        data = read_small(self._files, self._path)
        if data is None:
            return
        try:
            value = json.loads(data)
            known, least = _offsets_of(value["topics"]), _offsets_of(value["least"])
            index = [(str(name), int(entries), int(end)) for name, entries, end in value["index"]]
            light = [(int(base), int(size)) for base, size in value["light"]]
            position, begin = int(value["position"]), int(value["begin"])
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return
        self.position, self.begin, self._index, self._light = position, begin, index, light
        self._known, self._least = known, least

    def settle(self, position: int) -> None:
        """The log was found to end at `position`: if that is another one, what is known is what queues have at least."""
        if position != self.position:
            self._least = {**self._least, **self._known}
            self._known = {}
            self.position = position

    def forget(self) -> None:
        """Another broker has worked here meanwhile, which may have deleted topics with their queues."""
        self._known, self._least, self._index, self._light = {}, {}, [], []

    def save(
        self, position: int, begin: int, topics: Mapping[str, Topic], index: Index, light: list[tuple[int, int]]
    ) -> None:
        """`topics`: those that were used; `light`: files of the stream. A disk that is full keeps no stop from being clean."""
        for name, topic in topics.items():
            self._known[name] = of_queues(topic)
            self._least.pop(name, None)
        value = {
            "position": position, "begin": begin, "topics": {name: list(offsets) for name, offsets in self._known.items()},
            "least": {name: list(offsets) for name, offsets in self._least.items()},
            "index": [(file.path.name, file.next_entry, file.end_position) for file in index.list], "light": light,
        }  # fmt: skip
        made = self._path.with_name(self._path.name + ".tmp")
        try:
            handle = self._files.open(made, True)
            try:
                self._files.truncate(handle, 0)
                self._files.pwrite(handle, json.dumps(value, separators=(",", ":")).encode(), 0)
            finally:
                self._files.close(handle)
            self._files.rename(made, self._path)
        except OSError as error:
            log.warning("%s: %s; the next start opens queues to count their records", self._path, error.strerror)

    def get(self, name: str) -> Ends | None:
        """Of a topic that was not used since the start; None: its queues would have to be opened."""
        found = self._known.get(name)
        return (sum(found[1::3]), sum(found[2::3])) if found is not None else None

    def knows(self, name: str) -> bool:
        """Something, exact or not."""
        return name in self._known or name in self._least

    def maxima(self) -> Iterator[tuple[str, int, int]]:
        """(topic, queue id, offset that the queue had reached at least)."""
        for offsets_by_name in (self._known, self._least):
            for name, offsets in offsets_by_name.items():
                for queue_id, most in zip(offsets[0::3], offsets[1::3], strict=True):
                    yield name, queue_id, most

    def maximum(self, name: str, queue_id: int) -> int | None:
        """Offset that the queue had reached when the log ended at `position`; None: nothing exact is known of the topic."""
        offsets = self._known.get(name)
        if offsets is None:
            return None
        return next((most for its, most in zip(offsets[0::3], offsets[1::3], strict=True) if its == queue_id), 0)

    # --- what is short

    def short_queue(self, queues: QueueFiles) -> str:
        """What is wrong with the first queue whose files do not reach as far as they did; empty: none is."""
        root, files = queues.root, queues.files
        there = set(files.list_dir(root))
        looked = 0
        for offsets_by_name in (self._known, self._least):
            for name, offsets in offsets_by_name.items():
                if name not in there and any(offsets[1::3]):
                    return f"{root / name} is missing"
                for queue_id, most, least in zip(offsets[0::3], offsets[1::3], offsets[2::3], strict=True):
                    looked += 1
                    if most and looked <= LOOKED_AT_MAX:
                        directory = root / name / str(queue_id)
                        low = min(least, most - 1) if self.begin == queues.log_min else most - 1
                        found = _short(queues, directory, low * UNIT_SIZE, (most - 1) * UNIT_SIZE)
                        if found:
                            return found
        return ""

    def short_index(self, index: Index, log_begin: int) -> str:
        """As `short_queue`, of the index."""
        there = {file.path.name: file for file in index.list}
        for name, entries, end_position in self._index:
            file = there.get(name)
            if file is None and end_position >= log_begin:
                return f"{index.directory / name} is missing"
            if file is not None and not file.reaches(entries):
                return f"{file.path} has fewer than its {entries - 1} entries"
        return ""

    def short_light(self, directory: Path) -> str:
        """As `short_queue`, of the stream of light queues; the log ends where it did."""
        for base, size in self._light:
            path = directory / f"{base:020d}"
            if not self._files.exists(path):
                return f"{path} is missing"
            handle = self._files.open(path, False)
            length = self._files.size(handle)
            self._files.close(handle)
            if length < size:
                return f"{path} has {length} bytes of {size}"
        return ""


def _offsets_of(value: Any) -> dict[str, array[int]]:
    found = {name: array("q", offsets) for name, offsets in value.items()}
    if any(len(offsets) % 3 for offsets in found.values()):
        raise ValueError("a topic without three numbers per queue")
    return found


def _short(queues: QueueFiles, directory: Path, first: int, last: int) -> str:
    """`first`, `last`: places of the first and the last unit, in bytes."""
    files, size = queues.files, queues.file_size
    there = positions_in(files, directory)
    for base in range(first - first % size, last + 1, size):
        path = directory / f"{base:020d}"
        if base not in there:
            return f"{path} is missing"
        newest = min(base + size - UNIT_SIZE, last)
        handle = files.open(path, False)
        try:
            data = files.pread(handle, UNIT_SIZE, newest - base)
            if len(data) < UNIT_SIZE or UNIT.unpack(data)[1] <= 0:
                return f"{path} ends before offset {newest // UNIT_SIZE}"
            oldest = files.pread(handle, UNIT_SIZE, 0)
            free = 0 if UNIT.unpack(oldest)[1] <= 0 else size
            if free and newest == last:
                free = first_free(files, handle, 0, (newest - base) // UNIT_SIZE + 1)
        finally:
            files.close(handle)
        if free * UNIT_SIZE <= newest - base:  # a queue that is opened would end there
            return f"{path} is empty at offset {base // UNIT_SIZE + free}, before its end"
    return ""


def of_queues(topic: Topic) -> array[int]:
    """Queue id, maximum and minimum offset of each queue of a topic whose queues are open."""
    found = array("q")
    for queue in topic.queues.values():
        found.extend((queue.queue_id, queue.next_offset, queue.min_offset))
    return found


def of_topic(topic: Topic) -> Ends:
    """Of a topic whose queues are open."""
    queues = topic.queues.values()
    return sum([queue.next_offset for queue in queues]), sum([queue.min_offset for queue in queues])
