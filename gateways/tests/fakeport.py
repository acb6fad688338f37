"""A BrokerPort in memory for adapter tests: real route sets, light queues, cursors, tables, leases and taps, no disk.

`mode` decides when `on_done` comes: `immediate` (before the call returns), `late` (in order, from `run()`), or `shuffled` (from `run()`, in an
order drawn from `seed`). Watchers, taps, table changes and lost leases always wait for `run()`, as for the end of a loop turn.
`crash()` gives the port that a restarted server would have.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gantrymq.broker.port import (
    CursorInfo,
    Delivery,
    Done,
    Outcome,
    Route,
    Scanned,
    Start,
    Terms,
    TopicInfo,
    lease_name,
    refused_for_now,
    row_name,
)
from gantrymq.broker.routing.api import RouteSet
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import BODY_BYTES_CEILING
from gantrymq.model.message import Message
from gantrymq.model.queue_policy import Policy
from gantrymq.model.tables import message_rows

RECORD_OVERHEAD = 91
"""Bytes of a record beside topic, properties and body; any constant would do."""


class FakeCursor:
    """A group's place in one queue."""

    def __init__(self, handle: int, queue: str, group: str, next_offset: int) -> None:
        self.handle = handle
        self.queue = queue
        self.group = group
        self.next_offset = next_offset
        self.returned: set[int] = set()
        self.leased: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        self.armed = True
        self.on_ready: Callable[[int], None] | None = None
        self.seats: dict[int, tuple[Terms, Callable[[int, bool | None], None]]] = {}
        self.active = 0


