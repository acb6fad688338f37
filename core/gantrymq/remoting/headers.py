"""Request and response headers: typed views of a command's string fields (RocketMQ's *RequestHeader classes).

Field values travel as text; `parse` converts and checks them in one C call, `fields_of` goes the other way.
What a class leaves without a default is mandatory (`*` in docs/formats/remoting.md); unknown fields are
ignored.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

H = TypeVar("H", bound=msgspec.Struct)


class HeaderError(ValueError):
    """A mandatory field is missing or a value has the wrong type; the text names the field."""


def parse(fields: dict[str, str], header: type[H]) -> H:
    """The fields as an instance of `header`; raises `HeaderError`. Numbers and booleans come as text."""
    try:
        return msgspec.convert(fields, header, strict=False)
    except msgspec.ValidationError as error:
        text = str(error).replace("Object missing required field", "missing field").replace("`$.", "`")
        raise HeaderError(f"request header: {text}") from None


def fields_of(header: msgspec.Struct) -> dict[str, str]:
    """Text fields for the wire; None is left out, booleans are Java's `true` and `false`."""
    items: dict[str, object] = msgspec.to_builtins(header)
    return {
        name: value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in items.items()
        if value is not None
    }


class SendHeaderV2(
    msgspec.Struct,
    rename={
        "producer_group": "a", "topic": "b", "default_topic": "c", "default_queues": "d", "queue_id": "e",
        "sys_flag": "f", "born_ms": "g", "flag": "h", "properties": "i", "reconsume_times": "j",
        "unit_mode": "k", "reconsume_times_max": "l", "batch": "m", "broker_name": "n",
    },
    gc=False,
):  # fmt: skip
    """SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: one letter per field to keep the frame short."""

    topic: str
    queue_id: int
    sys_flag: int
    born_ms: int
    flag: int
    properties: str | None = None
    producer_group: str = ""
    default_topic: str = ""
    default_queues: int = 4
    reconsume_times: int | None = None
    unit_mode: str = "false"
    reconsume_times_max: int | None = None
    batch: str = "false"
    broker_name: str | None = None


SEND_NAMES: Final[dict[str, str]] = {
    "producerGroup": "a", "topic": "b", "defaultTopic": "c", "defaultTopicQueueNums": "d", "queueId": "e",
    "sysFlag": "f", "bornTimestamp": "g", "flag": "h", "properties": "i", "reconsumeTimes": "j",
    "unitMode": "k", "maxReconsumeTimes": "l", "batch": "m", "bname": "n",
}  # fmt: skip
"""Long names of the fields of a send, and its letters."""


def parse_send(fields: dict[str, str]) -> SendHeaderV2:
    """SEND_MESSAGE of old clients: the same fields under their long names. Raises `HeaderError`, which names them so."""
    try:
        return parse({SEND_NAMES[name]: value for name, value in fields.items() if name in SEND_NAMES}, SendHeaderV2)
    except HeaderError as error:
        letters = {letter: name for name, letter in SEND_NAMES.items()}
        raise HeaderError(re.sub("`([a-n])`", lambda found: f"`{letters[found[1]]}`", str(error))) from None


class SendBackHeader(msgspec.Struct, rename="camel"):
    """CONSUMER_SEND_MSG_BACK. `offset`: physical, of the record that could not be consumed. `delay_level`: 0 lets the broker
    choose by the number of retries, negative sends to the dead letters at once."""

    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: str = "false"
    max_reconsume_times: int | None = None


class SendResponse(msgspec.Struct, rename="camel"):
    """Answer to a send. `msg_id`: offset message ids (32 or 56 hexadecimal digits), comma-joined for a
    batch."""

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None


class PullHeader(msgspec.Struct, rename="camel"):
    """PULL_MESSAGE and LITE_PULL_MESSAGE; `sys_flag` bits are in `model.sysflag` (PULL_*)."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_millis: int
    sub_version: int = 0
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: int | None = None


class PopHeader(msgspec.Struct, rename="camel", gc=False):
    """POP_MESSAGE. `queue_id` -1: any queue. Times in ms; `init_mode` 0: a new group begins at the first message, 1: at the last."""

    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int
    invisible_time: int
    poll_time: int
    born_time: int = 0
    init_mode: int = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = False
    attempt_id: str | None = None


class PullResponse(msgspec.Struct, rename="camel"):
    """Offsets in every pull answer, whatever its code."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int


