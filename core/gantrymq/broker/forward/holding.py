"""While queues go to another group nothing is stored that may be theirs: what doors and parts submit waits here, for a second at most.

So the group that has the queues gets to an end of what it takes. When it is decided where they are, this broker goes on; if it does not hear of that,
it takes nothing for known any more of the group where they go: what it stores then is matched there, as of its store time (sending.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import FORWARDED

if TYPE_CHECKING:
    from gantrymq.broker.forward.sending import Sending
    from gantrymq.broker.port import Done
    from gantrymq.broker.turn.submitted import Sent, Submitted
    from gantrymq.net.api import Wheel

HOLD_MS: Final = 1_000
HELD_MESSAGES_MAX: Final = 20_000
HELD_BYTES_MAX: Final = 32 << 20
"""More is refused for now (BUSY): publishers are waited for, not stored."""


class Ends(NamedTuple):
    """Number of the hold, this start, and the offsets behind all that waits here for the group that has the queues, and for the one that gets them."""

    number: int
    life: str
    source_end: int
    target_end: int


class _Asked(NamedTuple):
    number: int
    source: str
    target: str
    token: Any
    on_done: Done


class Holding:
    """See the module. `go_on()`: the submitted batches are to be looked at."""

    def __init__(
        self, name: str, sending: Sending, submitted: Submitted, wheel: Wheel, go_on: Callable[[], None]
    ) -> None:
        self._name = name
        self._sending = sending
        self._submitted = submitted
        self._wheel = wheel
        self._go_on = go_on
        self.targets: dict[str, int] = {}
        """Groups to which queues go, each with the number of its hold."""
        self._numbers = 0
        self._asked: list[_Asked] = []
        self._held: list[Sent] = []
        self._messages = self._bytes = 0

    def hold(self, source: str, target: str, token: Any, on_done: Done) -> None:
        """From now on, for queues that go from one group to another. Answers with `Ends` when all is stored that was taken before. Raises UNAVAILABLE
        where this broker does not know what the groups want: it cannot tell an end then."""
        self._sending.check_leases()
        for name in {source, target} - {self._name}:
            peer = self._sending.peers.get(name)
            if peer is None or not peer.is_known:
                raise GantryError(ErrorCode.UNAVAILABLE, f"broker {self._name} has not heard from broker group {name}")
            if len(self._sending.queues_of(name)) > 1:
                raise GantryError(ErrorCode.BUSY, f"broker {self._name} has records of an earlier start for {name}")
        self.refuse_another()
        self._numbers += 1
        number = self.targets[target] = self._numbers
        self._wheel.call_at(self._wheel.now_ms() + HOLD_MS, lambda now_ms: self._too_long(target, number))
        self._asked.append(_Asked(number, source, target, token, on_done))
        self.check()

    def refuse_another(self) -> None:
        """Raise BUSY while records are held: nobody waits for two moves, and what waits may be a queue's own (its dead letters)."""
        for target in self.targets:
            raise GantryError(ErrorCode.BUSY, f"broker {self._name} holds records for queues on their way to {target}")

    def _too_long(self, target: str, number: int) -> None:
        if self.targets.get(target) == number:
            self._sending.lapse(target)
            self.release(target, number)

    def release(self, target: str, number: int) -> None:
        """It is decided where the queues are, and known here. What is said of an earlier hold comes too late."""
        if self.targets.get(target) != number:
            return
        del self.targets[target]
        if not self.targets:
            held, self._held = self._held, []
            self._messages = self._bytes = 0
            for sent in held:
                self._submitted.add(sent)
            self._go_on()

    def keeps(self, sent: Sent) -> bool:
        """Whether a batch waits here. More than may wait is answered at once."""
        if _passes(sent):
            return False
        self._messages += len(sent.batch)
        self._bytes += sum([len(message.body) for message in sent.batch])
        if self._messages > HELD_MESSAGES_MAX or self._bytes > HELD_BYTES_MAX:
            sent.refuse_rest(ErrorCode.BUSY)
            sent.on_done(sent.token, sent.outcome())
        else:
            self._held.append(sent)
        return True

    def check(self) -> None:
        """A turn is over: what was taken before may be stored."""
        if not self._asked or not all(map(_passes, self._submitted)):
            return
        asked, self._asked = self._asked, []
        for each in asked:
            life, source_end = self._sending.end_for(each.source)
            each.on_done(each.token, Ends(each.number, life, source_end, self._sending.end_for(each.target)[1]))

    def take_all(self) -> list[Sent]:
        """The broker stops: nobody waits any more."""
        held, self._held = self._held, []
        return held


def _passes(sent: Sent) -> bool:
    """Records of other groups enter the queues that their marks name, wherever those go; without records there is nothing to match."""
    return all(message.kind == FORWARDED for message in sent.batch)
