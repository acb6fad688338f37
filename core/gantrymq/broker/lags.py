"""How far consumer groups are behind in their topics, and shared MQTT subscriptions in their queues.

Done in steps with pauses between them: 20,000 topics take 40 ms.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Final

from gantrymq.model import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gantrymq.broker.consuming.cursors import Cursors
    from gantrymq.broker.consuming.offsets import ConsumerOffsets
    from gantrymq.broker.topics import Topic
    from gantrymq.store.message_store import MessageStore

PAIRS_PER_STEP: Final = 300
"""Groups and topics summed up in one go: some 500 us."""

OPENED_PER_STEP: Final = 2

OPENED_MAX: Final = 50
"""Topics that nobody has used since the start, of which nothing is remembered (store/checkpoints/ends.py), and whose queues are opened in one sweep: each
costs some 400 us and 4 KiB."""


class LagSweep:
    """Adds up what all groups are behind. `behind`: (messages, topic, group) of the `limit` farthest, most first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.behind_count = 0
        self.behind: list[tuple[int, str, str]] = []
        self.places = 0
        """Topics and groups with committed offsets."""
        self.unknown = 0
        """Those whose queues were left unopened (`OPENED_MAX`); later sweeps open more."""
        self.total = 0

    def groups(self, store: MessageStore, topics: Mapping[str, Topic], offsets: ConsumerOffsets) -> Iterator[None]:
        """Add the consumer groups, by their committed offsets; pauses at each `yield`. System topics are left out."""
        used = store.used_topics
        part: list[tuple[int, str, str]] = []
        by_topic = offsets.by_topic()
        known_ends = store.known_ends
        opened = done = 0
        for name in list(
            by_topic
        ):  # a list of pairs would take milliseconds, with the collection of garbage that it begins
            groups = by_topic.get(name)
            if groups is None:  # dropped meanwhile
                continue
            done += 1 + len(groups)
            if done >= PAIRS_PER_STEP:
                done = 0
                if len(part) >= PAIRS_PER_STEP:
                    part = self._keep_best(part)
                yield
            topic = topics.get(name)
            if topic is None or topic.system or name in names.ROCKETMQ_SYSTEM_TOPICS:
                continue
            self.places += len(groups)
            found = used.get(name)
            if found is None:
                known = known_ends(name)
                if known is not None:
                    end = known[0]
                elif opened >= OPENED_MAX:
                    self.unknown += len(groups)
                    continue
                else:
                    opened += 1
                    if opened % OPENED_PER_STEP == 0:
                        done = 0
                        yield
                    end = store.visible_sum(name)
            else:
                end = store.visible_sum(name)
            for group, queues in groups.items():
                lag = end - sum(queues.values())
                if lag > 0:
                    self.total += lag
                    self.behind_count += 1
                    part.append((lag, name, group))
        yield
        self._keep_best(part)

    def shared(self, cursors: Cursors, name_of: Callable[[str], str]) -> Iterator[None]:
        """Add the shared subscriptions, likewise: the group is `$share/<name>`, the topic its filter. `name_of(queue)`: what people call it."""
        ids = list(cursors.shared)
        for first in range(0, len(ids), PAIRS_PER_STEP):
            found = []
            for cursor_id in ids[first : first + PAIRS_PER_STEP]:
                cursor = cursors.shared.get(cursor_id)
                if cursor is None:  # deleted meanwhile
                    continue
                self.places += 1
                info = cursors.info(cursor)
                lag = info.ready + info.unacked
                if lag > 0:
                    self.total += lag
                    self.behind_count += 1
                    found.append((lag, cursor.queue))
            best = sorted(found, reverse=True)[: self._limit]
            self._keep_best([(lag, *_named(name_of(queue), queue)) for lag, queue in best])
            yield

    def _keep_best(self, found: list[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
        """Keep the farthest of these and of those kept before; returns an empty list for the next ones."""
        self.behind = sorted([*self.behind, *found], key=itemgetter(0), reverse=True)[: self._limit]
        return []


def _named(name: str, queue: str) -> tuple[str, str]:
    """Topic filter and group of a shared subscription's queue."""
    group, wanted = names.share_parts(name)
    return wanted or queue, group.replace("@", "%40")  # An `@` stands between topic and group in keys of such pairs.
