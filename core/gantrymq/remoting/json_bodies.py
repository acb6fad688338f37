"""JSON bodies: their shapes, and RocketMQ's dialect of JSON, read and written.

fastjson writes maps with integer keys as `{0:"..."}` and maps with object keys as `{{"topic":...}:{...}}`. We
read both and the standard forms; we write standard JSON (keys in quotes, which Java reads), and the dialect
where an old client expects it. Shapes follow RocketMQ's classes of the same name; unknown keys are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from gantrymq.model import dialect
from gantrymq.model.dialect import DialectError, read_json
from gantrymq.model.groups import GroupConfig

T = TypeVar("T")

BodyError = DialectError
"""The body is not the JSON that the request needs; the text says where."""


decode = dialect.decode
encode = msgspec.json.encode


def dialect_map(items: dict[int, str]) -> msgspec.Raw:
    """`{0:"a",1:"b"}` as fastjson writes a map with integer keys."""
    return msgspec.Raw(b"{%b}" % b",".join([b"%d:%b" % (key, encode(value)) for key, value in items.items()]))


class DataVersion(msgspec.Struct, rename="camel", frozen=True):
    """Version of a table: changed if any part differs. `timestamp`: milliseconds since the epoch."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


class TopicConfigBody(msgspec.Struct, rename="camel"):
    """A topic as brokers register it and config/topics.json holds it."""

    topic_name: str = ""
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] | None = None


class TopicConfigTable(msgspec.Struct, rename="camel"):
    """TopicConfigSerializeWrapper: body of GET_ALL_TOPIC_CONFIG and part of REGISTER_BROKER."""

    topic_config_table: dict[str, TopicConfigBody] = {}
    data_version: DataVersion = DataVersion()


class TopicConfigList(msgspec.Struct, rename="camel"):
    """CreateTopicListRequestBody."""

    topic_config_list: list[TopicConfigBody] = []


class GroupConfigList(msgspec.Struct, rename="camel"):
    """SubscriptionGroupList."""

    group_config_list: list[GroupConfig] = []


class RegisterBody(msgspec.Struct, rename="camel"):
    """Body of REGISTER_BROKER."""

    topic_config_serialize_wrapper: TopicConfigTable
    filter_server_list: list[str] | None = None


class QueueData(msgspec.Struct, rename="camel"):
    """Queues of a topic on one broker group. `perm`: sum of `constants.Perm`."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class BrokerData(msgspec.Struct, rename="camel"):
    """One broker group: addresses by broker id, 0 being the master."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]
    enable_acting_master: bool = False


class DialectBrokerData(msgspec.Struct, rename="camel"):
    """`BrokerData` with the addresses as `dialect_map` wrote them."""

    cluster: str
    broker_name: str
    broker_addrs: msgspec.Raw
    enable_acting_master: bool = False


class TopicRoute(msgspec.Struct, rename="camel", omit_defaults=True):
    """TopicRouteData: answer to GET_ROUTEINFO_BY_TOPIC."""

    broker_datas: list[BrokerData] | list[DialectBrokerData]
    queue_datas: list[QueueData]
    filter_server_table: dict[str, list[str]]
    order_topic_conf: str | None = None


class ReadTopicRoute(msgspec.Struct, rename="camel"):
    """TopicRouteData as a client reads it."""

    broker_datas: list[BrokerData] = []
    queue_datas: list[QueueData] = []
    order_topic_conf: str | None = None


class ClusterInfo(msgspec.Struct, rename="camel"):
    """Answer to GET_BROKER_CLUSTER_INFO: broker groups by name, their names by cluster."""

    broker_addr_table: dict[str, BrokerData]
    cluster_addr_table: dict[str, list[str]]


class TopicList(msgspec.Struct, rename="camel", omit_defaults=True):
    """Names of topics; `broker_addr` only in lists of system topics."""

    topic_list: list[str]
    broker_addr: str | None = None


class KVTable(msgspec.Struct):
    """Text values by key."""

    table: dict[str, str]


