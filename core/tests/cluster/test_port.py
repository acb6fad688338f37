"""Several broker groups as one broker: real brokers in memory behind lines that are cut and mended."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import EARLIEST, END, Outcome, Route
from gantrymq.broker.tables.group_tables import DRAINING, FIRST_GROUP, GONE_TABLE, MEMBER, STATE_TABLE
from gantrymq.cluster import group as cluster_group
from gantrymq.cluster import port as cluster_port
from gantrymq.cluster.names import GROUPS_MAX, cluster_light, home_of, split_light, tag_of
from gantrymq.cluster.port import ClusterPort
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node
from tests.cluster.site import Line, Site, message, publish, queue, take


def test_topics_are_spread_and_every_message_reaches_the_queue() -> None:
    site = Site("a", "b", "c")
    port = site.gateway()
    _, cursor = queue(site, port)
    bodies = publish(site, port, 30, 90)
    used = {name for name in site.nodes if any(site.stored(f"t{number}")[name] for number in range(30))}
    assert used == {"a", "b", "c"}
    assert all(sorted(site.stored(f"t{number}").values()) == [0, 0, 3] for number in range(30)), "a topic has one group"
    assert site.call(port, "stats", [cursor])[0].ready == 90
    assert sorted(take(site, port, cursor)) == sorted(bodies)
    assert site.call(port, "stats", [cursor])[0].ready == 0
    assert take(site, port, cursor) == []


def test_a_topics_messages_keep_their_order() -> None:
    site = Site("a", "b")
    port = site.gateway()
    _, cursor = queue(site, port)
    for number in range(20):
        publish(site, port, 1, 5, number * 5)
    assert take(site, port, cursor) == [b"%d" % number for number in range(100)]


def test_two_gateways_see_the_same_queue() -> None:
    site = Site("a", "b")
    one, other = site.gateway(), site.gateway()
    light, _ = queue(site, one)
    cursor = site.call(other, "open_cursor", f"~{light}", "g", END).cursor
    bodies = publish(site, one, 10, 20) + publish(site, other, 10, 20, 20)
    assert sorted(take(site, other, cursor)) == sorted(bodies)


def test_the_watcher_is_called_whichever_group_has_something() -> None:
    site = Site("a", "b")
    port = site.gateway()
    _, cursor = queue(site, port)
    calls: list[int] = []
    port.watch(cursor, calls.append)
    site.run()
    assert take(site, port, cursor) == []
    calls.clear()
    for number in range(6):
        publish(site, port, 1, 1, number)
        site.call(port, "submit", [message(f"other{number}", b"x")])
        assert calls == [cursor], number
        assert len(take(site, port, cursor)) == 2
        calls.clear()
    port.watch(cursor, None)
    publish(site, port, 8, 8)
    assert calls == []


def test_a_queue_that_nobody_watches_is_asked_again() -> None:
    """AMQP's basic.get: no watcher ever says that a part has something."""
    site = Site("a", "b")
    port = site.gateway()
    _, cursor = queue(site, port)
    for number in range(4):
        assert take(site, port, cursor) == []
        bodies = publish(site, port, 10, 20, number * 20)
        assert sorted(take(site, port, cursor)) == sorted(bodies)


def test_what_comes_back_is_served_again() -> None:
    site = Site("a", "b")
    port = site.gateway()
    _, cursor = queue(site, port)
    bodies = publish(site, port, 10, 20)
    deliveries = []
    while found := site.call(port, "acquire", cursor, 1, 7, 1 << 20):
        deliveries += found
    port.settle([(cursor, delivery.offset, Outcome.REQUEUE) for delivery in deliveries])
    site.run()
    again = []
    while found := site.call(port, "acquire", cursor, 2, 100, 1 << 20):
        again += found
    assert sorted(delivery.message.body for delivery in again) == sorted(bodies)
    assert {delivery.count for delivery in again} == {2}
    port.release(2)
    site.run()
    assert site.call(port, "stats", [cursor])[0].ready == 20


