"""A cluster under one seed: faults for a while, then none, then everything owed is there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from interop_tests.sim.owners.clients import Binder, Publisher
from interop_tests.sim.owners.group import KEEPER, Cluster, Group
from interop_tests.sim.owners.history import History
from interop_tests.sim.owners.machine import Machine, Network
from interop_tests.sim.owners.state import SLOTS, Rows, State
from interop_tests.sim.owners.table import FORGOTTEN, OWNER, Row, SlotTable
from interop_tests.sim.world import Violation, World

FAULTS_MS = 14_000
QUIET_MS = 3_000
"""Publishers go on after the last fault."""
APART_MS = 1_000
"""An operator looks for groups that stay apart."""
SETTLED_MS = 60_000
"""Everything owed is done by then."""
STEPS_MAX = 60_000
"""A run has some 6,000 events; what goes round and round has more."""
PLANTED = ("present", "epochless", "written", "unmarked", "monotonic", "answer", "twice")
"""Faults of the design itself: routes as they are now, progress without epoch, trimming at written progress, moves without
markers, leases on CLOCK_MONOTONIC, leases counted from the answer, forwarded records forwarded again."""
TAUGHT = ("lastly", "torn", "unready", "leased", "merged")
"""Rules left out that seeds taught: progress of epochs that are gone, `forget` in one entry, ready only behind all markers, no lease
while a slot is on its way, no rows from another table."""


def rows_of(entries: list[Any]) -> list[Row]:
    """Of the slot table, in a log."""
    return [row for entry in entries if isinstance(entry, Rows) for row in entry.rows]


@dataclass(frozen=True)
class Result:
    """`faults`: the kinds that were drawn."""

    seed: int
    steps: int
    virtual_ms: int
    faults: tuple[str, ...]
    publishes: int
    due: int
    forbidden: int
    moves: int
    digest: str
    failure: str
    events: tuple[str, ...]


class ClusterSimulation:
    """One seed. `planted`: faults of `PLANTED` and `TAUGHT`; `faults`: kinds of faults instead of drawn ones."""

    def __init__(self, seed: int, planted: frozenset[str] = frozenset(), faults: tuple[str, ...] = ()) -> None:
        self.world = world = World(seed)
        lot = world.lot
        self.network = Network(world)
        names = [f"g{number}" for number in range(lot.choice((2, 3, 3, 4)))]
        sync = lot.random() < 0.5
        self.history = History(sync)
        self.cluster = Cluster(world, self.network, names, sync, planted, self.history)
        self.kinds: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "power": self._power,
            "stop": self._stop,
            "suspend": self._suspend,
            "cut": self._cut,
            "isolate": self._isolate,
            "slow": self._slow,
            "both": self._both,
            "old": self._old_disk,
            "empty": self._empty_disk,
            "forget": self._forget,
        }
        self.faults = faults or tuple(lot.sample(sorted(self.kinds), lot.choice((1, 2, 2, 3))))
        self.snapshots: dict[str, list[list[object]]] = {}
        self.forgotten: set[str] = set()
        self.ended: list[tuple[str, int, set[int]]] = []
        """(group, version, slots): owned there until it hears of that row, though the keeper's disk that came back had given them away before."""
        for name in names:
            self.network.machines[name] = Machine(world, name, lambda machine: Group(self.cluster, machine))
        for machine in self.network.machines.values():
            machine.start()
        self.binders = [Binder(world, self.network, self.history, queue) for queue in range(6)]
        self.publishers = [Publisher(world, self.network, self.history, number) for number in range(3)]
        world.later(500, self._fault)
        world.later(700, self._move)
        world.later(APART_MS, self._empty_apart)

    def run(self) -> Result:
        """All of it."""
        failure = ""
        try:
            self._until(FAULTS_MS)
            self._heal()
            self._until(FAULTS_MS + QUIET_MS)
            for binder in self.binders:
                binder.active = False
            for publisher in self.publishers:
                publisher.active = False
            while not self._settled():
                self._step()
                if self.world.now > FAULTS_MS + SETTLED_MS:
                    raise Violation("settled", f"something still waits after {SETTLED_MS // 1000} s: {self._waits()}")
            self.history.check(self._states(), self._table().groups, self._table())
        except Violation as violation:
            failure = str(violation)
        history = self.history
        return Result(
            self.world.seed,
            self.world.steps,
            self.world.now,
            self.faults,
            len(history.publishes),
            history.checked,
            history.forbidden,
            sum(row.kind == "committed" for row in self._table().rows),
            self.world.digest(),
            failure,
            tuple(self.world.last),
        )

    def _until(self, ms: int) -> None:
        while self.world.now < ms:
            self._step()

    def _step(self) -> None:
        self.world.step()
        for each in list(self.ended):
            name, version, slots = each
            if self._group(name).state.table.version >= version:
                self.ended.remove(each)
                self.history.lost_slots(slots, self.world.steps)
        if self.world.steps > STEPS_MAX:
            raise Violation("settled", f"{STEPS_MAX} events are not enough: {self._waits()}")

    def _states(self) -> dict[str, State]:
        return {name: self._group(name).state for name in self.network.machines}

    def _group(self, name: str) -> Group:
        process = self.network.machines[name].process
        assert isinstance(process, Group)
        return process

    def _table(self) -> SlotTable:
        """The newest copy; one that is to be forgotten may have rows that nobody else has."""
        states = self._states()
        return max(
            (states[name].table for name in states if name not in self.forgotten), key=lambda table: table.version
        )

    # Faults.

    def _fault(self) -> None:
        if self.world.calm:
            return
        self.kinds[self.world.lot.choice(self.faults)]()
        self.world.later(self.world.lot.randrange(200, 1_500), self._fault)

    def _some(self) -> Machine | None:
        up = [machine for machine in self.network.machines.values() if machine.up]
        return self.world.lot.choice(up) if up else None

    def _note(self, what: str, machine: Machine) -> None:
        self.world.note(f"{what} {machine.name}")

    def _restart(self, machine: Machine) -> None:
        def again() -> None:
            if not machine.up:
                machine.start()

        self.world.later(self.world.lot.randrange(20, 4_000), again)

    def _kill(self) -> None:
        if machine := self._some():
            self._note("kill", machine)
            machine.kill()
            self._restart(machine)

    def _power(self) -> None:
        if machine := self._some():
            self._note("power", machine)
            self._keep(machine)
            machine.lose_power()
            self._restart(machine)

    def _both(self) -> None:
        """Two lose power at once."""
        self._power()
        self._power()

    def _stop(self) -> None:
        if machine := self._some():
            self._note("stop", machine)
            machine.stop(self.world.lot.randrange(100, 6_000))

    def _suspend(self) -> None:
        if machine := self._some():
            self._note("suspend", machine)
            machine.stop(self.world.lot.randrange(1_000, 8_000), suspended=True)

    def _cut(self) -> None:
        source, target = self.world.lot.sample(sorted(self.network.machines), 2)
        self.world.note(f"cut {source} to {target}")
        self.network.cut(source, target, self.world.lot.randrange(200, 6_000))

    def _isolate(self) -> None:
        if machine := self._some():
            self._note("isolate", machine)
            ms = self.world.lot.randrange(200, 6_000)
            for other in self.network.machines:
                if other != machine.name:
                    self.network.cut(other, machine.name, ms)
                    self.network.cut(machine.name, other, ms)

    def _slow(self) -> None:
        self.network.slow = True

    def _keep(self, machine: Machine) -> None:
        """Somebody takes a copy of the disk."""
        self.snapshots.setdefault(machine.name, []).append(list(machine.log.entries[: machine.log.synced]))

    def _old_disk(self) -> None:
        machine = self._some()
        if machine is None:
            return
        if not self.snapshots.get(machine.name) or self.world.lot.random() < 0.6:
            self._keep(machine)
            return
        self._replace(machine, copy.copy(self.world.lot.choice(self.snapshots[machine.name])))

    def _empty_disk(self) -> None:
        machine = self._some()
        if machine is not None and self.world.lot.random() < 0.3:
            self._replace(machine, [])

    def _replace(self, machine: Machine, entries: list[object]) -> None:
        self._note(f"another disk of {len(entries)} entries for", machine)
        machine.kill()
        known = self._known_beside(machine)
        left = self._left(max(known, rows_of(entries), key=len))
        copied = self._group(machine.name).state.copies
        self.history.lost_disk(machine.name, [self._table(), left], copied, self.world.steps, len(known))
        if machine.name == KEEPER:
            self._note_ended(rows_of(entries))
        machine.replace_disk(entries)
        self._restart(machine)

    def _note_ended(self, rows: list[Row]) -> None:
        """What an owner answers that has not heard the rows of the keeper's new disk is lost where these gave its slot away."""
        places = self._left(rows).places
        for name, state in self._states().items():
            own = {slot for slot, place in enumerate(state.table.places) if place.owner == name}
            if name != KEEPER and (gone := {slot for slot in own if places[slot].owner != name}):
                self.ended.append((name, len(rows), gone))

    def _empty_apart(self) -> None:
        """What refuses to serve with the disk that it has gets an empty one."""
        for name, machine in self.network.machines.items():
            if machine.up and self._group(name).apart and name not in self.forgotten:
                self._replace(machine, [])
        self.world.later(APART_MS, self._empty_apart)

    def _known_beside(self, machine: Machine) -> list[Row]:
        """The most rows of the table on a disk of another that is not forgotten."""
        gone = {machine.name, *self.forgotten}
        logs = [other.log for name, other in self.network.machines.items() if name not in gone]
        return max((rows_of(log.entries[: log.synced]) for log in logs), key=len, default=[])

    def _left(self, rows: list[Row]) -> SlotTable:
        table = SlotTable(self.cluster.groups, SLOTS)
        for row in rows:
            table.apply(row)
        return table

    def _forget(self) -> None:
        machine = self._some()
        if machine is None or machine.name == KEEPER or self.forgotten or self.world.lot.random() < 0.7:
            return
        self._note("forget", machine)
        machine.kill()
        self.forgotten.add(machine.name)
        self.history.lost_rows(len(self._known_beside(machine)))
        self._order_forget(machine)

    def _order_forget(self, machine: Machine) -> None:
        """The operator asks until it is done; then it may come back."""
        if machine.name not in self._table().groups:
            tables = [self._before(), self._group(machine.name).state.table]
            self.history.lost_disk(machine.name, tables, (), self.world.steps, self._table().version)
            self._restart(machine)
            return
        if self.network.machines[KEEPER].up:
            self.network.send("operator", KEEPER, "order_forget", machine.name)
        self.world.later(500, lambda: self._order_forget(machine))

    def _before(self) -> SlotTable:
        """The table as it was when the group was forgotten."""
        return self._left(list(takewhile(lambda row: row.kind != FORGOTTEN, self._table().rows)))

    def _move(self) -> None:
        """An operator's."""
        lot = self.world.lot
        if self.world.calm:
            return
        if self.network.machines[KEEPER].up:
            target = lot.choice(sorted(self.network.machines))
            self.network.send("operator", KEEPER, "order_move", lot.randrange(SLOTS), target)
        self.world.later(lot.randrange(300, 2_500), self._move)

    # The end.

    def _heal(self) -> None:
        world = self.world
        world.note("heal")
        world.calm = True
        self.network.slow = False
        self.network.cuts = dict.fromkeys(self.network.cuts, -(1 << 20))
        for machine in self.network.machines.values():
            if not machine.up and not (machine.name in self.forgotten and machine.name in self._table().groups):
                machine.start()

    def _settled(self) -> bool:
        return self.world.steps % 64 == 0 and not self._waits()

    def _waits(self) -> str:
        """What is not done; empty if nothing is."""
        machines = self.network.machines.values()
        if any(not machine.up or machine.stopped for machine in machines):
            return "a process"
        table = self._table()
        groups = [self._group(name) for name in table.groups]
        if not all(group.joined for group in groups):
            return "a start: " + ", ".join(group.name for group in groups if not group.joined)
        if any(group.state.table.version != table.version for group in groups):
            return "the table"
        if any(place.state != OWNER for place in table.places):
            return "a move"
        for binder in self.binders:
            if binder.busy:
                return "a bind"
        for group in groups:
            for source in groups:
                if source is not group:
                    end = len(source.state.forward[group.name].items)
                    at = group.state.progress[source.name]
                    if (at.incarnation, at.offset) != (source.state.incarnation, end):
                        return f"{group.name} for {source.name}"
        return ""
