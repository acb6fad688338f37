"""Which records are kept for as long as the store keeps any (`store.file_reserved_hours`), and whether the oldest segments hold one.

Of a topic that is not kept (its attribute `keep.records`; `amqp.keep_exchange_records` for what AMQP clients publish to) records are needed only as
long as somebody has them before him. What cursors have is `live.py`'s matter. Here it is consumer groups, whose positions hold nothing back but for
the time that the store keeps. Nothing is counted while messages pass: the first unit that a queue needs says whether it lies in the segment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from gantrymq.broker.retention.live import READ_US
from gantrymq.broker.slices import Slices, patient
from gantrymq.broker.topics import KEEP_RECORDS, Topic, is_client_light
from gantrymq.broker.transactions.half_messages import HALF_TOPIC, OP_TOPIC
from gantrymq.model import names
from gantrymq.store.queues.consume_queue import HOLE_SIZE
from gantrymq.store.schedule import TIMER_TOPIC

if TYPE_CHECKING:
    from gantrymq.broker.broker import Broker

WAITING: Final = frozenset({names.SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC})
"""Where messages wait for their time or for a decision: nobody reads there what is done."""
TOPICS_STEP: Final = 128
TOPICS_US: Final = 300
"""Topics looked at in one piece, and what that takes."""
UNITS_AT_ONCE: Final = 16
"""One of them may be a hole, or damaged and say anything: the lowest position counts."""
NOWHERE: Final = 1 << 62

Wanted = Callable[[], Mapping[str, set[str]]]
"""By topic, the consumer groups of connected clients that want it."""


class KeptByTime:
    """One per broker. `exchanges`: what AMQP clients publish to is kept as every other topic is."""

    def __init__(self, broker: Broker, exchanges: bool = True, wanted: Wanted = dict) -> None:
        self._broker = broker
        self._exchanges = exchanges
        self._wanted = wanted
        self._last = ""
        """The topic that held a record at the last look: most likely it does so still."""
        self.some_are_not = False
        """Some topic's attribute says that it is not kept; whoever looks through the topics now and then sets it."""

    @property
    def applies(self) -> bool:
        """There may be records that are not kept by time."""
        return self.some_are_not or not self._exchanges

    def keeps(self, topic: Topic) -> bool:
        """Whether all that readers see of a topic is kept."""
        said = topic.config.attributes.get(KEEP_RECORDS)
        if said is not None:
            return said != "false"
        if topic.name in WAITING:
            return False
        return self._exchanges or not topic.config.for_exchanges

    def holder(self, end: int) -> Slices[str]:
        """A topic with a record below the position `end` that is kept by time; empty: there is none."""
        wanted = self._wanted()
        if self._last and (yield from self._holds(self._last, end, wanted)):
            return self._last
        for number, name in enumerate(self._broker.store.topics()):
            if number % TOPICS_STEP == 0:
                yield TOPICS_US
            if (yield from self._holds(name, end, wanted)):
                self._last = name
                return name
        self._last = ""
        return ""

    def _holds(self, name: str, end: int, wanted: Mapping[str, set[str]]) -> Slices[bool]:
        first_of = self._needs(name, wanted)
        if first_of is None:
            return False
        store = self._broker.store
        yield from patient(partial(store.queue, name, -1))  # its files are opened in a thread
        for queue_id in store.queues_of(name):
            yield READ_US
            if (yield from patient(partial(self._position, name, queue_id, first_of(queue_id)))) < end:
                return True
        return False

    def _needs(self, name: str, wanted: Mapping[str, set[str]]) -> Callable[[int], int] | None:
        """By queue id, the first offset that is needed for as long as the store keeps; None: no record of the topic is."""
        broker = self._broker
        if names.is_own_system_topic(name):  # rows, acknowledgements, audit trail: what is needed is written again
            return None
        topic = broker.topics.topics.get(name)
        if topic is None:
            return _all if is_client_light(name) else None  # else it is deleted
        if self.keeps(topic) or broker.router.is_tapped(name):
            return _all
        groups = broker.offsets.by_topic().get(name, {})
        if not wanted.get(name, set()).issubset(groups):
            return _all  # somebody may be about to begin anywhere
        if not groups:
            return None
        places = list(groups.values())  # those of pop consumers, too, who commit what they are done with
        return lambda queue_id: min([place.get(queue_id, 0) for place in places])

    def _position(self, name: str, queue_id: int, offset: int) -> int:
        """Of the first record at that offset or behind it that readers see. What a compacted queue has in its own files it needs no more."""
        store = self._broker.store
        offset = max(offset, self._broker.min_offset(name, queue_id), store.compacted.end(name, queue_id))
        while units := store.units(name, queue_id, offset, UNITS_AT_ONCE):
            places = [position for position, size, _ in units if 0 < size != HOLE_SIZE]
            if places:
                return min(places)
            offset += len(units)
        return NOWHERE


def _all(queue_id: int) -> int:
    return 0
