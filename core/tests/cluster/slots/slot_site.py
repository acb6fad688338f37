"""Broker groups with a table of slots, in memory, which may be killed, lose their disk, or find an older one; and gateways over them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.tables.slot_table import SLOTS_TABLE, SlotTable
from gantrymq.cluster.port import SETTLE_MS
from gantrymq.cluster.slots.changes import move
from gantrymq.cluster.slots.keeping import SlotKeeper
from gantrymq.model.errors import GantryError
from gantrymq.net.procedures.driver import Steps, run
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node
from tests.cluster.site import Line, Site

KEEPER = "a"


def node_of(name: str, files: MemoryFileSystem) -> Node:
    """A broker that is told who keeps the table."""
    kind = type("SlotNode", (Node,), {"config": BrokerConfig(name=name, metadata_group=KEEPER)})
    made: Node = kind(files, False)
    return made


class SlotSite(Site):
    """Groups by name; `a` is the metadata group. Their wheels run together with the gateways'."""

    def __init__(self, *names: str, seed: int = 0) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.links: dict[str, Line] = {}
        self.away: set[str] = set()
        self.silent: set[str] = set()
        """Groups that are registered, and that the metadata group does not reach when it starts."""
        for name in names:
            self.start(name, MemoryFileSystem())

    def add_node(self, name: str) -> None:
        """A new group, which gateways find."""
        self.start(name, MemoryFileSystem())
        for port, lines in self.gateways:
            line: Any = Line(self.nodes[name])
            lines[name] = line
            port.add_group(name, line)
        self.wait(SETTLE_MS + 100)

    def start(self, name: str, files: MemoryFileSystem) -> None:
        """A group's process begins, on that disk, and does what can be done at once."""
        self.begin(name, files)
        self.run()

    def make(self, name: str, files: MemoryFileSystem) -> Node:
        """A group's process."""
        return node_of(name, files)

    def begin(self, name: str, files: MemoryFileSystem) -> None:
        """A group's process begins."""
        self.nodes[name] = node = self.make(name, files)
        self.away.discard(name)
        self.silent.discard(name)
        link = None
        if name != KEEPER:
            link = self.links[name] = Line(self.nodes[KEEPER])
            if KEEPER in self.away:
                link.cut()
        SlotKeeper(node.broker, link, self.random.getrandbits, 0, self.survey).start()
        if name == KEEPER:
            self.links = {other: link for other, link in self.links.items() if other not in self.away}
            for other, link in self.links.items():
                link.node = node
                if other not in self.silent:
                    link.mend()
        for _, lines in self.gateways:
            if name in lines:
                lines[name].node = node
                lines[name].mend()

    def survey(self, token: Any, on_done: Callable[[Any, Any], None]) -> None:
        """What the metadata group hears of the others: nameservers drop those that are away."""
        others = self.nodes.keys() - self.away - {KEEPER}
        on_done(token, {name: self.said(name) for name in others})

    def said(self, name: str) -> dict[str, bytes] | str:
        """Its table; or why it says nothing."""
        if name in self.silent:
            return "no answer"
        return dict(self.nodes[name].broker.tables.rows(SLOTS_TABLE))

    def kill(self, name: str) -> MemoryFileSystem:
        """The process is gone; returns its disk."""
        node = self.nodes[name]
        self.away.add(name)
        ends = [lines[name] for _, lines in self.gateways if name in lines]
        ends += list(self.links.values()) if name == KEEPER else [self.links.pop(name)]
        for line in ends:
            if line.up:
                line.cut()
        self.run()
        node.broker.closed = True
        return node.files.after_process_crash()

    def disk(self, name: str) -> MemoryFileSystem:
        """A copy of a group's disk as it is now."""
        self.nodes[name].flush()
        return self.nodes[name].files.after_process_crash()

    def wait(self, ms: int) -> None:
        self.run()
        for _ in range(ms // 50):
            self.wheel.advance(50)
            for node in self.nodes.values():
                node.wheel.advance(50)
            self.run()

    def do(self, steps: Steps) -> Any:
        """A procedure that ends without waiting for time."""
        box: list[Any] = []
        run(steps, box.append)
        self.run()
        assert len(box) == 1, box
        return box[0]

    def table(self, name: str = KEEPER) -> SlotTable:
        return SlotTable(self.nodes[name].broker.tables.rows(SLOTS_TABLE))

    def move(self, source: str, target: str, slots: list[int], only_free: bool = False) -> Any:
        """What `gantry cluster rebalance` does with some slots."""
        keeper, port = Line(self.nodes[KEEPER]), Line(self.nodes[source])
        plan = dict.fromkeys(slots, target)
        return self.do(move(keeper, port, self.table(), plan, self.random.getrandbits, only_free))  # type: ignore[arg-type]

    def deciding(self) -> dict[int, list[str]]:
        """By slot: which running groups answer for it, under whatever epoch they know."""
        found: dict[int, list[str]] = {}
        for name, node in self.nodes.items():
            if name in self.away:
                continue
            slots = node.broker.slots
            for number, slot in slots.table.slots.items():
                try:
                    slots.check((number, slot.epoch))
                except GantryError:
                    continue
                found.setdefault(number, []).append(name)
        return found

    def owners(self) -> dict[str, int]:
        """How many slots each group answers for; no two for the same."""
        counts: dict[str, int] = {}
        for names in self.deciding().values():
            (name,) = names
            counts[name] = counts.get(name, 0) + 1
        return counts


def stopping(line: Line, wanted: list[tuple[int, int]]) -> Steps:
    """Half of a move: the source answers no more. Returns its start, and the slots."""
    answer = yield lambda token, done: line.stop_slots(wanted, False, token, done)
    return answer
