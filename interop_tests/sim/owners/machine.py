"""What a group runs on: a machine with its clocks, a process that can be killed or stopped, a log whose tail may be lost, and a network.

Messages arrive late, out of order between groups (in order from clients, as over one connection), or not at all: links are cut one way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from interop_tests.sim.world import WALL_MS, World

LATE_MS = 2_500
CLOCK_ERROR_MS = 20
"""Wall clocks of two machines differ by at most this much."""


class Log:
    """Entries in order; what is behind `synced` may go with the power."""

    def __init__(self, entries: list[Any]) -> None:
        self.entries = entries
        self.synced = len(entries)

    @property
    def end(self) -> int:
        """Number of entries written."""
        return len(self.entries)


class Process(Protocol):
    """What runs on a machine."""

    def start(self) -> None:
        """A life begins, from what the log holds."""


class Machine:
    """Clocks, process, log. A life ends with the process; what was on its way to it is lost then."""

    def __init__(self, world: World, name: str, make: Callable[[Machine], Process]) -> None:
        self.world = world
        self.name = name
        self.log = Log([])
        self.life = 0
        self.up = False
        self.process: Process
        self._make = make
        self._booted = world.now
        self._suspended = 0
        self._stops = 0
        self._waiting: list[Callable[[], None]] = []
        self._skew = world.lot.randint(-CLOCK_ERROR_MS // 2, CLOCK_ERROR_MS // 2)

    # Clocks.

    def boottime_ms(self) -> int:
        """CLOCK_BOOTTIME: goes on while the machine is suspended."""
        return self.world.now - self._booted

    def monotonic_ms(self) -> int:
        """CLOCK_MONOTONIC: stands still while the machine is suspended."""
        return self.boottime_ms() - self._suspended

    def wall_ms(self) -> int:
        """The wall clock, right up to `CLOCK_ERROR_MS`."""
        return WALL_MS + self.world.now + self._skew

    # Lives.

    def start(self) -> None:
        """The process starts."""
        self.life += 1
        self.up = True
        self._stops = 0
        self._waiting = []
        self.process = self._make(self)
        self.process.start()

    def kill(self) -> None:
        """The process is gone; what it wrote is in the page cache."""
        self.up = False
        self.life += 1

    def lose_power(self) -> None:
        """What was not synced is gone, or not."""
        self.kill()
        kept = self.world.lot.randint(self.log.synced, self.log.end)
        self.world.note(f"{self.name}: {self.log.end - kept} entries are lost")
        del self.log.entries[kept:]
        self._booted = self.world.now
        self._suspended = 0

    def replace_disk(self, entries: list[Any]) -> None:
        """It comes back with another content of its disk."""
        self.log = Log(entries)

    def stop(self, ms: int, suspended: bool = False) -> None:
        """SIGSTOP and, later, SIGCONT; or the whole machine sleeps."""
        self._stops += 1
        if suspended:
            self._suspended += ms
        life = self.life
        self.world.later(ms, lambda: self._go_on(life))

    def _go_on(self, life: int) -> None:
        if life != self.life:
            return
        self._stops -= 1
        while self._waiting and not self._stops and life == self.life:
            self._waiting.pop(0)()

    @property
    def stopped(self) -> bool:
        """It does nothing for now."""
        return self._stops > 0

    def enter(self, life: int, call: Callable[[], None]) -> None:
        """Something happens to the process of that life, once it runs."""
        if life != self.life or not self.up:
            return
        if self._stops:
            self._waiting.append(call)
        else:
            call()

    def first(self, call: Callable[[], None]) -> None:
        """A stopped process goes on with this."""
        self._waiting.insert(0, call)

    def later(self, ms: int, call: Callable[[], None]) -> None:
        """A timer of this life."""
        life = self.life
        self.world.later(ms, lambda: self.enter(life, call))

    def sync(self, upto: int) -> None:
        """A flush is done."""
        self.log.synced = max(self.log.synced, upto)


class Network:
    """Between machines, and between clients and machines."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.machines: dict[str, Machine] = {}
        self.cuts: dict[tuple[str, str], int] = {}
        """(from, to): how many cuts are in force."""
        self._last: dict[tuple[str, str], int] = {}
        self.slow = False

    def _delay(self) -> int:
        lot = self.world.lot
        if self.world.calm or not self.slow or lot.random() > 0.03:
            return 1 + int(lot.random() * 6)
        return int(lot.random() * LATE_MS)

    def cut(self, source: str, target: str, ms: int) -> None:
        """Nothing gets from one to the other for a while."""
        self.cuts[source, target] = self.cuts.get((source, target), 0) + 1
        self.world.later(ms, lambda: self._heal(source, target))

    def _heal(self, source: str, target: str) -> None:
        self.cuts[source, target] -= 1

    def is_cut(self, source: str, target: str) -> bool:
        """See `cut`."""
        return self.cuts.get((source, target), 0) > 0

    def send(self, source: str, target: str, what: str, *words: Any) -> None:
        """Call `what` of the target's process; lost when cut, or when that process ends first."""
        machine = self.machines[target]
        life = machine.life
        if self.is_cut(source, target) or not machine.up:
            return
        delay = self._delay()
        if source not in self.machines:
            at = max(self.world.now + delay, self._last.get((source, target), 0))
            self._last[source, target] = at
            delay = at - self.world.now

        def arrive() -> None:
            if not self.is_cut(source, target):
                machine.enter(life, lambda: getattr(machine.process, what)(*words))

        self.world.later(delay, arrive)

    def answer(self, source: str, call: Callable[[], None]) -> None:
        """Towards a client."""
        self.world.later(self._delay(), call)
