"""What the routes of this group were: a record that its source could not match is matched as of the time when it was stored there.

Numbers of routes rise as they are installed (router.py): so the number says whether a route was there already, and only those that are gone are
kept here, matched as those that are there. A record costs two matches, however much has changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from gantrymq.broker.port import Route
    from gantrymq.broker.routing.api import RouteSet
    from gantrymq.broker.routing.router import Router
    from gantrymq.model.message import Message

CHANGES_MAX: Final = 10_000
"""Changes of routes that are remembered, some 1 kB each. What a source stored before them is matched as of the oldest one."""


class Change(NamedTuple):
    """`at_ms`: milliseconds since the epoch. `following`: what was installed since has this number, or a higher one. `kind`: of the route that was in
    force; empty: none was. `number`: of that route then; `light`: its queue."""

    at_ms: int
    following: int
    kind: str
    number: int
    light: int


_NONE: Final = ("", 0, 0)


class RouteHistory:
    """One group's. Routes between exchanges have no queue of their own: of them the present ones count."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._changes: deque[Change] = deque()
        self._first = 0
        """Number of the oldest change; those behind it follow."""
        self._gone: dict[str, RouteSet] = {}
        """By kind, routes that are in force no more, under the number of the change that replaced or removed them."""

    @property
    def changes(self) -> int:
        """How many are remembered."""
        return len(self._changes)

    def note(self, at_ms: int, route_id: str, before: Route | None) -> None:
        """A durable route is about to change, which is `before` now, if it is there."""
        changes, router = self._changes, self._router
        if len(changes) >= CHANGES_MAX:
            oldest = changes.popleft()
            if oldest.kind:
                self._gone[oldest.kind].remove(self._first)
            self._first += 1
        if changes:
            at_ms = max(at_ms, changes[-1].at_ms)  # the clock was set back
        was = _NONE
        if before is not None and before.light:
            was = before.kind, router.number_of(route_id), before.light
            gone = self._gone.get(before.kind)
            if gone is None:
                gone = self._gone[before.kind] = router.new_set(before.kind)
            gone.add(self._first + len(changes), before.topic, before.expression)
        changes.append(Change(at_ms, router.following, *was))

    def lights(self, message: Message, at_ms: int) -> set[int]:
        """Own light queues that a record enters which was stored then."""
        changes, first = self._changes, self._first
        since = bisect_right(changes, at_ms, key=_time)
        if since == len(changes):
            return self._router.own_lights(message)
        below = changes[since].following
        found = self._router.own_lights(message, below)
        for routes in self._gone.values():
            for at in routes.match(message):
                if at - first >= since and (change := changes[at - first]).number < below:
                    found.add(change.light)
        return found


def _time(change: Change) -> int:
    return change.at_ms
