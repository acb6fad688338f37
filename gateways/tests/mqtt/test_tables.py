"""The session tables in memory: echoes of own writes, use of filters, expiry."""

from __future__ import annotations

import json

import pytest

from gantrymq.model.errors import GantryError
from gantrymq.model.indexes import packed
from gantrymq.model.limits import TAG_BYTES_MAX
from gantrymq_gateways.mqtt.tables import (
    FILTER_FRESH_MS,
    FILTER_GRACE_MS,
    SessionTable,
    StoredFilter,
    StoredSession,
    check_filter_row,
    holder_of,
    marked,
    removed,
)
from gantrymq_gateways.mqtt.wire.constants import TOPIC_LEVELS_MAX


@pytest.fixture(autouse=True, params=["few", "packed"])
def how_many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of very many sessions are packed at the start: nothing else is different."""
    if request.param == "packed":
        monkeypatch.setattr(packed, "PACKED_MIN", 1)


def row(*lights: int, left_ms: int = 0, expiry_s: int | None = None) -> bytes:
    session = StoredSession({f"f{light}": StoredFilter(1, light) for light in lights}, left_ms)
    session.expiry_s = expiry_s
    return session.encode()


def test_rows_round_trip() -> None:
    session = StoredSession({"a/#": StoredFilter(1, 7, 1), "b": StoredFilter(0, 8)}, 5)
    session.gateway = "g"
    session.ending = [9]
    session.expiry_s = 0
    again = StoredSession.decode(session.encode())
    assert {t: (f.granted, f.light, f.owed) for t, f in again.filters.items()} == {
        "a/#": (1, 7, 1),
        "b": (0, 8, 0),
    }
    assert (again.left_ms, again.gateway, again.ending, again.expiry_s) == (5, "g", [9], 0)


def test_a_row_of_an_earlier_version_is_read() -> None:
    """It has other letters escaped."""
    old = b'{"s":{"\\u00fc/#":[1,7,1],"b":[0,8,0]},"l":5,"g":"here","x":0,"u":"alice","e":[9,10]}'
    session = StoredSession.decode(old)
    assert {t: (f.granted, f.light, f.owed) for t, f in session.filters.items()} == {"ü/#": (1, 7, 1), "b": (0, 8, 0)}
    assert json.loads(session.encode()) == json.loads(old)
    assert (holder_of(old).gateway, holder_of(old).user) == ("here", "alice")
    assert StoredSession({}).encode() == b'{"s":{}}'


def test_a_change_of_one_filter_counts_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of ten thousand pays for what it changes."""
    table = SessionTable()
    table.load({"c": row(*range(1, 100))}, {}, 0)
    counted: list[tuple[int, int]] = []
    count = table._count

    def counting(light: int, step: int, now_ms: int) -> None:
        counted.append((light, step))
        count(light, step, now_ms)

    monkeypatch.setattr(table, "_count", counting)
    table.changed_session("c", row(*range(1, 101)), 0)
    assert counted == [(100, 1)]
    moved = StoredSession({f"f{light}": StoredFilter(1, light) for light in range(1, 100)})
    moved.filters["f99"] = StoredFilter(1, 200)  # its queue was gone and began anew
    table.changed_session("c", moved.encode(), 0)
    assert counted[1:] == [(200, 1), (99, -1), (100, -1)]
    assert table.subscriptions() == 99
    table.changed_session("c", None, 0)
    assert table.subscriptions() == 0


def test_an_old_echo_does_not_undo_a_newer_write() -> None:
    table = SessionTable()
    table.writing_session("c", row(1))
    table.wrote_session("c", row(1), 0)
    table.writing_session("c", row(2))
    table.wrote_session("c", row(2), 0)
    table.changed_session("c", row(1), 0)
    assert table.row("c") == row(2)
    table.changed_session("c", row(2), 0)
    assert not table._echoes


def test_an_echo_before_the_answer_leaves_nothing_behind() -> None:
    table = SessionTable()
    table.writing_session("c", row(1))
    table.changed_session("c", row(1), 0)
    table.wrote_session("c", row(1), 0)
    assert not table._echoes
    table.changed_session("c", None, 0)
    assert table.row("c") is None
    assert len(table) == 0


