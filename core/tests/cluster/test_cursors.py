"""Cursors that are only looked for, over several broker groups."""

from __future__ import annotations

from gantrymq.broker.port import END, FIND
from gantrymq.model.errors import ErrorCode
from tests.cluster.site import Site


def places(site: Site) -> list[str]:
    return [
        name
        for name, node in site.nodes.items()
        for cursor in node.broker.cursors.by_id.values()
        if cursor.group == "late"
    ]


def test_a_cursor_that_is_only_looked_for_is_made_nowhere() -> None:
    site = Site("a", "b")
    one, other = site.gateway(), site.gateway()
    light = site.call(one, "create_light")
    assert site.call(one, "open_cursor", f"~{light}", "late", FIND).code is ErrorCode.NOT_FOUND
    assert places(site) == []
    site.call(one, "open_cursor", f"~{light}", "late", END)
    assert places(site) == ["a", "b"]
    found = site.call(other, "open_cursor", f"~{light}", "late", FIND)
    assert site.call(other, "delete_cursor", found.cursor) is None
    assert places(site) == []


def test_a_cursor_that_was_found_at_one_group_gets_a_place_at_every_group() -> None:
    site = Site("a", "b")
    one, other = site.gateway(), site.gateway()
    light = site.call(one, "create_light")
    site.call(one, "open_cursor", f"~{light}", "late", END)
    node = site.nodes["b"].broker
    (cursor,) = [cursor for cursor in node.cursors.by_id.values() if cursor.group == "late"]
    node.cursors.delete(cursor)
    found = site.call(other, "open_cursor", f"~{light}", "late", FIND)
    assert places(site) == ["a"]
    assert site.call(other, "open_cursor", f"~{light}", "late", END).cursor == found.cursor
    assert places(site) == ["a", "b"]
