"""Messages, settlements and rows over several groups: one piece where one group has all of it, messages first elsewhere."""

from __future__ import annotations

from typing import Any

from gantrymq.broker.port import Outcome
from gantrymq.cluster.port import ClusterPort
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.model.tables import message_rows
from tests.cluster.several import PULLED_MS, Several
from tests.cluster.site import Site, message, publish


def piece(site: Site, port: ClusterPort, batch: Any, settle: Any = (), rows: Any = ()) -> Any:
    box: list[Any] = []
    port.submit(batch, None, lambda token, result: box.append(result), settle=settle, rows=rows)
    site.run()
    assert len(box) == 1
    return box[0]


def all_of(site: Site, port: ClusterPort, cursor: int) -> list[tuple[int, int, Outcome]]:
    """Everything that is ready, acquired, as acknowledgements."""
    found: list[tuple[int, int, Outcome]] = []
    while got := site.call(port, "acquire", cursor, 1, 100, 1 << 20):
        found += [(cursor, delivery.offset, Outcome.ACK) for delivery in got]
    return found


def test_settlements_and_rows_go_to_every_group() -> None:
    site = Several("a", "b")
    port = site.gateway()
    cursors = [site.queue_at(port, owner, number)[1] for number, owner in enumerate("ab")]
    publish(site, port, 10, 20)
    site.wait(PULLED_MS)
    settle = [item for cursor in cursors for item in all_of(site, port, cursor)]
    assert len(settle) == 40
    rows = [("mine", f"k{number}", b"v") for number in range(10)]
    result = piece(site, port, [message("t0", b"new")], settle, rows)
    assert [type(one) for one in result] == [int]
    site.wait(PULLED_MS)
    assert [(info.ready, info.unacked) for info in site.call(port, "stats", cursors)] == [(1, 0), (1, 0)]
    assert len(site.call(port, "watch_table", "mine", None)) == 10
    assert all(node.broker.tables.rows("mine") for node in site.nodes.values()), "both groups have rows of it"


def test_a_refused_message_leaves_the_rest_undone() -> None:
    site = Several("a", "b")
    port = site.gateway()
    cursors = [site.queue_at(port, owner, number)[1] for number, owner in enumerate("ab")]
    publish(site, port, 10, 20)
    site.wait(PULLED_MS)
    settle = [item for cursor in cursors for item in all_of(site, port, cursor)]
    bad = message("t0", b"new")
    bad.demand_route = "other"
    assert piece(site, port, [bad], settle, [("mine", f"k{number}", b"v") for number in range(10)]) == [
        ErrorCode.NO_ROUTE
    ]
    assert [info.unacked for info in site.call(port, "stats", cursors)] == [20, 20]
    assert site.call(port, "watch_table", "mine", None) == {}


def test_without_any_group() -> None:
    site = Site("a")
    port = site.gateway()
    site.line(port, "a").cut()
    site.run()
    result = piece(site, port, [], (), [("mine", "k", b"v")])
    assert isinstance(result, GantryError)
    assert result.code is ErrorCode.UNAVAILABLE


def test_messages_that_are_rows_stay_so_where_their_group_has_the_row() -> None:
    site = Several("a", "b")
    port = site.gateway()
    site.call(port, "watch_table", "mine", None)
    keys = [f"k{number}" for number in range(12)]

    def publish_rows(body: bytes) -> list[Any]:
        batch = []
        for place, key in enumerate(keys):
            one = Message(f"t{place % 3}", body, message_rows.row_pair(key, b"H"))
            one.lmq = message_rows.queues_of("mine")
            batch.append(one)
        return piece(site, port, batch)

    def found() -> list[dict[str, bytes]]:
        return [dict(node.broker.tables.rows("mine")) for node in site.nodes.values()]

    assert all(type(result) is int for result in publish_rows(b"1"))
    first, second = found()
    assert (first | second) == dict.fromkeys(keys, b"H1")
    assert not first.keys() & second.keys(), "a row lies in one group"
    assert first
    assert second
    inside = [node.store.max_offset("%LMQ%rmq_sys_gantry_mine", 0) for node in site.nodes.values()]
    assert 0 < sum(inside) < len(keys), "some are one record with their message, some lie in the other group"
    publish_rows(b"2")
    assert found() == [dict.fromkeys(first, b"H2"), dict.fromkeys(second, b"H2")]
    publish_rows(b"")
    assert found() == [{}, {}]


def test_a_message_whose_row_s_group_is_away_is_not_stored() -> None:
    site = Several("a", "b")
    port = site.gateway()
    site.call(port, "watch_table", "mine", None)
    home = port._tables.home("mine", "k").name
    topic = next(f"t{n}" for n in range(50) if port._group_for(f"t{n}").name != home)
    one = Message(topic, b"1", message_rows.row_pair("k", b"H"))
    one.lmq = message_rows.queues_of("mine")
    site.line(port, home).cut()
    result = piece(site, port, [one])
    assert isinstance(result, GantryError)
    assert result.code is ErrorCode.UNAVAILABLE
    assert sum(site.stored(topic).values()) == 0
    site.line(port, home).mend()
    site.run()
    assert piece(site, port, [one]) == [0]
    assert [dict(node.broker.tables.rows("mine")) for name, node in site.nodes.items() if name == home] == [
        {"k": b"H1"}
    ]
