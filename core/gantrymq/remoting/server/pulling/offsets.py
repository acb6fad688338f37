"""Requests about offsets and single messages: consumer offsets, ends of queues, search by time, query by key
and id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gantrymq.administration.topics import readable_topic
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting import headers
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.headers import parse
from gantrymq.remoting.server.pulling.pulls import BYTES_MAX

if TYPE_CHECKING:
    from gantrymq.administration.reading import Reading
    from gantrymq.broker.topics import Topic, TopicTable
    from gantrymq.model.message import Message
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reply import RecordsReply, Reply

QUERY_MAX: Final = 256
"""Messages in one answer to a query; RocketMQ's default limit is 64."""

IN_MEMORY_BYTES: Final = 1 << 30
"""A new group starts at 0 on a queue whose first record is no further back: RocketMQ says so while the record
is in memory."""


def _queue(topics: TopicTable, name: str, queue_id: int) -> Topic:
    topic = readable_topic(topics, name)
    queues = max(topic.config.read_queues, topic.config.write_queues)
    if not 0 <= queue_id < queues:
        raise GantryError(ErrorCode.QUEUE_NOT_FOUND, f"topic {name} has no queue {queue_id}, it has {queues} queues")
    return topic


def _answer(command: Command, reply: Reply, offset: int) -> None:
    reply.respond(command, ResponseCode.SUCCESS, None, {"offset": str(offset)})


@dataclass(slots=True)
class QueueServices:
    """What these requests need of the broker. `commit_offset`: as `OffsetCommits.commit`."""

    topics: TopicTable
    reading: Reading
    commit_offset: Callable[[str, str, int, int], None]


def query_consumer_offset(command: Command, reply: Reply, services: QueueServices) -> None:
    """QUERY_CONSUMER_OFFSET; a group without an offset is told as RocketMQ tells it."""
    header = parse(command.fields, headers.QueryOffsetHeader)
    _queue(services.topics, header.topic, header.queue_id)
    offset = services.reading.committed(header.consumer_group, header.topic, header.queue_id)

    def answer(offset: int) -> None:
        if offset < 0:
            text = f"Not found: group {header.consumer_group[:255]} has no offset of this queue; it may be new"
            reply.refuse(command, ResponseCode.QUERY_NOT_FOUND, text)
        else:
            _answer(command, reply, offset)

    if offset < 0 and header.set_zero_if_not_found:
        reply.read(command, lambda reading: _begin(reading, header.topic, header.queue_id), answer)
    else:
        answer(offset)


def _begin(reading: Reading, topic: str, queue_id: int) -> int:
    """Where a new group begins whatever it wants, or -1: it is asked what it wants.

    At the end of a queue that holds nothing: a client that is told "not found" asks for that end with a request of its own, and would
    pass over the message that comes in between. In a retry topic it begins at 0 by itself, and would keep what it is told.
    """
    store = reading.store
    low, high = reading.min_offset(topic, queue_id), store.visible_end(topic, queue_id)
    if low >= high:
        return -1 if topic.startswith(names.RETRY_PREFIX) else high
    first = store.units(topic, queue_id, 0, 1) if low == 0 else []
    return 0 if first and reading.written_position - first[0][0] <= IN_MEMORY_BYTES else -1


