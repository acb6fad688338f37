"""Derived files of a running store: queues, light queues and index are written behind the log, in slices, and gathered in checkpoints.

Loop thread only. What a slice may take: about a millisecond. Everything here can be made again from the log (replay.py).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.store.checkpoints.positions import Checkpoint
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.log.commit_log import FULL_ERRORS

if TYPE_CHECKING:
    from pathlib import Path

    from gantrymq.store.appender import Appender
    from gantrymq.store.config import StoreConfig
    from gantrymq.store.index.index_file import Index
    from gantrymq.store.light.queues import LightQueues
    from gantrymq.store.queues.consume_queue import QueueFiles
    from gantrymq.store.queues.queue_table import QueueTable


class Clock(Protocol):
    """Time as an argument."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch (wall clock)."""

    def monotonic_ms(self) -> int:
        """Milliseconds of a clock that never goes back."""


log = logging.getLogger(__name__)

UNITS_PENDING_BYTES: Final = 32 * 1024
"""Queue units waiting in memory before they are written."""
UNITS_PENDING_MS: Final = 1000
"""...and how long they wait at most."""
UNITS_PENDING_MAX: Final = 16 * 1024 * 1024
"""Units that could not be written because the disk is full: beyond this nothing is appended."""
INDEX_BEHIND_MAX: Final = 128
"""Records not yet indexed; beyond this `append` does the work itself, in slices: they are still in the processor's cache (0.8 us each; 2 us when
the background work comes to them)."""
INDEX_SWEEPING_MAX: Final = 8_192
"""...while slots are written for a checkpoint: then each `append` writes a slice of them. What waits costs 270 bytes a record, and memory that
was needed once stays with the process: some 100,000 records waited under full load where only the background work wrote slots."""
INDEX_PENDING_MAX: Final = 262_144
"""...where the disk is full; beyond this nothing is appended."""
INDEX_LAG_MS_MAX: Final = 2000
"""...and when the oldest of them has waited so long: a loop that is never idle must not leave queries more and more to look through."""
ENTRIES_PER_SLICE_MIN: Final = 16
QUEUES_PER_SLICE: Final = 64
"""Queues whose units one slice writes: 10 us each where their file is open."""
LIGHTS_SAME_SLICE: Final = 256
"""Entries of light queues that are written in the slice that ends with the queues: a third of a millisecond."""
ENTRIES_SAME_SLICE: Final = 256
"""Entries of the index, of which the same holds; 1,600 take 0.8 ms, as the units of as many records."""
BYTES_PER_FRAME: Final = 128 * 1024
"""A slice writes a frame of light queues, and one more for each time so many bytes of units wait, so that slices keep up with the load."""
FRAMES_PER_SLICE_MAX: Final = 8
"""...but no more of them: a third of a millisecond each."""
LIGHT_UNITS_BEHIND: Final = 8_000
"""Entries of light queues that are late."""
UNITS_BEHIND_BYTES: Final = 2 * 1024 * 1024
"""So many bytes of units are late: from here on every append brings a slice with it, and a slice writes more queues, once more for each time.
A queue is written once, however many units it has by then: the longer they wait the cheaper each of them is, so that this keeps up with any load."""
SLICE_TIMES_MAX: Final = 3
"""...but not more often than so, 2 ms."""
SLOT_CHUNKS_PER_SLICE: Final = 16
"""Chunks of index slots (16 KiB) written in one slice of the background work: 0.2 ms, several times that where the kernel is short of pages."""


