"""A route query answers in microseconds, however many topics there are; a change costs as much as it changes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from gantrymq.net.testing import FakeLink, ManualClock, ManualWheel
from gantrymq.remoting.codec import Command, encode
from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.json_bodies import DataVersion, TopicConfigBody, TopicConfigTable
from gantrymq_nameserver.door import NameserverDoor, State
from gantrymq_nameserver.routes import Live

TOPICS = 100_000
BROKERS = 3
QUERIES = 10_000
QUERY_US_MAX = 50.0
CHANGE_US_MAX = 500.0


def spent_us(begin_ns: int, count: int) -> float:
    return (time.process_time_ns() - begin_ns) / 1000 / count


@pytest.mark.slow
def test_queries_and_changes_with_100_000_topics(record_property: Callable[[str, object], None]) -> None:
    state = State(ManualWheel(ManualClock()), False, lambda done: None)
    owner = object()

    def register(broker: int, names: list[str], counter: int, complete: bool) -> None:
        table = {name: TopicConfigBody(name, 4, counter % 8 + 1, 6) for name in names}
        live = Live("C", f"b{broker}", 0, f"h{broker}:1")
        state.routes.register(live, owner, 0, TopicConfigTable(table, DataVersion(0, 5, counter)), False, complete)

    names = [f"topic-{number}" for number in range(TOPICS)]
    for broker in range(BROKERS):
        register(broker, names, 1, True)
    link = FakeLink(state.wheel).attach(NameserverDoor(state))
    lot = random.Random(1)
    frames = [
        encode(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": lot.choice(names)}, b"", opaque))
        for opaque in range(QUERIES)
    ]
    begin_ns = time.process_time_ns()
    for frame in frames:
        link.feed(frame)
    query_us = spent_us(begin_ns, QUERIES)
    begin_ns = time.process_time_ns()
    for counter in range(2, 102):
        register(0, [lot.choice(names)], counter, False)
    change_us = spent_us(begin_ns, 100)
    record_property("us", (round(query_us, 1), round(change_us, 1)))
    assert query_us < QUERY_US_MAX
    assert change_us < CHANGE_US_MAX
