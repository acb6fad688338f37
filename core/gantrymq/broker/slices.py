"""Long work on the loop, cut into slices: a generator does the work, `Sliced` drives it.

The generator yields how many microseconds a slice took; or a `Cold`, which is fetched before it goes on; or `HELD`, and then sees to it that
`Sliced.wake` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from gantrymq.model.errors import GantryError
from gantrymq.store.cold import Cold

if TYPE_CHECKING:
    from gantrymq.net.api import Wheel
    from gantrymq.services import Clock
    from gantrymq.store.message_store import MessageStore

T = TypeVar("T")
Slices = Generator[int | Cold, None, T]
"""Work in slices: see the module."""

HELD: Final = -1


class Upkeep(NamedTuple):
    """What work needs that goes on as long as the broker runs: time, whether the broker stops, and a way to ask that the log is flushed soon."""

    wheel: Wheel
    clock: Clock
    is_closed: Callable[[], bool]
    request_flush: Callable[[], None]


def patient(call: Callable[[], T]) -> Slices[T]:
    """The call's result, after as many fetches as it takes."""
    while True:
        try:
            return call()
        except Cold as cold:
            yield cold


class Sliced:
    """One job at a time. Loop thread."""

    def __init__(
        self,
        store: MessageStore,
        go_on: Callable[[], None],
        pause: Callable[[Callable[[], None]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """`go_on()`: a job that waited can have its next `step`. `pause(call)`: call it a little later, because too many reads wait for the disk.
        `failed(error)`: the job ended in the middle; the store or the disk refused something, or a record is damaged."""
        self._store = store
        self._go_on = go_on
        self._pause = pause
        self._failed = failed
        self.job: Slices[None] | None = None
        self.waiting = False
        """A fetch, a thread or a pause will wake the job."""

    def step(self, budget_us: int) -> bool:
        """Let the job work about that long. True: it has more to do. Raises nothing that `failed` is told."""
        if self.job is None or self.waiting:
            return False
        try:
            while budget_us > 0:
                took = next(self.job)
                if isinstance(took, Cold):
                    self._fetch(took)
                    return False
                if took == HELD:
                    self.waiting = True
                    return False
                budget_us -= took
        except StopIteration:
            self.job = None
            return False
        except (GantryError, OSError, ValueError) as error:
            self.job = None
            self._failed(error)
            return False
        return True

    def _fetch(self, cold: Cold) -> None:
        self.waiting = True
        try:
            self._store.fetch(cold, self, Sliced.wake)
        except GantryError:
            self._pause(self.wake)

    def wake(self) -> None:
        """What the job waited for is there, or can be asked for again."""
        self.waiting = False
        self._go_on()
