"""Deleting a topic or a group: one record decides, and names what goes with it; a start that finds it alone finishes the rest.

    topic   tombstone with `deleting` (its retry topics) | tombstones of these | request modes, offsets, pop cursors | tombstone
    group   row with `deleted` | offsets, pop cursors, request modes | deletion of the row

All of it is one batch of the log, or, where it is much, several (broker/deletion/deleting.py), in this order. A crash leaves a front part of it: nothing
(not deleted), or at least the first record (deleted). A topic or group made again comes later in the log, when all the rest is there: what it
finds is always complete. That a topic is gone stands in two records always: one that is damaged does not bring it back.
"""

from __future__ import annotations

import json
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, Protocol

from gantrymq.broker.consuming.offsets import OFFSET_TABLES, ROWS_STEP
from gantrymq.broker.deletion.deleting import SLICED_MIN
from gantrymq.broker.parts import Context
from gantrymq.broker.topics import TopicConfig
from gantrymq.model import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.broker.deletion.deleting import Deleting
    from gantrymq.broker.rocketmq.stats import BrokerStats
    from gantrymq.broker.routing.router import Router
    from gantrymq.broker.tables.tables import Rows, Tables
    from gantrymq.store.message_store import MessageStore


POP_GROUP: Final = "pop:"
"""Groups of cursors that belong to pop consumers: these end with the topic or the group. A gateway's cursor outlives its topic."""

REQUEST_MODES: Final = "request_mode"
"""Table of how groups consume topics (remoting/server/pop/modes.py), with keys as those of `offset`."""

DELETED: Final = b'"deleted":true'


class Deleter(Context, Protocol):
    """The broker as deletions know it."""

    deleting: Deleting
    router: Router
    stats: BrokerStats


def retry_names(topic: str, groups: Iterable[str]) -> list[str]:
    """Retry topics of pop consumers that belong to one topic (RocketMQ's KeyBuilder: V1 with `_`, V2 with `+`)."""
    return [f"{names.RETRY_PREFIX}{group}{mark}{topic}" for group in groups for mark in "_+"]


def delete_topic(broker: Deleter, name: str) -> bool:
    """See the module. False if unknown."""
    topics, store = broker.topics, broker.store

    def tombstone(topic: str) -> TopicConfig | None:
        return topics.delete(topic, {queue: store.max_offset(topic, queue) for queue in store.queues_of(topic)})

    groups = broker.offsets.groups_of(name)
    known = _retries(broker, name, groups)
    config = tombstone(name)
    if config is None:
        return False
    broker.stats.forget_topic(name)
    retries = [found for retry in known if (found := tombstone(retry)) is not None]
    tombstones: Rows = [("topic", retry.name, retry.to_bytes()) for retry in retries]
    gone = [name, *[retry.name for retry in retries]]
    parts = _rest_of_topic(broker, gone, int(broker.cursors.next_row()[1]))
    last: Rows = [("topic", name, config.to_bytes())]
    config.deleting = [retry.name for retry in retries]
    first: Rows = [("topic", name, config.to_bytes())]
    config.deleting = None
    if len(groups) >= SLICED_MIN:
        broker.deleting.begin("topic", gone, first + tombstones, chain(parts, [last]))
        return True
    rest = tombstones + [row for rows in parts for row in rows]
    broker.put_rows(first + rest + last)
    return True


def _retries(broker: Deleter, name: str, groups: Sequence[str]) -> list[str]:
    """Retry topics of these groups that exist."""
    topics = broker.topics.topics
    if 2 * len(groups) <= len(topics):
        return [retry for retry in retry_names(name, groups) if retry in topics]
    ends = (f"_{name}", f"+{name}")
    found = [topic for topic in topics if topic.startswith(names.RETRY_PREFIX) and topic.endswith(ends)]
    wanted = set(groups) if found else set()
    return [topic for topic in found if topic[len(names.RETRY_PREFIX) : -len(name) - 1] in wanted]


def _rest_of_topic(broker: Deleter, gone: Sequence[str], first_id: int) -> Iterator[Rows]:
    """What goes with a topic and its retry topics, `gone`, in slices; cursors from `first_id` on were made meanwhile and stay."""
    modes = broker.tables.rows(REQUEST_MODES)
    yield from _parts([(REQUEST_MODES, key, None) for key in modes if key.startswith(f"{gone[0]}@")])
    for topic in gone:
        yield from broker.offsets.drop_topic(topic)
        for queue in broker.store.queues_of(topic):
            cursors = [cursor for cursor in broker.cursors.of_queue(f"{topic}/{queue}") if cursor.id < first_id]
            yield from _end_all(broker, [cursor for cursor in cursors if cursor.group.startswith(POP_GROUP)])


def _parts(rows: Rows) -> Iterator[Rows]:
    for first in range(0, len(rows), ROWS_STEP):
        yield rows[first : first + ROWS_STEP]


def delete_light(broker: Deleter, light: int) -> Rows:
    """Forget a light queue with its routes and cursors; the rows that delete them. The store forgets it when they are stored."""
    rows: Rows = [("light", str(light), None)]
    for route_id in broker.router.routes_of_light(light):
        broker.router.remove(route_id)
        rows.append(("route", route_id, None))
    return rows + _end(broker, broker.cursors.of_queue(f"~{light}"))


