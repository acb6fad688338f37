"""What the routes of this group were: a record that its source could not match is matched as of the time when it was stored there."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

    from gantrymq.broker.port import Route
    from gantrymq.broker.routing.router import Router
    from gantrymq.model.message import Message

CHANGES_MAX: Final = 10_000
"""Changes of routes that are remembered, some 300 bytes each. What a source stored before them is matched as of the oldest one."""


class Change(NamedTuple):
    """`before`: the route that was in force, `light`: of the one after it; 0: of none. `at_ms`: milliseconds since the epoch."""

    at_ms: int
    route_id: str
    before: Route | None
    light: int


class RouteHistory:
    """One group's. Routes between exchanges have no queue of their own: of them the present ones count."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._changes: deque[Change] = deque(maxlen=CHANGES_MAX)

    @property
    def changes(self) -> int:
        """How many are remembered."""
        return len(self._changes)

    def note(self, at_ms: int, route_id: str, before: Route | None, after: Route | None) -> None:
        """A durable route is about to change."""
        self._changes.append(Change(at_ms, route_id, before, after.light if after is not None else 0))

    def lights(self, message: Message, at_ms: int) -> set[int]:
        """Own light queues that a record enters which was stored then."""
        found = self._router.own_lights(message)
        changed: dict[str, Route | None] = {}
        affected: set[int] = set()
        for change in reversed(self._changes):
            if change.at_ms <= at_ms:
                break
            changed[change.route_id] = change.before
            affected.add(change.light)
            if change.before is not None:
                affected.add(change.before.light)
        affected.discard(0)
        return found - affected | {light for light in affected if self._led(light, changed, message)}

    def _led(self, light: int, changed: dict[str, Route | None], message: Message) -> bool:
        """Whether a route led there when these were as they were."""
        ids: Collection[str] = self._router.routes_of_light(light)
        present = [self._router.durable(route_id) for route_id in ids if route_id not in changed]
        routes = [*present, *changed.values()]
        return any(
            self._router.matches(route, message) for route in routes if route is not None and route.light == light
        )