def test_a_lost_group_waits_and_the_others_go_on() -> None:
    site = Site("a", "b")
    port = site.gateway()
    states: list[bool] = []
    port.watch_state(states.append)
    _, cursor = queue(site, port)
    bodies = publish(site, port, 10, 20)
    site.line(port, "b").cut()
    site.run()
    assert states == [True]
    bodies += publish(site, port, 10, 20, 20)
    reached = take(site, port, cursor)
    assert set(reached) < set(bodies)
    assert set(bodies[20:]) <= set(reached), "what was sent since went to the group that is there"
    calls: list[int] = []
    port.watch(cursor, calls.append)
    site.line(port, "b").mend()
    site.run()
    assert calls
    assert sorted(reached + take(site, port, cursor)) == sorted(bodies)


def test_the_last_group_lost_is_the_broker_lost() -> None:
    site = Site("a", "b")
    port = site.gateway()
    states: list[bool] = []
    port.watch_state(states.append)
    light, cursor = queue(site, port)
    site.line(port, "a").cut()
    site.line(port, "b").cut()
    site.run()
    assert states == [True, False]
    assert site.call(port, "submit", [message("t", b"")]) == [ErrorCode.UNAVAILABLE]
    assert site.call(port, "acquire", cursor, 1, 1, 1).code is ErrorCode.NOT_FOUND
    site.line(port, "b").mend()
    site.run()
    assert states == [True, False, True]
    site.line(port, "a").mend()
    site.run()
    cursor = site.call(port, "open_cursor", f"~{light}", "g", END).cursor
    bodies = publish(site, port, 10, 20)
    assert sorted(take(site, port, cursor)) == sorted(bodies)


def test_a_group_that_joins_has_every_route_before_it_is_used() -> None:
    site = Site("a")
    port = site.gateway()
    light, cursor = queue(site, port)
    assert split_light(light)[0] == 0, "a broker alone needs no tags"
    site.add_node("b")
    bodies = publish(site, port, 30, 60)
    assert any(site.stored(f"t{number}")["b"] for number in range(30))
    assert sorted(take(site, port, cursor)) == sorted(bodies)
    assert site.nodes["a"].broker.tables.rows(STATE_TABLE).keys() == {FIRST_GROUP}
    assert site.nodes["b"].broker.tables.rows(STATE_TABLE).keys() == {MEMBER}


def test_routes_removed_while_a_group_was_away_are_removed_there() -> None:
    site = Site("a", "b")
    port = site.gateway()
    lights = [queue(site, port, number)[0] for number in range(4)]
    away = "b"
    mine = [number for number, light in enumerate(lights) if port.maker_of(light) is port.groups[0]]
    assert mine, "create_light goes round the groups"
    site.line(port, away).cut()
    site.run()
    for number in mine:
        assert site.call(port, "remove_routes", [f"r{number}"]) is None
        assert site.call(port, "delete_light", lights[number]) is None
    site.line(port, away).mend()
    site.run()
    node = site.nodes[away]
    assert set(node.broker.tables.rows("route")) == {f"r{n}" for n in range(4) if n not in mine}
    assert len(node.broker.tables.rows("cluster_light")) == 0


def test_a_queue_whose_maker_is_away_takes_no_new_route() -> None:
    site = Site("a", "b")
    port = site.gateway()
    light, _ = queue(site, port)
    maker = next(group.name for group in port.groups if port.maker_of(light) is group)
    site.line(port, maker).cut()
    site.run()
    result = site.call(port, "add_route", Route("new", "prefix", None, "x", light))
    assert result.code is ErrorCode.UNAVAILABLE


def test_two_founders_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    site = Site("a", "b")
    for name in site.nodes:
        queue(site, site.gateway(name))
    port = ClusterPort(site.turn, site.wheel, "both")
    for name, node in site.nodes.items():
        port.add_group(name, Line(node))
    port.complete_now()
    site.run()
    assert [group.name for group in port.ready_groups()] == ["a"]
    assert "each had gateways of their own before" in caplog.text


