"""Several broker groups as one broker: real brokers in memory behind lines that are cut and mended."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import EARLIEST, END, Outcome
from gantrymq.broker.tables.group_tables import DRAINING, FIRST_GROUP, MEMBER, STATE_TABLE, TAG
from gantrymq.broker.tables.slot_table import slot_of
from gantrymq.cluster import group as cluster_group
from gantrymq.cluster import port as cluster_port
from gantrymq.cluster.names import GROUPS_MAX, cluster_light, home_of, split_light, tag_of
from gantrymq.cluster.port import SETTLE_MS, ClusterPort
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node
from tests.cluster.several import PULLED_MS, Several
from tests.cluster.site import Line, message, publish, queue, take
from tests.cluster.slots.slot_site import SlotSite


def test_topics_are_spread_and_every_message_reaches_the_queue() -> None:
    site = Several("a", "b", "c")
    port = site.gateway()
    _, cursor = queue(site, port)
    bodies = publish(site, port, 30, 90)
    used = {name for name in site.nodes if any(site.stored(f"t{number}")[name] for number in range(30))}
    assert used == {"a", "b", "c"}
    assert all(sorted(site.stored(f"t{number}").values()) == [0, 0, 3] for number in range(30)), "a topic has one group"
    site.wait(PULLED_MS)
    assert site.call(port, "stats", [cursor])[0].ready == 90
    assert sorted(take(site, port, cursor)) == sorted(bodies)
    assert site.call(port, "stats", [cursor])[0].ready == 0
    assert take(site, port, cursor) == []


def test_a_topics_messages_keep_their_order() -> None:
    for owner in "ab":
        site = Several("a", "b")
        port = site.gateway()
        _, cursor = site.queue_at(port, owner)
        for number in range(20):
            publish(site, port, 1, 5, number * 5)
        site.wait(PULLED_MS)
        assert take(site, port, cursor) == [b"%d" % number for number in range(100)]


def test_two_gateways_see_the_same_queue() -> None:
    site = Several("a", "b")
    one, other = site.gateway(), site.gateway()
    light, _ = queue(site, one)
    cursor = site.call(other, "open_cursor", f"~{light}", "g", END).cursor
    bodies = publish(site, one, 10, 20) + publish(site, other, 10, 20, 20)
    site.wait(PULLED_MS)
    assert sorted(take(site, other, cursor)) == sorted(bodies)


def test_the_watcher_is_called_whichever_group_has_something() -> None:
    site = Several("a", "b")
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
        site.wait(PULLED_MS)
        assert calls == [cursor], number
        assert len(take(site, port, cursor)) == 2
        calls.clear()
    port.watch(cursor, None)
    publish(site, port, 8, 8)
    site.wait(PULLED_MS)
    assert calls == []


def test_a_queue_that_nobody_watches_is_asked_again() -> None:
    """AMQP's basic.get: no watcher ever says that there is something."""
    site = Several("a", "b")
    port = site.gateway()
    _, cursor = queue(site, port)
    for number in range(4):
        assert take(site, port, cursor) == []
        bodies = publish(site, port, 10, 20, number * 20)
        site.wait(PULLED_MS)
        assert sorted(take(site, port, cursor)) == sorted(bodies)


def test_what_comes_back_is_served_again() -> None:
    site = Several("a", "b")
    port = site.gateway()
    _, cursor = site.queue_at(port, "b")
    bodies = publish(site, port, 10, 20)
    site.wait(PULLED_MS)
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
    site = Several("a", "b")
    port = site.gateway()
    states: list[bool] = []
    port.watch_state(states.append)
    _, here = site.queue_at(port, "a")
    _, there = site.queue_at(port, "b", 1)
    bodies = publish(site, port, 10, 20)
    site.line(port, "b").cut()
    site.run()
    assert states == [True]
    stored = site.stored("t0")["b"]
    bodies += publish(site, port, 10, 20, 20)
    assert site.stored("t0")["b"] == stored, "what was sent since went to the group that is there"
    site.wait(PULLED_MS)
    assert sorted(take(site, port, here)) == sorted(bodies)
    assert take(site, port, there) == []
    calls: list[int] = []
    port.watch(there, calls.append)
    site.line(port, "b").mend()
    site.run()
    assert calls
    assert sorted(take(site, port, there)) == sorted(bodies)


