"""Connections between simulated clients and a simulated broker process: in order like TCP, late, and cut in either direction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from interop_tests.sim.world import Handle, World

if TYPE_CHECKING:
    from gantrymq.net.api import Door
    from gantrymq.net.tls.identity import Certificate
    from gantrymq.net.turn import LoopTurn

LATE_MS = 400
NOTICED_MS = 4_000
"""A side notices that its connection is gone at most this much later."""
PLANNED_MAX = 1 << 20


class End(Protocol):
    """The client's side."""

    name: str

    def arrived(self, wire: Wire, data: bytes) -> None:
        """Bytes from the broker."""

    def lost(self, wire: Wire) -> None:
        """The connection is gone."""


class Machine(Protocol):
    """Where the broker's process runs; `life` counts its processes."""

    life: int
    wires: dict[Wire, None]
    turn: LoopTurn

    def accept(self, wire: Wire) -> Door:
        """A new connection."""

    def enter(self, life: int, call: Callable[[], object]) -> None:
        """Run something in that process, if it is still there."""


class Pipe:
    """One direction."""

    def __init__(self, world: World, deliver: Callable[[bytes], None]) -> None:
        self._world = world
        self._deliver = deliver
        self._at = 0
        self.broken = False
        self.waiting = 0
        """Bytes on their way."""

    def send(self, data: bytes) -> None:
        """Put bytes in; they come out later, after all earlier ones, sometimes in two pieces."""
        world = self._world
        if len(data) > 1 and world.chance(0.05):
            at = world.lot.randrange(1, len(data))
            self._send(data[:at])
            data = data[at:]
        self._send(data)

    def _send(self, data: bytes) -> None:
        world = self._world
        delay = world.lot.randrange(LATE_MS) if not world.calm and world.chance(0.03) else world.lot.randrange(4)
        self._at = max(self._at, world.now + delay)
        self.waiting += len(data)
        world.later(self._at - world.now, partial(self._arrive, data))

    def _arrive(self, data: bytes) -> None:
        self.waiting -= len(data)
        if not self.broken:
            self._deliver(data)

    def drained_ms(self) -> int:
        """When what is in it will have come out."""
        return max(self._at - self._world.now, 0)


class Wire:
    """A connection; towards the broker's door it is the `Link`."""

    peer_is_loopback = True
    peer_is_trusted = True
    is_encrypted = False
    peer_certificate: Certificate | None = None
    key_user = guest = ""

    def __init__(self, world: World, node: Machine, end: End, peer: str) -> None:
        self.world = world
        self.node = node
        self.end = end
        self.peer = peer
        self.life = node.life
        self.to_broker = Pipe(world, self._to_door)
        self.to_client = Pipe(world, partial(end.arrived, self))
        self.door: Door = node.accept(self)
        self._marked = False
        self._closing = False
        self._gone = False
        self._told = False
        self._deadline: Handle | None = None
        self.enter(partial(self.door.connected, self))

    def enter(self, call: Callable[[], object]) -> None:
        """Run something in the broker's process."""
        self.node.enter(self.life, call)

    def _to_door(self, data: bytes) -> None:
        if not self._gone and not self._closing:
            self.enter(partial(self.door.received, data))

    # What happens to it.

    def cut(self) -> None:
        """It breaks: requests, answers or both are lost from now on; each side notices when it does."""
        lot = self.world.lot
        what = lot.choice(("requests", "answers", "both"))
        self.world.note(f"cut {self.end.name}: {what} are lost")
        self.to_broker.broken |= what != "answers"
        self.to_client.broken |= what != "requests"
        self.world.later(lot.randrange(NOTICED_MS), self._client_notices)
        self.world.later(lot.randrange(NOTICED_MS), self._broker_notices)

    def client_leaves(self) -> None:
        """The client's process is gone."""
        self._told = True
        self.to_client.broken = True
        self.world.later(self.to_broker.drained_ms() + self.world.lot.randrange(50), self._broker_notices)

    def broker_died(self) -> None:
        """What was sent before may still arrive."""
        self.world.later(self.to_client.drained_ms() + self.world.lot.randrange(50), self._client_notices)

    def _client_notices(self) -> None:
        if not self._told:
            self._told = True
            self.to_client.broken = True
            self.end.lost(self)

    def _broker_notices(self) -> None:
        self.to_broker.broken = True
        self.enter(partial(self._finish, "connection reset by peer"))

    def _finish(self, reason: str) -> None:
        if not self._gone:
            self._gone = True
            self.set_deadline(None)
            self.node.wires.pop(self, None)
            self.door.closed(reason)

    # The link of the door.

    def mark(self) -> None:
        """See `Link`."""
        if not self._marked and not self._gone:
            self._marked = True
            self.node.turn.at_write(self._flush)

    def _flush(self) -> None:
        self._marked = False
        if self._gone:
            return
        data = self.door.data_to_send()
        if data:
            self.to_client.send(b"".join(data) if isinstance(data, list) else data)
        if self._closing:
            self._finish("")
            self.broker_died()

    def close(self) -> None:
        """See `Link`."""
        self._closing = True
        self.mark()

    def abort(self) -> None:
        """See `Link`."""
        self._closing = True
        self.mark()

    def pause_reading(self) -> None:
        """See `Link`; what was sent is read all the same."""

    def resume_reading(self) -> None:
        """See `Link`."""

    def set_deadline(self, at_ms: int | None) -> None:
        """See `Link`."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if at_ms is not None:
            delay = at_ms - self.world.clock.monotonic_ms()
            self._deadline = self.world.later(delay, partial(self.enter, self._fire))

    def _fire(self) -> None:
        self._deadline = None
        if not self._gone:
            self.door.deadline(self.world.clock.monotonic_ms())

    def outbound_bytes(self) -> int:
        """See `Link`."""
        return 0 if self.to_client.broken else self.to_client.waiting

    def is_pressed(self) -> bool:
        """See `Link`: no memory is short here."""
        return False

    def spent(self, requests: int) -> None:
        """See `Link`: nobody has a rate here."""

    def become(self, door: Door) -> None:
        """See `Link`."""
        self.door = door

    def speaks_for(self, host: str, port: int) -> None:
        """See `Link`: there are no proxies here."""

    def known(self, user: str = "") -> str:
        """See `Link`: nobody is a stranger here."""
        return ""

    def expect(self, size: int) -> None:
        """See `Link`: no memory is counted here."""
