"""A command's own way to the tables of a cluster: the port that gateways have, to every broker group."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from gantrymq.auth.config import AuthConfig
from gantrymq.auth.members.key import ClusterKey
from gantrymq.broker.port import BrokerPort
from gantrymq.client.connecting.routes import NO_NAMESERVER
from gantrymq.client.connecting.signing import TLS_VARIABLE
from gantrymq.clock import SystemClock
from gantrymq.cluster import port as cluster_port
from gantrymq.cluster.join import NOT_USED
from gantrymq.cluster.wire.dial import Members
from gantrymq.config import ENVIRONMENT_PREFIX, Settings, parse_nameservers
from gantrymq.launch.checks import cluster_key_of
from gantrymq.model.errors import ConfigError, ErrorCode, GantryError
from gantrymq.net.procedures.awaited import awaited
from gantrymq.net.tls.contexts import Outgoing, TlsConfig, TlsError, outgoing_of
from gantrymq.net.turn import LoopTurn
from gantrymq.net.wheel import TimerWheel
from gantrymq.services import ServiceContext

if TYPE_CHECKING:
    from gantrymq.cluster.port import ClusterPort

log = logging.getLogger(__name__)
port_log = logging.getLogger(cluster_port.__name__)

BEGIN_S: Final = 3.0
"""For nameservers and brokers to answer, as everywhere in the command line."""


class Tables:
    """Calls of a port, awaited."""

    ask = staticmethod(awaited)

    def __init__(self, port: BrokerPort) -> None:
        self.port = port

    async def rows(
        self, table: str, on_change: Callable[[str, bytes | None], None] = lambda key, value: None
    ) -> dict[str, bytes]:
        """A table as it is now; then its changes."""
        found: dict[str, bytes] = await self.ask(self.port.watch_table, table, on_change)
        return found

    async def put(self, table: str, rows: list[tuple[str, bytes | None]]) -> None:
        """Set or delete rows."""
        await self.ask(self.port.put, table, rows)


def cluster_key() -> ClusterKey | None:
    """The key that the processes of the cluster share, from the variables that give it to them. Raises ConfigError."""
    settings = Settings()
    for key in ("cluster_key", "cluster_key_file"):
        variable = f"{ENVIRONMENT_PREFIX}AUTH__{key.upper()}"
        if variable in os.environ:
            settings.put("auth", key, os.environ[variable], f"environment {variable}")
    return cluster_key_of(settings, settings.build("auth", AuthConfig))


def cluster_tls() -> Outgoing | None:
    """How to connect, from the variables that say it to the cluster's processes; where they say nothing, as every command. Raises ConfigError."""
    settings = Settings()
    for key in ("cluster_ca", "cluster_cert", "cluster_cert_key", "key_password_file"):
        variable = f"{ENVIRONMENT_PREFIX}TLS__{key.upper()}"
        if variable in os.environ:
            settings.put("tls", key, os.environ[variable], f"environment {variable}")
    config = settings.build("tls", TlsConfig)
    if not config.cluster_ca:
        config = replace(config, cluster_ca=os.environ.get(TLS_VARIABLE, ""))
    try:
        return outgoing_of(config)
    except TlsError as error:
        raise ConfigError(str(error)) from error


@contextlib.asynccontextmanager
async def tables(nameserver: str) -> AsyncIterator[Tables]:
    """Connected until the block ends. Raises GantryError(UNAVAILABLE), ConfigError."""
    loop = asyncio.get_running_loop()
    turn = LoopTurn(loop.call_soon, time.perf_counter)
    clock = SystemClock()
    wheel = TimerWheel(clock.monotonic_ms, loop.call_later)
    nameservers = parse_nameservers(nameserver, "--nameserver")
    shared = {"cluster_key": cluster_key(), "cluster_tls": cluster_tls()}
    async with anyio.create_task_group() as tasks:

        def spawn(work: Callable[..., Any], *arguments: Any) -> None:
            tasks.start_soon(work, *arguments)

        context = ServiceContext(None, {}, "", Path(), clock, turn, wheel, nameservers, _listen, spawn, shared=shared)
        members = Members(nameservers, context, f"cli-{time.time_ns():x}")
        port_log.addFilter(_is_no_complaint)
        try:
            try:
                with anyio.fail_after(BEGIN_S):
                    await members.begin()
            except TimeoutError:
                if why := members.why():
                    raise GantryError(
                        ErrorCode.UNAVAILABLE, f"no broker takes this command's requests: {why}"
                    ) from None
                text = f"no nameserver or no broker answers: {nameserver} (tried for {BEGIN_S:g} s){NO_NAMESERVER}"
                raise GantryError(ErrorCode.UNAVAILABLE, text) from None
            try:
                yield Tables(members.port)
            except GantryError as error:
                _tell(members.port, error.text)
                raise
            _tell(members.port, "")
        finally:
            port_log.removeFilter(_is_no_complaint)
            members.port.close()
            wheel.close()
            tasks.cancel_scope.cancel()


def _is_no_complaint(record: logging.LogRecord) -> bool:
    """A command says by itself which brokers it does not use, once."""
    return record.msg != NOT_USED


def _tell(port: ClusterPort, said: str) -> None:
    """Which brokers were not used, where the failure `said` does not explain it."""
    why = port.why()
    if why and "broker.metadata_group" not in said:
        log.warning("not every broker was asked: %s", why)


def _listen(factory: object, host: str, port: int) -> None:
    raise RuntimeError("a command listens nowhere")
