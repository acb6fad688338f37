"""Requests of tools for numbers of topics and groups: ends of queues, lag, rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.administration.figures import QUEUES_PER_STEP, QueueLag, store_ms
from gantrymq.administration.reading import patiently
from gantrymq.administration.topics import readable_topic
from gantrymq.model import names
from gantrymq.remoting import headers
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.dispatch import Handler
from gantrymq.remoting.headers import parse

if TYPE_CHECKING:
    from gantrymq.administration.reading import Reading, Steps
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.remoting.server.tools import Tools

TOPICS_MAX: Final = 10_000
"""Topics that one GET_CONSUME_STATS may list."""


class _ConsumeStats(msgspec.Struct, rename="camel"):
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class _Broker(msgspec.Struct, rename="camel"):
    is_order: bool = False


class _Data(msgspec.Struct, rename="camel"):
    stats_name: str
    stats_key: str


def topic_stats(command: Command, reply: Reply, services: Tools) -> None:
    """GET_TOPIC_STATS_INFO: both ends of every queue and the time of the newest record."""
    topic = readable_topic(services.topics.table, parse(command.fields, headers.TopicHeader).topic)
    services.jobs.run(command, reply, _topic_stats(services, topic.name))


def _topic_stats(services: Tools, name: str) -> Steps[bytes]:
    config = services.topics.table.topics[name].config
    entries = []
    for queue in range(max(config.write_queues, config.read_queues)):
        if queue % QUEUES_PER_STEP == QUEUES_PER_STEP - 1:
            yield None

        def find(reading: Reading, queue: int = queue) -> bodies.TopicOffset:
            low, high = reading.min_offset(name, queue), reading.store.visible_end(name, queue)
            last = store_ms(reading, name, queue, high - 1) if high > low else 0
            return bodies.TopicOffset(low, high, max(last, 0))

        offset = yield from patiently(services.reading, find)
        entries.append((bodies.QueueName(name, services.name, queue), offset))
    return bodies.topic_stats(entries)


def consume_stats(command: Command, reply: Reply, services: Tools) -> None:
    """GET_CONSUME_STATS: how far a group is behind, per queue."""
    header = parse(command.fields, _ConsumeStats)
    group = header.consumer_group
    if header.topic_list:
        topics = header.topic_list.split(";")[:TOPICS_MAX]
    elif header.topic and header.topic.strip():
        topics = services.figures.subscribed(group, [header.topic])
    else:
        topics = services.figures.consumed_topics(group)
    services.jobs.run(command, reply, _consume_stats(services, group, topics))


def _consume_stats(services: Tools, group: str, topics: list[str]) -> Steps[bytes]:
    entries = []
    rate = 0.0
    for topic in topics:
        found = yield from services.figures.lags(group, topic)
        entries += _entries(services, topic, found)
        rate += services.figures.rate(group, topic)
    return bodies.consume_stats(entries, rate)


def _entries(services: Tools, topic: str, found: list[QueueLag]) -> list[tuple[bodies.QueueName, bodies.ConsumeOffset]]:
    name = services.name
    return [
        (
            bodies.QueueName(topic, name, lag.queue_id),
            bodies.ConsumeOffset(lag.end, lag.committed, lag.handed, lag.consumed_ms),
        )
        for lag in found
    ]


def broker_consume_stats(command: Command, reply: Reply, services: Tools) -> None:
    """GET_BROKER_CONSUME_STATS: lag of every group in every topic."""
    services.jobs.run(command, reply, _broker_consume_stats(services, parse(command.fields, _Broker).is_order))


def _broker_consume_stats(services: Tools, only_order: bool) -> Steps[bytes]:
    figures, topics = services.figures, services.topics.table.topics
    groups: list[bytes] = []
    behind = in_flight = 0
    for group in sorted(services.groups.configs):
        yield None
        parts = []
        for name in figures.consumed_topics(group):
            topic = topics.get(name)
            if topic is None or names.is_own_system_topic(name) or (only_order and not topic.config.order):
                continue
            found = yield from figures.lags(group, name)
            behind += sum([lag.end - lag.committed for lag in found])
            in_flight += sum([lag.handed - lag.committed for lag in found])
            parts.append(bodies.consume_stats(_entries(services, name, found), figures.rate(group, name)))
        groups.append(b"{%b:[%b]}" % (bodies.encode(group), b",".join(parts)))
    return b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}' % (
        bodies.encode(services.identity.address),
        b",".join(groups),
        behind,
        in_flight,
    )


def stats_data(command: Command, reply: Reply, services: Tools) -> None:
    """VIEW_BROKER_STATS_DATA: a counter over the last minute, hour and day."""
    header = parse(command.fields, _Data)
    found = services.stats.snapshots(header.stats_name, header.stats_key)
    if found is None:
        text = f"The stats <{header.stats_name[:80]}> <{header.stats_key[:255]}> not exist"
        reply.refuse(command, ResponseCode.SYSTEM_ERROR, text)
        return
    body = {
        name: {"sum": total, "tps": rate, "avgpt": average}
        for name, (total, rate, average) in zip(("statsMinute", "statsHour", "statsDay"), found, strict=True)
    }
    reply.respond(command, body=bodies.encode(body))


HANDLERS: Final[dict[int, Handler[Reply, Tools]]] = {
    RequestCode.GET_TOPIC_STATS_INFO: topic_stats,
    RequestCode.GET_CONSUME_STATS: consume_stats,
    RequestCode.GET_BROKER_CONSUME_STATS: broker_consume_stats,
    RequestCode.VIEW_BROKER_STATS_DATA: stats_data,
}
