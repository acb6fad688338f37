"""What a group's log says: queues, routes, forward queues, progress, table. A fold over entries, the same after every start.

An entry is a dataclass of this module; `State.apply` is all that ever changes a `State`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from interop_tests.sim.owners.table import COMMITTED, FROZEN, MOVING, OWNER, Row, SlotTable

SLOTS = 4
AGAIN = -1
"""Store time of what a planted fault forwards a second time."""
ANY = "*"
"""A route for every key."""

History = tuple[tuple[int, int], ...]
"""(epoch, first offset) of each epoch of a forward queue."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a forward queue was read. `read`: (epoch, end) of each epoch, also of those on a disk that is gone: it may come back."""

    incarnation: int = 0
    history: History = ()
    read: tuple[tuple[int, int], ...] = ()
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """One publish: the `number`-th of its publisher."""

    id: int
    publisher: int
    number: int
    key: str


@dataclass(slots=True)
class Route:
    """`since`, `until`: versions of the owner's route log; `_ms`: store times from which it counts where no version is known."""

    queue: int
    key: str
    since: int
    since_ms: int
    until: int = 0
    until_ms: int = 0


# Entries of a log.


@dataclass(frozen=True, slots=True)
class Epoch:
    """A start."""

    incarnation: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A publish. `forward`: to whom, and if the source held that group's lease then."""

    record: Record
    forward: tuple[tuple[str, bool], ...]
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Marked:
    """From here on routes of `target` are known as of this version."""

    target: str
    epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the slot table."""

    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """A route is wanted or not; `number` counts the holder's requests for it."""

    queue: int
    key: str
    on: bool
    number: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Frozen:
    """The owner froze its slot for this move."""

    slot: int
    move: int


@dataclass(frozen=True, slots=True)
class Content:
    """Of a slot: queues, routes in force, last request numbers."""

    queues: tuple[tuple[int, tuple[Record, ...]], ...]
    routes: tuple[tuple[int, str], ...]
    numbers: tuple[tuple[tuple[int, str], int], ...]


@dataclass(frozen=True, slots=True)
class Copied:
    """The content of a slot that may become ours."""

    slot: int
    move: int
    content: Content


@dataclass(frozen=True, slots=True)
class Item:
    """Of a forward queue: a record, a marker of routes (`epoch`, `version`), or of the table (`table`)."""

    record: Record | None = None
    leased: bool = False
    wall_ms: int = 0
    epoch: int = 0
    version: int = -1
    table: int = 0


@dataclass(frozen=True, slots=True)
class Pulled:
    """A batch of another group's forward queue, with the progress that it makes."""

    source: str
    incarnation: int
    history: History
    offset: int
    items: tuple[Item, ...]
    before: tuple[Item, ...] = ()
    """Markers in force at `offset`, where the progress so far does not lead to it straight."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The forward queue to `target` begins here."""

    target: str
    offset: int


Entry = Epoch | Stored | Marked | Rows | Bound | Frozen | Copied | Pulled | Trimmed


@dataclass(slots=True)
class Progress:
    """How far another group's forward queue is stored here, and the markers in force there."""

    incarnation: int = 0
    history: History = ()
    offset: int = 0
    read: dict[int, int] = field(default_factory=dict)
    """Up to which offset each epoch was read."""
    routes: tuple[int, int] = (0, -1)
    """(epoch, version) of the last marker of routes."""
    table: int = 0
    """Version of the last marker of the table."""

    def position(self) -> Position:
        """To be told to the source."""
        return Position(self.incarnation, self.history, tuple(self.read.items()), self.offset)

    def leads_to(self, incarnation: int, history: History, offset: int) -> bool:
        """What is there follows what was read last."""
        return (self.incarnation, self.history, self.offset) == (incarnation, history, offset)

    def skips(self, history: History, offset: int) -> bool:
        """Something before that offset was never read."""
        return resume(history, offset, self.read) < offset

    def go(self, incarnation: int, history: History, offset: int) -> None:
        """All before that offset was read."""
        self.incarnation, self.history, self.offset = incarnation, history, offset
        for epoch, begin, end in parts(history, offset):
            if begin <= offset:
                self.read[epoch] = max(self.read.get(epoch, 0), min(end, offset))

    def mark(self, item: Item) -> None:
        """A marker was read."""
        if item.version >= 0:
            self.routes = (item.epoch, item.version)
        else:
            self.table = item.table


@dataclass(slots=True)
class Parked:
    """A record of a slot that is on its way: nobody knows yet whose it is."""

    record: Record
    table: int
    version: int
    wall_ms: int
    """0: matched by version alone."""


