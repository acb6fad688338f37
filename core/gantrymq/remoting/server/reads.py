"""Requests that read records: a reading part that may be repeated, and an applying part that may not.

A read that would wait for the disk raises `Cold` (store/cold.py); when the data is in memory, the reading part is called again from its begin.
So it gets a `Reading`, which has nothing that changes the broker, and returns what it found; the applying part gets that, and is called once, at once.
What has its place in the order of requests whatever the disk does (a pull that commits an offset) is done before: a handler itself is called once.

    reply.read(command, look, apply)     # in a handler;   look(reading) -> found,   apply(found)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from gantrymq.administration.reading import Reading
    from gantrymq.net.api import Wheel
    from gantrymq.remoting.codec import Command
    from gantrymq.services import Turn
    from gantrymq.store.cold import Cold

T = TypeVar("T")


class Waits(NamedTuple):
    """What requests need that wait: for a time, for the end of this turn, for the disk (`read_cold`: as `Broker.fetch`)."""

    wheel: Wheel
    turn: Turn
    read_cold: Callable[[Cold, Any, Callable[[Any], None]], None]


class Read(Generic[T]):
    """A request whose reading part has to wait."""

    __slots__ = ("apply", "command", "find")

    def __init__(self, command: Command, find: Callable[[Reading], T], apply: Callable[[T], None]) -> None:
        self.command = command
        self.find = find
        self.apply = apply
