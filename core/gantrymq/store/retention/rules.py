"""When the oldest segment may go, and how full the disk is: rules alone, no disk and no clock (docs/operations/retention.md)."""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gantrymq.store.config import StoreConfig

HOUR_MS: Final = 3_600_000
ALWAYS: Final = "always"
"""`store.delete_when` for deletion at any hour."""


class DiskLevel(IntEnum):
    """Which watermark of the store's file system is passed."""

    FREE = 0
    WARN = 1
    """Expired segments go at any hour (RocketMQ: diskMaxUsedSpaceRatio)."""
    CLEAN = 2
    """The oldest segment goes although it has not expired (RocketMQ: cleanFileForcibly)."""
    FULL = 3
    """Nothing is accepted any more (RocketMQ: diskSpaceWarningLevelRatio)."""


def used_ratio(total_bytes: int, free_bytes: int) -> float:
    """Part of the file system that is in use, 0 to 1, as df and RocketMQ count: of used and available bytes together."""
    return 1 - free_bytes / total_bytes if total_bytes > 0 else 0.0


def disk_level(config: StoreConfig, used: float, free_bytes: int = 0) -> DiskLevel:
    """The watermark that `used` (0 to 1) has reached. With `free_bytes` above its share of `store.disk_reserve_bytes` it counts as not reached:
    the reserve for the last one, and for those before it as much more as their ratios leave more free."""
    for level, ratio in (
        (DiskLevel.FULL, config.disk_full_ratio),
        (DiskLevel.CLEAN, config.disk_clean_ratio),
        (DiskLevel.WARN, config.disk_warn_ratio),
    ):
        share = round((1 - ratio) / (1 - config.disk_full_ratio), 6) if config.disk_full_ratio < 1 else 1.0
        if used >= ratio and (not config.disk_reserve_bytes or free_bytes < config.disk_reserve_bytes * share):
            return level
    return DiskLevel.FREE


def is_hour(config: StoreConfig, now_ms: int) -> bool:
    """True while expired segments are deleted by the clock (local time)."""
    if config.delete_when == ALWAYS:
        return True
    return datetime.fromtimestamp(now_ms / 1000).hour in {int(hour) for hour in config.delete_when.split(";")}


def why_now(config: StoreConfig, level: DiskLevel, now_ms: int, newest_ms: int, log_bytes: int) -> str:
    """Why the oldest segment should go (`time`, `size` or `disk`), or an empty text. `newest_ms`: store time of the record behind it,
    0 if that cannot be read."""
    expired = newest_ms > 0 and now_ms - newest_ms >= config.file_reserved_hours * HOUR_MS
    if expired and (level >= DiskLevel.WARN or is_hour(config, now_ms)):
        return "time"
    if config.log_bytes_max and log_bytes > config.log_bytes_max:
        return "size"
    return "disk" if level >= DiskLevel.CLEAN else ""
