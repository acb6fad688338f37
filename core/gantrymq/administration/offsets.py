"""Where consumer groups are: set anew, copied, compared."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from gantrymq.administration.topics import readable_topic
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    from gantrymq.administration.groups import Groups
    from gantrymq.administration.reading import Reading
    from gantrymq.broker.consuming.commits import OffsetCommits
    from gantrymq.broker.pop.pops import Pops
    from gantrymq.broker.topics import Topic, TopicTable

OFFSET_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
"""Java's Long.MAX_VALUE: a correction says with it that there is nothing to correct."""


class GroupOffsets:
    """Offsets of groups. `topics_of(group)`: topics that its connected members subscribe to; `min_offset(topic, queue)`: the first offset that can be
    read."""

    def __init__(
        self,
        topics: TopicTable,
        min_offset: Callable[[str, int], int],
        commits: OffsetCommits,
        pops: Pops,
        groups: Groups,
        topics_of: Callable[[str], Collection[str]],
    ) -> None:
        self._topics = topics
        self._min_offset = min_offset
        self._commits = commits
        self._pops = pops
        self._groups = groups
        self._topics_of = topics_of

    def topic(self, name: str) -> Topic:
        """Raises TOPIC_NOT_FOUND, NO_PERMISSION."""
        return readable_topic(self._topics, name)

    def check_group(self, name: str) -> None:
        """Raises GROUP_NOT_FOUND."""
        if self._groups.get(name) is None:
            raise GantryError(ErrorCode.GROUP_NOT_FOUND, f"Group {name[:255]} does not exist")

    def reset(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Set the group's offsets, by queue. Connected consumers go on there from their next pull."""
        for queue, offset in offsets.items():
            if self._pops.known(group, topic, queue) is not None:
                self._pops.reset(group, topic, queue, offset)
            else:
                self._commits.reset(group, topic, queue, offset)
        self._commits.write()

    def clone(self, source: str, destination: str, topic: str, offline: bool) -> None:
        """Copy a group's offsets to another group: those of one topic, or (empty) of all. `offline`: also those of topics that the source consumes no
        more."""
        names.check_group(destination)
        offsets = self._commits.offsets
        consumed = self._topics_of(source)
        for name in [topic] if topic else offsets.topics_of(source):
            if name not in self._topics.topics or names.is_own_system_topic(name):
                continue
            if not offline and consumed and name not in consumed:
                continue
            for queue, offset in offsets.all_of(source, name).items():
                self._commits.commit(destination, name, queue, offset)
        self._commits.write()

    def correction(self, group: str, topic: str, left_out: Collection[str]) -> dict[int, int]:
        """By queue, the lowest offset that any group has but those in `left_out`; `OFFSET_MAX` where this group's own is lower."""
        offsets = self._commits.offsets
        self.topic(topic)
        lowest: dict[int, int] = {}
        for other in offsets.groups_of(topic):
            if other in left_out:
                continue
            for queue, offset in offsets.all_of(other, topic).items():
                if offset >= self._min_offset(topic, queue):
                    lowest[queue] = min(offset, lowest.get(queue, OFFSET_MAX))
        for queue, offset in offsets.all_of(group, topic).items():
            if lowest.get(queue, OFFSET_MAX) > offset:
                lowest[queue] = OFFSET_MAX
        return lowest


def offset_by_time(reading: Reading, topic: str, queue_id: int, timestamp: int) -> int:
    """First offset stored at or after a time (ms since the epoch); negative: the end. May raise `Cold`."""
    if timestamp < 0:
        return reading.store.visible_end(topic, queue_id)
    return max(reading.store.offset_by_time(topic, queue_id, timestamp, True), reading.min_offset(topic, queue_id))


def reset_targets(reading: Reading, topic: Topic, timestamp: int, queue_id: int, wanted: int | None) -> dict[int, int]:
    """By queue, the offset to go to: of all queues by time (`queue_id` -1), or of one queue by time or at `wanted`. May raise `Cold`."""
    name = topic.name
    if queue_id < 0:
        return {queue: offset_by_time(reading, name, queue, timestamp) for queue in range(topic.config.read_queues)}
    if queue_id >= max(topic.config.read_queues, topic.config.write_queues):
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"topic {name} has no queue {queue_id}")
    if wanted is None or wanted == -1:
        return {queue_id: offset_by_time(reading, name, queue_id, timestamp)}
    low, high = reading.min_offset(name, queue_id), reading.store.visible_end(name, queue_id)
    if not low <= wanted <= high:
        text = f"Target offset {wanted} not in consume queue range [{low}-{high}]"
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
    return {queue_id: wanted}


def client_targets(reading: Reading, group: str, topic: Topic, timestamp: int, forward: bool) -> dict[int, int] | None:
    """By queue, the offset that connected consumers are told to go to by time; None: the group has no offset of some queue. `forward`: even where they
    miss messages. May raise `Cold`."""
    found = {}
    for queue in range(topic.config.write_queues):
        known = reading.committed(group, topic.name, queue)
        if known < 0:
            return None
        target = offset_by_time(reading, topic.name, queue, timestamp)
        found[queue] = target if forward or target < known else known
    return found
