"""What a full disk refuses although it is done in memory: it comes into the log when there is room, and holds after a restart."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gantrymq.broker.consuming import settled as settled_module
from gantrymq.broker.port import EARLIEST, END, Delivery, Outcome, Route
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from tests.broker.node import Node, full_disk
from tests.store.crash_states import CrashFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gantrymq.store.testing import MemoryFileSystem

FULL_MS = 5_000


def queue(node: Node, tag: str = "a") -> tuple[int, int]:
    """A light queue with a route for a tag, and its cursor."""
    light = node.call("create_light")
    node.call("add_route", Route(f"r{light}", "prefix", None, tag, light))
    return light, node.call("open_cursor", f"~{light}", "g", EARLIEST).cursor


def send(node: Node, count: int, tag: str = "a", first: int = 0) -> None:
    batch = [Message("t", b"%d" % number, b"TAGS\x01%b\x02" % tag.encode(), tag, queue_id=0)
             for number in range(first, first + count)]  # fmt: skip
    assert all(isinstance(result, int) for result in node.call("submit", batch))


def take(node: Node, cursor: int, count: int = 99) -> list[Delivery]:
    found: list[Delivery] = node.call("acquire", cursor, 1, count, 1 << 30)
    return found


def bodies(found: list[Delivery]) -> list[int]:
    return [int(delivery.message.body) for delivery in found]


def settle(node: Node, cursor: int, found: list[Delivery], outcome: Outcome = Outcome.ACK) -> None:
    node.port.settle([(cursor, delivery.offset, outcome) for delivery in found])
    node.turn.run_until_quiet()


def wait(node: Node) -> None:
    node.wheel.advance(FULL_MS)
    node.turn.run_until_quiet()


def killed(node: Node) -> Node:
    return Node(node.files.after_process_crash(), False)  # type: ignore[arg-type]


def refused(node: Node, method: str, *args: Any) -> None:
    """The disk is full: the caller is told so."""
    box: list[Any] = []
    getattr(node.port, method)(*args, None, lambda token, result: box.append(result))
    node.turn.run_until_quiet()
    assert isinstance(box[0], GantryError)
    assert box[0].code is ErrorCode.STORE_FULL


@pytest.fixture
def files() -> MemoryFileSystem:
    return CrashFiles()


def test_acknowledgements_come_into_the_log_when_there_is_room(files: MemoryFileSystem) -> None:
    node = Node(files, False)
    _, cursor = queue(node)
    send(node, 10)
    found = take(node, cursor)
    settle(node, cursor, found[:2])
    with full_disk(files):
        settle(node, cursor, found[2:7:2])
        settle(node, cursor, found[8:9], Outcome.REQUEUE)
        wait(node)
        settle(node, cursor, found[3:4])
    again = killed(node)
    assert bodies(take(again, cursor)) == [2, 3, 4, 5, 6, 7, 8, 9]  # nothing could be written
    wait(node)
    again = killed(node)
    left = take(again, cursor)
    assert bodies(left) == [5, 7, 8, 9]
    assert again.broker.cursors.get(cursor).window.counts == {8: 1}


def test_a_count_is_not_doubled_by_the_state(files: MemoryFileSystem) -> None:
    """The state holds what the same record says entry by entry."""
    node = Node(files, False)
    _, cursor = queue(node)
    send(node, 2)
    with full_disk(files):
        settle(node, cursor, take(node, cursor), Outcome.REQUEUE)
    node.wheel.advance(FULL_MS)  # the state is due in the next turn...
    node.port.settle([(cursor, delivery.offset, Outcome.REQUEUE) for delivery in take(node, cursor)])
    node.turn.run_until_quiet()
    wait(node)
    assert node.broker.cursors.get(cursor).window.counts == {0: 2, 1: 2}
    assert killed(node).broker.cursors.get(cursor).window.counts == {0: 2, 1: 2}


def test_a_purge_that_was_refused_holds(files: MemoryFileSystem) -> None:
    node = Node(files, False)
    _, cursor = queue(node)
    send(node, 5)
    with full_disk(files):
        assert node.call("purge", cursor) == 5
    wait(node)
    assert take(killed(node), cursor) == []


@contextmanager
def five_on_a_full_disk(files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Node, list[int]]]:
    """Five queues with three entries each, of which two were acknowledged while the disk was full; it is full meanwhile."""
    monkeypatch.setattr(settled_module, "STATES_AT_ONCE", 2)
    node = Node(files, False)
    queues = [queue(node)[1] for _ in range(5)]
    send(node, 3)
    with full_disk(files):
        for cursor in queues:
            settle(node, cursor, take(node, cursor, 2))
        yield node, queues


def test_many_cursors_are_written_a_part_at_a_time(files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    with five_on_a_full_disk(files, monkeypatch) as (node, queues):
        node.port.delete_cursor(queues[4], None, lambda token, result: None)
        node.turn.run_until_quiet()
    node.wheel.advance(1_000)
    node.turn.run_until_quiet()
    again = killed(node)
    assert [len(take(again, cursor)) for cursor in queues[:4]] == [1, 1, 3, 3]
    wait(node)
    again = killed(node)
    assert [len(take(again, cursor)) for cursor in queues[:4]] == [1, 1, 1, 1]
    assert {cursor.id for cursor in again.broker.cursors.views()} == set(queues[:4])


def test_a_clean_stop_writes_all_that_was_refused(files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer would have come to a part of it."""
    with five_on_a_full_disk(files, monkeypatch) as (node, queues):
        pass
    node.stop()
    again = Node(files, False)
    assert [bodies(take(again, cursor)) for cursor in queues] == [[2]] * 5


