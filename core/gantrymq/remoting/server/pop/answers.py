"""One pop over the queues that it may read: what is there becomes one answer, leased as a whole.

All queues are looked at before anything is leased, so that a read that waits for the disk (`Cold`) leaves nothing half done.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gantrymq.model import names
from gantrymq.model import properties as props
from gantrymq.remoting.constants import ResponseCode
from gantrymq.remoting.server.filters import ALL, SCAN_MAX, SCAN_STEP, SQL_BYTES_MAX, SQL_SCAN_MAX
from gantrymq.remoting.server.pop.wire import ORDER_QUEUE, Answer, mark_of, retry_topics, write
from gantrymq.remoting.server.pulling.pulls import BYTES_DEFAULT
from gantrymq.store.log import record
from gantrymq.store.queues.consume_queue import HOLE_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gantrymq.administration.reading import Reading
    from gantrymq.broker.pop.leases import Place
    from gantrymq.broker.pop.pops import Pops
    from gantrymq.broker.pop.selection import Pick, Selection
    from gantrymq.broker.rocketmq.stats import BrokerStats
    from gantrymq.broker.topics import Topic
    from gantrymq.remoting.headers import PopHeader
    from gantrymq.remoting.server.filters import Filter
    from gantrymq.remoting.server.reply import RecordsReply
    from gantrymq.store.queues.consume_queue import Unit
    from gantrymq.store.reader import StoreReader

log = logging.getLogger(__name__)

RETRY_EVERY: Final = 5
"""One pop of so many reads the retry topics first, the others last (popFromRetryProbability 20 %)."""

FIRST: Final = 0
"""ConsumeInitMode.MIN: a new group begins at the first message."""

PRIORITY_TYPE: Final = "PRIORITY"
"""Attribute message.type of a topic whose queues are priorities: the highest queue is read first."""


class TagPick:
    """Tags by hash. A unit too small for any record is damaged, and its hash says nothing: it passes, and is found damaged when it is read."""

    __slots__ = ("_codes",)
    step: int = SCAN_STEP
    scan_max: int = SCAN_MAX

    def __init__(self, codes: frozenset[int]) -> None:
        self._codes = codes

    def __call__(self, units: Sequence[Unit]) -> tuple[list[int], int]:
        codes = self._codes
        passed = [
            at
            for at, unit in enumerate(units)
            if (unit[2] in codes and unit[1] != HOLE_SIZE) or unit[1] < record.RECORD_SIZE_MIN
        ]
        return passed, len(units)


class SqlPick:
    """SQL92 over the records' properties."""

    __slots__ = ("_store", "_wanted")
    step: int = SQL_SCAN_MAX
    scan_max: int = SQL_SCAN_MAX

    def __init__(self, wanted: Filter, store: StoreReader) -> None:
        self._wanted = wanted
        self._store = store

    def __call__(self, units: Sequence[Unit]) -> tuple[list[int], int]:
        pieces, looked = self._store.read_units("", -1, range(len(units)), units, SQL_BYTES_MAX)
        takes = self._wanted.takes_properties
        passed: list[int] = []
        for index, piece in enumerate(pieces):
            if not piece and units[index][1] == HOLE_SIZE:
                continue
            if not piece or takes(
                record.properties_of(piece, 0, len(piece))
            ):  # what is damaged is not to be passed over
                passed.append(index)
        return passed, looked


def picker(wanted: Filter | None, store: StoreReader) -> Pick | None:
    """The filter as the broker's pops take it; None: everything."""
    if wanted is None or wanted is ALL:
        return None
    if wanted.sql is not None:
        return SqlPick(wanted, store)
    return TagPick(wanted.codes) if wanted.codes is not None else None


@dataclass(slots=True)
class PopServices:
    """What pops need of the broker. `name`: the broker's; `topics`: by name."""

    name: str
    topics: Mapping[str, Topic]
    pops: Pops
    stats: BrokerStats
    reading: Reading


