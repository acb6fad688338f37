"""Groups that keep and follow the table of slots: who answers for which, through starts, losses and moves. At most one at any time."""

from __future__ import annotations

import random

import pytest

from gantrymq.broker.tables.slot_table import SLOTS, SLOTS_TABLE
from gantrymq.cluster.slots import changes
from gantrymq.cluster.slots.keeping import STOPPED_MS
from gantrymq.model.errors import GantryError
from gantrymq.store.testing import MemoryFileSystem
from tests.cluster.site import Line
from tests.cluster.slots.slot_site import SlotSite, stopping


def test_the_metadata_group_founds_the_table_and_new_groups_get_a_share() -> None:
    site = SlotSite("a")
    assert site.owners() == {"a": SLOTS}
    site.start("b", MemoryFileSystem())
    assert site.owners() == {"a": SLOTS // 2, "b": SLOTS // 2}
    site.start("c", MemoryFileSystem())
    assert site.owners() == {"a": 256, "b": 512, "c": 256}
    assert site.table("b").slots == site.table("c").slots == site.table().slots


def test_groups_that_come_at_once_get_a_share_each() -> None:
    site = SlotSite("a")
    for name in ("b", "c", "d"):
        site.begin(name, MemoryFileSystem())
    site.wait(3000)
    assert sorted(site.owners().values()) == [128, 128, 256, 512]


@pytest.mark.parametrize("calls", range(5))
def test_a_new_group_gets_its_share_though_the_metadata_group_was_lost_on_the_way(calls: int) -> None:
    site = SlotSite("a")
    site.begin("b", MemoryFileSystem())
    site.links["b"].calls_left = calls
    site.run()
    assert not site.links["b"].up
    site.links["b"].mend()
    site.wait(STOPPED_MS + 2000)
    assert site.owners() == {"a": 512, "b": 512}


def test_a_share_leaves_what_is_in_use() -> None:
    site = SlotSite("a")
    port, epochs = site.nodes["a"].port, site.table().slots
    held: list[object] = []
    for number in range(300):
        under = (number, epochs[number].epoch)
        port.take_lease(f"n{number}", False, lambda name: None, None, lambda _, epoch: held.append(epoch), under=under)
    assert len([epoch for epoch in held if isinstance(epoch, int)]) == 300
    site.start("b", MemoryFileSystem())
    taken = set(site.table().owned_by("b"))
    assert len(taken) == len(range(300, SLOTS, 2))
    assert not taken & set(range(300))


def test_a_new_group_gets_its_share_when_the_metadata_group_answers() -> None:
    site = SlotSite("a", "b")
    disk_a, disk_b = site.kill("a"), site.kill("b")
    site.start("a", disk_a)
    site.start("c", MemoryFileSystem())
    site.wait(2000)
    assert site.owners() == {}
    site.start("b", disk_b)
    site.wait(2000)
    assert site.owners() == {"a": 256, "b": 512, "c": 256}


def test_a_group_that_comes_back_answers_only_when_the_metadata_group_knows() -> None:
    site = SlotSite("a", "b")
    disk_a, disk_b = site.kill("a"), site.kill("b")
    site.start("b", disk_b)
    site.wait(2000)
    assert site.owners() == {}
    assert "has not reached its metadata group" in site.nodes["b"].broker.slots.why_silent()
    site.start("a", disk_a)
    site.wait(2000)
    assert site.owners() == {"a": 512, "b": 512}


def test_the_metadata_group_waits_for_those_that_may_know_more() -> None:
    site = SlotSite("a", "b")
    old = site.disk("a")
    mine = site.table().owned_by("a")[:100]
    assert site.move("a", "b", mine) == mine
    site.kill("a")
    disk_b = site.kill("b")
    site.start("a", old)
    assert site.owners() == {}
    assert "waits for b" in site.nodes["a"].broker.slots.why_silent()
    site.start("b", disk_b)
    site.wait(2000)
    assert site.owners() == {"a": 412, "b": 612}
    assert set(mine) <= set(site.table("a").owned_by("b"))


def test_the_metadata_group_comes_back_with_an_older_disk_while_the_others_go_on() -> None:
    site = SlotSite("a", "b", "c")
    old = site.disk("a")
    mine = site.table().owned_by("a")[:100]
    assert site.move("a", "c", mine) == mine
    site.kill("a")
    assert set(site.owners()) == {"b", "c"}, "nothing else waits"
    site.start("a", old)
    site.wait(2000)
    assert set(mine) <= set(site.table().owned_by("c"))
    assert sum(site.owners().values()) == SLOTS, [node.broker.slots.why_silent() for node in site.nodes.values()]


def test_a_metadata_group_with_an_empty_disk_hears_from_the_others_whose_slots_are_whose() -> None:
    site = SlotSite("a", "b")
    theirs = site.table().owned_by("b")
    site.kill("a")
    site.start("a", MemoryFileSystem())
    site.wait(2000)
    assert site.table().owned_by("b") == theirs
    assert site.owners() == {"a": 512, "b": 512}


def test_a_group_with_an_empty_disk_has_its_slots() -> None:
    site = SlotSite("a", "b")
    site.kill("b")
    site.start("b", MemoryFileSystem())
    site.wait(1000)
    assert site.owners() == {"a": 512, "b": 512}


def test_a_group_that_was_given_another_metadata_group_says_so() -> None:
    site = SlotSite("a", "b")
    rows = site.nodes["a"].broker.tables.rows(SLOTS_TABLE)
    head = rows["head"].replace(b'"keeper":"a"', b'"keeper":"z"')
    site.nodes["b"].broker.slots.learn("head", head.replace(b'"version":', b'"version":9'))
    assert "a table that z keeps" in site.nodes["b"].broker.slots.why_silent()


KINDS = ["kill", "start", "old", "keeper", "cut", "mend", "stop", "commit", "share", "wait", "disk"]
SEEDS = [*range(6), *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 60)]]