def forget_lights(broker: Deleter) -> None:
    """At a start: light queues that were deleted shortly before a crash, which the store had not written down yet."""
    rows, cursors, router = broker.tables.rows("light"), broker.cursors, broker.router
    for light in broker.store.light_ids():
        if str(light) not in rows and not cursors.of_queue(f"~{light}") and not router.routes_of_light(light):
            broker.store.delete_light(light)


def light_row(store: MessageStore, key: str, value: bytes | None) -> None:
    """A row of table `light` changed."""
    if value is None:
        store.delete_light(int(key))


def delete_group(broker: Deleter, name: str, known: bool, clean_offsets: bool) -> None:
    """Forget the row of a group and, if asked, its offsets. `known`: it has a row."""
    broker.deleting.finish("group", name)
    first: Rows = [("group", name, json.dumps({"groupName": name}).encode()[:-1] + b"," + DELETED + b"}")]
    last: Rows = [("group", name, None)]
    if not clean_offsets:
        if known:
            broker.put_rows(last)
        return
    topics = broker.offsets.topics_of(name)
    parts = _rest_of_group(broker, name, topics, int(broker.cursors.next_row()[1]))
    if max(len(topics), min(len(broker.cursors.by_id), len(broker.topics.topics))) >= SLICED_MIN:
        broker.deleting.begin("group", [name], first, chain(parts, [last]))
        return
    rest = [row for rows in parts for row in rows]
    if known or rest:
        broker.put_rows(first + rest + last if rest else last)


def _rest_of_group(broker: Deleter, name: str, topics: Sequence[str], first_id: int) -> Iterator[Rows]:
    """What goes with a group, in slices; cursors from `first_id` on were made meanwhile and stay."""
    yield from broker.offsets.drop(zip(topics, repeat(name)))
    for cursors in _of_pop_group(broker, POP_GROUP + name):
        yield from _end_all(broker, [cursor for cursor in cursors if cursor.id < first_id])
    modes = broker.tables.rows(REQUEST_MODES)
    yield from _parts([(REQUEST_MODES, key, None) for key in modes if key.endswith(f"@{name}")])


def _of_pop_group(broker: Deleter, group: str) -> Iterator[list[Cursor]]:
    """The group's cursors: among all cursors, or by every queue's name, whichever are fewer. In slices, some of them empty."""
    cursors, topics = broker.cursors, broker.topics.topics
    if len(cursors.by_id) <= len(topics):
        ids = list(cursors.by_id)
        for first in range(0, len(ids), ROWS_STEP):
            found = [cursors.by_id.get(cursor_id) for cursor_id in ids[first : first + ROWS_STEP]]
            yield [cursor for cursor in found if cursor is not None and cursor.group == group]
        return
    names_ = list(topics)
    for first in range(0, len(names_), ROWS_STEP):
        some = [topics[name] for name in names_[first : first + ROWS_STEP] if name in topics]
        found = [
            cursors.find(f"{topic.name}/{queue}", group) for topic in some for queue in range(topic.config.read_queues)
        ]
        yield [cursor for cursor in found if cursor is not None]


def _end_all(broker: Deleter, cursors: Sequence[Cursor]) -> Iterator[Rows]:
    for first in range(0, len(cursors), ROWS_STEP):
        yield _end(broker, cursors[first : first + ROWS_STEP])
    if not cursors:
        yield []


def _end(broker: Deleter, cursors: Sequence[Cursor]) -> Rows:
    alive = [cursor for cursor in cursors if broker.cursors.by_id.get(cursor.id) is cursor]
    for cursor in alive:
        broker.cursors.delete(cursor)
    return [("cursor", str(cursor.id), None) for cursor in alive]


def decides(table: str, key: str, value: bytes | None) -> bool:
    """Whether that row alone makes a start finish the deletion of its topic or group."""
    if value is None:
        return False
    return (table == "topic" and b'"deleting":' in value) or (table == "group" and value.endswith(DELETED + b"}"))


def unfinished(tables: Tables, queues_of: Callable[[str], list[int]], max_offset: Callable[[str, int], int]) -> Rows:
    """What is left of deletions that a crash cut short, as rows to write at start."""
    rows: Rows = []
    gone_topics: dict[str, TopicConfig] = {}
    for name, data in tables.rows("topic").items():
        if not decides("topic", name, data):
            continue
        config = TopicConfig.from_bytes(name, data)
        gone_topics[name] = config
        for retry in config.deleting or ():
            row = tables.rows("topic").get(retry)
            if row is not None:
                other = gone_topics[retry] = TopicConfig.from_bytes(retry, row)
                if not other.deleted:
                    other.deleted = True
                    other.first_offsets = {str(queue): max_offset(retry, queue) for queue in queues_of(retry)}
    gone_groups = {name for name, data in tables.rows("group").items() if decides("group", name, data)}
    if not gone_topics and not gone_groups:
        return rows
    for table in (*OFFSET_TABLES, REQUEST_MODES):
        for key in tables.rows(table):
            topic, _, group = key.partition("@")
            if topic in gone_topics or group in gone_groups:
                rows.append((table, key, None))
    for key, data in tables.rows("cursor").items():
        if key != "next":
            queue, group, _ = json.loads(data)
            of_pop = group.startswith(POP_GROUP)
            if of_pop and (queue.rpartition("/")[0] in gone_topics or group[len(POP_GROUP) :] in gone_groups):
                rows.append(("cursor", key, None))
    for config in gone_topics.values():
        config.deleting = None
        rows.append(("topic", config.name, config.to_bytes()))
    return rows + [("group", name, None) for name in gone_groups]
