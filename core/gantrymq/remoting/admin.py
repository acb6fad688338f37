"""Requests of tools: topics, consumer groups, statistics, runtime information."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.broker.topics import TopicConfig
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting import headers
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.constants import VERSION, RequestCode
from gantrymq.remoting.headers import parse
from gantrymq.remoting.offset_requests import first_message, readable_topic

if TYPE_CHECKING:
    from gantrymq.broker.broker import Broker
    from gantrymq.remoting.broker_door import BrokerDoor
    from gantrymq.remoting.codec import Command

ATTRIBUTES_MAX: Final = 32
ATTRIBUTE_CHARS_MAX: Final = 256
"""Attributes of a topic, and the length of one's name or value."""

ATTRIBUTE_VALUES: Final[dict[str, tuple[str, ...]]] = {
    "message.type": ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"),
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE", "COMPACTION"),
    "flush": ("sync", "async"),
}
"""Attributes that are understood, with the values that are kept as promised."""

NOT_YET: Final[dict[int, str]] = {
    RequestCode.CONSUMER_SEND_MSG_BACK: "CONSUMER_SEND_MSG_BACK (36): this broker does not support delayed retries yet; "
    "the message stays uncommitted, so consume it again",
    RequestCode.POP_MESSAGE: "POP_MESSAGE (200050): this broker does not support pop consumers yet; use a pull or push consumer",
}
"""Refusals that say more than a number: these codes come with a later version."""


class _Update(msgspec.Struct, rename="camel"):
    """Group of GroupHeader requests."""

    group_name: str
    clean_offset: bool = False


class _ConsumeStats(msgspec.Struct, rename="camel"):
    consumer_group: str
    topic: str | None = None


class _Group(msgspec.Struct):
    group: str


def create_topic(door: BrokerDoor, command: Command) -> None:
    """UPDATE_AND_CREATE_TOPIC."""
    header = parse(command.fields, headers.CreateTopicHeader)
    broker = door.shared.broker
    name = header.topic
    if name in names.ROCKETMQ_SYSTEM_TOPICS - {"BenchmarkTest"}:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"The topic[{name}] is conflict with system topic.")
    if not 0 <= header.perm <= 7:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"perm {header.perm}: allowed are sums of 4 (read), 2 (write), 1")
    old = broker.topics.get(name) if not names.is_own_system_topic(name) else None
    attributes = dict(old.config.attributes) if old is not None else {}
    change_attributes(attributes, header.attributes or "")
    broker.topics.create(
        TopicConfig(
            name, header.read_queue_nums, header.write_queue_nums, header.perm, header.topic_sys_flag or 0,
            header.order, attributes,
        )
    )  # fmt: skip
    door.connection.respond(command)


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


def delete_topic(door: BrokerDoor, command: Command) -> None:
    """DELETE_TOPIC_IN_BROKER: an unknown topic is deleted already."""
    name = parse(command.fields, headers.TopicHeader).topic
    if names.is_own_system_topic(name):
        raise GantryError(ErrorCode.NO_PERMISSION, f"topic {name} belongs to the broker itself")
    if name in names.ROCKETMQ_SYSTEM_TOPICS - {"BenchmarkTest"}:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"The topic[{name}] is conflict with system topic.")
    door.shared.broker.delete_topic(name)
    door.connection.respond(command)


def topic_body(config: TopicConfig) -> bodies.TopicConfigBody:
    """A topic's configuration as RocketMQ writes it."""
    return bodies.TopicConfigBody(
        config.name, config.read_queues, config.write_queues, config.perm, "SINGLE_TAG", config.sys_flag, config.order,
        config.attributes,
    )  # fmt: skip


def topic_table(broker: Broker, started_ms: int) -> bodies.TopicConfigTable:
    """All topics with the version that nameservers compare."""
    table = {config.name: topic_body(config) for config in broker.topics.configs()}
    return bodies.TopicConfigTable(table, bodies.DataVersion(0, started_ms, broker.topics.version))


def all_topics(door: BrokerDoor, command: Command) -> None:
    """GET_ALL_TOPIC_CONFIG."""
    door.connection.respond(command, body=bodies.encode(topic_table(door.shared.broker, door.shared.started_ms)))


def get_topic(door: BrokerDoor, command: Command) -> None:
    """GET_TOPIC_CONFIG; TopicConfigAndQueueMapping without a mapping."""
    topic = readable_topic(door.shared.broker, parse(command.fields, headers.TopicHeader).topic)
    door.connection.respond(command, body=bodies.encode(topic_body(topic.config)))


def topic_stats(door: BrokerDoor, command: Command) -> None:
    """GET_TOPIC_STATS_INFO: both ends of every queue and the time of the newest record."""
    broker = door.shared.broker
    topic = readable_topic(broker, parse(command.fields, headers.TopicHeader).topic)
    entries = []
    for queue_id in range(max(topic.config.write_queues, topic.config.read_queues)):
        low, high = broker.min_offset(topic.name, queue_id), broker.store.max_offset(topic.name, queue_id)
        last = first_message(broker, topic.name, queue_id, high - 1) if high > low else None
        offset = bodies.TopicOffset(low, high, last.store_ms if last is not None else 0)
        entries.append((bodies.QueueName(topic.name, broker.config.name, queue_id), offset))
    door.connection.respond(command, body=bodies.topic_stats(entries))


