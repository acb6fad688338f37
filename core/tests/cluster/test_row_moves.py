"""Rows follow the slots of their names, and leave a broker group that is being emptied."""

from __future__ import annotations

from gantrymq.broker.tables.group_tables import DRAINING, STATE_TABLE
from gantrymq.cluster.port import ClusterPort
from gantrymq.cluster.row_moves import AGAIN_MS, LAST_ROUND_MS
from gantrymq.model.errors import ErrorCode
from gantrymq.model.queue_policy import Policy
from tests.cluster.several import Several
from tests.cluster.site import Line

ROWS = {f"key{number}": b"%d" % number for number in range(20)}


def drained(site: Several, name: str) -> None:
    site.nodes[name].call("put", STATE_TABLE, [(DRAINING, b"1")])


def test_a_row_that_two_gateways_move_stays() -> None:
    """One of them is slow: the other has taken the rows away before it does."""
    site = Several("a", "b", "c")
    slow, quick = site.gateway(), site.gateway()
    for gateway in (slow, quick):
        site.call(gateway, "watch_table", "mine", lambda key, value: None)
    assert site.call(slow, "put", "mine", list(ROWS.items())) is None
    line = site.line(slow, "c")
    site.move("b", "c", site.table().owned_by("b"))
    drained(site, "b")
    for _ in range(40):
        line.hang()
        site.wait(50)
        line.thaw()
        site.wait(50)
    assert not site.nodes["b"].broker.tables.rows("mine")
    third = site.gateway()
    assert site.call(third, "watch_table", "mine", None) == ROWS


def test_rows_of_queues_stay_with_their_queues() -> None:
    site = Several("a", "b", "c")
    gateway = site.gateway()
    site.call(gateway, "watch_table", "mine", lambda key, value: None)
    assert site.call(gateway, "put", "mine", list(ROWS.items())) is None
    key = next(iter(site.nodes["b"].broker.tables.rows("mine")))
    _, cursor = site.queue_at(gateway, "b")
    assert site.call(gateway, "set_policy", cursor, Policy("q", max_length=5, row=("mine", key))) is None
    site.move("b", "c", site.table().owned_by("b"))
    drained(site, "b")
    site.wait(3000)
    assert list(site.nodes["b"].broker.tables.rows("mine")) == [key]
    assert site.call(site.gateway(), "watch_table", "mine", None) == ROWS


def lies_at(site: Several, key: str) -> list[str]:
    return [name for name, node in site.nodes.items() if key in node.broker.tables.rows("mine")]


def test_rows_follow_their_slots_and_others_stay() -> None:
    site = Several("a", "b", "c")
    gateway, told = site.gateway(), dict[str, bytes | None]()
    site.call(gateway, "watch_table", "mine", told.__setitem__)
    assert site.call(gateway, "put", "mine", list(ROWS.items())) is None
    before = {key: lies_at(site, key) for key in ROWS}
    assert ["b"] in before.values()
    site.move("b", "c", site.table().owned_by("b"))
    site.wait(3000)
    assert {key: lies_at(site, key) for key in ROWS} == {
        key: ["c"] if where == ["b"] else where for key, where in before.items()
    }
    assert told == ROWS, "nobody was told that a row is gone"


def test_rows_that_brokers_have_for_themselves_stay() -> None:
    site = Several("a", "b", "c")
    gateway = site.gateway()
    site.call(gateway, "watch_table", "auth_user", lambda key, value: None)
    site.nodes["b"].call("put", "auth_user", [(f"user{number}", b"{}") for number in range(20)])
    site.move("b", "c", site.table().owned_by("b"))
    site.wait(3000)
    assert len(site.nodes["b"].broker.tables.rows("auth_user")) == 20


def moved_behind_its_back() -> tuple[Several, ClusterPort, str, Line]:
    """A row goes from b to c; a gateway that hears c late thinks that it is at b."""
    site = Several("a", "b", "c")
    other, late = site.gateway(), site.gateway()
    for gateway in (other, late):
        site.call(gateway, "watch_table", "mine", lambda key, value: None)
    key = site.name_at("b", "mine/").partition("/")[2]
    assert site.call(late, "put", "mine", [(key, b"old")]) is None
    site.wait(LAST_ROUND_MS + 2 * AGAIN_MS)  # else the next round waits for a moment
    line = site.line(late, "c")
    line.hang()
    site.move("b", "c", site.table().owned_by("b"))
    site.wait(200)
    assert lies_at(site, key) == ["c"]
    return site, late, key, line


def test_what_is_put_where_a_row_lay_goes_where_it_is_now() -> None:
    """The gateway has not heard yet that it moved."""
    site, late, key, line = moved_behind_its_back()
    box: list[object] = []
    late.put("mine", [(key, b"new")], None, lambda token, result: box.append(result))
    site.wait(300)
    assert lies_at(site, key) == ["c"], "it is not where it lay before, again"
    line.thaw()
    site.wait(2000)
    assert box == [None]
    assert site.nodes["c"].broker.tables.rows("mine")[key] == b"new"


def test_a_later_put_is_not_overtaken_by_one_that_waits() -> None:
    site, late, key, line = moved_behind_its_back()
    box: list[object] = []
    for value in (b"one", b"two"):
        late.put("mine", [(key, value)], None, lambda token, result: box.append(result))
        site.wait(20)
    line.thaw()
    site.wait(2000)
    assert box == [None, None]
    assert site.nodes["c"].broker.tables.rows("mine")[key] == b"two"


def test_changes_under_a_condition_follow_a_row() -> None:
    site, late, key, line = moved_behind_its_back()
    box: list[object] = []
    late.put_if("mine", [(key, b"old", b"new")], None, lambda token, result: box.append(result))
    site.wait(100)
    late.put_together(
        "mine", key, b"new", [(key, b"newer"), ("else", b"1")], None, lambda token, result: box.append(result)
    )
    line.thaw()
    site.wait(2000)
    assert box == [[True], True]
    assert site.nodes["c"].broker.tables.rows("mine")[key] == b"newer"


def test_a_gateway_that_knows_one_broker_of_several_puts_nothing_of_the_others_there() -> None:
    site = Several("a", "b")
    alone = site.gateway("a")
    key = site.name_at("b", "mine/").partition("/")[2]
    assert site.call(alone, "put", "mine", [(key, b"1")]).code is ErrorCode.UNAVAILABLE
    assert lies_at(site, key) == []
