"""Retention: deletes the oldest segment when it is due and nothing in it is alive, and watches the disk (docs/operations/retention.md).

One segment at a time: survey what is alive; if that is little, write it again at the log's end (moved records, rows, state of
cursors), wait until that is on stable storage, then remove the segment. Nothing is remembered on disk: after a crash at any place
the whole of it is done again, and what was moved already is found moved. All of it runs on the loop in slices; unlinking and
nothing else in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gantrymq.broker.consuming.acks import ACK_TOPIC, RECORD_BYTES_MAX
from gantrymq.broker.consuming.entries.moved import MOVED_MAX
from gantrymq.broker.retention.kept import KeptByTime
from gantrymq.broker.retention.live import Survey
from gantrymq.broker.retention.pins import OVER_TABLE, Pins, SessionLimits
from gantrymq.broker.retention.trail import keep_trail
from gantrymq.broker.slices import HELD, Sliced, Slices, patient
from gantrymq.broker.tables.tables import item_message
from gantrymq.broker.topics import KEEP_RECORDS, RESERVE_TIME
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.model.sysflag import TRANSACTION_ROLLBACK
from gantrymq.store.checked import NOT_READ, is_unreadable
from gantrymq.store.log.moved import places_of, wrap
from gantrymq.store.log.record import SYS_FLAG_AT, fault, place_of
from gantrymq.store.log.recovery import FILLER_TOPIC
from gantrymq.store.retention.rules import DiskLevel, disk_level, used_ratio, why_now

if TYPE_CHECKING:
    from gantrymq.broker.broker import Broker
    from gantrymq.metrics import Metrics
    from gantrymq.store.message_store import MessageStore

log = logging.getLogger(__name__)

LIVE_RATIO_MAX: Final = 0.10
"""Above it a segment stays: writing more than a tenth again to free the rest is no gain."""
ROWS_RATIO_MAX: Final = 0.50
"""Rows of tables never expire. When space is short a segment with more of them stays: writing them again would free nothing."""
CHECK_MS: Final = 1_000
"""Between two looks at the disk."""
DUE_MS: Final = 10_000
"""Between two looks at whether a segment is due, and at topics with a time of their own."""
PINS_MS: Final = 60_000
"""Between two passes over what queues and sessions hold back."""
STAY_MS: Final = 60_000
"""A segment that had to stay is surveyed again after so long."""
REUNION_MS: Final = 60_000
"""After a start: clients and gateways come back, and consumer groups say what they want (RocketMQ's clients every 30 s)."""
SLICE_US: Final = 1_000
SLICE_EVERY_MS: Final = 10
"""A survey of a million cursors takes a tenth of the loop's time at most."""
RETRY_MS: Final = 50
"""Between two looks at whether a flush has come, or whether the disk's readers have room."""
WRITE_BYTES: Final = 64 * 1024
"""Survivors written in one slice."""
WRITE_US: Final = 500
DECODE_US: Final = 20
TOLD_AGAIN: Final = 0.01
"""The log says that a watermark is no longer passed when the disk is so far below it: one that hovers there fills no log."""
TOPICS_STEP: Final = 512
TOPICS_US: Final = 150
"""Topics looked at in one piece, and what that takes."""
UNNEEDED: Final = "nothing in it is kept by time"
"""Why a segment goes that is not due; where much in it is alive it just stays until it is."""


class Retention:
    """One per broker. `in_thread(work, done)` runs `work()` in a thread and then `done(error or None)` on the loop."""

    def __init__(
        self,
        broker: Broker,
        store: MessageStore,
        in_thread: Callable[[Callable[[], None], Callable[[OSError | None], None]], None],
        kept: KeptByTime | None = None,
    ) -> None:
        self._broker = broker
        self._store = store
        self._in_thread = in_thread
        self.pins = Pins(
            broker.cursors,
            broker.append_ack,
            store.trim_light,
            SessionLimits(
                broker.config.session_bytes_max,
                broker.config.session_bytes_full,
                broker.config.session_messages_max,
                broker.config.session_messages_full,
            ),
            self._session_over,
            broker.queues.name_of,
        )
        self._pins_at = 0
        self.metrics: Metrics | None = None
        """Where to show what queues pin."""
        self._passed: dict[int, tuple[int, int]] = {}
        self.work = Sliced(store, self._go_on, self._pause, self._stopped)
        self._due_at = 0
        self.kept = kept if kept is not None else KeptByTime(broker)
        self._early_at = 0
        """Before this time no segment goes that is not due."""
        self._holder = ""
        """The topic that the log said keeps the oldest segment from going early."""
        self._broken = False
        """A file could not be unlinked: deleting the one behind it would leave a hole in the log."""
        self._saving = False
        self.level = self._told = DiskLevel.FREE
        """`_told`: what the log said last."""
        self.used = 0.0
        self.deleted = 0
        """Segments deleted since the start."""
        self.moved = 0
        """Records moved since the start."""
        self.rewritten = 0
        """Rows and cursors' states written again since the start."""
        self.staying = ""
        """Why the oldest segment could not go at the last try; empty: it could, or was not due."""

    def _session_over(self, client_id: str, row: bytes) -> None:
        if client_id not in self._broker.tables.rows(OVER_TABLE):
            self._broker.put(OVER_TABLE, [(client_id, row)], None, None)

    # --- the clock

    def start(self) -> None:
        """Look at the disk now and then for ever. Nothing goes early before those who were connected are so again."""
        self._early_at = self._broker.wheel.now_ms() + REUNION_MS
        self._tick(self._broker.wheel.now_ms())

    def _tick(self, now_ms: int) -> None:
        if self._broker.closed:
            return
        self.check(now_ms)
        self._broker.wheel.call_at(now_ms + CHECK_MS, self._tick)

    def check(self, now_ms: int) -> None:
        """Look at the disk; begin a job if something is due."""
        self._check_disk()
        self._save_damage()
        if self.work.job is None and now_ms >= self._due_at and self._store.failure is None and not self._broken:
            self._due_at = now_ms + DUE_MS
            self._broker.arm_background()  # on an idle broker nobody else makes the checkpoint that deletion waits for
            self.work.job = self._run(now_ms)
            self._slice(now_ms)

    def _save_damage(self) -> None:
        """Put the list of damaged records on stable storage, if it has changed."""
        damage = self._store.damage
        if damage.dirty and not self._saving:
            self._saving = True
            text = damage.text()
            self._in_thread(lambda: damage.save(text), self._saved)

    def _saved(self, error: OSError | None) -> None:
        self._saving = False
        if error is not None:  # what is not listed is found again
            log.warning("the list of damaged records could not be saved: %s", error)

    def _check_disk(self) -> None:
        total, free = self._store.disk_usage()
        self.used = used_ratio(total, free)
        self.level = level = disk_level(self._store.config, self.used, free)
        percent = f"{self.used:.1%} of the store's file system is in use"
        self._broker.full = f"the disk is full: {percent}" if level is DiskLevel.FULL else ""
        if (
            level
            <= self._told
            <= disk_level(self._store.config, self.used + TOLD_AGAIN, free - int(TOLD_AGAIN * total))
        ):
            return
        if level is DiskLevel.FULL:
            log.error("%s: messages are refused until there is room (store.disk_full_ratio)", percent)
        elif level > self._told:
            log.warning("%s: %s", percent, "the oldest segments go before their time" if level is DiskLevel.CLEAN
                        else "expired segments go at any hour")  # fmt: skip
        else:
            log.info("%s: below the watermark again", percent)
        self._told = level

    def show(self, metrics: Metrics) -> None:
        """Register the metrics."""
        self.metrics = metrics
        store, moved = self._store, self._broker.cursors.moved
        for name, text, source, kind in (
            ("gantry_log_bytes", "Length of the log", lambda: store.written_position - store.log_min_position, "gauge"),
            ("gantry_disk_used_ratio", "Part of the store's file system in use", lambda: self.used, "gauge"),
            ("gantry_disk_level", "0 free, 1 warn, 2 clean early, 3 full", lambda: int(self.level), "gauge"),
            ("gantry_segments_deleted_total", "Segments deleted", lambda: self.deleted, "counter"),
            (
                "gantry_segment_stays",
                "1 while a segment is due and too much in it is alive",
                lambda: int(bool(self.staying)),
                "gauge",
            ),
            ("gantry_moved_records_total", "Live records written again", lambda: self.moved, "counter"),
            ("gantry_moved_entries", "Entries shown from where they were moved to", lambda: moved.count, "gauge"),
            (
                "gantry_rewritten_total",
                "Rows of tables and cursors' states written again",
                lambda: self.rewritten,
                "counter",
            ),
            (
                "gantry_store_damaged_records_total",
                "Damaged records and queue units that were met",
                lambda: store.damage.total,
                "counter",
            ),
            (
                "gantry_store_damaged_records",
                "Damaged records and queue units that are listed",
                lambda: len(store.damage.entries),
                "gauge",
            ),
            (
                "gantry_store_damaged_entries",
                "Entries of queues, sessions and groups that wait for a damaged record",
                lambda: self._broker.cursors.quarantined.count,
                "gauge",
            ),
            (
                "gantry_session_dropped_total",
                "Entries dropped at the limit of a session's backlog",
                lambda: self.pins.dropped,
                "counter",
            ),
        ):
            metrics.read(name, text, source, kind)

    # --- slices

    def _slice(self, now_ms: int) -> None:
        if not self._broker.closed and self.work.step(SLICE_US):
            self._broker.wheel.call_at(now_ms + SLICE_EVERY_MS, self._slice)

    def _go_on(self) -> None:
        self._slice(self._broker.wheel.now_ms())

    def _pause(self, call: Callable[[], None]) -> None:
        self._broker.wheel.call_at(self._broker.wheel.now_ms() + RETRY_MS, lambda now_ms: call())

    def _until(self, holds: Callable[[], object]) -> Slices[None]:
        while not holds():
            self._pause(self.work.wake)
            yield HELD

    def _stopped(self, error: Exception) -> None:
        self.staying = f"it could not be emptied: {error}"
        if isinstance(error, GantryError) and error.code is ErrorCode.STORE_FULL:
            log.warning("the oldest segment stays: there is no room to write again what is alive in it")
        else:
            log.exception("retention stopped in the middle; it begins anew in %d s", STAY_MS // 1000)
        self._due_at = self._broker.wheel.now_ms() + STAY_MS

    # --- the job

    def _run(self, now_ms: int) -> Slices[None]:
        yield from self._shorten_topics()
        yield from self._remove_due(now_ms)
        if now_ms >= self._pins_at:
            before = self.pins.top
            yield from self.pins.run(self._store.written_position)
            if self.metrics is not None:
                self.pins.publish(self.metrics, before)
            self._pins_at = self._broker.wheel.now_ms() + PINS_MS

    def _remove_due(self, now_ms: int) -> Slices[None]:
        while not self._broker.closed and not self._broken:
            segment = self._store.segments.oldest(min(self._store.flushed_position, self._store.derived_position))
            if segment is None:
                return
            begin, end = segment
            yield from keep_trail(self._broker, self.kept.applies)
            newest_ms = yield from patient(lambda: self._store.store_ms_at(end))  # noqa: B023 (called at once)
            why = why_now(
                self._store.config,
                self.level,
                self._broker.clock.now_ms(),
                newest_ms,
                self._store.written_position - begin,
            )
            early = not why and self.kept.applies and self._broker.wheel.now_ms() >= self._early_at
            if early and (yield from self._is_unneeded(begin, end)):
                why = UNNEEDED
            if not why:
                self.staying = ""
                return
            if not (yield from self._empty(begin, end, why)):
                if early:
                    self._early_at = now_ms + STAY_MS
                else:
                    self._due_at = now_ms + STAY_MS
                return
            yield from self._remove(begin, end, why)
            yield SLICE_US
            self._check_disk()

    def _is_unneeded(self, begin: int, end: int) -> Slices[bool]:
        """Whether no record of the segment is kept by time."""
        holder = yield from self.kept.holder(end)
        if holder and holder != self._holder:
            log.info("segment %d is kept for store.file_reserved_hours: it has records of topic %s", begin, holder)
            self._holder = holder
        return not holder

    def _shorten_topics(self) -> Slices[None]:
        now_ms = self._broker.clock.now_ms()
        kept: dict[tuple[str, int], int] = {}
        some_are_not = False
        for number, topic in enumerate(list(self._broker.topics.topics.values())):
            if number % TOPICS_STEP == 0:
                yield TOPICS_US
            some_are_not = some_are_not or topic.config.attributes.get(KEEP_RECORDS) == "false"
            text = topic.config.attributes.get(RESERVE_TIME, "")
            if not text.isdecimal() or int(text) == 0:
                continue
            for queue_id in self._store.queues_of(topic.name):
                place, limit_ms = (topic.name, queue_id), now_ms - int(text)
                kept[place] = yield from patient(
                    lambda: self._store.offset_by_time(*place, limit_ms, True)  # noqa: B023 (called at once)
                )
                kept[place] = max(kept[place], self._broker.kept_from.get(place, 0))
                yield DECODE_US * 4
        self._broker.kept_from = kept
        self.kept.some_are_not = some_are_not

    def _empty(self, begin: int, end: int, why: str) -> Slices[bool]:
        """Write again what is alive in the segment. False: too much is."""
        size = end - begin
        survey = Survey(self._broker.cursors, self._store, self._broker.tables, begin, end, self._passed)
        few = yield from survey.run(int(size * LIVE_RATIO_MAX))
        moved = self._broker.cursors.moved
        shows = sum([len(names) for _, names in survey.places.values()])
        if not few:
            self._stay(
                begin, f"more than {LIVE_RATIO_MAX:.0%} of it is alive (entries that nobody has acknowledged)", why
            )
        elif moved.count + shows > MOVED_MAX:
            self._stay(begin, f"{moved.count} entries have been moved already, at most {MOVED_MAX} are", why)
        elif why != "time" and survey.row_bytes > size * ROWS_RATIO_MAX:
            self._stay(begin, f"more than {ROWS_RATIO_MAX:.0%} of it is rows of tables", why)
        else:
            damaged = (yield from self._write_survivors(survey)) + self._note_units(survey)
            if damaged:
                text = f"{damaged} damaged records of it wait to be restored or skipped (gantry store damage list)"
                self._stay(begin, text, why)
                return False
            yield from self._write_rows(survey)
            yield from self._write_states(survey)
            target = self._store.written_position
            self._broker.request_flush()
            yield from self._until(lambda: self._store.flushed_position >= target)
            self._passed = survey.passed
            self.staying = ""
            return True
        return False

    def _stay(self, begin: int, reason: str, why: str) -> None:
        if why == UNNEEDED:  # it is not due
            self.staying = ""
            log.debug("segment %d does not go early: %s", begin, reason)
            return
        if self.staying != reason:
            log.warning("segment %d is due to be deleted and stays: %s", begin, reason)
        self.staying = reason

    def _note_units(self, survey: Survey) -> int:
        """List the units that name no record; returns how many of them somebody still has to restore or skip."""
        return sum([self._note(unit, queue, offset, what, True) for queue, offset, unit, what in survey.bad])

    def _note(self, unit: tuple[int, int, int], queue: str, offset: int, what: str, is_unit: bool) -> bool:
        """List what is damaged; False: it is listed as skipped. Who has not acquired it yet finds it gone with its segment."""
        self._store.note_damage(unit, queue, offset, what, is_unit)
        entry = self._store.damage.entries.get((unit[0], queue, offset) if is_unit else (unit[0], "", -1))
        return entry is None or not entry.skipped

    def _write_survivors(self, survey: Survey) -> Slices[int]:
        """The number of those that are damaged and not skipped, and stay where they are."""
        places = self._broker.cursors.moved
        batch: list[Message] = []
        size = damaged = 0
        for position in sorted(survey.places):
            length, shows = survey.places[position]
            unit = (position, length, 0)
            try:
                read = yield from patient(lambda: self._store.read_records([unit], unit[1]))  # noqa: B023 (called at once)
                stored = b"".join(read[0])
                what = fault(stored, length)
            except OSError as error:
                if not is_unreadable(error):
                    raise
                what = NOT_READ
            yield DECODE_US
            rolled_back = stored[SYS_FLAG_AT + 3] & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK if not what else False
            if rolled_back and FILLER_TOPIC.startswith(place_of(stored)[0]):
                what = "recovery put it aside"
            if what:
                damaged += self._note(unit, shows[0][0], shows[0][1], what, False)
                continue
            batch.append(wrap(stored, shows))
            size += length
            if size >= WRITE_BYTES:
                yield from self._move(batch, survey, places.put)
                batch, size = [], 0
        if batch:
            yield from self._move(batch, survey, places.put)
        return damaged

    def _move(
        self, batch: list[Message], survey: Survey, put: Callable[[list[tuple[str, int]], tuple[int, int, int]], None]
    ) -> Slices[None]:
        self._store.append(batch, [()] * len(batch))
        for message in batch:
            put(places_of(message), (message.physical_offset, message.size, 0))
        self.moved += len(batch)
        yield WRITE_US

    def _write_rows(self, survey: Survey) -> Slices[None]:
        """Put rows again as they are now. At once and not with the turn's batch: a change that waits there comes behind them."""
        for table, keys in survey.rows.items():
            waiting = list(keys)
            while waiting:
                batch: list[Message] = []
                size = 0
                while waiting and size < WRITE_BYTES:
                    key = waiting.pop()
                    value = self._broker.tables.kept(table, key)
                    if value is not None:
                        batch.append(item_message(table, key, value))
                        size += len(value) + 256
                if batch:
                    self._store.append(batch, [()] * len(batch))
                self.rewritten += len(batch)
                yield WRITE_US

    def _write_states(self, survey: Survey) -> Slices[None]:
        cursors = self._broker.cursors
        waiting = list(survey.acked)
        while waiting:
            self._broker.write_acks()
            bodies: list[bytes] = []
            part: list[bytes] = []
            size = 0
            while waiting and size < WRITE_BYTES:
                for entry in cursors.state_of(waiting.pop()):
                    if part and size + len(entry) > RECORD_BYTES_MAX:
                        bodies.append(b"".join(part))
                        part, size = [], 0
                    part.append(entry)
                    size += len(entry)
                self.rewritten += 1
            if part:
                bodies.append(b"".join(part))
            if bodies:
                self._store.append([Message(ACK_TOPIC, body, queue_id=0) for body in bodies], [()] * len(bodies))
            yield WRITE_US

    def _remove(self, begin: int, end: int, why: str) -> Slices[None]:
        removal = self._store.segments.removal(end)
        while not (yield from patient(lambda: removal.step(SLICE_US // 2))):
            yield SLICE_US // 2
        answer: list[OSError | None] = []
        self._in_thread(removal.unlink, answer.append)
        yield from self._until(lambda: answer)
        if answer[0] is not None:
            self._broken = True
            log.critical(
                "segment %d could not be removed (%s): nothing more is deleted until the next start", begin, answer[0]
            )
            return
        self.deleted += 1
        log.info("segment %d deleted (%s), %d files; the log begins at %d", begin, why, removal.paths, end)