def test_the_last_group_lost_is_the_broker_lost() -> None:
    site = Several("a", "b")
    port = site.gateway()
    states: list[bool] = []
    port.watch_state(states.append)
    light, cursor = site.queue_at(port, "b")
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
    site.wait(100)
    cursor = site.call(port, "open_cursor", f"~{light}", "g", END).cursor
    bodies = publish(site, port, 10, 20)
    site.wait(PULLED_MS)
    assert sorted(take(site, port, cursor)) == sorted(bodies)


def test_what_is_sent_to_a_group_that_joins_reaches_every_queue() -> None:
    site = Several("a")
    port = site.gateway()
    light, cursor = queue(site, port)
    assert split_light(light)[0] == 0, "a broker alone needs no tags"
    site.add_node("b")
    bodies = publish(site, port, 30, 60)
    assert any(site.stored(f"t{number}")["b"] for number in range(30))
    site.wait(PULLED_MS)
    assert sorted(take(site, port, cursor)) == sorted(bodies)
    assert FIRST_GROUP in site.nodes["a"].broker.tables.rows(STATE_TABLE)
    assert MEMBER in site.nodes["b"].broker.tables.rows(STATE_TABLE)


def test_two_founders_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    site = SlotSite("a", "b")
    for name in site.nodes:
        site.gateway(name)
    port = ClusterPort(site.turn, site.wheel, "both")
    for name, node in site.nodes.items():
        line: Any = Line(node)
        port.add_group(name, line)
    port.complete_now()
    site.run()
    assert [group.name for group in port.ready_groups()] == ["a"]
    assert "each had gateways of their own before" in caplog.text


def test_tables_are_one_table() -> None:
    site = SlotSite("a", "b", "c")
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
    site = SlotSite("a")
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
    site = SlotSite("a", "b")
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
    site = SlotSite("a", "b")
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
    table = site.table()
    at_a = [name for name in names if table.slots[slot_of(f"lease/{name}")].owner == "a"]
    assert at_a
    assert isinstance(site.call(other, "take_lease", at_a[0], False, lost.append), int)
    site.line(one, "a").mend()
    site.run()
    assert lost == at_a[:1]
    one.drop_lease(at_a[1], epochs[at_a[1]])
    site.run()
    assert isinstance(site.call(other, "take_lease", at_a[1], False, lost.append), int)


def test_taps_hear_every_group_also_one_that_joins() -> None:
    site = Several("a", "b")
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


def test_what_is_asked_of_every_group_while_one_joins_reaches_it() -> None:
    """It has been given what was open before by then."""
    site = Several("a", "b")
    port = site.gateway()
    line = site.line(port, "b")
    line.cut()
    watch_table, heard = line.watch_table, []

    def watch(table: str, *rest: Any) -> None:
        if table == "mine" and not heard:
            heard.append(...)
            port.open_tap(
                lambda records: heard.extend(one.body for one, _ in records), None, lambda token, tap: volatile(tap)
            )
        watch_table(table, *rest)

    def volatile(tap: int) -> None:
        port.add_volatile(tap, 7, "prefix", None, "a", None, lambda token, result: None)

    site.call(port, "watch_table", "mine", None)
    line.watch_table = watch  # type: ignore[attr-defined]
    line.mend()
    site.wait(SETTLE_MS + 100)
    assert len(port.ready_groups()) == 2
    bodies = publish(site, port, 10, 20)
    assert any(site.stored(f"t{number}")["b"] for number in range(10))
    assert sorted(heard[1:]) == sorted(bodies)


def test_a_record_is_read_by_its_position_in_the_cluster() -> None:
    site = Several("a", "b")
    port = site.gateway()
    cursors = [site.queue_at(port, owner, number)[1] for number, owner in enumerate("ab")]
    bodies = publish(site, port, 10, 20)
    site.wait(PULLED_MS)
    deliveries = []
    for cursor in cursors:
        while found := site.call(port, "acquire", cursor, 1, 100, 1 << 20):
            deliveries += found
    positions = [(delivery.message.physical_offset, delivery.message.size) for delivery in deliveries]
    assert len(set(positions)) == 40
    read = site.call(port, "read", positions)
    assert [one.body for one in read] == [delivery.message.body for delivery in deliveries]
    assert sorted(one.body for one in read) == sorted(2 * bodies)