class DerivedFiles:
    """Part of `MessageStore`."""

    config: StoreConfig
    _clock: Clock
    _store: Path
    _queue_files: QueueFiles
    _queues: QueueTable
    _index: Index
    _lights: LightQueues
    _appender: Appender
    _failure: GantryError | None
    _derived_synced: int

    def __init__(self) -> None:
        self._units_since = -1
        """When the oldest unwritten unit was dispatched."""
        self._units_in_log = 0
        self._derived_full = False
        self._flushing = 0
        """Derived files are being written in slices. 1: queues, 2: light queues and the index; 0: they are not."""
        self._round_from = 0
        """Units of records below it are written when the queues' slices have come round."""
        self._sweeping = False
        """Slots of the index are being written for a checkpoint."""
        self._checkpoint: Checkpoint | None = None
        self._checkpoint_at = 0

    @property
    def written_position(self) -> int:
        """End of the log."""
        return self._appender.position

    @property
    def dispatched_position(self) -> int:
        raise NotImplementedError

    @property
    def indexed_position(self) -> int:
        """The index holds every record below it."""
        pending = self._appender.index_pending
        return pending[0][2] if pending else self._appender.position

    @property
    def index_lag_records(self) -> int:
        """Records with keys that are not in the index yet; queries look through them."""
        return len(self._appender.index_pending) + self._appender.hashed_more

    def _fail(self, error: BaseException) -> GantryError:
        raise NotImplementedError

    @property
    def units_waiting(self) -> bool:
        """Units will be due for writing though nothing more is appended: the background work is to be asked again."""
        return self._units_since >= 0 and not self._derived_full and self._failure is None

    @property
    def units_behind(self) -> bool:
        """So many units wait that whoever appends has a slice of them written."""
        lights = self._lights.pending_units
        return lights > LIGHT_UNITS_BEHIND or (self._units_in_log + lights) * UNIT_SIZE >= UNITS_BEHIND_BYTES

    def run_background(self, budget_us: int) -> bool:
        """A slice of deferred work: index entries (2 us each) or due writes (0.3 us per unit). True: call again soon."""
        if self._failure is not None:
            return False
        pending = self._appender.index_pending
        if self._sweeping:
            return self._sweep() or bool(pending)
        now = self._clock.monotonic_ms()
        waiting = (self._units_in_log + self._lights.pending_units) * UNIT_SIZE
        late = self._units_since >= 0 and now - self._units_since >= UNITS_PENDING_MS
        if self._flushing or waiting >= UNITS_PENDING_BYTES or late:
            if not self._flush_some(waiting):  # a slice of its own
                return True
            if self._derived_full:
                return False  # whoever appends next finds out whether there is room again
        elif pending:
            self._index_some(max(ENTRIES_PER_SLICE_MIN, budget_us // 3))
        if now - self._checkpoint_at >= self.config.checkpoint_interval_ms and self._checkpoint is None:
            self._checkpoint_at = now
            self._sweeping = self._derived_synced < self.written_position
        return self._sweeping or bool(pending)

    def _sweep(self) -> bool:
        """Write a slice of the index's slots; the checkpoint is made when all are written. Nothing is indexed meanwhile."""
        try:
            if not self._index.write_pending(SLOT_CHUNKS_PER_SLICE) or not self._flush_some(0):
                return True
            if not self._derived_full:
                self._index.write_pending()  # nothing has been indexed meanwhile: the header, if anything
        except OSError as error:
            self._derived_failed(error)
        self._sweeping = False
        if not self._derived_full:  # else some of it waits in memory yet
            self._checkpoint = self._checkpoint_of(self._round_from)
        return False

    def _catch_up(self, appended: int) -> None:
        """The index is too far behind for the background work: index more than was `appended`; while slots are written, end that first,
        for what is indexed now changes slots that are written already, and a checkpoint would never come."""
        if self._sweeping:
            self._sweep()
        else:
            self._index_some(max(appended * 2, ENTRIES_PER_SLICE_MIN))

    def _index_some(self, records: int) -> None:
        """Index at least so many of those that wait; a block's all together."""
        pending, hashed = self._appender.index_pending, self._appender.hashed
        try:
            while pending and records > 0:
                _, keys, position, store_ms = pending[0]
                if keys:
                    records -= self._index_records(records)
                else:
                    hashes, places, count = hashed[position]
                    self._index.add_hashed(hashes, places, store_ms)
                    self._appender.indexed(pending.popleft()[2])
                    records -= count
        except OSError as error:  # an entry that is there twice is found once
            self._derived_failed(error)

    def _index_records(self, most: int) -> int:
        """Index the oldest that wait, up to a block; returns how many."""
        pending = self._appender.index_pending
        if self._appender.hashed:
            slice_: list[tuple[str, tuple[str, ...], int, int]] = []
            while pending and pending[0][1] and len(slice_) < most:
                slice_.append(pending.popleft())
        else:
            slice_ = [pending.popleft() for _ in range(min(most, len(pending)))]
        try:
            self._index.add(slice_)
        except OSError:
            pending.extendleft(reversed(slice_))
            raise
        return len(slice_)

    def flush_derived(self) -> bool:
        """Write all pending queue units, light queue runs and index entries (not the records still waiting for the index).

        False: the disk is full; what could not be written stays in memory, readable.
        """
        try:
            self._queues.write_pending()
            self._lights.write_pending(self.dispatched_position)
            self._index.write_entries()
        except OSError as error:
            self._derived_failed(error)
            return False
        self._units_since = -1
        self._units_in_log = self._flushing = 0
        self._derived_full = False
        return True

    def _flush_some(self, waiting: int) -> bool:
        """A slice of `flush_derived`; of `waiting` units. False: call again. True: all is written, or `_derived_full`."""
        times = min(1 + waiting // UNITS_BEHIND_BYTES, SLICE_TIMES_MAX)
        try:
            if self._flushing != 2:
                if not self._queues.is_writing:
                    self._round_from = self.dispatched_position
                self._flushing = 1 + self._queues.write_some(QUEUES_PER_SLICE * times)
                lights, entries = self._lights.pending_units, self._index.pending_entries
                if self._flushing == 1 or lights > LIGHTS_SAME_SLICE or entries > ENTRIES_SAME_SLICE:
                    return False
            frames = min(1 + waiting // BYTES_PER_FRAME, FRAMES_PER_SLICE_MAX)
            if not self._lights.write_some(self.dispatched_position, frames):
                return False
            self._index.write_entries()
        except OSError as error:
            self._flushing = 0
            self._derived_failed(error)
            return True
        self._flushing = self._units_in_log = 0
        self._units_since = self._clock.monotonic_ms() if self._queues.dirty else -1
        self._derived_full = False
        return True

    def _derived_failed(self, error: OSError) -> None:
        if error.errno not in FULL_ERRORS:
            raise self._fail(error) from error
        if not self._derived_full:
            log.error(
                "no room for the queues and the index of %s (%s); they wait in memory", self._store, error.strerror
            )
        self._derived_full = True

    def _check_derived_room(self) -> None:
        pending = self._queues.pending_bytes() + self._lights.pending_units * UNIT_SIZE
        if pending > UNITS_PENDING_MAX or self.index_lag_records > INDEX_PENDING_MAX:
            raise GantryError(ErrorCode.STORE_FULL, f"no space left for the queues of {self._store}")

    def _make_checkpoint(self) -> Checkpoint | None:
        if not self.flush_derived():
            return None
        try:
            self._index.write_pending()
        except OSError as error:
            self._derived_failed(error)
            return None
        return self._checkpoint_of(self.dispatched_position)

    def _checkpoint_of(self, written: int) -> Checkpoint:
        """Of what is in the files now: the units of all records below `written`, light queues, and entries and slots of the index."""
        unsynced, self._queue_files.unsynced = self._queue_files.unsynced, set()
        paths = [*unsynced, *self._lights.take_unsynced(), *self._index.take_unsynced()]
        position = min(self.indexed_position, written)
        return Checkpoint(position, self._appender.last_ms, paths, self._lights.snapshot())
