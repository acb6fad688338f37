"""How failed logins slow later ones."""

from __future__ import annotations

from gantrymq.auth.failures import ADDRESS_FORGOTTEN_MS, FORGOTTEN_MS, REMEMBERED_MAX, Failures


def test_of_a_user_each_one_doubles_the_wait() -> None:
    failures = Failures(250, 1_000, 100)
    assert failures.delay_ms("u", "a", 0) == 0
    waits = []
    for _ in range(5):
        failures.note("u", "a", 0)
        waits.append(failures.delay_ms("u", "a", 0))
    assert waits == [250, 500, 1_000, 1_000, 1_000]
    assert failures.delay_ms("u", "b", 0) == failures.delay_ms("v", "a", 0) == 0
    failures.forget("u", "a")
    assert failures.delay_ms("u", "a", 0) == 0
    failures.note("u", "a", 0)
    assert failures.delay_ms("u", "a", FORGOTTEN_MS + 1) == 0


def test_an_address_that_tries_every_name_waits_whoever_it_says_it_is() -> None:
    failures = Failures(250, 8_000, 20)
    for number in range(19):
        failures.note(f"user{number}", "a", 0)
    assert failures.delay_ms("somebody", "a", 0) == 0
    failures.note("user19", "a", 0)
    assert failures.delay_ms("somebody", "a", 0) == 250
    failures.note("user20", "a", 0)
    assert failures.delay_ms("somebody", "a", 0) == 500
    assert failures.delay_ms("somebody", "b", 0) == 0
    failures.forget("somebody", "a")
    assert failures.delay_ms("somebody", "a", 0) == 500, "a right login takes nothing from the address"
    assert failures.delay_ms("somebody", "a", 2 * ADDRESS_FORGOTTEN_MS) == 0


def test_mistakes_of_people_behind_one_router_are_forgotten_as_they_come() -> None:
    failures = Failures(250, 8_000, 20)
    for number in range(200):
        failures.note(f"user{number}", "a", number * ADDRESS_FORGOTTEN_MS)
    assert failures.delay_ms("somebody", "a", 200 * ADDRESS_FORGOTTEN_MS) == 0


def test_the_oldest_are_forgotten_where_there_are_too_many() -> None:
    failures = Failures(250, 8_000, 20)
    for number in range(REMEMBERED_MAX + 5):
        failures.note("u", f"a{number}", 0)
    assert failures.delay_ms("u", "a0", 0) == failures.of_address("a0", 0) == 0
    assert failures.delay_ms("u", f"a{REMEMBERED_MAX}", 0) == 250


def test_no_delay_where_none_is_set() -> None:
    failures = Failures(0, 0, 1)
    failures.note("u", "a", 0)
    assert failures.delay_ms("u", "a", 0) == 0
