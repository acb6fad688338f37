"""Requests of tools about clients: who is connected, who consumes what; questions that the broker passes on to a client."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.names import is_own_system_topic
from gantrymq.remoting import headers
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.dispatch import Handler
from gantrymq.remoting.headers import parse
from gantrymq.remoting.server.clients.requests import language_name

if TYPE_CHECKING:
    from gantrymq.administration.reading import Reading
    from gantrymq.remoting.server.clients.registry import Consumer
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.remoting.server.tools import Tools

STATUS_MS: Final = 5_000
"""How long each client has for GET_CONSUMER_STATUS_FROM_CLIENT (Broker2Client.getConsumeStatus)."""


class _Producers(msgspec.Struct, rename="camel"):
    producer_group: str


class _Call(msgspec.Struct, rename="camel"):
    """GetConsumerRunningInfoRequestHeader, ConsumeMessageDirectlyResultRequestHeader."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    topic: str | None = None


class _Group(msgspec.Struct):
    group: str
    topic: str | None = None


class _Status(msgspec.Struct, rename="camel"):
    topic: str
    group: str
    client_addr: str | None = None


def producer_connections(command: Command, reply: Reply, services: Tools) -> None:
    """GET_PRODUCER_CONNECTION_LIST."""
    name = parse(command.fields, _Producers).producer_group
    found = services.clients.producers.get(name)
    if not found:
        reply.refuse(command, ResponseCode.SYSTEM_ERROR, f"the producer group[{name[:255]}] not exist")
        return
    connections = [
        {
            "clientId": client_id, "clientAddr": member.link.peer,
            "language": language_name(member.language), "version": member.version,
        }
        for client_id, member in sorted(found.items())
    ]  # fmt: skip
    reply.respond(command, body=bodies.encode({"connectionSet": connections}))


def all_producers(command: Command, reply: Reply, services: Tools) -> None:
    """GET_ALL_PRODUCER_INFO."""
    data = {
        name: [
            {
                "clientId": client_id, "remoteIP": f"/{member.link.peer}", "language": language_name(member.language),
                "version": member.version, "lastUpdateTimestamp": member.beat_ms,
            }
            for client_id, member in sorted(found.items())
        ]
        for name, found in sorted(services.clients.producers.items())
    }  # fmt: skip
    reply.respond(command, body=bodies.encode({"data": data}))


def topic_groups(command: Command, reply: Reply, services: Tools) -> None:
    """QUERY_TOPIC_CONSUME_BY_WHO: groups online with the topic, and groups with offsets of it."""
    name = parse(command.fields, headers.TopicHeader).topic
    found = {group for group, data in services.clients.groups.items() if name in data.subscriptions}
    found.update(services.committed.groups_of(name))
    reply.respond(command, body=bodies.encode({"groupList": sorted(found)}))


def group_topics(command: Command, reply: Reply, services: Tools) -> None:
    """QUERY_TOPICS_BY_CONSUMER: topics of which the group has offsets."""
    topics = sorted(services.committed.topics_of(parse(command.fields, _Group).group))
    reply.respond(command, body=bodies.encode(bodies.TopicList(topics, services.identity.address)))


def group_subscription(command: Command, reply: Reply, services: Tools) -> None:
    """QUERY_SUBSCRIPTION_BY_CONSUMER."""
    header = parse(command.fields, _Group)
    body: dict[str, object] = {"group": header.group, "topic": header.topic or ""}
    found = services.clients.subscription(header.group, header.topic or "")
    if found is not None:
        body["subscriptionData"] = found
    reply.respond(command, body=bodies.encode(body))


def running_info(command: Command, reply: Reply, services: Tools) -> None:
    """GET_CONSUMER_RUNNING_INFO: the client answers."""
    _relay(command, reply, services, parse(command.fields, _Call), dict(command.fields), command.body)


def consume_directly(command: Command, reply: Reply, services: Tools) -> None:
    """CONSUME_MESSAGE_DIRECTLY: the client gets the record and consumes it now."""
    header = parse(command.fields, _Call)
    fields = dict(command.fields)
    fields["brokerName"] = services.name
    topic = services.topics.table.topics.get(header.topic or "")
    if topic is not None:
        fields["topicSysFlag"] = str(topic.config.sys_flag)
    group = services.groups.get(header.consumer_group)
    if group is not None:
        fields["groupSysFlag"] = str(group.group_sys_flag)
    position = position_of(header.msg_id or "")

    def find(reading: Reading) -> bytes | None:
        message = reading.store.get(position)
        if message is None or is_own_system_topic(message.topic):
            return None
        reply.check(command, "sub|get", message.topic)
        return b"".join(reading.store.read_records([(message.physical_offset, message.size, 0)], message.size)[0])

    def relay(stored: bytes | None) -> None:
        if stored is None:
            text = f"can not find message by the offset, {position}: none begins there"
            reply.refuse(command, ResponseCode.SYSTEM_ERROR, text)
        else:
            _relay(command, reply, services, header, fields, stored)

    reply.read(command, find, relay)


