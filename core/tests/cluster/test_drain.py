"""Rows of a broker group that is being emptied."""

from __future__ import annotations

from gantrymq.broker.tables.group_tables import DRAINING, STATE_TABLE
from gantrymq.model.queue_policy import Policy
from tests.cluster.several import Several

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
    site.move("b", "c", site.table().owned_by("b"))
    site.wait(1000)
    assert site.nodes["b"].broker.tables.rows("mine")
    line = site.line(slow, "c")
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
