"""Cursors at rest: nobody can tell whether one has an object or not."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gantrymq.broker.consuming.acks import AckKind
from gantrymq.broker.consuming.known.idle import PAGE, IdleCursors
from gantrymq.broker.consuming.window import AckWindow
from gantrymq.broker.port import EARLIEST, SHARED_GROUP, Outcome, Route
from gantrymq.model.message import Message
from tests.broker.node import Node
from tests.store.crash_states import CrashFiles


def lights(node: Node, count: int, routed: int = 0) -> list[int]:
    """Light queues with a cursor each; the first one is fed by tag `a`."""
    found = []
    for number in range(count):
        light = node.call("create_light")
        if number == routed:
            node.call("add_route", Route("r", "prefix", "t", "a", light))
        node.call("open_cursor", f"~{light}", f"mqtt:c{number}", EARLIEST)
        found.append(light)
    return found


def send(node: Node, count: int = 1) -> None:
    node.call("submit", [Message("t", b"x", b"TAGS\x01a\x02", "a", queue_id=0) for _ in range(count)])


def rest_all(node: Node) -> int:
    cursors = node.broker.cursors
    return sum([cursors.rest(cursor) for cursor in list(cursors.by_id.values())])


def test_what_is_settled_and_unwatched_rests_and_goes_on_where_it_was() -> None:
    node = Node(CrashFiles(), False)
    light, _ = lights(node, 2)
    cursors, woken = node.broker.cursors, list[int]()
    (number,) = [cursor.id for cursor in cursors.views() if cursor.light == light]
    node.port.watch(number, woken.append)
    assert rest_all(node) == 1, "the other one"
    send(node, 3)
    assert woken == [number]
    for delivery in node.call("acquire", number, 7, 10, 1 << 20):
        node.port.settle([(number, delivery.offset, Outcome.ACK)])
        assert rest_all(node) == 0, "it is watched, or has entries in flight"
    node.port.watch(number, None)
    node.turn.run_until_quiet()
    assert rest_all(node) == 1
    assert not cursors.by_id
    assert not node.broker.wakes._light, "nothing keeps its object"
    send(node)
    info = node.call("open_cursor", f"~{light}", "mqtt:c0", EARLIEST)
    assert (info.cursor, info.ready, info.next_offset) == (number, 1, 3)
    node.port.watch(number, woken.append)
    node.turn.run_until_quiet()
    (delivery,) = node.call("acquire", number, 7, 10, 1 << 20)
    assert (delivery.offset, delivery.count) == (3, 1)


def test_what_is_at_rest_is_so_after_a_kill_and_a_new_one_gets_another_id() -> None:
    node = Node(CrashFiles(), False)
    light, other = lights(node, 2)
    (number,) = [cursor.id for cursor in node.broker.cursors.views() if cursor.light == light]
    send(node, 2)
    (delivery, _) = node.call("acquire", number, 7, 10, 1 << 20)
    node.port.settle([(number, delivery.offset, Outcome.ACK)])
    node.turn.run_until_quiet()
    again = Node(node.files.after_process_crash(), False)  # type: ignore[arg-type]
    cursors = again.broker.cursors
    assert [cursor.light for cursor in cursors.by_id.values()] == [light], "one of its entries was possibly delivered"
    assert again.call("open_cursor", f"~{light}", "mqtt:new", EARLIEST).cursor not in (number, 0)
    (delivery,) = again.call("acquire", number, 7, 10, 1 << 20)
    assert (delivery.offset, delivery.count) == (1, 2)
    again.port.settle([(number, 1, Outcome.ACK)])
    again.turn.run_until_quiet()
    assert rest_all(again) == 1, "one of a queue"
    assert cursors.floor_of_light(light) == 0, "the new one has done nothing"
    again.call("delete_light", light)
    assert [cursor.light for cursor in cursors.views()] == [other]
    third = Node(again.files.after_process_crash(), False)  # type: ignore[arg-type]
    assert [cursor.light for cursor in third.broker.cursors.views()] == [other]


def test_a_clean_stop_writes_down_that_marks_ran_ahead() -> None:
    node = Node(CrashFiles(), False)
    light, _ = lights(node, 2)
    (number,) = [cursor.id for cursor in node.broker.cursors.views() if cursor.light == light]
    send(node)
    (delivery,) = node.call("acquire", number, 7, 500, 1 << 20)
    node.port.settle([(number, delivery.offset, Outcome.ACK)])
    node.turn.run_until_quiet()
    assert rest_all(node) == 2
    send(node)
    node.broker.close()
    node.store.close()
    again = Node(node.files.after_process_crash(), False)  # type: ignore[arg-type]
    (delivery,) = again.call("acquire", number, 7, 10, 1 << 20)
    assert (delivery.offset, delivery.count) == (1, 1), "it was never delivered"


def test_shared_subscriptions_and_topics_keep_theirs() -> None:
    node = Node(CrashFiles(), False)
    light = node.call("create_light")
    node.call("open_cursor", f"~{light}", SHARED_GROUP, EARLIEST)
    send(node)
    node.call("open_cursor", "t/0", "g", EARLIEST)
    assert rest_all(node) == 0


ENTRIES = st.lists(
    st.one_of(
        st.tuples(st.just(AckKind.MARK), st.lists(st.integers(0, 30), min_size=1, max_size=1)),
        st.tuples(
            st.just(AckKind.RANGE),
            st.tuples(st.integers(0, 20), st.integers(0, 9)).map(lambda pair: [pair[0], sum(pair)]),
        ),
        st.tuples(st.just(AckKind.LIST), st.lists(st.integers(0, 20), min_size=1, unique=True)),
    )
)


@given(ENTRIES)
def test_replay_is_as_with_a_window(entries: list[tuple[AckKind, list[int]]]) -> None:
    idle, window = IdleCursors(), AckWindow(3)
    idle.put(5, 9, 3, 3)
    for kind, offsets in entries:
        if not idle.replay(kind, 5, offsets):
            break  # it gets a window as it was before
        if kind is AckKind.MARK:
            window.marked = max(window.marked, offsets[0])
        elif kind is AckKind.RANGE:
            window.done_range(*offsets)
        else:
            for offset in offsets:
                window.done(offset)
        assert window.is_at_rest()
        assert idle.place(5) == (9, window.floor, window.marked)


@given(st.lists(st.tuples(st.integers(1, 3 * PAGE), st.integers(1, 3 * PAGE))))
def test_places_are_a_dict(pairs: list[tuple[int, int]]) -> None:
    """Ids and queues come and go: what is known agrees with a dict, and nothing is left of it in the end."""
    idle, model = IdleCursors(), dict[int, tuple[int, int, int]]()
    for cursor, light in pairs:
        if cursor in model:
            idle.take_out(cursor)
            del model[cursor]
        elif idle.put(cursor, light, cursor + 1, cursor + 2):
            model[cursor] = (light, cursor + 1, cursor + 2)
        else:
            assert light in [place[0] for place in model.values()]
        assert {number: idle.place(number) for number in idle.ids()} == model
        assert idle.count == len(model)
        assert {idle.of_light(place[0]) for place in model.values()} == model.keys()
    for cursor in list(model):
        idle.take_out(cursor)
    assert not idle._pages
    assert not idle._by_light


def test_names_come_from_the_row() -> None:
    idle = IdleCursors()
    idle.rows = {"7": json.dumps(["~3", "mqtt:ü", 0]).encode()}
    assert idle.names(7) == ("~3", "mqtt:ü")
