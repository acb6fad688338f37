"""Unacknowledged pops of a real broker, whose directory was taken over: they are delivered again, from the retry topic.

RocketMQ keeps a checkpoint per pop and one record per acknowledgement, both as timed messages that come to the topic
`rmq_sys_REVIVE_LOG_<cluster>` when the invisible time is over (PopReviveService). We write none; what is there, or fires from a real
broker's timer later, is read here: what a checkpoint names and no acknowledgement does is put to `%RETRY%<group>_<topic>`, which pop
consumers read, as the real broker would have. Each record is an entry of cursor `~revive`, settled when its checkpoint is worked off.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.due.waiting import put_cursor
from gantrymq.broker.port import Outcome
from gantrymq.broker.topics import TopicConfig
from gantrymq.model import names, sysflag
from gantrymq.model import properties as props
from gantrymq.model.errors import GantryError
from gantrymq.model.message import Message
from gantrymq.store.cold import Cold

if TYPE_CHECKING:
    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.broker.parts import Context
    from gantrymq.broker.port import Delivery

log = logging.getLogger(__name__)

TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
"""The real broker's place in the topic is the record that it worked off last: it goes on behind its committed offset."""
QUEUES: Final = 8
"""RocketMQ's reviveQueueNum."""
CURSOR_GROUP: Final = "~revive"

LATER_MS: Final = 3_000
"""After a checkpoint's time: acknowledgements come to the topic up to a second later (the timer's precision), and may wait behind it."""

AGAIN_MS: Final = 10_000
"""A retry message that could not be stored, or records that wait for the disk: the next attempt."""

CHECKPOINTS_MAX: Final = 100_000
"""Checkpoints in memory, some 1 KiB each; beyond it the topic is read on when some are worked off."""

READ_MAX: Final = 256
"""Records of the topic looked at in one step."""


class Checkpoint:
    """One pop of the real broker. `left`: its queue offsets without acknowledgement; `entries`: records to settle when it is done."""

    __slots__ = ("cursor", "entries", "group", "left", "pop_ms", "queue_id", "topic")

    def __init__(self, cursor: int, value: dict[str, Any]) -> None:
        self.cursor = cursor
        self.group, self.topic = str(value["c"]), str(value["t"])
        self.queue_id, self.pop_ms = int(value["q"]), int(value["pt"])
        first = int(value["so"])
        # PopCheckPoint.ackOffsetByIndex: without "d", a checkpoint of an old broker, the offsets follow one another.
        steps = value.get("d") or range(int(value.get("n", 0)))
        self.left = {first + int(step) for step in steps}
        self.entries: list[int] = []


