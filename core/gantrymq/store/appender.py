"""The hot path: a batch gets its offsets, becomes bytes and is dispatched in memory, in one pass.

Everything here runs once per message. It allocates no object that is not needed afterwards, looks nothing up twice and calls no
Python function for an ordinary message; what is rare (IPv6 hosts, light queues, rolling a segment) is a branch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from itertools import accumulate, repeat
from sys import byteorder
from typing import TYPE_CHECKING, Final
from zlib import crc32

from gantrymq.model.limits import DISPATCH_INLINE_MAX
from gantrymq.model.message import LOOPBACK_HOST, Message
from gantrymq.model.names import java_hash, light_name
from gantrymq.model.properties import OWN_CRC_SIZE, own_crc
from gantrymq.model.sysflag import STORE_HOST_V6
from gantrymq.store.light.recent import RECENT_RECORD_MAX, Recent
from gantrymq.store.log import record
from gantrymq.store.log.groups import CONTINUATION, DISPATCH_TOPIC, PAIR, group_head
from gantrymq.store.log.record import HEAD, SHORT
from gantrymq.store.log.run import RUN_FLAG, Run, hash_keys
from gantrymq.store.schedule import DELAYS_MS, MARK, code_of_tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gantrymq.store.light.queues import LightQueues
    from gantrymq.store.light.spread import Spread
    from gantrymq.store.log.commit_log import CommitLog
    from gantrymq.store.queues.consume_queue import ConsumeQueue
    from gantrymq.store.queues.queue_table import QueueTable
    from gantrymq.store.queues.queue_table import Topic as QueueTopic

CODES_MAX: Final = 65_536
"""Cached tag codes; the cache is emptied when it is full."""
TEXTS_MAX: Final = 1024
"""Cached dispatch texts (up to 1 KiB each), one per distinct set of light queues."""
CONTINUATION_PAIRS_MAX: Final = 16_384
"""Light queue entries per continuation record (256 KiB)."""
CLOCK_BACK_MAX_MS: Final = 600_000
"""Store times do not go back with the clock, so that queues can be searched by time; beyond this the clock had been wrong."""
_FIXED: Final = HEAD.size + SHORT.size
_SEPARATED: Final = (b"", b"\x02")
"""Last bytes of properties that another pair may follow at once."""
PARTS: Final = 6
"""Of a record in a plan: head, body, topic, length of the properties, properties, dispatch pairs."""


class _Plan:
    """Bytes of one append batch by segment."""

    __slots__ = ("file_size", "limit", "parts", "start", "writes")

    def __init__(self, position: int, file_size: int) -> None:
        self.file_size = file_size
        self.start = position
        self.limit = position - position % file_size + file_size - record.BLANK_SIZE
        """A record must end here or before: its segment keeps room for a blank."""
        self.parts: list[bytes] = []
        self.writes: list[tuple[int, list[bytes], int]] = []
        """Position, parts, bytes."""

    def finish(self, position: int) -> None:
        """Nothing more comes before `position`."""
        if position > self.start:
            self.writes.append((self.start, self.parts, position - self.start))

    def roll(self, position: int) -> int:
        """Fill the segment with a blank record; returns the begin of the next one."""
        following = self.limit + record.BLANK_SIZE
        self.parts.append(record.blank(following - position))
        self.writes.append((self.start, self.parts, position + record.BLANK_SIZE - self.start))
        self.start = following
        self.limit += self.file_size
        self.parts = []
        return following


class Appender:
    """The hot path: offsets, bytes and dispatch of a batch. State shared with `MessageStore`, which owns it."""

    def __init__(self, log_: CommitLog, queues: QueueTable, lights: LightQueues) -> None:
        self._log = log_
        self._queues = queues
        self._lights = lights
        self.position = 0
        """Written position: the end of the log."""
        self.last_ms = 0
        self.more = 0
        """Records of the last batch beyond one for each of its messages: those of runs."""
        self.spread: Spread | None = None
        """The record whose queues get it a few at a time, or are to."""
        self.delays_ms = DELAYS_MS
        """By level of SCHEDULE_TOPIC_XXXX, for the times in its units."""
        self._now_ms = 0
        """Store time of the batch that is being encoded."""
        self.own_crcs = False
        """Records end with a CRC of all that is before it."""
        self.store_host = LOOPBACK_HOST
        self._host_flag = 0
        self.recent = Recent()
        self.index_pending: deque[tuple[str, tuple[str, ...], int, int]] = deque()
        """(topic, keys, physical offset, store ms) of records not yet in the index; without keys: those of a block, which are in `hashed`."""
        self.hashed: dict[int, tuple[list[int], list[int], int]] = {}
        """By the position of a block's first record: hashes as the index has them, the place of each one's record, number of records."""
        self.hashed_more = 0
        """Records in `hashed` beyond one for each block."""
        self._codes: dict[str, int] = {"": 0}
        self._lengths = [SHORT.pack(length) for length in range(1024)]
        self._texts: dict[tuple[int, ...], bytes] = {}
        self._client_texts: dict[tuple[tuple[str, ...], tuple[int, ...]], bytes] = {}

    def append(self, batch: Sequence[Message], lights: Sequence[tuple[int, ...]], now_ms: int) -> int:
        """Write and dispatch; returns the new end. On an exception nothing has changed."""
        start = self.position
        if 0 < self.last_ms - now_ms <= CLOCK_BACK_MAX_MS:
            now_ms = self.last_ms
        self._now_ms = now_ms
        self._host_flag = STORE_HOST_V6 if len(self.store_host) > len(LOOPBACK_HOST) else 0
        self.more = 0
        plan = _Plan(start, self._log.file_size)
        try:
            end = self._encode(batch, lights, now_ms, plan, start)
            for at, parts, count in plan.writes:
                self._log.write_parts(at, parts, count)
        except BaseException:
            self._take_back(batch, lights, start)
            raise
        self.position = end
        self.last_ms = now_ms
        self.recent.appended(end)
        return end

    def _encode(
        self, batch: Sequence[Message], lights: Sequence[tuple[int, ...]], now_ms: int, plan: _Plan, position: int
    ) -> int:
        topics, codes, dirty = self._queues.open_topics, self._codes, self._queues.dirty
        index, host, lengths, host_flag = self.index_pending, self.store_host, self._lengths, self._host_flag
        limit, parts, pack, own_crcs, separated = plan.limit, plan.parts, HEAD.pack, self.own_crcs, True
        for message, targets in zip(batch, lights, strict=True):
            body, properties = message.body, message.properties
            flags = message.sys_flag | host_flag
            topic = topics.get(message.topic) or self._queues.topic(message.topic)
            name = topic.encoded
            dispatch = message.dispatch = b""
            if (targets or message.lmq) and not flags & 4:
                if self.spread is not None:
                    self._let_through(self.spread, message, targets)
                dispatch = message.dispatch = self.dispatch_text(targets, properties, message.lmq)
            length, properties_length = len(body), len(properties) + len(dispatch)
            if own_crcs:
                separated = bool(dispatch) or not properties or properties[-1] == 2
                properties_length += OWN_CRC_SIZE if separated else OWN_CRC_SIZE + 1
            size = _FIXED + length + len(name) + properties_length
            if flags & 0x10030:  # hosts of 20 bytes, or a run
                if flags & RUN_FLAG:
                    position = self._encode_run(message, flags & ~RUN_FLAG, topic, now_ms, plan, position)
                    limit, parts = plan.limit, plan.parts
                    continue
                flags = message.sys_flag = flags if host_flag else flags & ~STORE_HOST_V6
                pack = record.heads(flags).pack
                size += record.heads(flags).size - HEAD.size
            if position + size > limit:
                position = plan.roll(position)
                limit, parts = plan.limit, plan.parts
            queue_id = message.queue_id
            queue = topic.queues.get(queue_id) or self._queues.add_queue(topic, queue_id)
            offset = 0 if flags & 4 else queue.next_offset  # prepared and rolled back records are in no queue
            message.born_ms = message.born_ms or now_ms
            parts += (
                pack(
                    size, topic.magic, crc32(body) & 0x7FFFFFFF, queue_id, message.flag, offset, position, flags,
                    message.born_ms, message.born_host, now_ms, host, message.reconsume_times, message.prepared_offset, length,
                ),
                body, name,
                lengths[properties_length] if properties_length < 1024 else SHORT.pack(properties_length),
                properties, dispatch,
            )  # fmt: skip
            if own_crcs:
                parts.append(own_crc(parts[-PARTS:], separated))
            if flags & 0x34:
                pack = HEAD.pack
            if not flags & 4:
                queue.next_offset = offset + 1
                code = codes.get(message.tag)
                if code is None:
                    code = self.tag_code(message.tag)
                pending = queue.pending
                if not pending:
                    dirty.append(queue)
                pending += (position, size, code)
                if dispatch:
                    self._enter(message, targets, (position, size, code))
            message.queue_offset, message.physical_offset, message.size = offset, position, size
            message.store_ms, message.store_host = now_ms, host
            if message.keys and flags & 12 != 12:
                index.append((message.topic, message.keys, position, now_ms))
            position += size
            if dispatch and (len(targets) > DISPATCH_INLINE_MAX or record.MORE_MARK in dispatch):
                position = self._continue(message, targets, now_ms, plan, position)
                limit, parts = plan.limit, plan.parts
        plan.finish(position)
        return position

    def _encode_run(self, run: Message, flags: int, topic: QueueTopic, now_ms: int, plan: _Plan, position: int) -> int:
        """The records of a run; they enter no light queue. Column by column: nothing is called for a record but what makes its head and CRC."""
        assert isinstance(run, Run)
        if run.grouped:
            position = self._encode((group_head(len(run.bodies)),), ((),), now_ms, plan, position)
            plan.writes.pop()  # `_encode` has finished the plan: its parts are still open
        queue = topic.queues.get(run.queue_id)
        if queue is None:
            queue = self._queues.add_queue(topic, run.queue_id)
        own_size = len(run.properties) + (OWN_CRC_SIZE if self.own_crcs else 0)
        text_sizes = [len(text) + own_size for text in run.texts]
        if self.own_crcs:
            text_sizes = [
                size if (run.properties or text)[-1:] in _SEPARATED else size + 1
                for size, text in zip(text_sizes, run.texts, strict=True)
            ]
        fixed = record.heads(flags).size + SHORT.size + len(topic.encoded)
        sizes = [fixed + len(body) + size for body, size in zip(run.bodies, text_sizes, strict=True)]
        run.born_ms = run.born_ms or now_ms
        run.queue_offset = queue.next_offset
        run.store_ms, run.store_host = now_ms, self.store_host
        run.positions.clear()
        hash_keys(run)
        first, count, least = 0, len(sizes), 0
        while first < count:
            ends = list(accumulate(sizes[first:] if first else sizes, initial=position))
            stop = first + max(bisect_right(ends, plan.limit) - 1, least)
            if stop > first:
                places = ends[: stop - first]
                self._encode_rows(run, flags, topic, queue, plan, first, places, sizes[first:stop], text_sizes)
                position = ends[stop - first]
                first = stop
            if first < count:
                position, least = plan.roll(position), 1
        self.more += count - 1
        run.physical_offset, run.size = run.positions[0], position - run.positions[0]
        return position

    def _encode_rows(
        self, run: Run, flags: int, topic: QueueTopic, queue: ConsumeQueue, plan: _Plan, first: int, places: list[int],
        sizes: list[int], text_sizes: list[int],
    ) -> None:  # fmt: skip
        """Those of a run from `first` on that begin at `places`, in one segment."""
        count = len(places)
        stop = first + count
        whole = not first and count == len(run.bodies)
        bodies, texts, tags = run.bodies, run.texts, run.tags
        if not whole:
            bodies, texts, tags = bodies[first:stop], texts[first:stop], tags[first:stop]
            text_sizes = text_sizes[first:stop]
        offset = queue.next_offset
        heads = map(
            record.heads(flags).pack, sizes, repeat(topic.magic), [crc32(body) & 0x7FFFFFFF for body in bodies], repeat(run.queue_id),
            run.flags if whole else run.flags[first:stop], range(offset, offset + count), places, repeat(flags), repeat(run.born_ms),
            repeat(run.born_host), repeat(run.store_ms), repeat(run.store_host), repeat(run.reconsume_times), repeat(run.prepared_offset),
            map(len, bodies),
        )  # fmt: skip
        lengths = self._lengths
        name, own = topic.encoded, run.properties
        parts = [own] * (PARTS * count)
        parts[::PARTS], parts[1::PARTS], parts[2::PARTS] = heads, bodies, [name] * count
        parts[3::PARTS] = [lengths[size] if size < 1024 else SHORT.pack(size) for size in text_sizes]
        parts[4::PARTS] = texts
        if self.own_crcs:
            parts = self._with_crcs(parts, own)
        plan.parts += parts
        codes = self._codes
        found = [codes.get(tag) for tag in tags]
        units = places * 3
        units[::3], units[1::3] = places, sizes
        units[2::3] = [self.tag_code(tag) if code is None else code for tag, code in zip(tags, found, strict=True)]
        if not queue.pending:
            self._queues.dirty.append(queue)
        queue.pending += units
        queue.next_offset = offset + count
        run.positions += places
        if run.hashes:
            self._index_block(run, first, places)
        else:
            keys = run.unique if whole else run.unique[first:stop]
            self.index_pending.extend(zip(repeat(run.topic), keys, places, repeat(run.store_ms)))

    @staticmethod
    def _with_crcs(parts: list[bytes], own: bytes) -> list[bytes]:
        """Parts of records, and the CRC of each behind its own."""
        found: list[bytes] = []
        for at in range(0, len(parts), PARTS):
            one = parts[at : at + PARTS]
            found += one
            found.append(own_crc(one, (own or one[PARTS - 2])[-1:] in _SEPARATED))
        return found

    def indexed(self, position: int) -> None:
        """What waited there does not wait any more."""
        block = self.hashed.pop(position, None) if self.hashed else None
        if block is not None:
            self.hashed_more -= block[2] - 1

    def _index_block(self, run: Run, first: int, places: list[int]) -> None:
        """What the index is to hold of a block's records: one entry that waits, without keys, and the hashes beside it."""
        count = len(places)
        if run.key_counts:
            counts = run.key_counts[first : first + count]
            begin = sum(run.key_counts[:first])
            hashes = run.hashes[begin : begin + sum(counts)]
            of_each = [place for place, keys in zip(places, counts, strict=True) for _ in range(keys)]
        else:
            keys = len(run.hashes) // len(run.bodies)
            hashes = run.hashes[first * keys : (first + count) * keys]
            of_each = places
            if keys > 1:
                of_each = places * keys
                for key in range(keys):
                    of_each[key::keys] = places
        self.hashed[places[0]] = (hashes, of_each, count)
        self.hashed_more += count - 1
        self.index_pending.append((run.topic, (), places[0], run.store_ms))

    def _let_through(self, spread: Spread, message: Message, targets: tuple[int, ...]) -> None:
        """A record is about to enter queues that have not got an older one yet: they get that first."""
        if message is not spread.message and spread.position >= 0 and not spread.left.isdisjoint(targets):
            spread.force(self._lights)

    def _enter(self, message: Message, targets: tuple[int, ...], unit: tuple[int, int, int]) -> None:
        """Dispatch a record into light queues: ours, and those of clients, which are ConsumeQueues of their own."""
        if self.spread is not None and message is self.spread.message:
            self.spread.begin(unit)
        else:
            self._lights.add_all(targets, *unit)
            if unit[1] <= RECENT_RECORD_MAX:
                self.recent.newer[unit[0]] = message
        for name in message.lmq:
            queue = self._client_queue(name)
            if not queue.pending:
                self._queues.dirty.append(queue)
            queue.pending += unit
            queue.next_offset += 1

    def _client_queue(self, name: str) -> ConsumeQueue:
        topic = self._queues.topic(name)
        queue = topic.queues.get(0)
        return queue if queue is not None else self._queues.add_queue(topic, 0)

    def _client_text(self, lmq: tuple[str, ...], targets: tuple[int, ...], properties: bytes) -> bytes:
        """As `dispatch_text` for a record that also enters clients' light queues: their names come first, and always inline."""
        inline = targets[: max(DISPATCH_INLINE_MAX - len(lmq), 0)]
        offsets = [self._client_queue(name).next_offset for name in lmq]
        separator = b"\x02" if properties and not properties.endswith(b"\x02") else b""
        while True:
            head = self._client_texts.get((lmq, inline))
            if head is None:
                names = ",".join([*lmq, *[light_name(light) for light in inline]]).encode()
                head = record.DISPATCH_MARK + names + b"\x02" + record.OFFSETS_MARK
                if len(self._client_texts) >= TEXTS_MAX:
                    self._client_texts.clear()
                self._client_texts[lmq, inline] = head
            places = [*offsets, *self._lights.offsets_of(inline)] if inline else offsets
            text = separator + head + b",".join([b"%d" % place for place in places]) + b"\x02"
            if len(inline) < len(targets):
                text += record.MORE_MARK + b"%d\x02" % (len(targets) - len(inline))
            if not inline or len(properties) + len(text) <= record.PAIRS_BYTES_MAX:
                return text
            inline = ()

    def dispatch_text(self, targets: tuple[int, ...], properties: bytes, lmq: tuple[str, ...] = ()) -> bytes:
        """The dispatch pairs for the offsets that the record is about to take. More than fit inline: their number only."""
        if lmq:
            return self._client_text(lmq, targets, properties)
        lights = self._lights
        inline = targets if len(targets) <= DISPATCH_INLINE_MAX else targets[:DISPATCH_INLINE_MAX]
        text = self._texts.get(inline)
        if text is None:
            names = ",".join([light_name(light) for light in inline]).encode()
            text = record.DISPATCH_MARK + names + b"\x02" + record.OFFSETS_MARK
            if len(self._texts) >= TEXTS_MAX:
                self._texts.clear()
            self._texts[inline] = text
        offsets = ",".join(map(str, lights.offsets_of(inline))).encode()
        separator = b"\x02" if properties and not properties.endswith(b"\x02") else b""
        more = len(targets) - len(inline)
        tail = b"\x02" if not more else b"\x02" + record.MORE_MARK + b"%d\x02" % more
        text = separator + text + offsets + tail
        if len(properties) + len(text) > record.PAIRS_BYTES_MAX:
            text = separator + record.MORE_MARK + b"%d\x02" % len(targets)
        return text

    def _continue(self, message: Message, targets: tuple[int, ...], now_ms: int, plan: _Plan, position: int) -> int:
        """Continuation records behind `message` for the light queues that its properties do not name."""
        rest = targets[len(targets) - record.dispatch_of(message.dispatch)[1] :]
        room = (plan.file_size - record.BLANK_SIZE - _FIXED - 128 - OWN_CRC_SIZE - CONTINUATION.size) // PAIR.size
        step = min(CONTINUATION_PAIRS_MAX, room)
        taken = 0 if self.spread is not None and message is self.spread.message else 1
        """By the entries of this record."""
        for first in range(0, len(rest), step):
            part = rest[first : first + step]
            pairs = array("q", bytes(len(part) * PAIR.size))
            pairs[::2] = array("q", part)
            pairs[1::2] = array("q", [offset - taken for offset in self._lights.offsets_of(part)])
            if byteorder == "little":
                pairs.byteswap()
            head = CONTINUATION.pack(message.physical_offset, message.size)
            extra = Message(DISPATCH_TOPIC, head + pairs.tobytes(), queue_id=0, born_ms=now_ms)
            # `_encode` appends the last parts of a plan to its writes: hand it the open parts and take them back.
            position = self._encode((extra,), ((),), now_ms, plan, position)
            plan.writes.pop()
        return position

    def code_of(self, tag: str) -> int:
        """A tag's code in queue units: 0 without a tag."""
        code = self._codes.get(tag)
        return code if code is not None else self.tag_code(tag)

    def tag_code(self, tag: str) -> int:
        """Java's hash of a tag, cached; of a waiting message the time when it is due (store/schedule.py)."""
        if tag.startswith(MARK):
            return code_of_tag(tag, self._now_ms, self.delays_ms)
        code = java_hash(tag)
        if len(self._codes) >= CODES_MAX:
            self._codes.clear()
            self._codes[""] = 0
        self._codes[tag] = code
        return code

    def _take_back(self, batch: Sequence[Message], lights: Sequence[tuple[int, ...]], start: int) -> None:
        """Undo the dispatch of every record at or above `start`, newest first."""
        self.recent.clear()
        names = {(message.topic, message.queue_id) for message in batch} | {(DISPATCH_TOPIC, 0)}
        names |= {(name, 0) for message in batch for name in message.lmq}
        for name, queue_id in names:
            topic = self._queues.open_topics.get(name)
            queue = topic.queues.get(queue_id) if topic is not None else None
            while queue is not None and queue.pending and queue.pending[-3] >= start:
                del queue.pending[-3:]
                queue.next_offset -= 1
            if topic is not None and queue is not None and not queue.next_offset:
                del topic.queues[queue_id]  # made for this batch
        for light in {light for targets in lights for light in targets}:
            while self._lights.newest_pending(light) >= start:
                self._lights.take_back(light)
        if self.spread is not None and self.spread.position >= start:
            self.spread.take_back()
        while self.index_pending and self.index_pending[-1][2] >= start:
            self.indexed(self.index_pending.pop()[2])
        self._queues.dirty[:] = [queue for queue in self._queues.dirty if queue.pending]
