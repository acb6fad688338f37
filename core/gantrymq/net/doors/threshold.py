"""What a stranger may cost: the door in front of every door that asks who somebody is, until that is known.

A peer has so long and so many bytes to say who it is; then its connection ends on its protocol's terms. The door behind says when it knows
(`Link.known`), and this one gives way, so that nobody who is known pays for it. What comes while the door behind has paused (a password is
being hashed) waits in the pump and does not count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gantrymq.net.api import ConnectionFactory, Door, Link, Wheel
from gantrymq.net.held.outbound import Pieces

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    """`ms`: from the connection (with TLS: the end of its handshake) to a login that was right. `bytes_max`: handed to the door before that."""

    ms: int
    bytes_max: int
    wheel: Wheel


class Threshold:
    """A `Door` in front of `inner`."""

    __slots__ = ("_handle", "_known", "_left", "_link", "_terms", "inner")

    def __init__(self, inner: Door, terms: Terms) -> None:
        self.inner = inner
        self._terms = terms
        self._left = terms.bytes_max
        self._known = False
        self._handle = 0
        self._link: Link | None = None

    def connected(self, link: Link) -> None:
        self._link = link
        self._handle = self._terms.wheel.call_at(self._terms.wheel.now_ms() + self._terms.ms, self._too_late)
        self.inner.connected(link)

    def let_in(self) -> Door:
        """Somebody is known: the door that takes this one's place. What is handed to this one meanwhile goes through."""
        self._known = True
        self._terms.wheel.cancel(self._handle)
        return self.inner

    def expect(self, size: int) -> None:
        """The door behind wants so many more bytes than it has, to know who it is."""
        self._left = max(self._left, size)

    def received(self, data: bytes) -> int | None:
        if self._known:
            return self.inner.received(data)
        if self._left <= 0:
            self._end(
                f"more than {self._terms.bytes_max} bytes (auth.unknown_bytes_max) before it was known who sends them"
            )
            return None
        part = data if len(data) <= self._left else data[: self._left]
        self._left -= len(part)
        taken = self.inner.received(part)
        if taken is None:
            return None if len(part) == len(data) else len(part)
        self._left += len(part) - taken
        return taken

    def _too_late(self, now_ms: int) -> None:
        self._handle = 0
        if not self._known:
            self._end(f"it did not say who it is within {self._terms.ms} ms (auth.unknown_ms)")

    def _end(self, why: str) -> None:
        link = self._link
        assert link is not None, "`connected` comes first"
        log.info("%s: closed: %s", link.peer, why)
        self.inner.overdue(why, False)
        link.close()
        link.mark()

    def inbound_bytes(self) -> int:
        return self.inner.inbound_bytes()

    def unfinished(self) -> int:
        return self.inner.unfinished()

    def missing_bytes(self) -> int:
        return self.inner.missing_bytes()

    def overdue(self, why: str, busy: bool) -> None:
        self.inner.overdue(why, busy)

    def data_to_send(self) -> Pieces:
        return self.inner.data_to_send()

    def eof(self) -> bool | None:
        return self.inner.eof()

    def closed(self, reason: str) -> None:
        self._terms.wheel.cancel(self._handle)
        self.inner.closed(reason)

    def writable(self) -> None:
        self.inner.writable()

    def deadline(self, now_ms: int) -> None:
        self.inner.deadline(now_ms)

    def shutdown(self) -> None:
        self.inner.shutdown()


def behind(before: Door | None, door: Door) -> Door:
    """`door` takes the place of `before`; a threshold stays in front of it."""
    if isinstance(before, Threshold):
        before.inner = door
        return before
    return door


def known(door: Door | None) -> Door | None:
    """What takes the place of a door whose peer is known now."""
    return door.let_in() if isinstance(door, Threshold) else door


def expect(door: Door | None, size: int) -> None:
    """See `Link.expect`."""
    if isinstance(door, Threshold):
        door.expect(size)


def expecting(factory: ConnectionFactory, terms: Terms) -> Callable[[], Door]:
    """`factory` with a threshold in front of each door."""
    return lambda: Threshold(factory(), terms)
