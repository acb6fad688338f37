"""What a real broker still owes of its timers: `config/timercheck`, and `timerlog`, its list of what it has put on its wheel.

      timercheck: last read time 8 | timer log flushed 8 | queue offset 8 | master's queue offset 8 | data version 3 x 8
      unit of timerlog: size 4 (52) | previous 8 | magic 4 | write time 8 | delay 4 | physical offset 8 | size 4 | topic hash 4 | 0 8

Owed is what it has not read from the topic's queue yet (at or above the queue offset), and what stands on the wheel at or behind
the last read time. A timer that was rolled stands there once, under its new record (TimerMessageStore.doEnqueue, dequeue).
"""

from __future__ import annotations

import logging
from array import array
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from gantrymq.store.queues.consume_queue import HOLE_SIZE
from gantrymq.store.schedule import TIMER_TOPIC, number_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gantrymq.broker.delay.timers import Timers
    from gantrymq.store.files import FileSystem
    from gantrymq.store.message_store import MessageStore

log = logging.getLogger(__name__)

CHECK: Final = Struct(">7q")
CHECK_FILE_BYTES: Final = 4096
"""TimerCheckpoint maps a page."""
UNIT: Final = Struct(">iqiqiqiiq")
LOG_DIRECTORY: Final = "timerlog"
WHEEL_FILE: Final = "timerwheel"
STEP_BYTES: Final = UNIT.size * 8192
UNITS_STEP: Final = 4096


class TimerCheck(NamedTuple):
    """`timercheck`."""

    read_ms: int = 0
    flushed: int = 0
    queue_offset: int = 0
    master_offset: int = 0
    state: int = 0
    timestamp: int = 0
    counter: int = 0

    def to_bytes(self) -> bytes:
        """As the file holds it."""
        return CHECK.pack(*self).ljust(CHECK_FILE_BYTES, b"\0")


def parse_check(data: bytes) -> TimerCheck | None:
    """None for a file that is too short; old ones have no data version."""
    if len(data) < 32:
        return None
    return TimerCheck(*CHECK.unpack(data[: CHECK.size].ljust(CHECK.size, b"\0")))


def wheel_units(files: FileSystem, store: Path) -> Iterator[tuple[int, int, int, int]]:
    """(time on the wheel, magic, physical offset, size) of every unit of the timer log, oldest first."""
    directory = store / LOG_DIRECTORY
    for name in sorted(files.list_dir(directory)):
        if not name.isdecimal():
            continue
        handle = files.open(directory / name, False)
        try:
            yield from _units_of(files, handle)
        finally:
            files.close(handle)


def _units_of(files: FileSystem, handle: int) -> Iterator[tuple[int, int, int, int]]:
    at, end = 0, files.size(handle)
    while at < end:
        data = files.pread(handle, min(STEP_BYTES, end - at), at)
        for unit in UNIT.iter_unpack(data[: len(data) // UNIT.size * UNIT.size]):
            size, _, magic, write_ms, delay_ms, position, length, _, _ = unit
            if size != UNIT.size or not 0 <= magic <= 15:
                return
            yield write_ms + delay_ms, magic, position, length
        if len(data) < UNIT.size:
            return
        at += len(data) // UNIT.size * UNIT.size


def remove_wheel(files: FileSystem, store: Path) -> None:
    """A real broker that comes back makes wheel and timer log anew from the topic, from our `timercheck` on; what it has left there
    would fire again."""
    directory = store / LOG_DIRECTORY
    for name in files.list_dir(directory):
        files.remove(directory / name)
    if files.exists(store / WHEEL_FILE):
        files.remove(store / WHEEL_FILE)


class TimerTakeover:
    """Called once, before our timers go on. The store waits for the disk here."""

    def __init__(self, files: FileSystem, store_path: Path, store: MessageStore, check: TimerCheck) -> None:
        self._files = files
        self._path = store_path
        self._store = store
        self._check = check

    def __call__(self, timers: Timers) -> None:
        """Set the cursor to what is owed."""
        begin, end = self._store.min_offset(TIMER_TOPIC, 0), self._store.max_offset(TIMER_TOPIC, 0)
        if end == 0:
            return
        border = min(max(self._check.queue_offset, begin), end)
        start, done = self._owed(begin, border)
        timers.restart_at(start, done)
        log.info(
            "timers of another broker: %d entries go on, from offset %d of %d", end - start - len(done), start, end
        )

    def _owed(self, begin: int, border: int) -> tuple[int, array[int]]:
        """(lowest offset owed, offsets between it and `border` that are not)."""
        wheel = self._on_wheel()
        start = -1
        done = array("q")
        offset = begin
        while offset < border:
            units = self._store.units(TIMER_TOPIC, 0, offset, min(UNITS_STEP, border - offset))
            if not units:
                break
            for position, size, _ in units:
                owed = size != HOLE_SIZE and (position in wheel if wheel is not None else self._is_late(position, size))
                if owed and start < 0:
                    start = offset
                elif not owed and start >= 0:
                    done.append(offset)
                offset += 1
        return (border, array("q")) if start < 0 else (start, done)

    def _on_wheel(self) -> set[int] | None:
        """Positions of the records that stand on the wheel; None: the timer log is gone, only the records can tell."""
        found: set[int] = set()
        known = False
        for at_ms, _, position, _ in wheel_units(self._files, self._path):
            known = True
            if at_ms >= self._check.read_ms:
                found.add(position)
        return found if known or not self._check.flushed else None

    def _is_late(self, position: int, size: int) -> bool:
        (message,) = self._store.get_many([(position, size)])
        return message is not None and number_of(message.property("TIMER_OUT_MS")) >= self._check.read_ms