class QueryMessageHeader(msgspec.Struct, rename="camel"):
    """QUERY_MESSAGE. Times: milliseconds since the epoch. `unique`: "true" asks for UNIQ_KEY instead of
    KEYS."""

    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    unique: str | None = msgspec.field(default=None, name="_UNIQUE_KEY_QUERY")


class ViewMessageHeader(msgspec.Struct, rename="camel"):
    """VIEW_MESSAGE_BY_ID: a physical offset in the commit log."""

    offset: int
    topic: str | None = None


class UnregisterClientHeader(msgspec.Struct, rename="camel"):
    """UNREGISTER_CLIENT."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroupHeader(msgspec.Struct, rename="camel"):
    """GET_CONSUMER_LIST_BY_GROUP, NOTIFY_CONSUMER_IDS_CHANGED, GET_CONSUMER_CONNECTION_LIST."""

    consumer_group: str


class QueryOffsetHeader(msgspec.Struct, rename="camel"):
    """QUERY_CONSUMER_OFFSET. `set_zero_if_not_found` false: QUERY_NOT_FOUND for a group without an offset."""

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool = True


class UpdateOffsetHeader(msgspec.Struct, rename="camel"):
    """UPDATE_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


class OffsetResponse(msgspec.Struct, rename="camel"):
    """Answer with one offset."""

    offset: int


class SearchOffsetHeader(msgspec.Struct, rename="camel"):
    """SEARCH_OFFSET_BY_TIMESTAMP. `boundary_type`: `lower` (default: first message at or after) or
    `upper`."""

    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None


class QueueHeader(msgspec.Struct, rename="camel"):
    """GET_MAX_OFFSET, GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: int


class CreateTopicHeader(msgspec.Struct, rename="camel"):
    """UPDATE_AND_CREATE_TOPIC. `perm`: sum of `constants.Perm`. `attributes`: `+k=v,-k`."""

    topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    default_topic: str = "TBW102"
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int | None = None
    order: bool = False
    attributes: str | None = None


class TopicHeader(msgspec.Struct, rename="camel"):
    """DELETE_TOPIC_IN_BROKER, GET_TOPIC_CONFIG, GET_TOPIC_STATS_INFO, QUERY_TOPIC_CONSUME_BY_WHO."""

    topic: str


class RouteHeader(msgspec.Struct, rename="camel"):
    """GET_ROUTEINFO_BY_TOPIC."""

    topic: str
    accept_standard_json_only: bool | None = None


class RegisterBrokerHeader(msgspec.Struct, rename="camel"):
    """REGISTER_BROKER. `compressed`: the body is a zlib stream. `body_crc32`: CRC-32 of the body as sent; 0:
    unchecked."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: int
    heartbeat_timeout_millis: int | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: int = 0


class UnregisterBrokerHeader(msgspec.Struct, rename="camel"):
    """UNREGISTER_BROKER."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


class DataVersionHeader(msgspec.Struct, rename="camel"):
    """QUERY_DATA_VERSION; the body holds the broker's DataVersion."""

    broker_addr: str
    cluster_name: str
    broker_name: str
    broker_id: int


class BrokerHeartbeatHeader(msgspec.Struct, rename="camel"):
    """BROKER_HEARTBEAT; the timeout's name is misspelled on the wire."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: int | None = None
    heartbeat_timeout_mills: int | None = None


class MemberGroupHeader(msgspec.Struct, rename="camel"):
    """GET_BROKER_MEMBER_GROUP."""

    cluster_name: str
    broker_name: str


class KVHeader(msgspec.Struct):
    """PUT_KV_CONFIG, GET_KV_CONFIG, DELETE_KV_CONFIG, GET_KVLIST_BY_NAMESPACE (namespace alone)."""

    namespace: str
    key: str = ""
    value: str = ""


class BrokerNameHeader(msgspec.Struct, rename="camel"):
    """WIPE_WRITE_PERM_OF_BROKER, ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str


class ClusterHeader(msgspec.Struct):
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str


class DeleteTopicHeader(msgspec.Struct, rename="camel"):
    """DELETE_TOPIC_IN_NAMESRV, REGISTER_TOPIC_IN_NAMESRV."""

    topic: str
    cluster_name: str | None = None


class AckHeader(msgspec.Struct, rename="camel", gc=False):
    """ACK_MESSAGE. `extra_info`: the receipt (POP_CK)."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int


class EndTransactionHeader(msgspec.Struct, rename="camel", gc=False):
    """END_TRANSACTION. `commit_or_rollback`: sysFlag's transaction bits; 0 says nothing yet."""

    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: int
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None
    topic: str | None = None
