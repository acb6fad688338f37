"""A broker's connections to all other groups of its cluster, as the table of slots names them."""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.cluster.forward.following import Following, Owner, PeerPort
from gantrymq.cluster.forward.moving import MovePort, Mover
from gantrymq.cluster.forward.pulls import Pulls

Connect = Callable[[str], tuple[PeerPort, Callable[[], None]]]


class Peers:
    """`connect(name)`: a port that is kept connected to that group, and what ends it."""

    def __init__(self, broker: Owner, own: str, connect: Connect, pulls: Pulls) -> None:
        self._broker = broker
        self._own = own
        self._connect = connect
        self._pulls = pulls
        self._known: dict[str, tuple[Following, Callable[[], None]]] = {}

    def start(self) -> None:
        """From now on."""
        self._broker.arriving.taken_by(Mover(self._broker, self._own, self._ports).take)
        self._broker.sending.tell(self._met, self._forgotten)
        leaving = self._broker.leaving
        for name in {leave.target for leave in leaving.frozen.values()} - self._known.keys():
            leaving.give_back(
                leaving.going_to(name)
            )  # the last start heard that it is forgotten, and lost what it wrote then

    def _ports(self) -> dict[str, MovePort]:
        return {name: following.port for name, (following, _) in self._known.items()}

    def _met(self, name: str) -> None:
        port, close = self._connect(name)
        following = Following(self._broker, self._own, name, port, self._pulls)
        self._known[name] = (following, close)
        following.start()

    def _forgotten(self, name: str) -> None:
        self._broker.receiving.forget(name)
        self._broker.leaving.give_back(self._broker.leaving.going_to(name))
        following, close = self._known.pop(name)
        following.stop()
        close()
