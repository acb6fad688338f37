"""Committed offsets of native consumer groups: table `offset`, key `topic@group`, value JSON {queue id: offset}.

A commit is visible at once and becomes a record within `FLUSH_MS`, in slices where thousands change; a crash in between repeats what was
consumed in that time. Table `reset` has the same form: offsets that a tool set and the group's consumers have not heard of.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from gantrymq.model.errors import ErrorCode, GantryError

Row = tuple[str, str, bytes | None]
"""Table, key, value; None deletes."""

FLUSH_MS = 500

OFFSET_TABLES = ("offset", "reset")

UNREAD_TABLE = "unread"
"""Rows of table `offset` that could not be read, as they were before the group's next commit took their place; key `offset/topic@group`."""

ROWS_STEP = 200
"""Rows made at a time: a millisecond with their append. A thousand groups of ten topics commit twenty times as many in a second."""
STEP_EVERY_MS = 50

RESETS_MAX = 100_000
"""Queues whose reset no consumer has heard of yet: the groups of 1,000 topics with 100 queues."""

PLACES_MAX = 1_000_000
"""(topic, group) pairs: 10,000 topics read by 100 groups each. A client that invents group names must not fill the memory."""

NO_DELETIONS: Mapping[tuple[str, str], object] = {}


class ConsumerOffsets:
    """Offsets by topic, group and queue, and the topics of each group. `deleting`: deletions under way (broker/deletion/deleting.py): what is
    still here of their topics and groups is not seen any more, and `before_change(topic, group)` is told of each change meanwhile."""

    def __init__(
        self,
        deleting: Mapping[tuple[str, str], object] = NO_DELETIONS,
        before_change: Callable[[str, str], None] = lambda topic, group: None,
    ) -> None:
        self._of_topic: dict[str, dict[str, dict[int, int]]] = {}
        self._topics_of: dict[str, set[str]] = {}
        self._count = 0
        self._handed: dict[tuple[str, str], dict[int, int]] = {}
        """By topic and group, queue id to the offset behind what the last pull got: what is between the committed one and it is in flight.
        In memory alone (RocketMQ: pullOffsetTable), and only of pairs that have a committed offset."""
        self._dirty: dict[tuple[str, str], None] = {}
        """Oldest first."""
        self.resets: dict[tuple[str, str], dict[int, int]] = {}
        """By topic and group, queue id to the offset that a tool set and the consumer has not heard of: until then its own commits do
        not count (RocketMQ: ConsumerManageProcessor, hasOffsetReset)."""
        self._reset_count = 0
        self._dirty_resets: set[tuple[str, str]] = set()
        self._unread: dict[str, bytes] = {}
        """Rows that were put aside, by key, until they are replaced."""
        self._reset_keys: set[str] = set()
        """Keys that have a row."""
        self.deleting = deleting
        self.before_change = before_change

    def __len__(self) -> int:
        """(topic, group) pairs."""
        return self._count

    def load(self, rows: Mapping[str, bytes], resets: Mapping[str, bytes]) -> None:
        """Take over the tables as replayed from the log."""
        for key, data in rows.items():
            topic, _, group = key.partition("@")
            queues = self._place(topic, group)
            queues.update({int(queue): int(offset) for queue, offset in json.loads(data).items()})
        for key, data in resets.items():
            topic, _, group = key.partition("@")
            self._reset_keys.add(key)
            for queue, offset in json.loads(data).items():
                self._keep_reset(topic, group, int(queue), int(offset))

    def load_readable(self, quarantined: dict[str, bytes]) -> None:
        """At start: of rows that were put aside, the queues that can be read. The group's next commit writes a row with these,
        and one in table `unread` with what was there."""
        self._unread = dict(quarantined)
        for key, data in quarantined.items():
            topic, mark, group = key.partition("@")
            try:
                queues = json.loads(data)
            except (ValueError, RecursionError):  # nothing of it: the start has told of the row
                continue
            if mark and isinstance(queues, dict):
                known = {
                    int(queue): offset
                    for queue, offset in queues.items()
                    if queue.isdecimal() and len(queue) < 10 and type(offset) is int and offset >= 0
                }
                if known:
                    self._place(topic, group).update(known)

    def _keep_reset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        queues = self.resets.setdefault((topic, group), {})
        self._reset_count += queue_id not in queues
        queues[queue_id] = offset

    def _place(self, topic: str, group: str) -> dict[int, int]:
        groups = self._of_topic.setdefault(topic, {})
        queues = groups.get(group)
        if queues is None:
            queues = groups[group] = {}
            self._topics_of.setdefault(group, set()).add(topic)
            self._count += 1
        return queues

    def cut(self, max_offset: Callable[[str, int], int]) -> list[tuple[str, int, int, int]]:
        """After the log lost its tail: set offsets beyond their queue's end to it; (key, queue, offset, end) of each."""
        found = []
        for topic, groups in self._of_topic.items():
            for group, queues in groups.items():
                for queue_id, offset in queues.items():
                    end = max_offset(topic, queue_id)
                    if offset > end:
                        queues[queue_id] = end
                        self._dirty[topic, group] = None
                        found.append((f"{topic}@{group}", queue_id, offset, end))
                        if queue_id in self.resets.get((topic, group), ()):
                            self.resets[topic, group][queue_id] = end
                            self._dirty_resets.add((topic, group))
        return found

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Set an offset; True if this is the first change since the last `take_dirty`. Raises LIMIT_REACHED."""
        if self.deleting:
            self.before_change(topic, group)
        if self.resets and queue_id in self.resets.get((topic, group), ()):
            return False
        return self._set(group, topic, queue_id, offset)

    def _going(self, topic: str, group: str) -> bool:
        """Whoever commits to it has the old offsets dropped first: what is there is old."""
        return ("topic", topic) in self.deleting or ("group", group) in self.deleting

    def _set(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        queues = self._of_topic.get(topic, {}).get(group)
        if queues is None:
            if self._count >= PLACES_MAX:
                raise GantryError(
                    ErrorCode.LIMIT_REACHED, f"{PLACES_MAX} groups have committed offsets; delete some first"
                )
            queues = self._place(topic, group)
        if queues.get(queue_id) == offset:
            return False
        queues[queue_id] = offset
        first = not self._dirty
        self._dirty[topic, group] = None
        return first

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """As `commit`, for a tool: the group's consumer goes on there, wherever it is. Raises LIMIT_REACHED."""
        if self._reset_count >= RESETS_MAX and queue_id not in self.resets.get((topic, group), ()):
            raise GantryError(ErrorCode.LIMIT_REACHED, f"{RESETS_MAX} reset queues wait for their consumers")
        if self.deleting:
            self.before_change(topic, group)
        first = not self._dirty
        self._set(group, topic, queue_id, offset)
        self._keep_reset(topic, group, queue_id, offset)
        self._dirty[topic, group] = None
        self._dirty_resets.add((topic, group))
        return first

    def take_reset(self, group: str, topic: str, queue_id: int) -> int:
        """Where the consumer that asks has to go on since a tool said so, once; -1: where it is. The caller has it written soon."""
        if self.deleting and self._going(topic, group):
            return -1
        queues = self.resets.get((topic, group))
        offset = queues.pop(queue_id, -1) if queues is not None else -1
        if offset >= 0:
            self._reset_count -= 1
            self._dirty[topic, group] = None
            self._dirty_resets.add((topic, group))
            if not queues:
                del self.resets[topic, group]
        return offset

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The committed offset, or -1."""
        if self.deleting and self._going(topic, group):
            return -1
        return self._of_topic.get(topic, {}).get(group, {}).get(queue_id, -1)

    def handed(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A pull got the messages before this offset."""
        groups = self._of_topic.get(topic)
        if groups is not None and group in groups:
            self._handed.setdefault((topic, group), {})[queue_id] = offset

    def query_handed(self, group: str, topic: str, queue_id: int) -> int:
        """The offset behind the last message that the group's pulls got; its committed offset (0: none) where that is higher."""
        committed = self.query(group, topic, queue_id)
        return max(committed, self._handed.get((topic, group), {}).get(queue_id, 0)) if committed >= 0 else 0

    def all_of(self, group: str, topic: str) -> dict[int, int]:
        """Queue id to offset."""
        if self.deleting and self._going(topic, group):
            return {}
        return dict(self._of_topic.get(topic, {}).get(group, {}))

    def groups_of(self, topic: str) -> list[str]:
        """Groups that committed an offset of the topic."""
        groups = list(self._of_topic.get(topic, ()))
        return [group for group in groups if not self._going(topic, group)] if self.deleting else groups

    def groups(self) -> list[str]:
        """Groups with committed offsets."""
        return [group for group, topics in self._topics_of.items() if topics and ("group", group) not in self.deleting]

    def topics_of(self, group: str) -> list[str]:
        """Topics that the group committed an offset of."""
        topics = list(self._topics_of.get(group, ()))
        return [topic for topic in topics if not self._going(topic, group)] if self.deleting else topics

    def by_topic(self) -> Mapping[str, dict[str, dict[int, int]]]:
        """Every topic's groups' offsets; not to be changed."""
        return self._of_topic

    def pairs(self) -> list[tuple[str, str, dict[int, int]]]:
        """Every topic and group with its offsets; not to be changed."""
        return [(topic, group, queues) for topic, groups in self._of_topic.items() for group, queues in groups.items()]

    def drop(self, pairs: Iterable[tuple[str, str]]) -> Iterator[list[Row]]:
        """Forget the offsets of topics and groups, `ROWS_STEP` of them in one step; the rows that delete them from the tables."""
        waiting = iter(pairs)
        while step := list(islice(waiting, ROWS_STEP)):
            known = [pair for pair in step if pair[1] in self._of_topic.get(pair[0], ())]
            yield [row for topic, group in known for row in self._drop(topic, group)]

    def drop_topic(self, topic: str) -> Iterator[list[Row]]:
        """As `drop`, of all groups."""
        return self.drop([(topic, group) for group in self._of_topic.get(topic, ())])

    def _drop(self, topic: str, group: str) -> list[Row]:
        groups, topics = self._of_topic[topic], self._topics_of[group]
        del groups[group]
        self._reset_count -= len(self.resets.pop((topic, group), ()))
        self._handed.pop((topic, group), None)
        topics.discard(topic)
        if not groups:
            del self._of_topic[topic]
        if not topics:
            del self._topics_of[group]
        self._count -= 1
        self._dirty.pop((topic, group), None)
        self._dirty_resets.discard((topic, group))
        key = f"{topic}@{group}"
        self._unread.pop(key, None)
        rows: list[Row] = [("offset", key, None)]
        if key in self._reset_keys:
            self._reset_keys.discard(key)
            rows.append(("reset", key, None))
        return rows

    def written(self, rows: Sequence[Row], arm: Callable[[], None], result: object) -> None:
        """Rows of `take_dirty` came into the log, or (`result`: a GantryError) did not: then they are dirty again, and `arm()` is called."""
        if not isinstance(result, GantryError) or result.code is ErrorCode.STORE_FAILED:
            return
        for table, key, value in rows:
            if table == UNREAD_TABLE and value is not None:
                self._unread[key.removeprefix("offset/")] = value
                continue
            topic, _, group = key.partition("@")
            if group in self._of_topic.get(topic, ()):
                self._dirty[topic, group] = None
                if table == "reset":
                    self._dirty_resets.add((topic, group))
                    self._reset_keys.add(key)  # a row that was to go is still there
        arm()

    def take_dirty(self, everything: bool = True) -> list[Row]:
        """Rows changed since they were taken last: all, or those of one slice."""
        rows: list[Row] = []
        for topic, group in list(self._dirty) if everything else list(islice(self._dirty, ROWS_STEP)):
            del self._dirty[topic, group]
            key = f"{topic}@{group}"
            if self._unread and (unread := self._unread.pop(key, None)) is not None:
                rows.append((UNREAD_TABLE, f"offset/{key}", unread))
            rows.append(("offset", key, _row(self._of_topic[topic][group])))
            if self._dirty_resets and (topic, group) in self._dirty_resets:
                self._dirty_resets.discard((topic, group))
                queues = self.resets.get((topic, group))
                if queues:
                    self._reset_keys.add(key)
                    rows.append(("reset", key, _row(queues)))
                elif key in self._reset_keys:
                    self._reset_keys.discard(key)
                    rows.append(("reset", key, None))
        return rows

    @property
    def dirty(self) -> bool:
        """There are rows to take."""
        return bool(self._dirty)


def _row(queues: dict[int, int]) -> bytes:
    return b"{%b}" % ",".join([f'"{queue}":{offset}' for queue, offset in queues.items()]).encode()
