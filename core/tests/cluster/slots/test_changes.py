"""Changes of the table of slots by hands that may stop at any step."""

from __future__ import annotations

from gantrymq.broker.tables.slot_table import SLOTS, given_away
from gantrymq.cluster.slots import changes
from gantrymq.cluster.slots.keeping import STOPPED_MS
from gantrymq.store.testing import MemoryFileSystem
from tests.cluster.site import Line
from tests.cluster.slots.slot_site import SlotSite, stopping


def test_a_move_that_is_not_finished_is_taken_back_and_cannot_be_finished_later() -> None:
    site = SlotSite("a", "b", "c")
    slots = site.table().owned_by("b")[:10]
    before = site.table()
    life, stopped = site.do(stopping(Line(site.nodes["b"]), [(slot, before.slots[slot].epoch) for slot in slots]))
    assert stopped == slots
    assert not site.deciding().keys() & set(slots)
    site.wait(2 * STOPPED_MS + 1000)
    assert all(site.deciding()[slot] == ["b"] for slot in slots)
    moves = [changes.Move(slot, before.slots[slot].epoch, life, "c") for slot in slots]
    assert site.do(changes.commit(Line(site.nodes["a"]), moves, site.random.getrandbits)) == []  # type: ignore[arg-type]


def test_a_source_that_was_started_again_before_the_change_keeps_its_slots() -> None:
    site = SlotSite("a", "b", "c")
    slots = site.table().owned_by("b")[:10]
    before = site.table()
    life, _ = site.do(stopping(Line(site.nodes["b"]), [(slot, before.slots[slot].epoch) for slot in slots]))
    disk = site.kill("b")
    site.start("b", disk)
    site.wait(1000)
    assert all(site.deciding()[slot] == ["b"] for slot in slots), "it knows nothing of the stop"
    moves = [changes.Move(slot, before.slots[slot].epoch, life, "c") for slot in slots]
    assert site.do(changes.commit(Line(site.nodes["a"]), moves, site.random.getrandbits)) == []  # type: ignore[arg-type]
    assert all(site.deciding()[slot] == ["b"] for slot in slots)


def test_a_forgotten_group_answers_for_nothing_when_it_is_back() -> None:
    site = SlotSite("a", "b", "c")
    theirs = site.table().owned_by("b")
    disk = site.kill("b")
    went = site.do(
        changes.forget(
            Line(site.nodes["a"]), "b", lambda table: given_away(table, "b", ["a", "c"]), site.random.getrandbits
        )  # type: ignore[arg-type]
    )
    assert sorted(went) == theirs
    site.start("b", disk)
    site.wait(3000)
    assert set(site.owners()) == {"a", "c"}
    assert sum(site.owners().values()) == SLOTS, [node.broker.slots.why_silent() for node in site.nodes.values()]
    assert site.table().owned_by("b") == []
    site.kill("b")
    site.start("b", MemoryFileSystem())
    site.wait(1000)
    assert site.owners()["b"] > 0, "as a new group"
