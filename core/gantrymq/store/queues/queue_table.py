"""All ConsumeQueues of a store, by topic. A topic's queues are opened at its first use, so that 20,000 topics cost nothing at a start."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gantrymq.model.limits import TOPIC_BYTES_MAX
from gantrymq.model.names import check_stored_topic, is_stored_topic
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.log.commit_log import file_name, positions_in
from gantrymq.store.log.record import MAGIC_V1, MAGIC_V2
from gantrymq.store.queues.consume_queue import WINDOW_UNITS, ConsumeQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gantrymq.store.queues.consume_queue import QueueFiles

log = logging.getLogger(__name__)


class Topic:
    """A topic's queues, its name as records hold it (length and UTF-8) and the version of those records."""

    __slots__ = ("encoded", "magic", "name", "queues")

    def __init__(self, name: str) -> None:
        self.name = name
        data = name.encode()
        long = len(data) > TOPIC_BYTES_MAX  # Java reads the length of V1 as a signed byte
        self.magic = MAGIC_V2 if long else MAGIC_V1
        self.encoded = len(data).to_bytes(2 if long else 1, "big") + data
        self.queues: dict[int, ConsumeQueue] = {}


class QueueTable:
    """All ConsumeQueues. Topics are opened at first use."""

    def __init__(self, files: QueueFiles) -> None:
        self.files = files
        self.open_topics: dict[str, Topic] = {}
        self._names: dict[str, None] = {}
        self.dirty: list[ConsumeQueue] = []
        """Queues with pending units."""
        self._writing: list[ConsumeQueue] = []
        """...whose turn it is: those that get units meanwhile do not keep them waiting."""
        self.cut_at = -1
        """During a replay: units of this physical offset or above are removed from a queue that is opened."""
        self._on_written: Callable[[ConsumeQueue, int, int], None] | None = None

    def when_written(self, counted: Callable[[ConsumeQueue, int, int], None]) -> None:
        """From now on `counted` is called with a queue, the number of units just written for it, and the sum of their records' sizes."""
        self._on_written = counted

    def load(self, size_known: bool) -> None:
        """Learn which topics there are, and a file length that the directory already has."""
        files = self.files
        files.files.make_dirs(files.root)
        # What has no topic's name is left alone: a real broker makes queues for our light queues' names, too.
        self._names = dict.fromkeys([name for name in files.files.list_dir(files.root) if is_stored_topic(name)])
        for path in self._first_file() if not size_known else ():
            handle = files.files.open(path, False)
            length = files.files.size(handle)
            files.files.close(handle)
            if length and length != files.file_size and length % UNIT_SIZE == 0:
                log.warning("%s: queue files have %d bytes; store.consumequeue_file_size = %d is ignored",
                            files.root, length, files.file_size)  # fmt: skip
                files.file_size = length

    def _first_file(self) -> Iterator[Path]:
        for topic in self._names:
            for queue in self.files.files.list_dir(self.files.root / topic):
                for base in positions_in(self.files.files, self.files.root / topic / queue):
                    yield self.files.root / topic / queue / file_name(base)
                    return

    def cut_from(self, position: int, nothing_lost: bool) -> None:
        """Before a replay from `position`: units at or above it are removed from every queue, or, if no write was lost, from those that the
        replay comes upon; the others have none. With 80,000 queues that is a matter of 10 s of processor time."""
        self.cut_at = position
        for name in self.names() if not nothing_lost else ():
            self.topic(name)

    def start_anew(self, log_end: int) -> list[tuple[str, int, int]]:
        """Remove all files, before a replay of the whole log. Returns (topic, queue id, maximum offset) of every queue."""
        files = self.files
        ends = []
        for name in self.names():
            directory = files.root / name
            for queue in files.files.list_dir(directory):
                if queue.isdecimal():
                    found = ConsumeQueue(files, directory / queue, int(queue)).remove_files(log_end)
                    ends.append((name, int(queue), found))
        self.open_topics.clear()
        return ends

    def reach(self, name: str, queue_id: int, end: int) -> None:
        """As `ConsumeQueue.reach`."""
        if end > 0:
            topic = self.topic(name)
            queue = topic.queues.get(queue_id)
            if queue is None:
                queue = self.add_queue(topic, queue_id)
            queue.reach(end)

    def end_replay(self, log_end: int) -> None:
        """What is opened from now on has no unit at `log_end` or above."""
        self.cut_at = -1
        self.files.log_end = log_end

    def topic(self, name: str) -> Topic:
        """The topic with its queues open; made if it is new. Raises NAME_INVALID for what cannot be a directory's name."""
        topic = self.open_topics.get(name)
        if topic is not None:
            return topic
        check_stored_topic(name)
        topic = Topic(name)
        directory = self.files.root / name
        if name in self._names:
            for queue_name in self.files.files.list_dir(directory):
                if queue_name.isdecimal():
                    queue = ConsumeQueue(self.files, directory / queue_name, int(queue_name))
                    queue.open(self.cut_at)
                    topic.queues[queue.queue_id] = queue
        self.open_topics[name] = topic
        self._names[name] = None
        return topic

    def unopened(self) -> list[str]:
        """Topics that nobody has used yet."""
        return [name for name in self._names if name not in self.open_topics]

    def warm(self, name: str) -> None:
        """Read what opening a topic reads, and change nothing. Any thread."""
        files, directory = self.files.files, self.files.root / name
        for queue_name in files.list_dir(directory):
            bases = positions_in(files, directory / queue_name) if queue_name.isdecimal() else []
            for base in set(bases[:1] + bases[-1:]):
                handle = files.open(directory / queue_name / file_name(base), False)
                try:
                    self._warm_end(handle)
                finally:
                    files.close(handle)

    def _warm_end(self, handle: int) -> None:
        """The way of `ConsumeQueue._first` to the last unit."""
        pread = self.files.files.pread
        low, high = 0, self.files.file_size // UNIT_SIZE
        window = pread(handle, WINDOW_UNITS * UNIT_SIZE, 0)
        if any(window[-UNIT_SIZE:]):
            low = len(window) // UNIT_SIZE
            while low < high:
                middle = (low + high) // 2
                if any(pread(handle, UNIT_SIZE, middle * UNIT_SIZE)):
                    low = middle + 1
                else:
                    high = middle

    def add_queue(self, topic: Topic, queue_id: int) -> ConsumeQueue:
        """A queue that is not there yet."""
        queue = ConsumeQueue(self.files, self.files.root / topic.name / str(queue_id), queue_id)
        topic.queues[queue_id] = queue
        return queue

    def find(self, name: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, or None if it has never had a record."""
        topic = self.open_topics.get(name) or self.find_topic(name)
        return topic.queues.get(queue_id) if topic is not None else None

    def find_topic(self, name: str) -> Topic | None:
        """The topic, or None if it has never had a record."""
        topic = self.open_topics.get(name)
        if topic is None and name in self._names:
            topic = self.topic(name)
        return topic

    def __contains__(self, name: str) -> bool:
        """Whether a topic ever had a record."""
        return name in self._names

    def names(self) -> list[str]:
        return list(self._names)

    def pending_bytes(self) -> int:
        return sum([len(queue.pending) for queue in (*self.dirty, *self._writing)]) // 3 * UNIT_SIZE

    def write_pending(self) -> None:
        """Write every queue's pending units. On an error the rest stays pending."""
        while self._writing or self.dirty:
            self.write_some(1 << 30)

    @property
    def is_writing(self) -> bool:
        """A round of `write_some` is under way."""
        return bool(self._writing)

    def write_some(self, queues_max: int) -> bool:
        """Write pending units of some queues. True: all that were pending when the round began are written."""
        if not self._writing:
            self._writing, self.dirty = self.dirty, self._writing
        writing = self._writing
        for _ in range(min(queues_max, len(writing))):
            queue = writing[-1]
            pending = queue.pending
            queue.write_pending()
            writing.pop()
            if self._on_written is not None and pending:
                self._on_written(queue, len(pending) // 3, sum(pending[1::3]))
        return not writing
