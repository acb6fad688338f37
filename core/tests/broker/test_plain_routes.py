"""Routes that have no object of their own are found, replaced and removed as all others."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from gantrymq.broker.port import Route
from gantrymq.broker.routing.plain import PlainRoutes
from gantrymq.broker.routing.router import Router, route_to_bytes
from gantrymq.broker.topics import Topic, TopicConfig
from gantrymq.model.message import Message
from tests.broker.test_port import PrefixRoutes

TOPICS = ("a", "b", "c")
IDS = [
    "prefix/1",
    "prefix/2",
    "prefix/64",
    "prefix/900",
    "prefix/01",
    "prefix/",
    "prefix/x",
    "prefix/²",
    "other/1",
    "x",
]
LIGHTS = (1, 2, 64, 900, 0)


class Site:
    """A router, and what its routes are."""

    def __init__(self) -> None:
        self.rows: dict[str, bytes] = {}
        topics = {name: Topic(TopicConfig(name)) for name in TOPICS}
        self.router = Router({"prefix": PrefixRoutes()}, topics, self.rows.get)
        self.topics = topics
        self.routes: dict[str, Route] = {}

    def add(self, route_id: str, topic: str | None, tag: str, light: int) -> None:
        route = self.routes[route_id] = Route(route_id, "prefix", topic, tag, light)
        self.rows[route_id] = route_to_bytes(route)
        self.router.add(route)

    def remove(self, route_id: str) -> None:
        assert self.router.remove(route_id) == (self.routes.pop(route_id, None) is not None)
        self.rows.pop(route_id, None)

    def check(self) -> None:
        routes = self.routes.values()
        assert self.router.routes == self.routes
        assert self.router.lights() == {route.light for route in routes} - {0}
        for light in LIGHTS[:-1]:
            ids = self.router.routes_of_light(light)
            assert sorted(ids) == sorted([route.route_id for route in routes if route.light == light])
        for name in TOPICS:
            topic = self.topics[name]
            assert self.router.names_topic(name) == any(route.topic == name for route in routes)
            assert topic.routed == any(route.topic in (None, name) for route in routes)
            for tag in ("x", "xy", "z"):
                wanted = {r.light for r in routes if r.topic in (None, name) and tag.startswith(r.expression)} - {0}
                hit = topic.cache.get((None, tag)) or self.router.route(topic, Message(name, b"", b"", tag))
                assert set(hit.lights) == wanted


@pytest.mark.parametrize("seed", range(10))
def test_they_are_as_a_dict_of_routes(seed: int) -> None:
    draw, site = random.Random(seed), Site()
    for _ in range(300):
        route_id = draw.choice(IDS)
        if draw.randrange(3):
            site.add(route_id, draw.choice((*TOPICS, None)), draw.choice(("", "x", "xy")), draw.choice(LIGHTS))
        else:
            site.remove(route_id)
        site.check()
    for route_id in list(site.routes):
        site.remove(route_id)
    site.check()
    plain = site.router._plain
    assert (plain.count, plain._lights, plain._forms, plain._numbers, plain._same) == (0, {}, {}, {}, {})


def test_most_take_no_object() -> None:
    site = Site()
    site.add("prefix/7", "a", "", 7)
    site.add("other", "a", "", 7)
    assert (site.router._plain.count, len(site.router._targets)) == (1, 1)


def test_one_that_reads_the_body_has_its_object() -> None:
    site = Site()
    site.add("prefix/1", "a", "!yes", 1)
    topic = site.topics["a"]
    for body, lights in ((b"yes", (1,)), (b"no", ()), (b"yes", (1,))):
        assert not topic.cache
        assert site.router.route(topic, Message("a", body, b"", "")).lights == lights
    assert site.router._plain.count == 0
    site.remove("prefix/1")
    site.router.route(topic, Message("a", b"no", b"", ""))
    assert topic.cache


def test_one_that_is_about_a_topic_that_it_does_not_name_has_its_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefixRoutes, "home", lambda self, expression: expression or None)
    site = Site()
    site.add("prefix/1", None, "b", 1)
    assert site.router.names_topic("b")
    site.remove("prefix/1")
    assert not site.router.names_topic("b")


def test_one_costs_a_few_bytes() -> None:
    plain, count = PlainRoutes(), 20_000
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1, count):
            assert plain.put(f"mqtt/{number}", number, "mqtt", "topic", number)
        took = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert took < 40 * count
    assert plain.number("mqtt/17") == 17
    assert plain.number("amqp/17") == 0
