"""Rows that `gantry store rows` lists."""

from __future__ import annotations

from gantrymq.broker.tables.tables import item_message
from gantrymq.cli.store.rows import bad_rows
from gantrymq.net.testing import ManualClock
from gantrymq.store.message_store import MessageStore
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import ROOT, SMALL


def test_a_row_that_was_replaced_unread_is_listed_until_it_is_removed() -> None:
    store = MessageStore(MemoryFileSystem(), ROOT, SMALL, ManualClock())
    store.load()
    changes = [("offset", "t@g", b'{"0":1}'), ("offset", "t@h", b"{"), ("unread", "offset/t@g", b"of a later version")]
    store.append([item_message(*row) for row in changes], [()] * len(changes))
    found = {(row.table, row.key): (row.size_bytes, row.why) for row in bad_rows(store)}
    assert set(found) == {("offset", "t@h"), ("unread", "offset/t@g")}
    size, why = found["unread", "offset/t@g"]
    assert size == len(b"of a later version")
    assert "the group has committed since" in why
    store.append([item_message("unread", "offset/t@g", None)], [()])
    assert [row.table for row in bad_rows(store)] == ["offset"]
    store.close()
