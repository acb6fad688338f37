"""A session whose row cannot be read is put aside; what is left of it ends as other sessions do whose client stays away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.model.indexes import packed
from gantrymq_gateways.mqtt.drafts import INLINE_MAX
from gateways.tests.mqtt.world import World

EXPIRY_S = 100
WIDE = INLINE_MAX + 5


@pytest.fixture(params=["local", "remote", "local-packed", "remote-packed"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """After a kill, with a row of session `c` that nobody can read, and another session."""
    mode, _, rows = request.param.partition("-")
    if rows == "packed":  # as the rows of very many sessions
        monkeypatch.setattr(packed, "PACKED_MIN", 1)
    world = World(mode, directory=tmp_path / "d", session_expiry_s=EXPIRY_S)
    for name in ("c", "other"):
        client = world.client(name, clean=False)
        client.subscribe(*[f"{name}/{number}" for number in range(WIDE)])
        client.disconnect()
    assert world.real is not None
    world.real.broker.put("mqtt_session", [("c", b"{")], None, lambda token, result: None)
    world.turn.run_until_quiet()  # no gateway hears of it: a broker takes such a row from none
    yield world.restart()
    world.close()


def rows(world: World, client_id: str) -> list[str]:
    assert world.real is not None
    return [key for key in world.real.broker.tables.rows("mqtt_session") if key.partition("\n")[0] == client_id]


def test_its_filters_end_when_it_would_have_expired(damaged: World) -> None:
    assert len(rows(damaged, "c")) == 1 + WIDE - INLINE_MAX
    damaged.client("other", clean=False)
    damaged.advance(EXPIRY_S * 1000 // 2)
    assert len(rows(damaged, "c")) == 1 + WIDE - INLINE_MAX, "another version may be able to read it"
    damaged.advance(EXPIRY_S * 1000)
    assert rows(damaged, "c") == []
    damaged.advance(EXPIRY_S * 1000)
    assert damaged.real is not None
    names = set(damaged.real.broker.tables.rows("mqtt_filter").values())
    assert names == {f"other/{number}".encode() for number in range(WIDE)}
    groups = {cursor.group for cursor in damaged.real.broker.cursors.views()}
    assert groups == {"mqtt:other"}


@pytest.mark.parametrize("clean", [True, False])
def test_its_client_may_come_before(damaged: World, clean: bool) -> None:
    client = damaged.client("c", clean=clean)
    assert not client.present
    client.subscribe("c/1")
    damaged.advance(2 * EXPIRY_S * 1000)
    assert not client.closed
    assert rows(damaged, "c") == ([] if clean else ["c"])
    client.publish("c/1")
    assert client.messages() == [("c/1", b"x")]
