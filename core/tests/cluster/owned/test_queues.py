"""Where the cluster has slots a light queue, its cursors, routes and consumers are in its owner's tables alone."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.forward.receiving import GRANTED_MS
from gantrymq.broker.forward.sending import CURSOR_GROUP
from gantrymq.broker.port import AGAIN, END, FIND, FOR_QUEUE, Route, Start, Terms, TopicInfo
from gantrymq.broker.tables.forward_table import TABLE as FORWARD_TABLE
from gantrymq.broker.tables.forward_table import door_queues
from gantrymq.broker.tables.group_tables import DRAINING, LIGHT_BITS, LIGHTS_TABLE, STATE_TABLE, TAG
from gantrymq.broker.tables.slot_table import slot_of
from gantrymq.cluster.patience import SILENCE_MS
from gantrymq.cluster.port import ClusterPort
from gantrymq.cluster.slots.changes import forget
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.queue_policy import Policy
from tests.cluster.forward.forward_site import ForwardSite
from tests.cluster.site import Line, message, take
from tests.cluster.slots.test_view import code

ALONE = Terms(exclusive=True)
SINGLE = Terms(single=True)


class Owners:
    """Two gateways over `a`, `b` and `c`; a queue with cursor and route at `owner`."""

    def __init__(self, owner: str = "b") -> None:
        self.site = ForwardSite("a", "b", "c")
        self.one, self.other = self.site.gateway(), self.site.gateway()
        for group in [*self.one.groups, *self.other.groups]:
            group.settled = True
        self.owner = owner
        self.light = self.make(owner)
        self.queue = f"~{self.light}"
        self.cursor = self.call(self.one, "open_cursor", self.queue, "g", END).cursor
        self.route = Route("r", "prefix", None, "a", self.light)
        assert self.call(self.one, "add_route", self.route) is None

    def name_at(self, owner: str, prefix: str = "q/") -> str:
        """A name whose owner is that group."""
        table = self.site.table()
        names = (f"{prefix}{number}" for number in range(10_000))
        return next(name for name in names if table.slots[slot_of(name)].owner == owner)

    def make(self, owner: str) -> Any:
        box: list[Any] = []
        self.one.create_light(None, lambda _, result: box.append(result), name=self.name_at(owner))
        self.site.run()
        return box[0]

    def call(self, port: ClusterPort, method: str, *args: Any) -> Any:
        """The answer, which may wait until the groups know of it."""
        box: list[Any] = []
        getattr(port, method)(*args, None, lambda _, result: box.append(result))
        self.site.run()
        for _ in range(100):
            if box:
                return box[0]
            self.site.wait(50)
        raise AssertionError(method)

    def rows(self, table: str) -> dict[str, int]:
        """How many rows each running group has in a table, but for those of forward queues."""
        counts = {name: len(self.keys(name, table)) for name in self.site.nodes if name not in self.site.away}
        return {name: count for name, count in counts.items() if count}

    def keys(self, name: str, table: str) -> set[str]:
        rows = self.site.nodes[name].broker.tables.rows
        if table == "light":
            return door_queues(rows("light"), rows(FORWARD_TABLE))
        return {key for key, value in rows(table).items() if key != "next" and CURSOR_GROUP.encode() not in value}

    def seats(self) -> dict[str, int]:
        counts = {name: node.broker.seats.count for name, node in self.site.nodes.items()}
        return {name: count for name, count in counts.items() if count}

    def take_seat(self, port: Any, cursor: int, terms: Terms) -> Any:
        return self.call(port, "take_seat", cursor, terms, lambda seat, active: None)


def test_a_queue_its_cursors_and_routes_lie_at_the_owner_of_its_name() -> None:
    for owner in "abc":
        owners = Owners(owner)
        assert owners.call(owners.other, "open_cursor", owners.queue, "late", END).ready == 0
        for table, count in (("light", 1), ("cursor", 2), ("route", 1), (LIGHTS_TABLE, 0)):
            assert owners.rows(table) == ({owner: count} if count else {}), table
        assert owners.take_seat(
            owners.other, owners.call(owners.other, "open_cursor", owners.queue, "g", END).cursor, ALONE
        )[1]
        assert owners.seats() == {owner: 1}


def test_what_is_published_at_the_owner_is_delivered_and_settled() -> None:
    owners = Owners()
    site = owners.site
    site.nodes["b"].call("ensure_topic", "t0", True)
    site.run()
    stored = owners.call(owners.other, "submit", [message("t0", b"%d" % number) for number in range(3)])
    assert all(isinstance(result, int) for result in stored)
    assert {name for name, count in site.stored("t0").items() if count} == {"b"}
    assert sorted(take(site, owners.one, owners.cursor)) == [b"0", b"1", b"2"]
    assert owners.call(owners.one, "stats", [owners.cursor])[0].unacked == 0


def test_a_cursor_that_is_only_looked_for_is_made_nowhere() -> None:
    owners = Owners()
    assert code(owners.call(owners.other, "open_cursor", owners.queue, "late", FIND)) is ErrorCode.NOT_FOUND
    assert owners.rows("cursor") == {"b": 1}
    found = owners.call(owners.other, "open_cursor", owners.queue, "g", FIND)
    assert owners.call(owners.other, "delete_cursor", found.cursor) is None
    assert owners.rows("cursor") == {}


def test_a_queue_is_read_by_offset_over_several_groups() -> None:
    owners = Owners()
    site = owners.site
    site.nodes["b"].call("ensure_topic", "t0", True)
    site.run()
    owners.call(owners.one, "submit", [message("t0", b"x")])
    found = owners.call(owners.one, "scan", owners.cursor, 0, 10, 1 << 20)
    assert ([entry.message.body for entry in found.deliveries], found.at_end) == ([b"x"], True)
    assert owners.call(owners.one, "seek", owners.cursor, Start("end")) == 1
    site.kill("b")
    assert code(owners.call(owners.one, "scan", owners.cursor, 0, 10, 1 << 20)) is ErrorCode.UNAVAILABLE
    assert code(owners.call(owners.one, "seek", owners.cursor, Start("end"))) is ErrorCode.UNAVAILABLE


def every_change(owners: Owners) -> dict[str, Any]:
    """What is asked of a queue whose owner may be away, by method."""
    site, one = owners.site, owners.one
    calls: dict[str, tuple[Any, ...]] = {
        "open_cursor": (owners.queue, "another", END),
        "set_policy": (owners.cursor, Policy(max_length=5)),
        "purge": (owners.cursor,),
        "add_route": (Route("r2", "prefix", None, "a", owners.light),),
        "remove_routes": (["r"],),
        "take_seat": (owners.cursor, ALONE, lambda seat, active: None),
        "delete_cursor": (owners.cursor,),
        "delete_light": (owners.light,),
    }
    results: dict[str, list[Any]] = {}
    for method, arguments in calls.items():
        box = results[method] = []
        getattr(one, method)(*arguments, None, lambda _, result, box=box: box.append(result))
    site.wait(SILENCE_MS + 200)
    assert all(len(box) == 1 for box in results.values()), results
    return {method: code(box[0]) for method, box in results.items()}


@pytest.mark.parametrize("how", ["dead", "hangs"])
def test_a_queue_whose_owner_is_absent_is_unavailable_and_others_go_on(how: str) -> None:
    owners = Owners()
    site, one = owners.site, owners.one
    site.wait(GRANTED_MS + 100)
    if how == "dead":
        disk = site.kill("b")
    else:
        site.line(one, "b").hang()
    refused = every_change(owners)
    assert set(refused.values()) == {ErrorCode.UNAVAILABLE}, refused
    assert code(owners.make("b")) is ErrorCode.UNAVAILABLE
    assert owners.call(one, "stats", [owners.cursor]) == [None]
    light = owners.make("c")
    cursor = owners.call(one, "open_cursor", f"~{light}", "g", END).cursor
    assert owners.call(one, "add_route", Route("r3", "prefix", "t", "", light)) is None
    assert owners.take_seat(one, cursor, ALONE)[1]
    assert owners.call(one, "remove_routes", ["r3"]) is None, "it was found"
    assert owners.call(one, "purge", cursor) == 0
    assert owners.call(one, "delete_light", light) is None
    if how == "dead":
        site.start("b", disk)
        site.wait(1000)
    else:
        site.line(one, "b").thaw()
        site.wait(200)
    assert owners.call(one, "remove_routes", ["r", "r2"]) is None
    assert owners.call(one, "delete_light", owners.light) is None
    assert (owners.rows("route"), owners.rows("light"), owners.rows("cursor")) == ({}, {}, {})


def test_what_came_too_late_is_undone_where_it_can_be() -> None:
    owners = Owners()
    site, one = owners.site, owners.one
    line = site.line(one, "b")
    line.hang()
    box: list[Any] = []
    one.create_light(None, lambda _, result: box.append(result), name=owners.name_at("b"))
    one.take_seat(owners.cursor, ALONE, lambda seat, active: None, None, lambda _, result: box.append(result))
    site.wait(SILENCE_MS + 200)
    assert [code(result) for result in box] == [ErrorCode.UNAVAILABLE] * 2
    assert (owners.rows("light"), owners.seats()) == ({"b": 2}, {"b": 1})
    line.thaw()
    site.wait(200)
    assert (owners.rows("light"), owners.seats()) == ({"b": 1}, {})


def test_routes_are_counted_where_they_were() -> None:
    owners = Owners()
    site, one = owners.site, owners.one
    other = owners.make("c")
    assert owners.call(one, "add_route", Route("r2", "prefix", None, "a", other)) is None
    assert owners.rows("route") == {"b": 1, "c": 1}
    site.kill("c")
    assert code(owners.call(one, "remove_routes", ["r", "r2"])) is ErrorCode.UNAVAILABLE, "the second may be at c"
    assert owners.rows("route") == {}, "and the first is gone"
    assert code(owners.call(one, "remove_routes", ["r"])) is ErrorCode.UNAVAILABLE, "nobody knows"
    assert owners.call(one, "add_route", owners.route) is None
    assert owners.call(one, "remove_routes", ["r"]) is None


def test_a_broker_says_how_many_routes_there_were() -> None:
    owners = Owners()
    port = Line(owners.site.nodes["b"])
    box: list[Any] = []
    for _ in range(2):
        port.remove_routes(["r", "none"], None, lambda _, result: box.append(result))
        owners.site.run()
    assert box == [1, 0]


def test_a_route_without_queue_lies_at_the_owner_of_its_name_alone() -> None:
    owners = Owners("a")
    site, one = owners.site, owners.one
    for owner in "abc":
        name = owners.name_at(owner, "route/x").removeprefix("route/")
        assert owners.call(one, "add_route", Route(name, "prefix", "t", "x", 0)) is None
        assert [group for group, node in site.nodes.items() if name in node.broker.tables.rows("route")] == [owner]
    target = "b"
    assert site.move("c", target, [slot_of(f"route/{name}")])
    site.wait(1000)
    assert owners.call(one, "add_route", Route(name, "prefix", "t", "y", 0)) is None
    having = [group for group, node in site.nodes.items() if name in node.broker.tables.rows("route")]
    assert having == [target], "not with what an earlier owner had"
    site.kill("b")
    assert code(owners.call(one, "add_route", Route(name, "prefix", "t", "z", 0))) is ErrorCode.UNAVAILABLE


def test_a_topic_is_made_near_a_queue() -> None:
    for owner in "abc":
        owners = Owners(owner)
        site = owners.site
        box: list[Any] = []
        near = owners.name_at(owner)
        owners.one.ensure_topic("qt", FOR_QUEUE, None, lambda _, result, box=box: box.append(result), near=near)
        site.run()
        assert isinstance(box[0], TopicInfo)
        holders = [name for name, node in site.nodes.items() if "qt" in node.broker.topics.topics]
        assert holders == [owner]
        for port in (owners.one, owners.other):
            assert owners.call(port, "submit", [message("qt", b"x")]) != [ErrorCode.UNAVAILABLE]
        assert {name for name, count in site.stored("qt").items() if count} == {owner}
        assert len(take(site, owners.one, owners.cursor)) == 2


def test_consumers_stay_at_the_owner_when_slots_move() -> None:
    owners = Owners()
    site = owners.site
    there = owners.call(owners.other, "open_cursor", owners.queue, "g", END).cursor
    turns: dict[str, bool] = {}
    for who, port, cursor in (("one", owners.one, owners.cursor), ("other", owners.other, there)):
        taken = owners.call(
            port, "take_seat", cursor, SINGLE, lambda seat, active, who=who: turns.__setitem__(who, active)
        )
        turns[who] = taken[1]
    assert turns == {"one": True, "other": False}
    assert code(owners.take_seat(owners.other, there, ALONE)) is ErrorCode.LEASE_HELD
    for source, target in (("b", "c"), ("a", "b"), ("c", "a")):
        site.move(source, target, site.table().owned_by(source))
        site.wait(1000)
        assert (owners.seats(), turns) == ({"b": 2}, {"one": True, "other": False})
    assert code(owners.take_seat(owners.other, there, ALONE)) is ErrorCode.LEASE_HELD


def test_consumers_go_on_while_the_owner_is_away_and_are_registered_again() -> None:
    owners = Owners()
    site, one = owners.site, owners.one
    assert owners.take_seat(one, owners.cursor, ALONE)[1]
    disk = site.kill("b")
    assert code(owners.take_seat(one, owners.cursor, Terms())) is ErrorCode.UNAVAILABLE
    site.start("b", disk)
    site.wait(1000)
    assert owners.seats() == {"b": 1}
    there = owners.call(owners.other, "open_cursor", owners.queue, "g", END).cursor
    assert code(owners.take_seat(owners.other, there, Terms())) is ErrorCode.LEASE_HELD


def test_a_queue_without_name_is_made_by_each_in_turn_and_none_by_who_is_drained() -> None:
    owners = Owners()
    site, one = owners.site, owners.one
    made = [owners.call(one, "create_light") for _ in range(6)]
    assert owners.rows("light") == {"a": 2, "b": 3, "c": 2}
    assert len({*made, owners.light}) == 7
    site.nodes["c"].call("put", STATE_TABLE, [(DRAINING, b"1")])
    site.run()
    assert code(owners.make("c")) is ErrorCode.UNAVAILABLE
    assert isinstance(owners.make("a"), int)


def test_queues_of_a_group_that_is_gone_for_good_are_gone() -> None:
    owners = Owners()
    site, one = owners.site, owners.one
    site.kill("b")
    assert code(owners.call(one, "delete_light", owners.light)) is ErrorCode.UNAVAILABLE
    plan = dict.fromkeys(site.table().owned_by("b"), "a")
    site.do(forget(Line(site.nodes["a"]), "b", lambda table: plan, site.random.getrandbits))  # type: ignore[arg-type]
    site.wait(1000)
    refused = owners.call(one, "open_cursor", owners.queue, "g", END)
    assert isinstance(refused, GantryError)
    assert refused.code is ErrorCode.QUEUE_NOT_FOUND
    assert owners.call(one, "delete_light", owners.light) is None
    assert owners.call(one, "delete_cursor", owners.cursor) is None


def test_queues_of_a_cluster_that_was_drained_to_one_group_lie_there() -> None:
    """Its own ids of them are others than theirs."""
    owners = Owners("a")
    node, light = owners.site.nodes["b"], 77 << LIGHT_BITS | 5
    local = node.call("create_light")
    node.call("put", STATE_TABLE, [(f"{TAG}77", b"old")])
    node.call("put", LIGHTS_TABLE, [(str(light), str(local).encode())])
    owners.site.run()
    cursor = owners.call(owners.one, "open_cursor", f"~{light}", "g", END).cursor
    assert owners.call(owners.other, "add_route", Route("r2", "prefix", None, "a", light)) is None
    assert (owners.rows("light"), owners.rows("route")) == ({"a": 1, "b": 1}, {"a": 1, "b": 1})
    node.call("submit", [message("t0", b"x")])
    assert take(owners.site, owners.one, cursor) == [b"x"]
    assert owners.call(owners.other, "delete_light", light) is None
    assert (owners.rows("light"), owners.rows("route"), owners.rows(LIGHTS_TABLE)) == ({"a": 1}, {"a": 1}, {})


def test_a_queue_lies_with_the_group_that_has_its_id_in_its_table() -> None:
    """Whoever made it: as after a move."""
    owners = Owners("b")
    site, one, node = owners.site, owners.one, owners.site.nodes["c"]
    local = node.call("create_light")
    node.call("put", LIGHTS_TABLE, [(str(owners.light), str(local).encode())])
    site.run()
    assert owners.call(one, "open_cursor", owners.queue, "late", END).ready == 0
    assert owners.rows("cursor") == {"b": 1, "c": 1}
    assert code(owners.call(one, "purge", owners.cursor)) is ErrorCode.UNAVAILABLE, "that cursor is still at b"
    disk = site.kill("c")
    assert code(owners.call(one, "open_cursor", owners.queue, "late", END)) is ErrorCode.UNAVAILABLE, "b has it no more"
    site.start("c", disk)
    site.wait(1_000)
    assert owners.call(one, "open_cursor", owners.queue, "late", END).ready == 0
    site.nodes["c"].call("put", LIGHTS_TABLE, [(str(owners.light), None)])
    site.run()
    assert owners.call(one, "purge", owners.cursor) == 0


def test_what_is_published_anywhere_reaches_the_owner() -> None:
    owners = Owners()
    bodies = [b"%d" % number for number in range(30)]
    for number, body in enumerate(bodies):
        port = owners.one if number % 2 else owners.other
        assert isinstance(owners.call(port, "submit", [message(f"t{number}", body)])[0], int)
    stored = {name for number in range(30) for name, count in owners.site.stored(f"t{number}").items() if count}
    assert stored == {"a", "b", "c"}
    owners.site.wait(500)
    assert sorted(take(owners.site, owners.one, owners.cursor)) == sorted(bodies)


def test_an_owner_that_waits_for_others_does_not_hang() -> None:
    """It answers a change of routes when they know it, or some seconds later."""
    owners = Owners()
    owners.site.cut("b", "c")
    began_ms = owners.site.wheel.now_ms()
    assert owners.call(owners.one, "add_route", Route("r2", "prefix", None, "x", owners.light)) is None
    assert owners.site.wheel.now_ms() - began_ms > 2 * SILENCE_MS
    assert not any(group.hangs for group in owners.one.groups)


@pytest.mark.parametrize("how", ["dead", "hangs"])
def test_a_cursor_that_should_be_there_is_opened_when_its_owner_is_back(how: str) -> None:
    owners = Owners()
    site, one = owners.site, owners.one
    if how == "dead":
        disk = site.kill("b")
    else:
        site.line(one, "b").hang()
    box: list[Any] = []
    one.open_cursor(owners.queue, "another", AGAIN, None, lambda _, result: box.append(result))
    site.wait(SILENCE_MS + 200)
    (info,) = box
    assert (info.ready, info.unacked) == (0, 0)
    woken: list[int] = []
    one.watch(info.cursor, woken.append)
    assert owners.call(one, "acquire", info.cursor, 1, 10, 1 << 20) == []
    if how == "dead":
        site.start("b", disk)
    else:
        site.line(one, "b").thaw()
    site.wait(1_500)
    results = owners.call(one, "submit", [message("t0", b"x")])
    assert isinstance(results[0], int)
    site.wait(500)
    assert woken
    (delivery,) = owners.call(one, "acquire", info.cursor, 1, 10, 1 << 20)
    assert delivery.message.body == b"x"
