"""One gateway cut off from one broker group alone, while another gateway reaches both: it catches up when the line is back."""

from __future__ import annotations

import pytest

from gantrymq.broker.port import END, Outcome
from gantrymq.cluster.port import SETTLE_MS, ClusterPort
from gantrymq.model.errors import ErrorCode
from tests.cluster.several import PULLED_MS, Several
from tests.cluster.site import message, publish, take

TOPICS = 10
EACH = 20


@pytest.fixture
def site() -> Several:
    return Several("a", "b")


@pytest.fixture
def pair(site: Several) -> tuple[ClusterPort, ClusterPort]:
    """(cut off from `b`, connected to both)."""
    return site.gateway(), site.gateway()


def test_what_was_made_at_the_other_gateway_meanwhile_is_found_when_the_line_is_back(
    site: Several, pair: tuple[ClusterPort, ClusterPort]
) -> None:
    cut, whole = pair
    line = site.line(cut, "b")
    line.cut()
    site.run()
    light, _ = site.queue_at(whole, "b")
    assert site.call(cut, "open_cursor", f"~{light}", "g", END).code is ErrorCode.UNAVAILABLE
    line.mend()
    site.wait(SETTLE_MS + 100)
    cursor = site.call(cut, "open_cursor", f"~{light}", "g", END).cursor
    bodies = publish(site, cut, TOPICS, EACH)
    site.wait(PULLED_MS)
    assert sorted(take(site, cut, cursor)) == sorted(bodies)


def test_what_the_other_gateway_sent_meanwhile_is_served_when_the_line_is_back(
    site: Several, pair: tuple[ClusterPort, ClusterPort]
) -> None:
    cut, whole = pair
    cursors = [site.queue_at(cut, owner, number)[1] for number, owner in enumerate("ab")]
    calls: list[int] = []
    for cursor in cursors:
        cut.watch(cursor, calls.append)
    site.run()
    assert [take(site, cut, cursor) for cursor in cursors] == [[], []]
    line = site.line(cut, "b")
    line.cut()
    site.run()
    bodies = publish(site, whole, TOPICS, EACH)
    site.wait(PULLED_MS)
    assert sorted(take(site, cut, cursors[0])) == sorted(bodies), "brokers forward without this gateway"
    assert take(site, cut, cursors[1]) == []
    calls.clear()
    line.mend()
    site.wait(100)
    assert calls == [cursors[1]]
    assert sorted(take(site, cut, cursors[1])) == sorted(bodies)


def test_topics_made_meanwhile_are_known_when_the_line_is_back(
    site: Several, pair: tuple[ClusterPort, ClusterPort]
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


def test_members_of_a_shared_queue_at_both_gateways_get_every_message_once(
    site: Several, pair: tuple[ClusterPort, ClusterPort]
) -> None:
    cut, whole = pair
    light, mine = site.queue_at(cut, "b")
    site.line(cut, "b").cut()
    site.run()
    theirs = site.call(whole, "open_cursor", f"~{light}", "g", END).cursor
    site.line(cut, "b").mend()
    site.wait(100)
    bodies = publish(site, whole, TOPICS, EACH)
    site.wait(PULLED_MS)
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


def test_what_was_removed_meanwhile_stays_removed(site: Several, pair: tuple[ClusterPort, ClusterPort]) -> None:
    cut, whole = pair
    here, _ = site.queue_at(cut, "a", 1)
    there, cursor = site.queue_at(cut, "b", 2)
    line = site.line(cut, "b")
    line.cut()
    site.run()
    assert site.call(cut, "remove_routes", ["r1", "r2"]).code is ErrorCode.UNAVAILABLE, "r2 may be at b"
    assert site.call(whole, "remove_routes", ["r2"]) is None
    assert site.call(whole, "delete_light", here) is None
    assert site.call(whole, "delete_light", there) is None
    line.mend()
    site.wait(SETTLE_MS + 100)
    assert [group.name for group in cut.ready_groups()] == ["a", "b"]
    assert not any(node.broker.tables.rows("route") for node in site.nodes.values())
    assert site.call(cut, "purge", cursor).code is ErrorCode.QUEUE_NOT_FOUND
    publish(site, whole, TOPICS, EACH)
