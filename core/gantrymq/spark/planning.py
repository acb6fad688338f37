"""Which offsets a batch reads: what the driver's side of the source decides. Knows the broker, but not Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import RequestCode
from gantrymq.spark.offsets import Offsets, OptionError, cap, lost, resolve
from gantrymq.spark.options import Options
from gantrymq.spark.wire import FIRST_FOR_S, RETRY_FOR_S, Metadata, patiently

_log = logging.getLogger(__name__)

LATEST_AGE_S: Final = 0.1
"""Spark asks an idle source for its end a hundred times a second; the brokers are asked ten times."""

TOPIC_TRIES: Final = 10
TOPIC_PAUSE_S: Final = 0.2
"""A topic that its first message has just created reaches the nameserver a moment later."""


class Ends(Protocol):
    """What a plan needs to know of the cluster (`wire.Metadata`; a fake in tests)."""

    def queues(self, topics: tuple[str, ...]) -> dict[MessageQueue, str]:
        """Queues and their brokers' addresses."""

    def offsets(self, queues: dict[MessageQueue, str], code: RequestCode) -> dict[MessageQueue, int]:
        """Oldest or next offset of each queue."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """One input partition: offsets `start` (inclusive) to `end` (exclusive) of a queue. `address`: its broker's, when this was planned."""

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int
    address: str

    @property
    def queue(self) -> MessageQueue:
        """The queue."""
        return MessageQueue(self.topic, self.broker, self.queue_id)


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

    def batch(self) -> list[QueueRange]:
        """Ranges of a batch query. Raises OptionError for offsets outside the queue, DataLossError for expired ones."""
        queues = self._queues()
        start = self._resolve("startingOffsets", self._options.starting or "earliest", "earliest", queues)
        end = self._resolve("endingOffsets", self._options.ending, "latest", queues)
        for queue in queues:
            if start[queue] > end[queue]:
                text = f"startingOffsets of {queue} is {start[queue]}, but the end is {end[queue]}"
                raise OptionError(f"{text}: allowed is a start at or before the end")
        return self._checked_ranges(start, end)

    def initial(self) -> Offsets:
        """Where a new stream begins; without an option at `latest`, as Spark's Kafka source does."""
        return self._resolve("startingOffsets", self._options.starting or "latest", "earliest", self._queues())

    def freeze(self) -> None:
        """From now on `latest` does not go beyond what is there now (Trigger.AvailableNow)."""
        self._target = self._ask_latest()

    def latest(self, start: Mapping[MessageQueue, int], rows_max: int) -> Offsets:
        """End of the next micro-batch behind `start`; equals `start` if there is nothing new. `rows_max` 0: no limit."""
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
        result = {}
        for queue, offset in begun.items():
            end = ends.get(queue, offset)
            if end < offset:
                if self._options.fail_on_data_loss and self._target is None:
                    raise lost(queue, end, offset - 1, f"the broker ends at offset {end}")
                end = offset
            result[queue] = end
        capped = cap(begun, result, rows_max) if rows_max else result
        # A new queue that gets nothing yet is not written down: its start stays the oldest offset.
        return {queue: offset for queue, offset in capped.items() if queue in start or offset > begun[queue]}

    def newest(self) -> Offsets:
        """The end of every queue as it was last seen, for progress reports."""
        return self._target or self._latest or self._ask_latest()

    def ranges(self, start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[QueueRange]:
        """Ranges of a micro-batch. A queue that `start` does not know begins at its oldest offset."""
        if not self._addresses.keys() >= end.keys():  # a restarted query plans before it asks for the end
            self._queues()
        new = [queue for queue in end if queue not in start]
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
        return result

    def _resolve(self, option: str, wanted: str | Offsets, default: str, queues: list[MessageQueue]) -> Offsets:
        if not isinstance(wanted, str):
            for queue in wanted:
                if queue.topic not in self._options.topics:
                    raise OptionError(f"{option} names topic {queue.topic!r}, which the option topic does not")
        offsets = resolve(option, wanted, default, queues, lambda word: self._at(word, queues))
        if not isinstance(wanted, str):
            newest = self._at("latest", queues)
            for queue, offset in offsets.items():
                if offset > newest[queue]:
                    text = f"{option} of {queue} is {offset}, but the queue ends at {newest[queue]}"
                    raise OptionError(f"{text}: allowed are 0 to {newest[queue]}, -1 (latest) and -2 (earliest)")
        return offsets

    def _queues(self) -> list[MessageQueue]:
        for attempt in range(TOPIC_TRIES):
            try:
                self._addresses = patiently(lambda: self._ends.queues(self._options.topics), self._patience_s)
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
            return self._ends.queues(self._options.topics)
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