def test_a_topics_queues_are_numbered_through_and_stay() -> None:
    site = SlotSite("a", "b")
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


@pytest.mark.parametrize("how", ["dead", "hangs"])
def test_a_topics_queue_whose_group_is_away_is_read_when_it_is_back(how: str) -> None:
    site = SlotSite("a", "b")
    for node in site.nodes.values():
        node.call("ensure_topic", "t", True)
    port = site.gateway()
    site.call(port, "topics")
    line = site.line(port, "b")
    if how == "dead":
        line.cut()
    else:
        line.hang()
    box: list[Any] = []
    for number in range(8):
        port.open_cursor(f"t/{number}", "g", EARLIEST, None, lambda token, info: box.append(info.cursor))
    site.wait(1_000)
    woken: list[int] = []
    for cursor in box:
        port.watch(cursor, woken.append)
    assert [site.call(port, "acquire", cursor, 1, 9, 1 << 20) for cursor in box] == [[]] * 8
    if how == "dead":
        line.mend()
    else:
        line.thaw()
    woken.clear()
    site.wait(1_000)
    assert len(woken) == len(set(woken)) == 4, "there may be something"
    assert [take(site, port, cursor) for cursor in box] == [[]] * 8
    woken.clear()
    for node in site.nodes.values():
        node.call("submit", [Message("t", b"%d" % number, queue_id=number) for number in range(4)])
    site.run()
    assert sorted(woken) == sorted(box)
    assert [len(take(site, port, cursor)) for cursor in box] == [1] * 8


def test_a_draining_group_gets_no_new_messages() -> None:
    site = Several("a", "b")
    port = site.gateway()
    _, cursor = site.queue_at(port, "b")
    bodies = publish(site, port, 10, 20)

    def stored() -> int:
        return sum([site.stored(f"t{number}")["a"] for number in range(60)])

    site.nodes["a"].call("put", STATE_TABLE, [(DRAINING, b"1")])
    site.run()
    quiet = stored()
    assert quiet
    bodies += publish(site, port, 10, 20, 20)
    assert stored() == quiet
    site.wait(PULLED_MS)
    assert sorted(take(site, port, cursor)) == sorted(bodies)
    site.nodes["a"].call("put", STATE_TABLE, [(DRAINING, None)])
    publish(site, port, 60, 60)
    assert stored() > quiet


def test_purge_and_deletion_of_what_came_from_every_group() -> None:
    site = Several("a", "b")
    port = site.gateway()
    light, cursor = queue(site, port)
    publish(site, port, 10, 20)
    assert site.call(port, "catch_up", cursor) is True
    assert site.call(port, "purge", cursor) == 20
    assert site.call(port, "delete_cursor", cursor) is None
    assert site.call(port, "delete_light", light) is None
    for node in site.nodes.values():
        assert not node.broker.tables.rows("route")
        assert not [cursor for cursor in node.broker.cursors.views() if cursor.group == "g"]


def test_the_choice_of_a_group_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_port, "CHOSEN_MAX", 10)
    site = SlotSite("a", "b")
    port = site.gateway()
    publish(site, port, 35, 35)
    assert len(port._chosen) <= 10


def test_the_numbers_of_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_port, "PLACES_MAX", 5)
    site = SlotSite("a", "b")
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
    line: Any = Line(Node(MemoryFileSystem(), False))
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


