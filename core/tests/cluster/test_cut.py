"""One gateway cut off from one broker group alone, while another gateway reaches both: it catches up when the line is back."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.port import END, Outcome, Route
from gantrymq.cluster import group as cluster_group
from gantrymq.cluster.join import MISSED_WAIT_MS
from gantrymq.cluster.port import SETTLE_MS, ClusterPort
from gantrymq.model.errors import ErrorCode, GantryError
from tests.cluster.site import Site, message, publish, queue, take

TOPICS = 10
EACH = 20


@pytest.fixture
def site() -> Site:
    return Site("a", "b")


@pytest.fixture
def pair(site: Site) -> tuple[ClusterPort, ClusterPort]:
    """(cut off from `b`, connected to both)."""
    both = site.gateway(), site.gateway()
    site.wait(SETTLE_MS + 100)
    return both


def routes(site: Site, name: str) -> set[str]:
    return set(site.nodes[name].broker.tables.rows("route"))


def test_routes_made_at_either_gateway_are_everywhere_when_the_line_is_back(
    site: Site, pair: tuple[ClusterPort, ClusterPort]
) -> None:
    cut, whole = pair
    line = site.line(cut, "b")
    line.cut()
    site.run()
    _, made_here = queue(site, cut, 1)
    _, made_there = queue(site, whole, 2)
    assert routes(site, "a") == {"r1", "r2"}
    assert routes(site, "b") == {"r2"}
    line.mend()
    site.wait(100)
    assert routes(site, "a") == routes(site, "b") == {"r1", "r2"}
    bodies = publish(site, whole, TOPICS, EACH)
    assert sum([site.stored(f"t{number}")["b"] for number in range(TOPICS)]) > 0, (
        "some went to the group that was cut off"
    )
    assert sorted(take(site, cut, made_here)) == sorted(bodies)
    assert sorted(take(site, whole, made_there)) == sorted(bodies)


def test_what_the_other_gateway_sent_meanwhile_is_served_when_the_line_is_back(
    site: Site, pair: tuple[ClusterPort, ClusterPort]
) -> None:
    cut, whole = pair
    _, cursor = queue(site, cut)
    calls: list[int] = []
    cut.watch(cursor, calls.append)
    site.run()
    assert take(site, cut, cursor) == []
    line = site.line(cut, "b")
    line.cut()
    site.run()
    bodies = publish(site, whole, TOPICS, EACH)
    early = take(site, cut, cursor)
    assert 0 < len(early) < EACH
    calls.clear()
    line.mend()
    site.wait(100)
    assert calls == [cursor]
    assert sorted(early + take(site, cut, cursor)) == sorted(bodies)


def test_topics_made_meanwhile_are_known_when_the_line_is_back(
    site: Site, pair: tuple[ClusterPort, ClusterPort]
) -> None:
    cut, whole = pair
    line = site.line(cut, "b")
    line.cut()
    site.run()
    publish(site, whole, TOPICS, EACH)
    there = {name for name in (f"t{number}" for number in range(TOPICS)) if site.stored(name)["b"]}
    assert there
    (group,) = [group for group in cut.groups if group.name == "b"]
    assert not there <= group.topics
    line.mend()
    site.wait(SETTLE_MS + 100)
    assert there <= group.topics
    before = {name: site.stored(name) for name in there}
    for name in there:
        site.call(cut, "submit", [message(name, b"more")])
        assert site.stored(name)["b"] == before[name]["b"] + 1, "the holder of the topic gets its messages"


def test_what_was_removed_meanwhile_stays_removed(site: Site, pair: tuple[ClusterPort, ClusterPort]) -> None:
    cut, whole = pair
    light, _ = queue(site, cut, 1)
    other, _ = queue(site, whole, 2)
    line = site.line(cut, "b")
    line.cut()
    site.run()
    assert site.call(cut, "remove_routes", ["r1"]) is None
    assert site.call(whole, "remove_routes", ["r2"]) is None
    line.mend()
    site.wait(100)
    assert routes(site, "a") == routes(site, "b") == set()
    assert site.call(whole, "delete_light", light) is None
    assert site.call(cut, "delete_light", other) is None
    publish(site, whole, TOPICS, EACH)
    assert routes(site, "b") == set()


def test_cursors_of_groups_made_meanwhile_are_one_at_both_gateways(
    site: Site, pair: tuple[ClusterPort, ClusterPort]
) -> None:
    """A shared queue: its members at both gateways get every message once between them."""
    cut, whole = pair
    line = site.line(cut, "b")
    line.cut()
    site.run()
    light = site.call(cut, "create_light")
    site.call(cut, "open_cursor", f"~{light}", "shared", END)
    assert site.call(cut, "add_route", Route("r", "prefix", None, "a", light)) is None
    line.mend()
    site.wait(100)
    mine = site.call(cut, "open_cursor", f"~{light}", "shared", END).cursor
    theirs = site.call(whole, "open_cursor", f"~{light}", "shared", END).cursor
    bodies = publish(site, whole, TOPICS, EACH)
    got: list[bytes] = []
    while True:
        found = [
            (port, cursor, site.call(port, "acquire", cursor, 1, 3, 1 << 20))
            for port, cursor in ((cut, mine), (whole, theirs))
        ]
        if not any(deliveries for _, _, deliveries in found):
            break
        for port, cursor, deliveries in found:
            got += [delivery.message.body for delivery in deliveries]
            port.settle([(cursor, delivery.offset, Outcome.ACK) for delivery in deliveries])
        site.run()
    assert sorted(got) == sorted(bodies)


def test_a_route_that_is_being_made_is_not_stale_at_a_group_that_joins_another_gateway(
    site: Site, pair: tuple[ClusterPort, ClusterPort]
) -> None:
    """The maker of the queue is slow to take the route; meanwhile the other gateway brings the other group up to date."""
    one, other = pair
    light, cursor = queue(site, one)
    maker = one.maker_of(light)
    assert maker is not None
    slow = site.line(one, maker.name)
    waiting: list[Any] = []
    slow.add_route = lambda *args: waiting.append(args)  # type: ignore[attr-defined]
    made: list[Any] = []
    one.add_route(Route("late", "prefix", None, "b", light), None, lambda token, result: made.append(result))
    site.run()
    rest = site.line(other, "b" if maker.name == "a" else "a")
    rest.cut()
    rest.mend()
    site.run()
    del slow.add_route  # type: ignore[attr-defined]
    slow.add_route(*waiting.pop())
    site.wait(SETTLE_MS + 100)
    assert made == [None]
    assert routes(site, "a") == routes(site, "b") == {"r0", "late"}
    assert all(isinstance(one, int) for one in site.call(other, "submit", [message("t0", b"x", "b")]))
    assert take(site, one, cursor) == [b"x"]


def test_a_route_whose_maker_is_lost_meanwhile_is_not_made(site: Site, pair: tuple[ClusterPort, ClusterPort]) -> None:
    one, _ = pair
    light, _ = queue(site, one)
    maker = one.maker_of(light)
    assert maker is not None
    line = site.line(one, maker.name)
    line.calls_left = 0
    result = site.call(one, "add_route", Route("late", "prefix", None, "b", light))
    assert isinstance(result, GantryError)
    assert result.code is ErrorCode.UNAVAILABLE
    line.mend()
    site.wait(SETTLE_MS + 100)
    assert routes(site, "a") == routes(site, "b") == {"r0"}


def test_a_light_queue_that_is_made_while_its_group_joins_another_gateway_stays(
    site: Site, pair: tuple[ClusterPort, ClusterPort]
) -> None:
    """What the maker said comes late: by then the other gateway knows of a queue that was not there when it said so."""
    one, other = pair
    site.call(one, "ensure_topic", "t0", True)
    group = site.gateways[1][1]["b"]
    held: list[Any] = []
    source = site.line(other, "a")

    def watch_table(table: str, on_change: Any, token: Any, on_done: Any) -> None:
        if table != "light" or held:
            source.port.watch_table(table, on_change, token, on_done)  # type: ignore[union-attr]
        else:
            source.port.watch_table(table, on_change, token, lambda *answer: held.append((on_done, answer)))  # type: ignore[union-attr]

    source.watch_table = watch_table  # type: ignore[attr-defined]
    group.cut()
    group.mend()
    site.run()
    assert held, "the join has asked"
    made = [queue(site, one, number) for number in range(2)]  # at each group one
    on_done, answer = held[0]
    on_done(*answer)
    site.wait(SETTLE_MS + 100)
    bodies = publish(site, one, TOPICS, EACH)
    for _, cursor in made:
        assert sorted(take(site, one, cursor)) == sorted(bodies)


def without_b() -> tuple[Site, ClusterPort]:
    """A gateway that knows two groups, cut off from the second one."""
    site = Site("a", "b")
    port = site.gateway()
    site.line(port, "b").cut()
    return site, port


@pytest.mark.parametrize("fresh", [False, True])
def test_a_group_that_missed_a_route_is_not_used_alone(fresh: bool) -> None:
    """What it took would never reach the route's queue, although it was acknowledged."""
    site, port = without_b()
    light, _ = queue(site, port)
    site.line(port, "a").cut()
    if fresh:
        site.add_node("c")
    else:
        site.line(port, "b").mend()
    site.wait(20_000)
    assert not port.up
    assert site.call(port, "submit", [message("t", b"")]) == [ErrorCode.UNAVAILABLE]
    site.line(port, "a").mend()
    site.wait(12_000)
    assert [group.name for group in port.ready_groups()] == (["a", "c"] if fresh else ["a", "b"])
    info = site.call(port, "open_cursor", f"~{light}", "g", END)
    bodies = publish(site, port, 10, 20)
    assert sorted(take(site, port, info.cursor)) == sorted(bodies)
    site.line(port, "a").cut()
    site.run()
    assert port.up, "the other one knows everything now"


