"""A broker as requests see it that only read, and reading work that takes more than one turn.

Whatever reads the disk may raise `Cold` (store/cold.py): the caller fetches the data and asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, TypeVar

from gantrymq.broker.consuming.known.table import KEEPER
from gantrymq.store.cold import Cold

if TYPE_CHECKING:
    from gantrymq.broker.broker import Broker
    from gantrymq.broker.pop.leases import Place
    from gantrymq.broker.pop.selection import Pick, Selection
    from gantrymq.broker.topics import Topic
    from gantrymq.broker.transactions.half_messages import Half
    from gantrymq.model.message import Message
    from gantrymq.store.queues.consume_queue import ConsumeQueue
    from gantrymq.store.reader import StoreReader

T = TypeVar("T")

Steps = Generator[Cold | None, None, T]
"""Work in steps of some hundred microseconds: yields None between them, or `Cold` for what it has to read before it goes on."""


class Reading:
    """What a request may read. Whatever reads the disk is here or in `store`, and may raise `Cold`."""

    __slots__ = ("_broker", "store")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.store: StoreReader = broker.store

    def topic(self, name: str) -> Topic | None:
        """The topic, if it exists."""
        return self._broker.topics.topics.get(name)

    def begin(self, queue: ConsumeQueue | None, topic: str, queue_id: int) -> int:
        """As `min_offset`, of a queue that is at hand."""
        broker = self._broker
        current = broker.topics.topics.get(topic)
        moved = broker.kept_from or self.store.compacted.queues
        if queue is None or moved or current is None or current.config.first_offsets:
            return broker.min_offset(topic, queue_id)
        return queue.min_offset

    @property
    def written_position(self) -> int:
        """End of the log."""
        return self._broker.store.written_position

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First offset that can be read."""
        return self._broker.min_offset(topic, queue_id)

    def trail(self, topic: str) -> tuple[int, int]:
        """First offset of a topic of our own that is still there, and its end; what lies between may be gone."""
        cursor = self._broker.cursors.find(f"{topic}/0", KEEPER)
        begin, end = self.store.min_offset(topic, 0), self.store.visible_end(topic, 0)
        return (begin if cursor is None else min(begin, cursor.window.floor)), end

    def trail_units(self, topic: str, offset: int, count: int) -> list[tuple[int, int, int]]:
        """As `store.units`, what was moved where it lies now."""
        cursors = self._broker.cursors
        cursor = cursors.find(f"{topic}/0", KEEPER)
        return self.store.units(topic, 0, offset, count) if cursor is None else cursors.units(cursor, offset, count)

    def committed(self, group: str, topic: str, queue_id: int) -> int:
        """The group's committed offset, or -1."""
        return self._broker.offsets.query(group, topic, queue_id)

    def handed(self, group: str, topic: str, queue_id: int) -> int:
        """See `Offsets.query_handed`."""
        return self._broker.offsets.query_handed(group, topic, queue_id)

    def now_ms(self) -> int:
        """The broker's clock."""
        return self._broker.clock.now_ms()

    def half(self, offset: int, position: int, commit: bool) -> tuple[Half, Message | None]:
        """See `Transactions.find`."""
        return self._broker.transactions.find(offset, position, commit)

    def delayed(self, topic: str, unique: str, at_ms: int) -> list[int] | None:
        """See `Delays.pending`."""
        return self._broker.delays.pending(topic, unique, at_ms)

    def popped_before(self, group: str, topic: str, queue_id: int) -> Place | None:
        """See `Pops.known`."""
        return self._broker.pops.known(group, topic, queue_id)

    def place(self, group: str, topic: str, queue_id: int, from_first: bool) -> Place:
        """See `Pops.find`."""
        return self._broker.pops.find(group, topic, queue_id, from_first)

    def blocked(self, place: Place, attempt: str | None) -> bool:
        """See `Pops.blocked`."""
        return self._broker.pops.blocked(place, attempt)

    def ready(self, place: Place) -> int:
        """See `Pops.ready`."""
        return self._broker.pops.ready(place)

    def pop(self, place: Place, count: int, bytes_max: int, pick: Pick | None, again: bool = False) -> Selection | None:
        """See `Pops.find`."""
        return self._broker.pops.select(place, count, bytes_max, pick, again)


def patiently(reading: Reading, find: Callable[[Reading], T]) -> Steps[T]:
    """The result of `find(reading)`, which is called again after each fetch from the disk."""
    while True:
        try:
            return find(reading)
        except Cold as cold:
            wanted = cold
        yield wanted
