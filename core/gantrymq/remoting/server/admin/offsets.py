"""Requests of tools about consumer offsets: reset by time or to an offset, clone, compare, list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.administration.offsets import client_targets, reset_targets
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.constants import Language, RequestCode, ResponseCode
from gantrymq.remoting.dispatch import Handler
from gantrymq.remoting.headers import parse

if TYPE_CHECKING:
    from gantrymq.administration.reading import Steps
    from gantrymq.broker.topics import Topic
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.remoting.server.tools import Tools

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


def reset(command: Command, reply: Reply, services: Tools) -> None:
    """INVOKE_BROKER_TO_RESET_OFFSET: the broker sets the offsets and tells consumers at their next pull; with
    useServerSideResetOffset=false the consumers that are online are told to do it (RESET_CONSUMER_CLIENT_OFFSET)."""
    header = parse(command.fields, _Reset)
    topic = services.offsets.topic(header.topic)
    if services.settings.server_side_reset:
        _reset_here(command, reply, services, header, topic)
    else:
        _reset_at_clients(command, reply, services, header, topic)


def _reset_here(command: Command, reply: Reply, services: Tools, header: _Reset, topic: Topic) -> None:
    services.offsets.check_group(header.group)

    def reset_all(found: dict[int, int]) -> None:
        services.offsets.reset(header.group, topic.name, found)
        reply.answer_when_stored(command, _reset_body(services, topic.name, found))

    reply.read(
        command,
        lambda reading: reset_targets(reading, topic, header.timestamp, header.queue_id, header.offset),
        reset_all,
    )


def _reset_body(services: Tools, topic: str, found: dict[int, int]) -> bytes:
    broker_name = services.name
    return bodies.queue_offsets([(bodies.QueueName(topic, broker_name, queue), n) for queue, n in found.items()])


def _reset_at_clients(command: Command, reply: Reply, services: Tools, header: _Reset, topic: Topic) -> None:
    def push(found: dict[int, int] | None) -> None:
        if found is None:
            text = f"THe consumer group <{header.group[:255]}> not exist"
            reply.refuse(command, ResponseCode.SYSTEM_ERROR, text)
        else:
            _push_reset(command, reply, services, header, found)

    reply.read(
        command,
        lambda reading: client_targets(reading, header.group, topic, header.timestamp, header.is_force),
        push,
    )


def _push_reset(command: Command, reply: Reply, services: Tools, header: _Reset, found: dict[int, int]) -> None:
    name, group = header.topic, header.group
    members = services.clients.groups.get(group)
    if members is None:
        text = f"Consumer not online, so can not reset offset, Group: {group[:255]} Topic: {name} Timestamp: {header.timestamp}"
        reply.refuse(command, ResponseCode.CONSUMER_NOT_ONLINE, text)
        return
    body = _reset_body(services, name, found)
    queues = [
        {"topic": name, "brokerName": services.name, "queueId": queue, "offset": offset}
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


def clone(command: Command, reply: Reply, services: Tools) -> None:
    """CLONE_GROUP_OFFSET: another group gets the offsets of one, of a topic or of all."""
    header = parse(command.fields, _Clone)
    services.offsets.clone(header.src_group, header.dest_group, header.topic or "", header.offline)
    reply.answer_when_stored(command)


def correction(command: Command, reply: Reply, services: Tools) -> None:
    """QUERY_CORRECTION_OFFSET: the lowest offsets that any group has, where they are below those of one group."""
    header = parse(command.fields, _Correction)
    left_out = (header.filter_groups or "").split(",")
    lowest = services.offsets.correction(header.compare_group, header.topic, left_out)
    reply.respond(command, body=bodies.encode({"correctionOffsets": lowest}))


def all_offsets(command: Command, reply: Reply, services: Tools) -> None:
    """GET_ALL_CONSUMER_OFFSET."""
    services.jobs.run(command, reply, _all_offsets(services))


def _all_offsets(services: Tools) -> Steps[bytes]:
    offsets = services.committed
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


HANDLERS: Final[dict[int, Handler[Reply, Tools]]] = {
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset,
    RequestCode.CLONE_GROUP_OFFSET: clone,
    RequestCode.QUERY_CORRECTION_OFFSET: correction,
    RequestCode.GET_ALL_CONSUMER_OFFSET: all_offsets,
}
