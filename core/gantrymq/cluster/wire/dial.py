"""The IO side of a gateway process: finds the broker through the nameservers, connects, and connects again
when it was lost."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from socket import gethostname
from typing import Any, Final, cast

import anyio

from gantrymq.auth.members.key import ClusterKey
from gantrymq.cluster.port import ClusterPort
from gantrymq.cluster.wire.client import RemoteBrokerPort
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.dial import connector
from gantrymq.net.tls.contexts import Outgoing, current_of
from gantrymq.remoting import codec
from gantrymq.remoting.codec import Command, FrameError, FrameReader
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.json_bodies import BodyError, ClusterInfo, decode
from gantrymq.remoting.registration.joining import join
from gantrymq.remoting.registration.nameserver_connection import NameserverConnection
from gantrymq.services import ServiceContext

log = logging.getLogger(__name__)

ANSWER_S: Final = 5.0
"""A nameserver or broker that says nothing for so long counts as gone."""

BACKOFF_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Waits between attempts; the last one repeats."""

HELLO_EVERY_S: Final = 1.0
"""Finds a broker that hangs and a half-open connection: calls that need every group wait `HELLO_EVERY_S` + `SILENCE_S` for it at most."""

SILENCE_S: Final = 2.0
"""A broker that says nothing at all for so long after a hello is given up, where others stand in for it; the only one after `ANSWER_S`."""

MEMBERS_EVERY_S: Final = 1.0
"""How often the nameservers are asked for groups that came or left."""

MEMBERS_SOON_S: Final = 0.3
"""How long after a connection came or went: a nameserver hears of it at the same time."""

GROUPS_WAIT_S: Final = 10.0
"""At the start, for groups that are registered and do not answer: what is at home there is not found until they are back."""

FIRST_CONNECT_S: Final = 60.0
"""`gantry gateway` gives up when no broker was found for so long: a wrong address should be an error, not
silence."""


