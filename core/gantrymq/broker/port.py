"""BrokerPort: the one interface through which gateways reach the broker.

Two implementations: `broker/local.py` (same process) and `cluster/wire/client.py` (over Remoting). Rules of both:

- Nothing blocks and nothing is awaited. Every call takes `token` and `on_done`; `on_done(token, result)` is called exactly once,
  possibly before the call returns, otherwise later, always on the loop. `result` is what the docstring says, or a
  `GantryError`. `on_done` must not raise.
- Callbacks (`on_ready`, `on_records`, `on_change`, `on_lost`) run at the end of a loop turn, each at most once per turn and object.
- A call that changes state is answered when the state is as safe as the log's acknowledgement rule promises.
- When the broker goes away every open call ends with UNAVAILABLE; `on_state` of `watch_state` tells when it is back, and
  cursors, taps, watches and leases must then be opened again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message

if TYPE_CHECKING:
    from gantrymq.model.queue_policy import Policy

Done = Callable[[Any, Any], None]
"""`on_done(token, result)`; result is a value or a `GantryError`."""

SubmitResult = int | ErrorCode
"""Queue offset (>= 0) of a stored message, or why it was not stored."""

POSITION_BITS: Final = 53
"""Log positions of one broker (8 PiB). A port over several broker groups puts the group's number above them in `physical_offset`, so
that two groups' records are never taken for one."""
POSITION_MASK: Final = (1 << POSITION_BITS) - 1

DETAILS_MAX: Final = 256
"""Cursors of one `details`: for each the queue is read, half a millisecond together."""

PASSING: Final = frozenset({ErrorCode.BUSY, ErrorCode.STORE_FULL})
"""Refusals that end by themselves."""


class Outcome(IntEnum):
    """What became of a delivery."""

    ACK = 0
    """Done: never delivered again."""
    REQUEUE = 1
    """Back to its old place in the queue, served before later offsets, delivery count kept and marked redelivered."""
    DROP = 2
    """Rejected without requeue: done, and the caller has seen to a dead letter if there is one."""
    RELEASE = 3
    """Never reached the consumer: back to its place, as if it had not been acquired (not redelivered)."""


FOR_QUEUE: Final = 2
"""As `create` of `ensure_topic`: for a declared queue. Such topics count towards `topics.queue_topics_max`, all others towards `auto_create_max`."""

FOR_EXCHANGE: Final = 3
"""...for a declared exchange: as any other, but that `amqp.keep_exchange_records` says how long its records are kept."""

ONE_PIECE: Final = ((0, 0, Outcome.ACK),)
"""As `settle` of a submit that settles nothing, and is one piece all the same: no cursor is 0."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new cursor begins: `kind` is `end`, `earliest` or `time` (then `at_ms`, milliseconds since the epoch); `find`: none is made; `again`: it
    should be there, else as `end`, and where the queue's broker group is away it is opened when that is back, and has nothing until then."""

    kind: str = "end"
    at_ms: int = 0


SHARED_GROUP: Final = "mqtt-share"
"""Group of the cursor in a queue that consumers share under a name: it is shown as a consumer group."""

END = Start("end")
EARLIEST = Start("earliest")
FIND = Start("find")
AGAIN = Start("again")


class Delivery:
    """One acquired entry of a cursor."""

    __slots__ = ("count", "message", "offset")

    def __init__(self, message: Message, offset: int, count: int) -> None:
        self.message = message
        self.offset = offset
        """Offset in the cursor's queue; the handle to settle with."""
        self.count = count
        """Deliveries including this one; above 1 means redelivered."""


@dataclass(slots=True)
class Scanned:
    """What was read of a queue. `following`: the offset to go on from; `at_end`: the queue has no more."""

    deliveries: list[Delivery]
    following: int
    at_end: bool


@dataclass(slots=True)
class CursorInfo:
    """A cursor as it is now. `cursor`: handle, valid until the port is lost. Counts are entries."""

    cursor: int
    ready: int
    unacked: int
    next_offset: int
    consumers: int = 0
    """Seats taken, over all ports."""


@dataclass(slots=True)
class CursorDetails:
    """A cursor as people look at it. `end`: entries that ever entered; `pinned`: bytes of the log from its oldest entry on."""

    ready: int
    unacked: int
    consumers: int
    end: int
    pinned: int


