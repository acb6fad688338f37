"""Requests of tools that look into one queue: its units, and how far behind a group is in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.administration.figures import QUEUES_PER_STEP, store_ms
from gantrymq.administration.reading import patiently
from gantrymq.administration.topics import readable_topic
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.dispatch import Handler
from gantrymq.remoting.headers import parse

if TYPE_CHECKING:
    from gantrymq.administration.reading import Reading, Steps
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.remoting.server.tools import Tools
    from gantrymq.store.queues.consume_queue import Unit

UNITS_MAX: Final = 4096
"""Units in one answer to QUERY_CONSUME_QUEUE: 400 KiB of JSON."""


class _Units(msgspec.Struct, rename="camel"):
    topic: str
    queue_id: int
    index: int
    count: int
    consumer_group: str | None = None


class _Spans(msgspec.Struct):
    topic: str
    group: str


def units(command: Command, reply: Reply, services: Tools) -> None:
    """QUERY_CONSUME_QUEUE."""
    header = parse(command.fields, _Units)
    topic = readable_topic(services.topics.table, header.topic)
    if not 0 <= header.queue_id < max(topic.config.read_queues, topic.config.write_queues):
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"{header.queue_id}@{topic.name} is not exist!")
    low, high = (
        services.reading.min_offset(topic.name, header.queue_id),
        services.store.visible_end(topic.name, header.queue_id),
    )
    body: dict[str, object] = {"maxQueueIndex": high, "minQueueIndex": low}
    if header.consumer_group:
        found = services.clients.subscription(header.consumer_group, topic.name)
        if found is None:
            body["filterData"] = f"{header.consumer_group}@{topic.name} is not online!"
        else:
            body["subscriptionData"] = found
            body["filterData"] = "null"
    count = max(0, min(header.count, UNITS_MAX))
    if not low <= header.index < high:
        remark = f"Index {header.index} of {header.queue_id}@{topic.name} is not exist!"
        reply.respond(command, ResponseCode.SUCCESS, remark, None, bodies.encode(body))
        return

    def answer(found: list[Unit]) -> None:
        body["queueData"] = [
            {"physicOffset": position, "physicSize": size, "tagsCode": code, "eval": False}
            for position, size, code in found
        ]
        reply.respond(command, body=bodies.encode(body))

    place = topic.name, header.queue_id, header.index, count
    reply.read(command, lambda reading: reading.store.units(*place), answer)


def time_spans(command: Command, reply: Reply, services: Tools) -> None:
    """QUERY_CONSUME_TIME_SPAN: oldest and newest record of each queue, and the last one that the group consumed."""
    header = parse(command.fields, _Spans)
    readable_topic(services.topics.table, header.topic)
    services.jobs.run(command, reply, _time_spans(services, header))


def _time_spans(services: Tools, header: _Spans) -> Steps[bytes]:
    name = header.topic
    spans = []
    for queue in range(services.topics.table.topics[name].config.write_queues):
        if queue % QUEUES_PER_STEP == QUEUES_PER_STEP - 1:
            yield None

        def find(reading: Reading, queue: int = queue) -> bodies.QueueSpan:
            low, high = reading.min_offset(name, queue), reading.store.visible_end(name, queue)
            oldest, newest = store_ms(reading, name, queue, low), store_ms(reading, name, queue, high - 1)
            done = reading.committed(header.group, name, queue)
            consumed = store_ms(reading, name, queue, done - 1) if done > 0 else oldest
            delay = 0
            if max(done, low) < high:
                delay = max(0, reading.now_ms() - store_ms(reading, name, queue, max(done, low)))
            place = bodies.QueueName(name, services.name, queue)
            return bodies.QueueSpan(place, oldest, newest, consumed, delay)

        span = yield from patiently(services.reading, find)
        spans.append(span)
    return bodies.encode({"consumeTimeSpanSet": spans})


HANDLERS: Final[dict[int, Handler[Reply, Tools]]] = {
    RequestCode.QUERY_CONSUME_QUEUE: units,
    RequestCode.QUERY_CONSUME_TIME_SPAN: time_spans,
}
