"""Sessions of many filters: from the 33rd on each filter has a row of its own."""

from __future__ import annotations

import json

import pytest

from gantrymq_gateways.mqtt.drafts import INLINE_MAX, KEY_FILTER_BYTES_MAX, Draft
from gantrymq_gateways.mqtt.sessions.rows import TOGETHER_MAX
from gantrymq_gateways.mqtt.tables import SessionTable, StoredFilter, StoredSession, check_session, filter_key
from gantrymq_gateways.mqtt.wire.codec import Connect
from gateways.tests.mqtt.test_takeover import _places, _two_gateways, _work, start
from gateways.tests.mqtt.world import Client, World

MANY = [f"t/{number}" for number in range(100)]


def rows(world: World) -> dict[str, bytes]:
    return world.port.tables.get("mqtt_session", {})


def inline(world: World) -> dict[str, list[int]]:
    found: dict[str, list[int]] = json.loads(rows(world)["c"])["s"]
    return found


def own(world: World) -> set[str]:
    return {key.partition("\n")[2] for key in rows(world) if key.startswith("c\n")}


def test_the_first_filters_stand_in_the_sessions_row_and_each_further_one_in_its_own() -> None:
    world = World()
    client = world.client("c", clean=False)
    client.subscribe(*MANY)
    assert list(inline(world)) == MANY[:INLINE_MAX]
    assert own(world) == set(MANY[INLINE_MAX:])
    client.unsubscribe(MANY[0], MANY[50])
    assert set(inline(world)) | own(world) == set(MANY) - {MANY[0], MANY[50]}
    client.subscribe("new/1")
    assert "new/1" in inline(world), "there is room again"


def test_one_filter_more_changes_its_row_and_the_sessions_alone() -> None:
    world = World()
    client = world.client("c", clean=False)
    client.subscribe(*MANY)
    before = dict(rows(world))
    client.subscribe("one/more")
    changed = {key for key, value in rows(world).items() if before.get(key) != value}
    assert changed == {"c", filter_key("c", "one/more")}
    client.subscribe(("one/more", 0))
    assert json.loads(rows(world)[filter_key("c", "one/more")])[0] == 0
    client.unsubscribe("one/more")
    assert rows(world).keys() == before.keys()


def test_a_restart_brings_all_of_them_back() -> None:
    world = World()
    world.client("c", clean=False).subscribe(*MANY)
    world = world.restart()
    for text in MANY:
        world.client("p").publish(text)
    client = world.client("c", clean=False)
    assert client.present
    assert sorted(client.messages()) == sorted((text, b"x") for text in MANY)
    assert world.gateway.lifecycle.table.subscriptions() == len(MANY)


def test_a_row_of_an_earlier_version_is_read_and_spread_at_its_next_change() -> None:
    world = World()
    world.client("c", clean=False).subscribe(*MANY)
    filters = inline(world) | {
        key.partition("\n")[2]: json.loads(value) for key, value in rows(world).items() if "\n" in key
    }
    old = json.dumps({"s": filters}, separators=(",", ":")).encode()
    for key in list(rows(world)):
        del rows(world)[key]
    rows(world)["c"] = old  # as version 0.9 wrote it
    world = world.restart()
    client = world.client("c", clean=False)
    assert client.present
    for text in MANY:
        world.client("p").publish(text)
    assert len(client.messages()) == len(MANY)
    assert client.subscribe("new") == [1]
    assert len(inline(world)) == INLINE_MAX
    assert set(inline(world)) | own(world) == {*MANY, "new"}
    again = world.restart().client("c", clean=False)
    assert again.present


@pytest.mark.parametrize("count", [40, TOGETHER_MAX + INLINE_MAX + 40])
def test_the_end_of_a_session_takes_its_rows_and_places_along(count: int) -> None:
    world = World()
    client = world.client("c", clean=False)
    client.subscribe(*[f"t/{number}" for number in range(count)])
    client.link.lose()
    world.client("c")
    assert rows(world) == {}
    assert _places(world) == 0