def test_an_emptied_group_without_slots_may_leave() -> None:
    """Its rows move to the owners of their slots, as leases did with the slots; then nobody misses it."""
    site = Several("a", "b", "c")
    port, other = site.gateway(), site.gateway()
    _, cursor = site.queue_at(port, "a")
    rows = {f"key{number}": b"%d" % number for number in range(300)}
    for gateway in (port, other):
        site.call(gateway, "watch_table", "mine", lambda key, value: None)
    assert site.call(port, "put", "mine", list(rows.items())) is None
    lost: list[str] = []
    for number in range(20):
        site.call(port, "take_lease", f"client{number}", False, lost.append)
    bodies = publish(site, port, 10, 20)
    site.move("b", "c", site.table().owned_by("b"))
    site.wait(1000)
    site.nodes["b"].call("put", STATE_TABLE, [(DRAINING, b"1")])
    site.wait(1000)
    assert site.call(other, "put", "mine", [("key5", None), ("key6", b"new"), ("key300", b"300")]) is None
    rows |= {"key6": b"new", "key300": b"300"}
    del rows["key5"]
    site.wait(3000)
    assert not site.nodes["b"].broker.tables.rows("mine")
    assert sorted(take(site, port, cursor)) == sorted(bodies)
    quiet = site.nodes["b"].store.written_position
    site.kill("b")
    for found, _ in site.gateways:
        next(group for group in found.groups if group.name == "b").registered = False
        found.members_changed()
    site.wait(100)
    assert lost == []
    assert all(
        site.call(other, "take_lease", f"client{number}", False, lost.append).code is ErrorCode.LEASE_HELD
        for number in range(20)
    )
    third = site.gateway("a", "c")
    assert site.call(third, "watch_table", "mine", None) == rows
    assert site.nodes["b"].store.written_position == quiet


def test_a_join_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    site = Several("a", "b")
    port = site.gateway()
    _, cursor = queue(site, port)
    line = site.line(port, "b")
    line.cut()
    refusals = 3
    line.port = mended = LocalBrokerPort(site.nodes["b"].broker)
    watch_table = mended.watch_table

    def refuse(table: str, on_change: Any, token: Any, on_done: Any) -> None:
        nonlocal refusals
        if table == "topic" and refusals:
            refusals -= 1
            on_done(token, GantryError(ErrorCode.BUSY, "later"))
        else:
            watch_table(table, on_change, token, on_done)

    mended.watch_table = refuse  # type: ignore[method-assign]
    for on_state in line.states:
        on_state(True)
    site.wait(100)
    assert [group.name for group in port.ready_groups()] == ["a"]
    assert port.why() == "later"
    site.wait(5000)
    assert [group.name for group in port.ready_groups()] == ["a", "b"]
    assert port.why() == ""
    assert caplog.text.count("broker group b is not used yet: later") == 1
    bodies = publish(site, port, 10, 20)
    site.wait(PULLED_MS)
    assert sorted(take(site, port, cursor)) == sorted(bodies)


def test_changes_while_a_group_joins_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_group, "PENDING_MAX", 3)
    line: Any = Line(Node(MemoryFileSystem(), False))
    group = cluster_group.Group("a", 0, line)
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
    site = Several("a", first)
    port = site.gateway()
    _, cursor = queue(site, port)
    site.add_node(second)
    assert [group.name for group in port.ready_groups()] == ["a", first]
    assert f"its name has the same 20-bit hash as {first}; give it another broker.name" in caplog.text
    assert [group.name for group in site.gateway().ready_groups()] == ["a", first], (
        "a gateway that comes later says the same"
    )
    bodies = publish(site, port, 10, 20)
    site.wait(PULLED_MS)
    assert sorted(take(site, port, cursor)) == sorted(bodies)


def test_of_two_new_groups_with_the_same_hash_one_stays_at_every_gateway() -> None:
    site = SlotSite("a", "broker-9", "broker-2251")
    used = [group.name for group in site.gateway().ready_groups()]
    assert len(used) == 2
    assert [group.name for group in site.gateway().ready_groups()] == used


def test_a_group_is_refused_under_the_name_of_one_whose_queues_others_have(caplog: pytest.LogCaptureFixture) -> None:
    """Its light queues would count from 1 again, and another group has queues of these ids."""
    for row in (
        (STATE_TABLE, f"{TAG}{tag_of('b')}", b"b"),
        ("cluster_light", str(cluster_light(tag_of("b"), 7)), b"9"),
    ):
        site = SlotSite("a")
        port = site.gateway()
        table, key, value = row
        site.nodes["a"].call("put", table, [(key, value)])
        site.add_node("b")
        assert [group.name for group in port.ready_groups()] == ["a"]
        assert "broker group b is new here" in caplog.text
        assert "has queues of an earlier group of that name; give it another broker.name" in caplog.text
        site.add_node("another")
        assert "another" in [group.name for group in port.ready_groups()]
        caplog.clear()


def test_the_limit_of_bodies_is_that_of_the_smallest_group(monkeypatch: pytest.MonkeyPatch) -> None:
    site = SlotSite("a", "b")
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
