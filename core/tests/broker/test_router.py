"""What the router remembers of topics is what it would find anew, and a route costs by the topics that remember something, not by all there are."""

from __future__ import annotations

import sys
from collections.abc import ValuesView

from hypothesis import given
from hypothesis import strategies as st

from gantrymq.broker.matches import Tap
from gantrymq.broker.port import Route
from gantrymq.broker.routing.router import Router
from gantrymq.broker.topics import Topic, TopicConfig
from gantrymq.model.message import Message
from tests.broker.test_port import PrefixRoutes

NAMES = ("a", "b", "c")
TAGS = ("x", "xy", "z")
STEPS = st.lists(
    st.tuples(st.sampled_from(("add", "remove", "topic")), st.integers(0, 5), st.sampled_from((None, *NAMES)), st.sampled_from(("", "x", "xy"))),
    max_size=40,
)  # fmt: skip


class Topics(dict[str, Topic]):
    """Counts how often all topics are walked."""

    walks = 0

    def values(self) -> ValuesView[Topic]:
        self.walks += 1
        return super().values()


def site(*names: str) -> tuple[Router, Topics, Tap]:
    topics = Topics()
    router = Router({"prefix": PrefixRoutes()}, topics, lambda route_id: None)
    for name in names:
        topics[name] = Topic(TopicConfig(name))
        router.new_topic(topics[name])
    return router, topics, Tap(1, lambda records: None)


def found(router: Router, topic: Topic, tag: str) -> set[int]:
    """As the append turn asks: what is remembered, or what is found now."""
    if not topic.routed:
        return set()
    hit = topic.cache.get((None, tag)) or router.route(topic, Message(topic.name, b"", b"", tag))
    return {number for _, numbers in hit.taps for number in numbers}


@given(STEPS)
def test_what_is_remembered_is_what_would_be_found(steps: list[tuple[str, int, str | None, str]]) -> None:
    router, topics, tap = site(*NAMES[:2])
    routes: dict[int, tuple[str | None, str]] = {}
    for step, number, name, prefix in steps:
        if step == "add":
            router.add_volatile(tap, number, "prefix", name, prefix)
            routes[number] = (name, prefix)
        elif step == "remove":
            router.remove_volatile(tap, number)
            routes.pop(number, None)
        elif name is not None:
            topics[name] = Topic(TopicConfig(name))  # made, or deleted and made again
            router.new_topic(topics[name])
        for topic in dict.values(topics):
            for tag in TAGS:
                wanted = {n for n, (of, start) in routes.items() if of in (None, topic.name) and tag.startswith(start)}
                assert found(router, topic, tag) == wanted


def test_a_route_for_any_topic_beside_another_walks_none() -> None:
    router, topics, tap = site(*[f"t{number}" for number in range(100)])
    router.add_volatile(tap, 0, "prefix", None, "x")
    assert topics.walks == 1, "every topic is told of the first"
    for number in range(1, 20):
        router.add_volatile(tap, number, "prefix", None, "x")
        assert found(router, topics["t1"], "x") == set(range(number + 1))
        router.add_volatile(tap, 100 + number, "prefix", "t2", "x")
    for number in range(1, 20):
        router.remove_volatile(tap, number)
    assert topics.walks == 1
    assert found(router, topics["t1"], "x") == {0}
    router.remove_volatile(tap, 0)
    assert topics.walks == 2
    assert not topics["t1"].routed
    assert topics["t2"].routed


def test_a_route_into_a_queue_is_small_and_matches_and_goes() -> None:
    router, topics, tap = site("t")
    before = set(map(id, router._targets.values()))
    router.add(Route("one", "prefix", "t", "x", 7))
    (target,) = [each for each in router._targets.values() if id(each) not in before]
    assert sys.getsizeof(target) <= 64
    router.add_volatile(tap, 3, "prefix", "t", "x")
    match = router.route(topics["t"], Message("t", b"", b"", "x"))
    assert match.lights == (7,)
    assert match.taps == ((tap, (3,)),)
    assert router.remove("one")
    assert router.route(topics["t"], Message("t", b"", b"", "x")).lights == ()