@pytest.mark.parametrize("answers", range(0, 60, 4))
def test_who_takes_a_session_while_it_is_being_ended_finds_none(answers: int) -> None:
    old, new = _two_gateways()
    filters = [f"t/{number}" for number in range(600)]
    client = old.client("c", clean=False)
    client.subscribe(*filters)
    client.link.lose()
    old.settle()
    new.settle()
    start(Client(old), Connect("c"))
    _work(old, answers)
    begun = json.loads(rows(new).get("c", b"{}")).get("o")
    taker = new.client("c", clean=False)
    old.settle()
    if begun:
        assert not taker.present
        assert set(rows(new)) == {"c"}
        assert inline(new) == {}
        assert _places(new) == 0
    assert taker.subscribe(filters[-1]) == [1]
    new.client("p").publish(filters[-1])
    assert taker.messages() == [(filters[-1], b"x")]


def test_a_filter_too_long_for_a_key_stands_in_the_sessions_row() -> None:
    long = "ü" * (KEY_FILTER_BYTES_MAX // 2 + 1)
    draft = Draft(StoredSession({f"f{number}": StoredFilter(1, 1) for number in range(INLINE_MAX)}), {})
    draft.filters[long] = draft.filters["short"] = StoredFilter(1, 2)
    assert long in draft.row.filters
    assert draft.filters.changes() == [("short", b"[1,2,0]")]
    draft.filters.spread()
    assert long in draft.row.filters


def test_a_draft_counts_and_lists_each_filter_once() -> None:
    kept = StoredFilter(1, 7)
    known = {"a": kept.encode(), "b": kept.encode(), "both": kept.encode()}
    draft = Draft(StoredSession({"both": kept, **{f"f{number}": kept for number in range(INLINE_MAX)}}), known)
    assert (len(draft.filters), sorted(draft.filters)[:3]) == (INLINE_MAX + 3, ["a", "b", "both"])
    assert draft.filters["a"].light == 7
    assert draft.filters.changes() == []
    draft.filters["a"].owed = 1
    draft.end("b")
    draft.end("both")
    draft.filters["c"] = kept
    assert "b" not in draft.filters
    assert "both" not in draft.filters
    with pytest.raises(KeyError):
        draft.filters["b"]
    assert len(draft.filters) == len(list(draft.filters)) == INLINE_MAX + 2
    assert sorted(draft.filters.changes()) == [("a", b"[1,7,1]"), ("b", None), ("both", None), ("c", b"[1,7,0]")]
    assert draft.row.ending == [7, 7]


def test_rows_of_filters_use_their_queues_and_echoes_do_not_undo() -> None:
    table = SessionTable()
    key, one, two = filter_key("c", "f"), StoredFilter(1, 5).encode(), StoredFilter(0, 5).encode()
    table.load({key: one, "c": b'{"s":{}}'}, {"5": b"f"}, 0)
    assert (len(table), table.subscriptions(), table.is_unused(5)) == (1, 1, False)
    table.writing_session(key, two)
    table.wrote_session(key, two, 0)
    table.writing_session(key, None)
    table.wrote_session(key, None, 0)
    table.changed_session(key, two, 0)
    assert (table.filters_of("c"), table.is_unused(5)) == ({}, True)
    table.changed_session(key, None, 0)
    assert not table._echoes


def test_rows_that_nobody_could_read_are_refused() -> None:
    check_session(filter_key("c", "f"), b"[1,7,0]")
    for key, value in [(filter_key("c", "f"), b'{"s":{}}'), ("\nf", b"[1,7,0]"), ("c\n", b"[1,7,0]")]:
        with pytest.raises((ValueError, TypeError)):
            check_session(key, value)


def test_filters_whose_session_could_not_be_read_end_with_the_next_one() -> None:
    world = World()
    client = world.client("c", clean=False)
    client.subscribe(*MANY)
    client.link.lose()
    world.settle()
    del rows(world)["c"]
    world = world.restart()
    client = world.client("c", clean=False)
    assert not client.present
    assert set(rows(world)) == {"c"}
    world.client("p").publish(MANY[-1])
    assert client.messages() == []
