"""Routes as they were: a record of then enters the queues that it would have entered."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from gantrymq.broker.forward.history import CHANGES_MAX, RouteHistory
from gantrymq.broker.port import Route
from gantrymq.broker.routing.router import Router, route_to_bytes
from gantrymq.model.message import Message
from tests.broker.test_port import PrefixRoutes

CHANGES = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["", "a", "b", "ab"]), st.integers(1, 3)), max_size=20)


class CountedRoutes(PrefixRoutes):
    """Says how often messages were matched with sets of routes."""

    matched = 0

    def match(self, message: Message) -> Iterable[int]:
        CountedRoutes.matched += 1
        return super().match(message)


class Routes:
    """A router whose rows are stored at once, with its history. Each change is two milliseconds after the one before."""

    def __init__(self) -> None:
        self.rows: dict[str, bytes] = {}
        self.router = Router({"prefix": CountedRoutes()}, {}, self.rows.get)
        self.history = RouteHistory(self.router)
        self.now_ms = 0

    def change(self, number: int, tag: str, light: int) -> None:
        """Route `number` leads tags that begin so to a queue; without a tag it is removed."""
        self.now_ms += 2
        route_id = f"r{number}"
        after = Route(route_id, "prefix", None, tag, light) if tag else None
        self.history.note(self.now_ms, route_id, self.router.durable(route_id))
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


def test_a_record_costs_two_matches_however_much_has_changed():
    routes = Routes()
    for number in range(300):
        routes.change(number, "a" if number % 2 else "b", number + 1)
    for number in range(200):
        routes.change(number, "", 0)
    CountedRoutes.matched = 0
    assert routes.history.lights(Message("t", b"", b"", "a"), 2 * 250 + 1) == set(range(2, 251, 2))
    assert CountedRoutes.matched == 2


def test_what_was_stored_before_everything_that_is_remembered_is_matched_as_of_the_oldest():
    routes = Routes()
    routes.change(0, "a", 1)
    routes.change(1, "a", 2)
    for _ in range(CHANGES_MAX):
        routes.change(2, "a", 3)
    routes.change(0, "", 0)
    assert routes.history.lights(Message("t", b"", b"", "a"), 0) == {1, 2, 3}


def test_a_clock_that_is_set_back_leaves_the_changes_in_their_order():
    routes = Routes()
    routes.change(0, "a", 1)
    routes.now_ms = -10
    routes.change(0, "", 0)
    assert routes.history.lights(Message("t", b"", b"", "a"), 3) == set()
