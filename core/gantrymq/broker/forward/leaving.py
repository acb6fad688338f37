"""Light queues that go to another group: frozen here, read there, and gone when they have come there.

From the freeze on nobody gets anything of them, and nothing in them changes but what still enters; that is on the disk before the other group counts on
it. Only the other group knows whether they came: until it says so they stay frozen, also through a start of this one (`cluster/forward/moving.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gantrymq.broker.consuming.acks import encode_state
from gantrymq.broker.forward.described import Described, Place, described_to
from gantrymq.broker.port import Delivery, Scanned
from gantrymq.broker.routing.router import route_from_bytes, route_to_bytes
from gantrymq.broker.tables.forward_table import CONSUMED, LEAVING, TABLE
from gantrymq.broker.tables.group_tables import MOVED_TABLE, moved_from, moved_to
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.queue_policy import TABLE as POLICIES
from gantrymq.model.queue_policy import policy_from

if TYPE_CHECKING:
    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.broker.forward.deserted import Deserted
    from gantrymq.broker.forward.sending import Sending
    from gantrymq.broker.parts import Context
    from gantrymq.broker.port import Done
    from gantrymq.broker.queues.engine import QueueEngine
    from gantrymq.broker.tables.tables import Rows

READ_AT_ONCE: Final = 1_000
LEAVING_MAX: Final = 1_000
"""Queues that are frozen at a time."""


class Leave(NamedTuple):
    """`name`: its id in the cluster. `move`: which attempt it is; empty: one of before this start. `routes`: ids of those that led to it."""

    name: int
    target: str
    move: str
    routes: tuple[str, ...]


class Leaving:
    """See the module."""

    def __init__(self, broker: Context, queues: QueueEngine, sending: Sending, deserted: Deserted) -> None:
        self._broker = broker
        self._deserted = deserted
        self._queues = queues
        self._sending = sending
        self.frozen: dict[int, Leave] = {}
        """By light queue."""

    def open(self) -> None:
        """As Part.open. Behind the queue engine."""
        for key, value in self._broker.tables.rows(TABLE).items():
            if key.startswith(LEAVING):
                light, (name, target) = int(key[len(LEAVING) :]), json.loads(value)
                self._freeze(light, name, target, "")

    def close(self) -> None:
        """As Part.close."""

    def check(self, light: int) -> None:
        """Raise NOT_OWNER for a queue that is on its way."""
        if light in self.frozen:
            raise GantryError(ErrorCode.NOT_OWNER, f"queue ~{light} is on its way to {self.frozen[light].target}")

    def check_routes(self, route_ids: Sequence[str]) -> None:
        """As `check` of the queues that these routes lead to."""
        if self.frozen:
            leading = {route_id for leave in self.frozen.values() for route_id in leave.routes}
            if not leading.isdisjoint(route_ids):
                raise GantryError(ErrorCode.NOT_OWNER, "a queue is on its way to another broker group with its routes")

    def begin(self, light: int) -> int:
        """From which offset on somebody is not done with it. Raises QUEUE_NOT_FOUND; NOT_SUPPORTED for what stays."""
        if str(light) not in self._broker.tables.rows("light") or light in self._sending.lights():
            raise GantryError(ErrorCode.QUEUE_NOT_FOUND, f"light queue {light} does not exist (any more)")
        cursors = self._broker.cursors
        floors = []
        for cursor in cursors.of_queue(f"~{light}"):
            policy = self._broker.tables.rows(POLICIES).get(str(cursor.id))
            if policy is not None and policy_from(policy).stream:
                raise GantryError(
                    ErrorCode.NOT_SUPPORTED, f"{self._name(light)} is a stream: its readers keep offsets of it"
                )
            if cursors.quarantined.offsets(cursor.id):
                raise GantryError(ErrorCode.NOT_SUPPORTED, f"{self._name(light)} has records that the disk cannot read")
            floors.append(cursor.window.floor)
        return min(floors, default=self._broker.store.light_visible_end(light))

    def _name(self, light: int) -> str:
        return f"queue {self._queues.name_of(f'~{light}')}"

    def read(self, light: int, offset: int, bytes_max: int) -> Scanned:
        """Entries from `offset` on (negative: from the first that somebody is not done with), one at least; of `bytes_max` 0 none, and `following` is
        the queue's end. What is gone is passed over. May raise `Cold`; NOT_SUPPORTED for a record that cannot be read."""
        first = max(offset, self.begin(light))
        cursors, store = self._broker.cursors, self._broker.store
        end = store.light_visible_end(light)
        if not bytes_max:
            return Scanned([], end, first >= end)
        found = cursors.of_queue(f"~{light}")
        if not found or first >= end:
            return Scanned([], max(first, end), True)
        units = cursors.units(found[0], first, min(READ_AT_ONCE, end - first))
        del units[cursors.within(units, bytes_max) :]
        offsets = range(first, first + len(units))
        records = store.get_many([(unit[0], unit[1]) for unit in units], [])
        if cursors.quarantined.damaged(found[0], offsets, units, records):
            raise GantryError(ErrorCode.NOT_SUPPORTED, f"{self._name(light)} has records that the disk cannot read")
        deliveries = [
            Delivery(record, at, 1) for at, record in zip(offsets, records, strict=True) if record is not None
        ]
        return Scanned(deliveries, offsets.stop, offsets.stop >= end)

    # The freeze, and its end.

    def freeze(self, queues: Sequence[tuple[int, int]], target: str, move: str, token: Any, on_done: Done) -> None:
        """Of light queues (number here, id in the cluster) nobody gets anything any more. Answers, when that is on the disk, with what they are
        (`described_to`). Raises what `begin` does; NOT_OWNER where one goes elsewhere already."""
        if len(self.frozen) + len(queues) > LEAVING_MAX:
            raise GantryError(
                ErrorCode.LIMIT_REACHED, f"{len(self.frozen)} queues are on their way to other broker groups"
            )
        for light, _ in queues:
            self.begin(light)
            self.check(light)
        for light, name in queues:
            self._freeze(light, name, target, move)
        rows: Rows = [(TABLE, f"{LEAVING}{light}", json.dumps([name, target]).encode()) for light, name in queues]
        rows += self._deserted.rows([light for light, _ in queues])

        def stored(_token: Any, result: Any) -> None:
            if isinstance(result, GantryError):
                self.thaw([light for light, _ in queues], move)
                on_done(token, result)
            else:
                self._broker.gate.park(self._broker.store.written_position, flushed, None, None, strict=True)
                self._broker.request_flush()

        def flushed(_token: Any, result: Any) -> None:
            lights = [light for light, _ in queues]
            if not isinstance(result, GantryError) and self._of(lights, move) != lights:
                result = GantryError(ErrorCode.BUSY, "the queues were given back before they were frozen")
            failed = isinstance(result, GantryError)
            on_done(token, result if failed else [self._described(light) for light in lights])

        self._broker.put_rows(rows, None, stored, together=True)

    def _freeze(self, light: int, name: int, target: str, move: str) -> None:
        self.frozen[light] = Leave(name, target, move, tuple(self._broker.router.routes_of_light(light)))
        self._queues.suspend(light)
        cursors = self._broker.cursors
        for cursor in cursors.of_queue(f"~{light}"):
            if offsets := sorted(cursor.window.inflight):
                cursors.give_back(cursor, offsets)

    def _described(self, light: int) -> bytes:
        tables, cursors = self._broker.tables, self._broker.cursors
        places, row = [], None
        for cursor in cursors.of_queue(f"~{light}"):
            policy = tables.rows(POLICIES).get(str(cursor.id))
            own = policy_from(policy).row if policy is not None else None
            if own is not None and (value := tables.rows(own[0]).get(own[1])) is not None:
                row = (*own, value)
            places.append(Place(cursor.group, b"".join(encode_state(0, cursor.window)), _delivered(cursor), policy))
        routes = [
            (route_id, value)
            for route_id in self.frozen[light].routes
            if (value := tables.rows("route").get(route_id)) is not None
        ]
        end, moves = self._broker.store.light_visible_end(light), self.moves_of(self.frozen[light].name)
        return described_to(Described(light, end, moves, places, routes, row, self._deserted.noted(light)))

    def moves_of(self, name: int) -> int:
        """How often a queue that is here has moved."""
        return moved_from(self._broker.tables.rows(MOVED_TABLE).get(str(name))).moves

    def _of(self, lights: Sequence[int], move: str) -> list[int]:
        """Those that are frozen for that attempt: what an earlier one says comes too late."""
        return [light for light in lights if (leave := self.frozen.get(light)) is not None and leave.move == move]

    def thaw(self, lights: Sequence[int], move: str) -> None:
        """They stay here after all."""
        lights = self._of(lights, move)
        if not lights:
            return
        for light in lights:
            del self.frozen[light]
        self._broker.put_rows([(TABLE, f"{LEAVING}{light}", None) for light in lights])
        for light in lights:
            self._queues.resume(light)
            for cursor in self._broker.cursors.of_queue(f"~{light}"):
                self._broker.cursors.fire(cursor)
        if move:
            self._deserted.check(lights)
        else:  # seats end with a start
            self._deserted.watch(lights)

    def give_back(self, queues: Sequence[tuple[int, Leave]]) -> None:
        """They stay here, and where they went may have said already that they came, and have lost that with its disk, or be forgotten: so their routes
        count as moved twice since."""
        rows: Rows = []
        for light, leave in queues:
            if self.frozen.get(light) is not leave:
                continue
            for route_id in leave.routes:
                if (value := self._broker.tables.rows("route").get(route_id)) is not None:
                    route = route_from_bytes(route_id, value)
                    route = replace(route, moves=route.moves + 2)
                    self._broker.router.add(route)
                    self._sending.moved_here(route)
                    rows.append(("route", route_id, route_to_bytes(route)))
            self.thaw([light], leave.move)
        if rows:
            self._broker.put_rows(rows)

    def gone(self, lights: Sequence[int], move: str, token: Any, on_done: Done) -> None:
        """They have come where they went: what is left of them here goes, with what entered since. Raises NOT_OWNER where one was frozen by an earlier
        start: this one asks what became of it."""
        if any(light in self.frozen for light in lights) and self._of(lights, move) != list(lights):
            raise GantryError(ErrorCode.NOT_OWNER, "the queues were frozen by another attempt, or start")
        tables = self._broker.tables
        for light in self._of(lights, move):
            leave = self.frozen.pop(light)
            moved = moved_to(0, self.moves_of(leave.name))
            self._broker.put_rows(
                [(MOVED_TABLE, str(leave.name), moved)]
            )  # first: it has gone on, and did not end here
            rows: Rows = [(TABLE, f"{LEAVING}{light}", None)]
            if self._deserted.noted(light):
                rows.append((TABLE, f"{CONSUMED}{light}", None))
            rows += [("route", route_id, None) for route_id in leave.routes]  # some are not in force here any more
            for cursor in self._broker.cursors.of_queue(f"~{light}"):
                policy = tables.rows(POLICIES).get(str(cursor.id))
                own = policy_from(policy).row if policy is not None else None
                if own is not None:
                    rows.append((*own, None))
                if policy is not None:
                    rows.append((POLICIES, str(cursor.id), None))
            self._queues.forget_suspended(light)
            self._broker.drop_light(light, rows)
        self._broker.when_stored(token, partial(_none, on_done))

    def going_to(self, target: str) -> list[tuple[int, Leave]]:
        """Frozen queues that go there."""
        return [(light, leave) for light, leave in self.frozen.items() if leave.target == target]


def _delivered(cursor: Cursor) -> int:
    return max(cursor.recovered_below, cursor.window.floor)


def _none(on_done: Done, token: Any, result: Any) -> None:
    on_done(token, result if isinstance(result, GantryError) else None)
