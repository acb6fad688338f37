"""Settings of the store, checked once. Sizes that a directory already has win over them (`MessageStore.load`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gantrymq.model.errors import ConfigError
from gantrymq.model.limits import BODY_BYTES_CEILING
from gantrymq.model.settings import setting
from gantrymq.store.schedule import DELAY_LEVELS, delays_of

LOG_FILE_SIZE_MIN: Final = 64 * 1024
"""Small enough for tests that roll segments, large enough for a record with full properties."""
LOG_FILE_SIZE_MAX: Final = 1 << 31
"""A record's size and a blank's size are signed 32-bit."""
UNIT_SIZE: Final = 20
"""Bytes of a ConsumeQueue unit and of an IndexFile unit."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Section `store`. File sizes in bytes; index sizes in slots and entries."""

    commitlog_file_size: int = setting(128 * 1024 * 1024, least=LOG_FILE_SIZE_MIN, most=LOG_FILE_SIZE_MAX)
    """Length of a segment of the log, for new directories: one that exists keeps its own (RocketMQ: mappedFileSizeCommitLog)."""
    consumequeue_file_size: int = setting(6_000_000, least=UNIT_SIZE, most=LOG_FILE_SIZE_MAX)
    """Length of a queue's files, 20 bytes a message, for new directories (RocketMQ: mappedFileSizeConsumeQueue)."""
    index_slots: int = setting(5_000_000, least=1, most=500_000_000)
    """Hash slots of an index file, for new directories (RocketMQ: maxHashSlotNum)."""
    index_entries: int = setting(20_000_000, least=2, most=2_000_000_000 // UNIT_SIZE)
    """Keys that an index file has room for (RocketMQ: maxIndexNum)."""
    flush: str = setting("async", allowed=("async", "sync"))
    """`async`: acknowledged when written (survives a crash of the process); `sync`: when on stable storage."""
    transient_pool: bool = False
    """Records gather in memory and reach the log in large writes: the end of the process loses up to `flush_interval_ms` of what was
    acknowledged under `async`, at most 64 MiB."""
    flush_interval_ms: int = setting(500, least=1, most=60_000)
    """Asynchronous flush: at most this long until data is on stable storage."""
    body_bytes_max: int | None = setting(None, set_as="message.body_bytes_max")
    """Largest body; None: as the directory's past says (`MessageStore.body_bytes_max`)."""
    delay_levels: str = setting(DELAY_LEVELS, set_as="timer.delay_levels")
    """What a delay level means, level 1 first."""
    queue_files_max: int = setting(512, least=8, most=1_000_000)
    """Descriptors kept open for ConsumeQueue files; 80,000 queues work under `ulimit -n 4096`."""
    checkpoint_interval_ms: int = setting(10_000, least=100, most=3_600_000)
    """Queues, light queues and index are put on stable storage this often; bounds the replay after a crash."""

    file_reserved_hours: int = setting(72, least=0, most=1_000_000)
    """A segment whose newest record is older is deleted (RocketMQ: fileReservedTime)."""
    delete_when: str = "4"
    """Hours of the day (local time, several separated by `;`) at which expired segments are deleted, or `always`."""
    log_bytes_max: int = setting(0, least=0, most=1 << 60)
    """The oldest segments are deleted while the log is longer than this; 0: no limit."""
    disk_warn_ratio: float = setting(0.75, least=0, most=1)
    """Part of the store's file system in use from which expired segments are deleted at any hour, with a warning."""
    disk_clean_ratio: float = setting(0.85, least=0, most=1)
    """...from which the oldest segments are deleted although they have not expired (never what is live)."""
    disk_full_ratio: float = setting(0.90, least=0, most=1)
    """...from which messages are refused until there is room again; reading goes on."""

    disk_reserve_bytes: int = setting(32 << 30, least=0, most=1 << 60)
    """With more free bytes than this a disk is not full, whatever its ratio; 1.5 and 2.5 times as many are needed for the two marks before it (as
    their ratios say). 0: the ratios alone."""

    verify_bytes_per_s: int = setting(0, least=0, most=1 << 40)
    """The log is read from begin to end at this rate, again and again, and what is damaged is listed (`gantry store damage list`); 0: it is not."""

    properties_crc: bool = False
    """Each record ends with a CRC of all of it, head and properties, too (RocketMQ: enabledAppendPropCRC): a property `__CRC32#` of 20 bytes. One that
    is there is always checked."""

    def __post_init__(self) -> None:
        _check("commitlog_file_size", self.commitlog_file_size, LOG_FILE_SIZE_MIN, LOG_FILE_SIZE_MAX)
        _check("consumequeue_file_size", self.consumequeue_file_size, UNIT_SIZE, LOG_FILE_SIZE_MAX)
        if self.consumequeue_file_size % UNIT_SIZE:
            raise ConfigError(
                f"store.consumequeue_file_size = {self.consumequeue_file_size}: it must be a multiple of {UNIT_SIZE}"
            )
        _check("index_slots", self.index_slots, 1, 500_000_000)
        _check("index_entries", self.index_entries, 2, 2_000_000_000 // UNIT_SIZE)
        if self.flush not in ("async", "sync"):
            raise ConfigError(f"store.flush = {self.flush!r}: allowed are async and sync")
        for key in ("transient_pool", "properties_crc"):
            if type(getattr(self, key)) is not bool:
                raise ConfigError(f"store.{key} = {getattr(self, key)!r}: allowed are true and false")
        _check("flush_interval_ms", self.flush_interval_ms, 1, 60_000)
        if self.body_bytes_max is not None:
            _check("body_bytes_max", self.body_bytes_max, 1, BODY_BYTES_CEILING)
        _check("queue_files_max", self.queue_files_max, 8, 1_000_000)
        _check("checkpoint_interval_ms", self.checkpoint_interval_ms, 100, 3_600_000)
        _check("file_reserved_hours", self.file_reserved_hours, 0, 1_000_000)
        _check("disk_reserve_bytes", self.disk_reserve_bytes, 0, 1 << 60)
        _check("verify_bytes_per_s", self.verify_bytes_per_s, 0, 1 << 40)
        _check("log_bytes_max", self.log_bytes_max, 0, 1 << 60)
        try:
            delays_of(self.delay_levels)
        except ValueError as error:
            raise ConfigError(f"timer.delay_levels = {error}") from None
        self._check_retention()

    def _check_retention(self) -> None:
        hours = str(self.delete_when).split(";")
        if self.delete_when != "always" and not all(hour.isdecimal() and int(hour) < 24 for hour in hours):
            raise ConfigError(
                f"store.delete_when = {self.delete_when!r}: allowed are hours from 0 to 23 separated by ; and the word always"
            )
        ratios = (self.disk_warn_ratio, self.disk_clean_ratio, self.disk_full_ratio)
        if not all(type(ratio) in (int, float) and 0 < ratio <= 1 for ratio in ratios) or list(ratios) != sorted(
            ratios
        ):
            raise ConfigError(
                f"store.disk_warn_ratio, disk_clean_ratio, disk_full_ratio = {ratios}: allowed are numbers above 0 up to 1, each at least the one before"
            )


def _check(key: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(f"store.{key} = {value!r}: allowed are whole numbers from {least} to {most}")