class Subject:
    """A group's pops of one topic: the queues concerned, and whose turn it is."""

    __slots__ = (
        "_reading",
        "_retry",
        "_topics",
        "_turn",
        "broker_name",
        "group",
        "mark",
        "pops",
        "stats",
        "topic",
        "wake",
    )

    def __init__(self, services: PopServices, group: str, topic: Topic, wake: Callable[[], None]) -> None:
        self.broker_name = services.name
        self.pops = services.pops
        self.stats = services.stats
        self._topics = services.topics
        self._reading = services.reading
        self._retry = retry_topics(group, topic.name)
        self._turn = 0
        self.group = group
        self.topic = topic
        self.wake = wake
        """Lets its polls look again at the end of this turn."""
        self.mark = mark_of(topic.name)
        """Of the topic itself in receipts."""

    def retry_queues(self) -> list[tuple[Topic, int]]:
        """Queues of the retry topics that exist."""
        topics = self._topics
        return [
            (topic, queue_id)
            for name in self._retry
            if (topic := topics.get(name)) is not None
            for queue_id in range(topic.config.read_queues)
        ]

    def all_queues(self) -> list[tuple[Topic, int]]:
        """Every queue whose records concern the group."""
        return [(self.topic, queue_id) for queue_id in range(self.topic.config.read_queues)] + self.retry_queues()

    def places(self, reading: Reading, queue_id: int, ordered: bool, from_first: bool) -> Iterable[Place]:
        """Places to read, in this pop's order. May raise `Cold`."""
        self._turn += 1
        topics, (first, second) = self._topics, self._retry
        retry = [] if ordered or (first not in topics and second not in topics) else self.retry_queues()
        if queue_id >= 0 and not retry:
            return (reading.place(self.group, self.topic.name, queue_id, from_first),)
        return self._places(reading, queue_id, retry, from_first)

    def _places(
        self, reading: Reading, queue_id: int, retry: list[tuple[Topic, int]], from_first: bool
    ) -> Iterable[Place]:
        place = reading.place
        group, name = self.group, self.topic.name
        early = not self._turn % RETRY_EVERY
        if retry and early:
            for topic, number in retry:
                yield place(group, topic.name, number, True)
        if queue_id >= 0:
            yield place(group, name, queue_id, from_first)
        else:
            count = self.topic.config.read_queues
            if self.topic.config.attributes.get("message.type") == PRIORITY_TYPE:
                for number in range(count - 1, -1, -1):
                    yield place(group, name, number, from_first)
            else:
                for step in range(count):
                    yield place(group, name, (self._turn + step) % count, from_first)
        if retry and not early:
            for topic, number in retry:
                yield place(group, topic.name, number, True)

    def has_message(self, queue_id: int, attempt: str | None, ordered: bool) -> bool:
        """Something could be popped now; a group that never popped would begin at its committed offset or the first message."""
        queues = self.all_queues() if queue_id < 0 else [(self.topic, queue_id), *self.retry_queues()]
        pops, store = self.pops, self._reading.store
        for topic, number in queues:
            place = pops.known(self.group, topic.name, number)
            if place is None:
                if self._first(topic.name, number) < store.visible_end(topic.name, number):
                    return True
            elif not (ordered and pops.blocked(place, attempt)) and pops.ready(place):
                return True
        return False

    def _first(self, topic: str, queue_id: int) -> int:
        return max(self._reading.committed(self.group, topic, queue_id), self._reading.min_offset(topic, queue_id))

    def peek(self, reading: Reading, queue_id: int, count: int) -> Answer:
        """As RocketMQ's peek: records, no receipts. May raise `Cold`."""
        store = reading.store
        queues = self.all_queues() if queue_id < 0 else [(self.topic, queue_id), *self.retry_queues()]
        answer = Answer(int(ResponseCode.PULL_NOT_FOUND), b"NO_MESSAGE_IN_QUEUE")
        room, bytes_max = count, BYTES_DEFAULT
        for topic, number in queues:
            place = reading.popped_before(self.group, topic.name, number)
            first = self._first(topic.name, number)
            answer.rest += (
                reading.ready(place) if place is not None else max(store.visible_end(topic.name, number) - first, 0)
            )
            if room <= 0 or bytes_max <= 0:
                continue
            if place is not None:
                found = reading.pop(place, room, bytes_max, None)
                pieces, taken = ([], 0) if found is None else (found.pieces, len(found.offsets))
            else:
                units = store.units(topic.name, number, first, room)
                run = range(first, first + len(units))
                pieces, taken = store.read_units(topic.name, number, run, units, bytes_max)
                pieces = [piece for piece in pieces if piece]
            answer.pieces += pieces
            room -= taken
            size = sum(map(len, pieces))
            answer.size += size
            bytes_max -= size
        if answer.pieces:
            answer.code, answer.status = int(ResponseCode.SUCCESS), b"FOUND"
        return answer


class Seen:
    """What a pop's reading part found: `selections` to give out; places that are `new`; places whose last batch is given out `again`; `rest`:
    entries in queues that had no room."""

    __slots__ = ("again", "new", "rest", "selections")

    def __init__(self) -> None:
        self.selections: list[tuple[Place, Selection]] = []
        self.new: list[Place] = []
        self.again: list[Place] = []
        self.rest = 0


