"""Requests of tools about topics: create, change, delete, list; what RocketMQ's tools call cleaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.broker.topics import TopicConfig
from gantrymq.model import message_types, names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting import headers
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.headers import parse
from gantrymq.remoting.registration.topic_bodies import topic_body
from gantrymq.remoting.server.pulling.offsets import readable_topic

if TYPE_CHECKING:
    from gantrymq.broker.broker import Broker
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.administration import Administration
    from gantrymq.remoting.server.jobs import Steps
    from gantrymq.remoting.server.reply import Reply

TOPICS_PER_REQUEST_MAX: Final = 10_000
"""Topics of one UPDATE_AND_CREATE_TOPIC_LIST."""

TOPICS_PER_STEP: Final = 200
"""Topics rendered in one go: some 400 us."""

BAD_REQUEST: Final = frozenset({ErrorCode.NAME_INVALID, ErrorCode.ILLEGAL_ARGUMENT})
"""What RocketMQ answers with INVALID_PARAMETER."""

ATTRIBUTES_MAX: Final = 32
ATTRIBUTE_CHARS_MAX: Final = 256
"""Attributes of a topic, and the length of one's name or value."""

ATTRIBUTE_VALUES: Final[dict[str, tuple[str, ...]]] = {
    message_types.ATTRIBUTE: message_types.TYPES,
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE", "COMPACTION"),
    "flush": ("sync", "async"),
}
"""Attributes that are understood, with the values that are kept as promised."""


def create_topic(command: Command, reply: Reply, services: Administration) -> None:
    """UPDATE_AND_CREATE_TOPIC; answered when it is as safe as an acknowledged message, and nameservers know of it."""
    header = parse(command.fields, headers.CreateTopicHeader)
    broker = services.broker
    try:
        config = _wanted(
            broker, header.topic, (header.read_queue_nums, header.write_queue_nums), header.perm,
            header.topic_sys_flag or 0, header.order,
        )  # fmt: skip
        change_attributes(config.attributes, header.attributes or "")
        _create(broker, [config])
    except GantryError as error:
        _refuse(command, reply, error)
        return
    reply.answer_when_known(command)


def create_topics(command: Command, reply: Reply, services: Administration) -> None:
    """UPDATE_AND_CREATE_TOPIC_LIST: all or, if one is refused, none."""
    wanted = bodies.decode(command.body, bodies.TopicConfigList).topic_config_list
    broker = services.broker
    try:
        if len(wanted) > TOPICS_PER_REQUEST_MAX:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"a request names at most {TOPICS_PER_REQUEST_MAX} topics")
        configs = []
        for body in wanted:
            queues = (body.read_queue_nums, body.write_queue_nums)
            config = _wanted(broker, body.topic_name, queues, body.perm, body.topic_sys_flag, body.order)
            for name, value in (body.attributes or {}).items():
                change_attributes(config.attributes, name if name.startswith("-") else f"+{name.lstrip('+')}={value}")
            configs.append(config)
        _create(broker, configs)
    except GantryError as error:
        _refuse(command, reply, error)
        return
    reply.answer_when_known(command)


def _is_rocketmq_own(broker: Broker, name: str) -> bool:
    """A topic that tools must neither change nor delete (TopicValidator.isSystemTopic)."""
    return (name in names.ROCKETMQ_SYSTEM_TOPICS and name != "BenchmarkTest") or name in broker.topics.given


def _wanted(broker: Broker, name: str, queues: tuple[int, int], perm: int, sys_flag: int, order: bool) -> TopicConfig:
    names.check_stored_topic(name)
    if _is_rocketmq_own(broker, name):
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"The topic[{name}] is conflict with system topic.")
    if not 0 <= perm <= 7:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"perm {perm}: allowed are sums of 4 (read), 2 (write), 1")
    old = broker.topics.get(name) if not names.is_own_system_topic(name) else None
    attributes = dict(old.config.attributes) if old is not None else {}
    return TopicConfig(name, *queues, perm, sys_flag, order, attributes)


def _create(broker: Broker, configs: list[TopicConfig]) -> None:
    for config in configs:
        broker.topics.check(config)
    for config in configs:
        old = broker.topics.topics.get(config.name)
        if old is None or not same(old.config, config):
            broker.topics.create(config)


def same(old: TopicConfig, new: TopicConfig) -> bool:
    """A request that changes nothing, as a tool repeats it, makes no record."""
    return (old.read_queues, old.write_queues, old.perm, old.sys_flag, old.order, old.attributes, old.on_use) == (
        new.read_queues, new.write_queues, new.perm, new.sys_flag, new.order, new.attributes, new.on_use,
    )  # fmt: skip


