"""Kept AMQP bridges: rows of table `amqp_bridge`, each run by one gateway of the installation at a time, by a lease.

What changes in a row is done at once. A bridge never gives up: what refuses it is shown as its state, and tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import anyio

from gantrymq.broker.port import BrokerPort
from gantrymq.model.errors import GantryError
from gantrymq_gateways.bridges.rows import (
    QUEUE_PREFIX,
    STATE_TABLE,
    TABLE,
    Row,
    SecretError,
    State,
    address,
    encode,
    row_from,
    shown,
    state_from,
)

if TYPE_CHECKING:
    from gantrymq_gateways.bridges.amqp import Shovel, Worker

log = logging.getLogger(__name__)

AGAIN: Final = "; trying again"
"""What follows changes with every attempt."""

LEASE_PREFIX: Final = "amqp-bridge:"
LEASE_RETRY_S: Final = 2.0
"""How often somebody who does not run a bridge asks whether he may."""
FAILED_RETRY_S: Final = 15.0
"""Until a bridge that could not begin, for want of a secret or of a package, tries again."""
TELL_S: Final = 2.0
"""How often a row says how far it is, if it moved."""
STOP_S: Final = 8.0
"""For all bridges to finish what is on its way, when the server stops."""
BRIDGES_MAX: Final = 100
"""Each is a task, and two connections; more rows are left alone, and said so."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Of all bridges of a process. `here`: HOST:PORT of the own door; `folder`: of secrets, or empty."""

    port: BrokerPort
    here: str
    folder: str
    gateway: str
    now_ms: Callable[[], int]


async def ask(method: Callable[..., None], *arguments: object) -> Any:
    """A call of the port; raises its GantryError."""
    answered = anyio.Event()
    answers: list[Any] = []

    def done(token: object, result: Any) -> None:
        answers.append(result)
        answered.set()

    method(*arguments, None, done)
    await answered.wait()
    if isinstance(answers[0], GantryError):
        raise answers[0]
    return answers[0]


def shovel_of(name: str, row: Row, around: Surroundings) -> Shovel:
    """What a row means. Raises SecretError, ImportError."""
    amqp = import_module("gantrymq_gateways.bridges.amqp")
    exchange, key = row.to_exchange, row.key
    if row.to_queue:
        key = row.to_queue
    elif not exchange and row.exchange:
        exchange = row.exchange
    elif not exchange:
        key = row.queue
    topology = amqp.Topology(
        row.exchange, row.pattern, row.declare, row.kind, row.arguments, (shown(row.source), shown(row.destination))
    )
    found: Shovel = amqp.Shovel(
        address(row.source, around.here, around.folder), row.queue or QUEUE_PREFIX + name,
        address(row.destination, around.here, around.folder), exchange, key, row.rate, row.prefetch,
        topology=topology, keep_trying=True,
    )  # fmt: skip
    return found