def test_tables_are_one_table() -> None:
    site = Site("a", "b", "c")
    one, other = site.gateway(), site.gateway()
    seen: list[tuple[str, bytes | None]] = []
    assert site.call(other, "watch_table", "mine", lambda key, value: seen.append((key, value))) == {}
    rows = {f"key{number}": b"%d" % number for number in range(30)}
    assert site.call(one, "put", "mine", list(rows.items())) is None
    assert dict(seen) == rows
    assert site.call(one, "watch_table", "mine", None) == rows
    assert all(node.broker.tables.rows("mine") for node in site.nodes.values())
    seen.clear()
    assert site.call(other, "put", "mine", [("key3", None), ("key4", b"new")]) is None
    assert sorted(seen) == [("key3", None), ("key4", b"new")]
    assert "key3" not in site.call(one, "watch_table", "mine", None)


def test_rows_stay_where_they_are_when_a_group_joins() -> None:
    site = Site("a")
    port = site.gateway()
    assert site.call(port, "put", "mine", [(f"k{n}", b"1") for n in range(20)]) is None
    site.add_node("b")
    seen: list[tuple[str, bytes | None]] = []
    site.call(port, "watch_table", "mine", lambda key, value: seen.append((key, value)))
    assert site.call(port, "put", "mine", [(f"k{n}", None) for n in range(20)]) is None
    assert not site.nodes["a"].broker.tables.rows("mine")
    assert not site.nodes["b"].broker.tables.rows("mine")
    assert sorted(seen) == sorted((f"k{n}", None) for n in range(20))


def test_rows_changed_while_a_group_was_away_are_told() -> None:
    site = Site("a", "b")
    port, other = site.gateway(), site.gateway()
    assert site.call(port, "put", "mine", [(f"k{n}", b"1") for n in range(20)]) is None
    seen: dict[str, bytes | None] = {}
    site.call(port, "watch_table", "mine", lambda key, value: seen.__setitem__(key, value))
    site.line(port, "b").cut()
    site.run()
    at_b = sorted(site.nodes["b"].broker.tables.rows("mine"))
    assert site.call(other, "put", "mine", [(at_b[0], None), (at_b[1], b"2")]) is None
    assert site.call(port, "put", "mine", [(at_b[2], b"3")]).code is ErrorCode.UNAVAILABLE
    site.line(port, "b").mend()
    site.run()
    assert seen[at_b[0]] is None
    assert seen[at_b[1]] == b"2"


def test_leases_outlive_their_groups_absence() -> None:
    site = Site("a", "b")
    one, other = site.gateway(), site.gateway()
    lost: list[str] = []
    names = [f"client{number}" for number in range(10)]
    epochs = {name: site.call(one, "take_lease", name, False, lost.append) for name in names}
    assert all(site.call(other, "take_lease", name, False, lost.append).code is ErrorCode.LEASE_HELD for name in names)
    site.line(one, "a").cut()
    site.line(one, "a").mend()
    site.run()
    assert lost == []
    assert all(site.call(other, "take_lease", name, False, lost.append).code is ErrorCode.LEASE_HELD for name in names)
    site.line(one, "a").cut()
    at_a = [name for name in names if home_of(f"lease/{name}", site.nodes) == "a"]
    assert at_a
    assert isinstance(site.call(other, "take_lease", at_a[0], False, lost.append), int)
    site.line(one, "a").mend()
    site.run()
    assert lost == at_a[:1]
    one.drop_lease(at_a[1], epochs[at_a[1]])
    site.run()
    assert isinstance(site.call(other, "take_lease", at_a[1], False, lost.append), int)


def test_taps_hear_every_group_also_one_that_joins() -> None:
    site = Site("a", "b")
    port = site.gateway()
    heard: list[tuple[bytes, tuple[int, ...]]] = []
    tap = site.call(port, "open_tap", lambda records: heard.extend((one.body, numbers) for one, numbers in records))
    assert site.call(port, "add_volatile", tap, 7, "prefix", None, "a") is None
    bodies = publish(site, port, 10, 20)
    assert sorted(heard) == sorted((body, (7,)) for body in bodies)
    site.add_node("c")
    heard.clear()
    bodies = publish(site, port, 40, 40)
    assert any(site.stored(f"t{number}")["c"] for number in range(40))
    assert sorted(heard) == sorted((body, (7,)) for body in bodies)
    port.remove_volatile(tap, [7])
    heard.clear()
    publish(site, port, 10, 10)
    port.close_tap(tap)
    publish(site, port, 10, 10)
    assert heard == []


