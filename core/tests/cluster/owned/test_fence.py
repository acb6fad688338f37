"""A read at one group waits for what the same gateway process has published at another."""

from __future__ import annotations

from typing import Any

from gantrymq.broker.forward.receiving import AWAIT_MS
from gantrymq.broker.port import END, Route
from gantrymq.cluster.port import ClusterPort
from tests.cluster.forward.forward_site import ForwardSite
from tests.cluster.site import message


def steps(site: ForwardSite, port: ClusterPort, method: str, *args: Any) -> Any:
    """The answer, which may wait for other groups."""
    box: list[Any] = []
    getattr(port, method)(*args, None, lambda _, result: box.append(result))
    site.run()
    for _ in range(100):
        if box:
            return box[0]
        site.wait(50)
    raise AssertionError(method)


def queue(site: ForwardSite, port: ClusterPort) -> int:
    """Cursor of a queue that lies with another group than topic t."""
    for number in range(20):
        light: list[int] = []
        port.create_light(None, lambda _, result: light.append(result), name=f"q/{number}")  # noqa: B023 (called at once)
        site.run()
        cursor: int = steps(site, port, "open_cursor", f"~{light[0]}", "g", END).cursor
        assert steps(site, port, "add_route", Route(f"r{number}", "prefix", None, "a", light[0])) is None
        taken = {name: node.broker.receiving.taken for name, node in site.nodes.items()}
        steps(site, port, "submit", [message("t", b"try")])
        steps(site, port, "catch_up", cursor)
        if {name: node.broker.receiving.taken for name, node in site.nodes.items()} != taken:
            steps(site, port, "purge", cursor)
            return cursor
        steps(site, port, "delete_light", light[0])
    raise AssertionError("all queues lie with the topic")


def test_what_was_published_is_there() -> None:
    site = ForwardSite("a", "b")
    port = site.gateway()
    cursor = queue(site, port)
    for number in range(5):
        steps(site, port, "submit", [message("t", b"%d" % number)])
        assert steps(site, port, "catch_up", cursor) is None
        (info,) = steps(site, port, "stats", [cursor])
        assert info.ready == number + 1


def test_it_waits_half_a_second_for_a_group_that_takes_nothing() -> None:
    site = ForwardSite("a", "b")
    port = site.gateway()
    cursor = queue(site, port)
    site.cut("a", "b")
    steps(site, port, "submit", [message("t", b"late")])
    began_ms = site.wheel.now_ms()
    assert steps(site, port, "catch_up", cursor) is None
    assert AWAIT_MS <= site.wheel.now_ms() - began_ms <= AWAIT_MS + 200
    (info,) = steps(site, port, "stats", [cursor])
    assert info.ready == 0
    site.mend("a", "b")
    assert steps(site, port, "catch_up", cursor) is None
    (info,) = steps(site, port, "stats", [cursor])
    assert info.ready == 1


def test_it_costs_nothing_where_nothing_was_published() -> None:
    site = ForwardSite("a", "b")
    port = site.gateway()
    cursor = queue(site, port)
    steps(site, port, "catch_up", cursor)
    box: list[Any] = []
    port.catch_up(cursor, None, lambda _, result: box.append(result))
    assert box == [None]