class Kept:
    """One bridge of this process: waits for its lease, works, and says how far it is."""

    def __init__(self, name: str, row: Row, around: Surroundings) -> None:
        self.name = name
        self.row = row
        self._around = around
        self._worker: Worker | None = None
        self._state = State(gateway=around.gateway)
        self._told = b""
        self._changed = anyio.Event()
        self._stopping = anyio.Event()
        self._removed = False
        self.ended = anyio.Event()

    def stop(self, removed: bool = False) -> None:
        """Let `run` return soon. `removed`: its row is gone, and says nothing more."""
        self._removed = self._removed or removed
        self._stopping.set()
        if self._worker is not None:
            self._worker.stop(removed)

    async def run(self) -> None:
        """Until told to stop."""
        try:
            while not self._stopping.is_set():
                try:
                    epoch = await ask(
                        self._around.port.take_lease, LEASE_PREFIX + self.name, False, lambda name: self._lost()
                    )
                except GantryError:
                    await self._wait(LEASE_RETRY_S)
                    continue
                try:
                    await self._work()
                except Exception as error:  # also what a foreign library did not foresee: it is this bridge's alone
                    log.warning("bridge %s: %s", self.name, _reason(error))
                    log.debug("bridge %s", self.name, exc_info=True)
                finally:
                    self._around.port.drop_lease(LEASE_PREFIX + self.name, epoch)
                await self._wait(LEASE_RETRY_S)
        finally:
            self.ended.set()

    async def _wait(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._stopping.wait()

    def _lost(self) -> None:
        if self._worker is not None:
            self._worker.stop()

    async def _work(self) -> None:
        """With the lease: until it is lost, or we are told to stop."""
        rows = await ask(self._around.port.watch_table, STATE_TABLE, _unheard)
        if self.name in rows:
            self._state = state_from(rows[self.name])
            self._state.gateway = self._around.gateway
        while not self._stopping.is_set():
            try:
                shovel = shovel_of(self.name, self.row, self._around)
                amqp = import_module("gantrymq_gateways.bridges.amqp")
            except ImportError:
                self._news("waiting", "aiormq is needed where the server runs: pip install 'gantrymq[bridges]'")
            except SecretError as error:
                self._news("waiting", str(error))
            else:
                self._worker = worker = amqp.Worker(shovel, self._heard)
                await self._watched(worker)
                return
            await self._tell()
            await self._wait(FAILED_RETRY_S)

    def _heard(self, text: str) -> None:
        if self._worker is not None:
            self._news(self._worker.state, text)

    async def _watched(self, worker: Worker) -> None:
        before = self._state.moved

        async def tell() -> None:
            while True:
                with anyio.move_on_after(TELL_S):
                    await self._changed.wait()
                self._changed = anyio.Event()
                self._state.moved, self._state.left = before + worker.moved, worker.left
                await self._tell()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(tell)
                await worker.run()
                tasks.cancel_scope.cancel()
        finally:
            self._worker = None
        self._state.moved, self._state.left = before + worker.moved, worker.left
        self._news("waiting", "stopped")
        await self._tell()

    def _news(self, state: str, why: str) -> None:
        why = why.partition(AGAIN)[0]
        if (state, why) == (self._state.state, self._state.why):
            return
        log.log(logging.INFO if state == "connected" else logging.WARNING, "bridge %s: %s: %s", self.name, state, why)
        if state != self._state.state or not self._state.since:
            self._state.since = self._around.now_ms()
        self._state.state, self._state.why = state, why
        self._changed.set()

    async def _tell(self) -> None:
        """The row, if it would say something new."""
        value = encode(self._state)
        if value != self._told and not self._removed:
            self._told = value
            await ask(self._around.port.put, STATE_TABLE, [(self.name, value)])


def _reason(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _unheard(key: str, value: bytes | None) -> None:
    """What others write of a bridge is read when its lease is ours."""


class Keeper:
    """All bridges of this process."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._rows: dict[str, Row] = {}
        self._running: dict[str, Kept] = {}
        self._up = False
        self._loaded = False
        self._wake = anyio.Event()
        self._stopping = False
        self._over = False

    async def run(self) -> None:
        """A task for all of its time."""
        self._around.port.watch_state(self._broker)
        async with anyio.create_task_group() as tasks:
            while not self._stopping:
                await self._wake.wait()
                self._wake = anyio.Event()
                if self._up and not self._loaded:
                    await self._load()
                await self._settle(tasks.start_soon)
            await self._end([*self._running.values()])
            tasks.cancel_scope.cancel()

    async def stop(self) -> None:
        """What is on its way arrives first."""
        self._stopping = True
        self._wake.set()
        with anyio.move_on_after(STOP_S):
            await self._end([*self._running.values()])

    @staticmethod
    async def _end(kept: list[Kept], removed: bool = False) -> None:
        for each in kept:
            each.stop(removed)
        for each in kept:
            await each.ended.wait()

    async def _load(self) -> None:
        try:
            found = await ask(self._around.port.watch_table, TABLE, self._row_changed)
        except GantryError as error:
            log.debug("bridges are not to be had: %s", error)
            await anyio.sleep(LEASE_RETRY_S)
            self._wake.set()
            return
        self._loaded = True
        self._rows = {}
        for name, value in found.items():
            self._read(name, value)

    def _read(self, name: str, value: bytes) -> None:
        try:
            self._rows[name] = row_from(name, value)
        except ValueError as error:
            self._rows.pop(name, None)
            log.warning("bridge %s is left alone: %s", name, error)

    def _row_changed(self, name: str, value: bytes | None) -> None:
        if value is None:
            self._rows.pop(name, None)
        else:
            self._read(name, value)
        self._wake.set()

    def _broker(self, up: bool) -> None:
        self._up = up
        self._loaded = self._loaded and up
        self._wake.set()

    async def _settle(self, start: Callable[..., Any]) -> None:
        """What runs is what the rows say, while the broker is there."""
        wanted = dict(list(self._rows.items())[:BRIDGES_MAX]) if self._loaded else {}
        if len(self._rows) > BRIDGES_MAX:
            log.warning("bridges: %d are more than the %d that one process runs", len(self._rows), BRIDGES_MAX)
        gone = [each for name, each in self._running.items() if self._loaded and name not in wanted]
        changed = [each for name, each in self._running.items() if name in wanted and wanted[name] != each.row]
        away = [] if self._loaded else list(self._running.values())
        with anyio.move_on_after(STOP_S):
            await self._end(gone, True)
            await self._end([*changed, *away])
        for each in [*gone, *changed, *away]:
            del self._running[each.name]
        for name, row in wanted.items():
            if name not in self._running and not self._stopping:
                self._running[name] = Kept(name, row, self._around)
                start(self._running[name].run)