@pytest.mark.parametrize("seed", SEEDS)
def test_one_group_at_most_decides_about_a_slot(seed: int) -> None:
    """Kills, older and empty disks, cut links, moves by hands that stop at any step, in any order; then all are back, and each slot is somebody's."""
    play(seed, KINDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_so_it_is_where_the_metadata_group_loses_its_disk(seed: int) -> None:
    play(seed, [*KINDS, "empty", "empty"])


def play(seed: int, kinds: list[str]) -> None:
    """...of faults and moves."""
    chance = random.Random(seed)
    site = SlotSite("a", "b", "c", seed=seed)
    others = ["b", "c"]
    disks: dict[str, MemoryFileSystem] = {}
    old = {name: site.disk(name) for name in others}
    halves: list[list[changes.Move]] = []

    def check() -> None:
        twice = {slot: names for slot, names in site.deciding().items() if len(names) > 1}
        assert not twice, (seed, dict(list(twice.items())[:3]))

    def step() -> None:
        name = chance.choice(others)
        what = chance.choice(kinds)
        up = name not in site.away
        if what == "kill" and up:
            disks[name] = site.kill(name)
        elif what == "start" and not up:
            site.start(name, disks[name])
        elif what == "old" and not up:
            site.start(name, old[name])
            old[name] = site.disk(name)
        elif what == "disk" and up:
            old[name] = site.disk(name)
        elif what == "keeper":
            disk = site.kill("a")
            site.start("a", disk)
        elif what == "empty":
            site.kill("a")
            if up and chance.random() < 0.6:  # the metadata group does not reach it either
                site.silent.add(name)
            site.start("a", MemoryFileSystem())
        elif what == "cut" and up and site.links[name].up:
            site.links[name].cut()
        elif what == "mend" and up and not site.links[name].up:
            site.links[name].mend()
            site.silent.discard(name)
        elif what == "stop":
            source = chance.choice([one for one in ["a", "b", "c"] if one not in site.away])
            table = site.table()
            slots = chance.sample(table.owned_by(source), min(5, len(table.owned_by(source))))
            answer = site.do(stopping(Line(site.nodes[source]), [(slot, table.slots[slot].epoch) for slot in slots]))
            if not isinstance(answer, GantryError):
                target = chance.choice(["a", "b", "c"])
                halves.append([changes.Move(slot, table.slots[slot].epoch, answer[0], target) for slot in answer[1]])
        elif what == "commit" and halves:
            moves = halves.pop(chance.randrange(len(halves)))
            site.do(changes.commit(Line(site.nodes["a"]), moves, site.random.getrandbits))  # type: ignore[arg-type]
        elif what == "wait":
            site.wait(chance.choice([50, 1000, STOPPED_MS]))
        site.run()

    for _ in range(40):
        step()
        check()
    for name in others:
        if name in site.away:
            site.start(name, disks[name])
        if not site.links[name].up:
            site.links[name].mend()
    site.silent.clear()
    site.wait(3 * STOPPED_MS)
    check()
    assert sum(site.owners().values()) == SLOTS, [node.broker.slots.why_silent() for node in site.nodes.values()]


UNREADABLE = {
    "no JSON": ("7", b"{owner"), "other digits": ("\u0667", b'{"owner":"b","epoch":1}'), "no such slot": ("1024", b'{"owner":"b","epoch":1}'),
    "underscored": ("1_0", b'{"owner":"b","epoch":1}'), "no number": ("7", b'{"owner":"b","epoch":"9"}'), "no table": ("7", b"[]"),
    "deep": ("7", b"[" * 100_000), "a group": ("group/c", b'{"life":"x"}'),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("late", [False, True])
def test_a_row_that_nobody_can_read_is_told_once_and_left_out(
    kind: str, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    key, value = UNREADABLE[kind]
    site = SlotSite("a", "b")
    disk = None if late else site.kill("b")
    site.nodes["a"].broker.put(SLOTS_TABLE, [(key, value)], None, None)
    site.run()
    if disk is not None:
        site.start("b", disk)
    site.wait(2000)
    assert site.owners() == {"a": 512, "b": 512}, "it hurts nothing else"
    told = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(told) == len(set(told)), told
    assert told
    assert told[0].startswith(f"broker group a: row {key!r} of table cluster_slot is left out: ")
    assert value not in site.nodes["b"].broker.tables.rows(SLOTS_TABLE).values()


def test_the_rest_is_changed_under_an_unreadable_row() -> None:
    site = SlotSite("a", "b")
    site.nodes["a"].broker.put(SLOTS_TABLE, [("9999", b"")], None, None)
    site.run()
    slots = site.table("b").owned_by("b")[:3]
    keeper, port = Line(site.nodes["a"]), Line(site.nodes["b"])
    went = site.do(
        changes.move(keeper, port, site.table("b"), dict.fromkeys(slots, "a"), site.random.getrandbits, False)  # type: ignore[arg-type]
    )
    assert went == slots
    assert site.owners() == {"a": 515, "b": 509}
