"""The store as the broker sees it: append, read, query, positions. Everything on the loop's thread except `flush` and
`sync_checkpoint`, which the flusher's thread calls.

`append` gives a batch its offsets, writes it with one `pwrite` and dispatches it in memory from the batch's own metadata. Queue
units and index entries are written later, in larger writes, by `run_background`; they can be read at once. The log is
parsed only in recovery.
"""

from __future__ import annotations

import logging
from os.path import dirname
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import BODY_BYTES_CEILING, BODY_BYTES_ROCKETMQ
from gantrymq.model.names import check_stored_topic
from gantrymq.model.properties import OWN_CRC_MARK, OWN_CRC_SIZE, has_own_crc
from gantrymq.store.appender import Appender
from gantrymq.store.checked import CheckedReads
from gantrymq.store.checkpoints.abort import mark_running, note_boot, nothing_lost
from gantrymq.store.checkpoints.ends import RememberedEnds
from gantrymq.store.checkpoints.positions import Checkpoint, Positions, Sizes, load_checkpoint, save_checkpoint
from gantrymq.store.damage import DamageList
from gantrymq.store.derived import (
    INDEX_BEHIND_MAX,
    INDEX_LAG_MS_MAX,
    INDEX_SWEEPING_MAX,
    Clock,
    DerivedFiles,
)
from gantrymq.store.index.index_file import Index
from gantrymq.store.light.queues import LightQueues
from gantrymq.store.light.spread import Spread
from gantrymq.store.log import record
from gantrymq.store.log.commit_log import FULL_ERRORS, NO_HANDLE_ERRORS, CommitLog
from gantrymq.store.log.record import SENDER_PROPERTIES_MAX
from gantrymq.store.log.recovery import EndFinder, RecoveryReport
from gantrymq.store.log.write_buffer import WriteBuffer
from gantrymq.store.queues.compaction import CompactedQueues
from gantrymq.store.queues.consume_queue import QueueFiles
from gantrymq.store.queues.queue_table import QueueTable
from gantrymq.store.reader import StoreReader
from gantrymq.store.retention.segments import Segments
from gantrymq.store.schedule import delays_of
from gantrymq.store.start.doubts import TopicQueues
from gantrymq.store.start.opening import Begin, Found, where_to_begin
from gantrymq.store.start.replay import Replay
from gantrymq.store.start.takeover import queues_end, refuse_unreadable, taken_over

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gantrymq.model.message import Message
    from gantrymq.store.cold import ColdReads
    from gantrymq.store.config import StoreConfig
    from gantrymq.store.files import FileSystem
    from gantrymq.store.log.missing import Gap

log = logging.getLogger(__name__)

WAKE_STEP: Final = 4 * 1024 * 1024
"""The thread that works ahead of the log (and behind it, in `transient_pool` mode) is woken so often."""
FILES_PER_FLUSH: Final = 8
"""Derived files put on stable storage between two looks at whether the log's flush is due."""
SYNC_ALL_FROM: Final = 64
"""At a stop, more derived files than this are synced by one call for the whole file system: 2 ms each add up."""
COUNTED_MAX: Final = 256
"""Topics opened at a start after a crash to know how far their queues reach: 0.15 ms a queue."""


