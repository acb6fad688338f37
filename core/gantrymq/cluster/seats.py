"""Seats of a gateway process over several broker groups: a queue's consumers are registered at the group that has the queue.

While that group is away they go on as they were, and new ones are refused; when it is back they are registered again. Who meets an exclusive
consumer there that came meanwhile has lost its seat, and is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.cluster.group import ClusterSeat
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Steps, run

if TYPE_CHECKING:
    from gantrymq.broker.port import Done, Terms
    from gantrymq.cluster.group import Cluster, ClusterCursor, Group, Part

log = logging.getLogger(__name__)


class ClusterSeats:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def take(
        self,
        cursor: ClusterCursor,
        part: Part,
        terms: Terms,
        on_turn: Callable[[int, bool | None], None],
        token: Any,
        on_done: Done,
    ) -> None:
        """As QueuePort.take_seat, at a cursor's part."""
        seat = ClusterSeat(self._cluster.number(), terms, on_turn)

        def taken(result: Any) -> None:
            if not isinstance(result, GantryError):
                cursor.seats[seat.number] = seat
                result = (seat.number, seat.active)
            on_done(token, result)

        run(self._take_at(cursor, part, seat), taken)

    def _take_at(self, cursor: ClusterCursor, part: Part, seat: ClusterSeat) -> Steps:
        port, attempt = part.group.port, part.group.attempt

        def leave(found: tuple[int, bool]) -> None:
            if part.group.attempt == attempt:
                port.leave_seat(part.local, found[0], None, lambda token, result: None)

        on_turn = partial(self._turned, cursor, seat, part.group)
        question = partial(port.take_seat, part.local, seat.terms, on_turn)
        found: tuple[int, bool] = yield self._cluster.decisions.ask(part.group, question, leave)
        seat.group, seat.inner, seat.active = part.group, found[0], found[1]

    @staticmethod
    def _turned(cursor: ClusterCursor, seat: ClusterSeat, group: Group, _inner: int, active: bool) -> None:
        if seat.group is group and seat.active != active and seat.number in cursor.seats:
            seat.active = active
            seat.on_turn(seat.number, active)

    @staticmethod
    def leave(cursor: ClusterCursor, number: int, token: Any, on_done: Done) -> None:
        """As QueuePort.leave_seat. While the group is away those of this process are counted."""
        seat, part = cursor.seats.pop(number, None), cursor.part
        if seat is None or part is None or seat.group is not part.group:
            on_done(token, len(cursor.seats))
        else:
            part.group.port.leave_seat(part.local, seat.inner, token, on_done)

    @staticmethod
    def lost(cursor: ClusterCursor) -> None:
        """Its group is gone, with what was registered there."""
        for seat in cursor.seats.values():
            seat.group = None

    def settle(self, cursor: ClusterCursor) -> Steps:
        """Register those again that are not registered at the queue's group, the oldest first. What cannot be done now is done when it is back,
        or answers."""
        for seat in list(cursor.seats.values()):
            part = cursor.part
            if part is None:
                return
            if seat.group is None and seat.number in cursor.seats and not seat.asked:
                seat.asked = True
                yield from self._take_again(cursor, part, seat)
                seat.asked = False

    def _take_again(self, cursor: ClusterCursor, part: Part, seat: ClusterSeat) -> Steps:
        was_active = seat.active
        try:
            yield from self._take_at(cursor, part, seat)
        except GantryError as error:
            if error.code is ErrorCode.LEASE_HELD and cursor.seats.pop(seat.number, None) is not None:
                log.info("a consumer of queue %s lost its place: %s", cursor.queue, error.text)
                seat.on_turn(seat.number, None)
            elif error.code not in (ErrorCode.LEASE_HELD, ErrorCode.UNAVAILABLE):
                log.warning("a consumer of queue %s is not registered any more: %s", cursor.queue, error.text)
            return
        if seat.number not in cursor.seats:  # it left meanwhile
            yield partial(part.group.port.leave_seat, part.local, seat.inner)
        elif seat.active != was_active:
            seat.on_turn(seat.number, seat.active)
