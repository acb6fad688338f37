"""One gateway cut off from one broker group alone, while another gateway reaches both: it catches up when the line is back."""

from __future__ import annotations

import pytest

from gantrymq.broker.port import END, Outcome, Route
from gantrymq.remoting.cluster_port import SETTLE_MS, ClusterPort
from tests.remoting.cluster_site import Site, message, publish, queue, take

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