def test_an_answer_behind_a_newer_row_of_another_gateway_does_not_bring_the_old_one_back() -> None:
    table = SessionTable()
    table.writing_session("c", row(1))
    table.changed_session("c", row(1), 0)
    table.changed_session("c", row(2), 0)
    table.wrote_session("c", row(1), 0)
    assert table.row("c") == row(2)


def test_unused_filters_have_a_grace_time() -> None:
    table = SessionTable()
    table.load({"c": row(1)}, {"1": b"f1", "2": b"f2"}, 1_000)
    assert table.unused_filters(1_000 + FILTER_GRACE_MS) == [2]
    table.changed_filter("2", marked(b"f2", "1"), 50_000)
    assert table.unused_filters(1_000 + FILTER_GRACE_MS) == []
    table.changed_session("c", None, 60_000)
    assert table.unused_filters(60_000 + FILTER_GRACE_MS) == [2, 1]
    assert table.light_of("f2") == 2
    table.changed_filter("2", None, 60_000)
    assert table.light_of("f2") == 0


def test_only_what_is_in_use_or_was_lately_is_taken_without_a_mark() -> None:
    table = SessionTable()
    table.load({"c": row(1)}, {"1": b"f1", "2": b"f2"}, 1_000)
    assert table.is_safe(1, 1_000)
    assert not table.is_safe(2, 1_000), "other gateways may count from long before this start"
    table.changed_filter("2", marked(b"f2", "1"), 50_000)
    assert table.is_safe(2, 50_000)
    table.changed_filter("2", marked(b"f2", "1"), 60_000)
    assert not table.is_safe(2, 50_000 + FILTER_FRESH_MS)
    table.changed_session("c", None, 60_000)
    assert table.is_safe(1, 60_000)
    table.changed_session("d", row(2), 70_000)
    assert table.is_safe(2, 10**9)


def test_a_filter_that_is_being_removed_is_not_taken() -> None:
    table = SessionTable()
    table.load({}, {"1": removed(marked(b"f", "1"))}, 1_000)
    assert table.light_of("f") == 0
    table.changed_filter("2", b"f", 2_000)
    assert table.light_of("f") == 2
    assert table.unused_filters(1_000 + FILTER_GRACE_MS) == [1], "whoever was removing it may be gone"
    table.changed_filter("1", None, 3_000)
    assert table.light_of("f") == 2


def test_expiry_counts_from_the_last_of_leaving_and_start() -> None:
    table = SessionTable(100)
    table.load({"old": row(left_ms=5), "gone": row()}, {}, 1_000)
    assert list(table.expired(1_099)) == []
    table.connected("old")
    table.changed_session("new", row(left_ms=1_500), 1_500)
    assert table.is_expired("gone", 1_100)
    assert list(table.expired(1_500)) == ["gone"]
    table.postpone("gone", 2_000)
    assert list(table.expired(1_600)) == ["new"]
    assert list(table.expired(2_000)) == ["gone"]


def test_each_session_has_an_expiry_of_its_own() -> None:
    table = SessionTable(1_000_000)
    table.load({}, {}, 0)
    table.changed_session("long", row(left_ms=1), 1)
    table.changed_session("ten", row(left_ms=1_000, expiry_s=10), 1_000)
    table.changed_session("one", row(left_ms=2_000, expiry_s=1), 2_000)
    assert list(table.expired(2_999)) == []
    assert list(table.expired(11_000)) == ["one", "ten"]
    for round_ in range(5_000):
        table.changed_session("one", row(left_ms=round_ + 1, expiry_s=1), round_)
    assert len(table._ends_heap) < 2_000, "what is of the past is thrown away"


@pytest.mark.parametrize("share", ["", "$share/g/"])
def test_rows_of_filters_that_can_be_read_are_those_that_have_a_route(share: str) -> None:
    """Also at the edges of what is not looked at closely."""
    check_filter_row("1", f"{share}{'/' * (TOPIC_LEVELS_MAX - 1)}".encode())
    check_filter_row("1", marked(f"{share}a/{'ü' * 600}".encode(), "m"))
    for bad in ("/" * TOPIC_LEVELS_MAX, "a/" + "\U0001f600" * (TAG_BYTES_MAX // 12 + 1)):
        with pytest.raises(GantryError):
            check_filter_row("1", (share + bad).encode())
    with pytest.raises(UnicodeDecodeError):
        check_filter_row("1", b"a/\xff")
    for key in ("0", "-1", "x"):
        with pytest.raises(ValueError, match=key):
            check_filter_row(key, b"a")
