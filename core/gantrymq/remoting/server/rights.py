"""What each request needs of who sends it: one row per request code of clients and tools.

A row gives (actions, resource) pairs, all of which are needed; `sub|get` is any one of them. What gateways, brokers and the server itself
say to each other has no row: there it is the connection that is trusted (`guard.py`). A code without a row is the administrator's. What stands in a
body is read with the shape that the request's handler reads: what only the handler understood would be asked for no right. Which message a
request names by its place is known when that was read: then its handler asks (`Reply.check`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from gantrymq.model.groups import GroupConfig
from gantrymq.model.names import DLQ_PREFIX, LMQ_PREFIX, RETRY_PREFIX
from gantrymq.model.properties import MULTI_DISPATCH
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting import overview_codes as overview
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.server.pop.modes import AssignmentRequest, RequestMode
from gantrymq.remoting.server.pop.wire import BatchAckBody

T = TypeVar("T")

Needs = Iterable[tuple[str, str]]

EVERYBODY: Final = ""
"""A resource that every user has."""

UNGUESSED_CHARS_MIN: Final = 36
"""Of a group's name with a UUID in it."""

TOPIC_FIELDS: Final = ("topic", "b")
"""`b` in the short headers of sends."""
GROUP_FIELDS: Final = ("consumerGroup", "group", "groupName", "srcGroup")

_LIGHT: Final = re.compile(rf"{LMQ_PREFIX}[^,\x01\x02]*")
_MARK: Final = MULTI_DISPATCH.encode()


def topic_need(actions: str, topic: str) -> tuple[str, str]:
    """A consumer's retry and dead letter topics are its group's."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            return "sub", f"group:{topic.removeprefix(prefix)}"
    return actions, f"topic:{topic}"


def _topic(actions: str, *names: str) -> Callable[[Command], Needs]:
    """On the topics in these fields."""

    def needs(command: Command) -> Needs:
        for name in _named(command, names or TOPIC_FIELDS):
            yield topic_need(actions, name)

    return needs


def _group(actions: str) -> Callable[[Command], Needs]:
    def needs(command: Command) -> Needs:
        for name in _named(command, GROUP_FIELDS):
            yield actions, f"group:{name}"

    return needs


def _both(topic_actions: str, group_actions: str) -> Callable[[Command], Needs]:
    def needs(command: Command) -> Needs:
        for name in _named(command, TOPIC_FIELDS):
            yield topic_need(topic_actions, name)
        for name in _named(command, GROUP_FIELDS):
            yield group_actions, f"group:{name}"

    return needs


def _cluster(actions: str) -> Callable[[Command], Needs]:
    def needs(_command: Command) -> Needs:
        yield actions, "cluster:"

    return needs


def _nothing(_command: Command) -> Needs:
    return ()


def _named(command: Command, names: tuple[str, ...]) -> list[str]:
    """What each of these fields says: a handler reads one of them, and who writes another name beside it needs both. Where there is none, an
    empty name: a right on every name has it, then."""
    return [command.fields[name] for name in names if command.fields.get(name)] or [""]


def _body(command: Command, shape: type[T]) -> T | None:
    """What the handler reads; None for what it refuses, with its own text."""
    try:
        return bodies.decode(command.body, shape)
    except bodies.BodyError:
        return None


def names_light_queues(command: Command) -> bool:
    """A send whose messages may go into light queues that their sender names."""
    fields = command.fields
    text = fields.get("i") or fields.get("properties") or ""
    return MULTI_DISPATCH in text or (command.code in _MANY and _MARK in command.body)


def _send(command: Command) -> Needs:
    """The topic, and each light queue that is named beside it."""
    yield from _topic("pub")(command)
    if names_light_queues(command):
        fields = command.fields
        texts = [fields.get("i") or "", fields.get("properties") or "", command.body.decode("utf-8", "replace")]
        for name in dict.fromkeys(_LIGHT.findall("\x02".join(texts))):
            yield "pub", f"topic:{name}"


def _heartbeat(command: Command) -> Needs:
    """Groups and topics of the consumers that it names; producers are asked when they send."""
    beat = _body(command, bodies.Heartbeat)
    for consumer in beat.consumer_data_set if beat is not None else ():
        yield "sub", f"group:{consumer.group_name}"
        for wanted in consumer.subscription_data_set:
            yield topic_need("sub", wanted.topic)


def _client_check(command: Command) -> Needs:
    check = _body(command, bodies.CheckClient)
    if check is not None:
        yield "sub", f"group:{check.group}"
        if check.subscription_data is not None:
            yield topic_need("sub", check.subscription_data.topic)


def _unregister(command: Command) -> Needs:
    group = command.fields.get("consumerGroup")
    return (("sub", f"group:{group}"),) if group else ()


def _locks(command: Command) -> Needs:
    asked = _body(command, bodies.LockRequest)
    if asked is not None:
        yield "sub", f"group:{asked.consumer_group}"
        for queue in asked.mq_set:
            yield topic_need("sub", queue.topic)


def _acks(command: Command) -> Needs:
    body = _body(command, BatchAckBody)
    for ack in (body.acks or ()) if body is not None else ():
        yield "sub", f"group:{ack.group}"
        yield topic_need("sub", ack.topic)


def _assignment(command: Command) -> Needs:
    asked = _body(command, AssignmentRequest)
    if asked is not None:
        yield "sub", f"group:{asked.consumer_group}"
        yield topic_need("sub", asked.topic)


def _mode(command: Command) -> Needs:
    asked = _body(command, RequestMode)
    if asked is not None:
        yield "update", f"group:{asked.consumer_group}"


def _transaction(command: Command) -> Needs:
    """Older clients name no topic; the half message's own is asked for when it was found."""
    topic = command.fields.get("topic")
    return (("pub", f"topic:{topic}"),) if topic else ()


