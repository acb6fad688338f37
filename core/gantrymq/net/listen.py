"""Listening sockets: binding, accepting through the pump, and closing a door's connections when the server stops."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from gantrymq.net.api import ConnectionFactory
from gantrymq.net.places import ANY, GUEST, UNIX, Place
from gantrymq.net.process.host import PumpHost
from gantrymq.net.pump import Pump
from gantrymq.net.tls.accepting import Acceptor, Entrance
from gantrymq.net.tls.contexts import Context, TlsConfig

log = logging.getLogger(__name__)

BACKLOG: Final = 4096
"""Connections that wait for `accept`: a fleet that reconnects at once; the kernel cuts it to net.core.somaxconn."""

KEEPALIVE: Final = (
    (socket.SO_KEEPALIVE, socket.SOL_SOCKET, 1),
    (socket.TCP_KEEPIDLE, socket.IPPROTO_TCP, 120),
    (socket.TCP_KEEPINTVL, socket.IPPROTO_TCP, 30),
    (socket.TCP_KEEPCNT, socket.IPPROTO_TCP, 4),
)
"""The kernel probes a silent peer after 2 minutes and gives it up 2 minutes later: a machine that vanished must not hold its
connection for ever where its protocol has no keep-alive of its own. Costs no timer of ours."""

FILES_RESERVED: Final = 1024
"""Open files kept for the store and everything else but connections (half of all where the limit is lower than twice this)."""


class ListenError(OSError):
    """An address cannot be bound; the text is one line for the user, without the name of the service."""


class Listener:
    """One bound address and the connections accepted through it."""

    def __init__(
        self, server: asyncio.Server | Acceptor, live: set[Pump], place: Place, tls: TlsConfig | None = None
    ) -> None:
        self._server = server
        self._live = live
        self.place = place
        """Where it is bound to; a port of 0 has become one."""
        self.tls = tls
        """Of a place with TLS."""

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that it is bound to."""
        return self.place.host, self.place.port

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._live)

    def close(self) -> None:
        """Accept nothing any more; open connections stay."""
        self._server.close()
        if self.place.scheme == UNIX:
            Path(self.place.host).unlink(missing_ok=True)

    def shutdown_connections(self) -> None:
        """Tell every door to say goodbye."""
        for pump in list(self._live):
            pump.shutdown()

    def abort_connections(self) -> None:
        """Close at once what is still open."""
        for pump in list(self._live):
            pump.abort()


async def listen(
    host: PumpHost,
    factory: ConnectionFactory,
    place: Place,
    context: Context | None = None,
    observe: Callable[[float], None] = lambda took_s: None,
) -> Listener:
    """Bind the place's address (the first that its name stands for) and accept. Port 0: a free one. Raises `ListenError`. `context`: of a
    place with TLS. `observe`: as `Pump`'s."""
    loop = asyncio.get_running_loop()
    live: set[Pump] = set()
    guest = place.options.get(GUEST, "")

    def pump() -> Pump:
        made = Pump(host, factory, live, observe)
        made.guest = guest
        return made

    if place.scheme == UNIX:
        opened = bind_unix(place.host, int(place.options["mode"], 8))
        serving = await loop.create_unix_server(pump, sock=opened, backlog=BACKLOG)
        return Listener(serving, live, place)
    bound = await bind(place.host, place.port)
    name = bound.getsockname()
    found = replace(place, host=str(name[0]), port=int(name[1]))

    if place.speaks_tls and context is not None:
        entrance = Entrance(pump, lambda peer: host.admit(peer, live), host.traffic.count_refused)
        return Listener(Acceptor(bound, entrance, context, place.scheme == ANY), live, found, context.config)
    return Listener(await loop.create_server(pump, sock=bound, backlog=BACKLOG), live, found)


async def bind(address: str, port: int) -> socket.socket:
    """A socket that is bound and not yet listening."""
    loop = asyncio.get_running_loop()
    try:
        infos = await loop.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ListenError(error.errno, f"cannot listen on {address}:{port}: {error.strerror}") from error
    family, kind, protocol, _, target = infos[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit these. No delay: a small answer must not wait for the acknowledgement of the one before.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option, level, value in KEEPALIVE:
            bound.setsockopt(level, option, value)
        bound.bind(target)
        # Binding succeeds for two sockets with SO_REUSEADDR; only listening tells that the port is taken.
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise ListenError(error.errno, f"cannot listen on {address}:{port}: {explain(error)}") from error
    return bound


def bind_unix(path: str, mode: int) -> socket.socket:
    """A Unix socket that is bound and listens, with these rights. One that nobody listens on any more gives way. Raises `ListenError`."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        if Path(path).is_socket() and not _is_served(path):
            Path(path).unlink()
        bound.bind(path)
        Path(path).chmod(mode)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise ListenError(error.errno, f"cannot listen on unix://{path}: {explain(error)}") from error
    return bound


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == 0


def reserve(addresses: list[tuple[str, int]]) -> list[socket.socket]:
    """Hold addresses that were listened on a moment ago: a socket that is bound and does not listen refuses connections and lets
    nobody be given the port as a free one; `listen` may take it over. One that cannot be held is left out with a warning."""
    held = []
    for address in addresses:
        if address[0].startswith("/"):
            continue  # a Unix socket: its path is nobody else's
        holder = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        try:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(address)
            held.append(holder)
        except OSError as error:
            holder.close()
            log.warning("%s:%d: cannot be reserved: %s", *address, explain(error))
    return held


def explain(error: OSError) -> str:
    """What a failed bind means and what to do."""
    if error.errno == errno.EADDRINUSE:
        return "the port is in use (is another gantry running?)"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "not permitted (ports below 1024 need root)"
    return os.strerror(error.errno) if error.errno else str(error)


def raise_file_limit(connections_max: int) -> int:
    """Raise the soft limit of open files to the hard one; returns how many connections fit, at most `connections_max`.

    The limit of connections must be met before that of files: then a connection is refused by us, and not by a failing
    `accept` or, worse, a store that cannot open its next segment.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):  # the kernel's own limit is lower than the hard one
            pass
    if soft == resource.RLIM_INFINITY:
        return connections_max
    reserved = FILES_RESERVED if soft >= 2 * FILES_RESERVED else soft // 2
    return min(connections_max, soft - reserved)