def test_a_record_is_read_by_its_position_in_the_cluster() -> None:
    site = Site("a", "b")
    port = site.gateway()
    _, cursor = queue(site, port)
    bodies = publish(site, port, 10, 20)
    deliveries = []
    while found := site.call(port, "acquire", cursor, 1, 100, 1 << 20):
        deliveries += found
    positions = [(delivery.message.physical_offset, delivery.message.size) for delivery in deliveries]
    assert len(set(positions)) == 20
    read = site.call(port, "read", positions)
    assert [one.body for one in read] == [delivery.message.body for delivery in deliveries]
    assert sorted(one.body for one in read) == sorted(bodies)


def test_a_topics_queues_are_numbered_through_and_stay() -> None:
    site = Site("a", "b")
    for node in site.nodes.values():
        node.call("ensure_topic", "t", True)
    port = site.gateway()
    (info,) = [info for info in site.call(port, "topics") if info.name == "t"]
    assert info.read_queues == 8
    cursors = [site.call(port, "open_cursor", f"t/{number}", "g", EARLIEST).cursor for number in range(8)]
    for node in site.nodes.values():
        node.call("submit", [Message("t", b"%d" % number, queue_id=number % 4) for number in range(8)])
    assert sum(len(take(site, port, cursor)) for cursor in cursors) == 16
    site.add_node("c")
    site.nodes["c"].call("ensure_topic", "t", True)
    site.nodes["c"].call("submit", [Message("t", b"new", queue_id=number) for number in range(4)])
    (info,) = [info for info in site.call(port, "topics") if info.name == "t"]
    assert info.read_queues == 12
    fresh = [site.call(port, "open_cursor", f"t/{number}", "g", EARLIEST).cursor for number in range(8, 12)]
    assert [take(site, port, cursor) for cursor in fresh] == [[b"new"]] * 4
    assert site.call(port, "open_cursor", "t/12", "g", END).code is ErrorCode.QUEUE_NOT_FOUND


def test_a_draining_group_gets_no_new_messages() -> None:
    site = Site("a", "b")
    port = site.gateway()
    _, cursor = queue(site, port)
    bodies = publish(site, port, 10, 20)
    before = {name: site.nodes[name].store.written_position for name in site.nodes}
    site.nodes["a"].call("put", STATE_TABLE, [(DRAINING, b"1")])
    site.run()
    quiet = site.nodes["a"].store.written_position
    bodies += publish(site, port, 10, 20, 20)
    assert site.nodes["a"].store.written_position == quiet >= before["a"]
    assert sorted(take(site, port, cursor)) == sorted(bodies)
    site.nodes["a"].call("put", STATE_TABLE, [(DRAINING, None)])
    publish(site, port, 60, 60)
    assert site.nodes["a"].store.written_position > quiet


def test_purge_and_deletion_reach_every_group() -> None:
    site = Site("a", "b")
    port = site.gateway()
    light, cursor = queue(site, port)
    publish(site, port, 10, 20)
    assert site.call(port, "purge", cursor) == 20
    assert site.call(port, "delete_cursor", cursor) is None
    assert site.call(port, "delete_light", light) is None
    for node in site.nodes.values():
        assert not node.broker.tables.rows("route")
        assert not [key for key in node.broker.tables.rows("cursor") if key != "next"]


def test_the_choice_of_a_group_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_port, "CHOSEN_MAX", 10)
    site = Site("a", "b")
    port = site.gateway()
    publish(site, port, 35, 35)
    assert len(port._chosen) <= 10


def test_the_numbers_of_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_port, "PLACES_MAX", 5)
    site = Site("a", "b")
    port = site.gateway()
    for number in range(20):
        assert site.call(port, "ensure_topic", f"t{number}", True).name == f"t{number}"
        assert site.call(port, "ensure_topic", f"t{number}", False).read_queues == 4
        for node in site.nodes.values():
            node.broker.delete_topic(f"t{number}")
        site.run()
    assert len(port.places) <= 5


