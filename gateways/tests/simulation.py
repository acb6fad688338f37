"""One world under a seed: a broker in memory, the doors before it, and an actor for each door who does what its clients and sinks do.

An actor's promises are checked after every step, and once more when all is healed. The server is killed now and then, for all at once.
Owners of broker groups, and brokers with their disk and network, are simulated in `interop_tests/sim`, over the real wire.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from gantrymq_gateways.amqp.routes import AmqpRoutes
from gantrymq_gateways.cloudevents.routes import EventRoutes
from gantrymq_gateways.mqtt.routes import MqttRoutes
from gateways.tests.fakeport import FakePort

STEPS = 120
KILLED = 0.04
"""Chance of a kill after a step."""


class Actor(Protocol):
    """Acts at one door of a simulation; `actions` are drawn from with equal chances."""

    actions: list[Callable[[], None]]

    def published(self, topic: str, payload: bytes) -> None:
        """Some actor has the server's word that it is stored, or is about to get it."""

    def check(self) -> None:
        """What holds at any time."""

    def restart(self) -> None:
        """The server was killed; the simulation has the new port."""

    def heal(self) -> None:
        """No more trouble: all that was promised arrives, and nothing else."""


class Simulation:
    """`port` is the broker of now, `order` tells when each (topic, payload) was published."""

    def __init__(self, mode: str, seed: int) -> None:
        self.mode = mode
        self.random = random.Random(seed)
        self.port = FakePort(seed, mode, {"mqtt": MqttRoutes, "events": EventRoutes, "amqp": AmqpRoutes})
        self.order: dict[tuple[str, bytes], int] = {}
        self.actors: tuple[Actor, ...] = ()

    def run(self, *actors: Actor) -> None:
        self.actors = actors
        actions = [action for actor in actors for action in actor.actions]
        for _ in range(STEPS):
            self.random.choice(actions)()
            self.check()
            if self.random.random() < KILLED:
                self.port = self.port.crash(self.random.randrange(1 << 30))
                for actor in actors:
                    actor.restart()
        for actor in actors:
            actor.heal()
        self.check()

    def published(self, topic: str, payload: bytes) -> None:
        self.order[topic, payload] = len(self.order)
        for actor in self.actors:
            actor.published(topic, payload)

    def check(self) -> None:
        for actor in self.actors:
            actor.check()
