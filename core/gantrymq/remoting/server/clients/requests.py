"""Requests of clients about themselves: heartbeats, group members, queue locks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting import headers
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.constants import LANGUAGE_NAMES, RequestCode, ResponseCode
from gantrymq.remoting.headers import parse
from gantrymq.remoting.server.filters import FilterError, compile_filter

if TYPE_CHECKING:
    from gantrymq.administration.groups import Groups
    from gantrymq.net.api import Wheel
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.clients.locks import QueueLocks
    from gantrymq.remoting.server.clients.registry import ClientReply, Clients
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.services import Clock

LOCK_QUEUES_MAX: Final = 10_000
"""Queues in one lock request."""

SYSTEM_GROUPS: Final = frozenset({"TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP"})
"""Groups of tools, which need no retry topic."""


@dataclass(slots=True)
class ClientServices:
    """What clients' requests about themselves need of the broker."""

    clients: Clients
    groups: Groups
    locks: QueueLocks
    clock: Clock
    wheel: Wheel


def heartbeat(command: Command, reply: ClientReply, services: ClientServices) -> None:
    """HEART_BEAT: who is behind this connection. Heartbeat V2 is not announced, so every beat is complete."""
    beat = bodies.decode(command.body, bodies.Heartbeat)
    reply.language, reply.version, reply.beat_ms = command.language, command.version, services.clock.now_ms()
    for group in services.clients.heartbeat(reply, beat, command.language, command.version, len(command.body)):
        if group not in SYSTEM_GROUPS and not group.startswith("CID_RMQ_SYS_"):
            services.groups.ensure(group)
    fields = {"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true"}
    # A nameserver has then the retry topics that this beat made, or another client's just before it.
    reply.respond_when_known(command, fields)


def unregister(command: Command, reply: ClientReply, services: ClientServices) -> None:
    """UNREGISTER_CLIENT."""
    header = parse(command.fields, headers.UnregisterClientHeader)
    services.clients.unregister(reply, header.client_id, header.producer_group, header.consumer_group)
    reply.respond(command)


def consumer_list(command: Command, reply: Reply, services: ClientServices) -> None:
    """GET_CONSUMER_LIST_BY_GROUP: what clients balance queues over."""
    group = parse(command.fields, headers.ConsumerGroupHeader).consumer_group
    ids = services.clients.client_ids(group)
    if not ids:
        reply.refuse(
            command, ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group[:255]}: no heartbeat came yet"
        )
        return
    reply.respond(command, body=bodies.encode(bodies.ConsumerIds(ids)))


def consumer_connections(command: Command, reply: Reply, services: ClientServices) -> None:
    """GET_CONSUMER_CONNECTION_LIST."""
    name = parse(command.fields, headers.ConsumerGroupHeader).consumer_group
    group = services.clients.groups.get(name)
    if group is None:
        reply.refuse(command, ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name[:255]}] not online")
        return
    connections = [
        {
            "clientId": client_id, "clientAddr": consumer.member.link.peer,
            "language": language_name(consumer.language), "version": consumer.version,
        }
        for client_id, consumer in sorted(group.consumers.items())
    ]  # fmt: skip
    body = {
        "connectionSet": connections, "subscriptionTable": group.subscriptions, "consumeType": group.consume_type,
        "messageModel": group.message_model, "consumeFromWhere": group.from_where,
    }  # fmt: skip
    reply.respond(command, body=bodies.encode(body))


def language_name(number: int) -> str:
    """Name of a LanguageCode."""
    return LANGUAGE_NAMES[number] if 0 <= number < len(LANGUAGE_NAMES) else "OTHER"


def check_client(command: Command, reply: Reply, services: ClientServices) -> None:
    """CHECK_CLIENT_CONFIG: push consumers ask whether their filter is understood."""
    check = bodies.decode(command.body, bodies.CheckClient)
    subscription = check.subscription_data
    if subscription is not None:
        try:
            compile_filter(subscription.expression_type, subscription.sub_string)
        except FilterError as error:
            reply.refuse(command, ResponseCode.SUBSCRIPTION_PARSE_FAILED, error.text)
            return
    reply.respond(command)


def lock(command: Command, reply: Reply, services: ClientServices) -> None:
    """LOCK_BATCH_MQ: an orderly consumer takes its queues for a minute."""
    request = _lock_request(command)
    held = services.locks.lock(request.consumer_group, request.client_id, request.mq_set, services.wheel.now_ms())
    reply.respond(command, body=bodies.encode(bodies.LockAnswer(held)))


def unlock(command: Command, reply: Reply, services: ClientServices) -> None:
    """UNLOCK_BATCH_MQ."""
    request = _lock_request(command)
    services.locks.unlock(request.consumer_group, request.client_id, request.mq_set)
    reply.respond(command)


def _lock_request(command: Command) -> bodies.LockRequest:
    request = bodies.decode(command.body, bodies.LockRequest)
    if len(request.mq_set) > LOCK_QUEUES_MAX:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"a lock request has at most {LOCK_QUEUES_MAX} queues")
    return request


HANDLERS: Final = {
    RequestCode.HEART_BEAT: heartbeat,
    RequestCode.UNREGISTER_CLIENT: unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer_list,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: consumer_connections,
    RequestCode.CHECK_CLIENT_CONFIG: check_client,
    RequestCode.LOCK_BATCH_MQ: lock,
    RequestCode.UNLOCK_BATCH_MQ: unlock,
}