def test_a_group_that_missed_a_route_is_used_when_those_that_know_are_given_up() -> None:
    site, port = without_b()
    queue(site, port)
    site.line(port, "a").cut()
    site.line(port, "b").mend()
    site.wait(12_000)
    assert not port.up
    port.groups[0].registered = False  # the nameservers dropped it
    site.wait(12_000)
    assert [group.name for group in port.ready_groups()] == ["b"]


def test_a_group_that_missed_a_route_is_used_when_those_that_know_stay_away(caplog: pytest.LogCaptureFixture) -> None:
    """Registered, but out of reach of this gateway: an outage that does not end is worse than one queue without its messages."""
    site, port = without_b()
    light, _ = queue(site, port)
    site.line(port, "a").cut()
    site.line(port, "b").mend()
    site.wait(MISSED_WAIT_MS - 5_000)
    assert not port.up
    site.wait(15_000)
    assert [group.name for group in port.ready_groups()] == ["b"]
    assert caplog.text.count("broker group b is used although it missed changes: a was not in use for 60 s") == 1
    site.line(port, "b").cut()
    site.line(port, "b").mend()
    site.run()
    assert port.up, "the same outage does not come again"
    site.line(port, "a").mend()
    site.wait(SETTLE_MS + 100)
    assert routes(site, "a") == routes(site, "b") == {"r0"}
    bodies = publish(site, port, TOPICS, EACH)
    cursor = site.call(port, "open_cursor", f"~{light}", "g", END).cursor
    assert sorted(take(site, port, cursor)) == sorted(bodies)


