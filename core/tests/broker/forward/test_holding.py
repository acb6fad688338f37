"""What is submitted while queues move waits, and not for long."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.forward.holding import HELD_BYTES_MAX, HELD_MESSAGES_MAX, HOLD_MS, Ends
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from tests.cluster.forward.forward_site import ForwardSite, code_of


@pytest.fixture
def site() -> ForwardSite:
    return ForwardSite("a", "b", "c")


def hold(site: ForwardSite, name: str = "c") -> Any:
    """For queues that go from `a` to `b`."""
    return site.ask(name, "hold_records", "a", "b")


def published(site: ForwardSite, *bodies: bytes) -> list[Any]:
    return site.begun("c", "submit", [Message("t", body, b"TAGS\x01a\x02", "a") for body in bodies])


def test_batches_wait_in_their_order_and_go_on(site: ForwardSite) -> None:
    _, cursor = site.queue("a", "a")
    found = hold(site)
    assert isinstance(found, Ends)
    first, second = published(site, b"1", b"2"), published(site, b"3")
    assert not first
    assert not second
    site.ask("c", "release_records", "b", found.number + 1)
    assert not first, "that was said of another hold"
    site.ask("c", "release_records", "b", found.number)
    site.wait(200)
    assert (first, second) == ([[0, 1]], [[2]])
    assert site.bodies("a", cursor) == [b"1", b"2", b"3"]


def test_the_ends_are_behind_all_that_was_taken_before(site: ForwardSite) -> None:
    site.queue("a", "a")
    site.unflushed.add("a")  # nothing is settled
    box = published(site, *[b"x" * 1_000] * 50)
    found = hold(site)
    assert box
    assert found[1:3] == (site.nodes["c"].broker.sending.life, 50)


def test_nobody_waits_longer_than_a_second_and_then_the_target_matches_by_itself(site: ForwardSite) -> None:
    hold(site)
    box = published(site, b"1")
    site.wait(HOLD_MS - 100)
    assert not box
    site.cut("c", "b")
    site.wait(200)
    assert box == [[0]]
    assert not site.peer("c", "b").is_known


def test_a_lease_that_was_asked_for_before_does_not_count(site: ForwardSite) -> None:
    sending, clock = site.nodes["c"].broker.sending, site.nodes["c"].broker.clock
    sending.lapse("b")
    sending.leased("b", sending.peers["b"].life, clock.boot_ms() + 2_999)
    assert not site.peer("c", "b").is_known
    sending.leased("b", sending.peers["b"].life, clock.boot_ms() + 3_000)
    assert site.peer("c", "b").is_known


def test_more_than_may_wait_is_refused_at_once(site: ForwardSite) -> None:
    found = hold(site)
    first = published(site, b"x" * (HELD_BYTES_MAX // 2))
    assert published(site, b"x" * (HELD_BYTES_MAX // 2 + 1)) == [[ErrorCode.BUSY]]
    site.ask("c", "release_records", "b", found.number)
    assert first
    found = hold(site)
    assert not published(site, *[b""] * HELD_MESSAGES_MAX)
    assert published(site, b"") == [[ErrorCode.BUSY]]
    site.ask("c", "release_records", "b", found.number)


def test_one_who_knows_no_routes_cannot_hold(site: ForwardSite) -> None:
    assert code_of(site.ask("c", "hold_records", "z", "b")) is ErrorCode.UNAVAILABLE
    hold(site)
    assert code_of(hold(site)) is ErrorCode.BUSY
    assert code_of(site.ask("c", "hold_records", "a", "c")) is ErrorCode.BUSY
    assert code_of(site.ask("c", "freeze_lights", [(1, 1)], "a", "m")) is ErrorCode.BUSY
    site.cut("c", "a")
    site.wait(4_000)
    assert code_of(hold(site)) is ErrorCode.UNAVAILABLE


def test_who_stops_answers_what_waits(site: ForwardSite) -> None:
    hold(site)
    box = published(site, b"1")
    site.nodes["c"].broker.close()
    assert box == [[ErrorCode.SHUTTING_DOWN]]


def test_leases_are_given_behind_what_is_being_decided(site: ForwardSite) -> None:
    receiving = site.nodes["a"].broker.receiving
    receiving.deciding = 1
    box: list[Any] = []
    site.nodes["a"].port.follow("b", "x", 0, None, lambda token, result: box.append(result))
    assert not box
    receiving.decided()
    assert not isinstance(box[0], GantryError)