class Pop:
    """One POP_MESSAGE, tried at once and again when something may be there."""

    __slots__ = ("_opaque", "_pick", "_pops", "_reply", "_subject", "header", "more")

    def __init__(
        self, reply: RecordsReply, opaque: int, subject: Subject, header: PopHeader, pick: Pick | None
    ) -> None:
        self._reply = reply
        self._opaque = opaque
        self._subject = subject
        self.header = header
        self._pick = pick
        self._pops = subject.pops
        self.more = False
        """Nothing passed the filter so far, and not all was looked at."""

    def find(self, reading: Reading) -> Seen:
        """What there is to give out. May raise `Cold`."""
        header = self.header
        ordered = bool(header.order)
        room, bytes_max = max(header.max_msg_nums, 1), BYTES_DEFAULT
        seen = Seen()
        for place in self._subject.places(reading, header.queue_id, ordered, header.init_mode == FIRST):
            if not place.entered:
                seen.new.append(place)
            again = False
            if ordered:
                if reading.blocked(place, header.attempt_id):
                    continue
                again = bool(place.cursor.window.inflight)
                if again:
                    seen.again.append(place)
            if room <= 0 or bytes_max <= 0:
                seen.rest += reading.ready(place)
                continue
            found = reading.pop(place, room, bytes_max, self._pick, again)
            if found is not None:
                seen.selections.append((place, found))
                room -= len(found.offsets)
                bytes_max -= found.size
        return seen

    def give(self, seen: Seen) -> bool:
        """Answer with what was just seen; False: there is nothing."""
        header, pops = self.header, self._pops
        for place in seen.new:
            pops.enter(place)
        for place in seen.again:
            pops.repeat(place)
        self.more = False
        if not seen.selections:
            return False
        ordered = bool(header.order)
        answer = Answer(int(ResponseCode.SUCCESS), b"FOUND")
        answer.pop_ms = pops.pop_ms()
        answer.invisible_ms = header.invisible_time
        answer.revive_queue = ORDER_QUEUE if ordered else 0
        rest = seen.rest
        for place, found in seen.selections:
            pops.take(place, found, answer.pop_ms, header.invisible_time, ordered, header.attempt_id)
            rest += place.cursor.window.ready(found.queue_end)
            if found.offsets:
                self._add(answer, place, found, ordered)
        if not answer.pieces:
            self.more = any(pops.ready(place) for place, _ in seen.selections)
            if self.more:
                self.go_on()
            return False
        answer.rest = rest
        write(self._reply, self._opaque, answer)
        return True

    def _add(self, answer: Answer, place: Place, found: Selection, ordered: bool) -> None:
        stats = self._subject.stats
        stats.read(place.topic, self._subject.group, len(found.offsets), found.size)
        name = self._subject.topic.name
        mark = self._subject.mark if place.topic == name else mark_of(place.topic)
        # The client finds a light queue's offset in the record's properties, but only while reconsumeTimes is 0.
        light = bool(found.counts) and name.startswith(names.LMQ_PREFIX)
        offsets, pieces, size = found.offsets, found.pieces, found.size
        if place.topic != name or light:
            offsets, pieces = self._with_receipts(answer, place, found, mark)
            size = sum(map(len, pieces))
        if not offsets:
            return
        answer.add_queue(mark, place.queue_id, offsets)
        if ordered:
            answer.add_counts(mark, place.queue_id, offsets, found.counts)
        answer.pieces += pieces
        answer.size += size

    def _with_receipts(
        self, answer: Answer, place: Place, found: Selection, mark: str
    ) -> tuple[list[int], list[bytes]]:
        """Records of a retry topic, or a light queue, as if they stood in the topic that was asked for, with the receipt as a
        property: the client could not tell them otherwise (popResponseReturnActualRetryTopic=false). With their offsets: a damaged one
        is left out, its lease ends like any other."""
        name = self._subject.broker_name
        data = b"".join(found.pieces)
        pieces: list[bytes] = []
        offsets: list[int] = []
        at = 0
        start = found.offsets[0]
        for offset in found.offsets:
            size = int.from_bytes(data[at : at + 4], "big")
            try:
                message = record.decode(data, at)
            except record.RecordError as error:
                log.error(
                    "%s/%d, offset %d: the record is damaged and left out: %s",
                    place.topic,
                    place.queue_id,
                    offset,
                    error,
                )
                if size < record.RECORD_SIZE_MIN:
                    break
                at += size
                continue
            at += message.size
            receipt = f"{start} {answer.pop_ms} {answer.invisible_ms} {answer.revive_queue} {mark} {name} {place.queue_id} {offset}"
            text = message.properties
            if text and not text.endswith(props.PAIR_END):
                text += props.PAIR_END
            message.properties = text + b"POP_CK\x01%b\x02" % receipt.encode()
            message.topic = self._subject.topic.name
            message.queue_id, message.queue_offset = place.queue_id, offset
            pieces.append(record.encode(message))
            offsets.append(offset)
        return offsets, pieces

    def go_on(self) -> None:
        """Look at the rest in the next turn, if it waits."""
        self._subject.wake()

    def empty(self, code: int) -> None:
        """Answer that there is nothing: POLLING_TIMEOUT or POLLING_FULL."""
        answer = Answer(code, b"NO_MESSAGE_IN_QUEUE")
        answer.pop_ms = self._pops.pop_ms()
        answer.invisible_ms = self.header.invisible_time
        answer.revive_queue = ORDER_QUEUE if self.header.order else 0
        write(self._reply, self._opaque, answer)
