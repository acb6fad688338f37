"""Every table of the broker has a limit, and at the limit the newcomer is refused and the others go on."""

from __future__ import annotations

import pytest

from gantrymq.broker.consuming import cursors, leases, offsets
from gantrymq.broker.port import END, Route
from gantrymq.broker.routing import router as routing
from gantrymq.broker.tables import tables
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from tests.broker.test_port import Bench


def refused(result: object) -> None:
    assert isinstance(result, GantryError)
    assert result.code is ErrorCode.LIMIT_REACHED


def test_rows_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS_MAX", 3)
    bench = Bench()
    assert bench.call("put", "x", [("a", b"1"), ("b", b"1"), ("c", b"1")]) is None
    refused(bench.call("put", "x", [("d", b"1")]))
    assert bench.call("put", "x", [("a", b"2"), ("b", None)]) is None
    assert bench.call("put", "x", [("d", b"1")]) is None


def test_cursors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "CURSORS_MAX", 1)
    bench = Bench()
    bench.send(Message("t", b"1"))
    assert not isinstance(bench.call("open_cursor", "t/0", "a", END), GantryError)
    refused(bench.call("open_cursor", "t/0", "b", END))
    assert not isinstance(bench.call("open_cursor", "t/0", "a", END), GantryError)


def test_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "ROUTES_MAX", 2)
    bench = Bench()
    tap = bench.call("open_tap", lambda records: None)
    assert bench.call("add_route", Route("r", "prefix", None, "a", 1)) is None
    assert bench.call("add_volatile", tap, 1, "prefix", None, "a") is None
    refused(bench.call("add_volatile", tap, 2, "prefix", None, "a"))
    refused(bench.call("add_route", Route("s", "prefix", None, "a", 1)))
    bench.port.remove_volatile(tap, [1])
    bench.quiet()
    assert bench.call("add_route", Route("s", "prefix", None, "a", 1)) is None


def test_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LEASES_MAX", 1)
    bench = Bench()
    bench.call("take_lease", "a", False, lambda name: None)
    refused(bench.call("take_lease", "b", False, lambda name: None))
    assert isinstance(bench.call("take_lease", "a", True, lambda name: None), int)


def test_committed_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "PLACES_MAX", 1)
    places = offsets.ConsumerOffsets()
    places.commit("g", "t", 0, 1)
    places.commit("g", "t", 1, 1)
    with pytest.raises(GantryError):
        places.commit("h", "t", 0, 1)