def consume_stats(door: BrokerDoor, command: Command) -> None:
    """GET_CONSUME_STATS: how far a group is behind, per queue."""
    header = parse(command.fields, _ConsumeStats)
    broker = door.shared.broker
    group = door.shared.clients.groups.get(header.consumer_group)
    entries = []
    for config in broker.topics.configs():
        topic = config.name
        committed = broker.offsets.all_of(header.consumer_group, topic)
        if header.topic not in (None, "", topic) or not (committed or (group and topic in group.subscriptions)):
            continue
        for queue_id in range(config.read_queues):
            offset = committed.get(queue_id, 0)
            last = first_message(broker, topic, queue_id, offset - 1) if offset else None
            lag = bodies.ConsumeOffset(
                broker.store.max_offset(topic, queue_id), offset, offset, last.store_ms if last is not None else 0
            )
            entries.append((bodies.QueueName(topic, broker.config.name, queue_id), lag))
    door.connection.respond(command, body=bodies.consume_stats(entries))


def system_topics(door: BrokerDoor, command: Command) -> None:
    """GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
    body = bodies.TopicList(sorted(names.ROCKETMQ_SYSTEM_TOPICS))
    door.connection.respond(command, body=bodies.encode(body))


def topic_groups(door: BrokerDoor, command: Command) -> None:
    """QUERY_TOPIC_CONSUME_BY_WHO: groups online with the topic, and groups with offsets of it."""
    name = parse(command.fields, headers.TopicHeader).topic
    shared = door.shared
    found = {group for group, data in shared.clients.groups.items() if name in data.subscriptions}
    found.update(shared.broker.offsets.groups_of(name))
    door.connection.respond(command, body=bodies.encode({"groupList": sorted(found)}))


def update_group(door: BrokerDoor, command: Command) -> None:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
    door.shared.groups.set(bodies.decode(command.body, bodies.GroupConfig))
    door.connection.respond(command)


def all_groups(door: BrokerDoor, command: Command) -> None:
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    door.connection.respond(command, body=bodies.encode(door.shared.groups.table()))


def get_group(door: BrokerDoor, command: Command) -> None:
    """GET_SUBSCRIPTIONGROUP_CONFIG."""
    name = parse(command.fields, _Group).group
    config = door.shared.groups.get(name)
    if config is None:
        raise GantryError(ErrorCode.NOT_FOUND, f"No group in this broker. group: {name[:255]}")
    door.connection.respond(command, body=bodies.encode(config))


def delete_group(door: BrokerDoor, command: Command) -> None:
    """DELETE_SUBSCRIPTIONGROUP."""
    header = parse(command.fields, _Update)
    door.shared.groups.delete(header.group_name, header.clean_offset)
    door.connection.respond(command)


def runtime_info(door: BrokerDoor, command: Command) -> None:
    """GET_BROKER_RUNTIME_INFO: the entries that tools need to print a broker, and what is known of the
    store."""
    shared = door.shared
    store = shared.broker.store
    now_ms = shared.broker.clock.now_ms()
    rates = "0.0 0.0 0.0"
    table = {
        "brokerVersionDesc": "V5_3_3", "brokerVersion": str(VERSION), "brokerActive": "true",
        "bootTimestamp": str(shared.started_ms), "runtime": f"[ {(now_ms - shared.started_ms) // 1000} seconds ]",
        "commitLogMinOffset": str(store.log_min_position), "commitLogMaxOffset": str(store.written_position),
        "dispatchMaxBuffer": "0", "flushedPosition": str(store.flushed_position), "dispatchBehindBytes": "0",
        "putTps": rates, "getTotalTps": rates, "getTransferedTps": rates, "getFoundTps": rates, "getMissTps": rates,
        "sendThreadPoolQueueSize": "0", "sendThreadPoolQueueCapacity": "10000", "pullThreadPoolQueueSize": "0",
        "pullThreadPoolQueueCapacity": "100000", "sendThreadPoolQueueHeadWaitTimeMills": "0",
        "pullThreadPoolQueueHeadWaitTimeMills": "0", "pageCacheLockTimeMills": "0", "commitLogDiskRatio": "0.0",
        "msgPutTotalTodayNow": "0", "msgPutTotalTodayMorning": "0", "msgPutTotalYesterdayMorning": "0",
        "msgGetTotalTodayNow": "0", "msgGetTotalTodayMorning": "0", "msgGetTotalYesterdayMorning": "0",
        "earliestMessageTimeStamp": "-1", "timerReadBehind": "0", "timerOffsetBehind": "0", "timerCongestNum": "0",
        "timerEnqueueTps": "0.0", "timerDequeueTps": "0.0", "pullWaiting": str(shared.pulls.waiting),
    }  # fmt: skip
    door.connection.respond(command, body=bodies.encode(bodies.KVTable(table)))


HANDLERS: Final[dict[int, Callable[[BrokerDoor, Command], None]]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: create_topic,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
    RequestCode.GET_ALL_TOPIC_CONFIG: all_topics,
    RequestCode.GET_TOPIC_CONFIG: get_topic,
    RequestCode.GET_TOPIC_STATS_INFO: topic_stats,
    RequestCode.GET_CONSUME_STATS: consume_stats,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: system_topics,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: topic_groups,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: update_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: all_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: get_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
    RequestCode.GET_BROKER_RUNTIME_INFO: runtime_info,
}
