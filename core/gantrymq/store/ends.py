"""`D/gantry/ends`: how many records each topic had at the last clean stop, so that nobody opens 80,000 queues to know.

JSON, `{"position": end of the log, "topics": {name: [sum of maximum offsets, sum of minimum offsets]}}`. It holds only where the log ends at
that position: nothing was appended since. It is not synced: one that is missing or unreadable is as if nothing were known.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gantrymq.store.consume_queue import Topic
    from gantrymq.store.files import FileSystem

log = logging.getLogger(__name__)

Ends = tuple[int, int]
"""Sums of the maximum and of the minimum offsets of a topic's queues."""


class RememberedEnds:
    """Of topics that nobody has used since the start."""

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self._path = path
        self._known: dict[str, Ends] = {}

    def load(self, position: int) -> None:
        """Take over what was written at a stop, if the log still ends there."""
        if not self._files.exists(self._path):
            return
        handle = self._files.open(self._path, False)
        try:
            data = self._files.pread(handle, self._files.size(handle), 0)
        finally:
            self._files.close(handle)
        try:
            value = json.loads(data)
            if value["position"] == position:
                self._known = {name: (int(end), int(begin)) for name, (end, begin) in value["topics"].items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            self._known = {}

    def save(self, position: int, topics: Mapping[str, Topic]) -> None:
        """At a clean stop. `topics`: those that were used. A disk that is full keeps no stop from being clean."""
        known = self._known
        for name, topic in topics.items():
            known[name] = of_topic(topic)
        data = json.dumps({"position": position, "topics": known}, separators=(",", ":")).encode()
        made = self._path.with_name(self._path.name + ".tmp")
        try:
            handle = self._files.open(made, True)
            try:
                self._files.truncate(handle, 0)
                self._files.pwrite(handle, data, 0)
            finally:
                self._files.close(handle)
            self._files.rename(made, self._path)
        except OSError as error:
            log.warning("%s: %s; the next start opens queues to count their records", self._path, error.strerror)

    def get(self, name: str) -> Ends | None:
        """Of a topic that was not used since the start; None: its queues would have to be opened."""
        return self._known.get(name)


def of_topic(topic: Topic) -> Ends:
    """Of a topic whose queues are open."""
    queues = topic.queues.values()
    return sum([queue.next_offset for queue in queues]), sum([queue.min_offset for queue in queues])