@pytest.mark.parametrize("leaves", [False, True])
def test_the_time_of_refusals_begins_anew_with_each_outage(leaves: bool) -> None:
    """Whether the one that is refused is there when the other one comes, or not."""
    site, port = without_b()
    for number in range(2):
        queue(site, port, number)
        site.line(port, "a").cut()
        site.line(port, "b").mend()
        site.wait(MISSED_WAIT_MS - 10_000)
        assert not port.up
        if leaves:
            site.line(port, "b").cut()
        site.line(port, "a").mend()
        site.wait(SETTLE_MS + 100)
        assert len(port.ready_groups()) == (1 if leaves else 2)
        if not leaves:
            site.line(port, "b").cut()


def test_a_group_that_missed_only_what_is_gone_again_is_used_alone() -> None:
    site, port = without_b()
    queue(site, port, 1)
    queue(site, port, 2)
    assert site.call(port, "remove_routes", ["r1"]) is None
    line = site.line(port, "a")
    line.cut()
    site.line(port, "b").mend()
    site.wait(1_000)
    assert not port.up, "it missed the other one"
    site.line(port, "b").cut()
    line.mend()
    assert site.call(port, "remove_routes", ["r2"]) is None
    line.cut()
    site.line(port, "b").mend()
    site.run()
    assert [group.name for group in port.ready_groups()] == ["b"]


def test_the_routes_that_a_group_missed_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_group, "MISSED_MAX", 3)
    site, port = without_b()
    for number in range(5):
        queue(site, port, number)
    (group,) = [group for group in port.groups if group.name == "b"]
    assert len(group.missed) == 1
    assert site.call(port, "remove_routes", [f"r{number}" for number in range(5)]) is None
    assert group.missed, "nobody knows which"


def test_a_group_that_took_a_route_and_was_lost_is_waited_for() -> None:
    """It is lost before the other group answers, and that one is lost without having the route."""
    site = Site("a", "b")
    port = site.gateway()
    light, _ = queue(site, port)
    maker = port.maker_of(light)
    assert maker is not None
    first = site.line(port, maker.name)
    other = "b" if maker.name == "a" else "a"
    second = site.line(port, other)
    waiting: list[Any] = []
    second.add_route = lambda *args: waiting.append(args)  # type: ignore[attr-defined]
    made: list[Any] = []
    port.add_route(Route("late", "prefix", None, "b", light), None, lambda token, result: made.append(result))
    site.run()
    assert routes(site, maker.name) == {"r0", "late"}
    del second.add_route  # type: ignore[attr-defined]
    first.cut()
    second.cut()
    second.add_route(*waiting.pop())
    site.run()
    assert made == [None]
    second.mend()
    site.wait(20_000)
    assert not port.up, "it would acknowledge messages that never reach the queue"
    first.mend()
    site.wait(12_000)
    assert [group.name for group in port.ready_groups()] == ["a", "b"]
    assert routes(site, "a") == routes(site, "b") == {"r0", "late"}
