"""Ranges of queues cut into input partitions: more tasks than a topic has queues. A part of a range is read like a whole one, so this is safe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gantrymq.client.connecting.routes import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueRange:
    """One input partition: offsets `start` (inclusive) to `end` (exclusive) of a queue. `address`: its broker's, when this was planned."""

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int
    address: str

    @property
    def queue(self) -> MessageQueue:
        """The queue."""
        return MessageQueue(self.topic, self.broker, self.queue_id)


def divide(ranges: Sequence[QueueRange], parts_min: int, rows_max: int) -> list[QueueRange]:
    """At least `parts_min` ranges, longer ones in more parts, none of more than `rows_max` offsets; 0: no such limit. As few as that takes, and
    none without an offset: so there may be fewer than `parts_min`."""
    total = sum([each.end - each.start for each in ranges])
    result = []
    for each in ranges:
        rows = each.end - each.start
        parts = -(-rows // rows_max) if rows_max else 1
        if parts_min > len(ranges):
            parts = max(parts, -(-rows * parts_min // total))
        parts = min(parts, rows)
        edges = [each.start + rows * place // parts for place in range(parts + 1)]
        result += [replace(each, start=low, end=high) for low, high in pairwise(edges)]
    return result
