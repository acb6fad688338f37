"""Requests about offsets and single messages: consumer offsets, ends of queues, search by time, query by key
and id."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting import headers
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.headers import parse
from gantrymq.remoting.pulls import BYTES_MAX

if TYPE_CHECKING:
    from gantrymq.broker.broker import Broker
    from gantrymq.broker.topics import Topic
    from gantrymq.model.message import Message
    from gantrymq.remoting.broker_door import BrokerDoor
    from gantrymq.remoting.codec import Command

QUERY_MAX: Final = 256
"""Messages in one answer to a query; RocketMQ's default limit is 64."""

IN_MEMORY_BYTES: Final = 1 << 30
"""A new group starts at 0 on a queue whose first record is no further back: RocketMQ says so while the record
is in memory."""


def readable_topic(broker: Broker, name: str) -> Topic:
    """An existing topic that is not the broker's own; raises TOPIC_NOT_FOUND, NO_PERMISSION."""
    topic = broker.topics.given_topic(name)
    if topic is not None and not topic.system:
        return topic
    if names.is_own_system_topic(name):
        raise GantryError(ErrorCode.NO_PERMISSION, f"topic {name} belongs to the broker itself")
    raise GantryError(
        ErrorCode.TOPIC_NOT_FOUND,
        f"topic[{name[:255]}] not exist, apply first please! (gantry topic create {name[:255]})",
    )


def _queue(broker: Broker, name: str, queue_id: int) -> Topic:
    topic = readable_topic(broker, name)
    queues = max(topic.config.read_queues, topic.config.write_queues)
    if not 0 <= queue_id < queues:
        raise GantryError(ErrorCode.QUEUE_NOT_FOUND, f"topic {name} has no queue {queue_id}, it has {queues} queues")
    return topic


def _answer(door: BrokerDoor, command: Command, offset: int) -> None:
    door.connection.respond(command, ResponseCode.SUCCESS, None, {"offset": str(offset)})


def query_consumer_offset(door: BrokerDoor, command: Command) -> None:
    """QUERY_CONSUMER_OFFSET; a group without an offset is told as RocketMQ tells it."""
    header = parse(command.fields, headers.QueryOffsetHeader)
    broker = door.shared.broker
    _queue(broker, header.topic, header.queue_id)
    offset = broker.offsets.query(header.consumer_group, header.topic, header.queue_id)
    if offset < 0 and header.set_zero_if_not_found:
        offset = _begin(broker, header.topic, header.queue_id)
    if offset < 0:
        door.refuse(
            command,
            ResponseCode.QUERY_NOT_FOUND,
            f"Not found: group {header.consumer_group[:255]} has no offset of this queue; it may be new",
        )
    else:
        _answer(door, command, offset)


def _begin(broker: Broker, topic: str, queue_id: int) -> int:
    """Where a new group begins whatever it wants, or -1: it is asked what it wants.

    At the end of a queue that holds nothing: a client that is told "not found" asks for that end with a request of its own, and would
    pass over the message that comes in between. In a retry topic it begins at 0 by itself, and would keep what it is told.
    """
    low, high = broker.min_offset(topic, queue_id), broker.store.max_offset(topic, queue_id)
    if low >= high:
        return -1 if topic.startswith(names.RETRY_PREFIX) else high
    first = broker.store.units(topic, queue_id, 0, 1) if low == 0 else []
    return 0 if first and broker.store.written_position - first[0][0] <= IN_MEMORY_BYTES else -1