@dataclass(frozen=True, slots=True)
class Terms:
    """How a consumer consumes. `exclusive`: alone, or not at all. `single`: one at a time has the turn, the others wait (all of a queue
    say the same). `rank`: the turn goes to the highest first."""

    exclusive: bool = False
    single: bool = False
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Route:
    """Records that match enter the light queue `light`.

    `route_id`: unique over all routes. `kind`: name of a registered `RouteSet`. `topic`: native topic that it can match,
    or None for any. `expression`: what the kind understands (UTF-8 JSON). `light`: 0 for routes without a queue of their own
    (AMQP exchange-to-exchange bindings). `moves`: how often the route went to another broker group with its queue.
    """

    route_id: str
    kind: str
    topic: str | None
    expression: str
    light: int
    moves: int = 0


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as gateways see it."""

    name: str
    read_queues: int
    write_queues: int


class LogPort(Protocol):
    """Topics and records."""

    def body_bytes_max(self) -> int:
        """Largest body that is stored; of several broker groups the smallest limit that one has announced. It may change as they come and go."""

    def submit(
        self,
        batch: Sequence[Message],
        token: object,
        on_done: Done,
        sender: object = None,
        *,
        settle: Sequence[tuple[int, int, Outcome]] = (),
        rows: Sequence[tuple[str, str, bytes | None]] = (),
    ) -> None:
        """Store a batch in order; result: list[SubmitResult], one per message, when the topics' acknowledgement rule is met.

        Messages whose topic does not exist create it (with `gateway.queues` queues) unless automatic creation is off or at its
        limit (TOPIC_NOT_FOUND, TOPIC_LIMIT). The caller must not change a message before `on_done`.

        BUSY and STORE_FULL pass: the caller may submit again. What it submitted behind, before it got that answer, is then refused
        too, so that submitting all of it again, oldest first, keeps its order.

        `sender`: who sends, by identity (a connection). A turn takes a share of what each sender has submitted, in rotation; without one it
        counts as the port's own.

        `settle` (cursor, offset, outcome) and `rows` (table, key, value or None) make it *one piece*: messages, settlements and rows are stored
        in one batch of the log, all of them through any crash, or nothing of them, and are seen when they are stored. The batch may be empty.
        Settled entries that are not in flight are left out; the others leave their holder at once: what is released or settled meanwhile does
        not touch them, and a refusal gives them back. One message refused: all is, and the others' result is NOT_ALONE; an
        empty batch is refused by a GantryError. At most 10,000 messages and rows, 100,000 settlements and 16 MiB (LIMIT_REACHED); half messages are
        NOT_SUPPORTED. Over several broker groups it is one piece where one group has it all (docs/architecture/cluster.md).
        """

    def ensure_topic(self, name: str, create: int, token: object, on_done: Done, *, near: str = "") -> None:
        """Result: TopicInfo. With `create` false a missing topic is TOPIC_NOT_FOUND; true, or `FOR_QUEUE`: it is made. `near`: where a cluster has
        slots it is made at the owner of this name (see `create_light`), so that what is published there need not be forwarded to that name's queue."""

    def topics(self, token: object, on_done: Done) -> None:
        """Result: list[TopicInfo] without system topics."""

    def read(self, refs: Sequence[tuple[int, int]], token: object, on_done: Done) -> None:
        """Read records by (physical offset, size); result: list[Message | None] in that order (None: no longer there)."""


class RoutePort(Protocol):
    """Which records enter which light queue, and taps: matches handed over directly, nothing kept."""

    def add_route(self, route: Route, token: object, on_done: Done) -> None:
        """Install a durable route (a record of the log; it survives a restart). The same id again replaces it. Result: None."""

    def remove_routes(self, route_ids: Sequence[str], token: object, on_done: Done) -> None:
        """Unknown ids are ignored. Result: how many there were; None over several broker groups. Where those have slots: UNAVAILABLE if not all
        were found, and a group is away that may have the others."""

    def open_tap(
        self, on_records: Callable[[list[tuple[Message, tuple[int, ...]]]], None], token: object, on_done: Done
    ) -> None:
        """Result: tap handle (int). `on_records` gets, per append batch, each record that matched a volatile route of this tap
        with the matching route numbers; equal tuples are the same object while routes do not change."""

    def close_tap(self, tap: int) -> None:
        """Drop the tap and its volatile routes."""

    def add_volatile(
        self, tap: int, number: int, kind: str, topic: str | None, expression: str, token: object, on_done: Done
    ) -> None:
        """A route that lives in memory only. `number`: >= 0, chosen by the caller, unique in its tap. Result: None."""

    def remove_volatile(self, tap: int, numbers: Sequence[int]) -> None:
        """Unknown numbers are ignored; records on the way may still arrive."""


