"""One broker group as a gateway process sees it, and a cursor that lies in one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.broker.consuming.leases import NO_SLOT
from gantrymq.broker.port import BrokerPort, Start, Terms
from gantrymq.cluster.names import home_of, split_light, tag_of
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Call, Steps, pause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gantrymq.broker.port import Done
    from gantrymq.broker.tables.slots import Under
    from gantrymq.cluster.slots.view import SlotView
    from gantrymq.net.api import Wheel
    from gantrymq.services import Turn


PENDING_MAX: Final = 100_000
"""What was asked of every group while one joins, which it gets at the end; beyond them the join begins anew."""
ASK_MS: Final = 3_000
"""How long a request waits for the owner of its slot: for the end of a move, or for what a group that started has to hear first."""
AGAIN_MS: Final = 50
"""Between two tries."""
RETRY_MS: Final = 500
"""Before leases that are to follow their slots are tried again where the new owner did not answer for it."""


class GroupPort(BrokerPort, Protocol):
    """A connection to one group."""

    up: bool
    """Connected; false before the calls that were open are answered with UNAVAILABLE."""
    heard: int
    """Counts what came from the group, whatever it was: while it grows the group does not hang."""

    def take_lease(
        self, name: str, force: bool, on_lost: Callable[[str], None], token: object, on_done: Done,
        *, deputy: bool = False, under: Under | None = None,
    ) -> None:  # fmt: skip
        """`under`: NOT_OWNER if the group does not decide about that slot under that epoch. None: it gives it whoever decides, as a deputy does."""

    def is_free(self, name: str, token: object, on_done: Done, *, under: Under | None = None) -> None:
        """As `take_lease`."""

    def create_light(self, token: object, on_done: Done, *, name: str = "", slot: int = NO_SLOT) -> None:
        """As QueuePort.create_light; `slot`: of the name that it is made for."""

    def take_queues(self, source: str, queues: Sequence[tuple[int, int]], token: object, on_done: Done) -> None:
        """The group takes these light queues of another one (number there, id in the cluster) with what is in them: all or none."""

    def stop_slots(self, wanted: Sequence[Under], only_free: bool, token: object, on_done: Done) -> None:
        """The group answers no more for these slots, if it is their owner under these epochs and, `only_free`, nothing of them is held. Result: (its
        start, the slots)."""

    def forward_end(self, peer: str, token: object, on_done: Done) -> None:
        """Result: (the group's start, offset behind all that its forward queue for that other group has)."""

    def await_forward(self, source: str, life: str, offset: int, token: object, on_done: Done) -> None:
        """Result: whether the group has all that a source's forward queue has below that offset; False: not within half a second."""

    def close(self) -> None:
        """End it for good."""


class Group:
    """See the module. `index`: its number in this process, in delivery handles and record positions."""

    __slots__ = (
        "attempt",
        "complaint",
        "draining",
        "failures",
        "first_group",
        "hangs",
        "has_slots",
        "index",
        "inherited",
        "lights",
        "member",
        "moved",
        "name",
        "pending",
        "port",
        "ready",
        "registered",
        "settled",
        "tap_handles",
        "topics",
        "was_used",
    )

    def __init__(self, name: str, index: int, port: GroupPort) -> None:
        self.name = name
        self.index = index
        self.port = port
        self.registered = True
        """The nameservers know it."""
        self.ready = False
        """In use: connected, and what is open in this process is open there."""
        self.was_used = False
        """It was in use once."""
        self.settled = False
        """Long enough in use that the other gateway processes have found it, too: new records may go there."""
        self.hangs = False
        """Connected, but a question is open for too long: it is asked for nothing more until it answers (cluster/patience.py)."""
        self.has_slots = False
        """It has a copy of the table of slots."""
        self.attempt = 0
        """Counts connections: what an earlier one still does is ignored."""
        self.failures = 0
        """Joins that failed since it was connected."""
        self.complaint = ""
        """Why the last one failed."""
        self.pending: list[Callable[[Group], Steps]] = []
        """What was asked of every group while it joins."""
        self.first_group = False
        self.member = False
        self.draining = False
        self.inherited: set[int] = set()
        """Tags of groups that were emptied and left: their light queues are this one's now."""
        self.topics: set[str] = set()
        """Its topics that can be written."""
        self.lights: dict[int, int] = {}
        """Its own ids of light queues that it has under the id of another group, which made them."""
        self.moved: dict[int, int] = {}
        """Light queues of the cluster that have moved: its own id of them, 0 where they have gone on."""
        self.tap_handles: dict[int, int] = {}
        """Its handle of each of our taps."""

    def later(self, call: Callable[[Group], Steps]) -> None:
        """Done when it has everything else, before it is used."""
        if len(self.pending) <= PENDING_MAX:
            self.pending.append(call)

    def take_pending(self) -> list[Callable[[Group], Steps]]:
        """What waits now; raises BUSY if it was too much."""
        if len(self.pending) > PENDING_MAX:
            raise GantryError(ErrorCode.BUSY, f"over {PENDING_MAX} changes while it joined")
        taken, self.pending = self.pending, []
        return taken

    @property
    def tag(self) -> int:
        """What stands above the ids of its light queues."""
        return 0 if self.first_group else tag_of(self.name)

    def local_light(self, light: int) -> int:
        """Its own id of a light queue of the cluster; 0: it has none."""
        moved = self.moved.get(light)
        if moved is not None:
            return moved
        tag, own = split_light(light)
        return self.lights.get(light) or (own if tag == self.tag else 0)


class Patient(Protocol):
    """Asks groups that may hang (cluster/patience.py)."""

    def ask(self, group: Group, question: Call, undo: Callable[[Any], None] = ...) -> Call: ...


class Cluster(Protocol):
    """What the parts of a ClusterPort ask of it."""

    turn: Turn
    wheel: Wheel
    groups: list[Group]
    joining: list[Group]
    places: dict[str, list[tuple[Group, int]]]

    @property
    def up(self) -> bool: ...

    def ready_groups(self) -> list[Group]: ...

    def members_changed(self) -> None: ...

    def answers_again(self, group: Group) -> None: ...

    def queue_moved(self, light: int) -> None: ...

    slots: SlotView
    decisions: Patient

    def home(self, name: str) -> Group: ...

    def number(self) -> int: ...

    def restore(self, group: Group) -> Steps: ...

    def ensure_topic(self, name: str, create: int, token: Any, on_done: Done) -> None: ...


class Part:
    """A cursor at its group. `ready`: an acquire may find something."""

    __slots__ = ("group", "local", "ready")

    def __init__(self, group: Group, local: int) -> None:
        self.group = group
        self.local = local
        self.ready = True


class ClusterSeat:
    """A consumer of this process. `group`, `inner`: where it is registered, and as what; None while that group is away."""

    __slots__ = ("active", "asked", "group", "inner", "number", "on_turn", "terms")

    def __init__(self, number: int, terms: Terms, on_turn: Callable[[int, bool | None], None]) -> None:
        self.number = number
        self.terms = terms
        self.on_turn = on_turn
        self.group: Group | None = None
        self.inner = 0
        self.active = not terms.single
        self.asked = False
        """It is being registered again."""


class ClusterCursor:
    """One place in a queue, which lies in one group."""

    __slots__ = (
        "armed", "deleted", "handle", "name", "on_ready", "part", "queue", "queue_is_gone", "rank", "seats", "start", "waking",
    )  # fmt: skip

    def __init__(self, handle: int, queue: str, name: str, start: Start) -> None:
        self.handle = handle
        self.queue = queue
        self.name = name
        self.start = start
        self.part: Part | None = None
        """None while the group that has the queue is not in use."""
        self.queue_is_gone = False
        """The queue was not there any more when its group came back."""
        self.rank = 0
        self.seats: dict[int, ClusterSeat] = {}
        """Of this process, by number."""
        self.on_ready: Callable[[int], None] | None = None
        self.armed = False
        """`on_ready` is due at the next entry: set by `watch` and by an acquire that came back short."""
        self.deleted = False
        """Or its queue: what is still on its way to a group is undone there."""
        self.waking = False
        """`on_ready` is called at the end of this turn."""

    def watch(self, on_ready: Callable[[int], None] | None) -> None:
        """Set or end who is called at the next entry."""
        self.on_ready = on_ready
        self.armed = on_ready is not None

    def part_to_ask(self) -> Part | None:
        """Its part, if an acquire may find something there."""
        part = self.part
        if part is None or not part.group.ready or part.group.hangs:
            return None
        # Without a watcher nobody says when it has something again.
        return part if part.ready or self.on_ready is None else None


Place = tuple[Group, "Under | None"]
"""A group that is asked about a name, and what the question carries."""


def place_of(cluster: Cluster, name: str, deputy: bool) -> Place:
    """Who decides about a name. With `deputy`, while that group is away or hangs: the one in use with the highest hash of the name, the same for every
    gateway that sees the same groups. Raises UNAVAILABLE."""
    try:
        return cluster.home(name), cluster.slots.under(name)
    except GantryError:
        answering = [group for group in cluster.ready_groups() if not group.hangs]
        if not deputy or not answering:
            raise
    lasting = {group.name: group for group in answering if not group.draining}
    usable = lasting or {group.name: group for group in answering}
    return usable[home_of(name, usable)], None


def ask_owner(
    cluster: Cluster,
    name: str,
    ask: Callable[[Group, Under | None], Call],
    undo: Callable[[Group, Any], None],
    deputy: bool = False,
) -> Steps:
    """Ask the group that decides about a name. Returns (group, result). A group that does not, or not any more, is followed by who does, 3 s at most;
    then UNAVAILABLE, as at once of one that hangs: `undo` gets what it answers all the same. `deputy`: as of `place_of`, also when it hangs or is lost
    only now."""
    until_ms = cluster.wheel.now_ms() + ASK_MS
    while True:
        group, under = place_of(cluster, name, deputy)
        try:
            result: Any = yield cluster.decisions.ask(group, ask(group, under), partial(undo, group))
            return group, result
        except GantryError as error:
            follows = error.code is ErrorCode.NOT_OWNER or (deputy and error.code is ErrorCode.UNAVAILABLE)
            if not follows:
                raise
            if cluster.wheel.now_ms() >= until_ms:
                raise GantryError(ErrorCode.UNAVAILABLE, error.text) from None
        yield pause(partial(_later, cluster))


def _later(cluster: Cluster, go_on: Callable[[], None]) -> None:
    cluster.wheel.call_at(cluster.wheel.now_ms() + AGAIN_MS, lambda now_ms: go_on())
