"""When a segment may go, and the bytes of moved records."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.model.errors import ConfigError
from gantrymq.model.message import Message
from gantrymq.store.config import StoreConfig
from gantrymq.store.log import record
from gantrymq.store.log.moved import MOVED_TOPIC, places_of, unwrap, wrap
from gantrymq.store.retention.rules import HOUR_MS, DiskLevel, disk_level, is_hour, used_ratio, why_now

CONFIG = StoreConfig(log_bytes_max=1000)
AT_FOUR = int(datetime(2024, 5, 6, 4, 30).timestamp() * 1000)
AT_FIVE = AT_FOUR + HOUR_MS
OLD = 73 * HOUR_MS
YOUNG = 71 * HOUR_MS


@pytest.mark.parametrize(
    ("level", "now_ms", "age_ms", "log_bytes", "why"),
    [
        (DiskLevel.FREE, AT_FOUR, OLD, 0, "time"),
        (DiskLevel.FREE, AT_FOUR, YOUNG, 0, ""),
        (DiskLevel.FREE, AT_FIVE, OLD, 0, ""),
        (DiskLevel.WARN, AT_FIVE, OLD, 0, "time"),
        (DiskLevel.WARN, AT_FIVE, YOUNG, 0, ""),
        (DiskLevel.CLEAN, AT_FIVE, YOUNG, 0, "disk"),
        (DiskLevel.FULL, AT_FIVE, OLD, 0, "time"),
        (DiskLevel.FREE, AT_FIVE, YOUNG, 1001, "size"),
        (DiskLevel.FREE, AT_FIVE, YOUNG, 1000, ""),
    ],
)
def test_why_now(level: DiskLevel, now_ms: int, age_ms: int, log_bytes: int, why: str) -> None:
    assert why_now(CONFIG, level, now_ms, now_ms - age_ms, log_bytes) == why


def test_an_unknown_time_is_no_age() -> None:
    assert why_now(CONFIG, DiskLevel.WARN, AT_FOUR, 0, 0) == ""


def test_hours() -> None:
    assert is_hour(CONFIG, AT_FOUR)
    assert not is_hour(CONFIG, AT_FIVE)
    assert is_hour(replace(CONFIG, delete_when="04;5"), AT_FIVE)
    assert is_hour(replace(CONFIG, delete_when="always"), AT_FIVE)


def test_levels() -> None:
    assert [disk_level(CONFIG, used) for used in (0.0, 0.74, 0.75, 0.85, 0.9, 1.0)] == [0, 0, 1, 2, 3, 3]
    assert used_ratio(1000, 250) == 0.75
    assert disk_level(CONFIG, 0.93, 150 * 10**9) is DiskLevel.FREE, "2 TB with 150 GB free"
    gib = 1 << 30
    marks = [disk_level(CONFIG, 0.97, free * gib) for free in (80, 79, 48, 47, 32, 31, 0)]
    assert marks == [0, 1, 1, 2, 2, 3, 3]
    assert disk_level(CONFIG, 0.89, 10) is DiskLevel.CLEAN, "a small disk has its ratios"
    assert disk_level(replace(CONFIG, disk_reserve_bytes=0), 0.93, 1 << 40) is DiskLevel.FULL
    assert disk_level(replace(CONFIG, disk_full_ratio=1.0), 1.0, 0) is DiskLevel.FULL
    assert used_ratio(0, 0) == 0.0


@pytest.mark.parametrize(
    "bad",
    [
        {"delete_when": "24"}, {"delete_when": ""}, {"delete_when": "never"}, {"file_reserved_hours": -1}, {"log_bytes_max": -1},
        {"disk_warn_ratio": 0.9, "disk_clean_ratio": 0.8}, {"disk_full_ratio": 1.1}, {"disk_warn_ratio": 0.0},
    ],
)  # fmt: skip
def test_settings_are_checked(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"store\."):
        StoreConfig(**bad)  # type: ignore[arg-type]


def stored(topic: str, body: bytes) -> bytes:
    message = Message(topic, body, b"TAGS\x01t\x02", queue_id=3)
    message.queue_offset = message.physical_offset = 7
    return record.encode(message)


@given(st.lists(st.tuples(st.text(min_size=1, max_size=300), st.integers(0, 1 << 60))), st.binary(max_size=100))
def test_moved_records_come_back(places: list[tuple[str, int]], body: bytes) -> None:
    inner = stored("T", body)
    moved = wrap(inner, places)
    assert moved.topic == MOVED_TOPIC
    moved.queue_offset, moved.physical_offset, moved.size = 1, 1000, 500
    assert places_of(moved) == places
    message = unwrap(moved)
    assert (message.topic, message.queue_id, message.body, message.tag) == ("T", 3, body, "t")
    assert (message.physical_offset, message.size, message.queue_offset) == (1000, 500, 7)
    again = wrap(record.encode(moved), [("~1", 2)])
    assert again.body.endswith(inner)
    assert len(again.body) == 8 + 2 + 2 + 8 + len(inner)


@given(st.binary(max_size=60))
def test_malformed_moved_records_are_refused(body: bytes) -> None:
    for broken in (body, b"GMV1" + body, wrap(stored("T", b"x"), [("~1", 2)]).body[:-1]):
        with pytest.raises(record.RecordError):
            unwrap(Message(MOVED_TOPIC, broken))


def test_worked_example_of_the_format_page() -> None:
    inner = stored("T", b"x")
    assert wrap(inner, [("~7", 3)]).body == bytes.fromhex("474d5631 00000001 0002 7e37 0000000000000003") + inner
