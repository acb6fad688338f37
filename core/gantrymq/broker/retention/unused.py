"""Topics that came into being at their first use and that nobody needs any more: found, and removed.

Unused: it holds no message, none waits elsewhere to come to it, nobody has an offset, a cursor or a route in it or waits for its next record, no row of a door names it
(declared exchanges, queues, bindings, retained messages, subscriptions), and nobody made it or asked for it lately. Each topic is looked at and
removed in one call, so whatever is sent before that is seen, and what is sent later makes the topic again.

Entry-point group `gantrymq.topic_users`: name = table, value = a function `(key, value)` that returns the native topics of a row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from gantrymq.broker.deletion import deletions
from gantrymq.broker.due.waiting import STEP, STEP_BYTES
from gantrymq.broker.topics import Topic
from gantrymq.broker.transactions.half_messages import HALF_TOPIC
from gantrymq.model import properties as props
from gantrymq.model.names import SCHEDULE_TOPIC
from gantrymq.store.schedule import TIMER_TOPIC

if TYPE_CHECKING:
    from gantrymq.broker.broker import Broker

log = logging.getLogger(__name__)

TopicsOf = Callable[[str, bytes], Iterable[str]]
ROWS_STEP: Final = 500
"""Rows of doors looked at in one go: some 500 us."""

WAITING: Final = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)
"""Where messages wait for their time, or for their producer's decision."""


def load_topic_users() -> dict[str, TopicsOf]:
    """What is installed, by table."""
    return {point.name: point.load() for point in entry_points(group="gantrymq.topic_users")}


class UnusedTopics:
    """One survey; `close()` it. `subscribed(topic)`: whether a group of connected native clients wants it."""

    def __init__(self, broker: Broker, users: Mapping[str, TopicsOf], subscribed: Callable[[str], bool]) -> None:
        self._broker = broker
        self._users = users
        self._subscribed = subscribed
        self.named: set[str] = set()
        """Topics in rows of doors; rows that come meanwhile are noted, too."""
        self._watchers: list[tuple[str, Callable[[str, bytes | None], None]]] = []
        self._coming: set[str] = set()
        """Topics of messages that wait elsewhere."""
        self._looked: dict[int, int] = {}
        """By cursor over `WAITING`, the offset up to which they are known."""

    def survey(self) -> Iterator[None]:
        """Read the rows of doors, a step at a time."""
        tables = self._broker.tables
        for table, topics_of in self._users.items():
            watcher = partial(self._note, table, topics_of)
            tables.watch(table, watcher)
            self._watchers.append((table, watcher))
            rows = tables.rows(table)
            for number, key in enumerate(list(rows)):
                if number % ROWS_STEP == ROWS_STEP - 1:
                    yield None
                self._note(table, topics_of, key, rows.get(key))

    def _note(self, table: str, topics_of: TopicsOf, key: str, value: bytes | None) -> None:
        if value is None:
            return
        try:
            self.named.update(topics_of(key, value))
        except Exception as error:  # whatever a door's function does with a row that is put aside
            log.debug("row %r of table %s: %s: %s", key[:80], table, type(error).__name__, error)

    def check_waiting(self) -> bool:
        """Note the topics of some more messages that wait elsewhere; False: of all. Raises `Cold`, and OSError for a record that the disk
        cannot read."""
        cursors, store = self._broker.cursors, self._broker.store
        queues = [f"{topic}/{number}" for topic in WAITING for number in store.queues_of(topic)]
        for cursor in [cursor for queue in queues for cursor in cursors.of_queue(queue)]:
            window, end = cursor.window, cursors.end(cursor)
            at = max(self._looked.get(cursor.id, 0), window.floor)
            if at >= end:
                continue
            units = cursors.units(cursor, at, min(STEP, end - at))
            units = units[: cursors.within(units, STEP_BYTES)]
            waiting = [unit for offset, unit in enumerate(units, at) if not window.is_done(offset)]
            found = store.get_many([(unit[0], unit[1]) for unit in waiting])
            self._coming.update([message.property(props.REAL_TOPIC) for message in found if message is not None])
            self._looked[cursor.id] = at + len(units) if units else end
            return True
        return False

    def close(self) -> None:
        """Hear of no more rows."""
        for table, watcher in self._watchers:
            self._broker.tables.unwatch(table, watcher)

    def candidates(self) -> list[str]:
        """Topics to ask `why_used` of: also those that somebody created, for another broker may have them by their first use alone."""
        return [name for name, topic in self._broker.topics.topics.items() if not topic.special]

    def why_used(self, name: str, older_ms: int) -> str:
        """Why a topic stays; empty if it is unused. May raise `Cold`. `older_ms`: how long ago it must have been made or asked for."""
        broker = self._broker
        topic = broker.topics.topics.get(name)
        if topic is None:
            return "it does not exist"
        if not topic.config.on_use or topic.special:
            return "somebody created it"
        if broker.clock.now_ms() - max(topic.config.created_ms, topic.wanted_ms) < older_ms:
            return "it was made or asked for lately"
        if name in self.named:
            return "a door's exchange, queue, binding, retained message or subscription needs it"
        if broker.router.names_topic(name):
            return "a binding or subscription has a route from it"
        if broker.offsets.groups_of(name) or self._subscribed(name):
            return "a consumer group reads it"
        while self.check_waiting():  # what came since the last look
            pass
        if name in self._coming:
            return "a message waits to be delivered to it"
        if any(topic.waiters.values()):
            return "somebody waits for its next message"
        return self._kept(name, topic)

    def _kept(self, name: str, topic: Topic) -> str:
        broker, store = self._broker, self._broker.store
        queues = {*store.queues_of(name), *range(max(topic.config.read_queues, topic.config.write_queues))}
        if any(store.max_offset(name, queue) > broker.min_offset(name, queue) for queue in queues):
            return "it holds messages"
        if any(broker.cursors.of_queue(f"{name}/{queue}") for queue in queues):
            return "a cursor reads it"
        return ""

    def remove(self, name: str) -> None:
        """Remove a topic of which `why_used` has just said that it is unused."""
        log.info("topic %s was unused and is removed", name)
        deletions.delete_topic(self._broker, name)
        if self._broker.topics.forget_tombstone(name):  # else each name that was ever used would leave a row
            self._broker.put("topic", [(name, None)], None, None)
