"""Requests of tools about topics: create, change, delete, list; what RocketMQ's tools call cleaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.administration.topics import TOPICS_PER_REQUEST_MAX, readable_topic
from gantrymq.broker.topics import TopicConfig
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting import headers
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.dispatch import Handler
from gantrymq.remoting.headers import parse
from gantrymq.remoting.registration.topic_bodies import topic_body

if TYPE_CHECKING:
    from gantrymq.administration.reading import Steps
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.remoting.server.tools import Tools

TOPICS_PER_STEP: Final = 200
"""Topics rendered in one go: some 400 us."""

BAD_REQUEST: Final = frozenset({ErrorCode.NAME_INVALID, ErrorCode.ILLEGAL_ARGUMENT})
"""What RocketMQ answers with INVALID_PARAMETER."""


def create_topic(command: Command, reply: Reply, services: Tools) -> None:
    """UPDATE_AND_CREATE_TOPIC; answered when it is as safe as an acknowledged message, and nameservers know of it."""
    header = parse(command.fields, headers.CreateTopicHeader)
    queues = (header.read_queue_nums, header.write_queue_nums)
    changes = [header.attributes] if header.attributes else []
    flag = header.topic_sys_flag or 0
    try:
        config = services.topics.config(header.topic, queues, header.perm, flag, header.order, changes)
        services.topics.create([config])
    except GantryError as error:
        _refuse(command, reply, error)
        return
    reply.answer_when_known(command)


def create_topics(command: Command, reply: Reply, services: Tools) -> None:
    """UPDATE_AND_CREATE_TOPIC_LIST: all or, if one is refused, none."""
    wanted = bodies.decode(command.body, bodies.TopicConfigList).topic_config_list
    try:
        if len(wanted) > TOPICS_PER_REQUEST_MAX:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"a request names at most {TOPICS_PER_REQUEST_MAX} topics")
        services.topics.create([_config(services, body) for body in wanted])
    except GantryError as error:
        _refuse(command, reply, error)
        return
    reply.answer_when_known(command)


def _config(services: Tools, body: bodies.TopicConfigBody) -> TopicConfig:
    changes = [
        name if name.startswith("-") else f"+{name.lstrip('+')}={value}"
        for name, value in (body.attributes or {}).items()
    ]
    queues = (body.read_queue_nums, body.write_queue_nums)
    return services.topics.config(body.topic_name, queues, body.perm, body.topic_sys_flag, body.order, changes)


def _refuse(command: Command, reply: Reply, error: GantryError) -> None:
    if error.code not in BAD_REQUEST:
        raise error
    reply.refuse(command, ResponseCode.INVALID_PARAMETER, error.text)


def create_static_topic(command: Command, reply: Reply, services: Tools) -> None:
    """UPDATE_AND_CREATE_STATIC_TOPIC: a topic whose logical queues move between brokers. Queues stay where they are here."""
    reply.refuse(
        command,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        "static topics (logical queues that move between brokers) do not exist here; create an ordinary topic (updateTopic)",
    )


def delete_topic(command: Command, reply: Reply, services: Tools) -> None:
    """DELETE_TOPIC_IN_BROKER: an unknown topic is deleted already; answered as `create_topic`."""
    try:
        services.topics.delete(parse(command.fields, headers.TopicHeader).topic)
    except GantryError as error:
        _refuse(command, reply, error)
        return
    reply.answer_when_known(command)


def all_topics(command: Command, reply: Reply, services: Tools) -> None:
    """GET_ALL_TOPIC_CONFIG."""
    services.jobs.run(command, reply, _all_topics(services))


def _all_topics(services: Tools) -> Steps[bytes]:
    table = services.topics.table
    version = bodies.DataVersion(0, services.identity.started_ms, table.version)
    configs = table.configs()
    parts: list[bytes] = []
    for first in range(0, len(configs), TOPICS_PER_STEP):
        yield None
        some = {config.name: topic_body(config) for config in configs[first : first + TOPICS_PER_STEP]}
        parts.append(bodies.encode(some)[1:-1])
    yield None
    return b'{"dataVersion":%b,"topicConfigTable":{%b}}' % (bodies.encode(version), b",".join(parts))


def get_topic(command: Command, reply: Reply, services: Tools) -> None:
    """GET_TOPIC_CONFIG; TopicConfigAndQueueMapping without a mapping."""
    name = parse(command.fields, headers.TopicHeader).topic
    topic = services.topics.table.topics.get(name)
    if topic is None:
        raise GantryError(ErrorCode.TOPIC_NOT_FOUND, f"No topic in this broker. topic: {name[:255]}")
    topic = readable_topic(services.topics.table, name)
    reply.respond(command, body=bodies.encode(topic_body(topic.config)))


def system_topics(command: Command, reply: Reply, services: Tools) -> None:
    """GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
    found = {*names.ROCKETMQ_SYSTEM_TOPICS, services.cluster, services.name, f"{services.cluster}_REPLY_TOPIC"}
    reply.respond(command, body=bodies.encode(bodies.TopicList(sorted(found), services.identity.address)))


def clean(command: Command, reply: Reply, services: Tools) -> None:
    """CLEAN_EXPIRED_CONSUMEQUEUE, CLEAN_UNUSED_TOPIC, DELETE_EXPIRED_COMMITLOG: retention does all of it by itself, all the time."""
    reply.respond(command)


HANDLERS: Final[dict[int, Handler[Reply, Tools]]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: create_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: create_topics,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: create_static_topic,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
    RequestCode.GET_ALL_TOPIC_CONFIG: all_topics,
    RequestCode.GET_TOPIC_CONFIG: get_topic,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: system_topics,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: clean,
    RequestCode.CLEAN_UNUSED_TOPIC: clean,
    RequestCode.DELETE_EXPIRED_COMMITLOG: clean,
}
