"""What the pump and a door owe each other. No door touches a socket; no asyncio here.

The pump owns one `Door` object per accepted connection. In: `received(data)` with whatever the socket gave. Out: the door
appends to its own outbox and calls `link.mark()`; at the end of the loop turn the pump takes `data_to_send()` once and
writes it. A door never raises for what a peer did: it answers on its protocol's terms and calls `link.close()`. An exception
that escapes is logged with the peer's address and closes that connection alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gantrymq.net.held.outbound import Pieces
from gantrymq.net.tls.identity import Certificate


class Link(Protocol):
    """The pump's side of one connection, handed to the door."""

    peer: str
    """`host:port` of the other side, first field of every log line."""
    peer_is_loopback: bool
    peer_is_trusted: bool
    """It is on this machine, or in one of `server.trusted_networks`."""
    is_encrypted: bool
    """What goes over it is read by nobody else: TLS."""
    peer_certificate: Certificate | None
    """The client certificate that it showed and a CA of ours vouches for."""
    key_user: str
    """The user whose pre-shared key its TLS was begun with; empty: there was none, or it says nothing of users at this listener."""
    guest: str
    """The user that a client without a name is at this listener; empty: as at every other."""

    def mark(self) -> None:
        """Something may be in the outbox: `data_to_send` will be called once at the end of this loop turn."""

    def close(self) -> None:
        """Write what is in the outbox, then close. No `received` comes after it."""

    def abort(self) -> None:
        """Close at once."""

    def pause_reading(self) -> None:
        """Back-pressure: read nothing until `resume_reading`."""

    def resume_reading(self) -> None: ...

    def set_deadline(self, at_ms: int | None) -> None:
        """Ask for `deadline(now_ms)` at or shortly after `at_ms` of the monotonic clock (to 50 ms); None: no deadline. One per link."""

    def outbound_bytes(self) -> int:
        """Bytes handed over and not yet taken by the peer."""

    def become(self, door: Door) -> None:
        """Another door takes the place of this one, which is called no more but by what calls it now; `door.connected` is called."""

    def speaks_for(self, host: str, port: int) -> None:
        """The peer is a proxy: from now on it counts as the client at this address, and its certificate as nobody's."""

    def known(self, user: str = "") -> str:
        """It is known who the peer is: what strangers are bound to (`doors.threshold`) holds no more, and what this user may take does. Why it is
        refused: then it is not known, and the door ends the connection on its protocol's terms; empty: it is let in. The first user counts."""

    def spent(self, requests: int) -> None:
        """So many requests of the peer's were taken."""

    def expect(self, size: int) -> None:
        """So many more bytes are needed to know who the peer is, whatever strangers may send."""

    def is_pressed(self) -> bool:
        """Half of what may wait for all slow readers of the process waits: what can be dropped should be."""


class Door(Protocol):
    """One connection of an adapter."""

    def connected(self, link: Link) -> None:
        """Called once, first."""

    def received(self, data: bytes) -> int | None:
        """Bytes from the peer; any split. A door that bounds its work itself returns how many of them it took, one at least: the rest comes
        again, with more behind it. None: it took all."""

    def inbound_bytes(self) -> int:
        """Bytes held of what the peer has begun, and of what is not handled yet. Asked after each `received`."""

    def unfinished(self) -> int:
        """0: nothing that the peer began waits for it; else a number that stays the same until that frame or body is whole."""

    def missing_bytes(self) -> int:
        """So many of the next bytes go to the frame that is unfinished and begin no other: they may come in one piece. 0 where that is not known."""

    def overdue(self, why: str, busy: bool) -> None:
        """Forget what is unfinished, say why on the protocol's terms, and `link.close()`. `busy`: it is not the peer's fault, but our limit."""

    def data_to_send(self) -> Pieces:
        """Take and clear the outbox: one write, as it is or in pieces (`outbound.gathered`)."""

    def eof(self) -> bool | None:
        """The peer closed its sending side; the link is closed after this returns, unless it returns True: then the door
        still has answers to write and calls `link.close()` itself."""

    def closed(self, reason: str) -> None:
        """Called once, last. `reason` is empty for an ordinary end."""

    def writable(self) -> None:
        """The peer took what was waiting (below the low-water mark again): deliveries may go on."""

    def deadline(self, now_ms: int) -> None:
        """The deadline that was asked for."""

    def shutdown(self) -> None:
        """The server stops: say goodbye on the protocol's terms and `link.close()` when done."""


ConnectionFactory = Callable[[], Door]


class Wheel(Protocol):
    """Deadlines of a whole process, in one timer (to 50 ms)."""

    def call_at(self, at_ms: int, callback: Callable[[int], None]) -> int:
        """`callback(now_ms)` once, at or shortly after `at_ms` of the monotonic clock; returns a handle."""

    def cancel(self, handle: int) -> None:
        """Unknown handles are ignored."""

    def now_ms(self) -> int:
        """The monotonic clock."""