def position_of(msg_id: str) -> int:
    """Physical offset in an offset message id (host, port, offset in hexadecimal). Raises ILLEGAL_ARGUMENT."""
    try:
        if len(msg_id) in (32, 56):
            return int(msg_id[-16:], 16)
    except ValueError:
        pass_on = "holds characters that are no hexadecimal digits"
    else:
        pass_on = f"has {len(msg_id)} characters, not 32 or 56"
    raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"message id {msg_id[:60]!r} {pass_on}")


def _relay(command: Command, reply: Reply, services: Tools, header: _Call, fields: dict[str, str], body: bytes) -> None:
    group, client_id = header.consumer_group, header.client_id or ""
    found = services.clients.groups.get(group)
    consumer = found.consumers.get(client_id) if found is not None else None
    if consumer is None:
        text = f"The Consumer <{group[:255]}> <{client_id[:255]}> not online"
        reply.refuse(command, ResponseCode.SYSTEM_ERROR, text)
        return

    def answered(answer: Command | GantryError) -> None:
        if not reply.open:
            return
        if isinstance(answer, Command):
            reply.respond(command, answer.code, answer.remark, answer.fields, answer.body)
        elif answer.code is ErrorCode.FLUSH_TIMEOUT:
            text = f"consumer <{group[:255]}> <{client_id[:255]}> Timeout: {answer.text}"
            reply.refuse(command, ResponseCode.CONSUME_MSG_TIMEOUT, text)
        else:
            text = f"invoke consumer <{group[:255]}> <{client_id[:255]}> Exception: {answer.text}"
            reply.refuse(command, ResponseCode.SYSTEM_ERROR, text)

    consumer.member.call(command.code, fields, body, answered)


def consumer_status(command: Command, reply: Reply, services: Tools) -> None:
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS: every member (or the one named) tells its offsets of a topic."""
    header = parse(command.fields, _Status)
    group = services.clients.groups.get(header.group)
    if group is None:
        text = f"No Any Consumer online in the consumer group: [{header.group[:255]}]"
        reply.refuse(command, ResponseCode.SYSTEM_ERROR, text)
        return
    wanted = {
        client_id: consumer
        for client_id, consumer in group.consumers.items()
        if not header.client_addr or header.client_addr == client_id
    }
    _Gathering(command, reply, wanted, {"topic": header.topic, "group": header.group})


class _Gathering:
    """Asks several clients, and answers when the last one has, or its time is over."""

    def __init__(self, command: Command, reply: Reply, wanted: dict[str, Consumer], fields: dict[str, str]) -> None:
        self._reply = reply
        self._command = command
        self._tables: dict[str, bytes] = {}
        self._open = len(wanted) + 1
        for client_id, consumer in wanted.items():
            try:
                consumer.member.call(
                    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields, b"", self._taker(client_id), STATUS_MS
                )
            except GantryError:
                self._open -= 1
        self._one_less()

    def _taker(self, client_id: str) -> Callable[[Command | GantryError], None]:
        def take(answer: Command | GantryError) -> None:
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS and answer.body:
                try:
                    self._tables[client_id] = bodies.queue_table(answer.body)
                except bodies.BodyError:
                    self._tables.pop(
                        client_id, None
                    )  # a client that answers nonsense is left out, as one that does not
            self._one_less()

        return take

    def _one_less(self) -> None:
        self._open -= 1
        if self._open or not self._reply.open:
            return
        parts = [bodies.encode(client_id) + b":" + table for client_id, table in sorted(self._tables.items())]
        body = b'{"consumerTable":{%b},"messageQueueTable":{}}' % b",".join(parts)
        self._reply.respond(self._command, body=body)


HANDLERS: Final[dict[int, Handler[Reply, Tools]]] = {
    RequestCode.GET_PRODUCER_CONNECTION_LIST: producer_connections,
    RequestCode.GET_ALL_PRODUCER_INFO: all_producers,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: topic_groups,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: group_topics,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: group_subscription,
    RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: consumer_status,
}