def test_more_groups_than_handles_can_name_are_refused() -> None:
    port = ClusterPort(ManualTurn(), ManualWheel(ManualClock()), "g")
    line = Line(Node(MemoryFileSystem(), False))
    line.port = None
    for number in range(GROUPS_MAX):
        port.add_group(f"g{number}", line)
    with pytest.raises(GantryError) as caught:
        port.add_group("more", line)
    assert caught.value.code is ErrorCode.LIMIT_REACHED


@given(st.lists(st.text(min_size=1, max_size=8), min_size=2, max_size=6, unique=True), st.text(max_size=20))
def test_only_names_of_a_group_that_left_move(groups: list[str], name: str) -> None:
    home = home_of(name, groups)
    for gone in groups:
        if gone != home:
            assert home_of(name, [group for group in groups if group != gone]) == home


@given(st.integers(0, (1 << 20) - 1), st.integers(1, (1 << 33) - 1))
def test_light_ids_name_their_maker(tag: int, local: int) -> None:
    assert split_light(cluster_light(tag, local)) == (tag, local)


def test_tags_differ_and_are_not_the_founders() -> None:
    tags = [tag_of(f"broker-{number}") for number, _ in zip(range(100), itertools.count(), strict=False)]
    assert len(set(tags)) == 100
    assert 0 not in tags


def test_what_was_deleted_while_its_maker_was_away_stays_deleted() -> None:
    site = Site("a", "b")
    port = site.gateway()
    lights = [queue(site, port, number) for number in range(4)]
    light, cursor = lights[0]
    maker = port.maker_of(light)
    assert maker is not None
    other = next(group for group in port.groups if group is not maker)
    shared = next(found for found, _ in lights if port.maker_of(found) is other)
    reader = site.call(port, "open_cursor", f"~{shared}", "reader", END).cursor
    site.line(port, maker.name).cut()
    site.run()
    assert site.call(port, "remove_routes", ["r0"]) is None
    assert site.call(port, "delete_light", light) is None
    assert site.call(port, "delete_cursor", reader) is None
    assert all(
        len(node.broker.tables.rows(GONE_TABLE)) == 3 * (name == other.name) for name, node in site.nodes.items()
    )
    site.line(port, maker.name).mend()
    site.wait(2000)
    for name, node in site.nodes.items():
        rows = node.broker.tables.rows
        assert set(rows("route")) == {"r1", "r2", "r3"}, name
        assert "reader" not in {json.loads(value)[1] for key, value in rows("cursor").items() if key != "next"}
        assert not rows(GONE_TABLE), "everybody knows"
    publish(site, port, 10, 20)
    assert site.call(port, "acquire", cursor, 1, 1, 1).code is ErrorCode.NOT_FOUND


def test_a_cursor_made_while_a_group_was_away_has_a_part_there_before_messages_come() -> None:
    site = Site("a", "b")
    port, other = site.gateway(), site.gateway()
    light, _ = queue(site, port)
    site.line(port, "b").cut()
    site.run()
    made = site.call(port, "open_cursor", f"~{light}", "late", END)
    assert not isinstance(made, GantryError)
    site.line(port, "b").mend()
    site.run()
    bodies = publish(site, other, 10, 20)
    assert sorted(take(site, port, made.cursor)) == sorted(bodies)


