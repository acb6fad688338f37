"""Requests of clients about themselves: heartbeats, group members, queue locks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting import headers
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.constants import LANGUAGE_NAMES, RequestCode, ResponseCode
from gantrymq.remoting.headers import parse
from gantrymq.remoting.server.filters import FilterError, compile_filter

if TYPE_CHECKING:
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.broker_door import BrokerConnection

LOCK_QUEUES_MAX: Final = 10_000
"""Queues in one lock request."""

SYSTEM_GROUPS: Final = frozenset({"TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP"})
"""Groups of tools, which need no retry topic."""


def heartbeat(door: BrokerConnection, command: Command) -> None:
    """HEART_BEAT: who is behind this connection. Heartbeat V2 is not announced, so every beat is complete."""
    beat = bodies.decode(command.body, bodies.Heartbeat)
    shared = door.shared
    door.language, door.version, door.beat_ms = command.language, command.version, shared.broker.clock.now_ms()
    for group in shared.clients.heartbeat(door, beat, command.language, command.version, len(command.body)):
        if group not in SYSTEM_GROUPS and not group.startswith("CID_RMQ_SYS_"):
            shared.groups.ensure(group)
    fields = {"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true"}
    # A nameserver has then the retry topics that this beat made, or another client's just before it.
    door.respond_when_known(command, fields)


def unregister(door: BrokerConnection, command: Command) -> None:
    """UNREGISTER_CLIENT."""
    header = parse(command.fields, headers.UnregisterClientHeader)
    door.shared.clients.unregister(door, header.client_id, header.producer_group, header.consumer_group)
    door.connection.respond(command)


def consumer_list(door: BrokerConnection, command: Command) -> None:
    """GET_CONSUMER_LIST_BY_GROUP: what clients balance queues over."""
    group = parse(command.fields, headers.ConsumerGroupHeader).consumer_group
    ids = door.shared.clients.client_ids(group)
    if not ids:
        door.refuse(
            command, ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group[:255]}: no heartbeat came yet"
        )
        return
    door.connection.respond(command, body=bodies.encode(bodies.ConsumerIds(ids)))


def consumer_connections(door: BrokerConnection, command: Command) -> None:
    """GET_CONSUMER_CONNECTION_LIST."""
    name = parse(command.fields, headers.ConsumerGroupHeader).consumer_group
    group = door.shared.clients.groups.get(name)
    if group is None:
        door.refuse(command, ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name[:255]}] not online")
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
    door.connection.respond(command, body=bodies.encode(body))


def language_name(number: int) -> str:
    """Name of a LanguageCode."""
    return LANGUAGE_NAMES[number] if 0 <= number < len(LANGUAGE_NAMES) else "OTHER"


def check_client(door: BrokerConnection, command: Command) -> None:
    """CHECK_CLIENT_CONFIG: push consumers ask whether their filter is understood."""
    check = bodies.decode(command.body, bodies.CheckClient)
    subscription = check.subscription_data
    if subscription is not None:
        try:
            compile_filter(subscription.expression_type, subscription.sub_string)
        except FilterError as error:
            door.refuse(command, ResponseCode.SUBSCRIPTION_PARSE_FAILED, error.text)
            return
    door.connection.respond(command)


def lock(door: BrokerConnection, command: Command) -> None:
    """LOCK_BATCH_MQ: an orderly consumer takes its queues for a minute."""
    request = _lock_request(command)
    shared = door.shared
    held = shared.locks.lock(request.consumer_group, request.client_id, request.mq_set, shared.wheel.now_ms())
    door.connection.respond(command, body=bodies.encode(bodies.LockAnswer(held)))


def unlock(door: BrokerConnection, command: Command) -> None:
    """UNLOCK_BATCH_MQ."""
    request = _lock_request(command)
    door.shared.locks.unlock(request.consumer_group, request.client_id, request.mq_set)
    door.connection.respond(command)


def _lock_request(command: Command) -> bodies.LockRequest:
    request = bodies.decode(command.body, bodies.LockRequest)
    if len(request.mq_set) > LOCK_QUEUES_MAX:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"a lock request has at most {LOCK_QUEUES_MAX} queues")
    return request


HANDLERS: Final[dict[int, Callable[[BrokerConnection, Command], None]]] = {
    RequestCode.HEART_BEAT: heartbeat,
    RequestCode.UNREGISTER_CLIENT: unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer_list,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: consumer_connections,
    RequestCode.CHECK_CLIENT_CONFIG: check_client,
    RequestCode.LOCK_BATCH_MQ: lock,
    RequestCode.UNLOCK_BATCH_MQ: unlock,
}
