"""A broker group: owner of its slots, source for the others, and, if it is the first, keeper of the slot table.

What it must not forget is in `State`, a fold of its log. What is here goes with the process: leases, what it knows of others' routes,
requests that wait for an answer. Messages of other groups call the methods of their names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from interop_tests.sim.owners.machine import CLOCK_ERROR_MS, Machine, Network
from interop_tests.sim.owners.state import (
    ANY,
    SLOTS,
    Bound,
    Content,
    Copied,
    Entry,
    Epoch,
    Frozen,
    History,
    Item,
    Marked,
    Position,
    Pulled,
    Record,
    Rows,
    State,
    Stored,
    Trimmed,
    markers,
    resume,
)
from interop_tests.sim.owners.table import ABORTED, COMMITTED, FORGOTTEN, FROZEN, MOVING, OWNER, Place, Row

if TYPE_CHECKING:
    from interop_tests.sim.world import World

LEASE_MS = 3_000
LEASE_GRANTED_MS = 3_030
"""What the owner counts, from its answer: clocks may run apart by 1 %."""
PULL_MS = 60
ASK_MS = 500
TABLE_MS = 150
LATE_MS = 1_000
"""A question without an answer is asked again."""
BATCH = 16
MOVE_MS = 1_000
"""A move that is not done by then is aborted."""
KEEPER = "g0"


class Watcher(Protocol):
    """Sees what no group may decide for itself."""

    def stored(self, record: Record, after: int) -> None:
        """A source stores a record; `after`: the last one of the same publisher in that log, or -1."""

    def acted(self, group: str, slot: int, epoch: tuple[int, int]) -> None:
        """The group decided something as the owner of that slot."""

    def row(self, row: Row) -> None:
        """The keeper published a row."""


@dataclass(frozen=True)
class Cluster:
    """What all groups share: names, chance, the network. `sync`: a publish is confirmed when it is flushed."""

    world: World
    network: Network
    groups: list[str]
    sync: bool
    planted: frozenset[str]
    watcher: Watcher


@dataclass(slots=True)
class Known:
    """What a source knows of an owner's routes, and until when that is all there is to know."""

    epoch: int = 0
    version: int = -1
    keys: frozenset[str] = frozenset()
    table: int = -1
    asked_ms: int = -1
    lease_ms: int = -1


@dataclass(slots=True)
class Waiting:
    """A bind or unbind that is not answered yet."""

    slot: int
    position: int
    version: int
    at_ms: int
    answer: Callable[[bool], None]


