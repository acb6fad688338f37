"""Requests that change something of the broker's own: whoever may send one stands in the audit trail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.remoting import overview_codes as overview
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.server.rights import RIGHTS

if TYPE_CHECKING:
    from gantrymq.remoting.codec import Command

CHANGES: Final = frozenset(
    int(code)
    for code in (
        Code.UPDATE_AND_CREATE_TOPIC, Code.UPDATE_AND_CREATE_TOPIC_LIST, Code.UPDATE_AND_CREATE_STATIC_TOPIC,
        Code.DELETE_TOPIC_IN_BROKER, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        Code.DELETE_SUBSCRIPTIONGROUP, Code.CLEAN_UNUSED_TOPIC, Code.SET_MESSAGE_REQUEST_MODE,
        Code.UPDATE_BROKER_CONFIG, Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.DELETE_EXPIRED_COMMITLOG, Code.RESUME_CHECK_HALF_MESSAGE,
        Code.INVOKE_BROKER_TO_RESET_OFFSET, Code.CONSUME_MESSAGE_DIRECTLY, Code.CLONE_GROUP_OFFSET,
        Code.PUT_KV_CONFIG, Code.DELETE_KV_CONFIG, Code.WIPE_WRITE_PERM_OF_BROKER, Code.ADD_WRITE_PERM_OF_BROKER,
        Code.DELETE_TOPIC_IN_NAMESRV, Code.UPDATE_NAMESRV_CONFIG,
        overview.DRAIN, overview.PRUNE_TOPICS, overview.DAMAGE_SKIP, overview.ADD_TOKEN, overview.DELETE_TOKEN,
        Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER, Code.AUTH_DELETE_USER,
        Code.AUTH_CREATE_ACL, Code.AUTH_UPDATE_ACL, Code.AUTH_DELETE_ACL,
    )
)  # fmt: skip
"""Without offsets that consumers commit: these are their work, not administration."""

NAMES: Final = (
    "topic", "group", "groupName", "consumerGroup", "srcGroup", "destGroup", "username", "tokenId", "subject", "resource", "brokerName",
    "namespace", "key", "offset", "timestamp", "position", "queue", "queueId", "on", "remove", "olderMs",
)  # fmt: skip
"""Fields that say what a request is about; no other is written, nor anything of a body but names of topics and groups."""


def changed_by(command: Command) -> str:
    """What it is about."""
    fields = command.fields
    named = [f"{name}={fields[name]}" for name in NAMES if fields.get(name)]
    if not named and (needs := RIGHTS.get(command.code)) is not None:
        named = [resource for _, resource in needs(command)]
    return " ".join(named)
