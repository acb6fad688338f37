"""One simulation: a plan drawn from the seed, faults for a number of steps, then none, until everything owed has been done."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from gantrymq.model import names
from interop_tests.sim import ledger as kinds
from interop_tests.sim.client import Client
from interop_tests.sim.ledger import Group, Ledger
from interop_tests.sim.members import PullMember
from interop_tests.sim.node import Node, Plant
from interop_tests.sim.poppers import Popper
from interop_tests.sim.producers import Producer
from interop_tests.sim.world import Violation, World
from tests.store.crash_states import CrashFiles

STEPS = 6_000
"""Events with faults."""
FAULTS_MS = 120_000
"""...or this long."""
HEALING_MS = 5 * 60_000
"""When faults have stopped, everything owed is done after this time: the longest retry waits for a minute, several times."""
CHECK_EVERY_MS = 1_000
QUIET_MS = 8_000
"""Nothing may come after the end that comes too much: watched so long."""
STEPS_AFTER_MAX = 2_000_000

FAULT_EVERY_MS = (300, 1_000, 3_000)
FAULTS = ("cut", "pause", "crash", "leave", "kill", "power", "stop", "slow", "jump", "snapshot")


@dataclass
class Result:
    """How a simulation ended. `digest`: of its log of events."""

    seed: int
    steps: int
    virtual_ms: int
    sync: bool
    acks: int
    deliveries: int
    crashes: int
    losses: int
    digest: str
    failure: str
    events: list[str]


class Failures(logging.Handler):
    """What the broker logs as an error ends a simulation: it catches what its callbacks raise, and goes on."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self.texts.append(record.getMessage())


