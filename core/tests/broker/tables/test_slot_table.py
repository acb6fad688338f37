"""The table of slots: rows, copies that never go back, and plans of who gets what."""

from __future__ import annotations

import random

import pytest

from gantrymq.broker.tables.slot_table import (
    HEAD,
    SLOTS,
    VERSION_MAX,
    Head,
    Seen,
    Slot,
    SlotTable,
    balanced,
    check_row,
    founded,
    given_away,
    group_row,
    head_row,
    slot_of,
    slot_row,
    version_of,
)
from gantrymq.model.errors import GantryError


def new_table(seed: int = 0) -> SlotTable:
    return SlotTable({key: value for key, value in founded("a", "1", random.Random(seed).getrandbits) if value})


def test_a_new_table_is_its_keepers() -> None:
    table = new_table()
    assert table.head == Head(1, "a", "1")
    assert table.owned_by("a") == list(range(SLOTS))
    assert {version_of(slot.epoch) for slot in table.slots.values()} == {1}


def test_a_copy_never_goes_back() -> None:
    table = new_table()
    later, older = slot_row(7, Slot("b", 5 << 32)), slot_row(7, Slot("c", 4 << 32))
    assert table.apply(*later) == 7
    assert table.apply(*older) is None
    assert table.apply(*later) is None
    assert table.apply("7", None) is None
    assert table.slots[7].owner == "b"
    table.apply(*head_row(Head(5, "a", "2")))
    table.apply(*head_row(Head(4, "a", "1")))
    assert table.head == Head(5, "a", "2")
    assert new_table().newer_than(table) == {}
    assert table.newer_than(new_table()).keys() == {7}


def test_groups_come_and_go() -> None:
    table = SlotTable(dict([group_row("b", Seen("x", "y"))]))
    assert table.groups == {"b": Seen("x", "y")}
    table.apply("group/b", None)
    assert table.groups == {}


def test_epochs_of_two_histories_differ() -> None:
    table = new_table()
    one = dict(table.gives({7: "b"}, random.Random(1).getrandbits))
    two = dict(table.gives({7: "c"}, random.Random(2).getrandbits))
    assert one[HEAD] == two[HEAD]
    ours, theirs = SlotTable({"7": one["7"] or b""}).slots[7], SlotTable({"7": two["7"] or b""}).slots[7]
    assert ours.epoch != theirs.epoch
    assert version_of(ours.epoch) == version_of(theirs.epoch) == 2


def test_a_table_of_no_version_changes_nothing() -> None:
    with pytest.raises(GantryError, match="no table"):
        SlotTable().gives({7: "b"}, random.Random(0).getrandbits)
    table = new_table()
    table.apply(*head_row(Head(VERSION_MAX, "a", "1")))
    with pytest.raises(GantryError, match="has version"):
        table.next_head()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("7", b"{}"), ("7", b"no"), ("1024", b'{"owner":"a","epoch":1}'), ("-1", b'{"owner":"a","epoch":1}'), ("x", b'{"owner":"a","epoch":1}'),
        ("head", b'{"format":2,"version":1,"keeper":"a","life":""}'), ("head", b"[]"), ("group/b", b'{"life":""}'),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_read(key: str, value: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        check_row(key, value)


def test_names_are_spread() -> None:
    counts = [0] * SLOTS
    for number in range(100 * SLOTS):
        counts[slot_of(f"lease/client-{number}")] += 1
    assert min(counts) > 50
    assert max(counts) < 200


def test_slots_of_what_has_one_name_are_not_tied_to_each_other() -> None:
    """Names that the server chooses must be found whose lease and rows are all at groups that answer."""
    names = [f"{number:06}" for number in range(4096)]
    ties = {slot_of(f"lease/mqtt:{name}") ^ slot_of(f"mqtt_session/{name}") for name in names}
    assert len(ties) > 900


@pytest.mark.parametrize("seed", range(20))
def test_plans(seed: int) -> None:
    chance = random.Random(seed)
    table = new_table()
    names = ["a", "b", "c", "d", "e"][: chance.randint(2, 5)]
    for slot in range(SLOTS):
        table.apply(*slot_row(slot, Slot(chance.choice(names), 2 << 32)))
    staying = chance.sample(names, chance.randint(1, len(names)))
    before = {name: len(table.owned_by(name)) for name in names}
    plan = balanced(table, staying)
    after = dict(before)
    for slot, target in plan.items():
        assert table.slots[slot].owner != target
        after[table.slots[slot].owner] -= 1
        after[target] += 1
    shares = [after[name] for name in staying]
    assert max(shares) - min(shares) <= 1
    assert sum(shares) == SLOTS
    wanting = sum([max(0, SLOTS // len(staying) - before[name]) for name in staying])
    leaving = sum([before[name] for name in names if name not in staying])
    assert len(plan) <= max(wanting + len(staying), leaving)
    gone = given_away(table, names[0], names[1:])
    assert sorted(gone) == table.owned_by(names[0])
    counts = [list(gone.values()).count(name) for name in names[1:]]
    assert max(counts) - min(counts) <= 1


def test_nobody_to_give_to() -> None:
    assert balanced(new_table(), []) == {}
    assert given_away(new_table(), "a", []) == {}
