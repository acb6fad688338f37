"""What a service is and what it gets. Entry-point group `gantrymq.services`: a factory without arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gantrymq.broker.port import BrokerPort
from gantrymq.net.api import ConnectionFactory, Wheel
from gantrymq.net.doors.threshold import Terms, expecting


class Clock(Protocol):
    """Time as an argument."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch (wall clock)."""

    def monotonic_ms(self) -> int:
        """Milliseconds of a clock that never goes back."""

    def boot_ms(self) -> int:
        """The same, of one that also goes on while the machine sleeps."""


class Turn(Protocol):
    """Phases of one loop turn; each callback runs once, at the end of the turn in which it was handed over."""

    def at_append(self, callback: Callable[[], None]) -> None:
        """First phase: one append batch for everything submitted in this turn."""

    def at_deliver(self, callback: Callable[[], None]) -> None:
        """Second phase: watchers, taps, long polls."""

    def in_slices(self, callback: Callable[[], None]) -> None:
        """One slice of long work, in some turn soon; all of them share a part of each turn."""

    def at_write(self, callback: Callable[[], None]) -> None:
        """Last phase: one write per connection."""


@dataclass(slots=True)
class ServiceContext:
    """Everything a service may use. `port` is None for services that start before the broker."""

    config: Any
    """Instance of the service's own config dataclass."""
    sections: dict[str, Any]
    """Instances of the dataclasses in the service's `extra_sections`, by section name."""
    host: str
    """Address to bind; loopback unless configured."""
    data: Path
    """The directory given by --data."""
    clock: Clock
    turn: Turn
    wheel: Wheel
    nameservers: list[str]
    """`host:port` of the nameservers to use; changes in place when a page that names them does: look again."""
    listen: Callable[[ConnectionFactory, str, int], Any]
    """`await context.listen(factory, host, port)` -> (host, port) that it is bound to; the shell closes it at stop."""
    spawn: Callable[..., None]
    """`spawn(coroutine_function, *args)`: a background task in the process's task group."""
    host_names: tuple[str, ...] = ()
    """Names beside those of loopback to which HTTP doors on loopback answer."""
    port: BrokerPort | None = None
    shared: dict[str, Any] = field(default_factory=dict)
    """Between services of one process: the broker service sets `broker_port`; doors read it through `port`."""
    threshold: Terms | None = None
    """With authentication: what a peer may cost before it is known."""

    def asking(self, factory: ConnectionFactory) -> ConnectionFactory:
        """For `listen`, of doors that ask who a peer is and say so (`Link.known`): strangers are bounded."""
        return factory if self.threshold is None else expecting(factory, self.threshold)


class Service(Protocol):
    """A door, the broker, or the nameserver. Started in the order nameserver, broker, others; stopped in reverse."""

    name: str
    """Section of the configuration and key of the ready file."""
    default_port: int
    config: type
    """A frozen dataclass with at least `port: int`; every field has a default and is settable as `name.field`."""
    extra_sections: dict[str, type]
    """Further sections that it reads (the broker: `store`, `topics`, `gateway`), each a frozen dataclass with defaults."""

    async def start(self, context: ServiceContext) -> list[tuple[str, int]]:
        """Open the door; returns when it accepts connections. Returns the bound addresses, the main one first."""

    async def drain(self, deadline_s: float) -> None:
        """Stop taking new work, finish what is open within the deadline."""

    async def stop(self) -> None:
        """Close everything; called after `drain`, also after a failed start."""