def update_consumer_offset(command: Command, reply: Reply, services: QueueServices) -> None:
    """UPDATE_CONSUMER_OFFSET; visible at once, a record of the log within a second."""
    header = parse(command.fields, headers.UpdateOffsetHeader)
    names.check_group(header.consumer_group)
    _queue(services.topics, header.topic, header.queue_id)
    if header.commit_offset < 0:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"commitOffset {header.commit_offset} is negative")
    services.commit_offset(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
    reply.respond(command)


def max_offset(command: Command, reply: Reply, services: QueueServices) -> None:
    """GET_MAX_OFFSET: where the next record will go."""
    header = parse(command.fields, headers.QueueHeader)
    _queue(services.topics, header.topic, header.queue_id)
    _answer(command, reply, services.reading.store.visible_end(header.topic, header.queue_id))


def min_offset(command: Command, reply: Reply, services: QueueServices) -> None:
    """GET_MIN_OFFSET: the oldest record that can be read."""
    header = parse(command.fields, headers.QueueHeader)
    _queue(services.topics, header.topic, header.queue_id)
    _answer(command, reply, services.reading.min_offset(header.topic, header.queue_id))


def search_offset(command: Command, reply: Reply, services: QueueServices) -> None:
    """SEARCH_OFFSET_BY_TIMESTAMP."""
    header = parse(command.fields, headers.SearchOffsetHeader)
    _queue(services.topics, header.topic, header.queue_id)
    lower = (header.boundary_type or "lower").lower() != "upper"
    place = header.topic, header.queue_id
    reply.read(
        command,
        lambda reading: reading.store.offset_by_time(*place, header.timestamp, lower),
        lambda offset: _answer(command, reply, max(offset, services.reading.min_offset(*place))),
    )


def earliest_time(command: Command, reply: Reply, services: QueueServices) -> None:
    """GET_EARLIEST_MSG_STORETIME: -1 for an empty queue."""
    header = parse(command.fields, headers.QueueHeader)
    _queue(services.topics, header.topic, header.queue_id)

    def answer(first: Message | None) -> None:
        fields = {"timestamp": str(first.store_ms if first is not None else -1)}
        reply.respond(command, ResponseCode.SUCCESS, None, fields)

    reply.read(command, lambda reading: _first_message(reading, header.topic, header.queue_id), answer)


def _first_message(reading: Reading, topic: str, queue_id: int) -> Message | None:
    """The oldest record of a queue, or None."""
    store = reading.store
    units = store.units(topic, queue_id, reading.min_offset(topic, queue_id), 1)
    return store.get_many([(position, size) for position, size, _ in units])[0] if units else None


def view_message(command: Command, reply: RecordsReply, services: QueueServices) -> None:
    """VIEW_MESSAGE_BY_ID: one record by its physical offset."""
    header = parse(command.fields, headers.ViewMessageHeader)

    def find(reading: Reading) -> list[bytes] | None:
        message = reading.store.get(header.offset) if header.offset >= 0 else None
        if message is None or names.is_own_system_topic(message.topic):
            return None
        return _records(reading, [message])

    def answer(found: list[bytes] | None) -> None:
        if found is None:
            text = f"can not find message by the offset, {header.offset}: none begins there"
            reply.refuse(command, ResponseCode.SYSTEM_ERROR, text)
        else:
            _write_records(command, reply, found, {})

    reply.read(command, find, answer)


def query_message(command: Command, reply: RecordsReply, services: QueueServices) -> None:
    """QUERY_MESSAGE: by UNIQ_KEY or an entry of KEYS, within a time range."""
    header = parse(command.fields, headers.QueryMessageHeader)
    readable_topic(services.topics, header.topic)
    count = min(max(header.max_num, 1), QUERY_MAX)

    def find(reading: Reading) -> tuple[list[Message], list[bytes]]:
        found = reading.store.query(header.topic, header.key, count, header.begin_timestamp, header.end_timestamp)
        return found, _records(reading, found)

    def answer(seen: tuple[list[Message], list[bytes]]) -> None:
        found, pieces = seen
        if not found:
            text = "can not find message, maybe time range not correct (or no message has this key)"
            reply.refuse(command, ResponseCode.QUERY_NOT_FOUND, text)
            return
        fields = {
            "indexLastUpdateTimestamp": str(max(message.store_ms for message in found)),
            "indexLastUpdatePhyoffset": str(max(message.physical_offset for message in found)),
        }
        _write_records(command, reply, pieces, fields)

    reply.read(command, find, answer)


def _records(reading: Reading, found: list[Message]) -> list[bytes]:
    """As they lie in the log, as many as one answer holds."""
    places = sorted(
        [(message.physical_offset, message.size, 0) for message in found]
    )  # RocketMQ answers in this order, too
    return reading.store.read_records(places, BYTES_MAX)[0]


def _write_records(command: Command, reply: RecordsReply, pieces: list[bytes], fields: dict[str, str]) -> None:
    body = b"".join(pieces)
    reply.pull_bytes += len(body)
    reply.respond(command, ResponseCode.SUCCESS, None, fields, body)


HANDLERS: Final = {
    RequestCode.QUERY_CONSUMER_OFFSET: query_consumer_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_consumer_offset,
    RequestCode.GET_MAX_OFFSET: max_offset,
    RequestCode.GET_MIN_OFFSET: min_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: earliest_time,
    RequestCode.VIEW_MESSAGE_BY_ID: view_message,
    RequestCode.QUERY_MESSAGE: query_message,
}
