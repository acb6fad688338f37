"""Very many kept sessions after a start: rows that stay packed until somebody comes. All that a client sees is as with few."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.model.indexes import packed
from gantrymq.model.indexes.packed import PackedRows
from gantrymq_gateways.mqtt.drafts import INLINE_MAX
from gantrymq_gateways.mqtt.tables import SessionTable, StoredFilter, StoredSession, filter_key
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gateways.tests.mqtt.world import World

EXPIRY_S = 100
COUNT = 100
WIDE = INLINE_MAX + 3


def resting(world: World) -> int:
    rows = world.gateway.lifecycle.table._rows
    assert isinstance(rows, PackedRows)
    return rows.resting


@pytest.fixture(params=["local", "remote"])
def killed(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """After a kill: sessions c-0..., a message for each, and one with more filters than its row holds."""
    monkeypatch.setattr(packed, "PACKED_MIN", 1)
    world = World(request.param, directory=tmp_path / "d", session_expiry_s=EXPIRY_S)
    for number in range(COUNT):
        client = world.client(f"c-{number}", clean=False)
        client.subscribe(f"to/{number}")
        client.disconnect()
    client = world.client("wide", clean=False)
    client.subscribe(*[f"wide/{number}" for number in range(WIDE)])
    client.disconnect()
    sender = world.client("sender")
    for number in range(COUNT):
        sender.publish(f"to/{number}", f"for {number}")
    yield world.restart()
    world.close()


def test_each_client_finds_its_session_and_only_that_leaves_its_block(killed: World) -> None:
    assert resting(killed) == len(killed.gateway.lifecycle.table) == COUNT + 1
    for number in range(0, COUNT, 7):
        client = killed.client(f"c-{number}", clean=False)
        assert client.present
        assert client.messages() == [(f"to/{number}", b"for %d" % number)]
    assert resting(killed) == COUNT + 1 - len(range(0, COUNT, 7))
    client = killed.client("wide", clean=False)
    assert client.present
    killed.client("sender").publish(f"wide/{WIDE - 1}")
    assert client.messages() == [(f"wide/{WIDE - 1}", b"x")]
    assert not killed.client("c-none", clean=False).present


def test_a_clean_start_ends_what_was_never_loaded(killed: World) -> None:
    client = killed.client("c-5", clean=True)
    assert not client.present
    client.disconnect()
    client = killed.client("c-5", clean=False)
    assert not client.present
    killed.client("sender").publish("to/5")
    assert client.messages() == []
    assert killed.real is not None
    killed.advance(80_000)
    assert b"to/5" not in killed.real.broker.tables.rows("mqtt_filter").values(), "nobody else had it"


def test_a_new_subscriber_of_a_filter_shares_its_queue(killed: World) -> None:
    client = killed.client("new", clean=False)
    client.subscribe("to/7")
    killed.client("sender").publish("to/7", "both")
    assert client.messages() == [("to/7", b"both")]
    assert killed.client("c-7", clean=False).messages() == [("to/7", b"for 7"), ("to/7", b"both")]
    assert killed.real is not None
    rows = list(killed.real.broker.tables.rows("mqtt_filter").values())
    assert rows.count(b"to/7") == 1


def test_all_expire_but_those_whose_clients_came(killed: World) -> None:
    assert killed.gateway.lifecycle.table.away() == COUNT + 1
    killed.advance(EXPIRY_S * 500)
    stays = killed.client("c-1", clean=False)
    back = killed.client("c-2", clean=False)
    back.disconnect()
    assert killed.gateway.lifecycle.table.away() == COUNT
    killed.advance(EXPIRY_S * 700)
    assert {key for key in killed.gateway.lifecycle.table._rows if "\n" not in key} == {"c-1", "c-2"}
    assert killed.gateway.lifecycle.table.away() == 1
    assert killed.real is not None
    assert set(killed.real.broker.tables.rows("mqtt_session")) == {"c-1", "c-2"}
    killed.client("sender").publish("to/1")
    assert stays.messages()[-1] == ("to/1", b"x")
    killed.advance(EXPIRY_S * 1000)
    assert set(killed.real.broker.tables.rows("mqtt_session")) == {"c-1"}


def test_a_second_kill_leaves_the_same(killed: World) -> None:
    killed.client("c-3", clean=False).disconnect()
    killed.client("c-4", clean=True).disconnect()
    again = killed.restart()
    assert resting(again) == COUNT
    assert again.client("c-3", clean=False).present
    assert not again.client("c-4", clean=False).present
    client = again.client("c-6", clean=False)
    assert client.messages() == [("to/6", b"for 6")]


def test_a_take_over_of_a_session_of_before(killed: World) -> None:
    first = killed.client("c-8", clean=False)
    second = killed.client("c-8", clean=False)
    assert first.closed
    assert second.present
    killed.client("sender").publish("to/8", "once")
    assert second.messages()[-1] == ("to/8", b"once")


def test_each_of_version_5_expires_at_its_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "PACKED_MIN", 1)
    world = World("local", directory=tmp_path / "d", session_expiry_s=100_000)
    for number in range(40):
        fields = {p.SESSION_EXPIRY: 100 * (number % 4 + 1)}
        world.client(f"c-{number}", level=c.LEVEL_5, clean=True, properties=fields).disconnect()
    world = world.restart()
    for past in range(5):
        left = {int(key.partition("-")[2]) % 4 for key in world.gateway.lifecycle.table._rows}
        assert left == set(range(past, 4))
        world.advance(100_000 if past else 120_000)
    assert world.real is not None
    assert dict(world.real.broker.tables.rows("mqtt_session")) == {}
    world.close()


def test_places_are_right_beside_rows_of_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "PACKED_MIN", 1)
    table = SessionTable(1_000_000)
    rows = {filter_key("a", f"f{light}"): StoredFilter(1, light).encode() for light in range(1, 50)}
    for number, name in enumerate("abcdefgh"):
        session = StoredSession({})
        session.expiry_s = number + 1
        rows[name] = session.encode()
    table.load(rows, {}, 0)
    assert (len(table), table.subscriptions(), len(table.filters_of("a"))) == (8, 49, 49)
    for number, name in enumerate("abcdefgh"):
        assert table.is_expired(name, 1000 * (number + 1))
        assert list(table.expired(1000 * (number + 1))) == [name]
        assert list(table.expired(1000 * (number + 1))) == []
    assert table.away() == 8, "nobody has come to remove them"


def test_a_session_that_rests_costs_a_gateway_what_its_rows_say() -> None:
    count = 20_000
    sessions = PackedRows({f"c-{n}": StoredSession({f"to/{n}": StoredFilter(1, n)}).encode() for n in range(1, count)})
    filters = PackedRows({str(n): b"to/%d" % n for n in range(1, count)})
    tracemalloc.start()
    try:
        table = SessionTable(1000)
        before = tracemalloc.get_traced_memory()[0]
        table.load(sessions, filters, 0)
        took = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert table.away() == count - 1
    assert took < 60 * count, "its filters by name, what uses each queue, its place among those that expire"
