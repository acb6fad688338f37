"""A connection to one nameserver, made when it is first needed and again after it broke; one request at a time (a few a minute)."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from gantrymq.auth.members.key import ClusterKey
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.dial.connector import connect
from gantrymq.net.tls.contexts import Outgoing, current_of
from gantrymq.remoting.codec import Command, FrameError, FrameReader, encode
from gantrymq.remoting.registration.joining import join

ANSWER_S: Final = 6.0
"""RocketMQ's registerBrokerTimeoutMills."""


class _Wire(asyncio.Protocol):
    """The open connection: at most one request waits on it."""

    def __init__(self) -> None:
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Command] | None = None
        self._opaque = 0
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:
            self._end("bytes that nobody asked for")
            return
        try:
            commands = self._frames.feed(data)
        except FrameError as error:
            self._end(str(error))
            return
        for command in commands:
            if command.is_response and command.opaque == self._opaque and not self._waiting.done():
                self._waiting.set_result(command)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc or "") or "closed by the other side")

    def _end(self, why: str) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionResetError(why))
        self.close()

    def close(self) -> None:
        self.ended.set()
        if self._transport is not None:
            self._transport.close()

    async def ask(self, command: Command) -> Command:
        """Raises ConnectionResetError with the reason."""
        self._opaque = command.opaque = self._opaque + 1
        data = encode(command)
        waiting: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._waiting = waiting
        try:
            if self._transport is None or self.ended.is_set():
                raise ConnectionResetError("closed by the other side")
            self._transport.write(data)
            return await waiting
        finally:
            self._waiting = None


class NameserverConnection:
    """See the module. `key`: of the cluster, shown first if there is one; `name`: who we are; `tls`: how it is encrypted, None: not at all."""

    def __init__(
        self,
        address: str,
        answer_s: float = ANSWER_S,
        key: ClusterKey | None = None,
        name: str = "",
        tls: Outgoing | None = None,
    ) -> None:
        self.address = address
        self._tls = tls
        self._answer_s = answer_s
        self._key = key
        self._name = name
        self._wire: _Wire | None = None

    async def request(self, command: Command) -> Command:
        """The answer, whatever its code. Raises UNAVAILABLE or NO_PERMISSION, which say where and why, and ValueError for a request that is too large; then, or
        cancelled, the connection is closed."""
        try:
            async with asyncio.timeout(self._answer_s):
                if self._wire is None:
                    self._wire = await connect(_Wire, self.address, tls=current_of(self._tls))
                    if self._key is not None:
                        await join(self._key, self._name, self._wire.ask)
                return await self._wire.ask(command)
        except TimeoutError:
            self.close()
            raise GantryError(ErrorCode.UNAVAILABLE, f"{self.address} did not answer in time") from None
        except PermissionError as error:
            self.close()
            raise GantryError(ErrorCode.NO_PERMISSION, f"{self.address}: {error}") from None
        except ConnectionResetError as error:
            self.close()
            raise GantryError(ErrorCode.UNAVAILABLE, f"connection to {self.address} was lost: {error}") from None
        except BaseException:
            self.close()
            raise

    @property
    def connected(self) -> bool:
        """Whether the next request goes over the connection of the last one."""
        return self._wire is not None

    async def ended(self) -> None:
        """Wait until the other side closes the connection, or says what nobody asked for; for ever if there is none."""
        await (self._wire.ended if self._wire is not None else asyncio.Event()).wait()

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._wire is not None:
            self._wire.close()
        self._wire = None
