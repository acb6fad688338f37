"""Entries of light queues that are handed out without reading the log, and when they are not."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from gantrymq.model.errors import GantryError
from gantrymq.model.message import DELAYED
from gantrymq.store.light import recent
from gantrymq.store.light.recent import Recent

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Bench
    from gantrymq.model.message import Message
    from gantrymq.store.message_store import MessageStore


def entries(store: MessageStore, light: int) -> list[Message | None]:
    return store.get_entries([(unit[0], unit[1]) for unit in store.light_units(light, 0, 5_000)])


def test_what_is_handed_out_is_what_the_record_says(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    light = 7
    sent = [message_of(number, bytes([number]) * 40, tag="a/b") for number in range(5)]
    store.append(sent, [(light,), (), (light,), (light,), ()])
    found = entries(store, light)
    assert [one for one in found if one is not None] == [
        sent[0],
        sent[2],
        sent[3],
    ]  # the very same ones: nothing was decoded
    read = store.get_many([(unit[0], unit[1]) for unit in store.light_units(light, 0, 10)])
    for one, other in zip(found, read, strict=True):
        assert one is not None
        assert other is not None
        for name in (
            "topic",
            "body",
            "tag",
            "queue_id",
            "queue_offset",
            "physical_offset",
            "size",
            "store_ms",
            "born_ms",
            "sys_flag",
            "flag",
        ):
            assert getattr(one, name) == getattr(other, name), name
        assert one.property_map() == other.property_map()
        assert one.dispatch.strip(b"\x02") == other.dispatch.strip(b"\x02")
    store.close()
    again = bench.open()
    assert [one and one.body for one in entries(again, light)] == [one.body for one in (sent[0], sent[2], sent[3])]
    again.close()


def test_a_message_that_was_handed_in_again_is_read(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    light = 7
    message = message_of(1, b"once")
    store.append([message], [(light,)])
    message.body = b"again"
    store.append([message], [(light,)])
    assert [one and one.body for one in entries(store, light)] == [b"once", b"again"]
    store.close()


def test_those_that_get_their_own_topic_back_are_read(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    light = 7
    message = message_of(1, b"later")
    message.kind = DELAYED
    store.append([message], [(light,)])
    message.topic = "Other"
    assert [one and one.topic for one in entries(store, light)] == ["T"]
    store.close()


def test_an_append_that_failed_leaves_nothing_behind(bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    light = 7
    message, at = message_of(1, b"lost"), store._appender.position

    bench.files.fault = lambda name, path: OSError(errno.EIO, "I/O error") if name == "pwrite" else None
    with pytest.raises(GantryError):
        store.append([message], [(light,)])
    assert store._appender.recent.find(at, message.size) is None


@pytest.mark.parametrize(("size", "kept"), [(100, 2 * recent.RECENT_MAX), (recent.RECENT_RECORD_MAX, 64)])
def test_it_keeps_a_bounded_number(size: int, kept: int, message_of: Callable[..., Message]) -> None:
    found = Recent()
    for number in range(5_000):
        message = message_of(number)
        message.physical_offset, message.size = number * size, size
        found.newer[number * size] = message
        found.appended((number + 1) * size)
    there = [number for number in range(5_000) if found.find(number * size, size) is not None]
    assert kept // 2 <= len(there) <= kept
    assert there == list(range(5_000 - len(there), 5_000))
    assert found.begin == there[0] * size
    found.clear()
    assert found.begin == recent.NOTHING


@pytest.mark.parametrize(
    ("size", "is_kept"), [(recent.RECENT_RECORD_MAX - 1_000, True), (recent.RECENT_RECORD_MAX, False)]
)
def test_large_records_are_read(size: int, is_kept: bool, bench: Bench, message_of: Callable[..., Message]) -> None:
    store = bench.open()
    message = message_of(1, bytes(size))
    store.append([message], [(7,)])
    (found,) = entries(store, 7)
    assert found is not None
    assert found.body == message.body
    assert (found is message) == is_kept
