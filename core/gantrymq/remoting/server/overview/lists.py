"""All topics, and all groups, in one answer: `gantry topic list` and `gantry group list` of 20,000 would else ask 20,000 times."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.broker.rocketmq import stats
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.headers import parse
from gantrymq.remoting.overview_codes import GROUP_LIST, TOPIC_LIST
from gantrymq.remoting.server.jobs import patiently

if TYPE_CHECKING:
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.administration import Administration
    from gantrymq.remoting.server.jobs import Steps
    from gantrymq.remoting.server.reads import Reading
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.store.cold import Cold

WORK_PER_STEP: Final = 120
"""Topics of four queues whose ends are added up in one go: some 500 us."""

ROWS_PER_PART: Final = 200
"""Rows encoded in one go: some 100 us."""

OPENING: Final = 60
"""A topic that nobody has used since the start, and of which nothing is remembered, costs so many times more: its files are looked at."""

OPENED_MAX: Final = 500
"""Such topics in one answer: 0.2 s of processor time, more where the disk is slow. Others have no numbers; the next answer has more."""


class _None(msgspec.Struct):
    pass


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
        yield from patiently(self._reading, lambda reading: reading.store.end_sum(topic))
        return store.known_ends(topic)


def topic_list(command: Command, reply: Reply, services: Administration) -> None:
    """TOPIC_LIST."""
    parse(command.fields, _None)
    services.jobs.run(command, reply, _topic_list(services))


def _topic_list(services: Administration) -> Steps:
    ends = Ends(services.reading)
    rows: list[tuple[str, int, int | None]] = []
    parts: list[bytes] = []
    yield None
    for topic in list(services.broker.topics.topics.values()):
        if topic.system:
            continue
        found = yield from ends.of(topic.name)
        queues = max(topic.config.read_queues, topic.config.write_queues)
        rows.append((topic.name, queues, found[0] - found[1] if found is not None else None))
        if len(rows) >= ROWS_PER_PART:
            parts.append(bodies.encode(rows)[1:-1])
            rows = []
    parts.append(bodies.encode(rows)[1:-1])
    return b'{"topics":[%b]}' % b",".join([part for part in parts if part])


def group_list(command: Command, reply: Reply, services: Administration) -> None:
    """GROUP_LIST."""
    parse(command.fields, _None)
    services.jobs.run(command, reply, _group_list(services))


def _group_list(services: Administration) -> Steps:
    broker = services.broker
    ends = Ends(services.reading)
    rows: list[dict[str, object]] = []
    parts: list[bytes] = []
    yield None
    for group in sorted({*services.groups.configs, *broker.offsets.groups()}):
        row = yield from _group_row(services, group, ends)
        rows.append(row)
        if len(rows) >= ROWS_PER_PART:
            parts.append(bodies.encode(rows)[1:-1])
            rows = []
            yield None
    parts.append(bodies.encode(rows)[1:-1])
    return b'{"groups":[%b]}' % b",".join([part for part in parts if part])


def _group_row(services: Administration, group: str, ends: Ends) -> Generator[Cold | None, None, dict[str, object]]:
    broker = services.broker
    online = services.clients.groups.get(group)
    wanted: Iterable[str] = online.subscriptions if online is not None else ()
    topics = []
    lag, rate = 0, 0.0
    unknown = False
    for name in broker.offsets.topics_of(group):
        topic = broker.topics.topics.get(name)
        if topic is None or topic.system or (wanted and name not in wanted):
            continue
        topics.append(name)
        found = yield from ends.of(name)
        if found is not None:
            lag += max(found[0] - sum(broker.offsets.all_of(group, name).values()), 0)
        else:
            unknown = True
        rate += broker.stats.rate(stats.GROUP_GET_NUMS, f"{name}@{group}")
    members = list(online.consumers) if online is not None else []
    return {
        "group": group, "lag": None if unknown else lag, "rate": rate, "topics": sorted({*topics, *wanted}), "members": members,
    }  # fmt: skip


HANDLERS: Final = {
    TOPIC_LIST: topic_list,
    GROUP_LIST: group_list,
}
