"""The broker as a service: store, broker, flusher, and the Remoting door on port 10911."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Any, ClassVar, Final

import anyio

from gantrymq.auth.members.key import ClusterKey
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import (
    BrokerConfig,
    BrokerOptions,
    ExchangesConfig,
    GatewayConfig,
    TimerConfig,
    TopicsConfig,
    TransactionsConfig,
    untimed,
)
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.retention.compaction import Compaction
from gantrymq.broker.retention.kept import KeptByTime
from gantrymq.broker.retention.lost import name_lost
from gantrymq.broker.retention.retention import Retention
from gantrymq.broker.retention.verification import Verification
from gantrymq.broker.rocketmq.config_export import ConfigExport, Ends
from gantrymq.broker.rocketmq.timer_takeover import TimerTakeover
from gantrymq.broker.routing.router import load_route_sets
from gantrymq.broker.slices import Upkeep
from gantrymq.broker.tables.snapshots import SnapshotWork
from gantrymq.broker.tables.tables import Rows
from gantrymq.broker_metrics import BrokerMetrics, registered
from gantrymq.cluster.forward.peers import OtherPort, Peers
from gantrymq.cluster.forward.pulls import Pulls
from gantrymq.cluster.slots.keeping import SlotKeeper, tell_gateways
from gantrymq.cluster.wire.dial import Dialer
from gantrymq.cluster.wire.neighbours import Neighbours
from gantrymq.cluster.wire.server import GatewaySession
from gantrymq.launch.authentication import open_at_broker
from gantrymq.launch.health import Health
from gantrymq.launch.recovery_progress import RecoveryProgress
from gantrymq.metrics import SECONDS, Histogram, Metrics
from gantrymq.model.errors import GantryError
from gantrymq.model.limits import MessageConfig
from gantrymq.model.names import AUDIT_TOPIC
from gantrymq.net.api import ConnectionFactory
from gantrymq.net.listen import ListenError
from gantrymq.remoting.registration.registrar import Registrar
from gantrymq.remoting.server.broker_door import BrokerServer
from gantrymq.remoting.server.table_rows import CHECKS
from gantrymq.services import ServiceContext
from gantrymq.store.checkpoints.snapshot_file import SnapshotFiles
from gantrymq.store.cold import ColdReads
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.flusher import Flusher, FlushTimes
from gantrymq.store.message_store import MessageStore

log = logging.getLogger(__name__)


PAUSE_S: Final = 0.004
SWITCH_S: Final = 0.0005
"""How long the loop waits for the interpreter at most where a thread computes (a checkpoint of 10,000 queues: 50 ms). At Python's 5 ms such a
thread holds up every system call of the loop: p99.9 of them 10 to 39 ms, here 0.1 to 9, on a busy machine."""

SHARE_AFTER_MS: Final = 3_000
"""A new broker group owns names only when gateways have found it: they ask the nameservers every second."""
FOUNDING_S: Final = 2.0
"""The start of a metadata group without a table waits so long for what others say of theirs; then it goes on, and takes no records before they did."""
VIP_BELOW: Final = 2
"""RocketMQ's second listener, "VIP channel": clients take it from the broker's port by themselves (MixAll.brokerVIPChannel)."""


class BrokerService:
    """Started after the nameserver and before the gateways, which find it as `shared["broker_port"]`."""

    name = "broker"
    default_port = 10911
    config: type = BrokerConfig
    extra_sections: ClassVar[dict[str, type]] = {
        "message": MessageConfig,
        "store": StoreConfig,
        "topics": TopicsConfig,
        "gateway": GatewayConfig,
        "amqp": ExchangesConfig,
        "timer": TimerConfig,
        "transactions": TransactionsConfig,
    }

    def __init__(self) -> None:
        self.broker: Broker | None = None
        self._store: MessageStore | None = None
        self._flusher: Flusher | None = None
        self._cold: ColdReads | None = None
        self._registrar: Registrar | None = None
        self._dialers: list[Dialer] = []
        """The ways to other broker groups, the one to the metadata group first."""
        self._export: ConfigExport | None = None
        self._snapshots: SnapshotWork | None = None
        self._worker: ThreadPoolExecutor | None = None

    async def start(self, context: ServiceContext) -> list[tuple[str, int]]:
        """Recover, open the door, register with the nameservers."""
        config: BrokerConfig = context.config
        store_config: StoreConfig = replace(
            context.sections["store"],
            body_bytes_max=context.sections["message"].body_bytes_max,
            delay_levels=context.sections["timer"].delay_levels,
        )
        loop = asyncio.get_running_loop()
        store, whole = await self._load(context, store_config)
        snapshot_files = SnapshotFiles(store.files, context.data / "gantry" / "snapshots")
        metrics = context.shared.get("metrics")
        flush_seconds = Histogram(SECONDS)
        times = FlushTimes(time.perf_counter, flush_seconds.observe) if metrics is not None else None
        flusher = Flusher(
            store, store_config.flush_interval_ms, loop.call_soon_threadsafe,
            self._flushed, partial(self._store_failed, context), times,
        )  # fmt: skip
        broker = self._open(context, store, whole, snapshot_files, flusher)
        sys.setswitchinterval(SWITCH_S)
        flusher.start()
        self._flusher = flusher
        self._worker = ThreadPoolExecutor(1, "gantry-background")
        background = Worker(self._worker, loop)
        snapshots = broker.snapshots
        assert snapshots is not None
        self._snapshots = SnapshotWork(snapshots, snapshot_files, store, context.wheel, background.in_thread)
        self._snapshots.start(config.snapshot_records, config.snapshot_interval_s * 1000)
        upkeep = Upkeep(broker.wheel, broker.clock, lambda: broker.closed, broker.request_flush)
        Compaction(store, broker.topics, broker.min_offset, upkeep, background).start()
        verification = None
        if store_config.verify_bytes_per_s:
            verification = Verification(store, broker.cursors, upkeep, store_config.verify_bytes_per_s)
            verification.start()
        store.on_units_written(broker.stats.stored)
        broker.stats.start(context.wheel)
        key: ClusterKey | None = context.shared.get("cluster_key")
        doors = BrokerServer(broker, context, partial(GatewaySession, broker), context.shared.get("auth"), key)
        kept = KeptByTime(broker, context.sections["amqp"].keep_exchange_records, doors.clients.wanted)
        retention = Retention(broker, store, partial(in_thread, loop.call_soon_threadsafe), kept)
        retention.start()
        if metrics is not None:
            show_metrics(metrics, store, broker, retention, doors)
            if verification is not None:
                verification.show(metrics)
            limits = context.shared.get("metrics_config")
            most = (limits.topics_max, limits.groups_max) if limits is not None else (0, 0)
            BrokerMetrics(broker, doors, metrics, most, flush_seconds).register()
        if (authority := context.shared.get("auth")) is not None:
            broker.topics.get(AUDIT_TOPIC)  # which gateways write to, too
            await open_at_broker(authority, LocalBrokerPort(broker), context.data)
        bound = await context.listen(context.asking(doors.accept), context.host, config.port)
        vip = await listen_vip(context, context.asking(doors.accept), bound[1]) if config.vip_channel else []
        self._registrar = Registrar(broker.topics, broker.settings, context, bound, key)
        doors.set_address(self._registrar.advertised)
        doors.identity.registers(
            self._registrar.when_known, list(context.nameservers), context.shared.get("listeners", {})
        )
        tell_gateways(broker)
        await self._registrar.start()
        await self._keep_slots(context, broker, key)
        self._tell_health(context.shared.get("health"), self._registrar)
        if not config.metadata_group:  # else doors reach every broker group, as gateways of their own do
            context.shared["broker_port"] = LocalBrokerPort(broker)
        context.shared["broker"] = broker
        return [bound, *vip]

    async def _load(self, context: ServiceContext, config: StoreConfig) -> tuple[MessageStore, bool]:
        """The store, recovered; whether it has all that it ever had."""
        store = MessageStore(OsFileSystem(), context.data, config, context.clock)
        progress = RecoveryProgress(context.clock.monotonic_ms)
        try:
            report = await asyncio.to_thread(store.load, progress, accept_loss=context.shared.get("accept_loss", False))
        finally:
            progress.close()
        self._store = store
        log.info("store: %s", report)
        return store, report.clean or report.whole

    def _open(
        self, context: ServiceContext, store: MessageStore, whole: bool, snapshots: SnapshotFiles, flusher: Flusher
    ) -> Broker:
        """The broker with what it owed, another broker's work in the meantime taken over; the export of its configuration."""
        sections = context.sections
        export = ConfigExport(store.files, context.data, context.clock)
        now_s = time.perf_counter if "metrics" in context.shared else untimed
        options = BrokerOptions(
            sections["timer"], sections["transactions"], CHECKS, flusher.request, export.delays_changed, now_s
        )
        broker = Broker(
            store, context.clock, context.turn, context.wheel, load_route_sets(),
            context.config, sections["topics"], sections["gateway"], store.config.flush == "sync", options,
        )  # fmt: skip
        broker.keep_snapshots(snapshots)
        ends = Ends(store.topics(), store.queues_of, store.max_offset)

        def take_over() -> Rows:
            rows = export.import_rows(broker.tables, ends)
            timers = export.others_timers
            path = context.data / "store"
            takeover = TimerTakeover(store.files, path, store, timers) if timers is not None else None
            broker.delays.take_over(export.others_levels, takeover)
            return rows

        broker.open(not whole, take_over)
        name_lost(broker.cursors, store)
        loop = asyncio.get_running_loop()
        export.start(broker.tables, context.wheel, partial(loop.run_in_executor, None))
        export.keep_delays(broker.delays.floors)
        self._export = export
        self._cold = ColdReads(store.files, loop.call_soon_threadsafe)
        store.read_without_waiting(self._cold)
        store.open_ahead()
        self.broker = broker
        return broker

    async def _keep_slots(self, context: ServiceContext, broker: Broker, key: ClusterKey | None) -> None:
        """The table of slots: kept here, or followed over a connection as gateways have it. The metadata group has it when this returns, unless it
        waits for others."""
        group = broker.config.metadata_group
        if not group:
            return
        port, tls = None, context.shared.get("cluster_tls")
        if group != broker.config.name:
            dialer = Dialer(context.nameservers, group, key, tls)
            self._dialers.append(dialer)
            port = dialer.port
            context.spawn(dialer.keep)
        neighbours = Neighbours(context.nameservers, group, key, tls, context.spawn)
        keeper = SlotKeeper(broker, port, secrets.randbits, SHARE_AFTER_MS, neighbours.survey)
        tried = asyncio.Event()
        keeper.start(tried.set)
        if port is None:
            with anyio.move_on_after(FOUNDING_S):
                await tried.wait()

        def connect(name: str) -> tuple[OtherPort, Callable[[], None]]:
            dialer = Dialer(context.nameservers, name, key, tls, lambda: False)
            self._dialers.append(dialer)
            context.spawn(dialer.keep)
            return dialer.port, dialer.close

        loop = asyncio.get_running_loop()
        Peers(broker, broker.config.name, connect, Pulls(loop.time, loop.call_later)).start()

    def _tell_health(self, health: Health | None, registrar: Registrar) -> None:
        store = self._store
        if health is None or store is None:
            return
        health.alive_if("broker", lambda: store.failure.text if store.failure is not None else "")
        health.ready_if("broker", partial(registered, registrar))

    def _flushed(self, position: int) -> None:
        assert self.broker is not None
        self.broker.gate.advance(position)

    def _store_failed(self, context: ServiceContext, error: GantryError) -> None:
        assert self.broker is not None
        self.broker.store_failed(error)
        context.spawn(_stop_process, error)

    async def drain(self, deadline_s: float) -> None:
        """Leave the routes first: clients move on while we finish."""
        if self._registrar is not None:
            await self._registrar.stop(deadline_s)
        for dialer in self._dialers:
            dialer.close()

    async def stop(self) -> None:
        """Write what a clean stop writes and close the files."""
        if self.broker is not None:
            self.broker.close()
        if self._snapshots is not None:
            self._snapshots.stop()
        if self._worker is not None:
            await asyncio.to_thread(self._worker.shutdown)
        if self._export is not None:
            await asyncio.to_thread(self._export.finish)
        if self._cold is not None:
            await asyncio.to_thread(self._cold.stop)
        if self._flusher is not None:
            await asyncio.to_thread(self._flusher.stop)
        if self._store is not None:
            if self._snapshots is not None and self.broker is not None and self.broker.snapshots is not None:
                self._store.read_without_waiting(None)
                await asyncio.to_thread(self.broker.snapshots.write_now)
            await asyncio.to_thread(self._store.close)