def _own(command: Command) -> Needs:
    """Whoever knows how names of groups begin that cannot be guessed lists what is his; all others look at the cluster."""
    return () if len(command.fields.get("prefix", "")) >= UNGUESSED_CHARS_MIN else (("get", "cluster:"),)


def _topic_configs(command: Command) -> Needs:
    body = _body(command, bodies.TopicConfigList)
    for config in body.topic_config_list if body is not None else ():
        yield "create|update", f"topic:{config.topic_name}"


def _group_configs(command: Command) -> Needs:
    body = _body(command, bodies.GroupConfigList)
    for config in body.group_config_list if body is not None else ():
        yield "create|update", f"group:{config.group_name}"


def _config(command: Command) -> Needs:
    config = _body(command, GroupConfig)
    if config is not None:
        yield "create|update", f"group:{config.group_name}"


def _clone(command: Command) -> Needs:
    yield "sub|get", f"group:{command.fields.get('srcGroup', '')}"
    yield "sub", f"group:{command.fields.get('destGroup', '')}"
    topic = command.fields.get("topic")
    if topic:
        yield topic_need("sub", topic)


_READ: Final = "sub|get"

_MANY: Final = frozenset(
    {int(Code.SEND_BATCH_MESSAGE), overview.SEND_HALF_ROWS, overview.SEND_ROWS_ONCE, overview.SEND_BLOCK}
)
"""Sends whose messages have their properties in the body."""

