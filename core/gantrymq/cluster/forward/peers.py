"""A broker's connections to all other groups of its cluster, as the table of slots names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gantrymq.cluster.forward.ending import Ender, Ending, EndPort
from gantrymq.cluster.forward.following import Following, Owner, PeerPort
from gantrymq.cluster.forward.moving import MovePort, Mover
from gantrymq.cluster.forward.pulls import Pulls


class OtherPort(PeerPort, EndPort, Protocol):
    """What is asked of another broker group."""


class Member(Owner, Ender, Protocol):
    """This broker."""


Connect = Callable[[str], tuple[OtherPort, Callable[[], None]]]


class Peers:
    """`connect(name)`: a port that is kept connected to that group, and what ends it."""

    def __init__(self, broker: Member, own: str, connect: Connect, pulls: Pulls) -> None:
        self._broker = broker
        self._own = own
        self._connect = connect
        self._pulls = pulls
        self._known: dict[str, tuple[Following, Ending, Callable[[], None]]] = {}

    def start(self) -> None:
        """From now on."""
        self._broker.arriving.taken_by(Mover(self._broker, self._own, self._ports).take)
        self._broker.sending.tell(self._met, self._forgotten)
        self._broker.arriving.find_ended()
        leaving = self._broker.leaving
        for name in {leave.target for leave in leaving.frozen.values()} - self._known.keys():
            leaving.give_back(
                leaving.going_to(name)
            )  # the last start heard that it is forgotten, and lost what it wrote then
        for name in self._broker.traces.groups() - self._known.keys():
            self._broker.traces.forget(name)

    def _ports(self) -> dict[str, MovePort]:
        return {name: following.port for name, (following, _, _) in self._known.items()}

    def _met(self, name: str) -> None:
        port, close = self._connect(name)
        following = Following(self._broker, self._own, name, port, self._pulls)
        ending = Ending(self._broker, name, port)
        self._known[name] = (following, ending, close)
        following.start()
        ending.start()

    def _forgotten(self, name: str) -> None:
        self._broker.receiving.forget(name)
        self._broker.leaving.give_back(self._broker.leaving.going_to(name))
        self._broker.traces.forget(name)
        following, ending, close = self._known.pop(name)
        following.stop()
        ending.stop()
        close()
