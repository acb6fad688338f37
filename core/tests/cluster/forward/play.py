"""One seed of several groups: publishers, binders and consumers, faults for a while, then none; then everything that was owed is there."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gantrymq.broker.forward.sending import CURSOR_GROUP
from gantrymq.broker.port import EARLIEST, Outcome, Route
from gantrymq.broker.tables.forward_table import READ, SOURCE, START, TABLE, TO
from gantrymq.broker.tables.group_tables import LIGHT_BITS
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node
from tests.cluster.forward.faulty_site import FaultySite
from tests.cluster.forward.told import ANY, Operation, Publish, Queue, Told, Violation
from tests.cluster.slots.slot_site import KEEPER

FAULTS_MS = 4_500
QUIET_MS = 1_000
"""Clients go on after the last fault."""
SETTLED_MS = 30_000
"""Everything owed is done by then."""
TAGS = ("a", "b", "c")
PUBLISHERS = 2
"""At each group."""
QUEUES_MAX = 4
"""Of each group."""
KINDS = (
    "kill", "power", "old", "empty", "isolate", "one_way", "broken", "stop", "suspend", "slow_disk", "forget", "join"
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """Deliveries that were due, and that were not; `failure`: empty, if everything holds."""

    seed: int
    kinds: tuple[str, ...]
    publishes: int
    due: int
    forbidden: int
    failure: str
    log: tuple[str, ...]


class Play:
    """`kinds`: of faults, instead of one or two that the seed draws."""

    def __init__(self, seed: int, kinds: Sequence[str] = ()) -> None:
        self.seed = seed
        self.lot = lot = random.Random(seed)
        self.kinds = tuple(kinds) or tuple(lot.sample(KINDS, lot.choice((1, 2, 2))))
        self.names = ["a", "b", "c", "d"][: lot.choice((2, 3, 3, 4))]
        self.told = Told()
        self.log: list[str] = []
        self.disks: dict[str, int] = {}
        self.snapshots: dict[str, list[MemoryFileSystem]] = {}
        self.forgotten: set[str] = set()
        self.again: list[tuple[int, str, MemoryFileSystem]] = []
        """Processes that begin at a time."""
        self.later: list[str] = []
        """Groups that join later."""
        if "join" in self.kinds:
            self.later = [self.names.pop()]
        self.site = FaultySite(*self.names, lot=lot, sync=lot.random() < 0.5)
        self.site.on_flushed = self._flushed
        self.next_fault_ms = self.site.now_ms + 300

    def run(self) -> Result:
        """All of it."""
        failure = ""
        try:
            self._play()
        except Violation as violation:
            failure = str(violation)
        told = self.told
        return Result(
            self.seed, self.kinds, len(told.publishes), told.due, told.forbidden, failure, tuple(self.log[-40:])
        )

    def _play(self) -> None:
        site = self.site
        end_ms = site.now_ms + FAULTS_MS
        while site.now_ms < end_ms:
            self._clients()
            self._faults()
            self._restart(site.now_ms)
            self._forget_on()
            site.step()
        self._note("calm")
        site.calm()
        self._restart(1 << 60)
        end_ms = site.now_ms + QUIET_MS
        while site.now_ms < end_ms:
            self._clients()
            self._forget_on()
            site.step()
        end_ms = site.now_ms + SETTLED_MS
        while why := self._waits():
            self._forget_on()
            site.step()
            if site.now_ms > end_ms:
                raise Violation(f"settled: {why}")
        self._check()

    def _note(self, what: str) -> None:
        self.log.append(f"{self.site.now_ms} #{self.told.events} {what}")

    def _running(self) -> list[str]:
        site = self.site
        return [name for name in self.names if name not in site.away and not site.stands(name)]

    def _flushed(self, name: str) -> None:
        for operation in self.told.operations(name):
            operation.flushed = operation.flushed or operation.answered <= self.told.events

    # Clients.

    def _clients(self) -> None:
        lot = self.lot
        resumed, self.site.resumed = self.site.resumed, []
        for name in self._running():
            if name in resumed:  # what clients wanted to send meanwhile
                for publisher in range(PUBLISHERS):
                    self._publish(name, publisher)
            for publisher in range(PUBLISHERS):
                if lot.random() < 0.1:
                    self._publish(name, publisher)
            queues = [queue for queue in self.told.queues if queue.owner == name]
            if len(queues) < QUEUES_MAX and lot.random() < (0.02 if queues else 0.3):
                self._make_queue(name)
            for queue in queues:
                if lot.random() < 0.04:
                    self._bind(queue)
                if lot.random() < 0.05:
                    self._consume(queue)

    def _publish(self, name: str, publisher: int) -> None:
        told, batch, sent = self.told, [], []
        for _ in range(self.lot.choice((1, 1, 3))):
            tag = self.lot.choice(TAGS)
            met = frozenset(self.site.nodes[name].broker.sending.peers)
            publish = Publish(len(told.publishes), publisher, name, self.disks.get(name, 0), tag, told.now(), met=met)
            told.publishes[publish.id] = publish
            sent.append(publish)
            batch.append(Message("t", b"%d" % publish.id, f"TAGS\x01{tag}\x02".encode(), tag))

        def answered(_token: Any, result: Any) -> None:
            results = result if isinstance(result, list) else [result] * len(sent)
            for publish, each in zip(sent, results, strict=True):
                if isinstance(each, ErrorCode | GantryError):
                    publish.refused = True
                else:
                    publish.confirmed = told.now()

        self._call(name, "submit", batch, answered)

    def _call(self, name: str, method: str, argument: Any, on_done: Callable[[Any, Any], None]) -> None:
        try:
            getattr(self.site.nodes[name].port, method)(argument, None, on_done)
        except GantryError as error:
            on_done(None, error)

    def _make_queue(self, name: str) -> None:
        port = self.site.nodes[name].port

        def opened(light: int, _token: Any, result: Any) -> None:
            if not isinstance(result, GantryError):
                self.told.queues.append(Queue(name, light, result.cursor, self._name_of(name, light)))

        def made(_token: Any, result: Any) -> None:
            if not isinstance(result, GantryError):
                port.open_cursor(f"~{result}", "g", EARLIEST, None, partial(opened, result))

        port.create_light(None, made)

    def _name_of(self, owner: str, light: int) -> int:
        """The queue's id in the names of its routes."""
        return light

    def _bind(self, queue: Queue) -> None:
        tag = self.lot.choice((*TAGS, ANY)) if self.lot.random() < 0.5 else "a"
        route_id = f"prefix/{queue.name}" if tag == "a" else f"more/{queue.name}/x{tag}"
        operation = Operation(self.lot.random() < 0.5, self.told.now())
        queue.operations.setdefault(tag, []).append(operation)

        def answered(_token: Any, result: Any) -> None:
            operation.ended = True
            if not isinstance(result, GantryError):
                operation.answered = self.told.now()

        if operation.on:
            self._call(queue.owner, "add_route", Route(route_id, "prefix", None, tag, queue.light), answered)
        else:
            self._call(queue.owner, "remove_routes", [route_id], answered)

    def _consume(self, queue: Queue) -> None:
        port, lot = self.site.nodes[queue.owner].port, self.lot

        def acquired(_token: Any, result: Any) -> None:
            if isinstance(result, GantryError):
                return
            settled = [each for each in result if lot.random() < 0.8]
            queue.taken.update({each.offset: each.message.body for each in settled})
            port.settle([(queue.cursor, each.offset, Outcome.ACK) for each in settled])
            port.release(1)

        port.acquire(queue.cursor, 1, lot.randint(1, 20), 1 << 20, None, acquired)

    # Faults.

    def _faults(self) -> None:
        site = self.site
        if site.now_ms < self.next_fault_ms:
            return
        self.next_fault_ms = site.now_ms + self.lot.randint(150, 1_000)
        running = self._running()
        if running:
            kind, name = self.lot.choice(self.kinds), self.lot.choice(running)
            getattr(self, f"_{kind}")(name)

    def _other(self, name: str) -> str:
        return self.lot.choice([other for other in self.names if other != name] or [name])

    def _begin_later(self, name: str, files: MemoryFileSystem) -> None:
        for operation in self.told.operations(name):
            operation.ended = True
        at_ms = self.site.now_ms + self.lot.choice((0, 50, 500, 1_500, 4_000))
        self.again.append((at_ms, name, files))

    def _restart(self, now_ms: int) -> None:
        for each in [each for each in self.again if each[0] <= now_ms]:
            self.again.remove(each)
            _, name, files = each
            self._note(f"start {name}")
            self.site.start(name, files)
            self._started(name)

    def _started(self, name: str) -> None:
        """Queues that its disk has not are gone."""
        broker = self.site.nodes[name].broker
        begin = int(broker.tables.rows(TABLE)[START + broker.sending.life])
        gone = []
        for queue in [queue for queue in self.told.queues if queue.owner == name]:
            cursor = broker.cursors.find(f"~{queue.light}", "g")
            if queue.light >= begin or cursor is None or cursor.id != queue.cursor:
                gone.append(queue)
        for queue in gone:
            if queue.whole:
                raise Violation(f"queue: {name}~{queue.light} is gone")
            self.told.queues.remove(queue)
        for queue in self.told.queues:
            if queue.owner == name:
                queue.starts.append(self.told.now())

    def _kill(self, name: str) -> None:
        self._note(f"kill {name}")
        self._begin_later(name, self.site.kill(name))

    def _power(self, name: str) -> None:
        self._note(f"power {name}")
        files = self.site.lose_power(name)
        self._begin_later(name, files)
        for queue in self.told.queues:
            if queue.owner == name:
                queue.lose_unflushed()
                queue.whole = False

    def _replace(self, name: str, files: MemoryFileSystem) -> None:
        self.site.kill(name)
        self._begin_later(name, files)
        self.disks[name] = self.disks.get(name, 0) + 1
        for queue in self.told.queues:
            if queue.owner == name:
                queue.reset, queue.whole = self.told.now(), False

    def _old(self, name: str) -> None:
        known = self.snapshots.setdefault(name, [])
        if not known or self.lot.random() < 0.6:
            self._note(f"copy of disk {name}")
            known.append(self.site.disk(name))
            return
        self._note(f"older disk {name}")
        self._replace(name, self.lot.choice(known).after_process_crash())

    def _empty(self, name: str) -> None:
        if self.lot.random() < 0.4:
            self._note(f"empty disk {name}")
            self._replace(name, MemoryFileSystem())

    def _isolate(self, name: str) -> None:
        ms = self.lot.randint(100, 5_000)
        self._note(f"isolate {name} for {ms}")
        for other in self.names:
            if other != name:
                self.site.break_lines(name, other, ms)
                self.site.break_lines(other, name, ms)

    def _broken(self, name: str) -> None:
        other, ms = self._other(name), self.lot.choice((0, 0, 300, 4_000))
        self._note(f"break {name} to {other} for {ms}")
        self.site.break_lines(name, other, ms)

    def _one_way(self, name: str) -> None:
        """What one sends does not arrive; half of the time the connection is given up for that."""
        other, ms = self._other(name), self.lot.randint(100, 5_000)
        self._note(f"one way {name} to {other} for {ms}")
        self.site.stalls[name, other] = self.site.now_ms + ms
        if self.lot.random() < 0.5:
            self.site.break_lines(name, other, ms)
            self.site.break_lines(other, name, ms)

    def _stop(self, name: str) -> None:
        ms = self.lot.randint(100, 5_000)
        self._note(f"stop {name} for {ms}")
        self.site.stopped[name] = self.site.now_ms + ms

    def _suspend(self, name: str) -> None:
        ms = self.lot.randint(100, 6_000)
        self._note(f"suspend {name} for {ms}")
        self.site.asleep[name] = self.site.now_ms + ms

    def _slow_disk(self, name: str) -> None:
        self._note(f"slow disk {name}")
        self.site.slow_disks[name] = self.site.now_ms + self.lot.randint(50, 2_000)

    def _join(self, name: str) -> None:
        for joining in self.later:
            self._note(f"join {joining}")
            self.names.append(joining)
            self.site.start(joining, MemoryFileSystem())
        self.later = []

    def _forget(self, name: str) -> None:
        if name == KEEPER or self.forgotten or KEEPER not in self._running() or len(self.names) < 3:
            return
        self._note(f"forget {name}")
        self.site.kill(name)
        self.names.remove(name)
        self.forgotten.add(name)
        self.told.queues = [queue for queue in self.told.queues if queue.owner != name]

    def _forget_on(self) -> None:
        """The operator asks until it is done, and again if the metadata group finds an older disk that knows of the group."""
        site = self.site
        if self.forgotten and KEEPER in self._running() and site.now_ms % 500 == 0:
            for name in self.forgotten & site.table().groups.keys():
                site.forget(name)

    # The end.

    def _waits(self) -> str:
        """What is not done; empty: nothing."""
        site = self.site
        for queue in self.told.queues:
            for tag, operations in queue.operations.items():
                if not all(operation.ended for operation in operations):
                    return f"a change of {queue.owner}~{queue.light} {tag!r}"
        for name in self.names:
            if name in site.away:
                return f"{name} is away"
            broker = site.nodes[name].broker
            sending = broker.sending
            if set(sending.peers) != set(self.names) - {name}:
                return f"{name} knows {sorted(sending.peers)}"
            for peer in sending.peers.values():
                life = site.nodes[peer.name].broker.sending.life
                if not peer.is_known or peer.lease_ms <= broker.clock.boot_ms() or peer.life != life:
                    return f"{name} does not know the routes of {peer.name}"
                if sending.behind(peer):
                    return f"{sending.behind(peer)} records of {name} for {peer.name}"
                if list(sending.queues_of(peer.name)) != [sending.life]:
                    return f"forward queues of {name} for {peer.name}: {sending.queues_of(peer.name)}"
        return ""

    def _check(self) -> None:
        stored = {name: self._stored(self.site.nodes[name]) for name in self.names}
        for name in self.names:
            self._check_left(name)
            for publish in self.told.publishes.values():
                promised = publish.confirmed < 1 << 60 and publish.source == name and not self.disks.get(name)
                if promised and (self.site.sync or "power" not in self.kinds) and publish.id not in stored[name]:
                    raise Violation(f"confirmed: {publish} is lost")
        for queue in list(self.told.queues):
            node = self.site.nodes[queue.owner]
            if str(queue.light) not in node.broker.tables.rows("light"):
                if queue.whole:
                    raise Violation(f"queue: {queue.owner}~{queue.light} is gone")
                continue
            there = self._entries(node, queue.light)
            self._drain(node, queue, there)
            self.told.check_queue(queue, [int(body) for body in there], stored)

    @staticmethod
    def _entries(node: Node, light: int) -> list[bytes]:
        units = node.store.light_units(light, 0, 1_000_000)
        found = node.store.get_entries([(unit[0], unit[1]) for unit in units])
        return [message.body for message in found if message is not None]

    @staticmethod
    def _stored(node: Node) -> set[int]:
        store = node.store
        found: set[int] = set()
        for queue in store.queues_of("t"):
            units = store.units("t", queue, 0, store.max_offset("t", queue))
            messages = store.get_entries([(unit[0], unit[1]) for unit in units])
            found.update([int(message.body) for message in messages if message is not None])
        return found

    def _drain(self, node: Node, queue: Queue, there: list[bytes]) -> None:
        """What its consumer has not taken yet."""
        while found := node.call("acquire", queue.cursor, 1, 100, 1 << 20):
            queue.taken.update({each.offset: each.message.body for each in found})
            node.port.settle([(queue.cursor, each.offset, Outcome.ACK) for each in found])
            node.turn.run_until_quiet()
        if queue.whole and [queue.taken.get(offset) for offset in range(len(there))] != there:
            raise Violation(f"taken: {queue.owner}~{queue.light} has {there}, its consumer {queue.taken}")

    def _check_left(self, name: str) -> None:
        """Nothing is kept for groups and starts that are gone."""
        broker = self.site.nodes[name].broker
        tables, others = broker.tables, set(self.names) - {name}
        rows = tables.rows(TABLE)
        lights = {light for other in others for light in broker.sending.queues_of(other).values()}
        starts = [key for key in rows if key.startswith(START)]
        left = [key for key in rows if key.split("/")[1] not in others and key not in starts]
        left += [
            key for key, value in rows.items() if key.startswith(TO) and value.decode() not in tables.rows("light")
        ]
        cursors = broker.cursors.by_id.values()
        left += [each.queue for each in cursors if each.group == CURSOR_GROUP and int(each.queue[1:]) not in lights]
        left += [key for key in rows if key.startswith(READ) and not rows[key].isdigit()]
        if left or broker.sending._waiting or broker.receiving._waiting:
            raise Violation(f"left: {name} has {left} {broker.sending._waiting} {broker.receiving._waiting}")
        if {key[len(SOURCE) :] for key in rows if key.startswith(SOURCE)} != others:
            raise Violation(f"left: {name} has {sorted(rows)}")
        numbers = {peer.number: peer.name for peer in broker.sending.peers.values()}
        known: dict[str, set[int]] = {other: set() for other in others}
        for light in broker.router.lights():
            if light >> LIGHT_BITS:
                known[numbers[light >> LIGHT_BITS]].add(light & ((1 << LIGHT_BITS) - 1))
        for other in others:
            theirs = {light for light in self.site.nodes[other].broker.router.lights() if not light >> LIGHT_BITS}
            if known[other] != theirs:
                raise Violation(f"routes: {name} knows {known[other]} of {other}, which has {theirs}")
