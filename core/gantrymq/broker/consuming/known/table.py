"""Which cursors there are: one group's place in one queue each, by id and by queue, at rest (idle.py) or with an object of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from gantrymq.broker.consuming.known.idle import IdleCursors, may_rest
from gantrymq.broker.consuming.roles import Managed, QueueReader, Seated, parse_queue
from gantrymq.broker.consuming.window import AckWindow
from gantrymq.broker.port import SHARED_GROUP
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.indexes.shared import shared

POP_PREFIX = "pop:"
"""Cursor groups of pop consumers: this and the consumer group's name."""

KEEPER = "~kept"
"""Group of a cursor that only keeps what a topic of our own has (broker/retention/trail.py): nobody is to get it."""

NO_WATCHERS: dict[int, Callable[[int], None]] = {}
NONE_ARMED: set[int] = set()
"""Of all cursors that nobody watches; nothing is ever put in."""


class Cursor:
    """One group's place in one queue."""

    __slots__ = (
        "armed",
        "group",
        "id",
        "light",
        "managed",
        "parked",
        "queue",
        "queue_id",
        "recovered_below",
        "seats",
        "topic",
        "watchers",
        "window",
    )

    def __init__(self, cursor_id: int, queue: str, group: str, start: int) -> None:
        self.id = cursor_id
        self.queue = queue
        self.group = shared(group)
        self.light, self.topic, self.queue_id = parse_queue(queue)
        self.window = AckWindow(start)
        self.parked: deque[Callable[[], None]] | None = None
        """Acquires behind one that waits for the disk, in order; None: none waits."""
        self.managed: Managed | None = None
        """What its queue's policy does (broker/queues)."""
        self.seats: Seated | None = None
        """Who consumes from it, where they say so."""
        self.recovered_below = 0
        """Offsets below were possibly delivered before a crash."""
        self.watchers = NO_WATCHERS
        """By port: gateway processes that consume from the same queue are woken beside one another."""
        self.armed = NONE_ARMED
        """Ports whose watcher is to be called at the next entry."""

    def is_at_rest(self) -> bool:
        """Its row, its place and its mark are all that there is to know of it."""
        return (
            not self.watchers
            and not self.armed
            and self.window.is_at_rest()
            and self.recovered_below <= self.window.floor
            and self.parked is None
            and self.managed is None
            and self.seats is None
            and may_rest(self.light, self.group)
        )


