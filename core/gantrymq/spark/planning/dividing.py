"""Ranges of queues cut into input partitions: more tasks than a topic has queues. A part of a range is read like a whole one, so this is safe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.spark.planning.offsets import OptionError

PARTITIONS_MAX: Final = 100_000
"""Input partitions of one batch: a task each, of which Spark's driver keeps some KiB and starts a few hundred a second."""


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
    none without an offset: so there may be fewer than `parts_min`. Raises OptionError for more than `PARTITIONS_MAX`."""
    total = sum([each.end - each.start for each in ranges])
    if parts_min > PARTITIONS_MAX:
        raise OptionError(f"minPartitions is {parts_min}: allowed are at most {PARTITIONS_MAX}")
    if rows_max and total // rows_max > PARTITIONS_MAX:
        text = f"maxRecordsPerPartition is {rows_max}: {total} messages would be {total // rows_max} tasks"
        raise OptionError(
            f"{text}, and at most {PARTITIONS_MAX} are allowed; make it larger, or set maxOffsetsPerTrigger"
        )
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
