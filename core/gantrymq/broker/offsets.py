"""Committed offsets of native consumer groups: table `offset`, key `topic@group`, value JSON {queue id: offset}.

A commit is visible at once and becomes a record within `FLUSH_MS`; a crash in between repeats what was consumed in that time.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from gantrymq.model.errors import ErrorCode, GantryError

FLUSH_MS = 500

PLACES_MAX = 1_000_000
"""(topic, group) pairs: 10,000 topics read by 100 groups each. A client that invents group names must not fill the memory."""


class ConsumerOffsets:
    """Offsets by (topic, group) and queue."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[int, int]] = {}
        self._dirty: set[str] = set()

    def load(self, rows: dict[str, bytes]) -> None:
        """Take over the table as replayed from the log."""
        for key, data in rows.items():
            self._offsets[key] = {int(queue): int(offset) for queue, offset in json.loads(data).items()}

    def cut(self, max_offset: Callable[[str, int], int]) -> list[tuple[str, int, int, int]]:
        """After the log lost its tail: set offsets beyond their queue's end to it; (key, queue, offset, end) of each."""
        found = []
        for key, queues in self._offsets.items():
            topic = key.partition("@")[0]
            for queue_id, offset in queues.items():
                end = max_offset(topic, queue_id)
                if offset > end:
                    queues[queue_id] = end
                    self._dirty.add(key)
                    found.append((key, queue_id, offset, end))
        return found

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Set an offset; True if this is the first change since the last `take_dirty`. Raises LIMIT_REACHED."""
        key = f"{topic}@{group}"
        queues = self._offsets.get(key)
        if queues is None:
            if len(self._offsets) >= PLACES_MAX:
                raise GantryError(
                    ErrorCode.LIMIT_REACHED, f"{PLACES_MAX} groups have committed offsets; delete some first"
                )
            queues = self._offsets[key] = {}
        if queues.get(queue_id) == offset:
            return False
        queues[queue_id] = offset
        first = not self._dirty
        self._dirty.add(key)
        return first

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The committed offset, or -1."""
        return self._offsets.get(f"{topic}@{group}", {}).get(queue_id, -1)

    def all_of(self, group: str, topic: str) -> dict[int, int]:
        """Queue id to offset."""
        return dict(self._offsets.get(f"{topic}@{group}", {}))

    def groups_of(self, topic: str) -> list[str]:
        """Groups that committed an offset of the topic."""
        prefix = topic + "@"
        return [key[len(prefix) :] for key in self._offsets if key.startswith(prefix)]

    def drop_topic(self, topic: str) -> list[str]:
        """Forget all offsets of a deleted topic; the keys to delete from the table."""
        keys = [key for key in self._offsets if key.startswith(topic + "@")]
        for key in keys:
            del self._offsets[key]
            self._dirty.discard(key)
        return keys

    def drop_group(self, group: str) -> list[str]:
        """Forget all offsets of a deleted group; the keys to delete from the table."""
        keys = [key for key in self._offsets if key.endswith("@" + group)]
        for key in keys:
            del self._offsets[key]
            self._dirty.discard(key)
        return keys

    def take_dirty(self) -> list[tuple[str, bytes | None]]:
        """Rows changed since the last call."""
        rows: list[tuple[str, bytes | None]] = [
            (
                key,
                json.dumps(
                    {str(queue): offset for queue, offset in self._offsets[key].items()}, separators=(",", ":")
                ).encode(),
            )
            for key in sorted(self._dirty)
        ]
        self._dirty.clear()
        return rows
