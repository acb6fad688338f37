"""Dispatching the records of a stretch of the log again, with the offsets that they carry: queues, index and light queues.

The log was found sound before (recovery.py), so nothing is checked here but that queue offsets follow each other (doubts.py). An ordinary record
is taken apart in place, a window of the log at a time; what is rare (IPv6 hosts, V2, light queues, continuation records) becomes a `Message`
first.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from gantrymq.model import properties as props
from gantrymq.model.errors import GantryError
from gantrymq.model.names import FORWARDED_TOPIC, LMQ_PREFIX, OWN_LIGHT_PREFIX, light_id
from gantrymq.store.light.queues import LIGHT_MAX
from gantrymq.store.log import record
from gantrymq.store.log.groups import DISPATCH_TOPIC, continuation_pairs, origin_of
from gantrymq.store.log.record import BLANK_SIZE, HEAD, MAGIC_BLANK, MAGIC_V1, PREFIX
from gantrymq.store.schedule import WAITING_TOPICS, waiting_code
from gantrymq.store.start.doubts import Doubts, LightEntries

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.model.message import Message
    from gantrymq.store.appender import Appender
    from gantrymq.store.index.index_file import Index
    from gantrymq.store.light.queues import LightQueues
    from gantrymq.store.log.commit_log import CommitLog
    from gantrymq.store.log.recovery import RecoveryReport
    from gantrymq.store.queues.consume_queue import Unit
    from gantrymq.store.queues.queue_table import Topic
    from gantrymq.store.start.doubts import TopicQueues

log = logging.getLogger(__name__)

WINDOW: Final = 1024 * 1024
"""Read and dispatched at a time; then queues and index are written."""
LIGHT_UNITS_MAX: Final = 65_536
"""Entries of light queues that wait for a later one to tell whether an earlier one is right: 5 MiB."""
NAMES_MAX: Final = 65_536
"""Topics remembered by the bytes of their name."""

Indexed = tuple[str, tuple[str, ...], int, int]


class Replay:
    """One replay. `run` once."""

    def __init__(
        self, log_: CommitLog, queues: TopicQueues, lights: LightQueues, index: Index, appender: Appender
    ) -> None:
        self._log = log_
        self._queues = queues.table
        self._doubts = Doubts(queues)
        self._light_doubts = Doubts(LightEntries(lights))
        self._lights = lights
        self._index = index
        self._appender = appender
        self._lights_from = lights.log_position
        self._derived = 0
        self._group: Message | None = None
        self._inside_group = False
        self._topics: dict[bytes, Topic | None] = {}

    def run(
        self, start: int, derived: int, end: int, report: RecoveryReport, progress: Callable[[int, int], None] | None
    ) -> None:
        """Dispatch [start, end); records below `derived` only into light queues."""
        self._derived = derived
        at = start
        while at < end:
            window = self._log.read(at, min(WINDOW, end - at))
            size, magic = PREFIX.unpack_from(window)
            if size > len(window) and magic != MAGIC_BLANK:
                window = self._log.read(at, size)
            at = self._window(window, at, end, report)
            self._queues.write_pending()
            self._index.write_entries()
            if not self._inside_group and self._may_write_lights():
                self._lights.write_pending(max(at, self._lights_from))
            if progress is not None:
                progress(at - start, end - start)
        self._doubts.finish()
        self._light_doubts.finish()

    def _may_write_lights(self) -> bool:
        """A frame says that all before it was dispatched: it waits for the claims, but not for ever."""
        if self._light_doubts.waiting and self._lights.pending_units > LIGHT_UNITS_MAX:
            self._light_doubts.finish()
        return not self._light_doubts.waiting

    def _window(self, data: bytes, base: int, end: int, report: RecoveryReport) -> int:
        """Dispatch the whole records in `data`; returns where the next one begins."""
        run: list[Indexed] = []
        unpack, length = HEAD.unpack_from, len(data)
        last_ms, records, derived = self._appender.last_ms, report.records, self._derived
        place = 0
        while place + BLANK_SIZE <= length:
            size, magic = PREFIX.unpack_from(data, place)
            if magic == MAGIC_BLANK:
                place += size
                break
            if place + size > length:
                break
            records += 1
            (
                _, _, _, queue_id, _, offset, at, flags, _, _, store_ms, _, _, _, body_length
            ) = unpack(data, place)  # fmt: skip
            name_at = place + HEAD.size + body_length + 1
            following = place + size
            if magic == MAGIC_V1 and not flags & 0x3C and at >= derived:
                properties_at = name_at + data[name_at - 1] + 2
                properties = data[properties_at:following]
                name = data[name_at : properties_at - 2]
                topic = self._topics[name] if name in self._topics else self._topic(name)
                if (
                    topic is not None
                    and b"INNER_MULTI_" not in properties
                    and b"GANTRY_DISPATCH_MORE" not in properties
                ):
                    if store_ms > last_ms:
                        last_ms = store_ms
                    keys = props.find(properties, props.KEYS)
                    unique = props.find(properties, props.UNIQ_KEY)
                    names = (unique, *[key for key in keys.split(" ") if key]) if keys else (unique,)
                    if unique or keys:
                        run.append((topic.name, names if unique else names[1:], at, store_ms))
                    queue = topic.queues.get(queue_id)
                    if queue is not None and queue.next_offset == offset and queue.pending:
                        queue.pending += (at, size, self._appender.code_of(record.tag_of(properties)))
                        queue.next_offset = offset + 1
                    elif queue_id >= 0:
                        unit = (at, size, self._appender.code_of(record.tag_of(properties)))
                        self._unit(topic.name, queue_id, offset, unit)
                    self._inside_group = False
                    place = following
                    continue
            self._message(record.decode(data, place, check_crc=False), run)
            last_ms = max(last_ms, store_ms if not flags & 0x30 else 0)
            place = following
        self._appender.last_ms = last_ms
        report.records = records
        self._index.add(run)
        return base + place

    def _topic(self, name: bytes) -> Topic | None:
        """The topic if its records are ordinary ones; None sends them the long way."""
        topic: Topic | None = None
        text = name.decode("utf-8", "replace")
        if text not in (DISPATCH_TOPIC, FORWARDED_TOPIC) and text not in WAITING_TOPICS:
            try:
                topic = self._queues.topic(text)
            except GantryError:
                topic = None
        if len(self._topics) >= NAMES_MAX:
            self._topics.clear()
        self._topics[name] = topic
        return topic

    def _message(self, message: Message, run: list[Indexed]) -> None:
        """A record of any kind."""
        at = message.physical_offset
        self._appender.last_ms = max(self._appender.last_ms, message.store_ms)
        group = self._group
        if message.topic == DISPATCH_TOPIC and group is not None and origin_of(message) == group.physical_offset:
            if group.physical_offset >= self._lights_from:
                self._into_lights(group, continuation_pairs(message))
        elif message.dispatch:
            self._group = message
            if at >= self._lights_from:
                self._dispatch(message)
        self._inside_group = message.topic == DISPATCH_TOPIC or record.MORE_MARK in message.dispatch
        if at >= self._derived:
            self._into_queue(message, run)

    def _into_queue(self, message: Message, run: list[Indexed]) -> None:
        transaction = message.sys_flag & 12
        if transaction != 12 and message.topic != FORWARDED_TOPIC:
            keys = props.find(message.properties, props.KEYS).split(" ")
            unique = props.find(message.properties, props.UNIQ_KEY)
            names = tuple([key for key in (unique, *keys) if key])
            if names:
                run.append((message.topic, names, message.physical_offset, message.store_ms))
        if not transaction & 4 and message.queue_id >= 0:
            if message.topic in WAITING_TOPICS:
                code = waiting_code(message, self._appender.delays_ms)
            else:
                code = self._appender.code_of(message.tag)
            unit = (message.physical_offset, message.size, code)
            self._unit(message.topic, message.queue_id, message.queue_offset, unit)
            for name, offset in record.dispatch_of(message.dispatch)[0] if message.dispatch else ():
                if name.startswith(LMQ_PREFIX) and not name.startswith(OWN_LIGHT_PREFIX):
                    self._unit(name, 0, offset, unit, doubted=False)  # a real broker's own light queue has files

    def _unit(self, name: str, queue_id: int, offset: int, unit: Unit, doubted: bool = True) -> None:
        try:
            topic = self._queues.topic(name)
        except GantryError:
            log.error("record at %d names queue %r, which is not legal: it is left out", unit[0], name)
            return
        queue = topic.queues.get(queue_id)
        known = queue is not None and queue.next_offset
        if queue is None:
            queue = self._queues.add_queue(topic, queue_id)
        if doubted and (not known or offset != queue.next_offset):
            self._doubts.meet(queue, offset, unit)
            return
        if not queue.pending:
            self._queues.dirty.append(queue)
        queue.replay(offset, unit)

    def _dispatch(self, message: Message) -> None:
        pairs = []
        for name, offset in record.dispatch_of(message.dispatch)[0]:
            if name.startswith(OWN_LIGHT_PREFIX):
                try:
                    pairs.append((light_id(name), offset))
                except ValueError:
                    continue
        self._into_lights(message, pairs)

    def _into_lights(self, message: Message, pairs: list[tuple[int, int]]) -> None:
        unit = (message.physical_offset, message.size, self._appender.code_of(message.tag))
        for light, offset in pairs:
            if not 0 < light < LIGHT_MAX:
                continue
            following = self._lights.next_offset(light)
            if not following or offset == following:
                self._lights.replay(light, offset, unit)
            else:
                self._light_doubts.meet(light, offset, unit)