def _refuse(command: Command, reply: Reply, error: GantryError) -> None:
    if error.code not in BAD_REQUEST:
        raise error
    reply.refuse(command, ResponseCode.INVALID_PARAMETER, error.text)


def change_attributes(attributes: dict[str, str], text: str) -> None:
    """Apply `+k=v,-k`; raises ILLEGAL_ARGUMENT for what is not understood, so that nobody relies on it."""
    for item in text.split(",") if text else ():
        key, mark, value = item[1:].partition("=")
        if item[:1] == "-" and not mark:
            attributes.pop(key, None)
            continue
        allowed = ATTRIBUTE_VALUES.get(key)
        if item[:1] != "+" or not mark or (allowed is not None and value not in allowed):
            known = f"; {key} may be {', '.join(allowed)}" if allowed is not None else ""
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT, f"attribute {item[:80]!r} is not supported: write +key=value or -key{known}"
            )
        if allowed is None and not key.startswith("gantry."):
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT, f"attribute {key[:80]!r} is not known; known: {', '.join(ATTRIBUTE_VALUES)}"
            )
        if len(attributes) >= ATTRIBUTES_MAX or max(len(key), len(value)) > ATTRIBUTE_CHARS_MAX:
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT,
                f"a topic has at most {ATTRIBUTES_MAX} attributes of {ATTRIBUTE_CHARS_MAX} characters",
            )
        attributes[key] = value


def create_static_topic(command: Command, reply: Reply, services: Administration) -> None:
    """UPDATE_AND_CREATE_STATIC_TOPIC: a topic whose logical queues move between brokers. Queues stay where they are here."""
    reply.refuse(
        command,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        "static topics (logical queues that move between brokers) do not exist here; create an ordinary topic (updateTopic)",
    )


def delete_topic(command: Command, reply: Reply, services: Administration) -> None:
    """DELETE_TOPIC_IN_BROKER: an unknown topic is deleted already; answered as `create_topic`."""
    name = parse(command.fields, headers.TopicHeader).topic
    if names.is_own_system_topic(name):
        raise GantryError(ErrorCode.NO_PERMISSION, f"topic {name} belongs to the broker itself")
    if not name.strip():
        reply.refuse(command, ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        return
    if _is_rocketmq_own(services.broker, name):
        reply.refuse(command, ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")
        return
    services.broker.delete_topic(name)
    reply.answer_when_known(command)


def all_topics(command: Command, reply: Reply, services: Administration) -> None:
    """GET_ALL_TOPIC_CONFIG."""
    services.jobs.run(command, reply, _all_topics(services))


def _all_topics(services: Administration) -> Steps:
    broker = services.broker
    version = bodies.DataVersion(0, services.identity.started_ms, broker.topics.version)
    configs = broker.topics.configs()
    parts: list[bytes] = []
    for first in range(0, len(configs), TOPICS_PER_STEP):
        yield None
        some = {config.name: topic_body(config) for config in configs[first : first + TOPICS_PER_STEP]}
        parts.append(bodies.encode(some)[1:-1])
    yield None
    return b'{"dataVersion":%b,"topicConfigTable":{%b}}' % (bodies.encode(version), b",".join(parts))


def get_topic(command: Command, reply: Reply, services: Administration) -> None:
    """GET_TOPIC_CONFIG; TopicConfigAndQueueMapping without a mapping."""
    name = parse(command.fields, headers.TopicHeader).topic
    topic = services.broker.topics.topics.get(name)
    if topic is None:
        raise GantryError(ErrorCode.TOPIC_NOT_FOUND, f"No topic in this broker. topic: {name[:255]}")
    topic = readable_topic(services.broker.topics, name)
    reply.respond(command, body=bodies.encode(topic_body(topic.config)))


def system_topics(command: Command, reply: Reply, services: Administration) -> None:
    """GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
    config = services.broker.config
    found = {*names.ROCKETMQ_SYSTEM_TOPICS, config.cluster, config.name, f"{config.cluster}_REPLY_TOPIC"}
    reply.respond(command, body=bodies.encode(bodies.TopicList(sorted(found), services.identity.address)))


def clean(command: Command, reply: Reply, services: Administration) -> None:
    """CLEAN_EXPIRED_CONSUMEQUEUE, CLEAN_UNUSED_TOPIC, DELETE_EXPIRED_COMMITLOG: retention does all of it by itself, all the time."""
    reply.respond(command)


HANDLERS: Final = {
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
