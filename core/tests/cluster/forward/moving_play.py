"""As `Play`, with queues that go from group to group all the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gantrymq.broker.port import Outcome
from gantrymq.broker.tables.forward_table import CAME, COMING, ENDED, LEAVING, TABLE
from gantrymq.broker.tables.group_tables import LIGHT_BITS, MOVED_TABLE, moved_from
from gantrymq.model.errors import GantryError
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node
from tests.cluster.forward.play import Play
from tests.cluster.forward.told import Queue, Violation

TOLD_MS = 500
"""On their way from group to group."""


class Travels:
    """Where a queue was. `taken`: what its consumer has settled, in the order of that; `behind`: of that, what was not taken along."""

    def __init__(self, origin: str, light: int) -> None:
        self.origin = origin
        self.light = light
        self.hosts = {origin}
        self.taken: dict[bytes, None] = {}
        self.behind: set[bytes] = set()


class MovingPlay(Play):
    """See the module. `moves`: queues that have come somewhere."""

    def __init__(self, seed: int, kinds: Sequence[str] = ()) -> None:
        super().__init__(seed, kinds)
        self.travels: dict[int, Travels] = {}
        self.moves = 0
        self.quiet_ms = 0

    def _name_of(self, owner: str, light: int) -> int:
        number = 4 * self.disks.get(owner, 0) + "abcd".index(owner)
        return number << LIGHT_BITS | light

    # Where they are.

    def _travels_of(self, queue: Queue) -> Travels:
        found = self.travels.get(queue.name)
        if found is None:
            found = self.travels[queue.name] = Travels(queue.owner, queue.light)
        return found

    def _place(self, queue: Queue) -> Node | None:
        """The running group that has it now; notes where that is."""
        travels = self._travels_of(queue)
        key = str(queue.name)
        found: list[tuple[str, int]] = []
        for name in self.names:
            if name in self.site.away:
                continue
            broker = self.site.nodes[name].broker
            row = broker.tables.rows(MOVED_TABLE).get(key)
            light = travels.light if row is None and name == travels.origin else moved_from(row).light
            if light and light not in broker.leaving.frozen and str(light) in broker.tables.rows("light"):
                found.append((name, light))
        if len(found) > 1:
            raise Violation(f"owner: queue {queue.name} is at {found}")
        if not found:
            return None
        owner, light = found[0]
        node = self.site.nodes[owner]
        cursor = node.broker.cursors.find(f"~{light}", "g")
        if cursor is None:
            return None
        if (owner, light) != (queue.owner, queue.light):
            self._note(f"queue {queue.name} is at {owner} now")
            self.moves += 1
            there = set(self._entries(node, light))
            travels.behind |= travels.taken.keys() - there
            queue.owner, queue.light, queue.moved = owner, light, True
        queue.cursor = cursor.id
        return node

    def _clients(self) -> None:
        for queue in list(self.told.queues):
            if not self.site.stands(queue.owner):
                self._place(queue)
        super()._clients()
        running = self._running()
        if len(running) > 1 and self.lot.random() < 0.05:
            queues = [queue for queue in self.told.queues if queue.owner in running]
            if queues:
                self._move(self.lot.choice(queues), self.lot.choice(running))

    def _move(self, queue: Queue, target: str) -> None:
        if target == queue.owner:
            return
        source = queue.owner
        self._travels_of(queue).hosts.add(target)
        self._note(f"move {queue.name} from {source} to {target}")

        def moved(_token: Any, result: Any) -> None:
            self._note(f"move {queue.name} to {target}: {result.text if isinstance(result, GantryError) else result}")

        self.site.nodes[target].port.take_queues(source, [(queue.light, queue.name)], None, moved)

    def _bind(self, queue: Queue) -> None:
        if self._place(queue) is not None:
            super()._bind(queue)

    def _consume(self, queue: Queue) -> None:
        node, lot = self._place(queue), self.lot
        if node is None:
            return
        travels, cursor, port = self._travels_of(queue), queue.cursor, node.port

        def acquired(_token: Any, result: Any) -> None:
            if isinstance(result, GantryError):
                return
            settled = [each for each in result if lot.random() < 0.8]
            travels.taken.update(dict.fromkeys([each.message.body for each in settled]))
            port.settle([(cursor, each.offset, Outcome.ACK) for each in settled])
            port.release(1)

        port.acquire(cursor, 1, lot.randint(1, 20), 1 << 20, None, acquired)

    # Faults.

    def _none(self, name: str) -> None:
        """Moves alone."""

    def _started(self, name: str) -> None:
        for queue in list(self.told.queues):
            travels = self._travels_of(queue)
            if name not in travels.hosts:
                continue
            queue.starts.append(self.told.now())
            if len(travels.hosts) == 1:
                broker = self.site.nodes[name].broker
                if str(queue.light) not in broker.tables.rows("light") or not queue.whole:
                    if queue.whole:
                        raise Violation(f"queue: {name}~{queue.light} is gone")
                    self.told.queues.remove(queue)

    def _lost(self, name: str) -> None:
        """With its disk went what was there, or came back."""
        self.told.queues = [queue for queue in self.told.queues if name not in self._travels_of(queue).hosts]

    def _power(self, name: str) -> None:
        super()._power(name)
        for queue in self.told.queues:
            if name in self._travels_of(queue).hosts:
                queue.lose_unflushed()
                queue.whole = queue.whole and len(self._travels_of(queue).hosts) > 1

    def _replace(self, name: str, files: MemoryFileSystem) -> None:
        self._lost(name)
        super()._replace(name, files)

    def _forget(self, name: str) -> None:
        was = set(self.forgotten)
        super()._forget(name)
        if self.forgotten != was:
            self._lost(name)

    # The end.

    def _waits(self) -> str:
        if why := super()._waits():
            return why
        for name in self.names:
            broker = self.site.nodes[name].broker
            left = [key for key in broker.tables.rows(TABLE) if key.startswith((LEAVING, COMING, CAME, ENDED))]
            if left or broker.leaving.frozen or broker.holding.targets:
                self.quiet_ms = 0
                return f"{name} has {left} {broker.leaving.frozen} {broker.holding.targets}"
        self.quiet_ms = self.quiet_ms or self.site.now_ms
        return "what was told last" if self.site.now_ms < self.quiet_ms + TOLD_MS else ""

    def _check(self) -> None:
        stored = {name: self._stored(self.site.nodes[name]) for name in self.names}
        for name in self.names:
            self._check_left(name)
        for queue in list(self.told.queues):
            travels = self._travels_of(queue)
            node = self._place(queue)
            if node is None:
                if queue.whole:
                    raise Violation(f"queue: {queue.name} is nowhere; it was at {sorted(travels.hosts)}")
                continue
            there = self._entries(node, queue.light)
            if again := travels.behind.intersection(there):
                raise Violation(f"once: {sorted(again)} are in queue {queue.name} again")
            self._take_the_rest(node, queue, travels)
            if left := set(there) - travels.taken.keys():
                raise Violation(f"taken: {sorted(left)} of queue {queue.name} were never handed out")
            self.told.check_queue(queue, [int(body) for body in there], stored, {int(each) for each in travels.behind})

    @staticmethod
    def _take_the_rest(node: Node, queue: Queue, travels: Travels) -> None:
        while found := node.call("acquire", queue.cursor, 1, 100, 1 << 20):
            travels.taken.update(dict.fromkeys([each.message.body for each in found]))
            node.port.settle([(queue.cursor, each.offset, Outcome.ACK) for each in found])
            node.turn.run_until_quiet()
