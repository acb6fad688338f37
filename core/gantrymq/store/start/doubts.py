"""Records whose queue offset does not follow the one before it in their queue: whether they are believed, their neighbours tell.

No CRC covers a record's head or its properties (unless it has one of its own, record.py). One wrong bit in a queue offset that was believed would
make a queue jump, and its later records, whose offsets are then behind it, would enter no queue. So a replay keeps an offset that does not
follow as a claim:

| what comes next in that queue | the claims |
|---|---|
| an offset that follows the newest claim | two agree: these are right, and the earlier claims are if they fit in between |
| an offset that leaves exactly as many places as there are claims | claims of other offsets than these places are wrong |
| records that go on where the queue was | wrong |
| nothing | wrong if the queue was known to end before them, or to have come further; else believed |

A record whose claim to a topic's queue is wrong is damage: it is set aside as one with a wrong CRC is, and its place says "no record here". One
that is wrong about a light queue takes the place that is left there, where whoever reads it sees that it does not fit (checked.py).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from gantrymq.store.checkpoints.ends import RememberedEnds
    from gantrymq.store.light.queues import LightQueues
    from gantrymq.store.log.recovery import EndFinder
    from gantrymq.store.queues.consume_queue import ConsumeQueue, Unit
    from gantrymq.store.queues.queue_table import QueueTable

log = logging.getLogger(__name__)

CLAIMS_MAX: Final = 64
"""Of one queue. As many that contradict each other are judged as if nothing came behind them."""


class Queues(Protocol):
    """The queues that records claim offsets of."""

    def next_offset(self, queue: Any) -> int:
        """Offset that the queue has come to."""

    def maximum(self, queue: Any, unit: Unit) -> int | None:
        """Offset that the queue is known to have come to when it had the unit; None: nobody knows."""

    def has(self, queue: Any, offset: int, unit: Unit) -> bool:
        """The unit is there already: it was written before the process ended."""

    def believe(self, queue: Any, offset: int, unit: Unit) -> None:
        """Enter the record at its offset; what is in between is lost."""

    def refuse(self, queue: Any, place: int, unit: Unit, why: str) -> None:
        """The record is damaged. `place`: the only offset that it can have had, -1 if that is not known."""


class Doubts:
    """Claims to one kind of queues, during one replay."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._claims: dict[Any, tuple[int, list[tuple[int, Unit]]]] = {}
        """By queue: the offset that it had come to, and what was claimed then."""

    @property
    def waiting(self) -> bool:
        """There are claims."""
        return bool(self._claims)

    def meet(self, queue: Any, offset: int, unit: Unit) -> None:
        """A record of `queue` with an offset other than its next one, or its first record."""
        at = self._queues.next_offset(queue)
        if queue in self._claims and self._claims[queue][0] != at:
            self._judge_alone(queue, *self._claims.pop(queue))
        claims = self._claims.setdefault(queue, (at, []))[1]
        claims.append((offset, unit))
        count = len(claims)
        if count > 1 and offset == claims[-2][0] + 1:
            sure = 2
        elif count > 1 and offset == at + count - 1:
            sure = 1
        elif count < CLAIMS_MAX:
            return
        else:
            self._judge_alone(queue, *self._claims.pop(queue))
            return
        del self._claims[queue]
        self._judge(queue, claims[:-sure], claims[-sure][0])
        for claim in claims[-sure:]:
            self._queues.believe(queue, *claim)

    def finish(self) -> None:
        """The replay is at the log's end."""
        for queue, (at, claims) in self._claims.items():
            self._judge_alone(queue, at, claims)
        self._claims.clear()

    def _judge(self, queue: Any, claims: list[tuple[int, Unit]], end: int) -> None:
        """Claims in front of a record that is at `end` for sure."""
        queues = self._queues
        first, count = queues.next_offset(queue), len(claims)
        exact = end - first == count
        for index, (offset, unit) in enumerate(claims):
            if offset == first + index if exact else queues.next_offset(queue) <= offset <= end - count + index:
                queues.believe(queue, offset, unit)
            else:
                place = first + index if exact else -1
                left = f"offset {place}" if exact else "no place"
                queues.refuse(queue, place, unit, f"it says offset {offset}, its neighbours leave {left}")

    def _judge_alone(self, queue: Any, at: int, claims: list[tuple[int, Unit]]) -> None:
        queues = self._queues
        passed = queues.next_offset(queue) > at
        for offset, unit in claims:
            most, following = queues.maximum(queue, unit), queues.next_offset(queue)
            if passed and not queues.has(queue, offset, unit):
                queues.refuse(queue, -1, unit, f"it says offset {offset}, and {at} came behind it")
            elif passed:
                continue
            elif most is not None and not following <= offset < most:
                place = following if following == most - 1 else -1
                queues.refuse(queue, place, unit, f"it says offset {offset}, the queue went from {following} to {most}")
            else:
                queues.believe(queue, offset, unit)


class TopicQueues:
    """Claims to ConsumeQueues."""

    def __init__(self, table: QueueTable, ends: RememberedEnds, finder: EndFinder) -> None:
        self.table = table
        self._ends = ends
        self._finder = finder

    def next_offset(self, queue: ConsumeQueue) -> int:
        return queue.next_offset

    def maximum(self, queue: ConsumeQueue, unit: Unit) -> int | None:
        return self._ends.maximum(queue.topic, queue.queue_id) if unit[0] < self._ends.position else None

    def has(self, queue: ConsumeQueue, offset: int, unit: Unit) -> bool:
        return False

    def believe(self, queue: ConsumeQueue, offset: int, unit: Unit) -> None:
        first = queue.next_offset
        if not queue.pending:
            self.table.dirty.append(queue)
        if not queue.replay(offset, unit) or offset < first:
            log.error("record at %d has queue offset %d, but %s/%d is at %d: it enters no queue",
                      unit[0], offset, queue.topic, queue.queue_id, queue.next_offset)  # fmt: skip
        elif 0 < first < offset:
            log.warning("queue %s/%d: no record says that it has an offset from %d to %d",
                        queue.topic, queue.queue_id, first, offset - 1)  # fmt: skip

    def refuse(self, queue: ConsumeQueue, place: int, unit: Unit, why: str) -> None:
        self._finder.quarantine(unit[0], unit[1], f"{why} (queue {queue.topic}/{queue.queue_id})")


class LightEntries:
    """Claims to light queues."""

    def __init__(self, lights: LightQueues) -> None:
        self._lights = lights

    def next_offset(self, light: int) -> int:
        return self._lights.next_offset(light)

    def maximum(self, light: int, unit: Unit) -> int | None:
        return None

    def has(self, light: int, offset: int, unit: Unit) -> bool:
        return self._lights.min_offset(light) > offset or self._lights.read(light, offset, 1) == [unit]

    def believe(self, light: int, offset: int, unit: Unit) -> None:
        self._lights.replay(light, offset, unit)

    def refuse(self, light: int, place: int, unit: Unit, why: str) -> None:
        log.error("record at %d is damaged: %s (light queue %d)", unit[0], why, light)
        if place >= 0:
            self._lights.replay(light, place, unit)
