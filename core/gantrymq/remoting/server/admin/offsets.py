"""Requests of tools about consumer offsets: reset by time or to an offset, clone, compare, list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.constants import Language, RequestCode, ResponseCode
from gantrymq.remoting.headers import parse
from gantrymq.remoting.server.pulling.offsets import readable_topic

if TYPE_CHECKING:
    from gantrymq.broker.topics import Topic
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.administration import Administration
    from gantrymq.remoting.server.jobs import Steps
    from gantrymq.remoting.server.reads import Reading
    from gantrymq.remoting.server.reply import Reply

OFFSET_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
"""Java's Long.MAX_VALUE: QUERY_CORRECTION_OFFSET says with it that there is nothing to correct."""

PLACES_PER_STEP: Final = 500
"""Places rendered in one go: some 500 us."""

PUSH_CLIENT_VERSION_MIN: Final = 9
"""Ordinal of V3_0_7_SNAPSHOT: older clients do not understand RESET_CONSUMER_CLIENT_OFFSET."""


class _Reset(msgspec.Struct, rename="camel"):
    group: str
    topic: str
    timestamp: int
    is_force: bool
    queue_id: int = -1
    offset: int | None = None


class _Clone(msgspec.Struct, rename="camel"):
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class _Correction(msgspec.Struct, rename="camel"):
    compare_group: str
    topic: str
    filter_groups: str | None = None


def reset(command: Command, reply: Reply, services: Administration) -> None:
    """INVOKE_BROKER_TO_RESET_OFFSET: the broker sets the offsets and tells consumers at their next pull; with
    useServerSideResetOffset=false the consumers that are online are told to do it (RESET_CONSUMER_CLIENT_OFFSET)."""
    header = parse(command.fields, _Reset)
    broker = services.broker
    topic = readable_topic(broker.topics, header.topic)
    if broker.settings.server_side_reset:
        _reset_here(command, reply, services, header, topic)
    else:
        _reset_at_clients(command, reply, services, header, topic)


def _by_time(reading: Reading, topic: str, queue_id: int, timestamp: int) -> int:
    """First offset stored at or after a time; negative: the end."""
    if timestamp < 0:
        return reading.store.max_offset(topic, queue_id)
    return max(reading.store.offset_by_time(topic, queue_id, timestamp, True), reading.min_offset(topic, queue_id))


def _reset_here(command: Command, reply: Reply, services: Administration, header: _Reset, topic: Topic) -> None:
    broker, name = services.broker, topic.name
    if services.groups.get(header.group) is None:
        text = f"Group {header.group[:255]} does not exist"
        reply.refuse(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        return

    def reset_all(found: dict[int, int]) -> None:
        for queue, offset in found.items():
            if broker.pops.known(header.group, name, queue) is not None:
                broker.pops.reset(header.group, name, queue, offset)
            else:
                broker.reset_offset(header.group, name, queue, offset)
        broker.write_offsets(0)
        reply.answer_when_stored(command, _reset_body(services, name, found))

    reply.read(command, lambda reading: _targets(reading, header, topic), reset_all)


def _targets(reading: Reading, header: _Reset, topic: Topic) -> dict[int, int]:
    """The offset that each queue's is set to."""
    name, queue_id = topic.name, header.queue_id
    if queue_id < 0:
        return {queue: _by_time(reading, name, queue, header.timestamp) for queue in range(topic.config.read_queues)}
    if queue_id >= max(topic.config.read_queues, topic.config.write_queues):
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"topic {name} has no queue {queue_id}")
    if header.offset is None or header.offset == -1:
        return {queue_id: _by_time(reading, name, queue_id, header.timestamp)}
    low, high = reading.min_offset(name, queue_id), reading.store.max_offset(name, queue_id)
    if not low <= header.offset <= high:
        text = f"Target offset {header.offset} not in consume queue range [{low}-{high}]"
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
    return {queue_id: header.offset}


def _reset_body(services: Administration, topic: str, found: dict[int, int]) -> bytes:
    broker_name = services.broker.config.name
    return bodies.queue_offsets([(bodies.QueueName(topic, broker_name, queue), n) for queue, n in found.items()])


def _reset_at_clients(command: Command, reply: Reply, services: Administration, header: _Reset, topic: Topic) -> None:
    name, group = topic.name, header.group

    def find(reading: Reading) -> dict[int, int] | None:
        found = {}
        for queue in range(topic.config.write_queues):
            known = reading.committed(group, name, queue)
            if known < 0:
                return None
            wanted = _by_time(reading, name, queue, header.timestamp)
            found[queue] = wanted if header.is_force or wanted < known else known
        return found

    def push(found: dict[int, int] | None) -> None:
        if found is None:
            reply.refuse(command, ResponseCode.SYSTEM_ERROR, f"THe consumer group <{group[:255]}> not exist")
        else:
            _push_reset(command, reply, services, header, found)

    reply.read(command, find, push)


