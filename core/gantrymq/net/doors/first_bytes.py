"""The door of a connection of which nothing has come yet: its first bytes say whether a proxy speaks for somebody, and whether it is a WebSocket.

Then another door takes its place (`Link.become`), so that an ordinary connection pays for this once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from gantrymq.net.api import Door, Link
from gantrymq.net.doors import proxy
from gantrymq.net.doors.websocket import WebSocketDoor, WebSocketRules
from gantrymq.net.loopback import Network

log = logging.getLogger(__name__)

GET: Final = b"GET "
"""How every WebSocket begins (RFC 6455 4.1); no protocol of ours does."""


@dataclass(frozen=True, slots=True)
class Manners:
    """`make`: the door of the protocol itself. `websocket` None: none are opened. `proxies`: whose PROXY headers are believed."""

    make: Callable[[], Door]
    now_ms: Callable[[], int]
    timeout_ms: int
    websocket: WebSocketRules | None = None
    proxies: tuple[Network, ...] = ()


class FirstBytes:
    """A `Door`."""

    __slots__ = ("_head", "_link", "_manners", "_next", "_proxied")

    def __init__(self, manners: Manners) -> None:
        self._manners = manners
        self._link: Link | None = None
        self._head = b""
        self._proxied = False
        self._next: Door | None = None

    def connected(self, link: Link) -> None:
        self._link = link
        self._proxied = not self._manners.proxies or not _is_in(link.peer, self._manners.proxies)
        link.set_deadline(self._manners.now_ms() + self._manners.timeout_ms)

    def received(self, data: bytes) -> int | None:
        link = self._link
        assert link is not None, "`connected` comes first"
        if self._next is not None:
            return self._next.received(data)
        head = self._head + data
        if not self._proxied:
            try:
                found = proxy.parse(head)
            except proxy.ProxyError as error:
                log.warning("%s: closed: %s", link.peer, error)
                link.close()
                return None
            if found is None:
                self._head = head
                return None
            self._proxied = True
            client, size = found
            if client is not None:
                link.speaks_for(*client)
            head = head[size:]
        if not head or (head[:1] == GET[:1] and len(head) < len(GET) and GET.startswith(head)):
            self._head = head
            return None
        self._head = b""
        websocket = self._manners.websocket
        door: Door
        if websocket is not None and head.startswith(GET):
            door = WebSocketDoor(self._manners.make, websocket)
            link.set_deadline(self._manners.now_ms() + self._manners.timeout_ms)
        else:
            door = self._manners.make()
        self._next = door
        link.become(door)
        taken = door.received(head)
        return None if taken is None else max(len(data) - len(head) + taken, 1)

    def inbound_bytes(self) -> int:
        return self._next.inbound_bytes() if self._next is not None else len(self._head)

    def unfinished(self) -> int:
        return self._next.unfinished() if self._next is not None else 1

    def missing_bytes(self) -> int:
        return self._next.missing_bytes() if self._next is not None else 0

    def overdue(self, why: str, busy: bool) -> None:
        self._close(why)

    def data_to_send(self) -> bytes:
        return b""

    def eof(self) -> bool | None:
        return None

    def closed(self, reason: str) -> None:
        """Nothing was begun."""

    def writable(self) -> None:
        """Nothing was written."""

    def deadline(self, now_ms: int) -> None:
        self._close(f"nothing came for {self._manners.timeout_ms} ms")

    def shutdown(self) -> None:
        if self._link is not None:
            self._link.close()

    def _close(self, why: str) -> None:
        if self._link is not None:
            log.warning("%s: closed: %s", self._link.peer, why)
            self._link.close()


def _is_in(peer: str, networks: tuple[Network, ...]) -> bool:
    try:
        address = ip_address(peer.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False  # a Unix socket
    inner = getattr(address, "ipv4_mapped", None) or address
    return any(inner in network for network in networks)