class Simulation:
    """`run` gives the result; `plant` breaks something on purpose; `sync` overrides what the seed says."""

    def __init__(
        self, seed: int, steps: int = STEPS, plant: Plant | None = None, sync: bool | None = None,
        files: Callable[[], CrashFiles] = CrashFiles, faults: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.world = World(seed)
        lot = self.world.lot
        drawn = lot.random() < 0.5
        self.sync = drawn if sync is None else sync
        self.steps = steps
        self.ledger = Ledger(self.world, self.sync)
        self.node = Node(self.world, self.ledger, self.sync, files(), plant)
        self.ledger.node = self.node
        self.node.topics = {"A": lot.choice((1, 2, 4)), "T": lot.choice((1, 2))}
        # Not every fault in every run: what one hides another shows.
        self.faults = faults or tuple([name for name in FAULTS if lot.random() < 0.6])
        self.every_ms = FAULT_EVERY_MS[0] if faults else lot.choice(FAULT_EVERY_MS)
        self.producers: list[Producer] = []
        self.consumers: list[PullMember | Popper] = []
        self._make_clients()

    def _make_clients(self) -> None:
        world, node, book = self.world, self.node, self.ledger
        lot = world.lot
        mixes: tuple[tuple[str, ...], ...] = (
            (kinds.PLAIN,), (kinds.PLAIN, "batch"), (kinds.PLAIN, kinds.DELAYED, kinds.TIMED), (kinds.HALF,),
            (kinds.PLAIN, "batch", kinds.DELAYED, kinds.TIMED, kinds.HALF),
        )  # fmt: skip
        for number in range(lot.randrange(2, 4)):
            self.producers.append(Producer(world, node, book, f"P{number}", lot.choice(mixes)))
        self.producers.append(Producer(world, node, book, "PX", mixes[-1]))
        wanted = [
            Group("pull", ("A", "T"), "*", False), Group("tags", ("A",), "red", False),
            Group("order", ("A", "T"), "*", False), Group("pop", ("A", "T"), "*", True),
            Group("steps", ("T",), "*", True, ordered=True),
        ]  # fmt: skip
        for group in wanted:
            if lot.random() < 0.25:
                continue
            book.groups[group.name] = group
            for number in range(lot.randrange(1, 4)):
                name = f"{group.name}{number}"
                if group.pops:
                    self.consumers.append(Popper(world, node, book, name, group))
                else:
                    self.consumers.append(PullMember(world, node, book, name, group, group.name == "order"))

    @property
    def clients(self) -> list[Client]:
        """All of them."""
        return [*self.producers, *self.consumers]

    # Phases.

    def run(self) -> Result:
        """Never raises for what the broker does."""
        failures = Failures()
        logger = logging.getLogger("gantrymq")
        before = logger.propagate, logger.level
        logger.addHandler(failures)
        logger.propagate = False
        logger.setLevel(logging.ERROR)
        failure = ""
        try:
            self._phases(failures)
        except Exception as error:
            failure = str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
            if not isinstance(error, AssertionError):
                failure += f" ({_where(error)})"
        finally:
            logger.removeHandler(failures)
            logger.propagate, level = before
            logger.setLevel(level)
        book, world = self.ledger, self.world
        return Result(
            world.seed, world.steps, world.now, self.sync, book.acks, book.deliveries, book.crashes, book.losses,
            world.digest(), failure, list(world.last),
        )  # fmt: skip

    def _phases(self, failures: Failures) -> None:
        world = self.world
        self.node.start()
        self._settle(failures)
        for client in self.clients:
            world.later(world.lot.randrange(500), client.start)
        if self.faults:
            world.later(self._pause_ms(), self._fault)
        while world.steps < self.steps and world.now < FAULTS_MS:
            self._step(failures)
        self._heal()
        self._until_quiet(failures)
        for topic in sorted(self.node.store.topics()):
            self._audit(topic)

    def _settle(self, failures: Failures) -> None:
        """Topics are there, and on the disk, before anything else happens."""
        until = self.world.now + 1_500
        while self.world.now < until:
            self._step(failures)

    def _step(self, failures: Failures) -> None:
        if not self.world.step():
            raise Violation("liveness", "nothing will ever happen again")
        self.node.check()
        if failures.texts:
            raise Violation("no error", failures.texts[0])

    def _heal(self) -> None:
        world = self.world
        world.note("faults stop")
        world.calm = True
        world.clock.set_right()
        self.node.slow_until = 0
        for producer in self.producers:
            producer.quiet = True
        for client in self.clients:
            client.start()
        self.node.files.power_cut_at = -1

    def _until_quiet(self, failures: Failures) -> None:
        world = self.world
        begun, begun_steps = world.now, world.steps
        owed = ["?"]
        while owed:
            until = world.now + CHECK_EVERY_MS
            while world.now < until:
                self._step(failures)
            owed = self._owed()
            late = world.now - begun > HEALING_MS or world.steps - begun_steps > STEPS_AFTER_MAX
            if owed and late:
                raise Violation(
                    "I1", f"{len(owed)} things are owed after {world.now - begun} ms without faults: {owed[:10]}"
                )
        until = world.now + QUIET_MS
        while world.now < until:
            self._step(failures)

    def _owed(self) -> list[str]:
        node = self.node
        if not node.up:
            return ["a broker"]
        found = []
        if node.broker.transactions.pending:
            found.append(f"{node.broker.transactions.pending} decisions")
        for group in self.ledger.groups.values():
            dead: dict[str, None] = {}
            for record in self._records(names.DLQ_PREFIX + group.name, 0):
                dead[self.ledger.message_of(record.body, record.topic, group.name).uid] = None
            owed = self.ledger.owed(group, dead)
            if owed and self.ledger.losses:
                self._excuse(group)
                owed = self.ledger.owed(group, dead)
            found += [f"{group.name}: {uid}" for uid in owed]
        return found

    def _excuse(self, group: Group) -> None:
        """Messages and copies in the retry topic may be behind members that had passed there before a power loss."""
        for topic, count in self.node.topics.items():
            for queue_id in range(count):
                for record in self._records(topic, queue_id):
                    place = (topic, queue_id, record.queue_offset)
                    self.ledger.observe(
                        self.ledger.message_of(record.body, topic, group.name), place, record.physical_offset
                    )
        for record in self._records(names.RETRY_PREFIX + group.name, 0):
            if group.shadowed((record.topic, record.queue_id, record.queue_offset)):
                sent = self.ledger.message_of(record.body, record.topic, group.name)
                group.excused[sent.uid] = None

    # Reading what is there.

    def _records(self, topic: str, queue_id: int) -> list[Any]:
        store = self.node.store
        found: list[Any] = []
        offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        while offset < end:
            units = store.units(topic, queue_id, offset, 500)
            found += [message for message in store.get_many([unit[:2] for unit in units]) if message is not None]
            offset += len(units)
        return found

    def _audit(self, topic: str) -> None:
        known = topic in self.node.topics or topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))
        for queue_id in self.node.store.queues_of(topic) if known else ():
            self.ledger.audit(topic, queue_id, self._records(topic, queue_id))

    # Faults.

    def _pause_ms(self) -> int:
        return self.world.lot.randrange(self.every_ms * 2) + 1

    def _fault(self) -> None:
        world = self.world
        if world.calm:
            return
        kind = world.lot.choice(self.faults)
        self._do(kind)
        world.later(self._pause_ms(), self._fault)

    def _do(self, kind: str) -> None:
        world, node = self.world, self.node
        lot = world.lot
        client = lot.choice(self.clients)
        if kind == "cut":
            if client.wire is not None:
                client.wire.cut()
        elif kind == "pause":
            if client.alive:
                client.pause(lot.choice((100, 2_000, 10_000)))
        elif kind == "crash":
            client.crash()
            world.later(lot.randrange(3_000), client.start)
        elif kind == "leave":
            if isinstance(client, PullMember) and client.alive:
                client.leave()
                world.later(lot.randrange(8_000), client.start)
        elif kind in ("kill", "power"):
            node.kill(kind == "power")
        elif kind == "stop":
            node.stop()
        elif kind == "slow":
            world.note("the disk is slow")
            node.slow_until = world.now + lot.randrange(8_000)
        elif kind == "jump":
            ms = lot.choice((-1, 1)) * lot.choice((50, 2_000, 60_000, 3_600_000))
            world.note(f"the wall clock jumps by {ms} ms")
            world.clock.jump(ms)
        elif kind == "snapshot":
            node.enter(node.life, partial(self._snapshot, node))

    def _snapshot(self, node: Node) -> None:
        node.snapshot()


def _where(error: BaseException) -> str:
    """File and line that raised it."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place is not None else "?"
