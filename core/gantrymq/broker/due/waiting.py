"""What delay levels and timers share: a message on its way to where it waits, and back."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.tables.tables import item_message
from gantrymq.model import properties as props
from gantrymq.model import sysflag
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.store.cold import Cold
from gantrymq.store.schedule import number_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.broker.parts import Context
    from gantrymq.store.message_store import MessageStore

log = logging.getLogger(__name__)

STEP: Final = 48
"""Messages fired in one slice: a millisecond with reading, routing and writing."""
STEP_BYTES: Final = 512 * 1024
"""...and their bytes, at least one message."""
RETRY_MS: Final = 1_000
"""After a refusal that passes (BUSY, STORE_FULL), the next attempt."""

UNREADABLE_MS: Final = 60_000
"""After the disk could not read a record that is due, the next attempt."""
UNREADABLE_TRIES: Final = 10
"""Attempts after which a record that the disk cannot read counts as damaged. While the whole disk fails the store stops, and nothing
that is settled then is remembered."""

PASSING: Final = frozenset(
    {ErrorCode.BUSY, ErrorCode.STORE_FULL, ErrorCode.STORE_FAILED, ErrorCode.SHUTTING_DOWN, ErrorCode.UNAVAILABLE}
)
"""Refusals after which a waiting message goes on waiting; any other is final, as in RocketMQ (TimerMessageStore: PUT_NO_RETRY)."""

_KEYS: Final = props.KEYS.encode() + props.NAME_END
_SHARDING: Final = props.SHARDING_KEY.encode() + props.NAME_END
_EXCHANGE: Final = props.EXCHANGE.encode() + props.NAME_END
_DISPATCH: Final = props.MULTI_DISPATCH.encode() + props.NAME_END


def without(properties: bytes, marks: tuple[bytes, ...]) -> bytes:
    """The pairs except those that begin with one of these names (with their U+0001)."""
    kept = [pair for pair in properties.split(props.PAIR_END) if pair and not pair.startswith(marks)]
    return b"".join([pair + props.PAIR_END for pair in kept])


_ORIGIN: Final = (b"REAL_TOPIC\x01", b"REAL_QID\x01")


def with_origin(message: Message, properties: bytes) -> bytes:
    """Where it goes later, as RocketMQ's HookUtils writes it."""
    if b"REAL_" in properties:
        properties = without(properties, _ORIGIN)
    if properties and not properties.endswith(props.PAIR_END):
        properties += props.PAIR_END
    return properties + b"REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (message.topic.encode(), message.queue_id)


def revived(waiting: Message) -> Message | None:
    """The message for its own topic; None if the record names none. Properties stay as they are, as in RocketMQ's store: also
    ScheduleMessageService.messageTimeUp clears DELAY only in a map that is not written any more."""
    text = waiting.properties
    topic = props.find(text, props.REAL_TOPIC)
    queue_id = number_of(props.find(text, props.REAL_QUEUE_ID))
    if not topic or queue_id < 0 or queue_id > 0x7FFFFFFF:
        return None
    unique = props.find(text, props.UNIQ_KEY)
    names: tuple[str, ...] = (unique,) if unique else ()
    if _KEYS in text:
        names += tuple(props.find(text, props.KEYS).split())
    message = Message(topic, waiting.body, text, waiting.tag, names, queue_id, waiting.born_ms)
    message.born_host = waiting.born_host
    message.flag = waiting.flag
    message.sys_flag = waiting.sys_flag & ~sysflag.STORE_HOST_V6
    message.reconsume_times = waiting.reconsume_times
    if _EXCHANGE in text:
        message.exchange = props.origin_of(text)
    if _SHARDING in text:
        message.sharding_key = props.find(text, props.SHARDING_KEY)
    if waiting.dispatch:
        for pair in waiting.dispatch.split(props.PAIR_END):
            if pair.startswith(_DISPATCH):  # the sender's own light queues, which it enters only now
                message.lmq = tuple(pair[len(_DISPATCH) :].decode("utf-8", "replace").split(","))
    return message


def keep_readable(broker: Context, message: Message) -> None:
    """The topic may have fewer queues than when the message was sent: it goes to one that is read (RocketMQ: to one that nobody reads)."""
    topic = broker.topics.topics.get(message.topic)
    queues = broker.gateway_config.queues if topic is None else max(topic.config.read_queues, topic.config.write_queues)
    if message.queue_id >= queues:
        message.queue_id = -1


def read_each(store: MessageStore, refs: Sequence[tuple[int, int]]) -> list[Message | OSError | None]:
    """As `get_many`, with the error in the place of each record that the disk cannot read. Raises `Cold`."""
    with suppress(OSError):  # then one after the other, to find out which
        return list(store.get_many(refs))
    found: list[Message | OSError | None] = []
    wanted: list[Any] = []
    for ref in refs:
        try:
            found += store.get_many([ref])
        except Cold as cold:
            wanted += cold.wanted
        except OSError as error:
            found.append(error)
    if wanted:
        raise Cold(wanted)
    return found


def log_dropped(dropped: Sequence[tuple[Message, ErrorCode]]) -> None:
    """One line a slice: the topic of a million timers may have been deleted."""
    if dropped:
        message, code = dropped[-1]
        log.warning("%d delayed messages dropped; the last, for topic %s: %s", len(dropped), message.topic, code.value)


def codes_of(results: Any, count: int) -> list[ErrorCode | None]:
    """What `submit` answered, per message: None for stored."""
    if isinstance(results, GantryError):
        return [results.code] * count
    return [result if isinstance(result, ErrorCode) else None for result in results]


def put_cursor(broker: Context, cursor: Cursor, rows: Sequence[tuple[str, bytes]]) -> None:
    """Make a new cursor durable. Its owner works with it at once, so where the batch is refused (the disk is full) its row comes
    again until it is stored: a start without it would give out anew all that was done meanwhile."""

    def stored(_token: Any, result: object) -> None:
        if isinstance(result, GantryError):
            broker.wheel.call_at(broker.wheel.now_ms() + RETRY_MS, again)

    def again(_now_ms: int) -> None:
        if not broker.closed and broker.cursors.by_id.get(cursor.id) is cursor:
            put_cursor(broker, cursor, [*rows[:1], broker.cursors.next_row()])

    broker.put("cursor", rows, None, stored)


def new_cursor(broker: Context, queue: str, group: str, start: int) -> Cursor:
    """A cursor in place of the one that there was: another broker went on meanwhile. In the log when this returns; the caller
    flushes it before anything says that the directory is ours again."""
    old = broker.cursors.find(queue, group)
    rows: list[tuple[str, bytes | None]] = []
    if old is not None:
        broker.cursors.delete(old)
        rows.append((str(old.id), None))
    cursor, made = broker.cursors.create(queue, group, start)
    rows += made
    broker.store.append([item_message("cursor", key, value) for key, value in rows], [()] * len(rows))
    for key, value in rows:
        broker.tables.apply("cursor", key, value)
    return cursor