class Group:
    """See the module."""

    def __init__(self, cluster: Cluster, machine: Machine) -> None:
        self.cluster = cluster
        self.machine = machine
        self.name = machine.name
        self.network = cluster.network
        self.others = [group for group in cluster.groups if group != self.name]
        self.state = State(self.name, cluster.groups, cluster.planted)
        self.joined = False
        self.apart = False
        """The metadata group's table is another one, without us."""
        self.heard: set[str] = set()
        self.known = {group: Known() for group in self.others}
        self.confirmed = dict.fromkeys(self.others, -1)
        self.granted = dict.fromkeys(self.others, 0)
        self.pulls = dict.fromkeys(self.others, (0, -LATE_MS))
        """Per source: number of the pull under way (0: none), and when it was sent."""
        self.binds: list[Waiting] = []
        self.confirms: list[tuple[int, Callable[[], None]]] = []
        self.flushing = False
        self.serial = cluster.world.lot.getrandbits(30)
        self.synced_progress: dict[str, Position] = {}
        self.flushed_table = 0
        self.looks_ms = 0
        """When waiting binds are looked at again (this process's clock of leases)."""
        self.started_ms = machine.wall_ms()
        self.keeper_ms = 0
        """When the keeper's present life began: what earlier ones sent does not count."""
        self.drained: dict[str, int] = {}
        """Per source: version of the table up to which all that it had for us is here, and flushed there."""
        self.moves: dict[int, int] = {}
        """The keeper's: when a move (its number) is aborted."""

    def start(self) -> None:
        """A life begins."""
        log, lot = self.machine.log, self.cluster.world.lot
        for entry in log.entries:
            self.state.apply(entry)
        log.synced = log.end
        self._note_progress()
        incarnation = self.state.incarnation or lot.getrandbits(32) + 1
        self.append(Epoch(incarnation, lot.getrandbits(32) + 1))
        for group in self.others:
            self.granted[group] = self.clock() + LEASE_GRANTED_MS
        self._every(TABLE_MS, self._follow_table)
        # A start takes longer than clocks differ: what is stored after it is later than all that was before it.
        self.machine.later(3 * CLOCK_ERROR_MS, self._begin)

    def _begin(self) -> None:
        for group in self.others:
            self._every(PULL_MS, lambda group=group: self._pull(group))  # type: ignore[misc]
            self._every(ASK_MS, lambda group=group: self._ask(group))  # type: ignore[misc]
        self._join()

    def _every(self, ms: int, call: Callable[[], None]) -> None:
        def again() -> None:
            call()
            self.machine.later(ms + int(self.cluster.world.lot.random() * ms), again)

        self.machine.later(int(self.cluster.world.lot.random() * ms), again)

    def clock(self) -> int:
        """What leases are counted on."""
        if "monotonic" in self.cluster.planted:
            return self.machine.monotonic_ms()
        return self.machine.boottime_ms()

    # The log.

    def append(self, entry: Entry) -> int:
        """Write an entry; its position."""
        self.machine.log.entries.append(entry)
        self.state.apply(entry)
        for slot, epoch in self.state.delivered:
            self._acted(slot, epoch)
        if not self.flushing:
            self.flushing = True
            lot = self.cluster.world.lot
            slow = not self.cluster.world.calm and lot.random() < 0.15
            self.machine.later(3 + int(lot.random() * (800 if slow else 40)), self._flush)
        return self.machine.log.end

    def _flush(self) -> None:
        self.flushing = False
        self.machine.sync(self.machine.log.end)
        self._note_progress()
        ready = [call for position, call in self.confirms if position <= self.machine.log.synced]
        self.confirms = [each for each in self.confirms if each[0] > self.machine.log.synced]
        for call in ready:
            call()
        self._answer_binds()

    def _note_progress(self) -> None:
        for source, progress in self.state.progress.items():
            self.synced_progress[source] = progress.position()
        self.flushed_table = self.state.table.version

    def when_synced(self, call: Callable[[], None]) -> None:
        """Once all that is written now is on the disk."""
        if self.machine.log.synced == self.machine.log.end:
            call()
        else:
            self.confirms.append((self.machine.log.end, call))

    def when_settled(self, call: Callable[[], None]) -> None:
        """Once nothing at all is unflushed: for what is published."""
        if self.machine.log.synced == self.machine.log.end:
            call()
        else:
            self.when_synced(lambda: self.when_settled(call))

    def _acted(self, slot: int, epoch: tuple[int, int]) -> None:
        if self.name == KEEPER:
            # Its own rows count from their flush: before that nobody has seen what it does.
            self.when_synced(lambda: self.cluster.watcher.acted(self.name, slot, epoch))
        else:
            self.cluster.watcher.acted(self.name, slot, epoch)

    def living(self) -> list[str]:
        """The others that are not forgotten."""
        return [group for group in self.others if group in self.state.table.groups]

    @property
    def serves(self) -> bool:
        """It knows where it stands, and it is not forgotten."""
        return self.joined and not self.apart and self.name in self.state.table.groups

    # Publishers.

    def publish(self, record: Record, confirmed: Callable[[bool], None]) -> None:
        """Store a record for all who want it, here and elsewhere."""
        if not self.serves:
            confirmed(False)
            return
        forward = tuple((group, leased) for group in self.living() for leased in self._wanted(group, record.key))
        entry = Stored(record, forward, self.machine.wall_ms())

        def store() -> None:
            self.cluster.watcher.stored(record, self.state.last.get(record.publisher, -1))
            self.append(entry)
            if self.cluster.sync:
                self.when_synced(lambda: confirmed(True))
            else:
                confirmed(True)

        if self.cluster.world.calm or self.cluster.world.lot.random() > 0.005:
            store()
        else:
            # Stopped between the look at the lease and the write.
            self.machine.stop(self.cluster.world.lot.randrange(5_000))
            self.machine.first(store)

    def _wanted(self, group: str, key: str) -> list[bool]:
        """Nothing, or if the lease of that group's routes is held."""
        known = self.known[group]
        needed = self.state.table.needed(group)
        if "leased" in self.cluster.planted:
            needed = min(needed, self.state.table.version + 1)
        if self.clock() >= known.lease_ms or known.table < needed:
            return [False]
        return [True] if key in known.keys or ANY in known.keys else []

    # Routes: the source asks, the owner answers.

    def _ask(self, group: str) -> None:
        if self.serves:
            known = self.known[group]
            self.network.send(
                self.name, group, "asked", self.name, known.epoch, known.version, self.clock(), self.started_ms
            )

    def asked(self, source: str, epoch: int, version: int, asked_ms: int, life: int) -> None:
        """A source says what it knows, and wants to know it for another while."""
        if not self.serves:
            return
        if epoch == self.state.epoch:
            self.confirmed[source] = max(self.confirmed[source], version)
        self._answer_binds()

        def answer() -> None:
            state = self.state
            self.granted[source] = self.clock() + LEASE_GRANTED_MS
            words = (state.epoch, state.version, state.keys(state.version), state.table.version)
            self.network.send(self.name, source, "told", self.name, *words, asked_ms, life)

        self.when_settled(answer)

    def told(
        self, owner: str, epoch: int, version: int, keys: frozenset[str], table: int, asked_ms: int, life: int
    ) -> None:
        """An owner's answer; one to a question of an earlier life does not count."""
        known = self.known[owner]
        if asked_ms < known.asked_ms or life != self.started_ms:
            return
        known.asked_ms = asked_ms
        known.lease_ms = (self.clock() if "answer" in self.cluster.planted else asked_ms) + LEASE_MS
        changed = (epoch, version) != (known.epoch, known.version)
        known.epoch, known.version, known.keys, known.table = epoch, version, keys, table
        if changed:
            self.append(Marked(owner, epoch, version))
            self._ask(owner)

    def poked(self, owner: str) -> None:
        """An owner has news."""
        self._ask(owner)

    # Binds.

    def bind(
        self, queue: int, key: str, on: bool, number: int, epoch: tuple[int, int], answer: Callable[[bool], None]
    ) -> None:
        """A route is wanted, or no longer; answered when every source that lives has it."""
        slot = queue % SLOTS
        if not self._owns(slot, epoch) or number < self.state.numbers.get((queue, key), 0):
            answer(False)
            return
        at_ms = self.machine.wall_ms() + CLOCK_ERROR_MS + 1
        if number > self.state.numbers.get((queue, key), 0):
            self.append(Bound(queue, key, on, number, at_ms))
        self._acted(slot, epoch)
        self.binds.append(Waiting(slot, self.machine.log.end, self.state.version, at_ms, answer))
        self.when_synced(self._poke)

    def _owns(self, slot: int, epoch: tuple[int, int]) -> bool:
        place = self.state.table.places[slot]
        free = slot not in self.state.frozen and place.state != FROZEN
        return self.serves and place.owner == self.name and place.epoch == epoch and free

    def _poke(self) -> None:
        for group in self.living():
            self.network.send(self.name, group, "poked", self.name)

    def _answer_binds(self) -> None:
        waiting, self.binds = self.binds, []
        for each in waiting:
            left_ms = self._left_ms(each)
            if left_ms is None:
                self.binds.append(each)
            elif left_ms > 0:
                self.binds.append(each)
                self._answer_binds_in(left_ms)
            else:
                place = self.state.table.places[each.slot]
                each.answer(self._owns(each.slot, place.epoch))

    def _answer_binds_in(self, ms: int) -> None:
        now = self.clock()
        if self.looks_ms <= now or now + ms < self.looks_ms:
            self.looks_ms = now + ms
            self.machine.later(ms, self._answer_binds)

    def _left_ms(self, each: Waiting) -> int | None:
        """How long it waits at least; None: for a flush."""
        if self.machine.log.synced < each.position:
            return None
        silent = [group for group in self.living() if self.confirmed[group] < each.version]
        left = max((self.granted[group] - self.clock() for group in silent), default=0)
        if silent:
            left = max(left, each.at_ms + CLOCK_ERROR_MS + 1 - self.machine.wall_ms())
        return max(left, 0)

    # Forward queues: the owner pulls, the source serves and trims.

    def _pull(self, source: str) -> None:
        number, sent_ms = self.pulls[source]
        now = self.machine.monotonic_ms()
        if source not in self.state.table.groups or (number and now - sent_ms < LATE_MS):
            return
        self.serial += 1
        self.pulls[source] = (self.serial, now)
        at = self.state.progress[source].position()
        done = at if "written" in self.cluster.planted else self.synced_progress[source]
        self.network.send(self.name, source, "pulled", self.name, self.serial, at, done)

    def _from(self, group: str, at: Position) -> int:
        queue = self.state.forward[group]
        if "epochless" in self.cluster.planted:
            return at.offset if at.incarnation == self.state.incarnation else 0
        return resume(tuple(queue.history), len(queue.items), dict(at.read))

    def pulled(self, group: str, number: int, at: Position, done: Position) -> None:
        """An owner wants what is for it."""
        state = self.state
        if group not in state.table.groups:
            return
        queue = state.forward[group]
        trim = self._from(group, done)
        if trim > queue.start:
            self.append(Trimmed(group, trim))
        offset = max(self._from(group, at), queue.start)
        items = tuple(queue.items[offset : offset + BATCH])
        history = tuple(queue.history)
        # Who begins where his progress does not lead to (behind what is trimmed, in another epoch) gets the markers in force there.
        straight = (at.incarnation, at.history, at.offset) == (state.incarnation, history, offset)
        before = () if straight else markers(queue.items[:offset])
        words = (self.name, number, state.incarnation, history, offset, items, self.flushed_table, before)
        self.network.send(self.name, group, "got", *words)

    def got(
        self,
        source: str,
        number: int,
        incarnation: int,
        history: History,
        offset: int,
        items: tuple[Item, ...],
        flushed: int,
        before: tuple[Item, ...],
    ) -> None:
        """The answer to a pull. `flushed`: version of the table that the source has on its disk, and so the markers of it."""
        if self.pulls[source][0] != number:
            return
        self.pulls[source] = (0, 0)
        progress = self.state.progress[source]
        ahead = 0 if any(item.table > self.state.table.version for item in before) else None
        ahead = (
            ahead
            if ahead is not None
            else next((place for place, item in enumerate(items) if item.table > self.state.table.version), None)
        )
        if ahead is not None:
            items = items[:ahead]
            self._ask_table(source)
            if not ahead:
                return
        if items or not progress.leads_to(incarnation, history, offset):
            self.append(Pulled(source, incarnation, history, offset, items, before))
        self.drained[source] = max(self.drained.get(source, 0), min(flushed, progress.table))
        self._copy()
        if len(items) == BATCH:
            self._pull(source)

    # The table.

    def _follow_table(self) -> None:
        for group in self.others:
            if not self.joined or self.name == KEEPER or group == KEEPER or self.cluster.world.lot.random() < 0.1:
                self._ask_table(group)
        if self.name == KEEPER and self.joined:
            self._end_moves()

    def _ask_table(self, group: str) -> None:
        self.network.send(self.name, group, "table_asked", self.name, self.state.table.lives(), self.started_ms)

    def table_asked(self, group: str, lives: tuple[int, ...], started_ms: int) -> None:
        """Somebody wants the rows after those that he has; they are given once they are flushed here."""
        if group == KEEPER:
            self.keeper_ms = max(self.keeper_ms, started_ms)

        def answer() -> None:
            ours, version = self.state.table.lives(), len(lives)
            sure = self.joined and self.name == KEEPER
            merged = "merged" in self.cluster.planted
            other = not merged and ours[:version] != lives[: len(ours)]
            # Rows that the keeper has not, and no group that it had to hear: of one that is forgotten, from before the keeper lost its disk.
            apart = self.name == KEEPER and (other or (sure and version > len(ours))) and not merged
            rows = () if other else tuple(self.state.table.rows[version:])
            words = (self.name, version, rows, sure, apart, self.started_ms, started_ms)
            self.network.send(self.name, group, "table_told", *words)

        self.when_settled(answer)

    def table_told(
        self, group: str, version: int, rows: tuple[Row, ...], sure: bool, apart: bool, started_ms: int, life: int
    ) -> None:
        """Rows, or none; an answer to a question of an earlier life does not count."""
        if life != self.started_ms:
            return
        if group == KEEPER:
            if started_ms < self.keeper_ms:
                return
            self.keeper_ms = started_ms
            # What an earlier life of it said holds until a later one is sure.
            self.apart = apart or (self.apart and not sure)
        rows = rows[self.state.table.version - version :] if self.state.table.version >= version else ()
        if rows:
            self._rows(rows)
        self.heard.add(group)
        if sure:
            self.heard.update(self.others)
        self._join()

    def _rows(self, rows: tuple[Row, ...]) -> None:
        self.append(Rows(rows))
        for each in self.binds:
            if any(row.slot == each.slot for row in rows):
                each.answer(False)
        self.binds = [each for each in self.binds if not any(row.slot == each.slot for row in rows)]
        self._freeze()
        self._copy()

    def _join(self) -> None:
        """It serves once nobody who knows more is left unheard: the keeper, or all others."""
        if not self.joined and self.heard.issuperset(self.living()):
            self.joined = True
            for group in self.others:
                self._ask(group)
            self._freeze()
            self._copy()

    # Moves: the owner.

    def _freeze(self) -> None:
        """What is to move is frozen here; the keeper hears of it when that is flushed."""
        if not self.serves:
            return
        for slot, place in enumerate(self.state.table.places):
            if place.state == MOVING and place.owner == self.name:
                if slot not in self.state.frozen:
                    self.append(Frozen(slot, place.since))
                move = place.since
                self.when_synced(lambda slot=slot, move=move: self._tell(KEEPER, "frozen", slot, move))  # type: ignore[misc]

    def _tell(self, group: str, what: str, *words: object) -> None:
        if group == self.name:
            getattr(self, what)(*words)
        else:
            self.network.send(self.name, group, what, *words)

    def _copy(self) -> None:
        """What is frozen is copied when every source's marker has passed, and everything here is on the disk."""
        if not self.serves:
            return
        table = self.state.table
        for slot, place in enumerate(table.places):
            if place.state == FROZEN and place.owner == self.name and self._has_all(slot):
                self.when_synced(lambda slot=slot, move=place.since: self._send_copy(slot, move))  # type: ignore[misc]

    def _has_all(self, slot: int) -> bool:
        if "unmarked" in self.cluster.planted:
            return True
        since = self.state.table.places[slot].frozen
        return all(self.drained.get(group, 0) >= since for group in self.living())

    def _send_copy(self, slot: int, move: int) -> None:
        place = self.state.table.places[slot]
        if (place.state, place.since) == (FROZEN, move) and self._has_all(slot):
            self.network.send(self.name, place.target, "copy", slot, move, self.state.content(slot))

    # Moves: the one who gets it.

    def copy(self, slot: int, move: int, content: Content) -> None:
        """The content of a slot that is to be ours."""
        place = self.state.table.places[slot]
        if not self.serves or (place.state, place.since, place.target) != (FROZEN, move, self.name):
            return
        if not self._has_markers(place):
            return
        if slot not in self.state.copies:
            self.append(Copied(slot, move, content))
        self.when_synced(lambda: self._tell(KEEPER, "ready", slot, move))

    def _has_markers(self, place: Place) -> bool:
        """All that came behind every source's marker is here, or will come."""
        if not self.cluster.planted.isdisjoint({"unmarked", "unready"}):
            return True
        read = all(self.state.progress[group].table >= place.frozen for group in self.living())
        return read and place.since not in self.state.spoiled

    # Moves: the keeper.

    def order_move(self, slot: int, target: str) -> None:
        """An operator wants it."""
        place = self.state.table.places[slot]
        able = self.serves and place.state == OWNER and place.owner != target and target in self.state.table.groups
        if able:
            self._write(MOVING, slot, place.owner, target)

    def order_forget(self, group: str) -> None:
        """An operator says that a group will not come back; its slots are given away, empty."""
        self.heard.add(group)
        self._join()
        if not self.serves or group not in self.state.table.groups or group == self.name:
            return
        words = [(FORGOTTEN, -1, group, "")]
        for slot, place in enumerate(self.state.table.places):
            if place.owner == group:
                words.append((OWNER, slot, group, self.name))
            elif place.target == group:
                words.append((ABORTED, slot, place.owner, group))
        if "torn" in self.cluster.planted:
            for each in words:
                self._write(*each)
        else:
            self._write_rows(words)

    def _write(self, kind: str, slot: int, source: str, target: str) -> None:
        self._write_rows([(kind, slot, source, target)])

    def _write_rows(self, words: list[tuple[str, int, str, str]]) -> None:
        """All of them or none: one entry."""
        version, life = self.state.table.version + 1, self.state.epoch
        rows = tuple(Row(number, *each, life) for number, each in enumerate(words, version))
        for row in rows:
            self.cluster.world.note(f"row {row}")
        self._rows(rows)
        self.when_synced(lambda: self._published(rows))

    def _published(self, rows: tuple[Row, ...]) -> None:
        for row in rows:
            self.cluster.watcher.row(row)

    def _moving(self, slot: int, move: int, state: str) -> bool:
        place = self.state.table.places[slot]
        return self.serves and self.name == KEEPER and (place.state, place.since) == (state, move)

    def frozen(self, slot: int, move: int) -> None:
        """The owner's freeze is on its disk."""
        if self._moving(slot, move, MOVING):
            place = self.state.table.places[slot]
            self._write(FROZEN, slot, place.owner, place.target)

    def ready(self, slot: int, move: int) -> None:
        """The copy is on the other's disk."""
        if self._moving(slot, move, FROZEN):
            place = self.state.table.places[slot]
            self._write(COMMITTED, slot, place.owner, place.target)

    def _end_moves(self) -> None:
        now = self.machine.monotonic_ms()
        for slot, place in enumerate(self.state.table.places):
            under_way = place.state in (MOVING, FROZEN)
            if under_way and now > self.moves.setdefault(place.since, now + MOVE_MS):
                self._write(ABORTED, slot, place.owner, place.target)