def test_a_disk_that_is_still_full_holds_no_stop_up(files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    with five_on_a_full_disk(files, monkeypatch) as (node, queues):
        node.broker.close()
    assert [len(take(killed(node), cursor)) for cursor in queues] == [3] * 5


def test_a_cursor_whose_row_was_refused_is_made_durable_when_it_is_opened_again(files: MemoryFileSystem) -> None:
    """Its owner is told that it could not be opened, and tries again: what comes from then on is not skipped by a restart."""
    node = Node(files, False)
    light = queue(node)[0]
    send(node, 3)
    with full_disk(files):
        refused(node, "open_cursor", f"~{light}", "late", END)
        refused(node, "open_cursor", f"~{light}", "late", END)
    cursor = node.call("open_cursor", f"~{light}", "late", END).cursor
    send(node, 2, first=3)
    settle(node, cursor, take(node, cursor, 1))
    again = killed(node)
    assert again.call("open_cursor", f"~{light}", "late", END).cursor == cursor
    assert bodies(take(again, cursor)) == [4]


def test_what_was_deleted_stays_deleted(files: MemoryFileSystem) -> None:
    """Route, cursor and light queue are gone from memory at once; their rows go when there is room, whatever the caller does."""
    node = Node(files, False)
    light, cursor = queue(node)
    other, kept = queue(node, "b")
    send(node, 2, "a")
    with full_disk(files):
        refused(node, "remove_routes", [f"r{other}"])
        refused(node, "delete_cursor", kept)
        refused(node, "delete_light", light)
        refused(node, "delete_cursor", kept)  # not: it is gone already
    wait(node)
    assert node.store.light_visible_end(light) == 0
    again = killed(node)
    tables = again.broker.tables
    assert (tables.rows("route"), tables.rows("light").keys()) == ({}, {"next", str(other)})
    assert again.broker.cursors.count() == 0
    send(again, 2, "b")
    assert again.store.light_visible_end(other) == 0
    assert cursor != kept


def test_a_light_queue_that_was_deleted_is_no_ghost_after_a_crash(files: MemoryFileSystem) -> None:
    """Its row is in the log; that its entries are gone was to be written a second later."""
    node = Node(files, False)
    light, _ = queue(node)
    other, _ = queue(node, "b")
    send(node, 3, "a")
    send(node, 2, "b")
    node.background()
    node.call("delete_light", light)
    again = killed(node)
    assert again.store.light_ids() == [other]
    assert again.store.light_live_units == 2
    assert again.broker.cursors.find(f"~{light}", "g") is None
    again.background()
    assert killed(again).store.light_ids() == [other]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flag", 1 << 31), ("flag", -(1 << 31) - 1), ("born_ms", 1 << 63), ("reconsume_times", 1 << 31), ("queue_id", 1 << 31),
        ("sys_flag", 1 << 31), ("prepared_offset", 1 << 63), ("body", "text"),
    ],
)  # fmt: skip
def test_a_field_that_fits_no_record_is_its_senders_alone(files: MemoryFileSystem, field: str, value: object) -> None:
    """What others sent in the same turn is stored, also what the broker itself has to write."""
    node = Node(files, False)
    light, cursor = queue(node)
    send(node, 1)
    settle(node, cursor, take(node, cursor))
    batches = [
        [Message("t", b"%d" % (10 * row + n), b"TAGS\x01a\x02", "a", queue_id=0) for n in range(3)] for row in range(3)
    ]
    setattr(batches[1][1], field, value)
    results: list[Any] = []
    for batch in batches:
        node.port.submit(batch, None, lambda token, result: results.append(result))
    node.port.put("things", [("key", b"value")], None, lambda token, result: results.append(result))
    node.turn.run_until_quiet()
    assert results == [None, [1, 2, 3], [4, ErrorCode.MESSAGE_ILLEGAL, 5], [6, 7, 8]]
    assert node.store.queues_of("t") == [0]
    again = killed(node)
    assert again.broker.tables.rows("things") == {"key": b"value"}
    assert bodies(take(again, cursor)) == [0, 1, 2, 10, 12, 20, 21, 22]
    assert again.store.light_visible_end(light) == 9


