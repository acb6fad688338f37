"""A metadata group whose disk is empty: what it founds its table on, and for whom it waits before."""

from __future__ import annotations

import random
from functools import partial

import pytest

from gantrymq.broker.port import Route
from gantrymq.broker.tables.slot_table import (
    HEAD,
    SLOTS,
    SLOTS_TABLE,
    Head,
    Seen,
    Slot,
    SlotTable,
    founded,
    group_row,
    head_row,
    slot_row,
)
from gantrymq.cluster.slots.founding import Said, foundation
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.store.testing import MemoryFileSystem
from tests.cluster.slots.slot_site import SlotSite

BITS = random.Random(0).getrandbits


def empty_a(site: SlotSite, reaches: bool = False) -> None:
    """The metadata group is lost, and comes back with an empty disk; `reaches`: the others' connections to it are there again at once."""
    site.kill("a")
    if not reaches:
        site.links.clear()
    site.start("a", MemoryFileSystem())


def test_it_never_answers_for_what_others_own() -> None:
    """The others have not reached it yet, and a gateway has."""
    site = SlotSite("a", "b", "c")
    before = site.table("c")
    empty_a(site)
    assert site.owners() == {"b": 512, "c": 256}
    assert site.table().slots == before.slots
    assert site.table().groups == before.groups
    assert "waits for b, c, which may know later changes" in site.nodes["a"].broker.slots.why_silent()
    head, old = site.table().head, before.head
    assert head is not None
    assert old is not None
    assert head.version == old.version + 1
    assert head.life == site.nodes["a"].broker.slots.life != old.life


def test_it_serves_when_the_others_have_reached_it() -> None:
    site = SlotSite("a", "b", "c")
    before = site.owners()
    empty_a(site, True)
    site.wait(1_000)
    assert site.owners() == before


def test_it_waits_for_a_broker_that_does_not_say_what_it_has(caplog: pytest.LogCaptureFixture) -> None:
    site = SlotSite("a", "b", "c")
    before = site.owners()
    site.silent = {"c"}
    empty_a(site, True)
    for _ in range(3):
        site.wait(1_000)
        assert site.owners() == {"b": 512, "c": 256}
        assert site.table().head is None
    why = site.nodes["a"].broker.slots.why_silent()
    assert "a has no table of slots, and waits until these have said whether they have a copy: c (no answer)." in why
    assert "Start them, or let them be reached from here" in why
    assert len([text for text in caplog.messages if why in text]) == 1, "said once"
    batch = [Message("t", b"one", b"TAGS\x01a\x02", "a")]
    assert site.nodes["a"].call("submit", batch) == [ErrorCode.UNAVAILABLE], "nobody would know for whom it is"
    assert site.nodes["a"].start("add_route", Route("r", "prefix", None, "a", 1)) == [], "nor who is to hear of it"
    site.silent.clear()
    site.links["c"].mend()
    site.wait(3_000)
    assert site.owners() == before
    assert site.nodes["a"].broker.slots.waits == ""
    assert isinstance(site.nodes["a"].call("submit", batch)[0], int)


def test_it_founds_anew_when_the_nameservers_have_dropped_the_last_who_was_silent() -> None:
    site = SlotSite("a", "b")
    site.silent = {"b"}
    site.kill("a")
    site.start("a", MemoryFileSystem())
    disk = site.kill("b")
    site.wait(1_000)
    assert site.owners() == {"a": SLOTS}
    site.silent.clear()
    site.start("b", disk)
    site.wait(1_000)
    assert site.owners() == {"a": 512, "b": 512}, "what it knows later counts"


def test_brokers_without_a_table_are_not_waited_for() -> None:
    site = SlotSite("a")
    site.kill("a")
    site.begin("b", MemoryFileSystem())
    site.begin("c", MemoryFileSystem())
    site.run()
    site.start("a", MemoryFileSystem())
    assert site.table().head is not None, "no time has passed"
    site.wait(3_000)
    assert sum(site.owners().values()) == SLOTS
    assert all(site.owners()[name] for name in "abc")


def test_a_start_with_a_table_asks_nobody() -> None:
    site = SlotSite("a", "b")
    disk = site.kill("a")
    site.silent = {"b"}
    site.start("a", disk)
    assert site.table().head is not None


def copy(version: int, keeper: str = "a", **owners: int) -> dict[str, bytes]:
    """Its slot 0 is of version `owners`."""
    rows = dict(founded(keeper, "old", BITS))
    rows |= [head_row(Head(version, keeper, "old")), group_row("b", Seen("lifeb", "old"))]
    rows |= [slot_row(0, Slot(owner, epoch << 32)) for owner, epoch in owners.items()]
    return {key: value for key, value in rows.items() if value is not None}


def test_the_latest_copy_counts_and_slots_of_another_that_are_later() -> None:
    said: Said = {"b": copy(7, b=7), "c": copy(9), "d": copy(8, c=8), "e": {}, "f": copy(20, "z")}
    items, source = foundation("a", "new", said, BITS)
    assert source == "c"
    rows = {key: value for key, value in items if value is not None}
    table = SlotTable(rows)
    assert len(rows) == len(items)
    assert table.head == Head(10, "a", "new")
    assert table.slots[0] == Slot("c", 8 << 32), "the change of which the latest has the head alone"
    assert table.slots[1].owner == "a"
    assert table.groups == {"b": Seen("lifeb", "old")}


@pytest.mark.parametrize("said", [{}, {"b": {}}, {"b": copy(5, "z")}])
def test_nobody_has_one(said: Said) -> None:
    items, source = foundation("a", "new", said, BITS)
    assert source == ""
    table = SlotTable({key: value for key, value in items if value is not None})
    assert table.head == Head(1, "a", "new")
    assert len(table.owned_by("a")) == SLOTS
    assert table.groups == {}


@pytest.mark.parametrize(
    "rows",
    [
        "gone",
        {HEAD: b"{"},
        {HEAD: b'{"format":2,"version":1,"keeper":"a","life":"x"}'},
        {"x": b"{}"},
        {"0": b"[]"},
        {"5000": b'{"owner":"a","epoch":1}'},
    ],
)
def test_what_cannot_be_read_is_waited_for(rows: dict[str, bytes] | str) -> None:
    """It may be of a later version of this program."""
    with pytest.raises(GantryError, match=r"a copy: c \(") as caught:
        foundation("a", "new", {"b": copy(5), "c": rows}, BITS)
    assert caught.value.code is ErrorCode.UNAVAILABLE


def test_answers_that_come_late_count() -> None:
    site = SlotSite("a", "b")
    waiting: list[object] = []
    site.survey = lambda token, on_done: waiting.append(partial(on_done, token))  # type: ignore[method-assign]
    site.kill("a")
    site.start("a", MemoryFileSystem())
    site.wait(2_000)
    assert site.nodes["a"].broker.slots.why_silent() == "broker a has no table of slots yet"
    (answer,) = waiting
    assert callable(answer)
    answer({"b": dict(site.nodes["b"].broker.tables.rows(SLOTS_TABLE))})
    site.wait(2_000)
    assert site.owners() == {"a": 512, "b": 512}
