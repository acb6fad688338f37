"""Numbers of topics and groups: the ends of queues, and how far groups are behind. Where there may be many, they are added up in steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from typing import TYPE_CHECKING, Final, NamedTuple

from gantrymq.administration.reading import Steps, patiently
from gantrymq.broker.rocketmq import stats
from gantrymq.store.queues.consume_queue import HOLE_SIZE

if TYPE_CHECKING:
    from gantrymq.administration.reading import Reading
    from gantrymq.broker.consuming.offsets import ConsumerOffsets
    from gantrymq.broker.rocketmq.stats import BrokerStats
    from gantrymq.store.cold import Cold

QUEUES_PER_STEP: Final = 16
"""Queues whose times are read in one go: some 300 us."""

WORK_PER_STEP: Final = 120
"""Topics of four queues whose ends are added up in one go: some 500 us."""

OPENING: Final = 60
"""A topic that nobody has used since the start, and of which nothing is remembered, costs so many times more: its files are looked at."""

OPENED_MAX: Final = 500
"""Such topics in one answer: 0.2 s of processor time, more where the disk is slow. Others have no numbers; the next answer has more."""


class Ends:
    """Ends of topics, a step's worth at a time."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._work = self._opened = 0

    def of(self, topic: str) -> Generator[Cold | None, None, tuple[int, int] | None]:
        """Sums of maximum and minimum offsets; None where too many topics would have to be opened."""
        store = self._reading.store
        found = store.known_ends(topic)
        self._work += 1 if found is not None else OPENING
        if self._work > WORK_PER_STEP:
            self._work = 0
            yield None
        if found is not None or self._opened >= OPENED_MAX:
            return found
        self._opened += 1
        yield from patiently(self._reading, lambda reading: reading.store.visible_sum(topic))
        return store.known_ends(topic)


class QueueLag(NamedTuple):
    """A group's place in one queue. `end`: the queue's; `committed`, `handed`: offsets; `consumed_ms`: store time of the last consumed record, or 0."""

    queue_id: int
    end: int
    committed: int
    handed: int
    consumed_ms: int


class GroupRow(NamedTuple):
    """A consumer group at a glance. `lag`: None where too many topics would have to be opened; `rate`: messages a second."""

    group: str
    lag: int | None
    rate: float
    topics: list[str]
    members: list[str]


class Figures:
    """Numbers of groups. `topics_of(group)`: topics that its connected members subscribe to; `members_of(group)`: their client ids."""

    def __init__(
        self,
        reading: Reading,
        offsets: ConsumerOffsets,
        counters: BrokerStats,
        topics_of: Callable[[str], Collection[str]],
        members_of: Callable[[str], Collection[str]],
    ) -> None:
        self.reading = reading
        self._offsets = offsets
        self._counters = counters
        self.topics_of = topics_of
        self.members_of = members_of

    def subscribed(self, group: str, topics: list[str]) -> list[str]:
        """Those of the topics that the group still subscribes to; all of them where none of its members is connected."""
        wanted = self.topics_of(group)
        return [topic for topic in topics if topic in wanted] if wanted else topics

    def consumed_topics(self, group: str) -> list[str]:
        """Topics that the group has offsets of and still subscribes to."""
        return self.subscribed(group, sorted(self._offsets.topics_of(group)))

    def rate(self, group: str, topic: str) -> float:
        """Messages of the topic that the group gets a second."""
        return self._counters.rate(stats.GROUP_GET_NUMS, f"{topic}@{group}")

    def lags(self, group: str, name: str) -> Steps[list[QueueLag]]:
        """A row for each queue of a topic; none for an unknown topic or one of the broker's own."""
        topic = self.reading.topic(name)
        if topic is None or topic.system:
            return []
        found: list[QueueLag] = []
        for queue in range(topic.config.read_queues):
            if queue % QUEUES_PER_STEP == QUEUES_PER_STEP - 1:
                yield None

            def find(reading: Reading, queue: int = queue) -> QueueLag:
                done = max(reading.committed(group, name, queue), 0)
                last = store_ms(reading, name, queue, done - 1) if done else 0
                handed = reading.handed(group, name, queue)
                return QueueLag(queue, reading.store.visible_end(name, queue), done, handed, max(last, 0))

            lag = yield from patiently(self.reading, find)
            found.append(lag)
        return found

    def group_row(self, group: str, ends: Ends) -> Steps[GroupRow]:
        """A group at a glance."""
        offsets = self._offsets
        wanted = self.topics_of(group)
        topics = []
        lag, rate = 0, 0.0
        unknown = False
        for name in offsets.topics_of(group):
            topic = self.reading.topic(name)
            if topic is None or topic.system or (wanted and name not in wanted):
                continue
            topics.append(name)
            found = yield from ends.of(name)
            if found is not None:
                lag += max(found[0] - sum(offsets.all_of(group, name).values()), 0)
            else:
                unknown = True
            rate += self.rate(group, name)
        members = list(self.members_of(group))
        return GroupRow(group, None if unknown else lag, rate, sorted({*topics, *wanted}), members)


def store_ms(reading: Reading, topic: str, queue_id: int, offset: int) -> int:
    """Store time of the record at an offset; -1 where there is none. May raise `Cold`."""
    found = reading.store.units(topic, queue_id, offset, 1) if offset >= 0 else []
    return reading.store.store_ms_at(found[0][0]) if found and found[0][1] != HOLE_SIZE else -1
