"""Accepting where connections may begin with TLS: a handshake each, bounded in number and time, with the context of the moment.

Plain ports are accepted by the event loop itself. Here a connection is a task until its handshake is over, and then a transport
like any other. On a port for both, the first byte tells: 22 is the record type of a TLS handshake (RFC 8446 5.1), and no frame of ours.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gantrymq.net.loopback import peer_name
from gantrymq.net.tls.contexts import Context, Gate
from gantrymq.net.tls.identity import reason_of
from gantrymq.net.tls.keyed import said_identity

log = logging.getLogger(__name__)

HANDSHAKE_BYTE: Final = 0x16

ACCEPTS: Final = 64
"""Connections taken per turn of the loop: a fleet that reconnects leaves time for those that are connected."""

RETRY_S: Final = 0.5
"""Pause of accepting after the process ran out of files."""


@dataclass(frozen=True, slots=True)
class Entrance:
    """What a port does with those who come."""

    protocol: Callable[[], asyncio.Protocol]
    """Made once a connection is ready for it."""
    admit: Callable[[str], bool]
    """Whether one more peer may come, before anything is spent on it."""
    refused: Callable[[], None]
    """A handshake failed."""


class Acceptor:
    """One listening socket with TLS."""

    def __init__(self, bound: socket.socket, entrance: Entrance, context: Context, both: bool) -> None:
        """`both`: connections without TLS are taken, too. Accepts from now on."""
        self._bound = bound
        self._entrance = entrance
        self._context = context
        self._both = both
        self._loop = asyncio.get_running_loop()
        self._under_way: set[asyncio.Task[None]] = set()
        self._accepting = False
        self._closed = False
        self._go_on()

    @property
    def handshakes(self) -> int:
        """Under way."""
        return len(self._under_way)

    def close(self) -> None:
        """Accept nothing any more; handshakes under way end."""
        self._closed = True
        self._pause()
        self._bound.close()
        for task in list(self._under_way):
            task.cancel()

    def _go_on(self) -> None:
        if not self._accepting and not self._closed:
            self._accepting = True
            self._loop.add_reader(self._bound.fileno(), self._accept)

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._bound.fileno())

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            if len(self._under_way) >= self._context.config.handshakes_max:
                self._pause()  # until one of them is over
                return
            try:
                connection, address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("cannot accept connections: %s", error.strerror or error)
                self._pause()
                self._loop.call_later(RETRY_S, self._go_on)
                return
            peer, _ = peer_name(address)
            if not self._entrance.admit(peer):
                connection.close()
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._begin(connection, peer))
            self._under_way.add(task)
            task.add_done_callback(self._begun)

    def _begun(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._go_on()

    async def _begin(self, connection: socket.socket, peer: str) -> None:
        begun_s, wait_s = self._loop.time(), self._context.config.handshake_ms / 1000
        context: ssl.SSLContext | None = None
        try:
            secure = True
            if self._both:
                first = await asyncio.wait_for(self._first_byte(connection), wait_s)
                if first is None:
                    connection.close()
                    return
                secure = first == HANDSHAKE_BYTE
            if secure:
                left_s = max(wait_s - (self._loop.time() - begun_s), 0.001)
                if self._context.gate is not None and not await self._may_begin(self._context.gate, peer):
                    connection.close()
                    return
                context = self._context.for_connection()
                await self._loop.connect_accepted_socket(
                    self._entrance.protocol, connection, ssl=context, ssl_handshake_timeout=left_s
                )
            else:
                await self._loop.connect_accepted_socket(self._entrance.protocol, connection)
        except asyncio.CancelledError:
            connection.close()
            raise
        except (OSError, TimeoutError) as error:  # `ssl.SSLError` is an OSError
            connection.close()
            self._entrance.refused()
            log.info("%s: no TLS: %s", peer, reason_of(error))
            identity = said_identity(context) if context is not None else ""
            if identity and isinstance(error, ssl.SSLError) and self._context.gate is not None:
                self._context.gate.failed(peer, identity)

    async def _may_begin(self, gate: Gate, peer: str) -> bool:
        """False: too many of its address wait."""
        answer: asyncio.Future[str] = self._loop.create_future()
        gate.wait(peer, lambda why: None if answer.done() else answer.set_result(why))
        why = await answer
        if why:
            log.info("%s: no TLS: %s", peer, why)
        return not why

    async def _first_byte(self, connection: socket.socket) -> int | None:
        """The first byte, which stays there; None: the peer went away."""
        readable = asyncio.Event()
        self._loop.add_reader(connection.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(connection.fileno())
        try:
            first = connection.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return None
        return first[0] if first else None