class Revive:
    """See the module."""

    def __init__(self, broker: Context) -> None:
        self._broker = broker
        self._pending: dict[tuple[str, str, int, int, int], Checkpoint] = {}
        """By topic, group, queue id, start offset and pop time."""
        self._waiting: dict[int, Cursor] = {}
        """Cursors that are not read on because too much is pending."""

    def open(self) -> None:
        """Read what is there; wait for what a real broker's timer still brings."""
        broker = self._broker
        topics = broker.topics.topics
        known = {*broker.store.topics(), *topics, TOPIC_PREFIX + broker.config.cluster}
        for name in sorted([name for name in known if name.startswith(TOPIC_PREFIX)]):
            topic = topics.get(name)
            count = topic.config.read_queues if topic is not None else QUEUES  # nothing of a queue may have fired yet
            for queue_id in sorted({*broker.store.queues_of(name), *range(count)}):
                self._watch(name, queue_id)

    def _watch(self, topic: str, queue_id: int) -> None:
        broker = self._broker
        queue = f"{topic}/{queue_id}"
        cursor = broker.cursors.find(queue, CURSOR_GROUP)
        low, high = broker.store.min_offset(topic, queue_id), broker.store.visible_end(topic, queue_id)
        committed = broker.offsets.query(GROUP, topic, queue_id)
        start = min(max(committed + 1, low), high)
        if cursor is None and high <= start and committed < high:
            # Nothing owed: no cursor until something comes.
            broker.topics.wait_for(topic, queue_id, ("revive", queue), partial(self._watch, topic, queue_id))
            return
        if cursor is None:
            log.info("%s: unacknowledged pops of another broker are taken over from offset %d", queue, start)
            cursor, rows = broker.cursors.create(queue, CURSOR_GROUP, start)
            put_cursor(broker, cursor, rows)
        elif (end := min(committed + 1, high)) > cursor.window.floor:  # another broker went on meanwhile
            window = cursor.window
            window.returned = [offset for offset in window.returned if offset >= end]
            broker.cursors.skip(cursor, window.floor, end - 1)
        self._commit(cursor)
        self._read(cursor)

    def _read(self, cursor: Cursor) -> None:
        """Everything that is there now; then wait for more."""
        broker = self._broker
        while True:
            if len(self._pending) >= CHECKPOINTS_MAX:
                self._waiting[cursor.id] = cursor
                return
            try:
                deliveries = broker.cursors.acquire(cursor, 0, READ_MAX, 1 << 20)
            except Cold as cold:
                broker.fetch(cold, cursor, self._read)
                return
            except OSError as error:
                log.error("%s: cannot be read, tried again in %d s: %s", cursor.queue, AGAIN_MS // 1000, error)
                broker.wheel.call_at(broker.wheel.now_ms() + AGAIN_MS, lambda now_ms: self._read(cursor))
                return
            for delivery in deliveries:
                self._apply(cursor, delivery)
            if not deliveries:
                broker.topics.wait_for(
                    cursor.topic, cursor.queue_id, ("revive", cursor.queue), partial(self._read, cursor)
                )
                return

    def _apply(self, cursor: Cursor, delivery: Delivery) -> None:
        message = delivery.message
        try:
            value = json.loads(message.body)
            if message.tag == "ck":
                self._checkpoint(cursor, delivery, value)
                return
            key = (str(value["t"]), str(value["c"]), int(value["q"]), int(value["so"]), int(value["pt"]))
            offsets = [int(offset) for offset in value["aol"]] if message.tag == "bAck" else [int(value["ao"])]
        except (ValueError, KeyError, TypeError) as error:
            log.warning(
                "%s, offset %d: neither checkpoint nor acknowledgement (%s); passed over",
                cursor.queue,
                delivery.offset,
                error,
            )
            self._settle(cursor.id, [delivery.offset])
            return
        found = self._pending.get(key)
        if found is None:  # its checkpoint is worked off
            self._settle(cursor.id, [delivery.offset])
            return
        found.left.difference_update(offsets)
        found.entries.append(delivery.offset)

    def _checkpoint(self, cursor: Cursor, delivery: Delivery, value: dict[str, Any]) -> None:
        found = Checkpoint(cursor.id, value)
        key = (found.topic, found.group, found.queue_id, int(value["so"]), found.pop_ms)
        old = self._pending.get(key)
        if old is not None:  # put again by the real broker (ck rePut)
            old.entries.append(delivery.offset)
            return
        # Everything is read: a checkpoint that lacks something must not stay pending.
        wait_ms = max(found.pop_ms + int(value["it"]) - self._broker.clock.now_ms(), 0) + LATER_MS
        found.entries.append(delivery.offset)
        self._pending[key] = found
        self._later(key, wait_ms)

    def _later(self, key: tuple[str, str, int, int, int], wait_ms: int) -> None:
        wheel = self._broker.wheel
        wheel.call_at(wheel.now_ms() + wait_ms, lambda now_ms: self._due(key))

    def _due(self, key: tuple[str, str, int, int, int]) -> None:
        """Its time is over: what was not acknowledged goes to the retry topic."""
        found = self._pending.get(key)
        if found is None or self._broker.closed:
            return
        offsets = sorted(found.left)
        store = self._broker.store
        try:
            units = [(store.units(found.topic, found.queue_id, offset, 1) or [(-1, 1, 0)])[0] for offset in offsets]
            messages = store.get_many([(unit[0], unit[1]) for unit in units])
        except Cold as cold:
            self._broker.fetch(cold, key, self._due)
            return
        except OSError as error:
            log.error("group %s: %d unacknowledged pops cannot be read: %s", found.group, len(offsets), error)
            self._later(key, AGAIN_MS)
            return
        batch = [message for message in messages if message is not None]
        if not batch:
            self._over(key)
            return
        try:
            topic = self._retry_topic(found)
        except GantryError as error:
            log.error(
                "group %s: %d unacknowledged pops cannot be delivered again: %s", found.group, len(batch), error.text
            )
            self._later(key, AGAIN_MS)
            return
        self._broker.submit([retry(message, topic, found.pop_ms) for message in batch], key, self._stored)

    def _retry_topic(self, found: Checkpoint) -> str:
        if found.topic.startswith(names.RETRY_PREFIX):
            return found.topic
        name = f"{names.RETRY_PREFIX}{found.group}_{found.topic}"
        if self._broker.topics.get(name) is None:
            self._broker.topics.create(TopicConfig(name, 1, 1))
        return name

    def _stored(self, key: tuple[str, str, int, int, int], results: Any) -> None:
        if isinstance(results, GantryError) or any(type(result) is not int for result in results):
            self._later(key, AGAIN_MS)
        else:
            self._over(key)

    def _over(self, key: tuple[str, str, int, int, int]) -> None:
        found = self._pending.pop(key)
        self._settle(found.cursor, found.entries)
        while self._waiting and len(self._pending) < CHECKPOINTS_MAX:
            self._read(self._waiting.popitem()[1])

    def _settle(self, cursor_id: int, offsets: list[int]) -> None:
        cursors = self._broker.cursors
        cursors.settle([(cursor_id, offset, Outcome.ACK) for offset in offsets])
        cursor = cursors.by_id.get(cursor_id)
        if cursor is not None:
            self._commit(cursor)

    def _commit(self, cursor: Cursor) -> None:
        """Where a real broker goes on: what is worked off here is not to be repeated there, what is not is not to be passed over."""
        offset = cursor.window.floor - 1
        if self._broker.offsets.query(GROUP, cursor.topic, cursor.queue_id) != offset:
            self._broker.commits.commit(GROUP, cursor.topic, cursor.queue_id, offset)


def retry(message: Message, topic: str, pop_ms: int) -> Message:
    """The message as it is delivered again (PopReviveService.reviveRetry)."""
    text = message.properties
    if message.reconsume_times == 0 or not props.find(text, "1ST_POP_TIME"):
        if text and not text.endswith(props.PAIR_END):
            text += props.PAIR_END
        text += b"1ST_POP_TIME\x01%d\x02" % pop_ms
    copy = Message(topic, message.body, text, message.tag, props.index_keys(text), 0, message.born_ms)
    copy.born_host, copy.flag = message.born_host, message.flag
    copy.sys_flag = message.sys_flag & ~sysflag.STORE_HOST_V6
    copy.reconsume_times = message.reconsume_times + 1
    return copy