def test_an_emptied_group_may_leave() -> None:
    """Rows, leases and the say over light queues move; messages are consumed; then nobody misses it."""
    site = Site("a", "b", "c")
    port, other = site.gateway(), site.gateway()
    lights = [queue(site, port, number) for number in range(6)]
    rows = {f"key{number}": b"%d" % number for number in range(300)}
    for gateway in (port, other):
        site.call(gateway, "watch_table", "mine", lambda key, value: None)
    assert site.call(port, "put", "mine", list(rows.items())) is None
    lost: list[str] = []
    for number in range(20):
        site.call(port, "take_lease", f"client{number}", False, lost.append)
    bodies = publish(site, port, 10, 20)
    leaving = next(group.name for group in port.groups if group.tag == 0)
    site.nodes[leaving].call("put", STATE_TABLE, [(DRAINING, b"1")])
    site.wait(1000)
    assert site.call(other, "put", "mine", [("key5", None), ("key6", b"new"), ("key300", b"300")]) is None
    rows |= {"key6": b"new", "key300": b"300"}
    del rows["key5"]
    site.wait(3000)
    assert not site.nodes[leaving].broker.tables.rows("mine")
    for _, cursor in lights:
        assert sorted(take(site, port, cursor)) == sorted(bodies)
    quiet = site.nodes[leaving].store.written_position
    for found, lines in site.gateways:
        lines[leaving].cut()
        next(group for group in found.groups if group.name == leaving).registered = False
        found.members_changed()
    site.run()
    assert lost == []
    assert all(
        site.call(other, "take_lease", f"client{number}", False, lost.append).code is ErrorCode.LEASE_HELD
        for number in range(20)
    )
    third = site.gateway(*(name for name in site.nodes if name != leaving))
    assert site.call(third, "watch_table", "mine", None) == rows
    for number, (light, _) in enumerate(lights):  # routes of every queue can be changed
        assert site.call(third, "remove_routes", [f"r{number}"]) is None
        assert site.call(third, "add_route", Route(f"new{number}", "prefix", None, "a", light)) is None
    bodies = publish(site, third, 10, 20)
    for light, _ in lights:
        assert sorted(take(site, other, site.call(other, "open_cursor", f"~{light}", "g", END).cursor)) == sorted(
            bodies
        )
    site.add_node("d")
    bodies = publish(site, third, 30, 60)
    for light, _ in lights:
        assert sorted(take(site, third, site.call(third, "open_cursor", f"~{light}", "g", END).cursor)) == sorted(
            bodies
        )
    assert site.nodes[leaving].store.written_position == quiet


def test_a_group_that_stays_after_all_decides_again() -> None:
    site = Site("a", "b", "c")
    port = site.gateway()
    leaving = port.groups[1]
    site.nodes[leaving.name].call("put", STATE_TABLE, [(DRAINING, b"1")])
    site.wait(2000)
    successors = [group for group in port.groups if leaving.tag in group.inherited]
    assert len(successors) == 1
    site.nodes[leaving.name].call("put", STATE_TABLE, [(DRAINING, None)])
    site.wait(2000)
    assert not any(group.inherited for group in port.groups)
    lights = [queue(site, port, number) for number in range(6)]
    third = next(group.name for group in port.groups if group is not leaving and group not in successors)
    site.line(port, third).cut()
    site.run()
    site.line(port, third).mend()
    site.wait(7000)
    bodies = publish(site, port, 30, 60)
    for _, cursor in lights:
        assert sorted(take(site, port, cursor)) == sorted(bodies)


def test_a_join_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    site = Site("a", "b")
    port = site.gateway()
    _, cursor = queue(site, port)
    line = site.line(port, "b")
    line.cut()
    line.port = None
    refusals = 3
    mended = LocalBrokerPort(site.nodes["b"].broker)
    line.port = mended
    watch_table = mended.watch_table

    def refuse(table: str, on_change: Any, token: Any, on_done: Any) -> None:
        nonlocal refusals
        if table == "route" and refusals:
            refusals -= 1
            on_done(token, GantryError(ErrorCode.BUSY, "later"))
        else:
            watch_table(table, on_change, token, on_done)

    mended.watch_table = refuse  # type: ignore[method-assign]
    for on_state in line.states:
        on_state(True)
    site.wait(100)
    assert [group.name for group in port.ready_groups()] == ["a"]
    site.wait(5000)
    assert [group.name for group in port.ready_groups()] == ["a", "b"]
    assert caplog.text.count("broker group b is not used yet: later") == 1
    bodies = publish(site, port, 10, 20)
    assert sorted(take(site, port, cursor)) == sorted(bodies)


