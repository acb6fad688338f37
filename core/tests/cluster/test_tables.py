"""Rows of several broker groups, compared and changed where they lie."""

from __future__ import annotations

from typing import Any

from gantrymq.broker.port import row_name
from gantrymq.broker.tables.slot_table import slot_of
from gantrymq.model.errors import ErrorCode
from tests.cluster.forward.forward_site import ForwardSite
from tests.cluster.site import Site
from tests.cluster.slots.slot_site import SlotSite

KEYS = [f"key{number}" for number in range(30)]


def test_rows_are_compared_at_every_group() -> None:
    site = SlotSite("a", "b", "c")
    one, other = site.gateway(), site.gateway()
    seen: list[tuple[str, bytes | None]] = []
    site.call(other, "watch_table", "mine", lambda key, value: seen.append((key, value)))
    assert site.call(one, "put_if", "mine", [(key, None, b"1") for key in KEYS]) == [True] * 30
    assert all(node.broker.tables.rows("mine") for node in site.nodes.values())
    assert dict(seen) == dict.fromkeys(KEYS, b"1")
    changes = [(key, b"1" if number % 3 else b"0", b"2") for number, key in enumerate(KEYS)]
    assert site.call(other, "put_if", "mine", changes) == [bool(number % 3) for number in range(30)]
    rows = site.call(one, "watch_table", "mine", None)
    assert rows == {key: b"2" if number % 3 else b"1" for number, key in enumerate(KEYS)}
    assert site.call(other, "put_if", "mine", [(KEYS[1], b"2", None)]) == [True]
    assert KEYS[1] not in site.call(one, "watch_table", "mine", None)


def test_rows_that_change_together_lie_where_the_one_that_is_compared_does() -> None:
    site = SlotSite("a", "b", "c")
    one = site.gateway()
    for key in KEYS:
        assert site.call(
            one, "put_together", "mqtt_session", key, None, [(f"{key}\nf", b"[1,7,0]"), (key, b'{"s":{}}')]
        )
    for node in site.nodes.values():
        rows = node.broker.tables.rows("mqtt_session")
        assert rows
        assert {key.partition("\n")[0] for key in rows if "\n" in key} == {key for key in rows if "\n" not in key}
    assert not site.call(one, "put_together", "mqtt_session", KEYS[0], b"2", [(KEYS[0], None)])
    other = next(node for node in site.nodes.values() if KEYS[0] not in node.broker.tables.rows("mqtt_session")).broker
    other.put("mqtt_session", [(f"{KEYS[0]}\nleft", b"[1,7,0]")], None, None)
    site.run()
    changes = [(f"{KEYS[0]}\nleft", b"[0,7,0]"), (KEYS[0], b'{"s":{},"n":1}')]
    assert site.call(one, "put_together", "mqtt_session", KEYS[0], b'{"s":{}}', changes)
    assert f"{KEYS[0]}\nleft" not in other.tables.rows("mqtt_session"), "it is set where the session is"
    assert site.call(one, "watch_table", "mqtt_session", None)[f"{KEYS[0]}\nleft"] == b"[0,7,0]"


def test_a_row_of_one_group_is_compared_there() -> None:
    site = Site("a")
    port = site.gateway()
    assert site.call(port, "put_if", "mine", [("k", None, b"1"), ("l", b"1", b"2")]) == [True, False]


def test_a_row_whose_group_is_away_is_not_compared_elsewhere() -> None:
    site = SlotSite("a", "b")
    port = site.gateway()
    site.call(port, "put_if", "mine", [(key, None, b"1") for key in KEYS])
    here = next(iter(site.nodes["a"].broker.tables.rows("mine")))
    site.line(port, "a").cut()
    site.run()
    assert site.call(port, "put_if", "mine", [(here, None, b"2")]).code is ErrorCode.UNAVAILABLE
    assert here not in site.nodes["b"].broker.tables.rows("mine")


def test_rows_of_a_group_that_is_gone_for_good_are_gone() -> None:
    site = ForwardSite("a", "b", "c")
    one, other = site.gateway(), site.gateway()
    table = site.table()
    key = next(key for key in map(str, range(1000)) if table.slots[slot_of(row_name("t", key))].owner == "b")
    seen: list[tuple[str, bytes | None]] = []

    def put(value: bytes | None) -> Any:
        box: list[Any] = []
        one.put("t", [(key, value)], None, lambda _, result: box.append(result))
        site.run()
        return box[0]

    other.watch_table("t", lambda *change: seen.append(change), None, lambda _, result: None)
    site.run()
    assert put(b"1") is None
    assert site.nodes["b"].broker.tables.rows("t") == {key: b"1"}
    site.kill("b")
    assert put(b"2").code is ErrorCode.UNAVAILABLE
    assert seen == [(key, b"1")], "it may come back"
    site.forget("b")
    site.wait(1000)
    assert seen == [(key, b"1"), (key, None)]
    assert put(b"3") is None
    assert seen[-1] == (key, b"3")
    assert [name for name in ("a", "c") if site.nodes[name].broker.tables.rows("t") == {key: b"3"}] != []


def test_a_row_that_moves_is_not_taken_for_deleted_when_its_old_group_is_heard_first() -> None:
    site = SlotSite("a", "b")
    port = site.gateway()
    seen: list[tuple[str, bytes | None]] = []
    site.call(port, "watch_table", "mine", lambda key, value: seen.append((key, value)))
    site.call(port, "put", "mine", [("k", b"1")])
    table = port._tables._tables["mine"]
    here = table.places["k"]
    seen.clear()
    table.changed(here, "k", None)
    assert not seen
    table.changed(1 - here, "k", b"1")
    site.run()
    assert seen == [("k", b"1")]
    table.changed(1 - here, "k", None)
    table.changed(1 - here, "k", b"2")
    site.run()
    assert seen[1:] == [("k", b"2")]
    table.changed(1 - here, "k", None)
    site.run()
    assert seen[2:] == [("k", None)]
