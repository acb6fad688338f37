"""Where moved entries lie: walked while they change, taken over from a snapshot."""

from __future__ import annotations

from gantrymq.broker.consuming.entries.moved import WALKS_MAX, MovedPlaces
from gantrymq.store.checkpoints.snapshot_file import moved_block, read_moved


def places(count: int) -> MovedPlaces:
    moved = MovedPlaces()
    for offset in range(count):
        moved.put([("~1", offset)], (1000 + offset, 50, 0))
    return moved


def test_a_walk_meets_every_entry_although_some_come_and_go() -> None:
    moved = places(100)
    met: dict[int, tuple[int, int, int]] = {}
    for number, entries in enumerate(moved.walk("~1", 10)):
        assert len(entries) <= 10
        met.update(entries)
        if number == 3:  # as many come as go: an iterator over a dict would not notice
            moved.drop("~1", list(range(60)))
            for offset in range(200, 260):
                moved.put([("~1", offset)], (offset, 1, 0))
    assert met.keys() >= moved.queues["~1"].keys()


def test_a_table_that_never_rests_is_copied_in_the_end() -> None:
    moved = places(40)
    steps = 0
    met: set[int] = set()
    for entries in moved.walk("~1", 10):
        steps += 1
        met |= {offset for offset, _ in entries}
        moved.put([("~1", 1000 + steps)], (1, 1, 0))
    assert steps <= WALKS_MAX + 6
    assert met >= set(range(40))
    assert list(moved.walk("~2", 10)) == []


def test_only_what_the_log_has_and_somebody_needs_is_taken_over() -> None:
    entries = [(offset, (1000 + offset, 50, -3)) for offset in range(6)]
    queue, found = read_moved(moved_block("topic/0", entries)[9:])
    assert (queue, found) == ("topic/0", entries)
    moved = MovedPlaces()
    moved.load([(queue, found)], 1002, lambda name, offset: name == "topic/0" and offset != 4)
    assert moved.queues == {"topic/0": {offset: (1000 + offset, 50, -3) for offset in (2, 3, 5)}}
    assert moved.count == 3
