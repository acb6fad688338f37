"""What clients of several groups asked and were told, and what must hold of it at the end. Times are numbers of events, whatever clocks say."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from tests.cluster.slots.slot_site import KEEPER

NEVER = 1 << 60
ANY = ""
"""Tag of a route that every record matches."""


class Violation(AssertionError):
    """What does not hold begins with its kind."""


@dataclass(slots=True)
class Publish:
    """`disk`: how many disks its source had had before. `met`: the groups that its source knew when it was sent."""

    id: int
    publisher: int
    source: str
    disk: int
    tag: str
    sent: int
    confirmed: int = NEVER
    refused: bool = False
    met: frozenset[str] = frozenset()


@dataclass(slots=True)
class Operation:
    """A bind, or an unbind. `ended`: nothing more will be heard of it."""

    on: bool
    asked: int
    answered: int = NEVER
    flushed: bool = False
    ended: bool = False


@dataclass
class Queue:
    """`reset`: when what its owner had answered ceased to hold, with its disk; `starts`: of its owner. `taken`: bodies by offset; `whole`: the owner
    lost nothing."""

    owner: str
    light: int
    cursor: int
    name: int = 0
    operations: dict[str, list[Operation]] = field(default_factory=dict)
    reset: int = -1
    taken: dict[int, bytes] = field(default_factory=dict)
    whole: bool = True
    starts: list[int] = field(default_factory=list)
    moved: bool = False

    def lose_unflushed(self) -> None:
        """Its owner lost power: what was answered, and was not on the disk, is there or not."""
        for operations in self.operations.values():
            for operation in operations:
                if not operation.flushed:
                    operation.answered = NEVER

    def bound(self, publish: Publish) -> bool | None:
        """Whether a route led here from before it was sent until after it was confirmed; None: that is not sure."""
        if self._may_be_late(publish) or self._is_unknown(publish):
            return None
        states = [self._bound(tag, publish) for tag in (publish.tag, ANY)]
        if True in states:
            return True
        return None if None in states else False

    def _may_be_late(self, publish: Publish) -> bool:
        """An owner that was started again since remembers no earlier routes: what a source without a lease left for it is matched as of the start."""
        last = max(self.starts, default=-1)
        return (publish.source != self.owner or self.moved) and any(
            publish.sent < operation.asked < last
            for tag in (publish.tag, ANY)
            for operation in self.operations.get(tag, [])
        )

    def _is_unknown(self, publish: Publish) -> bool:
        """The disk of the metadata group was replaced while this owner was away: with an empty one it founds the cluster anew, and takes records
        before the owner is back."""
        return publish.source == KEEPER != self.owner and publish.disk > 0 and self.owner not in publish.met

    def _bound(self, tag: str, publish: Publish) -> bool | None:
        state: bool | None = False if self.reset < 0 else None
        for operation in self.operations.get(tag, []):
            if operation.asked < self.reset:
                continue
            if operation.answered < publish.sent:
                state = operation.on
            elif operation.asked < publish.confirmed and state is not operation.on:
                state = None
        return state

    def told(self, publish: Publish) -> str:
        """For people."""
        return f"{self.owner}~{self.light} {[(tag, self.operations.get(tag)) for tag in (publish.tag, ANY)]}"


@dataclass
class Told:
    """See the module. `due` and `forbidden`: deliveries that were checked."""

    publishes: dict[int, Publish] = field(default_factory=dict)
    queues: list[Queue] = field(default_factory=list)
    events: int = 0
    due: int = 0
    forbidden: int = 0

    def now(self) -> int:
        """The next event."""
        self.events += 1
        return self.events

    def check_queue(
        self, queue: Queue, there: list[int], stored: dict[str, set[int]], before: Collection[int] = ()
    ) -> None:
        """`there`: what it holds, in order; `stored`: by living group, what its log holds; `before`: what it held where it was before."""
        if len(there) != len(set(there)):
            twice = next(each for each in there if there.count(each) > 1)
            raise Violation(f"once: {self.publishes[twice]} is twice in {queue.owner}~{queue.light}")
        self._check_order(queue, there)
        found = {*there, *before}
        for publish in self.publishes.values():
            bound = queue.bound(publish)
            if bound is True and publish.id in stored.get(publish.source, ()):
                self.due += 1
                if publish.id not in found:
                    raise Violation(f"due: {publish} is missing in {queue.told(publish)}")
            elif bound is False:
                self.forbidden += 1
                if publish.id in found:
                    raise Violation(f"wrong: {publish} is in {queue.told(publish)}")

    def _check_order(self, queue: Queue, there: list[int]) -> None:
        last: dict[tuple[int, str, int], int] = {}
        for each in there:
            publish = self.publishes[each]
            key = publish.publisher, publish.source, publish.disk
            if last.get(key, -1) > each:
                raise Violation(
                    f"order: {publish} comes after {self.publishes[last[key]]} in {queue.owner}~{queue.light}"
                )
            last[key] = each

    def operations(self, owner: str) -> Iterator[Operation]:
        """Of queues of a group."""
        for queue in self.queues:
            if queue.owner == owner:
                for operations in queue.operations.values():
                    yield from operations