_RIGHTS: Final[Mapping[int, Callable[[Command], Needs]]] = {
    Code.SEND_MESSAGE: _send, Code.SEND_MESSAGE_V2: _send, Code.SEND_BATCH_MESSAGE: _send,
    Code.SEND_REPLY_MESSAGE: _send, Code.SEND_REPLY_MESSAGE_V2: _send, Code.RECALL_MESSAGE: _topic("pub"),
    Code.END_TRANSACTION: _transaction,
    overview.SEND_HALF_ROWS: _send, overview.SEND_ROWS_ONCE: _send, overview.SEND_BLOCK: _send, overview.LIST_OWN_TRANSACTIONS: _own,
    Code.CONSUMER_SEND_MSG_BACK: _group("sub"),
    Code.PULL_MESSAGE: _both("sub", "sub"), Code.LITE_PULL_MESSAGE: _both("sub", "sub"),
    Code.QUERY_MESSAGE: _topic(_READ), Code.VIEW_MESSAGE_BY_ID: _cluster("get"),
    Code.QUERY_CONSUMER_OFFSET: _both(_READ, _READ), Code.UPDATE_CONSUMER_OFFSET: _both("sub|update", "sub|update"),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _topic("pub|sub|get"), Code.GET_MAX_OFFSET: _topic("pub|sub|get"),
    Code.GET_MIN_OFFSET: _topic("pub|sub|get"), Code.GET_EARLIEST_MSG_STORETIME: _topic("pub|sub|get"),
    Code.HEART_BEAT: _heartbeat, Code.UNREGISTER_CLIENT: _unregister, Code.CHECK_CLIENT_CONFIG: _client_check,
    Code.GET_CONSUMER_LIST_BY_GROUP: _group(_READ),
    Code.LOCK_BATCH_MQ: _locks, Code.UNLOCK_BATCH_MQ: _locks,
    Code.GET_KV_CONFIG: _nothing, Code.GET_ROUTEINFO_BY_TOPIC: _topic("pub|sub|get|create"),
    Code.QUERY_ASSIGNMENT: _assignment, Code.POP_MESSAGE: _both("sub", "sub"), Code.ACK_MESSAGE: _both("sub", "sub"),
    Code.BATCH_ACK_MESSAGE: _acks, Code.PEEK_MESSAGE: _both("sub", "sub"), Code.CHANGE_MESSAGE_INVISIBLETIME: _both("sub", "sub"),
    Code.NOTIFICATION: _both("sub", "sub"), Code.POLLING_INFO: _both("sub", "sub"), Code.POP_ROLLBACK: _group("sub"),
    # Tools: topics and groups.
    Code.UPDATE_AND_CREATE_TOPIC: _topic("create|update"), Code.UPDATE_AND_CREATE_STATIC_TOPIC: _topic("create|update"),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _topic_configs,
    Code.DELETE_TOPIC_IN_BROKER: _topic("delete"), Code.GET_TOPIC_CONFIG: _topic("get"),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _config,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _group_configs,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _group("get"), Code.DELETE_SUBSCRIPTIONGROUP: _group("delete"),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _cluster("list|get"), Code.CLEAN_UNUSED_TOPIC: _cluster("update"),
    Code.SET_MESSAGE_REQUEST_MODE: _mode,
    # Tools: clients and progress.
    Code.GET_TOPIC_STATS_INFO: _topic(_READ), Code.GET_CONSUMER_CONNECTION_LIST: _group("get"),
    Code.GET_PRODUCER_CONNECTION_LIST: _cluster("get"), Code.GET_ALL_PRODUCER_INFO: _cluster("get"),
    Code.GET_CONSUME_STATS: _group(_READ), Code.INVOKE_BROKER_TO_RESET_OFFSET: _both("update", "update"),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _group("get"), Code.QUERY_TOPIC_CONSUME_BY_WHO: _topic("get"),
    Code.QUERY_TOPICS_BY_CONSUMER: _group("get"), Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _both("get", "get"),
    Code.QUERY_CONSUME_TIME_SPAN: _both("get", "get"), Code.GET_CONSUMER_RUNNING_INFO: _group("get"),
    Code.CONSUME_MESSAGE_DIRECTLY: _group("update"), Code.QUERY_CORRECTION_OFFSET: _topic("get"), Code.CLONE_GROUP_OFFSET: _clone,
    # Tools: the broker.
    Code.UPDATE_BROKER_CONFIG: _cluster("update"), Code.GET_BROKER_CONFIG: _cluster("get"),
    Code.GET_BROKER_RUNTIME_INFO: _cluster("get"), Code.VIEW_BROKER_STATS_DATA: _cluster("get"),
    Code.GET_BROKER_CONSUME_STATS: _cluster("get"), Code.CLEAN_EXPIRED_CONSUMEQUEUE: _cluster("update"),
    Code.DELETE_EXPIRED_COMMITLOG: _cluster("update"), Code.QUERY_CONSUME_QUEUE: _topic("get"),
    Code.RESUME_CHECK_HALF_MESSAGE: _cluster("update"),
    overview.LIST_TRANSACTIONS: _cluster("get"), overview.OVERVIEW: _cluster("get"), overview.DRAIN: _cluster("update"),
    overview.GROUP_WISHES: _group("get"), overview.TOPIC_LIST: _cluster("list|get"), overview.GROUP_LIST: _cluster("list|get"),
    overview.PRUNE_TOPICS: _cluster("delete"), overview.DAMAGE_LIST: _cluster("get"), overview.DAMAGE_SKIP: _cluster("update"),
}  # fmt: skip

RIGHTS: Final = {**_RIGHTS, **{code & 0xFFFF: right for code, right in _RIGHTS.items() if code > 0xFFFF}}
"""By request code, those of pops also as they fit into a binary header. Users and policies (`admin/accounts.py`) are the administrator's alone."""
