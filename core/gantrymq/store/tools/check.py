"""Checking a whole store, without changing it: records and their CRCs, queues against the log in both directions, index, checkpoint; light
queues in check_lights.py.

One pass over the log in order: each record is looked up in its queue and in the index, whose entries stand in log order too. Then
one pass over the queues' units, which finds those that no record accounts for. What recovery would make again is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gantrymq.model import properties as props
from gantrymq.model.dialect import DialectError, read_json
from gantrymq.model.message import Message
from gantrymq.model.names import FORWARDED_TOPIC, LMQ_PREFIX, OWN_LIGHT_PREFIX, is_own_system_topic, java_hash
from gantrymq.store.checkpoints.positions import CHECKPOINT
from gantrymq.store.index.geometry import ROCKETMQ_SLOTS, IndexBytes, find_slots, first_unreachable, unreachable
from gantrymq.store.index.index_file import PROBED_ENTRIES
from gantrymq.store.index.key_hashes import key_hash
from gantrymq.store.log import record
from gantrymq.store.log.missing import Gap, describe, gaps_of
from gantrymq.store.log.recovery import FILLER_TOPIC, check_record
from gantrymq.store.queues.consume_queue import HOLE_SIZE, Unit
from gantrymq.store.schedule import WAITING_TOPICS
from gantrymq.store.tools.check_lights import LightCheck
from gantrymq.store.tools.inspect import QueueImage, StoreImage
from gantrymq.store.tools.report import Report, Tell

CODES_MAX: Final = 100_000
"""Tags whose code is remembered."""
TIME_OFF_MS: Final = 3_600_000
"""A store time so far off its neighbours' is noted: clocks are set by an hour in summer."""
_STEP: Final = 1024 * 1024
_CONFIG_FILES: Final = ("topics", "subscriptionGroup", "consumerOffset", "lmqConsumerOffset", "delayOffset")


def code_of(message: Message, codes: dict[str, int]) -> int:
    """Tag code of a record, remembered by tag."""
    code = codes.get(message.tag)
    if code is None:
        if len(codes) >= CODES_MAX:
            codes.clear()
        code = codes[message.tag] = java_hash(message.tag)
    return code


def places_of(message: Message) -> Iterator[tuple[str, int, int]]:
    """(queue's topic, queue id, offset) of every ConsumeQueue that a record is in."""
    if message.sys_flag & 4 or message.queue_id < 0:
        return
    yield message.topic, message.queue_id, message.queue_offset
    if message.dispatch:
        for name, offset in record.dispatch_of(message.dispatch)[0]:
            if name.startswith(LMQ_PREFIX) and not name.startswith(OWN_LIGHT_PREFIX):
                yield name, 0, offset


def hashes_of(message: Message) -> set[int]:
    """Key hashes that the index must hold for a record."""
    if message.sys_flag & 12 == 12 or message.topic == FORWARDED_TOPIC:
        return set()
    return {key_hash(message.topic, key) for key in props.index_keys(message.properties)}


class StoreTimes:
    """Store times that both neighbours contradict: a clock that was set there and back, or a changed byte. No damage, for nobody knows which."""

    def __init__(self) -> None:
        self._last: list[tuple[int, int]] = []
        self.count = 0
        self.first = -1
        """Position of the first such record."""

    def saw(self, at: int, ms: int) -> None:
        """The next record of the log, stored at `ms`."""
        if len(self._last) == 2:
            (_, before), (place, between) = self._last
            if before <= ms and not before - TIME_OFF_MS <= between <= ms + TIME_OFF_MS:
                self.count += 1
                self.first = place if self.first < 0 else self.first
            del self._last[0]
        self._last.append((at, ms))


