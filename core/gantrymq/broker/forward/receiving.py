"""An owner: who knows its routes until when, and what it takes from the others' forward queues.

A route is added or removed with an answer when every source has confirmed it, or knows that it does not know (its lease is over). What is taken is
stored with how far its forward queue was read, in one piece; the source forgets it when that is on the disk here.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gantrymq.broker.forward.history import RouteHistory
from gantrymq.broker.forward.marks import lights_for, split
from gantrymq.broker.forward.sending import LEASE_MS
from gantrymq.broker.tables.forward_table import READ, SOURCE, START, TABLE
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.names import FORWARDED_TOPIC
from gantrymq.net.turn import run_all
from gantrymq.store.log.forwarded import Forwarded, original

if TYPE_CHECKING:
    from gantrymq.broker.forward.sending import Sending
    from gantrymq.broker.parts import Context
    from gantrymq.broker.port import Delivery, Done
    from gantrymq.broker.tables.slots import Slots
    from gantrymq.broker.tables.tables import Rows

log = logging.getLogger(__name__)

NEWS_TABLE: Final = "forward_news"
"""Has no rows: its watchers are told the version of the routes (key `version`) behind the changes that make it."""
GRANTED_MS: Final = 3_030
"""`LEASE_MS` as the owner counts it, from its answer: clocks may run apart by 1 %."""
CLOCK_ERROR_MS: Final = 20
"""Wall clocks of two groups may differ by so much."""
UNHEARD_MS: Final = 5_000
"""A route waits so long for a group that has never been heard, and does not know yet that this one exists; then it is UNAVAILABLE."""
WAITING_MAX: Final = 100_000
"""Changes of routes that wait for an answer; more are BUSY."""
AWAIT_MS: Final = 500
"""A read waits no longer for what its connection has published at another group: after 0.8 s of silence this one would be taken for one that hangs."""
_NEVER: Final = 1 << 62
STARTS_MAX: Final = 256
"""Starts of a source whose progress is kept: a disk that comes back after so many later ones would be read again. And starts of this group whose
light queues are told from others'."""


@dataclass(slots=True)
class Source:
    """A group with a forward queue for this one. `granted_ms`: until when it knows the routes, on the boot clock; `confirmed`: as of which version."""

    granted_ms: int
    confirmed: int = -1
    life: str = ""


class _Waiting(NamedTuple):
    version: int
    not_before_ms: int
    """Wall clock, where a source is silent."""
    until_ms: int
    """Boot clock, where one was never heard; 0: that does not matter."""
    on_done: Callable[[Any], None]
    result: Any


class _Awaited(NamedTuple):
    """Who reads only when a forward queue has been read so far."""

    source: str
    life: str
    offset: int
    until_ms: int
    on_done: Callable[[bool], None]


