"""Seats: who consumes from a cursor, over all ports; who of them has the turn, and whose port is woken first.

A consumer that nobody else may stand beside (`exclusive`), one of whom one at a time is served (`single`) and consumers of a rank are decided
here, so that several gateway processes see the same. Seats live in memory: they end with their port, and with the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from gantrymq.broker.consuming.cursors import Cursors
from gantrymq.broker.consuming.known.table import Cursor
from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    from gantrymq.broker.port import Terms
    from gantrymq.net.api import Wheel
    from gantrymq.services import Turn

SEATS_MAX: Final = 2_000_000
"""Consumers of all queues, some 200 bytes each: more than connections can hold."""
RANK_WAIT_MS: Final = 50
"""What ports of a higher rank have not taken when they were woken so long ago goes to the next: more than a gateway's way there and back."""

OnTurn = Callable[[int, bool], None]
"""`on_turn(seat, active)`."""


class _Seat:
    __slots__ = ("number", "on_turn", "port", "terms")

    def __init__(self, number: int, port: int, terms: Terms, on_turn: OnTurn) -> None:
        self.number = number
        self.port = port
        self.terms = terms
        self.on_turn = on_turn


class SeatTable:
    """The seats of one cursor, oldest first, and its ports' ranks."""

    __slots__ = ("active", "ranks", "rows", "serve_the_rest")

    def __init__(self, serve_the_rest: Callable[[Cursor], None]) -> None:
        self.serve_the_rest = serve_the_rest
        self.rows: dict[int, _Seat] = {}
        self.active = 0
        """The seat that has the turn, of a queue that serves one at a time."""
        self.ranks: dict[int, int] = {}
        """Of ports whose consumers do not have rank 0."""

    def count(self) -> int:
        """Consumers of all ports."""
        return len(self.rows)

    def first(self, ports: Collection[int]) -> list[int]:
        """Those of the highest rank."""
        ranks = self.ranks
        highest = max([ranks.get(port, 0) for port in ports])
        return [port for port in ports if ranks.get(port, 0) == highest]


def _table(cursor: Cursor) -> SeatTable | None:
    table = cursor.seats
    return table if isinstance(table, SeatTable) else None


class Seats:
    """See the module. `on_deserted(cursor)` is called when the last consumer is gone, with its port."""

    def __init__(self, cursors: Cursors, turn: Turn, wheel: Wheel, on_deserted: Callable[[Cursor], None]) -> None:
        self._cursors = cursors
        self._on_deserted = on_deserted
        self._turn = turn
        self._wheel = wheel
        self._of_port: dict[int, dict[int, Cursor]] = {}
        """By port: cursor of each of its seats."""
        self._ranked: dict[int, dict[int, Cursor]] = {}
        """By port: cursors where it has a rank."""
        self._last = 0
        self.count = 0
        cursors.on_deleted.append(self._deleted)

    def take(self, cursor: Cursor, port: int, terms: Terms, on_turn: OnTurn) -> tuple[int, bool]:
        """A consumer comes: its seat, and whether it has the turn. Raises LEASE_HELD where it or another wants to be alone, LIMIT_REACHED."""
        table = _table(cursor)
        if terms.single and terms.exclusive:
            raise GantryError(ErrorCode.LEASE_HELD, f"queue {cursor.queue} serves its consumers one at a time")
        first = next(iter(table.rows.values()), None) if table is not None else None
        if first is not None and (terms.exclusive or first.terms.exclusive):
            raise GantryError(ErrorCode.LEASE_HELD, f"queue {cursor.queue} has an exclusive consumer, or others")
        if self.count >= SEATS_MAX:
            raise GantryError(ErrorCode.LIMIT_REACHED, f"{SEATS_MAX} consumers exist")
        if table is None:
            table = cursor.seats = SeatTable(self._serve_the_rest)
        self._last += 1
        self.count += 1
        table.rows[self._last] = _Seat(self._last, port, terms, on_turn)
        self._of_port.setdefault(port, {})[self._last] = cursor
        if not terms.single:
            return self._last, True
        if not table.active:
            table.active = self._last
        return self._last, table.active == self._last

    def leave(self, cursor: Cursor, port: int, number: int) -> int:
        """A consumer goes; how many are left. An unknown seat, or another port's, is ignored."""
        table = _table(cursor)
        if table is None:
            return 0
        seat = table.rows.get(number)
        if seat is not None and seat.port == port:
            self._forget(table, seat)
            self._pass_on(cursor, table)
        return len(table.rows)

    def rank(self, cursor: Cursor, port: int, rank: int) -> None:
        """What the port's consumers with credit have now: it is woken before those of a lower one."""
        if cursor.seats is None:
            cursor.seats = SeatTable(self._serve_the_rest)
        if rank:
            cursor.seats.ranks[port] = rank
            self._ranked.setdefault(port, {})[cursor.id] = cursor
        elif cursor.seats.ranks.pop(port, None) is not None:
            self._ranked[port].pop(cursor.id, None)

    def drop_port(self, port: int) -> None:
        """All that a lost port held."""
        for cursor in self._ranked.pop(port, {}).values():
            if cursor.seats is not None:
                cursor.seats.ranks.pop(port, None)
        touched: dict[int, Cursor] = {}
        for number, cursor in self._of_port.pop(port, {}).items():
            table = _table(cursor)
            if table is not None:
                table.rows.pop(number, None)
                self.count -= 1
                touched[cursor.id] = cursor
        for cursor in touched.values():
            table = _table(cursor)
            if table is not None:
                is_last = not table.rows
                self._pass_on(cursor, table)
                if is_last:
                    self._on_deserted(cursor)

    def _forget(self, table: SeatTable, seat: _Seat) -> None:
        del table.rows[seat.number]
        self._of_port[seat.port].pop(seat.number, None)
        self.count -= 1

    def _pass_on(self, cursor: Cursor, table: SeatTable) -> None:
        """The turn of a seat that is gone goes to the highest rank, of these to whoever waits longest."""
        if not table.rows and not table.ranks:
            cursor.seats = None
        if not table.active or table.active in table.rows:
            return
        waiting = sorted(table.rows.values(), key=lambda seat: (-seat.terms.rank, seat.number))
        table.active = waiting[0].number if waiting else 0
        if waiting:
            seat = waiting[0]
            self._turn.at_deliver(lambda: self._tell(table, seat))

    @staticmethod
    def _tell(table: SeatTable, seat: _Seat) -> None:
        if table.active == seat.number and seat.number in table.rows:
            seat.on_turn(seat.number, True)

    def _deleted(self, cursor: Cursor) -> None:
        table, cursor.seats = _table(cursor), None
        if table is None:
            return
        for port in table.ranks:
            self._ranked[port].pop(cursor.id, None)
        for seat in list(table.rows.values()):
            self._forget(table, seat)

    def _serve_the_rest(self, cursor: Cursor) -> None:
        """Ports of a higher rank were woken: look later whether they left something."""

        def check(now_ms: int) -> None:
            if cursor.armed and cursor.window.ready(self._cursors.end(cursor)):
                self._cursors.fire(cursor)

        self._wheel.call_at(self._wheel.now_ms() + RANK_WAIT_MS, check)
