"""A broker group that hangs: nobody waits for it behind whom the other groups have something."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.cluster.patience import PATIENCE_MAX_MS, PATIENCE_MS
from gantrymq.cluster.port import ClusterPort
from tests.cluster.site import Line, Site, publish, queue, take


@pytest.fixture
def site() -> Site:
    return Site("a", "b")


def ask(port: ClusterPort, cursor: int) -> list[Any]:
    """An acquire; its result is put into the list when it comes."""
    box: list[Any] = []
    port.acquire(cursor, 1, 100, 1 << 20, None, lambda token, result: box.append(result))
    return box


def asked_in_vain(site: Site, port: ClusterPort, line: Line, cursor: int) -> None:
    """The first to ask a group that hangs waits for it."""
    line.hang()
    box = ask(port, cursor)
    site.run()
    assert box == []
    site.wait(PATIENCE_MS + 100)
    assert len(box) == 1


def test_a_group_that_hangs_is_passed_over_after_the_first_wait(site: Site) -> None:
    port, sender = site.gateway(), site.gateway()
    _, cursor = queue(site, port)
    _, other = queue(site, port, 1)
    asked_in_vain(site, port, site.line(port, "b"), cursor)
    for number in range(3):
        publish(site, sender, 10, 20, 20 * number)
        for one in (cursor, other):
            box = ask(port, one)
            site.run()
            assert len(box) == 1, "no wait"
            assert box[0], "what the other group has"


def test_what_a_group_that_hung_has_is_served_when_it_answers_once(site: Site) -> None:
    port = site.gateway()
    _, cursor = queue(site, port)
    calls: list[int] = []
    bodies = publish(site, port, 10, 40)
    site.line(port, "b").hang()
    boxes = []
    for _ in range(4):
        boxes.append(ask(port, cursor))
        site.wait(PATIENCE_MS + 100)
    early = [delivery.message.body for box in boxes for delivery in box[0]]
    assert 0 < len(early) < 40
    port.watch(cursor, calls.append)
    site.run()
    calls.clear()
    assert take(site, port, cursor) == []
    assert calls == [], "nobody is woken for what cannot be had"
    site.line(port, "b").thaw()
    site.run()
    assert calls == [cursor]
    box = ask(port, cursor)
    site.run()
    assert sorted([*early, *[delivery.message.body for delivery in box[0]]]) == sorted(bodies)
    assert {delivery.count for delivery in box[0]} == {1}, "the late answer reached nobody"


def test_a_group_that_hung_and_is_lost_is_served_when_it_is_back(site: Site) -> None:
    port = site.gateway()
    _, cursor = queue(site, port)
    bodies = publish(site, port, 10, 40)
    site.line(port, "b").hang()
    boxes = []
    for _ in range(3):
        boxes.append(ask(port, cursor))
        site.wait(PATIENCE_MS + 100)
    assert sum([len(box[0]) for box in boxes]) < len(bodies)
    port.release(1)
    site.line(port, "b").cut()
    site.run()
    site.line(port, "b").mend()
    site.wait(100)
    assert sorted(take(site, port, cursor)) == sorted(bodies)


def test_a_group_that_is_slow_for_good_is_waited_for_longer_and_longer(site: Site) -> None:
    port = site.gateway()
    _, cursor = queue(site, port)
    bodies = publish(site, port, 10, 40)
    line = site.line(port, "b")
    got: list[bytes] = []
    for _ in range(20):
        line.hang()
        box = ask(port, cursor)
        for _ in range(PATIENCE_MAX_MS // 2 // 100):
            site.wait(100)
        line.thaw()
        site.run()
        got += [delivery.message.body for delivery in box[0]]
    assert sorted(got) == sorted(bodies)


def test_one_group_alone_is_waited_for() -> None:
    site = Site("a")
    port = site.gateway()
    _, cursor = queue(site, port)
    publish(site, port, 1, 1)
    site.line(port, "a").hang()
    box = ask(port, cursor)
    site.wait(PATIENCE_MS * 3)
    assert box == []
    site.line(port, "a").thaw()
    assert len(box[0]) == 1
