"""Which offsets a batch reads: what the driver's side of the source decides. Knows the broker, but not Spark."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Protocol

from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import RequestCode
from gantrymq.spark.planning.dividing import QueueRange, divide
from gantrymq.spark.planning.filters import Narrowing
from gantrymq.spark.planning.offsets import (
    EARLIEST,
    Bound,
    DataLossError,
    Offsets,
    OptionError,
    cap,
    lost,
    made_anew,
    name_queues,
    not_there,
)
from gantrymq.spark.planning.options import Options
from gantrymq.spark.wire import FIRST_FOR_S, RETRY_FOR_S, Metadata, patiently

_log = logging.getLogger(__name__)

LATEST_AGE_S: Final = 0.1
"""Spark asks an idle source for its end a hundred times a second; the brokers are asked ten times."""
TOPICS_AGE_S: Final = 5.0
"""So often a nameserver is asked for all its topics, where a pattern chooses among them."""

TOPIC_TRIES: Final = 10
TOPIC_PAUSE_S: Final = 0.2
"""A topic that its first message has just created reaches the nameserver a moment later."""


def _is_own(topic: str) -> bool:
    """Whether no pattern matches it: a group's topic, or the broker's."""
    return names.is_system_topic(topic) or topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))


class Ends(Protocol):
    """What a plan needs to know of the cluster (`wire.Metadata`; a fake in tests)."""

    def topics(self) -> list[str]:
        """Names of all topics."""

    def queues(self, topics: Iterable[str]) -> dict[MessageQueue, str]:
        """Queues and their brokers' addresses."""

    def offsets(self, queues: dict[MessageQueue, str], code: RequestCode) -> dict[MessageQueue, int]:
        """Oldest or next offset of each queue."""

    def offsets_at(self, queues: dict[MessageQueue, str], times: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Offset of the first message stored at that time (milliseconds) or later, else the next offset."""

    def record_bytes(self, queues: dict[MessageQueue, str], at: Mapping[MessageQueue, int], group: str) -> Offsets:
        """Mean size of a few messages from that offset on; 0 where there is none."""

    def stored_at(self, queues: dict[MessageQueue, str], at: Mapping[MessageQueue, int], group: str) -> Offsets:
        """When the message at that offset was stored; without those that are not there."""

    def commit(self, queues: dict[MessageQueue, str], offsets: Mapping[MessageQueue, int], group: str) -> None:
        """Keep the group's offsets."""


class Planner:
    """Plans batches and micro-batches for `options`."""

    def __init__(self, options: Options, ends: Ends | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._ends: Ends = Metadata(options.nameservers) if ends is None else ends
        self._clock = clock
        self._patience_s = FIRST_FOR_S
        """How long servers that cannot be reached are asked again: longer once a broker has answered."""
        self._addresses: dict[MessageQueue, str] = {}
        self._latest: Offsets = {}
        self._latest_at = float("-inf")
        self._target: Offsets | None = None
        self._matching: tuple[str, ...] = ()
        self._matching_at = float("-inf")
        self._triggered_at = float("-inf")
        self._committed: Offsets = {}
        self._said: set[MessageQueue] = set()
        """Queues of which a line of the log says what they lack."""

    def batch(self, narrowing: Narrowing | None = None) -> list[QueueRange]:
        """Ranges of a batch query, as far as `narrowing` wants them. Raises OptionError for offsets outside the queue, DataLossError for expired ones."""
        queues = self._queues()
        if not queues and self._options.pattern:
            raise OptionError(f"subscribePattern is {self._options.pattern!r}: no topic matches it")
        start = self._resolve(self._options.starting or Bound("startingOffsets", "earliest"), queues)
        end = self._resolve(self._options.ending or Bound("endingOffsets", "latest"), queues)
        begin_name = self._options.starting.option if self._options.starting else "startingOffsets"
        for queue in queues:
            if start[queue] > end[queue]:
                text = f"{begin_name} of {queue} is {start[queue]}, but the end is {end[queue]}"
                raise OptionError(f"{text}: allowed is a start at or before the end")
        if narrowing is not None:
            start, end = self._narrowed(narrowing, start, end)
        return self._checked_ranges(start, end)

    def _narrowed(self, to: Narrowing, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        def wants(queue: MessageQueue) -> bool:
            pairs = ((to.topics, queue.topic), (to.brokers, queue.broker), (to.queues, queue.queue_id))
            return all(allowed is None or value in allowed for allowed, value in pairs)

        places = {queue: self._addresses[queue] for queue in start if wants(queue)}
        start = {queue: max(start[queue], to.first) for queue in places}
        end = {queue: min(end[queue], to.end) for queue in places}
        for time_ms, side, choose in ((to.from_ms, start, max), (to.until_ms, end, min)):
            if time_ms is not None and places:
                times = dict.fromkeys(places, max(0, time_ms))
                found = patiently(partial(self._ends.offsets_at, places, times), self._patience_s)
                side |= {queue: choose(side[queue], offset) for queue, offset in found.items()}
        return start, end

    def initial(self) -> Offsets:
        """Where a new stream begins; without an option at `latest`, as Spark's Kafka source does."""
        return self._resolve(self._options.starting or Bound("startingOffsets", "latest"), self._queues())

    def freeze(self) -> None:
        """From now on `latest` does not go beyond what is there now (Trigger.AvailableNow)."""
        self._target = self._ask_latest()

    def latest(self, start: Mapping[MessageQueue, int], rows_max: int) -> Offsets:
        """End of the next micro-batch behind `start`; equals `start` if there is nothing new. `rows_max` 0: no limit."""
        self._commit(start)
        if self._target is not None:
            return self._next_end(start, self._target, rows_max)
        age = self._clock() - self._latest_at
        if age < LATEST_AGE_S:
            end = self._next_end(start, self._latest, rows_max)
            if end != start:
                return end
            time.sleep(
                LATEST_AGE_S - age
            )  # nothing new: Spark would ask again in 10 ms, and pass it all through its JVM
        self._latest = self._ask_latest()
        self._latest_at = self._clock()
        return self._next_end(start, self._latest, rows_max)

    def _next_end(self, start: Mapping[MessageQueue, int], ends: Offsets, rows_max: int) -> Offsets:
        begun = dict(start)
        new = [queue for queue in ends if queue not in begun]
        if new:
            _log.info("new queues: %s", ", ".join(map(str, new)))
            begun |= self._at("earliest", new)
        self._check_there([queue for queue in begun if queue not in ends and queue not in self._addresses], start)
        result = {}
        for queue, offset in begun.items():
            end = ends.get(queue, offset)
            if end < offset:
                # AvailableNow: a query without a checkpoint may begin behind what was there when it was made.
                there = end if self._target is None else self._at("latest", [queue])[queue]
                if there < offset:
                    self._say_or_raise(queue, lost(queue, there, offset - 1, f"the broker ends at offset {there}"))
                end = offset
            elif queue in ends:
                self._said.discard(queue)
            result[queue] = end
        if not self._is_due(sum([offset - begun[queue] for queue, offset in result.items()])):
            return dict(start)
        if self._options.bytes_per_trigger:
            rows_max = self._rows_of_bytes(begun, result, rows_max)
        capped = cap(begun, result, rows_max) if rows_max else result
        # A new queue that gets nothing yet is not written down: its start stays the oldest offset.
        return {queue: offset for queue, offset in capped.items() if queue in start or offset > begun[queue]}

    def _check_there(self, absent: list[MessageQueue], start: Mapping[MessageQueue, int]) -> None:
        """Queues of the checkpoint that no route names now. A stream goes on with them when they are back; one that is to end would end without what they
        have. Raises DataLossError."""
        for queue in absent:
            self._say_or_raise(queue, not_there(queue, start[queue]), self._target is not None)

    def _say_or_raise(self, queue: MessageQueue, error: DataLossError, ends_query: bool = True) -> None:
        """A line of the log, once as long as it is so, where no error is wanted or it does not end the query."""
        if ends_query and self._options.fail_on_data_loss:
            raise error
        if queue not in self._said:
            _log.warning("%s", error)
            self._said.add(queue)

    def _is_due(self, rows: int) -> bool:
        """Whether so many new messages make a batch (minOffsetsPerTrigger), or the last one is long ago. Those that are to be read to their end
        always do."""
        now = self._clock()
        due = rows >= self._options.rows_min or now - self._triggered_at >= self._options.delay_s
        if rows and (due or self._target is not None):
            self._triggered_at = now
            return True
        return self._target is not None or not self._options.rows_min

    def _rows_of_bytes(self, start: Offsets, end: Offsets, rows_max: int) -> int:
        """How many messages are some maxBytesPerTrigger: by the mean size of the next few of each queue, as no broker tells more."""
        lags = {queue: offset - start[queue] for queue, offset in end.items() if offset > start[queue]}
        places = {queue: self._addresses[queue] for queue in lags if queue in self._addresses}
        sizes = self._ends.record_bytes(places, start, self._options.group) if places else {}
        total = sum([lags[queue] * size for queue, size in sizes.items()])
        if total <= self._options.bytes_per_trigger:
            return rows_max
        rows = max(1, sum(lags.values()) * self._options.bytes_per_trigger // total)
        return min(rows, rows_max) if rows_max else rows

    def _commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Keep at the broker what Spark has done with: it asks for what follows `offsets` when the batch before is in its checkpoint. For looking at
        the lag only, so a failure ends no query."""
        if not self._options.commit_offsets or offsets == self._committed:
            return
        if not self._addresses:
            self._queues()
        known = {queue: self._addresses[queue] for queue in offsets if queue in self._addresses}
        try:
            self._ends.commit(known, offsets, self._options.group)
            self._committed = dict(offsets)
        except GantryError as error:
            _log.warning("offsets of group %s are not kept this time: %s", self._options.group, error)

    def newest(self) -> Offsets:
        """The end of every queue as it was last seen, for progress reports."""
        return self._target or self._latest or self._ask_latest()

    def marks(self, known: Offsets, start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> Offsets:
        """When the message in front of each offset of `end` was stored, by which `ranges` tells later whether the queue is still the same.
        `known`: those of `start`."""
        moved = {queue: offset - 1 for queue, offset in end.items() if offset > start.get(queue, 0)}
        return {queue: ms for queue, ms in known.items() if queue in end and queue not in moved} | self._stored_at(
            moved
        )

    def _stored_at(self, wanted: Offsets) -> Offsets:
        places = {queue: self._addresses[queue] for queue in wanted if queue in self._addresses}
        if not places:
            return {}
        return patiently(lambda: self._ends.stored_at(places, wanted, self._options.group), self._patience_s)

    def _others(self, start: Mapping[MessageQueue, int], marks: Offsets) -> list[MessageQueue]:
        """Queues whose message in front of `start` is another one than it was. Raises DataLossError, unless that is to be passed over."""
        now = self._stored_at({queue: start[queue] - 1 for queue in marks if start.get(queue, 0) > 0})
        found = [queue for queue, ms in now.items() if ms != marks[queue]]
        for queue in found:
            error = made_anew(queue, start[queue], marks[queue], now[queue])
            if self._options.fail_on_data_loss:
                raise error
            _log.warning("%s", error)
        return found

    def ranges(
        self, start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], marks: Offsets | None = None
    ) -> list[QueueRange]:
        """Ranges of a micro-batch. A queue that `start` does not know begins at its oldest offset, and so does one that is not the one that `marks`
        tell of."""
        if not self._addresses.keys() >= end.keys():  # a restarted query plans before it asks for the end
            self._queues()
        new = [queue for queue in end if queue not in start]
        new += self._others({queue: start[queue] for queue in start if end.get(queue, 0) > start[queue]}, marks or {})
        begun = dict(start) | (self._at("earliest", new) if new else {})
        return self._checked_ranges(begun, dict(end))

    def _checked_ranges(self, start: Offsets, end: Offsets) -> list[QueueRange]:
        """One range per queue with something to read, expired offsets found before any task runs."""
        wanted = [queue for queue in sorted(end) if end[queue] > start[queue]]
        gone = [queue for queue in wanted if queue not in self._addresses]
        if gone:
            queue = gone[0]
            if self._options.fail_on_data_loss:
                raise lost(queue, start[queue], end[queue] - 1, "the queue does not exist any more")
            _log.warning("%s does not exist any more; its offsets are passed over", queue)
            wanted = [queue for queue in wanted if queue in self._addresses]
        oldest = self._at("earliest", wanted) if wanted else {}
        result = []
        for queue in wanted:
            begin = start[queue]
            if begin < oldest[queue]:
                last = min(oldest[queue], end[queue]) - 1
                error = lost(queue, begin, last, f"the broker begins at offset {oldest[queue]}")
                if self._options.fail_on_data_loss:
                    raise error
                _log.warning("%s", error)
                begin = last + 1
            if begin < end[queue]:
                address = self._addresses[queue]
                result.append(QueueRange(queue.topic, queue.broker, queue.queue_id, begin, end[queue], address))
        return divide(result, self._options.partitions_min, self._options.rows_per_partition)

    def _resolve(self, bound: Bound, queues: list[MessageQueue]) -> Offsets:
        """An offset for every queue. Raises OptionError for what is not there."""
        times = dict.fromkeys(queues, bound.time_ms) if bound.time_ms >= 0 else bound.times
        for queue in [*bound.offsets, *times]:
            if self._options.topics and queue.topic not in self._options.topics:
                raise OptionError(f"{bound.option} names topic {queue.topic!r}, which the option topic does not")
        at_word = self._at(bound.word, queues)
        result = {queue: at_word[queue] for queue in queues}
        if times:
            result |= self._at_times(bound, name_queues(bound.option, times, queues, same=True))
        if bound.offsets:
            result |= self._at_offsets(bound.option, name_queues(bound.option, bound.offsets, queues))
        return result

    def _at_offsets(self, option: str, wanted: Offsets) -> Offsets:
        newest = self._at("latest", list(wanted))
        oldest = self._at("earliest", list(wanted)) if EARLIEST in wanted.values() else {}
        result = {}
        for queue, offset in wanted.items():
            if offset > newest[queue]:
                text = f"{option} of {queue} is {offset}, but the queue ends at {newest[queue]}"
                raise OptionError(f"{text}: allowed are 0 to {newest[queue]}, -1 (latest) and -2 (earliest)")
            result[queue] = offset if offset >= 0 else oldest[queue] if offset == EARLIEST else newest[queue]
        return result

    def _at_times(self, bound: Bound, wanted: Offsets) -> Offsets:
        places = {queue: self._addresses[queue] for queue in wanted}
        found = patiently(lambda: self._ends.offsets_at(places, wanted), self._patience_s)
        if bound.option.startswith("starting") and self._options.late_start == "error":
            newest = self._at("latest", list(wanted))
            for queue, offset in found.items():
                if offset >= newest[queue]:
                    text = f"{bound.option} of {queue} is {wanted[queue]}, but it has no message of that time or later"
                    raise OptionError(
                        f"{text}: choose an earlier one, or set startingOffsetsByTimestampStrategy to latest"
                    )
        return found

    def _topics(self) -> tuple[str, ...]:
        """Those of the options, or all that match the pattern."""
        if not self._options.pattern:
            return self._options.topics
        if self._clock() - self._matching_at >= TOPICS_AGE_S:
            named = re.compile(self._options.pattern)
            topics = [name for name in self._ends.topics() if named.fullmatch(name) and not _is_own(name)]
            new = sorted(set(topics) - set(self._matching))
            if new and self._matching:
                _log.info("topics that match subscribePattern: %s more: %s", len(new), ", ".join(new[:20]))
            self._matching, self._matching_at = tuple(sorted(topics)), self._clock()
        return self._matching

    def _find_queues(self) -> dict[MessageQueue, str]:
        """What is to be read, with addresses. A topic that only matched is left out when it is gone."""
        if not self._options.pattern:
            return self._assigned(self._ends.queues(self._topics()))
        found: dict[MessageQueue, str] = {}
        for topic in self._topics():
            try:
                found |= self._ends.queues([topic])
            except GantryError as error:
                if error.code is not ErrorCode.TOPIC_NOT_FOUND:
                    raise
        return found

    def _assigned(self, queues: dict[MessageQueue, str]) -> dict[MessageQueue, str]:
        assigned = self._options.assigned
        if not assigned:
            return queues
        there = {(queue.topic, broker, queue.queue_id) for queue in queues for broker in ("", queue.broker)}
        for topic, broker, queue_id in sorted(assigned - there):
            name = f"{topic}/{broker}/{queue_id}" if broker else f"{topic}/{queue_id}"
            have = ", ".join(map(str, sorted(queue for queue in queues if queue.topic == topic)[:8]))
            raise OptionError(f"assign names queue {name}, which does not exist; there is {have} (topic/broker/queue)")

        def chosen(queue: MessageQueue) -> bool:
            return not assigned.isdisjoint([(queue.topic, broker, queue.queue_id) for broker in ("", queue.broker)])

        return {queue: address for queue, address in queues.items() if chosen(queue)}

    def _queues(self) -> list[MessageQueue]:
        for attempt in range(TOPIC_TRIES):
            try:
                self._addresses = patiently(self._find_queues, self._patience_s)
                break
            except GantryError as error:
                if error.code is not ErrorCode.TOPIC_NOT_FOUND:
                    raise
                if attempt == TOPIC_TRIES - 1:
                    raise OptionError(f"topic: {error.text}; create it first, or correct the option") from None
                time.sleep(TOPIC_PAUSE_S)
        return sorted(self._addresses)

    def _queues_again(self) -> dict[MessageQueue, str]:
        try:
            return self._find_queues()
        except GantryError as error:
            if error.code is not ErrorCode.TOPIC_NOT_FOUND or not self._addresses:
                raise
            # A nameserver that was restarted knows no topic until the brokers have registered again.
            raise GantryError(ErrorCode.UNAVAILABLE, error.text) from None

    def _ask_latest(self) -> Offsets:
        def ask() -> Offsets:
            # Routes too: queues and brokers are added while a query runs.
            self._addresses = self._queues_again()
            return self._ends.offsets(self._addresses, RequestCode.GET_MAX_OFFSET)

        found = patiently(ask, self._patience_s)
        self._patience_s = RETRY_FOR_S
        return found

    def _at(self, word: str, queues: list[MessageQueue]) -> Offsets:
        code = RequestCode.GET_MIN_OFFSET if word == "earliest" else RequestCode.GET_MAX_OFFSET

        def ask() -> Offsets:
            try:
                return self._ends.offsets({queue: self._addresses[queue] for queue in queues}, code)
            except GantryError:
                self._addresses = {**self._addresses, **self._queues_again()}
                raise

        found = patiently(ask, self._patience_s)
        self._patience_s = RETRY_FOR_S
        return found