class Receiving:
    """See the module. Nothing happens in a broker without a metadata group."""

    def __init__(self, broker: Context, slots: Slots, sending: Sending) -> None:
        self._broker = broker
        self._slots = slots
        self._sending = sending
        self.history = RouteHistory(broker.router)
        self.sources: dict[str, Source] = {}
        self._started_ms = 0
        self._ends: dict[str, int] = {}
        """By start of this group: below which light queue those that it knew are those that are here."""
        self.version = 0
        """Changes of this group's routes since it started."""
        self._waiting: deque[_Waiting] = deque()
        self._due_ms = 0
        """When it is looked at what waits, by the wheel; 0: nothing does."""
        self.deciding = 0
        """Moves of queues to this group that are decided here, and not told yet: who asks for a lease is answered behind that."""
        self._undecided: list[Callable[[], None]] = []
        self._awaiting: list[_Awaited] = []
        self._tells_late = False
        self.dropped = 0
        """Records that no queue here wants any more, or that fit no record here."""
        self.taken = 0
        """Records that entered a queue here."""

    def open(self) -> None:
        """As Part.open."""
        if self._slots.keeper:
            self._broker.topics.get(FORWARDED_TOPIC)
            self._note_start()
            granted_ms = self._started_ms = (
                self._broker.clock.boot_ms() + GRANTED_MS
            )  # what an earlier start has granted
            for key in self._broker.tables.rows(TABLE):
                if key.startswith(SOURCE):
                    self.sources[key[len(SOURCE) :]] = Source(granted_ms)

    def _note_start(self) -> None:
        """Light queues that an earlier start made, and lost with what was not on the disk, have numbers that are given again: below those of this
        start they are the same."""
        rows = self._broker.tables.rows(TABLE)
        starts = sorted([(int(value), key) for key, value in rows.items() if key.startswith(START)])
        gone: Rows = [(TABLE, key, None) for _, key in starts[: max(len(starts) - STARTS_MAX, 0)]]
        begin, made = self._broker.new_light()
        starts.append((begin, START + self._sending.life))
        begins = [each for each, _ in starts]
        self._ends = dict(zip([key[len(START) :] for _, key in starts], [*begins[1:], _NEVER], strict=True))
        next_row = [row for row in made if row[1] == "next"]
        self._broker.put_rows(
            [*gone, *next_row, (TABLE, START + self._sending.life, str(begin).encode())], together=True
        )

    def close(self) -> None:
        """As Part.close."""

    def forget(self, name: str) -> None:
        """The cluster has forgotten that group."""
        self.sources.pop(name, None)
        rows = [
            key for key in self._broker.tables.rows(TABLE) if key == SOURCE + name or key.startswith(f"{READ}{name}/")
        ]
        self._broker.put_rows([(TABLE, key, None) for key in rows])
        self._answer()

    # Routes.

    @property
    def is_followed(self) -> bool:
        """What was removed before, in an earlier start as well, is known nowhere any more."""
        return not self._waiting and self._broker.clock.boot_ms() >= self._started_ms

    @property
    def _has_sources(self) -> bool:
        """Or it is not known yet who they are."""
        return bool(self._sending.peers) or not self._slots.knows_groups

    def changing(self, route_id: str, adds: bool) -> None:
        """A durable route is about to be added or to change; or to be removed, if it is there."""
        if self._has_sources:
            before = self._broker.router.durable(route_id)
            if adds or before is not None:
                self.history.note(self._broker.clock.now_ms() + CLOCK_ERROR_MS + 1, route_id, before)

    def when_known(self, on_done: Done, adds: bool) -> Done:
        """The answer of a change of routes, to be called when it is stored: `on_done` follows when the sources know. Of a route that goes groups that
        were never heard know nothing."""
        if not self._has_sources:
            return on_done

        def stored(token: Any, result: Any) -> None:
            if isinstance(result, GantryError):
                on_done(token, result)
                return
            if len(self._waiting) >= WAITING_MAX:
                on_done(
                    token, GantryError(ErrorCode.BUSY, f"{WAITING_MAX} changes of routes wait for other broker groups")
                )
                return
            self.version += 1
            self._broker.tables.tell(NEWS_TABLE, "version", str(self.version).encode())
            clock = self._broker.clock
            not_before_ms = clock.now_ms() + 2 * CLOCK_ERROR_MS + 1  # behind the change by any clock
            until_ms = clock.boot_ms() + UNHEARD_MS if adds else 0
            self._waiting.append(_Waiting(self.version, not_before_ms, until_ms, partial(on_done, token), result))
            self._answer()

        return stored

    def when_decided(self, call: Callable[[], None]) -> None:
        """At once, or when no move is being decided."""
        if self.deciding:
            self._undecided.append(call)
        else:
            call()

    def decided(self) -> None:
        """A move was told, or is given up."""
        self.deciding -= 1
        if not self.deciding:
            calls, self._undecided = self._undecided, []
            run_all(calls)

    def heard(self, name: str, life: str, seen: int) -> tuple[str, int]:
        """A source (in its start `life`) has all changes of routes up to version `seen`. Returns this start, and the version now; from its question on
        it knows them for `LEASE_MS`, for what was told before the answer is there before it. Raises NOT_OWNER for a group that is none of this
        cluster."""
        if name not in self._sending.peers:
            raise GantryError(
                ErrorCode.NOT_OWNER, f"broker {self._slots.name} knows no broker group {name} in its cluster"
            )
        source = self.sources.get(name)
        if source is None:
            source = self.sources[name] = Source(0)
            self._broker.put_rows([(TABLE, SOURCE + name, b"1")])
        if source.life != life:
            source.life, source.confirmed = life, -1
        source.granted_ms = self._broker.clock.boot_ms() + GRANTED_MS
        source.confirmed = max(source.confirmed, min(seen, self.version))
        self._answer()
        return self._sending.life, self.version

    def _answer(self) -> None:
        waiting = self._waiting
        while waiting:
            first = waiting[0]
            left_ms = self._left_ms(first)
            if left_ms > 0:
                self._arm(left_ms)
                return
            waiting.popleft()
            result = first.result
            if left_ms < 0:
                names = ", ".join([name for name in self._sending.peers if name not in self.sources])
                text = f"broker group {names} has not heard of broker {self._slots.name} yet; try again"
                result = GantryError(ErrorCode.UNAVAILABLE, text if names else self._slots.why_silent())
            first.on_done(result)

    def _left_ms(self, each: _Waiting) -> int:
        """How long it waits at least; negative: it waited too long."""
        now_ms = self._broker.clock.boot_ms()
        is_heard = self._slots.knows_groups and all(name in self.sources for name in self._sending.peers)
        if each.until_ms and not is_heard:
            return each.until_ms - now_ms or -1
        silent = [source for source in self.sources.values() if source.confirmed < each.version]
        if not silent:
            return 0
        left_ms = max(source.granted_ms - now_ms for source in silent)
        return max(left_ms, each.not_before_ms - self._broker.clock.now_ms(), 0)

    def _arm(self, left_ms: int) -> None:
        due_ms = self._broker.wheel.now_ms() + min(left_ms, LEASE_MS)
        if not self._due_ms or due_ms < self._due_ms:  # sooner, once those that are there have answered
            self._due_ms = due_ms
            self._broker.wheel.call_at(due_ms, self._answer_later)

    def _answer_later(self, now_ms: int) -> None:
        if now_ms >= self._due_ms:
            self._due_ms = 0
        self._answer()

    # Records.

    def progress(self, source: str, life: str) -> int:
        """Offset up to which a forward queue was read."""
        row = self._broker.tables.rows(TABLE).get(f"{READ}{source}/{life}")
        return int(row) if row is not None else 0

    def await_progress(self, source: str, life: str, offset: int, on_done: Callable[[bool], None]) -> None:
        """`on_done(True)` when all is stored here that a source's forward queue has below that offset; False: not within `AWAIT_MS`."""
        if self.progress(source, life) >= offset or source not in self._sending.peers:
            on_done(True)
        elif len(self._awaiting) >= WAITING_MAX:
            on_done(False)
        else:
            until_ms = self._broker.wheel.now_ms() + AWAIT_MS
            self._awaiting.append(_Awaited(source, life, offset, until_ms, on_done))
            if not self._tells_late:
                self._tells_late = True
                self._broker.wheel.call_at(until_ms, self._tell_late)

    def _tell_late(self, now_ms: int) -> None:
        """One timer for all, who wait equally long: a look at each by a timer of each would hold up the loop."""
        self._tell_awaiting(now_ms)
        self._tells_late = bool(self._awaiting)
        if self._awaiting:
            self._broker.wheel.call_at(min([each.until_ms for each in self._awaiting]), self._tell_late)

    def _tell_awaiting(self, now_ms: int) -> None:
        waiting, self._awaiting = self._awaiting, []
        for each in waiting:
            is_there = self.progress(each.source, each.life) >= each.offset
            if is_there or each.until_ms <= now_ms:
                each.on_done(is_there)
            else:
                self._awaiting.append(each)

    def take(
        self, source: str, life: str, found: Sequence[Delivery], following: int, on_done: Callable[[Any], None]
    ) -> None:
        """Store what a source's forward queue has up to below offset `following`, and that it was read. `on_done(None)` when it is stored, so
        that the next may follow; a GantryError: it is to be tried again."""
        begin = self.progress(source, life)
        marks: dict[bytes, tuple[int, ...] | None] = {}
        batch = [self._here(source, delivery, marks) for delivery in found if delivery.offset >= begin]
        wanted = [message for message in batch if message is not None]
        self.dropped += len(batch) - len(wanted)
        rows: Rows = [(TABLE, f"{READ}{source}/{life}", str(max(following, begin)).encode())]
        if not begin:
            rows += self._forgotten(source)

        def stored(_token: Any, result: Any) -> None:
            refused = result if isinstance(result, GantryError) else None
            if refused is None and any(isinstance(code, ErrorCode) for code in result):
                refused = GantryError(
                    next(code for code in result if isinstance(code, ErrorCode) and code is not ErrorCode.NOT_ALONE)
                )
            if refused is None:
                self.taken += len(wanted)
                if self._awaiting:
                    self._tell_awaiting(self._broker.wheel.now_ms())
            on_done(refused)

        try:
            self._broker.submit_with(wanted, None, stored, 0, (), rows)
        except GantryError as error:
            on_done(error)

    def when_flushed(self, on_done: Callable[[], None]) -> None:
        """Call it when all that is stored now is on the disk."""

        def flushed(_token: Any, result: Any) -> None:
            if not isinstance(result, GantryError):
                on_done()

        self._broker.gate.park(self._broker.store.written_position, flushed, None, None, strict=True)

    def _here(self, source: str, delivery: Delivery, marks: dict[bytes, tuple[int, ...] | None]) -> Forwarded | None:
        """A record as it is to be stored here; None: no queue here wants it. `marks`: what those of this batch mean."""
        record = delivery.message
        properties, mark = split(record.properties)
        try:
            lights = marks[mark]
        except KeyError:
            lights = marks[mark] = self._meaning(source, mark)
        if lights is None:
            plain = original(Forwarded(record, properties, ()))
            lights = self._existing(sorted(self.history.lights(plain, record.store_ms)))
        if not lights:
            return None
        made = Forwarded(record, properties, lights)
        if len(made.body) + len(properties) > self._broker.store.record_bytes_max:
            log.error(
                "a record of broker group %s fits no record here (%d bytes): it is left out", source, len(made.body)
            )
            return None
        return made

    def _meaning(self, source: str, mark: bytes) -> tuple[int, ...] | None:
        """The light queues that a mark names and that are here; None: the record is to be matched."""
        try:
            told = lights_for(self._slots.name, mark)
        except GantryError as error:
            log.error("from broker group %s: %s", source, error.text)
            return ()
        if told is None or told[0] not in self._ends:
            return None
        end = self._ends[told[0]]
        return self._existing([light for light in told[1] if light < end])

    def _existing(self, lights: Sequence[int]) -> tuple[int, ...]:
        """Those that are here, and no forward queues."""
        known, closed = self._broker.tables.rows("light"), self._sending.lights()
        return tuple([light for light in lights if str(light) in known and light not in closed])

    def _forgotten(self, source: str) -> Rows:
        """Rows of starts of a source that are too many."""
        begin = f"{READ}{source}/"
        known = [key for key in self._broker.tables.rows(TABLE) if key.startswith(begin)]
        return [(TABLE, key, None) for key in known[: max(len(known) - STARTS_MAX, 0)]]
