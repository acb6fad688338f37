"""Seats of a gateway process over several broker groups: each queue's are taken at the queue's home, and move when that is another group. A queue
that lies in one group has its consumers there for good.

While the home is away its consumers go on as they were, and new ones are refused; when it is back, or another group is the home, they are
taken again. Who meets an exclusive consumer there that came meanwhile goes on unregistered, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.broker.port import Done, Terms, seat_name
from gantrymq.cluster.group import RETRY_MS, ClusterSeat, ask_owner
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Call, Steps, run

if TYPE_CHECKING:
    from gantrymq.broker.tables.slots import Under
    from gantrymq.cluster.group import Cluster, ClusterCursor, Group, Part

log = logging.getLogger(__name__)


def _key(cursor: ClusterCursor) -> str:
    return seat_name(cursor.queue, cursor.name)


class ClusterSeats:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting = False

    def _home(self, cursor: ClusterCursor) -> Part:
        """Raises UNAVAILABLE, QUEUE_NOT_FOUND."""
        owner = self._cluster.owned.owner_of(cursor.queue)
        return self._part_at(cursor, owner or self._cluster.home(_key(cursor)))

    @staticmethod
    def _part_at(cursor: ClusterCursor, group: Group) -> Part:
        part = cursor.parts.get(group.index)
        if part is None:
            raise GantryError(
                ErrorCode.UNAVAILABLE, f"the broker group {group.name} does not have queue {cursor.queue} yet"
            )
        return part

    def take(
        self, cursor: ClusterCursor, terms: Terms, on_turn: Callable[[int, bool], None], token: Any, on_done: Done
    ) -> None:
        """As QueuePort.take_seat."""
        seat = ClusterSeat(self._cluster.number(), terms, on_turn)

        def taken(result: Any) -> None:
            if not isinstance(result, GantryError):
                cursor.seats[seat.number] = seat
                result = (seat.number, seat.active)
            on_done(token, result)

        run(self._take_at(cursor, seat), taken)

    def _take_at(self, cursor: ClusterCursor, seat: ClusterSeat) -> Steps:
        def at(group: Group, under: Under | None) -> Call:
            part = self._part_at(cursor, group)
            return partial(
                group.port.take_seat, part.local, seat.terms, partial(self._turned, cursor, seat, group), under=under
            )

        def leave(group: Group, found: tuple[int, bool]) -> None:
            part = cursor.parts.get(group.index)
            if part is not None:
                group.port.leave_seat(part.local, found[0], None, lambda token, result: None)

        owner = self._cluster.owned.owner_of(cursor.queue)
        if owner is not None:
            group = owner
            found: tuple[int, bool] = yield self._cluster.decisions.ask(owner, at(owner, None), partial(leave, owner))
        else:
            group, found = yield from ask_owner(self._cluster, _key(cursor), at, leave)
        seat.group, seat.inner, seat.active = group, found[0], found[1]

    @staticmethod
    def _turned(cursor: ClusterCursor, seat: ClusterSeat, group: Group, _inner: int, active: bool) -> None:
        if seat.group is group and seat.active != active and seat.number in cursor.seats:
            seat.active = active
            seat.on_turn(seat.number, active)

    def leave(self, cursor: ClusterCursor, number: int, token: Any, on_done: Done) -> None:
        """As QueuePort.leave_seat. While the home is away those of this process are counted."""
        seat = cursor.seats.pop(number, None)
        part = cursor.parts.get(seat.group.index) if seat is not None and seat.group is not None else None
        if seat is None or part is None:
            on_done(token, len(cursor.seats))
        else:
            part.group.port.leave_seat(part.local, seat.inner, token, on_done)

    @staticmethod
    def lost(cursor: ClusterCursor, group: Group) -> None:
        """The group is gone, with what was registered there."""
        for seat in cursor.seats.values():
            if seat.group is group:
                seat.group = None

    def settle(self, cursor: ClusterCursor) -> Steps:
        """Take those seats again that are not at the queue's home, the oldest first."""
        for seat in list(cursor.seats.values()):
            try:
                part = self._home(cursor)
            except GantryError:
                return
            if seat.group is not part.group and seat.number in cursor.seats:
                yield from self._move(cursor, seat)

    def _again_later(self) -> None:
        """The owner of a queue's slot did not answer for it."""
        if not self._waiting:
            self._waiting = True
            self._cluster.wheel.call_at(self._cluster.wheel.now_ms() + RETRY_MS, self._wait_is_over)

    def _wait_is_over(self, now_ms: int) -> None:
        self._waiting = False
        self._cluster.members_changed()

    def _move(self, cursor: ClusterCursor, seat: ClusterSeat) -> Steps:
        old, inner, was_active = seat.group, seat.inner, seat.active
        seat.group = None  # what the old home says of it meanwhile does not count
        try:
            yield from self._take_at(cursor, seat)
        except GantryError as error:
            seat.group = old
            if error.code is ErrorCode.UNAVAILABLE:
                self._again_later()
            else:
                log.warning("a consumer of queue %s is not registered any more: %s", cursor.queue, error.text)
            return
        part = cursor.parts.get(old.index) if old is not None else None
        if part is not None:
            yield partial(part.group.port.leave_seat, part.local, inner)
        if seat.number in cursor.seats and seat.active != was_active:
            seat.on_turn(seat.number, seat.active)