class QueuePort(Protocol):
    """Light queues and cursors. A cursor is a group's place (an AckWindow) in one queue.

    Queue names: `~<light id>` for a light queue (decimal), `<topic>/<queue id>` for a queue of a topic.
    """

    def create_light(self, token: object, on_done: Done, *, name: str = "") -> None:
        """Result: id (int >= 1) that was never used before; durable. `name`: whose owner is to have the queue, where a cluster has slots: the table
        and key of the row that describes it, with a slash between (UNAVAILABLE if that group is away); empty: anybody."""

    def delete_light(self, light: int, token: object, on_done: Done) -> None:
        """Drop the queue, its cursors and routes to it. Records stay in the log. Result: None."""

    def open_cursor(self, queue: str, group: str, start: Start, token: object, on_done: Done) -> None:
        """Find the group's cursor in `queue` or create it at `start` (FIND: NOT_FOUND instead); durable. Result: CursorInfo.
        FIND only looks: it is no use of a queue whose policy ends it when nobody uses it.
        QUEUE_NOT_FOUND: the light queue was deleted, or the topic has no such queue."""

    def set_policy(self, cursor: int, policy: Policy, token: object, on_done: Done) -> None:
        """What the queue of a cursor of a light queue does by itself from now on, whoever is there: expiry, limits, dead letters
        (model/queue_policy.py); durable, gone with the cursor. Result: None. ILLEGAL_ARGUMENT: not in range, or a kind of dead letters that is
        not installed."""

    def delete_cursor(self, cursor: int, token: object, on_done: Done) -> None:
        """Forget the group's place. Result: None."""

    def acquire(self, cursor: int, holder: int, count_max: int, bytes_max: int, token: object, on_done: Done) -> None:
        """Lease up to `count_max` entries (at least one if any is ready, whatever its size); result: list[Delivery], oldest first,
        what came back before anything newer. Empty: the next entry calls the watcher. `holder`: who `release` is for. STORE_FAILED: the
        disk cannot read them; the watcher is called a little later."""

    def settle(self, items: Sequence[tuple[int, int, Outcome]]) -> None:
        """(cursor, offset, outcome) of leased entries; the others are ignored. One record of the log per call."""

    def release(self, holder: int) -> None:
        """Everything that `holder` still has is requeued (it was possibly delivered: redelivered from now on)."""

    def watch(self, cursor: int, on_ready: Callable[[int], None] | None) -> None:
        """`on_ready(cursor)` once when an entry is ready and again each time after an `acquire` came back short; None ends it."""

    def scan(self, cursor: int, offset: int, count_max: int, bytes_max: int, token: object, on_done: Done) -> None:
        """Read the queue without taking anything: entries from `offset` on that the cursor is not done with, at least one if there is any, as
        deliveries counted 1. Result: `Scanned`. At the queue's end the watcher is called at the next entry. STORE_FAILED as with `acquire`."""

    def seek(self, cursor: int, start: Start, token: object, on_done: Done) -> None:
        """For `scan`. Result: the offset of the oldest entry that the cursor is not done with (`earliest`), of the next that enters (`end`), of the
        first that was stored at that `time` or later."""

    def take_seat(
        self, cursor: int, terms: Terms, on_turn: Callable[[int, bool | None], None], token: object, on_done: Done
    ) -> None:
        """Register a consumer. Result: (seat, whether it has the turn); `on_turn(seat, active)` when that changes, `on_turn(seat, None)` when the
        seat is lost: its broker was away, and another came there that is exclusive. Seats end with the port.
        LEASE_HELD: it wants to be alone and is not, or another is exclusive."""

    def leave_seat(self, cursor: int, seat: int, token: object, on_done: Done) -> None:
        """The consumer is gone. Result: how many are left, over all ports; an unknown seat is ignored."""

    def rank(self, cursor: int, rank: int) -> None:
        """The highest rank of this port's consumers that have credit, 0 at first: its watcher is called before those of ports with a lower
        one, which get what is left."""

    def stats(self, cursors: Sequence[int], token: object, on_done: Done) -> None:
        """Result: list[CursorInfo | None]."""

    def details(self, cursors: Sequence[int], token: object, on_done: Done) -> None:
        """Of at most `DETAILS_MAX` cursors. Result: list[CursorDetails | None]."""

    def catch_up(self, cursor: int, token: object, on_done: Done) -> None:
        """Before one reads: answered when the cursor's queue has all that it gets of what anybody was answered for so far, at whatever broker group;
        after two seconds in any case. Result: whether anything may have come meanwhile."""

    def purge(self, cursor: int, token: object, on_done: Done) -> None:
        """Drop every ready entry (not the leased ones). Result: their number."""


