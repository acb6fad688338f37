"""Verification: reads the log from its begin to its end, slowly, and lists records that are damaged (`store.verify_bytes_per_s`).

Where a round is stands in the list of damage (store/damage.py), so that the next start goes on there. A round begins with a look at what is
listed: what was restored is delivered. What is damaged is passed over to the next whole record. All of it runs on the loop in slices of
half a millisecond; what is not in memory is read in threads.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from gantrymq.broker.slices import HELD, Sliced, Slices, patient
from gantrymq.store.checked import NOT_READ, is_unreadable
from gantrymq.store.log import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.broker.consuming.cursors import Cursors
    from gantrymq.broker.slices import Upkeep
    from gantrymq.metrics import Metrics
    from gantrymq.store.message_store import MessageStore

log = logging.getLogger(__name__)

CHUNK_BYTES: Final = 32 * 1024
"""Read at once: half a millisecond of records of 100 bytes. At most one is read in a millisecond."""
SLICE_US: Final = 500
RECORD_US: Final = 2
CHUNK_US: Final = 20
SAVE_BYTES: Final = 256 * 1024 * 1024
"""Between two notes of how far a round is: a restart reads at most as much again."""
ROUND_PAUSE_MS: Final = 3_600_000
"""Between two rounds: a small log is not read all the time."""
RETRY_MS: Final = 1_000
PAGE_BYTES: Final = 4096
"""Read alone where the disk cannot read a chunk: it is not all of it."""


class Verification:
    """One per broker. `bytes_per_s`: above 0."""

    def __init__(self, store: MessageStore, cursors: Cursors, upkeep: Upkeep, bytes_per_s: int) -> None:
        self._store = store
        self._cursors = cursors
        self._wheel = upkeep.wheel
        self._is_closed = upkeep.is_closed
        self._bytes_per_s = bytes_per_s
        self.work = Sliced(store, self._go_on, self._retry, self._stopped)
        self.verified_bytes = 0
        """Since the start."""
        self.rounds = 0
        """Rounds that came to the log's end since the start."""

    def start(self) -> None:
        """Verify for ever."""
        self._begin(self._wheel.now_ms())

    def show(self, metrics: Metrics) -> None:
        """Register the metrics."""
        for name, text, source in (
            ("gantry_store_verified_bytes_total", "Bytes of the log that were verified", lambda: self.verified_bytes),
            ("gantry_store_verified_rounds_total", "Times that all of the log was verified", lambda: self.rounds),
        ):
            metrics.read(name, text, source, "counter")

    def _begin(self, now_ms: int) -> None:
        if not self._is_closed():
            self.work.job = self._round()
            self._go_on()

    def _go_on(self) -> None:
        if self._is_closed():
            return
        if self.work.step(SLICE_US):
            self._call_in(1, self._go_on)
        elif self.work.job is None:
            self._wheel.call_at(self._wheel.now_ms() + ROUND_PAUSE_MS, self._begin)

    def _call_in(self, ms: int, call: Callable[[], None]) -> None:
        self._wheel.call_at(self._wheel.now_ms() + ms, lambda now_ms: call())

    def _retry(self, call: Callable[[], None]) -> None:
        self._call_in(RETRY_MS, call)

    def _stopped(self, error: Exception) -> None:
        log.error(
            "the verification of the log stopped at position %d: %s; it goes on there in %d s",
            self._store.damage.verified, error, ROUND_PAUSE_MS // 1000,
        )  # fmt: skip

    def _pause(self, count: int) -> Slices[None]:
        """As long as the rate allows `count` bytes to take."""
        self.verified_bytes += count
        self._call_in(max(count * 1000 // self._bytes_per_s, 1), self.work.wake)
        yield HELD

    def _round(self) -> Slices[None]:
        store = self._store
        yield from self._check_again()
        position = noted = max(store.damage.verified, store.log_min_position)
        end = store.flushed_position
        if position >= end:
            position = noted = store.log_min_position
        while position < end:
            position = max((yield from self._chunk(position, end)), store.log_min_position)
            if position - noted >= SAVE_BYTES:
                noted = position
                store.damage.move_to(position)
        store.damage.move_to(0)
        self.rounds += 1

    def _check_again(self) -> Slices[None]:
        store, cursors = self._store, self._cursors
        for entry in list(store.damage.entries.values()):
            if (yield from patient(lambda: store.is_mended(entry))):  # noqa: B023 (called at once)
                store.damage.forget(entry)
                cursors.end_waiting(entry.key, deliver=True)
            yield CHUNK_US

    def _chunk(self, position: int, end: int) -> Slices[int]:
        """Verify what begins in the next chunk; returns where to go on."""
        data = yield from self._read(position, CHUNK_BYTES)
        if data is None:  # record by record, then
            data = yield from self._read(position, record.PREFIX.size)
            size = int.from_bytes(data[:4], "big") if data else 0
            if data is not None and self._store.may_be_size(position, size):
                data = yield from self._read(position, size)
        if data is None:
            return (yield from self._damaged(position, end, NOT_READ))
        at = looked = 0
        while at + record.PREFIX.size <= len(data) and position + at < end:
            size, magic = record.PREFIX.unpack_from(data, at)
            if magic == record.MAGIC_BLANK and size >= record.BLANK_SIZE:
                at = self._store.segment_end(position) - position
                break
            part: bytes | None = data[at : at + size] if size > 0 else b""
            if len(data) - at < size and self._store.may_be_size(position + at, size):
                if at:
                    break  # the next chunk begins with it
                part = yield from self._read(position, size)
            what = record.fault(part, size) if part is not None else NOT_READ
            if part is not None and not what and record.place_of(part)[3] != position + at:
                what = "it says that it stands elsewhere"
            if what:
                return (yield from self._damaged(position + at, end, what))
            at += size
            looked += 1
        yield CHUNK_US + RECORD_US * looked
        yield from self._pause(min(at, len(data)) or CHUNK_BYTES)
        if not at:  # nothing is there: its segment was deleted meanwhile, and perhaps those behind it
            return max(self._store.log_min_position, self._store.segment_end(position))
        return position + at

    def _read(self, position: int, count: int) -> Slices[bytes | None]:
        """Bytes of the log; None where the disk cannot read all of them."""
        try:
            return (yield from patient(lambda: self._store.read_log(position, count)))
        except OSError as error:
            if not is_unreadable(error):
                raise
            return None

    def _read_pages(self, position: int, count: int) -> Slices[bytes]:
        """As `_read`, page by page where that fails; zeros in place of what cannot be read."""
        data = yield from self._read(position, count)
        if data is not None:
            return data
        pages: list[bytes] = []
        end = min(position + count, self._store.segment_end(position))
        while position < end:
            size = min(PAGE_BYTES - position % PAGE_BYTES, end - position)
            page = yield from self._read(position, size)
            pages.append(bytes(size) if page is None else page)
            position += size
            yield CHUNK_US
        return b"".join(pages)

    def _damaged(self, position: int, end: int, what: str) -> Slices[int]:
        """List it; returns the position of the next whole record, or the next segment's."""
        following = yield from self._next_whole(position, end)
        self._store.damage.found(position, following - position, "", -1, what, False)
        yield from self._pause(following - position)
        return following

    def _next_whole(self, position: int, end: int) -> Slices[int]:
        store = self._store
        stop = min(store.segment_end(position), end)
        head = (yield from self._read(position, record.PREFIX.size)) or b""
        own = position + int.from_bytes(head[:4], "big")
        if position < own < stop:  # what it says of its size may be true
            after = (yield from self._read(own, record.PREFIX.size)) or b""
            blank = after[4:] == record.blank(0)[4:]
            if blank or (yield from patient(lambda: store.is_whole(own))):
                return own
        at = position + 1
        while at < stop:
            data = yield from self._read_pages(at, CHUNK_BYTES)
            yield CHUNK_US
            for magic in (record.MAGIC_BYTES_V1, record.MAGIC_BYTES_V2):
                hit = data.find(magic, 4)
                while hit >= 0:
                    begin = at + hit - 4
                    if (yield from patient(lambda: store.is_whole(begin))):  # noqa: B023 (called at once)
                        return begin
                    yield RECORD_US
                    hit = data.find(magic, hit + 1)
            at += max(len(data) - 8, CHUNK_BYTES - 8)
        return stop


__all__ = ["Verification"]