def test_the_id_of_a_cursor_whose_row_was_lost_is_not_used_again(files: MemoryFileSystem) -> None:
    """Its acknowledgements stand in the log: the start after the next would take them for those of another cursor."""
    node = Node(files, False)
    light = queue(node)[0]
    send(node, 3)
    with full_disk(files):
        refused(node, "open_cursor", f"~{light}", "lost", EARLIEST)
    lost = node.broker.cursors.find(f"~{light}", "lost")
    assert lost is not None
    settle(node, lost.id, take(node, lost.id))
    node = killed(node)
    cursor = node.call("open_cursor", f"~{light}", "other", EARLIEST).cursor
    assert cursor > lost.id
    assert bodies(take(killed(node), cursor)) == [0, 1, 2]


def routes(node: Node) -> dict[str, str]:
    """As they are used: expressions by id."""
    return {name: route.expression for name, route in node.broker.router.routes.items()}


def test_a_route_that_the_log_refused_is_not_used(files: MemoryFileSystem) -> None:
    node = Node(files, False)
    light, cursor = queue(node)
    with full_disk(files):
        refused(node, "add_route", Route("new", "prefix", None, "b", light))
        refused(node, "add_route", Route(f"r{light}", "prefix", None, "c", light))
    assert routes(node) == {f"r{light}": "a"} == routes(killed(node))
    send(node, 1, "a", 1)
    send(node, 1, "b", 2)
    send(node, 1, "c", 3)
    assert bodies(take(node, cursor)) == [1]


def test_changes_of_a_route_on_their_way_to_a_full_disk(files: MemoryFileSystem) -> None:
    node = Node(files, False)
    light, _ = queue(node)
    name, answers = f"r{light}", []

    def change(tag: str) -> None:
        route = Route(name, "prefix", None, tag, light)
        node.port.add_route(route, tag, lambda token, result: answers.append((token, isinstance(result, GantryError))))

    with full_disk(files):
        change("b")
        change("c")
        node.turn.run_until_quiet()
        assert routes(node) == {name: "a"} == routes(killed(node))
    change("d")
    change("e")
    node.turn.run_until_quiet()
    assert routes(node) == {name: "e"} == routes(killed(node))
    with full_disk(files):
        change("f")
        node.port.remove_routes([name], None, lambda token, result: None)
        node.turn.run_until_quiet()
        assert routes(node) == {}, "it is written when there is room"
        change("g")
        node.turn.run_until_quiet()
        assert routes(node) == {}
    wait(node)
    assert routes(node) == {} == routes(killed(node))
    assert answers == [("b", True), ("c", True), ("d", False), ("e", False), ("f", True), ("g", True)]


def test_a_route_that_was_stored_stays_when_the_next_is_refused(files: MemoryFileSystem) -> None:
    node = Node(files, True)
    light = node.call("create_light")
    kept = node.start("add_route", route := Route("r", "prefix", None, "a", light))
    with full_disk(files):
        refused(node, "add_route", Route("r", "prefix", None, "b", light))
    assert routes(node) == {"r": "a"}
    assert not kept
    node.flush()
    assert kept == [None]
    node.call("add_route", route)
    assert routes(node) == {"r": "a"} == routes(killed(node))