class TablePort(Protocol):
    """Keyed tables whose truth is the log (one compacted system topic each). Keys: text up to 4 KiB; values: bytes up to 4 MiB."""

    def put(
        self, table: str, items: Sequence[tuple[str, bytes | None]], token: object, on_done: Done,
        *, deputy: bool = False,
    ) -> None:  # fmt: skip
        """Set (None: delete) keys in one batch. Result: None. Reading in process sees it at once. `deputy`: rows that nobody else makes, and that are
        new, lie at another broker group while the one where they belong is away or does not answer."""

    def put_if(
        self, table: str, items: Sequence[tuple[str, bytes | None, bytes | None]], token: object, on_done: Done
    ) -> None:
        """(key, expected, value): change each row that is `expected` now (None: absent). Result: list[bool], which were. What such a
        row is instead, `watch_table` has told or will tell."""

    def put_together(
        self,
        table: str,
        key: str,
        expected: bytes | None,
        items: Sequence[tuple[str, bytes | None]],
        token: object,
        on_done: Done,
    ) -> None:
        """Set (None: delete) all rows of `items` in one piece, also through a crash, if the row of `key` is `expected` now; else none. The rows
        lie where that one does. Result: bool, whether it was."""

    def watch_table(
        self, table: str, on_change: Callable[[str, bytes | None], None] | None, token: object, on_done: Done
    ) -> None:
        """Result: the table now, a mapping of keys to bytes that is the caller's own; afterwards `on_change` for each change, our own included. The same `on_change`
        again is still called once."""


class LeasePort(Protocol):
    """Fenced leases: one holder per name (MQTT client ids, exclusive queues). They end with the port's connection."""

    def take_lease(
        self, name: str, force: bool, on_lost: Callable[[str], None], token: object, on_done: Done,
        *, deputy: bool = False,
    ) -> None:  # fmt: skip
        """Result: epoch (int). Held by another: LEASE_HELD, or with `force` the other's `on_lost(name)` is called first.

        `deputy`: nothing that outlives its holder hangs on it, so another broker group gives it while the one that decides about the name is away
        or does not answer. When that one is back the lease moves there, and is lost if somebody has it already."""

    def is_free(self, name: str, token: object, on_done: Done) -> None:
        """Result: bool, nobody holds it, nor is anybody about to take it again whose broker group was away."""

    def drop_lease(self, name: str, epoch: int) -> None:
        """Give it up; a stale epoch is ignored."""


SEATS: Final = "seat"


def lease_name(lease: str) -> str:
    """A lease among all names."""
    return f"lease/{lease}"


FAMILIES: Final = frozenset({"mqtt_session"})
"""Tables where a key with a line end is one of the row whose key stands in front of it."""


def family_of(table: str, key: str) -> str:
    """The key of the row that a row lies with."""
    return key.partition("\n")[0] if table in FAMILIES else key


def row_name(table: str, key: str) -> str:
    """A row among all names: one of a session's filters has the session's."""
    return f"{table}/{family_of(table, key)}"


def seat_name(queue: str, group: str) -> str:
    """The seats at a cursor among all names."""
    return f"{SEATS}/{queue}/{group}"


class BrokerPort(LogPort, RoutePort, QueuePort, TablePort, LeasePort, Protocol):
    """The five groups together."""

    keeps_order: bool
    """What changes something is stored in the order in which it is called, reads of `open_cursor` aside: nobody has to wait for one call with the next."""

    @property
    def up(self) -> bool:
        """A broker is connected; false before the calls that were open at the last one are answered with UNAVAILABLE."""

    def answers_for(self, name: str) -> bool:
        """Whether the broker group that decides about a name (`lease_name`, `row_name`, `seat_name`) is there and answers, as far as is known: what
        the server may name as it likes gets a name for which this is true."""

    def watch_state(self, on_state: Callable[[bool], None]) -> None:
        """`on_state(up)` at once and at each change."""


NAME_TRIES: Final = 500
"""For a name that hashes to groups that answer, some microseconds each: enough where one of five does, and four hashes count."""


def choose_name(port: BrokerPort, make: Callable[[], str], decided: Callable[[str], Sequence[str]]) -> str:
    """A name that the server chooses: made anew until the groups that decide about all of `decided(name)` answer. Where none is found, the last one: its
    use is refused as that of any other."""
    for _ in range(NAME_TRIES):
        name = make()
        if all(map(port.answers_for, decided(name))):
            break
    return name


def refused_for_now(result: list[SubmitResult] | GantryError) -> bool:
    """True if something of a submitted batch was refused with a code that passes."""
    if isinstance(result, GantryError):
        return result.code in PASSING
    results: list[Any] = result
    try:
        min(results)  # One comparison in C per message: it fails if there is an ErrorCode among several numbers.
        if type(results[0]) is int:
            return False
    except (TypeError, ValueError):
        pass
    return any(code in PASSING for code in results if isinstance(code, ErrorCode))


def is_error(result: object) -> bool:
    """True if a callback's result is a failure."""
    return isinstance(result, GantryError)