class MessageStore(StoreReader, DerivedFiles):
    """One store directory. `root` is the directory given by --data: RocketMQ's files in `store`, ours in `gantry`."""

    def __init__(self, files: FileSystem, root: Path, config: StoreConfig, clock: Clock) -> None:
        super().__init__()
        self.files = files
        self.config = config
        self._clock = clock
        self._store = root / "store"
        self._own = root / "gantry"
        self._log = CommitLog(files, self._store / "commitlog", config.commitlog_file_size)
        self._queue_files = QueueFiles(
            files, self._store / "consumequeue", config.consumequeue_file_size, config.queue_files_max
        )
        self._queues = QueueTable(self._queue_files)
        self._index = Index(files, self._store / "index", config.index_slots, config.index_entries)
        self._lights = LightQueues(files, self._own / "light")
        self._positions = Positions(files, self._own / "positions")
        self._ends = RememberedEnds(files, self._own / "ends")
        self._appender = Appender(self._log, self._queues, self._lights)
        self._appender.delays_ms = delays_of(config.delay_levels)
        self._appender.own_crcs = config.properties_crc
        self.compacted = CompactedQueues(files, self._own / "compaction")
        self.damage = DamageList(files, self._own / "damage", clock.now_ms)
        self._checked = CheckedReads(self._log, self._bytes_at, lambda: self._appender.position, self.damage)
        self.segments = Segments(self._log, self._queue_files, self._queues, self._index, self._note_begin)
        self._failure: GantryError | None = None
        self._guard = -1
        self._flush_lock = Lock()
        self._buffer_full = False
        self._derived_synced = 0
        self._record_max = 0
        self._content_max = 0
        self._body_max = config.body_bytes_max or BODY_BYTES_CEILING
        self._reserved = 0
        self._wake_at = 0
        self.ahead = Event()
        """Set on the loop when `work_ahead` should run soon (the flusher's second thread)."""

    # --- positions

    @property
    def dispatched_position(self) -> int:
        """Records below it are in their queues (readable): the same as written but while a record is spread over its queues."""
        spread = self._appender.spread
        return self._appender.position if spread is None or spread.position < 0 else spread.position

    @property
    def flushed_position(self) -> int:
        """Below it the log is on stable storage."""
        return self._log.flushed_position

    @property
    def index_lag_ms(self) -> int:
        """How long ago the oldest of them was stored."""
        pending = self._appender.index_pending
        return max(self._clock.now_ms() - pending[0][3], 0) if pending else 0

    @property
    def derived_position(self) -> int:
        """Queues, light queues and index below it are on stable storage."""
        return self._derived_synced

    @property
    def log_min_position(self) -> int:
        """Begin of the oldest segment."""
        return self._log.min_position

    def disk_usage(self) -> tuple[int, int]:
        """(size, free) in bytes of the file system that holds the store."""
        return self.files.usage(self._store)

    @property
    def record_bytes_max(self) -> int:
        """Largest record that fits a segment."""
        return self._record_max

    @property
    def body_bytes_max(self) -> int:
        """Largest body: as it was set, else as the directory's past says; a record fits a segment."""
        return min(self._body_max, self._content_max)

    @property
    def light_live_units(self) -> int:
        """Entries of light queues that may still be read."""
        return self._lights.live_units

    @property
    def lost(self) -> list[Gap]:
        """Parts of the log that were missing, and without which this start went on."""
        return self._log.lost

    @property
    def failure(self) -> GantryError | None:
        """Why the store stopped, or None. It does not start again in this process."""
        return self._failure

    def set_store_host(self, host: bytes) -> None:
        """Address and port that records name as their broker (8 or, for IPv6, 20 bytes); part of offset message ids."""
        self._appender.store_host = host

    # --- opening and closing

    def load(
        self,
        progress: Callable[[int, int], None] | None = None,
        anew: frozenset[str] = frozenset(),
        accept_loss: bool = False,
    ) -> RecoveryReport:
        """Lock the directory, recover, be ready to append. `progress(bytes done, bytes at most)` while the log is checked
        (the first half of what is done) and dispatched again. `anew`: of `queues`, `index` and `lights` what is to be made again whatever
        it looks like. `accept_loss`: go on without segments that are missing.

        Raises GantryError(STORE_FAILED) if another process has the store, StoreCorruptError if it cannot be understood.
        """
        refuse_unreadable(self.files, self._store)
        for directory in (self._store, self._own):
            self.files.make_dirs(directory)
        guard = self.files.lock(self._store / "lock")
        if guard is None:
            raise GantryError(
                ErrorCode.STORE_FAILED,
                f"{self._store} is in use by another process (lock file): stop the server there first",
            )
        self._guard = guard
        try:
            return self._load(progress, anew, accept_loss)
        except BaseException:
            self._give_back()
            raise

    def _load(
        self, progress: Callable[[int, int], None] | None, anew: frozenset[str], accept_loss: bool
    ) -> RecoveryReport:
        self._open_log(accept_loss)  # before anything is written: a refused start must leave no trace
        clean, own_crash = mark_running(self.files, self._store, self._own)
        index_there = self.files.exists(self._store / "index")
        indexed = self._open_derived()
        begin = where_to_begin(
            Found(
                self.files, self._store, self._log, self._queues, self._index, self._lights.directory, self._positions,
                self._ends, clean, own_crash, indexed, index_there, bool(anew & {"queues", "index"}),
            )
        )  # fmt: skip
        if taken_over(self.files, self._own, begin.foreign) and self.config.body_bytes_max is None:
            self._body_max = BODY_BYTES_ROCKETMQ
        self._lights.distrusted = begin.light_anew or "lights" in anew or bool(self._log.lost)
        report = self._recover(begin, own_crash, progress)
        self._index.load_slots()
        note_boot(self.files, self._own, self.config.transient_pool)
        self._ends.settle(self._appender.position)
        self.compacted.cut(self._queues)
        self._log.hot_from = self._log.opened_at = self._appender.position
        self._positions.begin = self._log.min_position
        self._settle_recovery(report)
        if self.config.transient_pool:
            self._log.buffer = WriteBuffer()
        self._checkpoint_at = self._clock.monotonic_ms()
        return report

    def _settle_recovery(self, report: RecoveryReport) -> None:
        """Put what was recovered on stable storage: a process that is killed again and again must not begin at the same place each time."""
        if self._derived_synced < self.written_position or self._lights.recovered:
            checkpoint = self.take_checkpoint(force=True)
            if checkpoint is not None:  # else the disk is full
                self.sync_checkpoint(checkpoint)
                self._lights.save_table()
        if not report.clean:
            unknown = [name for name in self._queues.unopened() if not self._ends.knows(name)]
            for name in unknown[:COUNTED_MAX]:
                self._queues.topic(name)
            self._save_ends()

    def _save_ends(self) -> None:
        self._ends.save(
            self._appender.position,
            self._log.min_position,
            self._queues.open_topics,
            self._index,
            self._lights.lengths(),
        )

    def read_without_waiting(self, cold: ColdReads | None) -> None:
        """From now on reads raise `Cold` where they would wait for the disk (store/cold.py); None: they wait again."""
        self.cold = self._log.cold = self._queue_files.cold = self._lights.cold = self._index.cold = cold

    def _open_log(self, accept_loss: bool) -> None:
        """Raises StoreCorruptError where segments are missing."""
        self._positions.open()
        known = self._positions.flushed >= 0
        if known:
            sizes, wanted = self._positions.sizes, self._sizes()
            self._log.file_size, self._queue_files.file_size = sizes.log_file, sizes.queue_file
            self._index.slots, self._index.entries = sizes.index_slots, sizes.index_entries
            if sizes != wanted:
                log.warning("%s was made with %s; the settings %s are ignored", self._store, sizes, wanted)
        self._log.open(known, self._positions.flushed, self._positions.begin, accept_loss)

    def _open_derived(self) -> bool:
        """False if the index must be made again."""
        known = self._positions.flushed >= 0
        self._record_max = self._log.file_size - record.BLANK_SIZE
        self._content_max = self._record_max - record.OVERHEAD_MAX - record.DISPATCH_RESERVE
        self._queue_files.log_min = self._log.min_position
        self._queues.load(known)
        self.compacted.open()
        indexed = self._index.open(known, self._positions.derived if known else 1 << 62)
        self._positions.sizes = self._sizes()
        self._ends.load()
        self.damage.load()
        if not known and not self._log.bases:
            self._positions.begin = 0
            self._positions.save(0, 0, sync=True)  # from the first record on this log is known to be ours
            self.files.sync_dir(self._own)
        return indexed

    def _sizes(self) -> Sizes:
        return Sizes(self._log.file_size, self._queue_files.file_size, self._index.slots, self._index.entries)

    def _recover(self, begin: Begin, own_crash: bool, progress: Callable[[int, int], None] | None) -> RecoveryReport:
        low, flushed, derived = self._log.min_position, begin.flushed, begin.derived
        known = self._positions.flushed >= 0
        report = RecoveryReport(begin.clean, derived, derived)
        finder = EndFinder(self.files, self._log, self._own / "quarantine", report)
        finder.thorough = known and bool(begin.anew) and not begin.foreign
        finder.own_crcs = self.config.properties_crc
        finder.cuts = [gap.start for gap in self._log.lost if gap.short]

        def checked(done: int, total: int) -> None:
            if progress is not None:
                progress(done // 2, total)

        def dispatched(done: int, total: int) -> None:
            if progress is not None:
                progress((total + done) // 2, total)

        # `own_crash`: another broker's records may hold U+0000.
        end = finder.find_end(derived, min(flushed, self._log.limit), own_crash, checked)
        if known and begin.clean and not begin.anew and end > derived:
            # A real broker went on with it, and trusts its own queues.
            derived = max(derived, min(queues_end(self._queues, self._log), end))
        report.end = end
        report.clean = begin.clean and not report.quarantined
        if not begin.clean:
            finder.cut(end)
        self._log.flushed_position = min(flushed, end)
        self._log.writing_base = self._log.base_of(end)
        self._lights.open(end, low)
        if begin.foreign:
            self._lights.log_position = derived
            self._lights.save_table()
        self._appender.position = end
        self._appender.last_ms = load_checkpoint(self.files, self._store / "checkpoint")
        if begin.clean and end == derived and self._lights.log_position == end and not begin.anew:
            self._derived_synced = end
            return report
        if derived < self._positions.derived:  # killed from here on, the next start must not trust what is cut now
            self._positions.save(min(flushed, end), derived, sync=True)
        sound = own_crash and not report.cut_bytes and not report.quarantined
        report.whole = sound and nothing_lost(self.files, self._own)
        reached = self._begin_replay(begin, derived, end, report.whole)
        queues = TopicQueues(self._queues, self._ends, finder)
        replay = Replay(self._log, queues, self._lights, self._index, self._appender)
        replay.run(min(derived, max(self._lights.log_position, low)), derived, end, report, dispatched)
        for name, queue_id, most in reached:
            self._queues.reach(name, queue_id, most)
        self._queues.end_replay(end)
        self.flush_derived()
        self.flush()
        self._derived_synced = derived
        self._list_gone(report)
        self._positions.save(self._log.flushed_position, derived, sync=True)
        return report

    def _list_gone(self, report: RecoveryReport) -> None:
        """Whoever asks for damage sees what is in the log no more, too."""
        for position, size in report.quarantined:
            self.damage.quarantined(
                position, size, "damaged when the server started; its bytes are in gantry/quarantine"
            )
        for gap in self._log.lost:
            if not gap.short:  # what is lost of a short segment is among the places above
                self.damage.quarantined(
                    gap.start, gap.end - gap.start, "its segment was missing, and the loss was accepted"
                )
        self._save_damage()

    def _begin_replay(self, begin: Begin, derived: int, end: int, whole: bool) -> list[tuple[str, int, int]]:
        """Take away what the replay makes again; the offsets (topic, queue id, maximum) that queues must come to, whatever the log has."""
        if not begin.anew:
            self._queues.cut_from(derived, whole)
            self._index.cut(derived, self._store_ms_at, whole)
            return []
        lost = bool(self._log.lost)
        reached = self._queues.start_anew(1 << 62 if lost else end) + list(self._ends.maxima())
        self._index.cut(0, self._store_ms_at)
        return reached

    def close(self) -> None:
        """Clean stop: everything on stable storage, abort file removed. After a failure only descriptors are given back."""
        try:
            if self._failure is None:
                self.flush()
                self._index_some(self.index_lag_records)
                checkpoint = self.take_checkpoint(force=True)
                if checkpoint is None or self.indexed_position < self.written_position or self._buffer_full:
                    log.error("%s: no space left; the next start makes queues and index again", self._store)
                    return
                self.sync_checkpoint(checkpoint)
                self._lights.save_table()
                self._save_ends()
                self._save_damage()
                self.files.remove(self._store / "abort")
                self.files.sync_dir(self._store)
        finally:
            self._give_back()

    def _save_damage(self) -> None:
        """A disk that is full keeps no stop from being clean: what is not listed is found again."""
        try:
            if self.damage.dirty:
                self.damage.save(self.damage.text())
        except OSError as error:
            log.warning("%s: %s; damaged records are listed when they are met again", self._own, error.strerror)

    def _give_back(self) -> None:
        """Descriptors and the lock."""
        for part in (self._log, self._queue_files, self._index, self._lights, self._positions, self.compacted):
            part.close()
        if self._guard >= 0:
            self.files.close(self._guard)
            self._guard = -1

    def _directories(self, paths: Sequence[Path]) -> list[Path]:
        """Of files below the two roots, and of those directories, up to the roots. As texts: a thread must not compute for long."""
        found = {str(self._store), str(self._own)}
        if not paths:
            return []
        for path in paths:
            directory = dirname(path)
            while directory not in found:
                found.add(directory)
                directory = dirname(directory)
        return [Path(directory) for directory in found]

    # --- writing

    def check(self, message: Message) -> ErrorCode | None:
        """Why a message cannot be stored, or None. Light queues never make a message too large. A CRC of the record that it was once received as
        goes: it would not be that of the record which it becomes."""
        body, properties = len(message.body), message.properties
        if (
            body <= self._body_max
            and len(properties) <= SENDER_PROPERTIES_MAX
            and body + len(properties) + len(message.topic) <= self._content_max
            and message.topic in self._queues.open_topics
            and b"\0" not in properties
            and properties[-OWN_CRC_SIZE:-11] != OWN_CRC_MARK
        ):
            return None
        if has_own_crc(properties):
            message.properties = properties[:-OWN_CRC_SIZE]
        return self._why_not(message)

    def item_limits(self, topic: str, own: int) -> tuple[int, int, int]:
        """Most bytes of a body, of a body with its properties, and of the properties alone, where the topic's name and `own` bytes of properties
        are stored with them (`check` for `model.run.fill`)."""
        return self._body_max, self._content_max - own - len(topic), SENDER_PROPERTIES_MAX - own

    def _why_not(self, message: Message) -> ErrorCode | None:
        body, properties = len(message.body), message.properties
        if body > self._body_max or body + len(properties) + len(message.topic) > self._content_max:
            return ErrorCode.MESSAGE_TOO_LARGE
        if len(properties) > SENDER_PROPERTIES_MAX:
            return ErrorCode.PROPERTIES_TOO_LARGE
        if b"\0" in properties:
            return ErrorCode.MESSAGE_ILLEGAL  # recovery takes it for a torn write
        try:
            check_stored_topic(message.topic)
        except GantryError as error:
            return error.code
        return None

    def append(self, batch: Sequence[Message], lights: Sequence[tuple[int, ...]]) -> int:
        """Store checked messages in order; `lights[i]`: distinct light queues that message i enters. Returns the new end.

        Sets the store's fields of each message. One `pwrite` per segment touched. Raises STORE_FULL with nothing changed, or
        STORE_FAILED: then the store has stopped.
        """
        if self._failure is not None:
            raise self._failure
        now_ms = self._clock.now_ms()
        pending = self._appender.index_pending
        behind_max = INDEX_SWEEPING_MAX if self._sweeping else INDEX_BEHIND_MAX
        if pending and (self.index_lag_records > behind_max or now_ms - pending[0][3] > INDEX_LAG_MS_MAX):
            self._catch_up(len(batch) + self._appender.more)
        if self._buffer_full:
            raise GantryError(ErrorCode.STORE_FULL, f"no space left for {self._store}")
        if self._derived_full:
            self._check_derived_room()
        start = self._appender.position
        try:
            end = self._appender.append(batch, lights, now_ms)
        except OSError as error:
            raise self._write_failed(error, start) from error
        if end >= self._wake_at:
            self._wake_at = end + WAKE_STEP
            self.ahead.set()
        if self._units_since < 0:
            self._units_since = self._clock.monotonic_ms()
        self._units_in_log = self._units_in_log + len(batch) + self._appender.more
        return end

    def begin_spread(self, message: Message, targets: tuple[int, ...]) -> Spread:
        """`message`, which the next `append` stores, does not enter these light queues at once: `spread_some` puts it into some of them, until all
        have it. One at a time."""
        self._appender.spread = spread = Spread(message, targets)
        return spread

    def spread_some(self, count: int) -> tuple[int, ...]:
        """The record enters `count` more of its light queues at most; returns which."""
        spread = self._appender.spread
        if spread is None:
            return ()
        part = spread.step(self._lights, count)
        if not spread.left:
            self.end_spread()
        return part

    def end_spread(self) -> None:
        """All its queues have it, or it was not stored."""
        self._appender.spread = None

    def _write_failed(self, error: OSError, start: int) -> GantryError:
        if error.errno not in FULL_ERRORS:
            return self._fail(error)
        if self._log.buffer is not None:
            self._log.buffer.cut(start)
        try:
            # Part of the batch may stand behind the end of the log: without a head it cannot come back after a crash.
            if start < self._log.limit:
                self._log.write(start, bytes(record.BLANK_SIZE))
        except OSError as second:
            if second.errno not in FULL_ERRORS:
                return self._fail(second)
        lacking = "descriptor" if error.errno in NO_HANDLE_ERRORS else "space"
        return GantryError(ErrorCode.STORE_FULL, f"no {lacking} left for {self._store}: {error.strerror}")

    def _fail(self, error: BaseException) -> GantryError:
        """After an I/O error the kernel may have dropped what was written: nothing more is acknowledged."""
        if self._failure is None:
            self._failure = GantryError(
                ErrorCode.STORE_FAILED,
                f"{self._store}: {getattr(error, 'strerror', None) or error}; the store stopped, restart when it is repaired",
            )
            log.critical("%s", self._failure.text)
        return self._failure

    def delete_light(self, light: int) -> None:
        """Forget a light queue; its id must never be used again. Records stay in the log."""
        if self._appender.spread is not None:
            self._appender.spread.forget(light)
        self._lights.delete(light)

    def trim_light(self, light: int, below_offset: int) -> None:
        """Entries of a light queue below an offset will not be read again: their space is used for others. Cheap. Records stay in the
        log; a crash may bring the entries back."""
        self._lights.trim(light, below_offset)

    # --- durability

    def fail(self, error: BaseException) -> GantryError:
        """Stop the store because of something outside it (its flush thread died)."""
        return self._fail(error)

    def work_ahead(self) -> None:
        """Write what waits in the write buffer, reserve space ahead. Any one thread."""
        try:
            self._log.write_buffered()
            self._buffer_full = False
        except OSError as error:
            self._buffer_failed(error)
        self.reserve_ahead()

    def _buffer_failed(self, error: OSError) -> None:
        if error.errno not in FULL_ERRORS:
            raise self._fail(error) from error
        if not self._buffer_full:
            log.error("no space left for %s; acknowledged records wait in memory, new ones are refused", self._store)
        self._buffer_full = True

    def reserve_ahead(self) -> None:
        """Reserve disk space ahead of the write position and make the next segment when its turn is near. Any one thread.

        A full disk shows here first; it is no error yet.
        """
        try:
            self._reserved = self._log.reserve(self._appender.position, self._reserved)
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                raise self._fail(error) from error

    def flush(self) -> int:
        """Put the log on stable storage up to the present end; returns that position. Any thread. Raises STORE_FAILED.

        With a write buffer that a full disk keeps from being written nothing moves: the old position is returned.
        """
        if self._failure is not None:
            raise self._failure
        with self._flush_lock:
            target = self._appender.position
            start = self._log.flushed_position
            if target > start:
                try:
                    self._log.write_buffered()
                    self._buffer_full = False
                except OSError as error:
                    self._buffer_failed(error)
                    return start
                try:
                    self._log.sync(start, target)
                    self._log.flushed_position = target
                    self._positions.save(target, self._derived_synced)
                except OSError as error:
                    if error.errno in NO_HANDLE_ERRORS:  # what is written stays so, and is synced by the next flush
                        log.warning("%s: %s; the flush is tried again", self._store, error.strerror)
                        return start
                    if self._log.flushed_position < target or error.errno not in FULL_ERRORS:
                        raise self._fail(error) from error
            return target

    def _note_begin(self, position: int) -> None:
        with self._flush_lock:
            self._positions.begin = position
            self._positions.save(self._log.flushed_position, self._derived_synced, sync=True)

    def take_checkpoint(self, force: bool = False) -> Checkpoint | None:
        """The checkpoint that is due, for `sync_checkpoint`. `force`: make one now (loop thread only)."""
        checkpoint = self._checkpoint
        if checkpoint is not None:  # only then: the loop makes one while there is none, and it must not be lost
            self._checkpoint = None
        if not force:
            return checkpoint
        made = self._make_checkpoint()
        if checkpoint is not None and made is not None:
            made.paths += checkpoint.paths
            made.publish = made.publish or checkpoint.publish
        return made

    def sync_checkpoint(self, checkpoint: Checkpoint, between: Callable[[], None] | None = None) -> None:
        """Put the derived files on stable storage, then say so. Any thread. `between()` is called every few files: thousands may
        take a while, and acknowledgements wait for the log's flush, not for this."""
        self.flush()
        try:
            if between is None and len(checkpoint.paths) > SYNC_ALL_FROM:
                self.files.sync_all(self._store)
                checkpoint.paths = []
            for number, path in enumerate(checkpoint.paths):
                self._queue_files.sync(path)
                if between is not None and number % FILES_PER_FLUSH == 0:
                    between()
            for directory in self._directories(checkpoint.paths):
                self.files.sync_dir(directory)
        except OSError as error:
            if error.errno in NO_HANDLE_ERRORS:
                log.warning("%s: %s; the checkpoint is tried again", self._store, error.strerror)
                later = self._checkpoint  # the loop may have made one meanwhile
                if later is None:
                    self._checkpoint = checkpoint
                else:
                    later.paths, later.publish = later.paths + checkpoint.paths, later.publish or checkpoint.publish
                return
            raise self._fail(error) from error
        try:
            if checkpoint.publish is not None:
                checkpoint.publish()
            with self._flush_lock:
                self._derived_synced = checkpoint.position
                self._positions.save(self._log.flushed_position, checkpoint.position, sync=True)
            save_checkpoint(self.files, self._store / "checkpoint", checkpoint.store_ms, checkpoint.store_ms,
                            checkpoint.store_ms, sync=True)  # fmt: skip
            self.files.sync_dir(self._store)
        except OSError as error:  # without room for this note the next start replays more
            if error.errno not in FULL_ERRORS:
                raise self._fail(error) from error