@dataclass(slots=True)
class ForwardQueue:
    """To one group. Items below `start` are gone."""

    items: list[Item] = field(default_factory=list)
    start: int = 0
    history: list[tuple[int, int]] = field(default_factory=list)


class State:
    """`groups`: those that the cluster was founded with."""

    def __init__(self, name: str, groups: list[str], planted: frozenset[str]) -> None:
        self.name = name
        self.planted = planted
        self.table = SlotTable(groups, SLOTS)
        self.incarnation = 0
        self.epoch = 0
        self.version = 0
        self.epochs: dict[int, int] = {}
        """Version of our routes when each of our epochs began."""
        self.routes: list[Route] = []
        self.numbers: dict[tuple[int, str], int] = {}
        self.queues: dict[int, list[Record]] = {}
        self.forward = {group: ForwardQueue() for group in groups if group != name}
        self.progress = {group: Progress() for group in groups if group != name}
        self.frozen: dict[int, int] = {}
        self.copies: dict[int, Copied] = {}
        self.parked: dict[int, list[Parked]] = {}
        self.spoiled: set[int] = set()
        """Moves to us whose marker has passed, and of what came behind it something is not here: it was trimmed."""
        self.stored: set[int] = set()
        self.last: dict[int, int] = {}
        """Of each publisher the last record stored."""
        self.delivered: list[tuple[int, tuple[int, int]]] = []
        """(slot, its epoch) of each delivery that the last entry made."""

    def apply(self, entry: Entry) -> None:
        """The next entry of the log."""
        self.delivered.clear()
        if isinstance(entry, Stored):
            self._store(entry)
        elif isinstance(entry, Pulled):
            self._pull(entry)
        elif isinstance(entry, Marked):
            self.forward[entry.target].items.append(Item(epoch=entry.epoch, version=entry.version))
        elif isinstance(entry, Bound):
            self._bind(entry)
        elif isinstance(entry, Rows):
            for row in entry.rows:
                self._row(row)
        elif isinstance(entry, Epoch):
            self._begin(entry)
        elif isinstance(entry, Frozen):
            self.frozen[entry.slot] = entry.move
        elif isinstance(entry, Copied):
            self.copies[entry.slot] = entry
        else:
            self.forward[entry.target].start = entry.offset

    def _begin(self, entry: Epoch) -> None:
        self.incarnation, self.epoch = entry.incarnation, entry.epoch
        self.epochs[entry.epoch] = self.version
        for queue in self.forward.values():
            queue.history.append((entry.epoch, len(queue.items)))

    # Records.

    def _store(self, entry: Stored) -> None:
        self.stored.add(entry.record.id)
        self.last[entry.record.publisher] = entry.record.id
        self._take(Parked(entry.record, self.table.version, self.version, 0))
        for target, leased in entry.forward:
            self.forward[target].items.append(Item(entry.record, leased, entry.wall_ms))

    def _pull(self, entry: Pulled) -> None:
        progress = self.progress[entry.source]
        if not progress.leads_to(entry.incarnation, entry.history, entry.offset):
            skipped = progress.skips(entry.history, entry.offset)
            progress.routes, progress.table = (0, -1), 0
            for item in entry.before:
                progress.mark(item)
            for place in self.table.places:
                behind = skipped and place.frozen <= progress.table
                if behind and (place.state, place.target) == (FROZEN, self.name):
                    self.spoiled.add(place.since)
        for item in entry.items:
            if item.record is None:
                progress.mark(item)
            else:
                self._take_forwarded(progress, item, item.record)
                if "twice" in self.planted and item.wall_ms != AGAIN:
                    for group, queue in self.forward.items():
                        if group != entry.source:
                            queue.items.append(Item(item.record, True, AGAIN))
        progress.go(entry.incarnation, entry.history, entry.offset + len(entry.items))
        if "lastly" in self.planted:
            ends = parts(entry.history, progress.offset)
            progress.read = {epoch: min(end, progress.offset) for epoch, _, end in ends}

    def _take_forwarded(self, progress: Progress, item: Item, record: Record) -> None:
        epoch, version = progress.routes
        table = progress.table
        version = min(version, self._end_of(epoch)) if epoch in self.epochs else -1
        if "unmarked" in self.planted:
            table = self.table.version
        self._take(Parked(record, table, version, 0 if item.leased else item.wall_ms))

    def _end_of(self, epoch: int) -> int:
        """Version of the routes when that epoch of ours ended."""
        known = list(self.epochs)
        after = known[known.index(epoch) + 1 :]
        return self.epochs[after[0]] if after else self.version

    def _take(self, parked: Parked) -> None:
        """For each slot: ours, another's, or not known yet."""
        for slot in range(SLOTS):
            owner = self.table.owner_at(slot, parked.table)
            if owner == self.name:
                self._match(slot, parked)
            elif not owner and self.table.concerned(slot, self.name):
                self.parked.setdefault(slot, []).append(parked)

    def _match(self, slot: int, parked: Parked) -> None:
        if self.table.places[slot].owner != self.name:
            return
        matched = []
        for route in self.routes:
            wanted = route.queue % SLOTS == slot and route.key in (parked.record.key, ANY)
            if wanted and route.queue not in matched and self._in_force(route, parked.version, parked.wall_ms):
                matched.append(route.queue)
        for queue in matched:
            self.queues.setdefault(queue, []).append(parked.record)
            self.delivered.append((slot, self.table.places[slot].epoch))

    def _in_force(self, route: Route, version: int, wall_ms: int) -> bool:
        if "present" in self.planted:
            return not route.until
        if route.since > version and not (wall_ms and wall_ms >= route.since_ms):
            return False
        return not (route.until and (route.until <= version or (wall_ms and wall_ms >= route.until_ms)))

    # Routes.

    def _bind(self, entry: Bound) -> None:
        self.numbers[entry.queue, entry.key] = entry.number
        self.version += 1
        for route in self.routes:
            if (route.queue, route.key, route.until) == (entry.queue, entry.key, 0):
                if not entry.on:
                    route.until, route.until_ms = self.version, entry.at_ms
                return
        if entry.on:
            self.routes.append(Route(entry.queue, entry.key, self.version, entry.at_ms))

    def keys(self, version: int) -> frozenset[str]:
        """What our queues want as of that version, without duplicates."""
        return frozenset(
            route.key
            for route in self.routes
            if route.since <= version and not (route.until and route.until <= version)
        )

    # The table.

    def _row(self, row: Row) -> None:
        self.table.apply(row)
        for queue in self.forward.values():
            queue.items.append(Item(table=row.version))
        if row.kind in (MOVING, FROZEN) or row.slot < 0:
            return
        slot, parked = row.slot, self.parked.pop(row.slot, [])
        self.spoiled.discard(self.table.places[slot].since)
        copied = self.copies.pop(slot, None)
        self.frozen.pop(slot, None)
        if row.kind in (COMMITTED, OWNER):
            if row.source == self.name:
                self._drop(slot)
            if row.kind == COMMITTED and row.target == self.name and copied is not None:
                self._install(copied.content)
            self.version += 1
        for each in parked:
            if self.table.owner_at(slot, each.table) == self.name:
                self._match(slot, each)

    def _drop(self, slot: int) -> None:
        self.routes = [route for route in self.routes if route.queue % SLOTS != slot]
        self.queues = {queue: records for queue, records in self.queues.items() if queue % SLOTS != slot}
        self.numbers = {name: number for name, number in self.numbers.items() if name[0] % SLOTS != slot}

    def _install(self, content: Content) -> None:
        for queue, records in content.queues:
            self.queues[queue] = list(records)
        self.routes += [Route(queue, key, -1, 0) for queue, key in content.routes]
        self.numbers.update(dict(content.numbers))

    def content(self, slot: int) -> Content:
        """To be copied."""
        return Content(
            tuple((queue, tuple(records)) for queue, records in self.queues.items() if queue % SLOTS == slot),
            tuple((route.queue, route.key) for route in self.routes if route.queue % SLOTS == slot and not route.until),
            tuple((name, number) for name, number in self.numbers.items() if name[0] % SLOTS == slot),
        )


def markers(items: list[Item]) -> tuple[Item, ...]:
    """The last one of each kind."""
    routes = next((item for item in reversed(items) if item.record is None and item.version >= 0), None)
    table = next((item for item in reversed(items) if item.record is None and item.version < 0), None)
    return tuple(item for item in (routes, table) if item is not None)


def parts(history: History, end: int) -> list[tuple[int, int, int]]:
    """(epoch, begin, end) of each epoch of a forward queue that ends there."""
    ends = [*(begin for _, begin in history[1:]), end]
    return [(epoch, begin, until) for (epoch, begin), until in zip(history, ends, strict=True)]


def resume(history: History, end: int, read: dict[int, int]) -> int:
    """First offset of a forward queue that was not read, or its end."""
    for epoch, begin, until in parts(history, end):
        if read.get(epoch, begin) < until:
            return read.get(epoch, begin)
    return end
