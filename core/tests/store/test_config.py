"""Every setting has bounds, and the error names key, value and what is allowed."""

from __future__ import annotations

import pytest

from gantrymq.model.errors import ConfigError
from gantrymq.store.config import StoreConfig


def test_defaults() -> None:
    config = StoreConfig()
    assert (config.commitlog_file_size, config.consumequeue_file_size) == (128 << 20, 6_000_000)
    assert (config.index_slots, config.index_entries, config.flush) == (5_000_000, 20_000_000, "async")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("commitlog_file_size", 65_535), ("commitlog_file_size", 1 << 32), ("commitlog_file_size", "1"),
        ("consumequeue_file_size", 30), ("consumequeue_file_size", 0), ("index_slots", 0), ("index_entries", 1),
        ("flush", "often"), ("flush_interval_ms", 0), ("body_bytes_max", 16 << 20), ("queue_files_max", 1),
        ("checkpoint_interval_ms", True),
    ],
)  # fmt: skip
def test_bad_values(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"store.{key} = "):
        StoreConfig(**{key: value})  # type: ignore[arg-type]


def test_smallest_segment() -> None:
    assert StoreConfig(commitlog_file_size=65_536).commitlog_file_size == 65_536