class CursorTable:
    """All of them. `reader`: of the queues' ends."""

    def __init__(self, reader: QueueReader) -> None:
        self._reader = reader
        self.by_id: dict[int, Cursor] = {}
        """Those that do not rest: whoever wants one asks `awake`, or `view` to read."""
        self.idle = IdleCursors()
        self._of_queue: dict[str, Cursor | dict[str, Cursor]] = {}
        """The only cursor of a queue, or its cursors by group."""
        self.shared: dict[int, Cursor] = {}
        """Those of `SHARED_GROUP`."""
        self._next_id = 1

    def find(self, queue: str, group: str) -> Cursor | None:
        """The group's cursor in that queue, if there is one."""
        found = self._of_queue.get(queue)
        if isinstance(found, dict) and group in found:
            return found[group]
        if isinstance(found, Cursor) and found.group == group:
            return found
        resting = self.idle.of_light(_light_of(queue))
        return self.awake(resting) if resting and self.idle.names(resting)[1] == group else None

    def count(self) -> int:
        """Of all, at rest or not."""
        return len(self.by_id) + self.idle.count

    def has_id(self, cursor_id: int) -> bool:
        """Whether it exists."""
        return cursor_id in self.by_id or self.idle.place(cursor_id) is not None

    def awake(self, cursor_id: int) -> Cursor | None:
        """By handle, with an object of its own from now on; None: it does not exist (any more)."""
        cursor = self.by_id.get(cursor_id)
        if cursor is None and (cursor := self.view(cursor_id)) is not None:
            self.idle.take_out(cursor_id)
            self._insert(cursor)
        return cursor

    def view(self, cursor_id: int) -> Cursor | None:
        """As `awake`, to be read at once and then forgotten."""
        cursor = self.by_id.get(cursor_id)
        if cursor is None and (place := self.idle.place(cursor_id)) is not None:
            _, floor, marked = place
            cursor = Cursor(cursor_id, *self.idle.names(cursor_id), floor)
            cursor.window.marked = marked
        return cursor

    def views(self) -> Iterator[Cursor]:
        """Of all, to be read; nothing may come or go meanwhile."""
        for cursor_id in self.ids():
            if (cursor := self.view(cursor_id)) is not None:
                yield cursor

    def get(self, cursor_id: int) -> Cursor:
        """By handle; raises NOT_FOUND."""
        cursor = self.awake(cursor_id)
        if cursor is None:
            raise GantryError(ErrorCode.NOT_FOUND, f"cursor {cursor_id} does not exist (any more)")
        return cursor

    def has_nothing(self, cursor_id: int) -> int:
        """The light queue of a cursor at rest that nothing waits for, else 0."""
        place = self.idle.place(cursor_id)
        return place[0] if place is not None and place[1] >= self._reader.light_visible_end(place[0]) else 0

    def floor_of_light(self, light: int) -> int:
        """Entries below it are done, to every cursor of the light queue, which has one."""
        place = self.idle.place(self.idle.of_light(light))
        floors = [cursor.window.floor for cursor in self._awake_of(f"~{light}")]
        return min([*floors, place[1]] if place is not None else floors)

    def of_queue(self, queue: str) -> list[Cursor]:
        """All cursors of a queue."""
        if resting := self.idle.of_light(_light_of(queue)):
            self.awake(resting)
        return self._awake_of(queue)

    def _awake_of(self, queue: str) -> list[Cursor]:
        found = self._of_queue.get(queue)
        if found is None:
            return []
        return list(found.values()) if isinstance(found, dict) else [found]

    def ids(self) -> Sequence[int]:
        """Every cursor's id, and few others: to walk over all in slices. A million need no copy."""
        return range(1, self._next_id) if self._next_id <= 8 * self.count() else [*self.by_id, *self.idle.ids()]

    def first(self, cursor: Cursor) -> int:
        """Offset of the queue's oldest entry that is not a hole; moved ones may lie below."""
        return 0 if cursor.light else self._reader.min_offset(cursor.topic, cursor.queue_id)

    def live_end(self, cursor: Cursor) -> int:
        """Entries from here on are nobody's: what a pop consumer has not acquired yet is a topic's backlog, and retention may
        delete it as it may for those who pull; what any other cursor has before it is live."""
        if not cursor.group.startswith(POP_PREFIX):
            return self.end(cursor)
        return min(self.end(cursor), max(cursor.window.next_offset, cursor.recovered_below))

    def is_live(self, queue: str, offset: int) -> bool:
        """Whether some cursor of the queue is not done with that entry."""
        place = self.idle.place(self.idle.of_light(_light_of(queue)))
        is_waiting = place is not None and place[1] <= offset
        return is_waiting or any(not cursor.window.is_done(offset) for cursor in self._awake_of(queue))

    def end(self, cursor: Cursor) -> int:
        """Maximum offset of the cursor's queue."""
        if cursor.light:
            return self._reader.light_visible_end(cursor.light)
        return self._reader.visible_end(cursor.topic, cursor.queue_id)

    def _insert(self, cursor: Cursor) -> None:
        self.by_id[cursor.id] = cursor
        found = self._of_queue.get(cursor.queue)
        if isinstance(found, dict):
            found[cursor.group] = cursor
        elif found is None or found.group == cursor.group:
            self._of_queue[cursor.queue] = cursor
        else:
            self._of_queue[cursor.queue] = {found.group: found, cursor.group: cursor}
        if cursor.group == SHARED_GROUP:
            self.shared[cursor.id] = cursor

    def _remove(self, cursor: Cursor) -> None:
        self.by_id.pop(cursor.id, None)
        self.shared.pop(cursor.id, None)
        found = self._of_queue.get(cursor.queue)
        if isinstance(found, dict) and found.get(cursor.group) is cursor:
            del found[cursor.group]
            if len(found) == 1:
                (self._of_queue[cursor.queue],) = found.values()
        elif found is cursor:
            del self._of_queue[cursor.queue]


def _light_of(queue: str) -> int:
    return int(queue[1:]) if queue[:1] == "~" and queue[1:].isdecimal() else 0