def test_two_holders_of_a_lease_are_one_when_its_home_is_clear() -> None:
    """A group left for one gateway and not yet for the other: both gave the lease away."""
    site = Site("a", "b")
    one, other = site.gateway(), site.gateway()
    names = [f"client{number}" for number in range(20)]
    lost: list[tuple[int, str]] = []
    for name in names:
        assert isinstance(site.call(one, "take_lease", name, False, lambda found: lost.append((0, found))), int)
    for port in (one, other):
        site.line(port, "b").cut()
    next(group for group in other.groups if group.name == "b").registered = False
    other.members_changed()
    at_b = [name for name in names if home_of(f"lease/{name}", site.nodes) == "b"]
    for name in at_b:
        assert isinstance(site.call(other, "take_lease", name, True, lambda found: lost.append((1, found))), int)
    next(group for group in one.groups if group.name == "b").registered = False
    one.members_changed()
    site.run()
    assert sorted(lost) == sorted((0, name) for name in at_b)


def test_changes_while_a_group_joins_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_group, "PENDING_MAX", 3)
    group = cluster_group.Group("a", 0, Line(Node(MemoryFileSystem(), False)))
    for _ in range(10):
        group.later(lambda group: iter(()))  # type: ignore[arg-type, return-value]
    assert len(group.pending) == 4
    with pytest.raises(GantryError) as caught:
        group.take_pending()
    assert caught.value.code is ErrorCode.BUSY


@pytest.mark.parametrize("first", ["broker-9", "broker-2251"])
def test_a_new_group_whose_name_has_the_hash_of_another_is_refused(
    first: str, caplog: pytest.LogCaptureFixture
) -> None:
    second = {"broker-9": "broker-2251", "broker-2251": "broker-9"}[first]
    assert tag_of(first) == tag_of(second)
    site = Site("a", first)
    port = site.gateway()
    _, cursor = queue(site, port)
    site.add_node(second)
    assert [group.name for group in port.ready_groups()] == ["a", first]
    assert f"its name has the same 20-bit hash as {first}; give it another broker.name" in caplog.text
    assert [group.name for group in site.gateway().ready_groups()] == ["a", first], (
        "a gateway that comes later says the same"
    )
    bodies = publish(site, port, 10, 20)
    assert sorted(take(site, port, cursor)) == sorted(bodies)


def test_of_two_new_groups_with_the_same_hash_one_stays_at_every_gateway() -> None:
    site = Site("a", "broker-9", "broker-2251")
    used = [group.name for group in site.gateway().ready_groups()]
    assert len(used) == 2
    assert [group.name for group in site.gateway().ready_groups()] == used


def test_a_group_whose_disk_was_replaced_is_refused_under_its_old_name(caplog: pytest.LogCaptureFixture) -> None:
    """Its light queues would count from 1 again, and the other groups have queues of these ids."""
    site = Site("a", "b", "c")
    port = site.gateway()
    lights = [queue(site, port, number)[0] for number in range(6)]
    lost = next(group.name for group in port.groups if group.tag and group.tag in {light >> 33 for light in lights})
    site.line(port, lost).cut()
    site.run()
    site.line(port, lost).node = site.nodes[lost] = Node(MemoryFileSystem(), False)
    site.line(port, lost).mend()
    site.wait(8000)
    assert [group.name for group in port.ready_groups()] == [name for name in ("a", "b", "c") if name != lost]
    assert f"broker group {lost} is new here" in caplog.text
    assert "has queues of an earlier group of that name; give it another broker.name" in caplog.text
    site.add_node("another")
    assert "another" in [group.name for group in port.ready_groups()]
    made = [queue(site, port, 10 + number)[0] for number in range(30)]
    assert not set(made) & set(lights)


def test_the_limit_of_bodies_is_that_of_the_smallest_group(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site("a", "b")
    port = site.gateway()
    own = site.line(port, "a").body_bytes_max()
    assert port.body_bytes_max() == own > 10_000
    line = site.line(port, "b")
    monkeypatch.setattr(line, "body_bytes_max", lambda: 10_000)
    assert port.body_bytes_max() == 10_000
    line.cut()
    site.run()
    assert port.body_bytes_max() == 10_000, "it may be back at any time"
    port.groups[1].registered = False
    assert port.body_bytes_max() == own
