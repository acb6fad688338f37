"""A broker group that hangs: what it alone decides is refused within a second, and what it did all the same is undone when it answers."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.port import Terms
from gantrymq.cluster.patience import CHECK_EVERY_MS, SILENCE_MS
from gantrymq.cluster.port import ClusterPort
from gantrymq.model.errors import ErrorCode, GantryError
from tests.cluster.several import Several
from tests.cluster.site import Site, take

SECOND_MS = 1_000
TABLE = "mqtt_session"


@pytest.fixture
def site() -> Several:
    return Several("a", "b")


def lease_of(port: ClusterPort, group: str, prefix: str = "name") -> str:
    return next(name for number in range(1000) if port.home(f"lease/{(name := f'{prefix}{number}')}").name == group)


def start(port: ClusterPort, method: str, *arguments: Any) -> list[Any]:
    """A call; its result is put into the list when it comes."""
    box: list[Any] = []
    getattr(port, method)(*arguments, None, lambda token, result: box.append(result))
    return box


def lease(port: ClusterPort, name: str, lost: list[str] | None = None, force: bool = False) -> list[Any]:
    return start(port, "take_lease", name, force, (lost if lost is not None else []).append)


def is_refused(box: list[Any]) -> bool:
    return len(box) == 1 and isinstance(box[0], GantryError) and box[0].code is ErrorCode.UNAVAILABLE


def test_a_name_of_a_group_that_hangs_is_refused_within_a_second_and_then_at_once(site: Several) -> None:
    port, other = site.gateway(), site.gateway()
    theirs, free = lease_of(port, "b"), lease_of(port, "a")
    more = lease_of(port, "b", "more")
    site.line(port, "b").hang()
    first = lease(port, theirs)
    site.wait(SILENCE_MS - 2 * CHECK_EVERY_MS)
    assert first == []
    assert isinstance(lease(port, free)[0], int), "others go on"
    site.wait(SECOND_MS - SILENCE_MS)
    assert is_refused(first)
    assert "b does not answer" in first[0].text
    assert is_refused(lease(port, theirs)), "no wait"
    assert is_refused(lease(port, more))
    site.line(port, "b").thaw()
    site.run()
    assert site.nodes["b"].broker.leases.is_free(theirs), "it was given to nobody"
    assert isinstance(lease(other, theirs)[0], int)
    assert lease(port, theirs)[0].code is ErrorCode.LEASE_HELD


def test_a_group_that_is_busy_is_waited_for(site: Several) -> None:
    port = site.gateway()
    line = site.line(port, "b")
    line.hang()
    box = lease(port, lease_of(port, "b"))
    for _ in range(30):
        site.wait(100)
        line.heard += 1  # it answers others
    assert box == []
    line.thaw()
    site.run()
    assert isinstance(box[0], int)


def test_a_group_that_hung_and_is_lost_decides_when_it_is_back(site: Several) -> None:
    port = site.gateway()
    name = lease_of(port, "b")
    site.line(port, "b").hang()
    box = lease(port, name)
    site.wait(SECOND_MS)
    assert is_refused(box)
    site.line(port, "b").cut()
    site.run()
    site.line(port, "b").mend()
    site.wait(200)
    assert isinstance(lease(port, name)[0], int)


def test_a_holder_that_lost_its_name_to_one_who_was_refused_is_told(site: Several) -> None:
    port, other = site.gateway(), site.gateway()
    name, lost = lease_of(port, "b"), []  # type: ignore[var-annotated]
    assert isinstance(lease(other, name, lost)[0], int)
    site.line(port, "b").hang()
    box = lease(port, name, force=True)
    site.wait(SECOND_MS)
    assert is_refused(box)
    site.line(port, "b").thaw()
    site.run()
    assert lost == [name]
    assert site.nodes["b"].broker.leases.is_free(name)


def test_a_consumer_that_was_refused_has_no_seat(site: Several) -> None:
    port = site.gateway()
    _, cursor = site.queue_at(port, "b")
    site.line(port, "b").hang()
    box = start(port, "take_seat", cursor, Terms(exclusive=True), lambda seat, active: None)
    site.wait(SECOND_MS)
    assert is_refused(box)
    assert site.nodes["b"].broker.seats.count == 1
    site.line(port, "b").thaw()
    site.run()
    assert site.nodes["b"].broker.seats.count == 0
    assert not isinstance(
        site.call(port, "take_seat", cursor, Terms(exclusive=True), lambda seat, active: None), GantryError
    )


def test_rows_of_a_group_that_hangs_are_refused_and_it_is_given_nothing_new(site: Several) -> None:
    port = site.gateway()
    key = next(f"k{number}" for number in range(1000) if port.home(f"{TABLE}/k{number}").name == "b")
    site.call(port, "watch_table", TABLE, None)
    assert site.call(port, "put", TABLE, [(key, b"1")]) is None
    site.line(port, "b").hang()
    calls = {
        "put": (TABLE, [(key, b"2")]),
        "put_if": (TABLE, [(key, b"1", b"2")]),
        "put_together": (TABLE, key, b"1", [(key, b"2")]),
    }
    boxes = [start(port, method, *arguments) for method, arguments in calls.items()]
    site.wait(SECOND_MS)
    assert all(map(is_refused, boxes))
    assert all(is_refused(start(port, method, *arguments)) for method, arguments in calls.items()), "no wait"
    for _ in range(4):
        assert isinstance(site.call(port, "create_light"), int), "the other group makes it"


def test_one_group_alone_is_waited_for() -> None:
    site = Site("a")
    port = site.gateway()
    site.line(port, "a").hang()
    box = lease(port, "name")
    site.wait(3 * SECOND_MS)
    assert box == []
    site.line(port, "a").thaw()
    assert isinstance(box[0], int)


def test_consumers_are_woken_when_a_group_that_did_not_decide_answers_again(site: Several) -> None:
    port = site.gateway()
    _, cursor = site.queue_at(port, "b")
    calls: list[int] = []
    port.watch(cursor, calls.append)
    assert take(site, port, cursor) == []
    site.line(port, "b").hang()
    box = lease(port, lease_of(port, "b"))
    site.wait(SECOND_MS)
    assert is_refused(box)
    assert take(site, port, cursor) == []
    calls.clear()
    site.line(port, "b").thaw()
    site.run()
    assert calls == [cursor]
