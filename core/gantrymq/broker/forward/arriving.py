"""Light queues that come from another group: a copy here that nobody knows, until one piece of the log makes it the queue.

That piece has their consumers' places, their id in the cluster and what leads to them, and is on the disk before any other group hears of it. A start
that finds it goes on from there; a copy without it is deleted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.consuming.acks import RECORD_BYTES_MAX, AckKind, decode, encode_state
from gantrymq.broker.forward.described import Described, Offsets, Place
from gantrymq.broker.forward.marks import split
from gantrymq.broker.forward.traces import Came
from gantrymq.broker.port import Delivery, Route
from gantrymq.broker.queues.engine import RETRY_MS
from gantrymq.broker.routing.router import route_from_bytes, route_to_bytes
from gantrymq.broker.tables.forward_table import COMING, CONSUMED, TABLE
from gantrymq.broker.tables.group_tables import MOVED_TABLE, Moved, moved_from, moved_to
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.queue_policy import TABLE as POLICIES
from gantrymq.model.queue_policy import policy_from
from gantrymq.store.log.forwarded import Forwarded

if TYPE_CHECKING:
    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.broker.consuming.window import AckWindow
    from gantrymq.broker.forward.receiving import Receiving
    from gantrymq.broker.forward.sending import Sending
    from gantrymq.broker.forward.traces import Traces
    from gantrymq.broker.parts import Context
    from gantrymq.broker.port import Done
    from gantrymq.broker.queues.engine import QueueEngine
    from gantrymq.broker.tables.tables import Rows

log = logging.getLogger(__name__)

COPYING: Final = "copying"
"""Value of a row `coming/ID` before the piece that decides; then it is JSON: the routes."""


Take = Callable[[str, Sequence[tuple[int, int]], Any, "Done"], None]


class Arrival:
    """One queue on its way here. `name`: its id in the cluster; `light`: its number here; `move`: which attempt of
    this start it is."""

    __slots__ = ("following", "light", "move", "name", "offsets", "rows", "source", "source_light")

    def __init__(self, name: int, source: str, source_light: int, light: int, move: str) -> None:
        self.name = name
        self.source = source
        self.source_light = source_light
        self.light = light
        self.move = move
        self.offsets = Offsets()
        self.following = -1
        """Offset there from which on it is to be read; negative: from the first that somebody is not done with."""
        self.rows: list[tuple[Cursor, bytes]] = []
        """Cursors with a policy."""


class Arriving:
    """See the module."""

    def __init__(
        self, broker: Context, queues: QueueEngine, sending: Sending, receiving: Receiving, traces: Traces
    ) -> None:
        self._broker = broker
        self._traces = traces
        self._queues = queues
        self._sending = sending
        self._receiving = receiving
        self._arrivals: dict[int, Arrival] = {}
        self._names: dict[int, int] = {}
        """Ids of the queues that have come here, by their number here."""
        self._deciding: set[int] = set()
        self._asked: list[tuple[Sequence[tuple[int, int]], Any, Done]] = []
        """Who wants to know whether queues came, while that is on its way to the disk."""
        self._new_routes: set[str] = set()
        self._take: Take = _no_cluster

    def open(self) -> None:
        """As Part.open. Before the queue engine."""
        for key, value in self._broker.tables.rows(MOVED_TABLE).items():
            self._moved_row(key, value)
        self._broker.tables.watch(MOVED_TABLE, self._moved_row)
        self._broker.tables.watch("light", self._light_row)
        for key, value in dict(self._broker.tables.rows(TABLE)).items():
            if not key.startswith(COMING):
                continue
            found = json.loads(value)
            if found[0] == COPYING:
                self._broker.drop_light(found[1], [(TABLE, key, None)])
                continue
            routes = [route_from_bytes(route_id, data.encode()) for route_id, data in found[2]]
            for route in routes:
                self._broker.router.add(route)
                self._sending.moved_here(route)
            self._broker.put_rows([*_route_rows(routes), (TABLE, key, None)], together=True)

    def close(self) -> None:
        """As Part.close."""

    def _moved_row(self, key: str, value: bytes | None) -> None:
        if light := moved_from(value).light:
            self._names[light] = int(key)

    def _light_row(self, key: str, value: bytes | None) -> None:
        """A queue that has come here is gone, if it has not gone on: it has ended."""
        name = self._names.pop(int(key), 0) if value is None and key.isdecimal() else 0
        if name and self._moved(name).light == int(key):
            self._traces.ended(name)

    def find_ended(self) -> None:
        """Behind the start: a queue had ended, and a crash came before that was noted."""
        for light in [light for light in self._names if self._broker.tables.kept("light", str(light)) is None]:
            self._light_row(str(light), None)

    def taken_by(self, take: Take) -> None:
        """Who takes queues of other groups (cluster/forward/moving.py)."""
        self._take = take

    def take(self, source: str, queues: Sequence[tuple[int, int]], token: Any, on_done: Done) -> None:
        """See `Mover.take`. Raises NOT_SUPPORTED without a cluster."""
        self._take(source, queues, token, on_done)

    def check(self, route_ids: Sequence[str]) -> None:
        """Raise NOT_OWNER for routes that are on their way here."""
        if self._new_routes and not self._new_routes.isdisjoint(route_ids):
            raise GantryError(ErrorCode.NOT_OWNER, "a queue is on its way to this broker with its routes")

    # The copy.

    def begin(self, name: int, source: str, source_light: int, move: str, token: Any, on_done: Done) -> None:
        """Answers with an `Arrival`, or an error."""
        if name in self._arrivals or self._moved(name).light:
            on_done(token, GantryError(ErrorCode.BUSY, f"queue ~{name} is here, or on its way here"))
            return
        light, rows = self._broker.new_light()
        arrival = self._arrivals[name] = Arrival(name, source, source_light, light, move)
        row = (TABLE, f"{COMING}{name}", json.dumps([COPYING, light]).encode())

        def stored(token: Any, result: Any) -> None:
            if isinstance(result, GantryError):
                self._arrivals.pop(name, None)
            on_done(token, result if isinstance(result, GantryError) else arrival)

        self._broker.put_rows([*rows, row], token, stored, together=True)

    def copy(self, arrival: Arrival, found: Sequence[Delivery], token: Any, on_done: Done) -> None:
        """Entries behind those that are here. Answers None when they are stored, or an error."""
        batch = []
        for delivery in found:
            properties, _ = split(delivery.message.properties)
            made = Forwarded(delivery.message, properties, (arrival.light,))
            if len(made.body) + len(properties) > self._broker.store.record_bytes_max:
                on_done(
                    token,
                    GantryError(ErrorCode.NOT_SUPPORTED, f"a record of {len(made.body)} bytes fits no record here"),
                )
                return
            batch.append(made)

        def stored(token: Any, result: Any) -> None:
            failed = result if isinstance(result, GantryError) else None
            if failed is None and any(isinstance(code, ErrorCode) for code in result):
                failed = GantryError(next(code for code in result if isinstance(code, ErrorCode)))
            if failed is None:
                for delivery in found:
                    arrival.offsets.add(delivery.offset)
            on_done(token, failed)

        if batch:
            self._broker.submit(batch, token, stored, 0, whole=True)
        else:
            on_done(token, None)

    def give_up(self, arrivals: Sequence[Arrival]) -> None:
        """They stay where they were."""
        for arrival in arrivals:
            if self._arrivals.pop(arrival.name, None) is not None:
                self._drop(arrival)
        self._answer()

    def _drop(self, arrival: Arrival) -> None:
        self._broker.drop_light(arrival.light, [(TABLE, f"{COMING}{arrival.name}", None)])

    # The decision.

    def decide(self, arrivals: Sequence[Arrival], described: Sequence[Described], token: Any, on_done: Done) -> None:
        """All of them are here: they are this group's from now on. Answers None when that is on the disk and every source knows it; an error: they
        stay where they were, if neither `has_all` nor `is_unsure`."""
        if any(self._arrivals.get(arrival.name) is not arrival for arrival in arrivals):
            on_done(token, GantryError(ErrorCode.BUSY, "the group that has the queues asked for them back"))
            return
        rows: Rows = []
        routes: list[Route] = []
        for arrival, each in zip(arrivals, described, strict=True):
            leading = [_moved(route_id, value, arrival.light) for route_id, value in each.routes]
            for place in each.places:
                rows += self._stand(arrival, place)
            if each.row is not None:
                rows.append(each.row)
            texts = [(route.route_id, route_to_bytes(route).decode()) for route in leading]
            rows.append((TABLE, f"{COMING}{arrival.name}", json.dumps(["in", arrival.light, texts]).encode()))
            rows.append((MOVED_TABLE, str(arrival.name), moved_to(arrival.light, each.moves + 1)))
            if each.consumed:
                rows.append((TABLE, f"{CONSUMED}{arrival.light}", b"1"))
            came = Came(arrival.source_light, arrival.move, each.moves + 1)
            rows.append(self._traces.came(arrival.source, arrival.name, came))
            routes += leading
        self._deciding.update([arrival.name for arrival in arrivals])
        self._receiving.deciding += 1
        self._new_routes = {route.route_id for route in routes}
        for route in routes:  # from now on as well for what others have stored without knowing what this group wants
            self._receiving.changing(route.route_id, True)
            self._broker.router.add(route)
            self._sending.moved_here(route)
        self._broker.put_rows(
            rows, None, partial(self._stored, arrivals, described, routes, token, on_done), together=True
        )

    def _stand(self, arrival: Arrival, place: Place) -> Rows:
        """A cursor where the other one stood."""
        cursors = self._broker.cursors
        cursor, rows = cursors.create(f"~{arrival.light}", place.group, 0)
        _restore(cursor.window, place, arrival.offsets)
        cursor.recovered_below = cursor.window.marked
        part = b""
        for entry in encode_state(cursor.id, cursor.window):
            if part and len(part) + len(entry) > RECORD_BYTES_MAX:
                self._broker.append_ack(part)
                part = b""
            part += entry
        if part:
            self._broker.append_ack(part)
        found: Rows = [("cursor", *row) for row in rows]
        if place.policy is not None:
            found.append((POLICIES, str(cursor.id), place.policy))
            arrival.rows.append((cursor, place.policy))
        return found

    def _stored(
        self, arrivals: Sequence[Arrival], described: Sequence[Described], routes: list[Route],
        token: Any, on_done: Done, _none: Any, result: Any,
    ) -> None:  # fmt: skip
        if isinstance(result, GantryError):
            for arrival, each in zip(arrivals, described, strict=True):
                for route_id, value in each.routes:
                    self._broker.router.remove(route_id)
                    self._sending.moved_back(arrival.source, route_id, value)
            self._end(arrivals)
            for arrival in arrivals:
                self._traces.settled(arrival.source, [arrival.name])
                self._drop(arrival)
            on_done(token, result)
            return
        flushed = partial(self._flushed, arrivals, routes, token, on_done)
        self._broker.gate.park(self._broker.store.written_position, flushed, None, None, strict=True)
        self._broker.request_flush()

    def _flushed(
        self, arrivals: Sequence[Arrival], routes: list[Route], token: Any, on_done: Done, _none: Any, result: Any
    ) -> None:
        """Nothing takes it back any more; the others may hear of it."""
        if isinstance(result, GantryError):  # the disk is broken: it stays undecided until a start
            on_done(token, result)
            return
        for arrival in arrivals:
            for cursor, policy in arrival.rows:
                self._queues.adopt(cursor, policy_from(policy))
        rows: Rows = [*_route_rows(routes), *[(TABLE, f"{COMING}{arrival.name}", None) for arrival in arrivals]]
        known = self._receiving.when_known(partial(_none_or_error, on_done), True)

        def told(token: Any, result: Any) -> None:
            if isinstance(result, GantryError) and result.code is not ErrorCode.STORE_FAILED:
                # a full disk gets the rows again by itself; until then nobody gets a new lease
                wheel = self._broker.wheel
                wheel.call_at(wheel.now_ms() + RETRY_MS, lambda now_ms: self._broker.when_stored(token, told))
            elif isinstance(result, GantryError):
                on_done(token, result)
            else:
                self._end(arrivals)
                known(token, result)

        self._broker.put_rows(rows, together=True)
        self._broker.when_stored(token, told)

    def _end(self, arrivals: Sequence[Arrival]) -> None:
        self._receiving.decided()
        self._new_routes = set()
        for arrival in arrivals:
            self._arrivals.pop(arrival.name, None)
            self._deciding.discard(arrival.name)
        self._answer()

    def unsettled(self, source: str) -> list[tuple[int, Came]]:
        """Queues that have come from there, and of which it has not said that its part is gone."""
        return [each for each in self._traces.unsettled(source) if each[0] not in self._deciding]

    # Who asks.

    def is_unsure(self, names: Sequence[int]) -> bool:
        """Whether they came only a start of this group finds out: its disk failed when that was written."""
        return not self._deciding.isdisjoint(names)

    def has_all(self, names: Sequence[int]) -> bool:
        """These queues of other groups are here."""
        return all(self._moved(name).light for name in names)

    def _moved(self, name: int) -> Moved:
        return moved_from(self._broker.tables.rows(MOVED_TABLE).get(str(name)))

    def _moves_of(self, name: int) -> int:
        """...also where it has ended since, as long as its source does not know that it came."""
        return max(self._moved(name).moves, self._traces.moves_of(name))

    def came(self, queues: Sequence[tuple[int, int]], token: Any, on_done: Done) -> None:
        """Of queues that go here (id, how often they had moved before): whether they came, each. What is still on its way does not come any more; what
        is being decided is waited for."""
        for name, _ in queues:
            arrival = self._arrivals.get(name)
            if arrival is not None and name not in self._deciding:
                self.give_up([arrival])
        self._asked.append((queues, token, on_done))
        self._answer()

    def _answer(self) -> None:
        waiting, self._asked = self._asked, []
        for queues, token, on_done in waiting:
            if any(name in self._deciding for name, _ in queues):
                self._asked.append((queues, token, on_done))
                continue
            on_done(token, [self._moves_of(name) > before for name, before in queues])


def _no_cluster(source: str, queues: Sequence[tuple[int, int]], token: Any, on_done: Done) -> None:
    raise GantryError(
        ErrorCode.NOT_SUPPORTED, "this broker has no broker.metadata_group: there is no other one to take queues from"
    )


def _restore(window: AckWindow, place: Place, offsets: Offsets) -> None:
    """What was done or counted there is so here."""
    for kind, _, numbers in decode(place.state):
        if kind is AckKind.RANGE:
            first, last = offsets.up_to(numbers[0]), offsets.up_to(numbers[1] + 1) - 1
            if first <= last:
                window.done_range(first, last)
        elif kind is AckKind.LIST:
            for number in numbers:
                if offsets.has(number):
                    window.done(offsets.up_to(number))
        elif kind is AckKind.COUNT and offsets.has(numbers[0]):
            window.count(offsets.up_to(numbers[0]), numbers[1])
    window.recover()
    window.marked = offsets.up_to(place.delivered)


def _moved(route_id: str, value: bytes, light: int) -> Route:
    route = route_from_bytes(route_id, value)
    return Route(route_id, route.kind, route.topic, route.expression, light, route.moves + 1)


def _route_rows(routes: Sequence[Route]) -> Rows:
    return [("route", route.route_id, route_to_bytes(route)) for route in routes]


def _none_or_error(on_done: Done, token: Any, result: Any) -> None:
    on_done(token, result if isinstance(result, GantryError) else None)