def update_consumer_offset(door: BrokerDoor, command: Command) -> None:
    """UPDATE_CONSUMER_OFFSET; visible at once, a record of the log within a second."""
    header = parse(command.fields, headers.UpdateOffsetHeader)
    broker = door.shared.broker
    names.check_group(header.consumer_group)
    _queue(broker, header.topic, header.queue_id)
    if header.commit_offset < 0:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"commitOffset {header.commit_offset} is negative")
    broker.commit_offset(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
    door.connection.respond(command)


def max_offset(door: BrokerDoor, command: Command) -> None:
    """GET_MAX_OFFSET: where the next record will go."""
    header = parse(command.fields, headers.QueueHeader)
    _queue(door.shared.broker, header.topic, header.queue_id)
    _answer(door, command, door.shared.broker.store.max_offset(header.topic, header.queue_id))


def min_offset(door: BrokerDoor, command: Command) -> None:
    """GET_MIN_OFFSET: the oldest record that can be read."""
    header = parse(command.fields, headers.QueueHeader)
    _queue(door.shared.broker, header.topic, header.queue_id)
    _answer(door, command, door.shared.broker.min_offset(header.topic, header.queue_id))


def search_offset(door: BrokerDoor, command: Command) -> None:
    """SEARCH_OFFSET_BY_TIMESTAMP."""
    header = parse(command.fields, headers.SearchOffsetHeader)
    broker = door.shared.broker
    _queue(broker, header.topic, header.queue_id)
    lower = (header.boundary_type or "lower").lower() != "upper"
    offset = broker.store.offset_by_time(header.topic, header.queue_id, header.timestamp, lower)
    _answer(door, command, max(offset, broker.min_offset(header.topic, header.queue_id)))


def earliest_time(door: BrokerDoor, command: Command) -> None:
    """GET_EARLIEST_MSG_STORETIME: -1 for an empty queue."""
    header = parse(command.fields, headers.QueueHeader)
    broker = door.shared.broker
    _queue(broker, header.topic, header.queue_id)
    first = first_message(broker, header.topic, header.queue_id, broker.min_offset(header.topic, header.queue_id))
    fields = {"timestamp": str(first.store_ms if first is not None else -1)}
    door.connection.respond(command, ResponseCode.SUCCESS, None, fields)


def first_message(broker: Broker, topic: str, queue_id: int, offset: int) -> Message | None:
    """The record at an offset, or None."""
    units = broker.store.units(topic, queue_id, offset, 1)
    return broker.store.get_many([(position, size) for position, size, _ in units])[0] if units else None


def view_message(door: BrokerDoor, command: Command) -> None:
    """VIEW_MESSAGE_BY_ID: one record by its physical offset."""
    header = parse(command.fields, headers.ViewMessageHeader)
    store = door.shared.broker.store
    message = store.get(header.offset) if header.offset >= 0 else None
    if message is None or names.is_own_system_topic(message.topic):
        door.refuse(
            command,
            ResponseCode.SYSTEM_ERROR,
            f"can not find message by the offset, {header.offset}: none begins there",
        )
        return
    _write_messages(door, command, [message], {})


def query_message(door: BrokerDoor, command: Command) -> None:
    """QUERY_MESSAGE: by UNIQ_KEY or an entry of KEYS, within a time range."""
    header = parse(command.fields, headers.QueryMessageHeader)
    broker = door.shared.broker
    readable_topic(broker, header.topic)
    count = min(max(header.max_num, 1), QUERY_MAX)
    found = broker.store.query(header.topic, header.key, count, header.begin_timestamp, header.end_timestamp)
    if not found:
        door.refuse(
            command,
            ResponseCode.QUERY_NOT_FOUND,
            "can not find message, maybe time range not correct (or no message has this key)",
        )
        return
    fields = {
        "indexLastUpdateTimestamp": str(max(message.store_ms for message in found)),
        "indexLastUpdatePhyoffset": str(max(message.physical_offset for message in found)),
    }
    _write_messages(door, command, found, fields)


def _write_messages(door: BrokerDoor, command: Command, found: list[Message], fields: dict[str, str]) -> None:
    """Records as they lie in the log, as many as one answer holds."""
    store = door.shared.broker.store
    found.sort(key=lambda message: message.physical_offset)  # RocketMQ answers in this order, too
    units = [(message.physical_offset, message.size, 0) for message in found]
    pieces, _ = store.read_records(units, BYTES_MAX)
    body = b"".join(pieces)
    door.pull_bytes += len(body)
    door.connection.respond(command, ResponseCode.SUCCESS, None, fields, body)


HANDLERS: Final[dict[int, Callable[[BrokerDoor, Command], None]]] = {
    RequestCode.QUERY_CONSUMER_OFFSET: query_consumer_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_consumer_offset,
    RequestCode.GET_MAX_OFFSET: max_offset,
    RequestCode.GET_MIN_OFFSET: min_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: earliest_time,
    RequestCode.VIEW_MESSAGE_BY_ID: view_message,
    RequestCode.QUERY_MESSAGE: query_message,
}
