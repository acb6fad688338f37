"""A checker that cannot fail proves nothing: every kind of fault, planted."""

from __future__ import annotations

import random

import pytest

from interop_tests.crash.promises import Id, Ledger, Queue, check_order, check_queues, compare


def history() -> tuple[Ledger, dict[Queue, list[tuple[int, Id]]]]:
    """Two publishers, two queues, 40 messages; the last two of each publisher were not acknowledged, one of them is stored."""
    ledger = Ledger()
    queues: dict[Queue, list[tuple[int, Id]]] = {("t", 0): [], ("t", 1): []}
    for number in range(20):
        for who in ("a", "b"):
            one = (who, number)
            ledger.sent.add(one)
            if number == 19:
                continue
            rows = queues["t", number % 2]
            if number < 18:
                ledger.acknowledged.add(one)
                ledger.places[one] = (number % 2, len(rows))
            rows.append((len(rows), one))
    return ledger, queues


def kinds(ledger: Ledger, queues: dict[Queue, list[tuple[int, Id]]]) -> set[str]:
    return {finding.kind for finding in check_queues(ledger, queues)}


def test_a_sound_history_has_no_findings() -> None:
    assert not check_queues(*history())


def test_loss_at_the_end_of_a_queue() -> None:
    ledger, queues = history()
    ledger.acknowledged |= {one for _, one in queues["t", 0][-2:]}
    del queues["t", 0][-2:]
    assert kinds(ledger, queues) == {"lost"}


def test_loss_in_the_middle_with_the_offsets_closed_up() -> None:
    ledger, queues = history()
    rows = queues["t", 1]
    del rows[5]
    queues["t", 1] = [(place, one) for place, (_, one) in enumerate(rows)]
    assert kinds(ledger, queues) == {"lost", "moved"}


def test_hole() -> None:
    ledger, queues = history()
    ledger.acknowledged.discard(queues["t", 0][3][1])
    del queues["t", 0][3]
    assert kinds(ledger, queues) == {"hole"}


def test_duplicate() -> None:
    ledger, queues = history()
    queues["t", 0].append((len(queues["t", 0]), ("a", 4)))
    assert kinds(ledger, queues) == {"twice", "reordered", "moved"}
    ledger, queues = history()
    queues["t", 0].append((len(queues["t", 0]), ("a", 17)))
    assert "twice" in kinds(ledger, queues)


def test_reorder_of_what_was_not_acknowledged() -> None:
    ledger, queues = history()
    rows = queues["t", 0]
    for place in (2, 4):
        ledger.places.pop(rows[place][1])
    rows[2], rows[4] = (2, rows[4][1]), (4, rows[2][1])
    assert kinds(ledger, queues) == {"reordered"}


def test_invention() -> None:
    ledger, queues = history()
    queues["t", 1].append((len(queues["t", 1]), ("a", 100)))
    assert kinds(ledger, queues) == {"invented"}


def test_offset_reused() -> None:
    """An acknowledged message was lost and another took its offset."""
    ledger, queues = history()
    offset, _ = queues["t", 0][-1]
    ledger.sent.add(("a", 30))
    ledger.acknowledged.add(("a", 30))
    ledger.places["a", 30] = (0, offset)
    assert kinds(ledger, queues) == {"lost", "moved"} or "lost" in kinds(ledger, queues)


@pytest.mark.parametrize("seed", range(5))
def test_any_single_loss_swap_or_copy_is_found(seed: int) -> None:
    lot = random.Random(seed)
    ledger, queues = history()
    flat = [one for _, one in queues["t", 0]]
    sure = [place for place, one in enumerate(flat) if one in ledger.acknowledged]
    lost = flat[:]
    del lost[lot.choice(sure)]
    copied = flat[:]
    copied.insert(lot.randrange(len(flat)), lot.choice(flat))
    a = lot.randrange(len(flat) - 2)
    swapped = flat[:]
    swapped[a], swapped[a + 2] = swapped[a + 2], swapped[a]
    for changed in (lost, copied, swapped):
        assert check_queues(ledger, {**queues, ("t", 0): list(enumerate(changed))})


def test_deliveries_of_a_queue() -> None:
    sent = {("a", 1), ("a", 2), ("a", 3)}
    assert not compare({("a", 1)}, sent, [("a", 1), ("a", 3)], "x")
    assert [finding.kind for finding in compare({("a", 1)}, sent, [("a", 2), ("a", 2), ("b", 9)], "x")] == [
        "lost",
        "invented",
        "twice",
    ]
    assert [finding.kind for finding in check_order([("a", 2), ("b", 1), ("a", 1)], "x")] == ["reordered"]
