"""Requests of tools for numbers of topics and groups: ends of queues, lag, rates."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.broker.rocketmq import stats
from gantrymq.model import names
from gantrymq.remoting import headers
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.headers import parse
from gantrymq.remoting.server.admin.queues import QUEUES_PER_STEP, store_ms
from gantrymq.remoting.server.jobs import patiently
from gantrymq.remoting.server.pulling.offsets import readable_topic

if TYPE_CHECKING:
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.administration import Administration
    from gantrymq.remoting.server.jobs import Steps
    from gantrymq.remoting.server.reads import Reading
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.store.cold import Cold

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


def topic_stats(command: Command, reply: Reply, services: Administration) -> None:
    """GET_TOPIC_STATS_INFO: both ends of every queue and the time of the newest record."""
    topic = readable_topic(services.broker.topics, parse(command.fields, headers.TopicHeader).topic)
    services.jobs.run(command, reply, _topic_stats(services, topic.name))


def _topic_stats(services: Administration, name: str) -> Steps:
    broker = services.broker
    config = broker.topics.topics[name].config
    entries = []
    for queue in range(max(config.write_queues, config.read_queues)):
        if queue % QUEUES_PER_STEP == QUEUES_PER_STEP - 1:
            yield None

        def find(reading: Reading, queue: int = queue) -> bodies.TopicOffset:
            low, high = reading.min_offset(name, queue), reading.store.max_offset(name, queue)
            last = store_ms(reading, name, queue, high - 1) if high > low else 0
            return bodies.TopicOffset(low, high, max(last, 0))

        offset = yield from patiently(services.reading, find)
        entries.append((bodies.QueueName(name, broker.config.name, queue), offset))
    return bodies.topic_stats(entries)


def consume_stats(command: Command, reply: Reply, services: Administration) -> None:
    """GET_CONSUME_STATS: how far a group is behind, per queue."""
    header = parse(command.fields, _ConsumeStats)
    broker, group = services.broker, header.consumer_group
    if header.topic_list:
        topics = header.topic_list.split(";")[:TOPICS_MAX]
    elif header.topic and header.topic.strip():
        topics = _subscribed(services, group, [header.topic])
    else:
        topics = _subscribed(services, group, sorted(broker.offsets.topics_of(group)))
    services.jobs.run(command, reply, _consume_stats(services, group, topics))


def _subscribed(services: Administration, group: str, topics: list[str]) -> list[str]:
    """Without topics that the group, being online, does not subscribe to any more."""
    found = services.clients.groups.get(group)
    if found is None or not found.subscriptions:
        return topics
    return [topic for topic in topics if topic in found.subscriptions]


def _consume_stats(services: Administration, group: str, topics: list[str]) -> Steps:
    entries = []
    rate = 0.0
    for topic in topics:
        found = yield from _lags(services, group, topic)
        entries += found
        rate += services.broker.stats.rate(stats.GROUP_GET_NUMS, f"{topic}@{group}")
    return bodies.consume_stats(entries, rate)


_Lags = list[tuple[bodies.QueueName, bodies.ConsumeOffset]]


def _lags(services: Administration, group: str, name: str) -> Generator[Cold | None, None, _Lags]:
    broker = services.broker
    topic = broker.topics.topics.get(name)
    if topic is None or topic.system:
        return []
    entries: _Lags = []
    for queue in range(topic.config.read_queues):
        if queue % QUEUES_PER_STEP == QUEUES_PER_STEP - 1:
            yield None

        def find(reading: Reading, queue: int = queue) -> bodies.ConsumeOffset:
            done = max(reading.committed(group, name, queue), 0)
            last = store_ms(reading, name, queue, done - 1) if done else 0
            handed = reading.handed(group, name, queue)
            return bodies.ConsumeOffset(reading.store.max_offset(name, queue), done, handed, max(last, 0))

        lag = yield from patiently(services.reading, find)
        entries.append((bodies.QueueName(name, broker.config.name, queue), lag))
    return entries


def broker_consume_stats(command: Command, reply: Reply, services: Administration) -> None:
    """GET_BROKER_CONSUME_STATS: lag of every group in every topic."""
    services.jobs.run(command, reply, _broker_consume_stats(services, parse(command.fields, _Broker).is_order))


def _broker_consume_stats(services: Administration, only_order: bool) -> Steps:
    broker = services.broker
    groups: list[bytes] = []
    behind = in_flight = 0
    for group in sorted(services.groups.configs):
        yield None
        parts = []
        for name in _subscribed(services, group, sorted(broker.offsets.topics_of(group))):
            topic = broker.topics.topics.get(name)
            if topic is None or names.is_own_system_topic(name) or (only_order and not topic.config.order):
                continue
            entries = yield from _lags(services, group, name)
            behind += sum([lag.broker_offset - lag.consumer_offset for _, lag in entries])
            in_flight += sum([lag.pull_offset - lag.consumer_offset for _, lag in entries])
            parts.append(bodies.consume_stats(entries, broker.stats.rate(stats.GROUP_GET_NUMS, f"{name}@{group}")))
        groups.append(b"{%b:[%b]}" % (bodies.encode(group), b",".join(parts)))
    return b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}' % (
        bodies.encode(services.identity.address),
        b",".join(groups),
        behind,
        in_flight,
    )


def stats_data(command: Command, reply: Reply, services: Administration) -> None:
    """VIEW_BROKER_STATS_DATA: a counter over the last minute, hour and day."""
    header = parse(command.fields, _Data)
    found = services.broker.stats.snapshots(header.stats_name, header.stats_key)
    if found is None:
        text = f"The stats <{header.stats_name[:80]}> <{header.stats_key[:255]}> not exist"
        reply.refuse(command, ResponseCode.SYSTEM_ERROR, text)
        return
    body = {
        name: {"sum": total, "tps": rate, "avgpt": average}
        for name, (total, rate, average) in zip(("statsMinute", "statsHour", "statsDay"), found, strict=True)
    }
    reply.respond(command, body=bodies.encode(body))


HANDLERS: Final = {
    RequestCode.GET_TOPIC_STATS_INFO: topic_stats,
    RequestCode.GET_CONSUME_STATS: consume_stats,
    RequestCode.GET_BROKER_CONSUME_STATS: broker_consume_stats,
    RequestCode.VIEW_BROKER_STATS_DATA: stats_data,
}