class FakePort:
    """See the module. Attributes are open to the tests: `log`, `lights`, `tables`, `routes`, `submitted` (batches), `calls` (names)."""

    keeps_order = True

    def __init__(
        self,
        seed: int = 0,
        mode: str = "immediate",
        routes: Mapping[str, Callable[[], RouteSet]] | None = None,
    ) -> None:
        if mode not in ("immediate", "late", "shuffled"):
            raise ValueError(f"mode {mode!r}: immediate, late or shuffled")
        self.mode = mode
        self.random = random.Random(seed)
        self.kinds = dict(routes or {})
        self.sets: dict[str, RouteSet] = {kind: make() for kind, make in self.kinds.items()}
        self.log: list[Message] = []
        self.by_offset: dict[int, Message] = {}
        self.end = 0
        self.topic_queues: dict[str, int] = {}
        self.queues: dict[str, list[Message]] = {}
        self.lights: set[int] = set()
        self.light_next = 1
        self.routes: dict[str, tuple[int, Route]] = {}
        self.route_numbers: dict[int, Route] = {}
        self.number_next = 1
        self.cursors: dict[int, FakeCursor] = {}
        self.cursor_next = 1
        self.cursor_by_name: dict[tuple[str, str], int] = {}
        self.tables: dict[str, dict[str, bytes]] = {}
        self.table_watchers: dict[str, list[Callable[[str, bytes | None], None]]] = {}
        self.leases: dict[str, tuple[int, Callable[[str], None]]] = {}
        self.unanswered: Callable[[str], bool] = lambda name: False
        """Names whose broker group is away."""
        self.epoch = 0
        self.taps: dict[int, Callable[[list[tuple[Message, tuple[int, ...]]]], None]] = {}
        self.tap_next = 1
        self.volatile: dict[int, tuple[int, int]] = {}
        """Route number inside the sets -> (tap, the caller's number)."""
        self.tap_records: dict[int, list[tuple[Message, tuple[int, ...]]]] = {}
        self.pending: list[tuple[Done, Any, Any]] = []
        self.turn: list[Callable[[], None]] = []
        self.failures: dict[str, list[ErrorCode]] = {}
        self.submitted: list[list[Message]] = []
        self.refused_open = 0
        """Submits that were refused for now and whose answer is on its way."""
        self.calls: list[str] = []
        self.policies: dict[int, Policy] = {}
        self.queues_per_topic = 4
        self.auto_create = True
        self.refuse: Callable[[Message], ErrorCode | None] = lambda message: None
        self.now_ms = 1_700_000_000_000
        self.state_watchers: list[Callable[[bool], None]] = []
        self.up = True

    # The test's side.

    def fail_next(self, call: str, *codes: ErrorCode) -> None:
        """The next calls of this name end with these codes and change nothing."""
        self.failures.setdefault(call, []).extend(codes)

    @property
    def waits(self) -> bool:
        """Whether anything waits for `run()`."""
        return bool(self.pending or self.turn or self.tap_records)

    def step(self) -> bool:
        """Deliver one waiting answer, or else all callbacks of one turn; False if there was nothing."""
        if self.pending:
            index = self.random.randrange(len(self.pending)) if self.mode == "shuffled" else 0
            on_done, token, result = self.pending.pop(index)
            on_done(token, result)
            return True
        if self.turn or self.tap_records:
            turn, self.turn = self.turn, []
            taps, self.tap_records = self.tap_records, {}
            for tap, records in taps.items():
                if tap in self.taps:
                    self.taps[tap](records)
            for callback in turn:
                callback()
            return True
        return False

    def run(self, steps_max: int = 100_000) -> None:
        """Until nothing waits any more."""
        while self.step():
            steps_max -= 1
            if not steps_max:
                raise AssertionError("the port never comes to rest")

    def crash(self, seed: int = 0, mode: str | None = None) -> FakePort:
        """The port after kill -9 and restart: what was acknowledged is there, what was leased counts as delivered."""
        new = FakePort(seed, mode or self.mode, self.kinds)
        for name in (
            "log",
            "by_offset",
            "end",
            "topic_queues",
            "queues",
            "lights",
            "light_next",
            "cursor_next",
            "tables",
            "epoch",
            "now_ms",
        ):
            setattr(new, name, getattr(self, name))
        for _, route in self.routes.values():
            new._install(route)
        for cursor in self.cursors.values():
            kept = FakeCursor(cursor.handle, cursor.queue, cursor.group, cursor.next_offset)
            kept.returned = cursor.returned | set(cursor.leased)
            kept.counts = dict(cursor.counts)
            new.cursors[kept.handle] = kept
            new.cursor_by_name[(kept.queue, kept.group)] = kept.handle
        return new

    def lose(self) -> None:
        """The broker goes away: open calls end with UNAVAILABLE, leases, taps and watches are gone."""
        pending, self.pending = self.pending, []
        self.up = False
        self.turn.clear()
        self.leases.clear()
        self.table_watchers.clear()
        for tap in list(self.taps):
            self.close_tap(tap)
        for cursor in self.cursors.values():
            cursor.on_ready = None
            cursor.seats.clear()
            cursor.returned.update(cursor.leased)
            cursor.leased.clear()
        for on_done, token, _ in pending:
            on_done(token, GantryError(ErrorCode.UNAVAILABLE))
        for watcher in self.state_watchers:
            watcher(False)

    def return_(self) -> None:
        """The broker is back."""
        self.up = True
        for watcher in self.state_watchers:
            watcher(True)

    def _answer(self, on_done: Done, token: object, result: Any) -> None:
        if self.mode == "immediate":
            on_done(token, result)
        else:
            self.pending.append((on_done, token, result))

    def _failed(self, call: str, token: object, on_done: Done) -> bool:
        self.calls.append(call)
        if not self.up:
            self._answer(on_done, token, GantryError(ErrorCode.UNAVAILABLE))
            return True
        codes = self.failures.get(call)
        if codes:
            self._answer(on_done, token, GantryError(codes.pop(0)))
            return True
        return False

    # LogPort

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
        self.submitted.append(list(batch))
        if self._failed("submit", token, on_done):
            return
        if settle or rows:
            self._answer(on_done, token, self._store_piece(batch, settle, rows))
            return
        if self.refused_open:
            # As the contract says: nothing is stored that was submitted before a refusal's answer came.
            results: list[int | ErrorCode] = [ErrorCode.BUSY] * len(batch)
        else:
            results = [self._store(message) for message in batch]
        if refused_for_now(results):
            self.refused_open += 1
            self._answer(self._refused, (token, on_done), results)
        else:
            self._answer(on_done, token, results)

    def _store_piece(
        self,
        batch: Sequence[Message],
        settle: Sequence[tuple[int, int, Outcome]],
        rows: Sequence[tuple[str, str, bytes | None]],
    ) -> Any:
        """All or nothing; what is refused is found before anything is stored."""
        codes = [ErrorCode.BUSY if self.refused_open else self._why_not(message) for message in batch]
        if any(codes):
            return [code or ErrorCode.NOT_ALONE for code in codes]
        results = [self._store(message) for message in batch]
        self.settle(settle)
        for table, key, value in rows:
            self._set(table, [(key, value)])
        return results

    def _why_not(self, message: Message) -> ErrorCode | None:
        code = self.refuse(message)
        if code is None and message.demand_route and not list(self.sets[message.demand_route].match(message)):
            return ErrorCode.NO_ROUTE
        return code

    def _refused(self, entry: tuple[object, Done], results: Any) -> None:
        self.refused_open -= 1
        entry[1](entry[0], results)

    def _store(self, message: Message) -> int | ErrorCode:
        code = self.refuse(message)
        if code is not None:
            return code
        if message.topic not in self.topic_queues:
            if not self.auto_create:
                return ErrorCode.TOPIC_NOT_FOUND
            self.topic_queues[message.topic] = self.queues_per_topic
        matched: list[tuple[str, int]] = []
        for kind, routes in self.sets.items():
            matched.extend([(kind, number) for number in dict.fromkeys(routes.match(message))])
        if message.demand_route and all(kind != message.demand_route for kind, _ in matched):
            return ErrorCode.NO_ROUTE
        if message.queue_id < 0:
            key = message.sharding_key or message.tag
            message.queue_id = names.java_hash(key) % self.topic_queues[message.topic] if key else 0
        queue = self.queues.setdefault(f"{message.topic}/{message.queue_id}", [])
        message.queue_offset = len(queue)
        message.physical_offset = self.end
        message.size = RECORD_OVERHEAD + len(message.topic) + len(message.properties) + len(message.body)
        message.store_ms = self.now_ms
        message.born_ms = message.born_ms or self.now_ms
        self.end += message.size
        self.log.append(message)
        self.by_offset[message.physical_offset] = message
        queue.append(message)
        row = message_rows.row_of(message.properties, message.body) if message.lmq else None
        if row is not None:
            self._set(message_rows.table_of_message(message), [row])
        self._wake(f"{message.topic}/{message.queue_id}")
        self._dispatch(message, matched)
        return message.queue_offset

    def _dispatch(self, message: Message, matched: list[tuple[str, int]]) -> None:
        lights: dict[int, None] = {}
        taps: dict[int, list[int]] = {}
        for _, number in matched:
            if number in self.volatile:
                tap, own = self.volatile[number]
                taps.setdefault(tap, []).append(own)
            elif number in self.route_numbers and self.route_numbers[number].light:
                lights[self.route_numbers[number].light] = None
        for light in lights:
            if light in self.lights:
                self.queues.setdefault(f"~{light}", []).append(message)
                self._wake(f"~{light}")
        for tap, numbers in taps.items():
            self.tap_records.setdefault(tap, []).append((message, tuple(numbers)))

    def body_bytes_max(self) -> int:
        return BODY_BYTES_CEILING

    def ensure_topic(self, name: str, create: int, token: object, on_done: Done, *, near: str = "") -> None:
        if self._failed("ensure_topic", token, on_done):
            return
        if name not in self.topic_queues:
            if not create or not self.auto_create:
                self._answer(on_done, token, GantryError(ErrorCode.TOPIC_NOT_FOUND, f"topic {name!r} does not exist"))
                return
            self.topic_queues[name] = self.queues_per_topic
        count = self.topic_queues[name]
        self._answer(on_done, token, TopicInfo(name, count, count))

    def topics(self, token: object, on_done: Done) -> None:
        if self._failed("topics", token, on_done):
            return
        found = [TopicInfo(name, n, n) for name, n in self.topic_queues.items() if not names.is_system_topic(name)]
        self._answer(on_done, token, found)

    def read(self, refs: Sequence[tuple[int, int]], token: object, on_done: Done) -> None:
        if self._failed("read", token, on_done):
            return
        self._answer(on_done, token, [self.by_offset.get(offset) for offset, _ in refs])

    # RoutePort

    def _install(self, route: Route) -> None:
        if route.route_id in self.routes:
            self._uninstall(route.route_id)
        number = self.number_next
        self.number_next += 1
        self.sets[route.kind].add(number, route.topic, route.expression)
        self.routes[route.route_id] = (number, route)
        self.route_numbers[number] = route

    def _uninstall(self, route_id: str) -> None:
        number, route = self.routes.pop(route_id)
        self.route_numbers.pop(number)
        self.sets[route.kind].remove(number)

    def add_route(self, route: Route, token: object, on_done: Done) -> None:
        if self._failed("add_route", token, on_done):
            return
        try:
            self._install(route)
        except GantryError as error:
            self._answer(on_done, token, error)
            return
        self._answer(on_done, token, None)

    def remove_routes(self, route_ids: Sequence[str], token: object, on_done: Done) -> None:
        if self._failed("remove_routes", token, on_done):
            return
        known = [route_id for route_id in dict.fromkeys(route_ids) if route_id in self.routes]
        for route_id in known:
            self._uninstall(route_id)
        self._answer(on_done, token, len(known))

    def open_tap(
        self,
        on_records: Callable[[list[tuple[Message, tuple[int, ...]]]], None],
        token: object,
        on_done: Done,
    ) -> None:
        if self._failed("open_tap", token, on_done):
            return
        tap = self.tap_next
        self.tap_next += 1
        self.taps[tap] = on_records
        self._answer(on_done, token, tap)

    def close_tap(self, tap: int) -> None:
        self.taps.pop(tap, None)
        for number, (owner, own) in list(self.volatile.items()):
            if owner == tap:
                self.remove_volatile(tap, [own])
                self.volatile.pop(number, None)

    def add_volatile(
        self,
        tap: int,
        number: int,
        kind: str,
        topic: str | None,
        expression: str,
        token: object,
        on_done: Done,
    ) -> None:
        if self._failed("add_volatile", token, on_done):
            return
        inner = self.number_next
        self.number_next += 1
        try:
            self.sets[kind].add(inner, topic, expression)
        except GantryError as error:
            self._answer(on_done, token, error)
            return
        self.volatile[inner] = (tap, number)
        self._answer(on_done, token, None)

    def remove_volatile(self, tap: int, numbers: Sequence[int]) -> None:
        for inner, owner in list(self.volatile.items()):
            if owner[0] == tap and owner[1] in numbers:
                del self.volatile[inner]
                for routes in self.sets.values():
                    routes.remove(inner)

    # QueuePort

    def _wake(self, queue: str) -> None:
        for cursor in self.cursors.values():
            if cursor.queue == queue:
                self._maybe_ready(cursor)

    def _ready(self, cursor: FakeCursor) -> bool:
        return bool(cursor.returned) or cursor.next_offset < len(self.queues.get(cursor.queue, ()))

    def _maybe_ready(self, cursor: FakeCursor) -> None:
        if cursor.armed and cursor.on_ready is not None and self._ready(cursor):
            cursor.armed = False
            self.turn.append(lambda: self._call_ready(cursor))

    def _call_ready(self, cursor: FakeCursor) -> None:
        if cursor.on_ready is not None and cursor.handle in self.cursors:
            cursor.on_ready(cursor.handle)

    def create_light(self, token: object, on_done: Done, *, name: str = "") -> None:
        if self._failed("create_light", token, on_done):
            return
        light = self.light_next
        self.light_next += 1
        self.lights.add(light)
        self._answer(on_done, token, light)

    def delete_light(self, light: int, token: object, on_done: Done) -> None:
        if self._failed("delete_light", token, on_done):
            return
        self.lights.discard(light)
        self.queues.pop(f"~{light}", None)
        for route_id, (_, route) in list(self.routes.items()):
            if route.light == light:
                self._uninstall(route_id)
        for handle, cursor in list(self.cursors.items()):
            if cursor.queue == f"~{light}":
                del self.cursors[handle]
                del self.cursor_by_name[(cursor.queue, cursor.group)]
        self._answer(on_done, token, None)

    def open_cursor(self, queue: str, group: str, start: Start, token: object, on_done: Done) -> None:
        if self._failed("open_cursor", token, on_done):
            return
        if queue.startswith("~") and int(queue[1:]) not in self.lights:
            self._answer(on_done, token, GantryError(ErrorCode.QUEUE_NOT_FOUND, f"queue {queue} does not exist"))
            return
        handle = self.cursor_by_name.get((queue, group), 0)
        if not handle and start.kind == "find":
            self._answer(on_done, token, GantryError(ErrorCode.NOT_FOUND, f"group {group} has no cursor in {queue}"))
            return
        if not handle:
            entries = self.queues.get(queue, [])
            begin = len(entries)
            if start.kind == "earliest":
                begin = 0
            elif start.kind == "time":
                begin = sum(1 for m in entries if m.store_ms < start.at_ms)
            handle = self.cursor_next
            self.cursor_next += 1
            self.cursors[handle] = FakeCursor(handle, queue, group, begin)
            self.cursor_by_name[(queue, group)] = handle
        self._answer(on_done, token, self._info(self.cursors[handle]))

    def _info(self, cursor: FakeCursor) -> CursorInfo:
        ready = len(cursor.returned) + len(self.queues.get(cursor.queue, ())) - cursor.next_offset
        return CursorInfo(cursor.handle, ready, len(cursor.leased), cursor.next_offset, len(cursor.seats))

    def take_seat(
        self, cursor: int, terms: Terms, on_turn: Callable[[int, bool | None], None], token: object, on_done: Done
    ) -> None:
        if self._failed("take_seat", token, on_done):
            return
        place = self.cursors.get(cursor)
        if place is None:
            self._answer(on_done, token, GantryError(ErrorCode.NOT_FOUND, f"cursor {cursor} does not exist"))
            return
        alone = terms.exclusive or any(held.exclusive for held, _ in place.seats.values())
        if (terms.single and terms.exclusive) or (place.seats and alone):
            self._answer(on_done, token, GantryError(ErrorCode.LEASE_HELD, "in exclusive use"))
            return
        self.epoch += 1
        place.seats[self.epoch] = (terms, on_turn)
        if terms.single and not place.active:
            place.active = self.epoch
        self._answer(on_done, token, (self.epoch, not terms.single or place.active == self.epoch))

    def leave_seat(self, cursor: int, seat: int, token: object, on_done: Done) -> None:
        if self._failed("leave_seat", token, on_done):
            return
        place = self.cursors.get(cursor)
        if place is None:
            self._answer(on_done, token, 0)
            return
        place.seats.pop(seat, None)
        if place.active == seat:
            place.active = next(iter(place.seats), 0)
            if place.active:
                self.turn.append(lambda: place.seats[place.active][1](place.active, True))
        self._answer(on_done, token, len(place.seats))

    def rank(self, cursor: int, rank: int) -> None:
        """All here are one port."""

    def set_policy(self, cursor: int, policy: Policy, token: object, on_done: Done) -> None:
        """Kept in `policies`; nothing here keeps it."""
        if self._failed("set_policy", token, on_done):
            return
        self.policies[cursor] = policy
        self._answer(on_done, token, None)

    def delete_cursor(self, cursor: int, token: object, on_done: Done) -> None:
        if self._failed("delete_cursor", token, on_done):
            return
        gone = self.cursors.pop(cursor, None)
        if gone is not None:
            del self.cursor_by_name[(gone.queue, gone.group)]
        self._answer(on_done, token, None)

    def acquire(self, cursor: int, holder: int, count_max: int, bytes_max: int, token: object, on_done: Done) -> None:
        if self._failed("acquire", token, on_done):
            return
        place = self.cursors.get(cursor)
        if place is None:
            self._answer(on_done, token, GantryError(ErrorCode.NOT_FOUND, f"cursor {cursor} does not exist"))
            return
        entries = self.queues.get(place.queue, [])
        taken: list[Delivery] = []
        size = 0
        while len(taken) < count_max and self._ready(place):
            offset = min(place.returned) if place.returned else place.next_offset
            message = entries[offset]
            if taken and size + message.size > bytes_max:
                break
            size += message.size
            if place.returned:
                place.returned.discard(offset)
            else:
                place.next_offset += 1
            place.leased[offset] = holder
            place.counts[offset] = place.counts.get(offset, 0) + 1
            taken.append(Delivery(message, offset, place.counts[offset]))
        if len(taken) < count_max:
            place.armed = True
            self._maybe_ready(place)
        self._answer(on_done, token, taken)

    def scan(self, cursor: int, offset: int, count_max: int, bytes_max: int, token: object, on_done: Done) -> None:
        if self._failed("scan", token, on_done):
            return
        place = self.cursors.get(cursor)
        if place is None:
            self._answer(on_done, token, GantryError(ErrorCode.NOT_FOUND, f"cursor {cursor} does not exist"))
            return
        entries = self.queues.get(place.queue, [])
        found: list[Delivery] = []
        size = 0
        for at in range(offset, min(offset + count_max, len(entries))):
            size += entries[at].size
            if found and size > bytes_max:
                break
            found.append(Delivery(entries[at], at, 1))
        at_end = offset + len(found) >= len(entries)
        place.armed = place.armed or at_end
        self._answer(on_done, token, Scanned(found, offset + len(found), at_end))

    def seek(self, cursor: int, start: Start, token: object, on_done: Done) -> None:
        if self._failed("seek", token, on_done):
            return
        entries = self.queues.get(self.cursors[cursor].queue, [])
        places = {"earliest": 0, "end": len(entries)}
        by_time = sum(1 for message in entries if message.store_ms < start.at_ms)
        self._answer(on_done, token, places.get(start.kind, by_time))

    def settle(self, items: Sequence[tuple[int, int, Outcome]]) -> None:
        self.calls.append("settle")
        for handle, offset, outcome in items:
            place = self.cursors.get(handle)
            if place is None or offset not in place.leased:
                continue
            del place.leased[offset]
            if outcome in (Outcome.ACK, Outcome.DROP):
                place.counts.pop(offset, None)
                continue
            if outcome == Outcome.RELEASE:
                place.counts[offset] -= 1
            place.returned.add(offset)
            self._maybe_ready(place)

    def release(self, holder: int) -> None:
        self.calls.append("release")
        for place in self.cursors.values():
            for offset in [o for o, h in place.leased.items() if h == holder]:
                del place.leased[offset]
                place.returned.add(offset)
            self._maybe_ready(place)

    def watch(self, cursor: int, on_ready: Callable[[int], None] | None) -> None:
        place = self.cursors.get(cursor)
        if place is not None:
            place.on_ready = on_ready
            place.armed = True
            self._maybe_ready(place)

    def stats(self, cursors: Sequence[int], token: object, on_done: Done) -> None:
        if self._failed("stats", token, on_done):
            return
        self._answer(on_done, token, [self._info(self.cursors[c]) if c in self.cursors else None for c in cursors])

    def details(self, cursors: Sequence[int], token: object, on_done: Done) -> None:
        """Only commands ask; this has none."""
        self._answer(on_done, token, [None] * len(cursors))

    def catch_up(self, cursor: int, token: object, on_done: Done) -> None:
        on_done(token, False)

    def purge(self, cursor: int, token: object, on_done: Done) -> None:
        if self._failed("purge", token, on_done):
            return
        place = self.cursors[cursor]
        count = self._info(place).ready
        place.returned.clear()
        place.next_offset = len(self.queues.get(place.queue, ()))
        self._answer(on_done, token, count)

    # TablePort

    def put(
        self, table: str, items: Sequence[tuple[str, bytes | None]], token: object, on_done: Done,
        *, deputy: bool = False,
    ) -> None:  # fmt: skip
        if self._failed("put", token, on_done):
            return
        if not deputy and any(self.unanswered(row_name(table, key)) for key, _ in items):
            self._answer(on_done, token, GantryError(ErrorCode.UNAVAILABLE, "the broker group is not connected"))
            return
        self._set(table, items)
        self._answer(on_done, token, None)

    def _set(self, table: str, items: Sequence[tuple[str, bytes | None]]) -> None:
        rows = self.tables.setdefault(table, {})
        for key, value in items:
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
            for watcher in self.table_watchers.get(table, []):
                self.turn.append(lambda w=watcher, k=key, v=value: w(k, v))  # type: ignore[misc]

    def put_if(
        self, table: str, items: Sequence[tuple[str, bytes | None, bytes | None]], token: object, on_done: Done
    ) -> None:
        if self._failed("put_if", token, on_done):
            return
        rows = self.tables.setdefault(table, {})
        fits = [rows.get(key) == expected for key, expected, _ in items]
        self._set(table, [(key, value) for (key, _, value), fit in zip(items, fits, strict=True) if fit])
        self._answer(on_done, token, fits)

    def put_together(
        self,
        table: str,
        key: str,
        expected: bytes | None,
        items: Sequence[tuple[str, bytes | None]],
        token: object,
        on_done: Done,
    ) -> None:
        if self._failed("put_together", token, on_done):
            return
        fits = self.tables.setdefault(table, {}).get(key) == expected
        if fits:
            self._set(table, items)
        self._answer(on_done, token, fits)

    def watch_table(
        self, table: str, on_change: Callable[[str, bytes | None], None] | None, token: object, on_done: Done
    ) -> None:
        if self._failed("watch_table", token, on_done):
            return
        if on_change is None:
            self.table_watchers.pop(table, None)
        elif on_change not in self.table_watchers.setdefault(table, []):
            self.table_watchers[table].append(on_change)
        self._answer(on_done, token, dict(self.tables.get(table, {})))

    # LeasePort

    def take_lease(
        self, name: str, force: bool, on_lost: Callable[[str], None], token: object, on_done: Done,
        *, deputy: bool = False,
    ) -> None:  # fmt: skip
        if self._failed("take_lease", token, on_done):
            return
        if not deputy and self.unanswered(lease_name(name)):
            self._answer(on_done, token, GantryError(ErrorCode.UNAVAILABLE, "the broker group is not connected"))
            return
        held = self.leases.get(name)
        if held is not None and not force:
            self._answer(on_done, token, GantryError(ErrorCode.LEASE_HELD, f"{name} is held by another connection"))
            return
        self.epoch += 1
        epoch = self.epoch
        self.leases[name] = (epoch, on_lost)
        if held is None:
            self._answer(on_done, token, epoch)
            return
        lost = held[1]

        def hand_over() -> None:
            lost(name)
            self._answer(on_done, token, epoch)

        self.turn.append(hand_over)

    def is_free(self, name: str, token: object, on_done: Done) -> None:
        if not self._failed("is_free", token, on_done):
            self._answer(on_done, token, name not in self.leases)

    def drop_lease(self, name: str, epoch: int) -> None:
        held = self.leases.get(name)
        if held is not None and held[0] == epoch:
            del self.leases[name]

    # State

    def answers_for(self, name: str) -> bool:
        return not self.unanswered(name)

    def watch_state(self, on_state: Callable[[bool], None]) -> None:
        self.state_watchers.append(on_state)
        on_state(self.up)
