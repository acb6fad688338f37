"""Who may ask what: one class for every request code, of RocketMQ's and of ours.

Until there are users, only requests of class CLIENT are answered to everybody. The others are answered to this machine and to
`server.trusted_networks` (NO_PERMISSION else). What RocketMQ's clients send by themselves is CLIENT, what tools and people ask is
ADMINISTRATION, what gateways say to brokers is GATEWAY, and how brokers make themselves known and follow each other is BROKER.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from gantrymq.remoting import overview_codes as overview
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.gateway_codes import FIRST_CODE, LAST_CODE, MEMBER_CODES


class RequestClass(Enum):
    """What a request is for."""

    CLIENT = "client"
    ADMINISTRATION = "administration"
    GATEWAY = "gateway"
    BROKER = "broker registration"


_CLIENT: Final = (
    Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2,
    Code.CONSUMER_SEND_MSG_BACK, Code.END_TRANSACTION, Code.RECALL_MESSAGE, Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE,
    Code.QUERY_MESSAGE, Code.VIEW_MESSAGE_BY_ID, Code.QUERY_CONSUMER_OFFSET, Code.UPDATE_CONSUMER_OFFSET,
    Code.SEARCH_OFFSET_BY_TIMESTAMP, Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET, Code.GET_EARLIEST_MSG_STORETIME, Code.HEART_BEAT,
    Code.UNREGISTER_CLIENT, Code.GET_CONSUMER_LIST_BY_GROUP, Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ,
    Code.CHECK_CLIENT_CONFIG, Code.GET_KV_CONFIG, Code.GET_ROUTEINFO_BY_TOPIC, Code.QUERY_ASSIGNMENT, Code.POP_MESSAGE,
    Code.ACK_MESSAGE, Code.BATCH_ACK_MESSAGE, Code.PEEK_MESSAGE, Code.CHANGE_MESSAGE_INVISIBLETIME, Code.NOTIFICATION,
    Code.POLLING_INFO, Code.POP_ROLLBACK,
    overview.SEND_HALF_ROWS, overview.SEND_ROWS_ONCE, overview.SEND_BLOCK, overview.LIST_OWN_TRANSACTIONS,
)  # fmt: skip

_BROKER: Final = (
    Code.REGISTER_BROKER, Code.UNREGISTER_BROKER, Code.REGISTER_TOPIC_IN_NAMESRV, Code.QUERY_DATA_VERSION,
    Code.BROKER_HEARTBEAT, Code.GET_BROKER_MEMBER_GROUP, Code.GET_ALL_TOPIC_CONFIG, Code.GET_ALL_CONSUMER_OFFSET,
    Code.GET_ALL_DELAY_OFFSET, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Code.GET_ALL_MESSAGE_REQUEST_MODE,
    Code.GET_BROKER_EPOCH_CACHE, Code.GET_BROKER_HA_STATUS, Code.RESET_MASTER_FLUSH_OFFSET,
)  # fmt: skip

_ADMINISTRATION: Final = (
    # Topics and groups. Java's producers create none by themselves: `createTopic` is an application's own call.
    Code.UPDATE_AND_CREATE_TOPIC, Code.UPDATE_AND_CREATE_TOPIC_LIST, Code.UPDATE_AND_CREATE_STATIC_TOPIC, Code.DELETE_TOPIC_IN_BROKER,
     Code.GET_TOPIC_CONFIG, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,  Code.GET_SUBSCRIPTIONGROUP_CONFIG,
    Code.DELETE_SUBSCRIPTIONGROUP, Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Code.CLEAN_UNUSED_TOPIC, Code.SET_MESSAGE_REQUEST_MODE,
    # The broker: configuration, figures, files.
    Code.UPDATE_BROKER_CONFIG, Code.GET_BROKER_CONFIG, Code.GET_BROKER_RUNTIME_INFO, Code.VIEW_BROKER_STATS_DATA,
    Code.GET_BROKER_CONSUME_STATS, Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.DELETE_EXPIRED_COMMITLOG, Code.QUERY_CONSUME_QUEUE,
    Code.RESUME_CHECK_HALF_MESSAGE,
    # Clients and progress of others.
    Code.GET_TOPIC_STATS_INFO, Code.GET_CONSUMER_CONNECTION_LIST, Code.GET_PRODUCER_CONNECTION_LIST, Code.GET_ALL_PRODUCER_INFO,
    Code.GET_CONSUME_STATS, Code.INVOKE_BROKER_TO_RESET_OFFSET, Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    Code.QUERY_TOPIC_CONSUME_BY_WHO, Code.QUERY_TOPICS_BY_CONSUMER, Code.QUERY_SUBSCRIPTION_BY_CONSUMER, Code.QUERY_CONSUME_TIME_SPAN,
    Code.GET_CONSUMER_RUNNING_INFO, Code.CONSUME_MESSAGE_DIRECTLY, Code.QUERY_CORRECTION_OFFSET, Code.CLONE_GROUP_OFFSET,
    # At the nameserver.
    Code.PUT_KV_CONFIG,  Code.DELETE_KV_CONFIG, Code.GET_KVLIST_BY_NAMESPACE, Code.GET_BROKER_CLUSTER_INFO,
    Code.WIPE_WRITE_PERM_OF_BROKER, Code.ADD_WRITE_PERM_OF_BROKER, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Code.GET_TOPICS_BY_CLUSTER,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, Code.GET_UNIT_TOPIC_LIST, Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, Code.DELETE_TOPIC_IN_NAMESRV,
    Code.UPDATE_NAMESRV_CONFIG, Code.GET_NAMESRV_CONFIG,
    # Ours.
    overview.LIST_TRANSACTIONS, overview.OVERVIEW, overview.DRAIN, overview.GROUP_WISHES, overview.TOPIC_LIST, overview.GROUP_LIST, overview.PRUNE_TOPICS,
    overview.DAMAGE_LIST, overview.DAMAGE_SKIP, overview.EXPLAIN, overview.AUDIT, overview.AUTH_STATUS,
    overview.ADD_TOKEN, overview.LIST_TOKENS, overview.DELETE_TOKEN,
    # Users and policies.
    Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER, Code.AUTH_DELETE_USER, Code.AUTH_GET_USER, Code.AUTH_LIST_USER,
    Code.AUTH_CREATE_ACL, Code.AUTH_UPDATE_ACL, Code.AUTH_DELETE_ACL, Code.AUTH_GET_ACL, Code.AUTH_LIST_ACL,
)  # fmt: skip

_TO_CLIENTS: Final = (
    Code.CHECK_TRANSACTION_STATE, Code.NOTIFY_CONSUMER_IDS_CHANGED, Code.RESET_CONSUMER_CLIENT_OFFSET,
    Code.GET_CONSUMER_STATUS_FROM_CLIENT, Code.PUSH_REPLY_MESSAGE_TO_CLIENT,
)  # fmt: skip
"""From broker to client: no server answers them, whoever asks."""

CLASSES: Final[dict[int, RequestClass]] = {
    **{int(code): RequestClass.CLIENT for code in _CLIENT + _TO_CLIENTS},
    **{int(code) & 0xFFFF: RequestClass.CLIENT for code in _CLIENT},  # what fits into a binary header of a pop's code
    **{int(code): RequestClass.ADMINISTRATION for code in _ADMINISTRATION},
    **{int(code): RequestClass.BROKER for code in _BROKER},
    **dict.fromkeys(range(FIRST_CODE, LAST_CODE + 1), RequestClass.GATEWAY),
    **dict.fromkeys(MEMBER_CODES, RequestClass.CLIENT),  # whoever asks it is about to show who it is
}
"""Every code that a server of ours answers, or knows by name. Were one forgotten, it would be ADMINISTRATION: not open to everybody."""


MEMBERS_ONLY: Final = frozenset(range(FIRST_CODE, LAST_CODE + 1)) | {
    int(code)
    for code in (
        Code.REGISTER_BROKER, Code.UNREGISTER_BROKER, Code.REGISTER_TOPIC_IN_NAMESRV, Code.QUERY_DATA_VERSION,
        Code.BROKER_HEARTBEAT,
    )
}  # fmt: skip
"""Where the cluster has a key, who has shown it asks these, and nobody else, wherever he is. The other requests of class BROKER only read."""


def class_of(code: int) -> RequestClass:
    """The class of a request code, known or not."""
    return CLASSES.get(code, RequestClass.ADMINISTRATION)


def member_refusal(code: int) -> str:
    """Why a request of `MEMBERS_ONLY` is not answered to who has not shown the key."""
    return (
        f"request code {code} ({class_of(code).value}) is answered to processes that have shown the cluster's key only: name it in "
        "auth.cluster_key_file of the process that asks, too, or its certificate in auth.cluster_certificates here"
    )


def refusal(code: int) -> str:
    """Why a stranger gets no answer to this request; empty for what everybody may ask."""
    kind = class_of(code)
    if kind is RequestClass.CLIENT:
        return ""
    return (
        f"request code {code} ({kind.value}) is answered to this machine only, and to the networks of server.trusted_networks: "
        "add the address of this client there, or ask from the server's machine"
    )