class MemberGroup(msgspec.Struct, rename="camel"):
    """Addresses of one broker group."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]


class MemberGroupBody(msgspec.Struct, rename="camel"):
    """Answer to GET_BROKER_MEMBER_GROUP."""

    broker_member_group: MemberGroup


class QueueName(msgspec.Struct, rename="camel", frozen=True):
    """MessageQueue: one queue of a topic on one broker group."""

    topic: str
    broker_name: str
    queue_id: int


class ProducerData(msgspec.Struct, rename="camel"):
    """A producer group of a heartbeat."""

    group_name: str


class Subscription(msgspec.Struct, rename="camel"):
    """SubscriptionData. `sub_string`: `*`, `A || B`, or an SQL92 expression if `expression_type` is SQL92."""

    topic: str
    sub_string: str | None = "*"
    tags_set: list[str] = []
    code_set: list[int] = []
    sub_version: int = 0
    expression_type: str | None = "TAG"
    class_filter_mode: bool = False


class ConsumerData(msgspec.Struct, rename="camel"):
    """A consumer group of a heartbeat."""

    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[Subscription] = []
    unit_mode: bool = False


class Heartbeat(msgspec.Struct, rename="camel"):
    """Body of HEART_BEAT. `heartbeat_fingerprint` and `without_sub` belong to heartbeat V2, which is not
    announced."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class ConsumerIds(msgspec.Struct, rename="camel"):
    """Answer to GET_CONSUMER_LIST_BY_GROUP."""

    consumer_id_list: list[str]


class LockRequest(msgspec.Struct, rename="camel"):
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumer_group: str
    client_id: str
    mq_set: list[QueueName] = []


class LockAnswer(msgspec.Struct):
    """Answer to LOCK_BATCH_MQ: the queues that the client holds now."""

    lock_ok_mq_set: list[QueueName] = msgspec.field(name="lockOKMQSet")


class CheckClient(msgspec.Struct, rename="camel"):
    """Body of CHECK_CLIENT_CONFIG."""

    client_id: str = ""
    group: str = ""
    subscription_data: Subscription | None = None


class TopicOffset(msgspec.Struct, rename="camel"):
    """Offsets of one queue; the time is the last record's store time or 0."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int


class ConsumeOffset(msgspec.Struct, rename="camel"):
    """OffsetWrapper: a group's place in one queue; the time is the last consumed record's store time or 0."""

    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_timestamp: int


def topic_stats(entries: Sequence[tuple[QueueName, TopicOffset]]) -> bytes:
    """TopicStatsTable: its keys are objects, which only the dialect can write; every reader of this body expects
    that."""
    return b'{"offsetTable":%b}' % _by_queue(entries)


class QueueSpan(msgspec.Struct, rename="camel"):
    """QueueTimeSpan: times in milliseconds since the epoch, -1 where there is no record."""

    message_queue: QueueName
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int


def consume_stats(entries: Sequence[tuple[QueueName, ConsumeOffset]], rate: float = 0.0) -> bytes:
    """ConsumeStats, with keys as `topic_stats`. `rate`: messages a second."""
    return b'{"consumeTps":%b,"offsetTable":%b}' % (encode(rate), _by_queue(entries))


def queue_offsets(entries: Sequence[tuple[QueueName, int]]) -> bytes:
    """ResetOffsetBody, with keys as `topic_stats`."""
    return b'{"offsetTable":%b}' % _by_queue(entries)


def queue_table(body: bytes) -> bytes:
    """`messageQueueTable` of a GetConsumerStatusBody that a client sent, in the dialect. Raises `BodyError`."""
    table = read_json(body)
    found = table.get("messageQueueTable") if isinstance(table, dict) else None
    if not isinstance(found, dict):
        raise BodyError("body has no messageQueueTable")
    entries = []
    for key, offset in found.items():
        queue = decode(key.encode(), QueueName)
        entries.append((queue, int(offset)))
    return _by_queue(entries)


def _by_queue(entries: Sequence[tuple[QueueName, msgspec.Struct | int]]) -> bytes:
    return b"{%b}" % b",".join([encode(queue) + b":" + encode(value) for queue, value in entries])
