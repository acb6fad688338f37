"""After a kill everything that was possibly delivered comes redelivered, and of what was not no more than a credit window of each consumer."""

from __future__ import annotations

import random

import pytest

from gantrymq.broker.consuming.window import MARK_STEP
from gantrymq.broker.pop.pops import POPPED_AHEAD
from gantrymq.broker.port import EARLIEST, Delivery, Outcome
from gantrymq.model.message import Message
from tests.broker.node import Node
from tests.store.crash_states import CrashFiles

COUNT = 3_000


def crashed(node: Node) -> Node:
    return Node(node.files.after_process_crash(), False)  # type: ignore[arg-type]


def filled() -> Node:
    node = Node(CrashFiles(), False)
    for start in range(0, COUNT, 500):
        node.call("submit", [Message("t", b"%d" % (start + number), queue_id=0) for number in range(500)])
    return node


def rest(node: Node, cursor: int) -> list[Delivery]:
    found: list[Delivery] = []
    while some := node.call("acquire", cursor, 99, 500, 1 << 30):
        found += some
    return found


@pytest.mark.parametrize("credits", [(1,), (20,), (300,), (20, 20, 20), (2_000,)])
@pytest.mark.parametrize("seed", range(3))
def test_marks_of_consumers(seed: int, credits: tuple[int, ...]) -> None:
    """Consumers with so much credit each, which acknowledge some of what they hold, in any order, and ask for as much as that frees."""
    lot = random.Random(seed)
    node = filled()
    cursor = node.call("open_cursor", "t/0", "g", EARLIEST).cursor
    held: list[list[int]] = [[] for _ in credits]
    given: set[int] = set()
    done: set[int] = set()
    target = lot.randrange(COUNT // 3, COUNT // 2)
    while len(given) < target:
        for holder, credit in enumerate(credits):
            found = node.call("acquire", cursor, holder, credit - len(held[holder]), 1 << 30)
            held[holder] += [delivery.offset for delivery in found]
            given |= {delivery.offset for delivery in found}
            lot.shuffle(held[holder])
            acked = held[holder][: lot.randint(1, len(held[holder]))]
            del held[holder][: len(acked)]
            done |= set(acked)
            node.port.settle([(cursor, offset, Outcome.ACK) for offset in acked])
    node.turn.run_until_quiet()
    again = crashed(node)
    marked = {delivery.offset for delivery in rest(again, cursor) if delivery.count > 1}
    assert given - done <= marked, "what was given out and not acknowledged comes redelivered"
    assert len(marked - given) <= min(sum(credits), MARK_STEP)


def test_marks_of_pops() -> None:
    node = filled()
    pops = node.broker.pops
    place = pops.place("g", "t", 0, True)
    given = 0
    while given < 1_000:
        found = pops.select(place, 32, 1 << 20, None)
        assert found is not None
        pops.take(place, found, pops.pop_ms(), 60_000, False, None)
        pops.acknowledge(place, list(found.offsets), pops.pop_ms())
        given += len(found.offsets)
    node.turn.run_until_quiet()
    again = crashed(node)
    cursor = again.broker.cursors.find("t/0", place.cursor.group)
    assert cursor is not None
    assert given <= cursor.recovered_below <= given + POPPED_AHEAD
