"""Who publishes, and who binds and unbinds. They know some group's copy of the table, and ask again until they are answered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from interop_tests.sim.owners.history import History, Operation, Publish
from interop_tests.sim.owners.machine import Network
from interop_tests.sim.owners.state import ANY, SLOTS, Record
from interop_tests.sim.world import World

KEYS = ("a", "b", "c")
AGAIN_MS = 600


class Publisher:
    """Sends without waiting; goes to another group after a failure."""

    def __init__(self, world: World, network: Network, history: History, number: int) -> None:
        self._world = world
        self._network = network
        self._history = history
        self._number = number
        self._sent = 0
        self._group = self._choose()
        self.active = True
        world.later(world.lot.randrange(300), self._publish)

    def _choose(self) -> str:
        return self._world.lot.choice(list(self._network.machines))

    def _publish(self) -> None:
        if not self.active:
            return
        world, history = self._world, self._history
        if world.lot.random() < 0.01 or not self._network.machines[self._group].up:
            self._group = self._choose()
        record = Record(len(history.publishes), self._number, self._sent, world.lot.choice(KEYS))
        self._sent += 1
        publish = history.publishes[record.id] = Publish(record, self._group, world.steps)
        self._network.send(f"p{self._number}", self._group, "publish", record, partial(self._confirm, publish))
        world.later(20 + int(world.lot.random() * 120), self._publish)

    def _confirm(self, publish: Publish, stored: bool) -> None:
        self._network.answer(publish.source, partial(self._confirmed, publish, stored))

    def _confirmed(self, publish: Publish, stored: bool) -> None:
        if stored:
            publish.confirmed = self._world.steps
        elif self._group == publish.source:
            self._group = self._choose()


class Binder:
    """The holder of one queue: one request at a time, asked again until it is answered."""

    def __init__(self, world: World, network: Network, history: History, queue: int) -> None:
        self._world = world
        self._network = network
        self._history = history
        self._queue = queue
        self._numbers: dict[str, int] = {}
        self._bound: dict[str, bool] = {}
        self.busy = False
        self.active = True
        world.later(world.lot.randrange(500), self._next)

    def _next(self) -> None:
        if not self.active:
            return
        lot = self._world.lot
        key = ANY if lot.random() < 0.1 else lot.choice(KEYS)
        self._bound[key] = not self._bound.get(key, False)
        self._numbers[key] = self._numbers.get(key, 0) + 1
        operation = Operation(self._bound[key], self._world.steps)
        self._history.operations.setdefault((self._queue, key), []).append(operation)
        self.busy = True
        self._ask(key, operation)

    def _ask(self, key: str, operation: Operation) -> None:
        if not self.busy or operation.answered <= self._world.steps:
            return
        up = [machine.process for machine in self._network.machines.values() if machine.up]
        if up:
            place = self._world.lot.choice(up).state.table.places[self._queue % SLOTS]  # type: ignore[attr-defined]
            answer: Callable[[bool], None] = partial(self._answer, place.owner, key, operation)
            words = (self._queue, key, operation.on, self._numbers[key], place.epoch, answer)
            self._network.send(f"b{self._queue}", place.owner, "bind", *words)
        self._world.later(AGAIN_MS, partial(self._ask, key, operation))

    def _answer(self, group: str, key: str, operation: Operation, done: bool) -> None:
        if done:
            self._network.answer(group, partial(self._done, key, operation))

    def _done(self, key: str, operation: Operation) -> None:
        if operation.answered > self._world.steps:
            operation.answered = self._world.steps
            self.busy = False
            self._world.later(int(self._world.lot.random() * 700), self._next)
