"""A read at one group waits for what was confirmed at another, by whatever gateway process."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.forward.receiving import AWAIT_MS
from gantrymq.broker.port import END, Route
from gantrymq.cluster.owned.fence import ASKED_MAX, LATE_MS
from gantrymq.cluster.port import ClusterPort
from gantrymq.model.errors import ErrorCode
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


def at_once(port: ClusterPort, cursor: int) -> bool:
    """What `catch_up` answers without asking anybody."""
    box: list[bool] = []
    port.catch_up(cursor, None, lambda _, result: box.append(result))
    (answer,) = box
    return answer


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


@pytest.mark.parametrize("another", [False, True])
def test_what_was_published_is_there(another: bool) -> None:
    site = ForwardSite("a", "b")
    port = site.gateway()
    cursor = queue(site, port)
    publisher = site.gateway() if another else port
    for number in range(5):
        (result,) = steps(site, publisher, "submit", [message("t", b"%d" % number)])
        assert not isinstance(result, ErrorCode)
        assert steps(site, port, "catch_up", cursor) is True
        (info,) = steps(site, port, "stats", [cursor])
        assert info.ready == number + 1


def test_it_waits_two_seconds_for_a_group_that_takes_nothing() -> None:
    site = ForwardSite("a", "b")
    port = site.gateway()
    cursor = queue(site, port)
    site.cut("a", "b")
    steps(site, port, "submit", [message("t", b"late")])
    began_ms = site.wheel.now_ms()
    assert steps(site, port, "catch_up", cursor) is True
    assert ASKED_MAX * AWAIT_MS <= site.wheel.now_ms() - began_ms <= ASKED_MAX * (AWAIT_MS + 200)
    (info,) = steps(site, port, "stats", [cursor])
    assert info.ready == 0
    assert at_once(port, cursor) is False, "it waited once for nothing"
    site.mend("a", "b")
    site.wait(LATE_MS)
    assert steps(site, port, "catch_up", cursor) is True
    (info,) = steps(site, port, "stats", [cursor])
    assert info.ready == 1


def test_it_costs_nothing_where_no_other_group_is() -> None:
    site = ForwardSite("a")
    port = site.gateway()
    light: list[int] = []
    port.create_light(None, lambda _, result: light.append(result), name="q")
    site.run()
    cursor: int = steps(site, port, "open_cursor", f"~{light[0]}", "g", END).cursor
    assert at_once(port, cursor) is False
