"""Routes as they were: a record of then enters the queues that it would have entered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gantrymq.broker.forward.history import CHANGES_MAX, RouteHistory
from gantrymq.broker.port import Route
from gantrymq.broker.routing.router import Router, route_to_bytes
from gantrymq.model.message import Message
from tests.broker.test_port import PrefixRoutes

CHANGES = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["", "a", "b", "ab"]), st.integers(1, 3)), max_size=20)


class Routes:
    """A router whose rows are stored at once, with its history. Each change is two milliseconds after the one before."""

    def __init__(self) -> None:
        self.rows: dict[str, bytes] = {}
        self.router = Router({"prefix": PrefixRoutes()}, {}, self.rows.get)
        self.history = RouteHistory(self.router)
        self.now_ms = 0

    def change(self, number: int, tag: str, light: int) -> None:
        """Route `number` leads tags that begin so to a queue; without a tag it is removed."""
        self.now_ms += 2
        route_id = f"r{number}"
        after = Route(route_id, "prefix", None, tag, light) if tag else None
        self.history.note(self.now_ms, route_id, self.router.durable(route_id), after)
        if after is None:
            self.rows.pop(route_id, None)
            self.router.remove(route_id)
        else:
            self.rows[route_id] = route_to_bytes(after)
            self.router.add(after)


@given(CHANGES, st.sampled_from(["a", "b", "abc", "c"]))
def test_every_moment_is_as_it_was(changes: list[tuple[int, str, int]], tag: str) -> None:
    routes, message = Routes(), Message("t", b"", b"", tag)
    then = [routes.router.own_lights(message)]
    for change in changes:
        routes.change(*change)
        then.append(routes.router.own_lights(message))
    for changed, lights in enumerate(then):
        assert routes.history.lights(message, 2 * changed + 1) == lights


def test_it_is_bounded():
    routes = Routes()
    for number in range(CHANGES_MAX + 100):
        routes.change(number % 2, "a", 1 + number % 3)
    assert routes.history.changes == CHANGES_MAX
    assert routes.history.lights(Message("t", b"", b"", "a"), 0) <= {1, 2, 3}