class Checker:
    """One check of one directory."""

    def __init__(self, image: StoreImage, index_slots: int = 0, tell: Tell = lambda what, done, total: None) -> None:
        self._image = image
        self._slots = index_slots
        self._tell = tell
        self.report = Report(str(image.directory), image.clean, image.running, image.log.min_position)
        self._derived = image.derived(1 << 62)
        self._codes: dict[str, int] = {"": 0}
        self._matched: dict[tuple[str, int], int] = {}
        self._missing: dict[tuple[str, int], list[int]] = {}
        self._fillers: list[tuple[int, int]] = []
        self._without_queue = 0
        self._newest_ms = 0
        self._times = StoreTimes()
        self._strays: list[tuple[int, int]] = []
        self._unindexed: list[int] = []
        self._before_index = 0
        self._without_index = 0
        self._known_topics = self._read_topics()
        self._lights = LightCheck(image, self.report, tell)

    def run(self) -> Report:
        """Check everything. The image stays open."""
        entries = self._index_entries()
        self._check_log(entries)
        self._check_units()
        try:
            self._lights.finish(self._fillers)
        finally:
            self._lights.close()
        self._check_compacted()
        self._check_strays()
        self._check_checkpoint()
        self._check_config()
        if self._times.count:
            self.report.notes.append(
                f"{self._times.count} records were stored an hour or more before or after both neighbours (a clock that was set, or a"
                f" changed byte), the first at {self._times.first}"
            )
        if self._without_queue:
            self.report.notes.append(f"{self._without_queue} records of topics that were deleted")
        if self._without_index:
            self.report.bad("index", str(self._image.directory / "index"),
                            f"{self._without_index} records with keys, and no index file with an entry")  # fmt: skip
        if self._before_index:
            self.report.notes.append(f"{self._before_index} records with keys are older than the index")
        return self.report

    def _read_topics(self) -> set[str] | None:
        data = self._image.read_file(self._image.directory / "config" / "topics.json")
        try:
            return set(read_json(data)["topicConfigTable"])
        except (DialectError, KeyError, TypeError):
            return None

    # --- the log

    def _check_log(self, entries: Iterator[tuple[int, int]]) -> None:
        image, report = self._image, self.report
        for base in image.log.short:
            if base != image.log.bases[-1] or image.clean:
                report.bad(
                    "log", f"segment {base:020d}", f"it is shorter than the others ({image.log.file_size} bytes)"
                )
        positions, size = image.positions, image.log.file_size or image.positions.sizes.log_file
        if image.known and size:
            gaps = gaps_of(image.log.lengths, size, positions.begin, positions.flushed)
            for gap in gaps:
                if not gap.short:  # a short segment is named above, or what it lacks is below
                    report.bad("log", str(image.log.directory), describe([gap], size))
        elif image.log.missing:
            lost = [Gap(base, base + size, False) for base in sorted(image.log.missing)]
            report.bad("log", str(image.log.directory), describe(lost, size))
        told = end = image.log.min_position
        waiting = next(entries, None)
        first_entry = waiting[0] if waiting is not None else -1
        for at, size, message, bad in image.walk():
            if bad is not None:
                if bad.lost:
                    report.bad("log", f"position {at}", f"{size} bytes are no valid record")
                else:
                    report.notes.append(f"torn tail of {size} bytes at {at}: recovery cuts it")
                    break
            end = at + size
            if message is None:
                if size == image.log.file_size:  # stands for a segment whose loss was accepted
                    self._fillers.append((at, size))
                continue
            report.records += 1
            self._newest_ms = max(self._newest_ms, message.store_ms)
            if message.topic == FILLER_TOPIC[: len(message.topic)] and message.sys_flag & 12 == 12:
                self._fillers.append((at, size))
                continue
            self._times.saw(at, message.store_ms)
            if odd := record.oddness(message):
                report.bad("log", f"position {at}", f"the record of {size} bytes has an impossible field: {odd}")
            self._lights.saw(message, at, size)
            if at < self._derived:
                self._check_record(message, at, size)
                found = set()
                while waiting is not None and waiting[0] <= at:
                    if waiting[0] == at:
                        found.add(waiting[1])
                    elif waiting[0] >= image.log.min_position:
                        self._stray(waiting)
                    waiting = next(entries, None)
                if first_entry >= 0 and not hashes_of(message) <= found:
                    if at < first_entry:
                        self._before_index += 1
                    else:
                        self._unindexed.append(at)
                elif first_entry < 0 and image.known:
                    self._without_index += bool(hashes_of(message))
            if at - told >= _STEP:
                told = at
                self._tell("log", at - image.log.min_position, image.log.limit - image.log.min_position)
        while waiting is not None:
            self._stray(waiting)
            waiting = next(entries, None)
        report.log_end = end
        if self._derived < end:
            report.recovered_from = self._derived

    def _check_record(self, message: Message, at: int, size: int) -> None:
        code = code_of(message, self._codes)
        for topic, queue_id, offset in places_of(message):
            key = (topic, queue_id)
            queue = self._image.queue(topic, queue_id)
            if queue is None:
                if self._topic_exists(topic):
                    self._missing.setdefault(key, []).append(offset)
                else:
                    self._without_queue += 1
                continue
            unit = queue.unit(offset)
            if unit[0] == at and unit[1] == size:
                self._matched[key] = self._matched.get(key, 0) + 1
                if unit[2] != code and message.topic not in WAITING_TOPICS:
                    self.report.bad(
                        "queue",
                        f"{topic}/{queue_id} offset {offset}",
                        f"tag code {unit[2]}, but the record's tag has {code}",
                    )
            elif not self._older_life(queue, offset, unit, at):
                self._missing.setdefault(key, []).append(offset)
            else:
                self._without_queue += 1

    def _topic_exists(self, topic: str) -> bool:
        known = self._known_topics
        return known is None or topic in known or topic in self._image.names or is_own_system_topic(topic)

    def _older_life(self, queue: QueueImage, offset: int, unit: Unit, at: int) -> bool:
        """True if the record is of a topic that was deleted and made again: its queue counts anew, with later records."""
        if 0 < unit[1] != HOLE_SIZE and unit[0] > at:
            return check_record(self._image.log, unit[0])[0] == unit[1]
        for first in range(queue.first_offset, min(queue.next_offset, queue.first_offset + 1000)):
            position, size, _ = queue.unit(first)
            if size != HOLE_SIZE:
                return position > at and first <= offset
        return False

    # --- queues

    def _check_units(self) -> None:
        for (topic, queue_id), offsets in self._missing.items():
            where = f"{topic}/{queue_id} offset {offsets[0]}"
            self.report.bad("queue", where, f"{len(offsets)} records of the log are not in their queue, this the first")
        # A real broker with enableLmq makes queues for our light queues' names; we keep those elsewhere.
        names = [place for place in self._image.queue_names() if not place[0].startswith(OWN_LIGHT_PREFIX)]
        for number, (topic, queue_id) in enumerate(names):
            queue = self._image.queue(topic, queue_id)
            if queue is not None:
                self._check_queue(queue)
            if number % 100 == 0:
                self._tell("queues", number, len(names))

    def _check_queue(self, queue: QueueImage) -> None:
        low, high = self._image.log.min_position, self._derived
        live = 0
        for offset in range(queue.first_offset, queue.next_offset):
            position, size, _ = queue.unit(offset)
            live += size != HOLE_SIZE and low <= position < high
        self.report.units += queue.next_offset - queue.first_offset
        if live == self._matched.get((queue.topic, queue.queue_id), 0):
            return
        for offset in range(queue.first_offset, queue.next_offset):
            position, size, _ = queue.unit(offset)
            if size != HOLE_SIZE and low <= position < high:
                self._check_unit(queue, offset, position, size)

    def _check_unit(self, queue: QueueImage, offset: int, position: int, size: int) -> None:
        found, message = check_record(self._image.log, position)
        if message is not None and found == size and (queue.topic, queue.queue_id, offset) in places_of(message):
            return
        if any(begin <= position < begin + length for begin, length in self._fillers):
            return
        where = f"{queue.topic}/{queue.queue_id} offset {offset}"
        if position >= self.report.log_end:
            self.report.bad("queue", where, f"names position {position}, beyond the log's end {self.report.log_end}")
        else:
            self.report.bad("queue", where, f"names {size} bytes at position {position}, where that record is not")

    # --- the index

    def _index_entries(self) -> Iterator[tuple[int, int]]:
        """(position, hash) of every entry that recovery would keep, in the order of the files. Chains are checked on the way."""
        image = self._image
        names = [name for name in image.files.list_dir(image.directory / "index") if name.isdecimal()]
        hints = [self._slots] if self._slots else [image.positions.sizes.index_slots, ROCKETMQ_SLOTS]
        for number, name in enumerate(names):
            handle = image.files.open(image.directory / "index" / name, False)
            try:
                index = IndexBytes(image.files, handle)
                slots = self._slots or find_slots(index, hints, PROBED_ENTRIES) or self._damaged_slots(index, hints)
                if not slots:
                    if index.used:
                        self.report.notes.append(f"index {name}: geometry unknown (give --index-slots)")
                    continue
                if slots not in hints:
                    hints.insert(0, slots)
                last = number == len(names) - 1
                yield from self._entries_of(
                    index, name, slots, settled=image.clean or (not last and index.end_position < self._derived)
                )
            finally:
                image.files.close(handle)

    def _damaged_slots(self, index: IndexBytes, hints: list[int]) -> int:
        """Slots of a file whose entries do not fit any number: known from our own positions or from the files before it."""
        for slots in hints:
            told = slots != ROCKETMQ_SLOTS or self._image.known
            if told and slots and index.entries_of(slots) > index.used:
                return slots
        return 0

    def _entries_of(self, index: IndexBytes, name: str, slots: int, settled: bool) -> Iterator[tuple[int, int]]:
        if not index.entries_of(slots) or index.used >= index.entries_of(slots):
            self.report.bad("index", name, f"{index.used} entries do not fit its length with {slots} slots")
            return
        kept = index.used
        if not settled:  # recovery makes the slots again from what it keeps
            kept = next(
                (
                    entry
                    for entry, one in enumerate(index.entries(slots, 1, index.used))
                    if one[1] >= self._derived or not any(one)
                ),
                index.used,
            )
            lost = first_unreachable(index, slots, kept)
        else:
            lost = unreachable(index, slots, tell=lambda done: self._tell(f"index {name}", done, index.used))
        if lost:
            self.report.bad("index", name, f"{lost} entries cannot be reached from their slot")
        for hashed, position, _, _ in index.entries(slots, 1, kept):
            self.report.index_entries += 1
            if position < self._derived:
                yield position, hashed

    def _stray(self, entry: tuple[int, int]) -> None:
        if entry[0] >= self._image.log.min_position:
            self._strays.append(entry)

    def _check_strays(self) -> None:
        """Entries out of order, and records that lacked one."""
        out_of_order = set()
        for position, hashed in self._strays:
            _, message = check_record(self._image.log, position)
            if message is not None and hashed in hashes_of(message):
                out_of_order.add(position)
            elif not any(begin <= position < begin + length for begin, length in self._fillers):
                self.report.bad(
                    "index", f"position {position}", f"an entry of hash {hashed} names a record without that key"
                )
        lacking = [position for position in self._unindexed if position not in out_of_order]
        if lacking:
            self.report.bad(
                "index", f"position {lacking[0]}", f"{len(lacking)} records lack an entry for a key, this the first"
            )

    # --- the rest

    def _check_compacted(self) -> None:
        """Files of compacted queues: footer and units by their CRCs, each record by its own, and that it is the one of its offset."""
        compacted = self._image.compacted
        for path in compacted.damaged:
            self.report.bad("compaction", str(path), "its footer or its units are damaged: it is not used")
        for (topic, queue_id), file in sorted(compacted.queues.items()):
            for offset, tag, stored in compacted.records(topic, queue_id, 0):
                self.report.compacted_records += 1
                where = f"{file.path.name} of {topic}/{queue_id}, offset {offset}"
                try:
                    message = record.decode(stored)
                except record.RecordError as error:
                    self.report.bad("compaction", where, f"no valid record: {error}")
                    continue
                place = (message.topic, message.queue_id, message.queue_offset)
                if place != (topic, queue_id, offset) or tag != code_of(message, self._codes):
                    self.report.bad("compaction", where, f"it has the record of {place}")

    def _check_checkpoint(self) -> None:
        image, report = self._image, self.report
        times = image.checkpoint
        if len(times) != len(CHECKPOINT.format.replace(">", "")):
            if times:
                report.bad("checkpoint", "checkpoint", f"it has less than {CHECKPOINT.size} bytes")
            elif report.records:
                report.notes.append("there is no checkpoint")
        elif image.clean and report.records and max(times[:3]) > self._newest_ms:
            report.bad(
                "checkpoint",
                "checkpoint",
                f"it names time {max(times[:3])}, but the newest record has {self._newest_ms}",
            )
        elif min(times) < 0:
            report.bad("checkpoint", "checkpoint", "it names a negative time or position")
        if image.known and image.clean:
            for name, position in (("flushed", image.positions.flushed), ("derived", image.positions.derived)):
                if position > report.log_end:
                    report.bad(
                        "checkpoint",
                        "gantry/positions",
                        f"{name} position {position} is beyond the log's end {report.log_end}",
                    )

    def _check_config(self) -> None:
        for name in _CONFIG_FILES:
            data = self._image.read_file(self._image.directory / "config" / f"{name}.json")
            if data:
                try:
                    read_json(data)
                except DialectError as error:
                    self.report.bad("config", f"config/{name}.json", f"it is not JSON: {error}")