class GatewayConnection(asyncio.Protocol):
    """One connection to a broker; what is sent within a loop turn leaves in one write."""

    def __init__(self, port: RemoteBrokerPort, loop: asyncio.AbstractEventLoop) -> None:
        self._port = port
        self._loop = loop
        self._outbox: list[bytes] = []
        self._armed = False
        self._transport: asyncio.Transport | None = None
        self._asked: asyncio.Future[Command] | None = None
        """Before the port has the connection: an answer that is waited for."""
        self._frames = FrameReader()
        self.ended: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        try:
            if self._asked is None:
                self._port.received(data)
            elif answers := self._frames.feed(data):
                self._answered(answers[0])
        except FrameError as error:
            log.error("broker: the stream is broken (%s); connecting again", error)
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(ConnectionResetError("closed by the broker"))
        self.ended.set_result(None)

    async def ask(self, command: Command) -> Command:
        """One request before the port has the connection. Raises OSError."""
        asked: asyncio.Future[Command] = self._loop.create_future()
        self._asked = asked
        self.send(codec.encode(command))
        try:
            return await asked
        finally:
            self._asked = None

    def _answered(self, answer: Command) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(answer)

    def send(self, frame: bytes) -> None:
        """Put a frame into the outbox."""
        self._outbox.append(frame)
        self.mark()

    def mark(self) -> None:
        """Something may be waiting: write at the end of the turn."""
        if not self._armed:
            self._armed = True
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection without waiting for who does not read."""
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        self._armed = False
        self._port.flush()
        outbox, self._outbox = self._outbox, []
        if self._transport is not None and outbox:
            self._transport.write(b"".join(outbox))


def own_name() -> str:
    """Of this process, for the logs of those that it connects to."""
    return f"gateway {gethostname()}:{os.getpid()}"


async def _ask_groups(address: str, key: ClusterKey | None, tls: Outgoing | None) -> dict[str, str]:
    """What one nameserver knows. Raises GantryError, and BodyError."""
    nameserver = NameserverConnection(address, ANSWER_S, key, own_name(), tls)
    try:
        answer = await nameserver.request(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
    finally:
        nameserver.close()
    if answer.code == ResponseCode.NO_PERMISSION:
        raise GantryError(ErrorCode.NO_PERMISSION, f"{address}: {answer.remark}")
    found = {}
    for name, broker in decode(answer.body, ClusterInfo).broker_addr_table.items():
        master = {int(number): address for number, address in broker.broker_addrs.items()}.get(0)
        if master is not None:
            found[name] = str(master)
    return found


async def find_groups(
    nameservers: list[str], key: ClusterKey | None = None, tls: Outgoing | None = None
) -> dict[str, str]:
    """Address of the master of each broker group, by name; raises UNAVAILABLE with what each nameserver said.

    All nameservers are asked: one that was started a moment ago does not know every broker yet.
    """
    said: list[str] = []
    found: dict[str, str] = {}

    async def one(address: str) -> None:
        try:
            groups = await _ask_groups(address, key, tls)
        except GantryError as error:
            said.append(error.text)
            return
        except BodyError as error:
            said.append(f"{address}: {error}")
            return
        found.update(groups)
        if not groups:
            said.append(f"{address}: no broker is registered")

    async with anyio.create_task_group() as tasks:
        for address in list(nameservers):
            tasks.start_soon(one, address)
    if not found:
        raise GantryError(ErrorCode.UNAVAILABLE, "no broker found; " + "; ".join(said))
    return {name: found[name] for name in sorted(found)}


class Dialer:
    """Keeps one RemoteBrokerPort connected to the master of broker group `name`. `is_alone()`: no other group stands in for it."""

    def __init__(
        self,
        nameservers: list[str],
        name: str,
        key: ClusterKey | None = None,
        tls: Outgoing | None = None,
        is_alone: Callable[[], bool] = lambda: True,
    ) -> None:
        self._nameservers = nameservers
        self._name = name
        self._key = key
        self._tls = tls
        self._is_alone = is_alone
        self.why = ""
        """Why the last attempt failed."""
        self._loop = asyncio.get_running_loop()
        self._connection: GatewayConnection | None = None
        self._keeping = anyio.CancelScope()
        self.port = RemoteBrokerPort(self._send, self._mark, self.close)

    def close(self) -> None:
        """End the connection and connect no more."""
        self._keeping.cancel()
        if self._connection is not None:
            self._connection.close()

    async def dial(self) -> None:
        """One attempt; raises GantryError or OSError."""
        address = (await find_groups(self._nameservers, self._key, self._tls)).get(self._name)
        if address is None:
            raise GantryError(ErrorCode.UNAVAILABLE, f"broker group {self._name} is not registered")
        connection = self._connection = await connector.connect(
            lambda: GatewayConnection(self.port, self._loop),
            address,
            ANSWER_S,
            current_of(self._tls),
            remedy="the broker registers it as broker.advertised_host says",
        )
        if self._key is not None:
            await self._join(connection, self._key, address)
        said: asyncio.Future[Any] = self._loop.create_future()
        self.port.connected(said, lambda token, result: None if token.done() else token.set_result(result))
        try:
            with anyio.fail_after(ANSWER_S):
                result = await said
        except TimeoutError:
            self.port.lost(f"broker {address} does not answer")
            connection.close()
            raise
        if isinstance(result, GantryError):
            self.port.lost(result.text)
            connection.close()
            raise result
        log.info("broker %s at %s: connected", self._name, address)
        self.port.ready()

    async def _join(self, connection: GatewayConnection, key: ClusterKey, address: str) -> None:
        """Show the cluster's key, and hear that the broker has it. Raises OSError."""
        try:
            with anyio.fail_after(ANSWER_S):
                await join(key, own_name(), connection.ask)
        except PermissionError as error:
            connection.close()
            raise PermissionError(f"broker {self._name} at {address}: {error}") from error
        except BaseException:
            connection.close()
            raise

    async def dial_until(self, deadline_s: float) -> None:
        """Attempts with back-off; raises the last failure after `deadline_s`."""
        deadline = anyio.current_time() + deadline_s
        attempt = 0
        while True:
            try:
                await self.dial()
                return
            except (GantryError, OSError) as error:
                self.why = str(error)
                if anyio.current_time() > deadline:
                    raise
                # Said once: whoever started a gateway first must see what it waits for.
                log.log(logging.DEBUG if attempt else logging.WARNING, "broker: %s; trying again", error)
            await anyio.sleep(BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)])
            attempt += 1

    async def keep(self) -> None:
        """Background task, until `close`: connect again whenever the connection ends."""
        with self._keeping:
            while True:
                connection = self._connection
                if connection is not None:
                    await self._watch(connection)
                    log.warning("broker %s: connection lost", self._name)
                    self.port.lost("the connection to the broker was lost")
                await self.dial_until(float("inf"))

    async def _watch(self, connection: GatewayConnection) -> None:
        """Until the connection ends; a broker that says nothing after a hello is gone (half-open connections say nothing). One that is busy
        answers what it was asked before."""
        while not await self._ends(connection, HELLO_EVERY_S):
            said: asyncio.Future[Any] = self._loop.create_future()
            self.port.hello(said, lambda token, result: token.done() or token.set_result(result))
            while not said.done():
                heard, silence_s = self.port.heard, ANSWER_S if self._is_alone() else SILENCE_S
                if await self._ends(connection, silence_s, said):
                    return
                if self.port.heard == heard:
                    log.warning("broker %s: nothing heard for %.0f s", self._name, silence_s)
                    connection.abort()
                    return

    @staticmethod
    async def _ends(connection: GatewayConnection, within_s: float, said: asyncio.Future[Any] | None = None) -> bool:
        """Whether it ended before that time was over or something was `said`: a process that was stopped reads the end behind its timers."""
        awaited = {connection.ended} if said is None else {connection.ended, said}
        await asyncio.wait(awaited, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        return connection.ended.done()

    def _send(self, frame: bytes) -> None:
        if self._connection is not None:
            self._connection.send(frame)

    def _mark(self) -> None:
        if self._connection is not None:
            self._connection.mark()


class Members:
    """Keeps a `ClusterPort` supplied with every broker group that the nameservers know."""

    def __init__(self, nameservers: list[str], context: ServiceContext, identity: str) -> None:
        self._nameservers = nameservers
        self._context = context
        self._key: ClusterKey | None = context.shared.get("cluster_key")
        self._tls: Outgoing | None = context.shared.get("cluster_tls")
        self.port = ClusterPort(context.turn, context.wheel, identity, self._close)
        self._dialers: list[Dialer] = []
        self._keeping = anyio.CancelScope()
        self._changed = asyncio.Event()
        """A connection came or went: the nameservers may know more."""

    def _close(self) -> None:
        self._keeping.cancel()

    def _is_alone(self) -> bool:
        return len(self.port.groups) == 1

    def why(self) -> str:
        """Why brokers that are registered are not connected, or not used; empty where nothing is known."""
        known = [dialer.why for dialer in self._dialers if dialer.why and not dialer.port.up]
        return "; ".join(dict.fromkeys([*known, self.port.why()] if self.port.why() else known))

    async def begin(self) -> None:
        """The groups that are registered now, connected; raises GantryError when there is none for `FIRST_CONNECT_S`."""
        deadline = anyio.current_time() + FIRST_CONNECT_S
        attempt = 0
        while True:
            try:
                await self._check()
                break
            except GantryError as error:
                if anyio.current_time() > deadline:
                    raise
                # Said once: whoever started a gateway first must see what it waits for.
                log.log(logging.DEBUG if attempt else logging.WARNING, "broker: %s; trying again", error)
            await anyio.sleep(BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)])
            attempt += 1
        up = asyncio.Event()
        self.port.watch_state(lambda now: up.set() if now else None)
        with anyio.move_on_after(GROUPS_WAIT_S):
            await up.wait()
        self.port.complete_now()
        with anyio.move_on_after(max(0.0, deadline - anyio.current_time())):
            await up.wait()
            return
        names = ", ".join(group.name for group in self.port.groups)
        why = f": {self.why()}" if self.why() else ""
        raise GantryError(ErrorCode.UNAVAILABLE, f"no broker answers (registered: {names}){why}")

    async def keep(self) -> None:
        """Background task, until the port is closed: groups that come are used, groups that left are no longer anybody's home."""
        with self._keeping:
            while True:
                self._changed.clear()
                with anyio.move_on_after(MEMBERS_EVERY_S):
                    await self._changed.wait()
                    await anyio.sleep(MEMBERS_SOON_S)
                try:
                    await self._check()
                except GantryError as error:
                    log.debug("nameservers: %s", error)

    async def _check(self) -> None:
        found = await find_groups(self._nameservers, self._key, self._tls)
        known = {group.name: group for group in self.port.groups}
        changed = [group for name, group in known.items() if group.registered != (name in found)]
        for group in changed:
            group.registered = not group.registered
        for name in sorted(found.keys() - known.keys()):
            dialer = Dialer(self._nameservers, name, self._key, self._tls, self._is_alone)
            self._dialers.append(dialer)
            self.port.add_group(name, dialer.port)
            dialer.port.watch_state(lambda up: self._changed.set())
            self._context.spawn(dialer.keep)
            changed.append(self.port.groups[-1])
        if changed:
            self.port.members_changed()


async def connect(nameservers: list[str], context: ServiceContext) -> ClusterPort:
    """A port to every broker group of the cluster; raises GantryError when no broker is found within `FIRST_CONNECT_S`."""
    members = Members(nameservers, context, secrets.token_hex(8))
    await members.begin()
    context.spawn(members.keep)
    return members.port
