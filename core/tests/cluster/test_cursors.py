"""Cursors of a gateway process at one broker."""

from __future__ import annotations

import errno

import pytest

from gantrymq.broker.local import UNREADABLE_RETRY_MS
from gantrymq.broker.port import END, Route
from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import Message
from tests.cluster.site import Site


def test_a_broker_whose_disk_cannot_read_calls_the_watcher_again(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site("a")
    gateway = site.gateway()
    site.call(gateway, "ensure_topic", "t", True)
    cursor = site.call(gateway, "open_cursor", "t/0", "g", END).cursor
    ready: list[int] = []
    gateway.watch(cursor, ready.append)
    site.call(gateway, "submit", [Message("t", b"x", queue_id=0)])
    assert ready == [cursor]

    def get_many(refs: object, unreadable: object = None) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(site.nodes["a"].store, "get_many", get_many)
    assert site.call(gateway, "acquire", cursor, 1, 10, 1 << 20).code is ErrorCode.STORE_FAILED
    monkeypatch.undo()
    site.nodes["a"].wheel.advance(UNREADABLE_RETRY_MS + 100)
    site.run()
    assert ready == [cursor, cursor]
    assert [item.message.body for item in site.call(gateway, "acquire", cursor, 1, 10, 1 << 20)] == [b"x"]


def test_a_queue_is_read_by_offset() -> None:
    site = Site("a")
    gateway = site.gateway()
    light = site.call(gateway, "create_light")
    cursor = site.call(gateway, "open_cursor", f"~{light}", "g", END).cursor
    site.call(gateway, "ensure_topic", "t", True)
    site.call(gateway, "add_route", Route("r", "prefix", "t", "", light))
    site.call(gateway, "submit", [Message("t", b"x", queue_id=0)])
    found = site.call(gateway, "scan", cursor, 0, 10, 1 << 20)
    assert ([entry.message.body for entry in found.deliveries], found.following, found.at_end) == ([b"x"], 1, True)
    assert site.call(gateway, "seek", cursor, END) == 1
    (details,) = site.call(gateway, "details", [cursor])
    assert (details.ready, details.end) == (1, 1)
    assert site.call(gateway, "scan", 999, 0, 1, 1).code is ErrorCode.NOT_FOUND