def show_metrics(
    metrics: Metrics, store: MessageStore, broker: Broker, retention: Retention, doors: BrokerServer
) -> None:
    """Gauges and counters of a broker."""
    retention.show(metrics)
    broker.delays.show(metrics)
    broker.transactions.show(metrics)
    doors.pressure.show(metrics, lambda: broker.pending.refused)
    doors.sends.show(metrics)
    for name, text, source in (
        (
            "gantry_store_index_lag_seconds",
            "Age of the oldest record that is not in the index yet",
            lambda: store.index_lag_ms / 1000,
        ),
        ("gantry_store_index_lag_records", "Records that are not in the index yet", lambda: store.index_lag_records),
        (
            "gantry_subscription_conflicts",
            "Topics of which members of one consumer group want different things",
            doors.clients.conflicts,
        ),
    ):
        metrics.read(name, text, source)


async def _stop_process(error: GantryError) -> None:
    """A background task that fails ends the process with an exit code that says so; the next start recovers."""
    raise error


def in_thread(post: Callable[..., object], work: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
    """Run `work` (system calls only) in a thread of its own, then `done` with its failure or None on the loop."""

    def run() -> None:
        failure: OSError | None = None
        try:
            work()
        except OSError as error:
            failure = error
        with suppress(RuntimeError):  # the loop has ended meanwhile
            post(done, failure)

    Thread(target=run, name="gantry-unlink", daemon=True).start()


async def listen_vip(context: ServiceContext, accept: ConnectionFactory, port: int) -> list[tuple[str, int]]:
    """Open the door that is on `port` below it, too. Where somebody else has that port, or a door of this process is to have it, the broker
    works without: brokers of one machine may have ports that lie two apart."""
    vip = port - VIP_BELOW
    if vip <= 0:
        return []
    if vip in context.shared.get("ports", ()):
        log.warning("no VIP channel: port %d is another door's; clients with vipChannelEnabled cannot send", vip)
        return []
    try:
        return [await context.listen(accept, context.host, vip)]
    except ListenError as error:
        log.warning(
            "no VIP channel: %s; clients with vipChannelEnabled cannot send (broker.vip_channel=false does without)",
            error.strerror,
        )
        return []


class Worker:
    """`Background` of compaction and snapshots: one thread, and pauses on the loop."""

    def __init__(self, pool: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop

    def in_thread(self, work: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        """Nothing more is begun once the pool is shut down."""

        def run() -> None:
            failure: OSError | None = None
            try:
                work()
            except OSError as error:
                failure = error
            with suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(done, failure)

        with suppress(RuntimeError):
            self._pool.submit(run)

    def later(self, call: Callable[[], None]) -> None:
        """After `PAUSE_S`: slices of a millisecond take a fifth of the loop's time at most."""
        self._loop.call_later(PAUSE_S, call)


def factory() -> Any:
    """Entry point `broker` of group `gantrymq.services`."""
    return BrokerService()
