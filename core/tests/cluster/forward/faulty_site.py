"""Groups in memory with everything that may go wrong between them: processes, disks, clocks and lines of their own, under one seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.tables.slot_table import SLOTS_TABLE, given_away
from gantrymq.cluster.forward.peers import OtherPort, Peers
from gantrymq.cluster.slots import changes
from gantrymq.cluster.slots.keeping import SlotKeeper
from gantrymq.net.procedures.driver import run
from gantrymq.net.testing import ManualClock
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node
from tests.cluster.forward.forward_site import ForwardSite, at_once
from tests.cluster.forward.long_line import LongLine
from tests.cluster.site import Line
from tests.cluster.slots.slot_site import KEEPER

STEP_MS = 10
BEGIN_MS = 1_700_000_000_000


class FaultySite(ForwardSite):
    """Time goes on in steps. `sync`: what a publisher hears is on the disk. Names: see `SlotSite`."""

    def __init__(self, *names: str, lot: random.Random, sync: bool) -> None:
        self.lot = lot
        self.sync = sync
        self.now_ms = 0
        self.clocks: dict[str, ManualClock] = {}
        self.dialed: list[LongLine] = []
        self.stopped: dict[str, int] = {}
        """Processes that stand still, until when."""
        self.asleep: dict[str, int] = {}
        """...and machines."""
        self.cuts: dict[tuple[str, str], int] = {}
        """Nobody dials from one to the other, until when."""
        self.stalls: dict[tuple[str, str], int] = {}
        """What one sends the other stays on its way, until when."""
        self.slow_disks: dict[str, int] = {}
        """Disks that take nothing, until when."""
        self.resumed: list[str] = []
        """Who goes on after it stood still, or hears of another again."""
        self.on_flushed: Callable[[str], None] = lambda name: None
        super().__init__(*names, seed=lot.getrandbits(32))

    # Processes.

    def begin(self, name: str, files: MemoryFileSystem) -> None:
        clock = self.clocks.get(name)
        if clock is None:
            skew_ms = self.lot.choice((0, -10, 10, 5))
            clock = self.clocks[name] = ManualClock(BEGIN_MS + self.now_ms + skew_ms, 1_000_000 + self.now_ms)
        config = BrokerConfig(name=name, metadata_group=KEEPER)
        kind = type("FaultyNode", (Node,), {"config": config, "new_clock": staticmethod(lambda: clock)})
        node: Any = kind(files, self.sync)
        self.nodes[name] = node
        self.away.discard(name)

        def connect(other: str) -> tuple[OtherPort, Callable[[], None]]:
            line: Any = self.dial(name, other)
            return line, line.close

        link: Any = None if name == KEEPER else self.dial(name, KEEPER)
        SlotKeeper(node.broker, link, self.random.getrandbits, 0, self.survey).start()
        Peers(node.broker, name, connect, at_once(node.wheel)).start()

    def said(self, name: str) -> dict[str, bytes] | str:
        """See `SlotSite`: over the same lines as everything else."""
        line = LongLine(KEEPER, name, self.nodes[name])
        reached = self._may_dial(line)
        line.close()
        return dict(self.nodes[name].broker.tables.rows(SLOTS_TABLE)) if reached else "no answer"

    def dial(self, source: str, target: str) -> LongLine:
        """Kept connected from now on."""
        line = LongLine(source, target, self.nodes.get(target) or self.nodes[source])
        if not self._may_dial(line):
            line.lose_target()
        self.dialed.append(line)
        return line

    def _may_dial(self, line: LongLine) -> bool:
        return (
            line.target in self.nodes
            and line.target not in self.away
            and line.source not in self.away
            and not self.stands(line.source)
            and not self.stands(line.target)
            and (line.source, line.target) not in self.cuts
            and (line.source, line.target) not in self.stalls
            and (line.target, line.source) not in self.stalls
        )

    def stands(self, name: str) -> bool:
        """Whether its process or machine stands still."""
        return name in self.stopped or name in self.asleep

    def kill(self, name: str) -> MemoryFileSystem:
        """At any moment, records that were taken in and are on no disk yet included."""
        node = self.nodes[name]
        files = node.files.after_process_crash()
        self._end(name)
        return files

    def lose_power(self, name: str) -> MemoryFileSystem:
        """What was not flushed is gone."""
        files = self.nodes[name].files.after_power_loss(lambda path, count: [False] * count)
        self._end(name)
        return files

    def _end(self, name: str) -> None:
        self.away.add(name)
        self.stopped.pop(name, None)
        self.asleep.pop(name, None)
        self.nodes[name].broker.closed = True
        for line in list(self.dialed):
            if line.source == name:
                line.lose_source(self.now_ms + self.lot.choice((0, 0, 500, 2_000)))
            elif line.target == name:
                line.lose_target()

    def forget(self, name: str) -> None:
        """As `gantry cluster forget`, which is told to the metadata group, and may not come to its end."""
        line: Any = Line(self.nodes[KEEPER])
        staying = [other for other in self.table().groups if other != name]

        def plan(table: Any) -> dict[int, str]:
            return given_away(table, name, [KEEPER, *staying])

        run(changes.forget(line, name, plan, self.random.getrandbits), lambda result: None)

    # Time.

    def wait(self, ms: int) -> None:
        for _ in range(max(ms // STEP_MS, 1)):
            self.step()

    def step(self) -> None:
        """Clocks, then lines, then disks."""
        self.now_ms += STEP_MS
        for name, clock in self.clocks.items():
            if name in self.asleep:
                clock.wall_ms += STEP_MS
                clock.asleep_ms += STEP_MS
            elif name in self.away or name in self.stopped:
                clock.advance(STEP_MS)
            else:
                self.nodes[name].wheel.advance(STEP_MS)
        self.run()
        self._carry()
        self.run()
        for name, node in self.nodes.items():
            if name not in self.away and not self.stands(name) and name not in self.slow_disks:
                node.flush()
                self.on_flushed(name)
        self.run()
        self._end_faults()

    def _end_faults(self) -> None:
        kinds: tuple[dict[Any, int], ...] = (self.stopped, self.asleep, self.cuts, self.stalls, self.slow_disks)
        for kind in kinds:
            for key in [key for key, until_ms in kind.items() if until_ms <= self.now_ms]:
                del kind[key]
                if kind is not self.slow_disks:
                    self.resumed.append(key if isinstance(key, str) else key[1])

    def _carry(self) -> None:
        lot = self.lot
        for line in list(self.dialed):
            source, target = line.source, line.target
            if not self.stands(target) and target not in self.away:
                line.end_half_open(self.now_ms, lambda count: lot.randint(0, count))
            if line.closed:
                if not line.half_open:
                    self.dialed.remove(line)
                continue
            if line.port is None:
                if self._may_dial(line) and lot.random() < 0.2:
                    line.node = self.nodes[target]
                    line.mend()
                continue
            if not self.stands(target) and (source, target) not in self.stalls and lot.random() < 0.8:
                line.carry_there(self._some)
            if not self.stands(source) and (target, source) not in self.stalls and lot.random() < 0.8:
                line.carry_here(self._some)

    def _some(self, count: int) -> int:
        """How many of so many are read at once."""
        return count if count < 2 or self.lot.random() < 0.6 else self.lot.randint(1, count)

    def run(self) -> None:
        for _ in range(50):
            moving = [
                node for name, node in self.nodes.items() if name not in self.away and not self.stands(name)
            ]  # fmt: skip
            for node in moving:
                node.turn.run_until_quiet()
            self.turn.run_until_quiet()
            if not any(node.turn.pending for node in moving):
                return
        raise AssertionError("still busy")

    # Faults between groups.

    def break_lines(self, source: str, target: str, ms: int) -> None:
        """Connections from one to the other are lost; the other may see that later."""
        self.cuts[source, target] = self.now_ms + ms
        for line in self.dialed:
            if (line.source, line.target) == (source, target) and line.port is not None:
                line.break_off(self.now_ms + self.lot.choice((0, 100, 1_000, 3_000)))

    def calm(self) -> None:
        """No fault from now on; who is away stays so."""
        kinds: tuple[dict[Any, int], ...] = (self.stopped, self.asleep, self.cuts, self.stalls, self.slow_disks)
        for kind in kinds:
            kind.clear()