def _push_reset(
    command: Command, reply: Reply, services: Administration, header: _Reset, found: dict[int, int]
) -> None:
    broker, name, group = services.broker, header.topic, header.group
    members = services.clients.groups.get(group)
    if members is None:
        text = f"Consumer not online, so can not reset offset, Group: {group[:255]} Topic: {name} Timestamp: {header.timestamp}"
        reply.refuse(command, ResponseCode.CONSUMER_NOT_ONLINE, text)
        return
    body = _reset_body(services, name, found)
    queues = [
        {"topic": name, "brokerName": broker.config.name, "queueId": queue, "offset": offset}
        for queue, offset in found.items()
    ]
    fields = {
        "group": group,
        "topic": name,
        "timestamp": str(header.timestamp),
        "isForce": str(header.is_force).lower(),
    }
    for client_id, consumer in members.consumers.items():
        if consumer.version < PUSH_CLIENT_VERSION_MIN:
            text = f"client {client_id[:255]} does not support this feature. version={consumer.version}"
            reply.refuse(command, ResponseCode.SYSTEM_ERROR, text)
            return
        for_client = bodies.encode({"offsetTable": queues}) if consumer.language == Language.CPP else body
        consumer.member.push(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, for_client)
    reply.respond(command, body=body)


def clone(command: Command, reply: Reply, services: Administration) -> None:
    """CLONE_GROUP_OFFSET: another group gets the offsets of one, of a topic or of all."""
    header = parse(command.fields, _Clone)
    names.check_group(header.dest_group)
    broker = services.broker
    source = services.clients.groups.get(header.src_group)
    for topic in [header.topic] if header.topic else broker.offsets.topics_of(header.src_group):
        if topic not in broker.topics.topics or names.is_own_system_topic(topic):
            continue
        if not header.offline and source is not None and source.subscriptions and topic not in source.subscriptions:
            continue  # it stopped consuming the topic: what is left are old offsets
        for queue, offset in broker.offsets.all_of(header.src_group, topic).items():
            broker.commit_offset(header.dest_group, topic, queue, offset)
    broker.write_offsets(0)
    reply.answer_when_stored(command)


def correction(command: Command, reply: Reply, services: Administration) -> None:
    """QUERY_CORRECTION_OFFSET: the lowest offsets that any group has, where they are below those of one group."""
    header = parse(command.fields, _Correction)
    broker = services.broker
    topic = readable_topic(broker.topics, header.topic).name
    left_out = set((header.filter_groups or "").split(","))
    lowest: dict[int, int] = {}
    for group in broker.offsets.groups_of(topic):
        if group in left_out:
            continue
        for queue, offset in broker.offsets.all_of(group, topic).items():
            if offset >= broker.min_offset(topic, queue):
                lowest[queue] = min(offset, lowest.get(queue, OFFSET_MAX))
    for queue, offset in broker.offsets.all_of(header.compare_group, topic).items():
        if lowest.get(queue, OFFSET_MAX) > offset:
            lowest[queue] = OFFSET_MAX
    reply.respond(command, body=bodies.encode({"correctionOffsets": lowest}))


def all_offsets(command: Command, reply: Reply, services: Administration) -> None:
    """GET_ALL_CONSUMER_OFFSET."""
    services.jobs.run(command, reply, _all_offsets(services))


def _all_offsets(services: Administration) -> Steps:
    offsets = services.broker.offsets
    parts: list[bytes] = []
    some: dict[str, dict[int, int]] = {}
    for topic in list(offsets.by_topic()):
        for group in offsets.groups_of(topic):
            some[f"{topic}@{group}"] = offsets.all_of(group, topic)
            if len(some) >= PLACES_PER_STEP:
                parts.append(bodies.encode(some)[1:-1])
                some = {}
                yield None
    parts.append(bodies.encode(some)[1:-1])
    return b'{"offsetTable":{%b}}' % b",".join([part for part in parts if part])


HANDLERS: Final = {
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset,
    RequestCode.CLONE_GROUP_OFFSET: clone,
    RequestCode.QUERY_CORRECTION_OFFSET: correction,
    RequestCode.GET_ALL_CONSUMER_OFFSET: all_offsets,
}
