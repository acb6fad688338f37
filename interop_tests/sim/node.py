"""The simulated machine: a real broker with its Remoting doors over a disk in memory, killed, cut off and started again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig, BrokerOptions, GatewayConfig, TopicsConfig, TransactionsConfig
from gantrymq.broker.topics import TopicConfig
from gantrymq.cluster.wire.server import GatewaySession
from gantrymq.net.turn import LoopTurn
from gantrymq.net.wheel import TimerWheel
from gantrymq.remoting.server.broker_door import BrokerServer
from gantrymq.store.checkpoints.snapshot_file import SnapshotFiles
from gantrymq.store.config import StoreConfig
from gantrymq.store.message_store import MessageStore
from gantrymq.store.testing import PowerCut
from interop_tests.sim.world import Violation, World
from tests.store.crash_states import MODES, CrashFiles, draw_mode

if TYPE_CHECKING:
    from gantrymq.net.api import Door
    from interop_tests.sim.network import Wire

ROOT = Path("/d")
STORE = StoreConfig(
    commitlog_file_size=64 * 1024, consumequeue_file_size=400, index_slots=50, index_entries=40, queue_files_max=8,
    checkpoint_interval_ms=1_000,
)  # fmt: skip
TRANSACTIONS = TransactionsConfig(timeout_ms=1_000, check_interval_ms=2_000, check_max=1_000)
FLUSH_EVERY_MS = 500
SLOW_FLUSH_MS = 4_000
CUT_WITHIN = 6
"""A crash comes at one of the next so many changes of the disk, or at its own moment."""


class Watcher(Protocol):
    """Who hears of starts."""

    def recovered(self, node: Node, end: int, before: int, power: bool) -> None:
        """The broker came back after a crash with a log up to `end`; it was written up to `before`."""

    def started(self) -> None:
        """It came back, from a crash or a clean stop."""


Plant = Callable[["Node"], None]
"""Breaks something in a broker that has just opened."""


class _Context:
    """The part of ServiceContext that the doors use."""

    def __init__(self, wheel: TimerWheel, turn: LoopTurn) -> None:
        self.wheel = wheel
        self.turn = turn
        self.shared: dict[str, object] = {}


class Node:
    """One machine. `life` counts its processes."""

    store: MessageStore
    broker: Broker
    doors: BrokerServer
    turn: LoopTurn
    wheel: TimerWheel

    def __init__(
        self, world: World, watcher: Watcher, sync: bool, files: CrashFiles, plant: Plant | None = None
    ) -> None:
        self.world = world
        self.watcher = watcher
        self.sync = sync
        self.files = files
        self.plant = plant
        self.life = 0
        self.up = False
        self.wires: dict[Wire, None] = {}
        self.topics: dict[str, int] = {}
        self.slow_until = 0
        self._power = False
        self._lost_power = False
        """Since the last start that succeeded."""
        self._before = -1
        self._doomed = False
        self._asked = False

    # Starts and ends.

    def start(self) -> None:
        """A process starts; while it recovers it may be killed again."""
        if self.up:
            return
        self.life += 1
        self.up = True
        self._asked = self._doomed = False
        lot = self.world.lot
        if not self.world.calm and self._before >= 0 and self.world.chance(0.1):
            self._power = self.world.chance(0.3)
            self.files.power_cut_at = lot.randrange(40)
        self.enter(self.life, self._open)

    def _open(self) -> None:
        world, life = self.world, self.life
        self.turn = LoopTurn(lambda run: world.later(world.lot.choice((0, 0, 1)), partial(self.enter, life, run)))
        self.wheel = TimerWheel(
            world.clock.monotonic_ms,
            lambda delay, call: world.later(round(delay * 1000), partial(self.enter, life, call)),
        )
        self.store = MessageStore(self.files, ROOT, STORE, world.clock)
        report = self.store.load()
        self.broker = Broker(
            self.store,
            world.clock,
            self.turn,
            self.wheel,
            {},
            BrokerConfig(),
            TopicsConfig(),
            GatewayConfig(),
            self.sync,
            BrokerOptions(transactions=TRANSACTIONS, request_flush=self._flush_soon),
        )
        self.broker.keep_snapshots(SnapshotFiles(self.files, ROOT / "gantry" / "snapshots"))
        self.broker.open(not report.clean)
        self.doors = BrokerServer(
            self.broker,
            _Context(self.wheel, self.turn),  # type: ignore[arg-type]
            partial(GatewaySession, self.broker),
        )
        self.doors.set_address("127.0.0.1:10911")
        if self.plant is not None:
            self.plant(self)
        for name, queues in self.topics.items():
            if self.broker.topics.get(name) is None:
                self.broker.topics.create(TopicConfig(name, queues, queues))
        self.files.power_cut_at = -1
        end = self.store.written_position
        world.note(f"process {life} is up: log up to {end}, clean={report.clean}")
        self.watcher.started()
        if self._before >= 0:
            self.watcher.recovered(self, end, self._before, self._lost_power)
        self._before = -1
        self._lost_power = False
        world.later(FLUSH_EVERY_MS, partial(self.enter, life, self._flush_regularly))

    def enter(self, life: int, call: Callable[[], object]) -> None:
        """Run something in that process, if it is still there."""
        if not self.up or life != self.life:
            return
        try:
            call()
        except PowerCut:
            self._end()

    def kill(self, power: bool) -> None:
        """The process is killed, or the machine goes off: now, or in the middle of what it does next."""
        if not self.up or self._doomed:
            return
        self._power = power
        self._doomed = True
        self.world.note(f"{'power loss' if power else 'kill'} planned")
        lot = self.world.lot
        if self.world.chance(0.6):
            self.files.power_cut_at = len(self.files.operations) + lot.randrange(CUT_WITHIN)
        self.world.later(lot.randrange(30), partial(self.enter, self.life, self._cut))

    def _cut(self) -> None:
        raise PowerCut

    def _end(self) -> None:
        lot = self.world.lot
        self.up = False
        if self._before < 0:  # else it was killed while it recovered
            self._before = self.store.written_position
        self._lost_power |= self._power
        if self._power:
            mode = lot.choice(MODES)
            self.files = draw_mode(self.files, mode, lot)
        else:
            mode = "process"
            self.files = self.files.after_process_crash()
        self.world.note(f"process {self.life} died ({mode}), log was written up to {self._before}")
        self._leave_wires()
        self.world.later(lot.randrange(10, 3_000), self.start)

    def stop(self) -> None:
        """A clean stop, and a start."""
        if self.up and not self._doomed:
            self.enter(self.life, self._stop)

    def _stop(self) -> None:
        self.world.note(f"process {self.life} stops")
        self.broker.close()
        assert self.broker.snapshots is not None
        self.broker.snapshots.write_now()
        self.store.close()
        self.up = False
        self._leave_wires()
        self.world.later(self.world.lot.randrange(10, 1_000), self.start)

    def _leave_wires(self) -> None:
        wires, self.wires = self.wires, {}
        for wire in wires:
            wire.broker_died()

    def accept(self, wire: Wire) -> Door:
        """A new connection."""
        self.wires[wire] = None
        return self.doors.accept()

    # The flusher's work.

    def _flush_regularly(self) -> None:
        self._flush_soon()
        self.world.later(FLUSH_EVERY_MS, partial(self.enter, self.life, self._flush_regularly))

    def _flush_soon(self) -> None:
        if not self._asked:
            self._asked = True
            self.world.later(self.world.lot.randrange(3), partial(self.enter, self.life, self._flush))

    def _flush(self) -> None:
        """The sync is done early and told late, or begun early and done late: a crash may come between."""
        lot, life = self.world.lot, self.life
        slow = self.world.now < self.slow_until
        delay = lot.randrange(SLOW_FLUSH_MS) if slow else lot.randrange(8)
        if lot.random() < 0.5:
            position = self.store.flush()
            self.world.later(delay, partial(self.enter, life, partial(self._flushed, position)))
        else:
            self.world.later(delay, partial(self.enter, life, self._flush_late))

    def _flush_late(self) -> None:
        self._flushed(self.store.flush())

    def _flushed(self, position: int) -> None:
        again = self.store.written_position > position
        self._asked = False
        self.broker.gate.advance(position)
        checkpoint = self.store.take_checkpoint()
        if checkpoint is not None:
            self.store.sync_checkpoint(checkpoint)
        if again and self.sync:
            self._flush_soon()

    def snapshot(self) -> None:
        """Tables and cursors are written down."""
        assert self.broker.snapshots is not None
        self.world.note("snapshot")
        self.broker.snapshots.write_now()

    def check(self) -> None:
        """What no broker may do."""
        if self.up and self.store.failure is not None:
            raise Violation("I6", f"the store stopped: {self.store.failure.text}")
