"""A broker group that hangs: nobody waits for it twice, and queues of other groups go on."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.cluster.patience import PATIENCE_MAX_MS, PATIENCE_MS
from gantrymq.cluster.port import ClusterPort
from tests.cluster.several import PULLED_MS, Several
from tests.cluster.site import Site, publish, queue, take


@pytest.fixture
def site() -> Several:
    return Several("a", "b")


def ask(port: ClusterPort, cursor: int) -> list[Any]:
    """An acquire; its result is put into the list when it comes."""
    box: list[Any] = []
    port.acquire(cursor, 1, 100, 1 << 20, None, lambda token, result: box.append(result))
    return box


def test_a_group_that_hangs_is_passed_over_after_the_first_wait(site: Several) -> None:
    port, sender = site.gateway(), site.gateway()
    _, here = site.queue_at(port, "a")
    cursors = [site.queue_at(port, "b", number)[1] for number in (1, 2)]
    site.line(port, "b").hang()
    first = ask(port, cursors[0])
    site.run()
    assert first == []
    site.wait(PATIENCE_MS + 100)
    assert first == [[]]
    for number in range(3):
        publish(site, sender, 10, 20, 20 * number)
        site.wait(PULLED_MS)
        for cursor in cursors:
            box = ask(port, cursor)
            site.run()
            assert box == [[]], "no wait"
        assert len(take(site, port, here)) == 20


def test_what_a_group_that_hung_has_is_served_when_it_answers_once(site: Several) -> None:
    port = site.gateway()
    _, cursor = site.queue_at(port, "b")
    calls: list[int] = []
    bodies = publish(site, port, 10, 40)
    site.wait(PULLED_MS)
    site.line(port, "b").hang()
    for _ in range(3):
        box = ask(port, cursor)
        site.wait(PATIENCE_MS + 100)
        assert box == [[]]
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
    assert sorted([delivery.message.body for delivery in box[0]]) == sorted(bodies)
    assert {delivery.count for delivery in box[0]} == {1}, "the late answer reached nobody"


def test_a_group_that_hung_and_is_lost_is_served_when_it_is_back(site: Several) -> None:
    port = site.gateway()
    _, cursor = site.queue_at(port, "b")
    bodies = publish(site, port, 10, 40)
    site.wait(PULLED_MS)
    site.line(port, "b").hang()
    box = ask(port, cursor)
    site.wait(PATIENCE_MS + 100)
    assert box == [[]]
    port.release(1)
    site.line(port, "b").cut()
    site.run()
    site.line(port, "b").mend()
    site.wait(100)
    assert sorted(take(site, port, cursor)) == sorted(bodies)


def test_a_group_that_is_slow_for_good_is_waited_for_longer_and_longer(site: Several) -> None:
    port = site.gateway()
    _, cursor = site.queue_at(port, "b")
    bodies = publish(site, port, 10, 40)
    site.wait(PULLED_MS)
    line = site.line(port, "b")
    got: list[bytes] = []
    for _ in range(10):
        line.hang()
        box = ask(port, cursor)
        site.wait(PATIENCE_MAX_MS // 2)
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
