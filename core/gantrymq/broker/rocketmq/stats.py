"""Rates and counts of topics and groups over a minute, an hour and a day, under RocketMQ's names (BrokerStatsManager).

Nothing is counted per message: stored messages are counted when their queue's units are written (once a second, or every 1,600), read
ones per answer. Every ten seconds a sample of each counter goes into a ring of seven, every ten minutes into one of seven, every
hour into one of 25, as in RocketMQ's StatsItem; a sum is what came since the oldest sample of a ring.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gantrymq.metrics import BYTES, COUNTS, LONG_SECONDS, Histogram
from gantrymq.model import names

if TYPE_CHECKING:
    from gantrymq.net.api import Wheel
    from gantrymq.services import Clock
    from gantrymq.store.queues.consume_queue import ConsumeQueue

SAMPLE_MS: Final = 10_000
SAMPLES_PER_HOUR_STEP: Final = 60
SAMPLES_PER_DAY_STEP: Final = 360
MINUTE_RING: Final = 7
HOUR_RING: Final = 7
DAY_RING: Final = 25
"""Samples in the rings: six steps of ten seconds, six of ten minutes, 24 of an hour."""

ITEMS_MAX: Final = 20_000
"""Counters (topics, and topics with a group): at some 1.5 KiB each 30 MiB; what comes beyond counts in the broker's totals only."""

ITEMS_PER_SLICE: Final = 200
"""Samples taken in one go: some 300 us."""

IDLE_MS_MAX: Final = 24 * 3_600_000
"""A counter that did not move for a day is dropped; so is RocketMQ's."""

TOTAL_RING: Final = 61
"""Samples of the broker's totals: ten minutes, for the third window of putTps."""

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"


BORN_MS: Final = struct.Struct(">40xq")
"""Born time in a record (docs/formats/commitlog.md)."""


class Item:
    """One counter. `value`: what is counted; `times`: how often something was added."""

    __slots__ = ("day", "hour", "made_ms", "minute", "moved_ms", "times", "value")

    def __init__(self, now_ms: int) -> None:
        self.made_ms = now_ms
        self.value = 0
        self.times = 0
        self.moved_ms = now_ms
        self.minute = array("q")
        self.hour = array("q")
        self.day = array("q")

    def add(self, value: int, times: int = 1) -> None:
        """Count."""
        self.value += value
        self.times += times

    def sample(self, ring: array[int], size: int, now_ms: int) -> None:
        """Into one of its rings, which begins with nothing when the counter began."""
        if not ring:
            ring.extend((self.made_ms, 0, 0))
        if ring[-2] != self.value:
            self.moved_ms = now_ms
        ring.extend((now_ms, self.value, self.times))
        if len(ring) > size * 3:
            del ring[:3]

    def since_oldest(self, ring: array[int], now_ms: int) -> tuple[int, float, float]:
        """(sum, per second, average per addition) since the oldest sample of a ring."""
        begin_ms, value, times = ring[:3] if ring else (self.made_ms, 0, 0)
        spent_ms = max(now_ms - begin_ms, SAMPLE_MS)
        total, added = self.value - value, self.times - times
        return total, total * 1000 / spent_ms, total / added if added > 0 else 0.0


class BrokerStats:
    """The counters of one broker. Loop thread."""

    def __init__(self, clock: Clock, cluster: str) -> None:
        self._clock = clock
        self._cluster = cluster
        self._items: dict[tuple[str, str], Item] = {}
        self._of_queue: dict[ConsumeQueue, tuple[Item, Item] | None] = {}
        self._of_group: dict[tuple[str, str], tuple[Item, Item]] = {}
        """Of topic and group, as long as `_items` has them."""
        self._wheel: Wheel | None = None
        self._tick = 0
        self.put_total = 0
        """Messages stored for clients since the start; the append path adds to it once per batch."""
        self.put_bytes = 0
        """Bytes of the records whose queue units were written."""
        self.get_total = 0
        """Messages in answers to pulls and pops."""
        self.get_misses = 0
        """Answers without any."""
        self.answer_messages = Histogram(COUNTS)
        self.answer_bytes = Histogram(BYTES)
        self.born_seconds = Histogram(LONG_SECONDS)
        """From a producer's clock to the answer, of the first message of each answer."""
        self._totals = array("q")
        self._morning: tuple[int, int] = (0, 0)
        self._yesterday: tuple[int, int] = (0, 0)
        self._day = self._day_of(clock.now_ms())

    def __len__(self) -> int:
        """Counters that are kept."""
        return len(self._items)

    # Counting.

    def stored(self, queue: ConsumeQueue, count: int, size: int) -> None:
        """Units of so many records were written for a topic's queue (QueueTable.when_written)."""
        pair = self._of_queue.get(queue)
        if pair is None:
            if queue in self._of_queue:
                return
            pair = self._pair_of(queue.directory.parent.name)
            if len(self._of_queue) >= ITEMS_MAX * 4:
                self._of_queue.clear()
            self._of_queue[queue] = pair
            if pair is None:
                return
        pair[0].add(count, count)
        pair[1].add(size, count)
        self.put_bytes += size

    def _pair_of(self, topic: str) -> tuple[Item, Item] | None:
        if names.is_own_system_topic(topic):
            return None
        nums, size = self._item(TOPIC_PUT_NUMS, topic), self._item(TOPIC_PUT_SIZE, topic)
        return (nums, size) if nums is not None and size is not None else None

    def read_records(
        self, topic: str, group: str, count: int, pieces: Sequence[bytes | memoryview], size: int = -1
    ) -> None:
        """As `read`; `pieces`: the records, the first of which begins the first piece, `size` bytes together (-1: not counted yet)."""
        if size < 0:
            size = sum(map(len, pieces))
        self.read(topic, group, count, size)
        self.answer_messages.observe(count)
        self.answer_bytes.observe(size)
        if len(pieces[0]) >= BORN_MS.size:
            born_ms: int = BORN_MS.unpack_from(pieces[0])[0]
            self.born_seconds.observe(max(self._clock.now_ms() - born_ms, 0) / 1000)

    def read(self, topic: str, group: str, count: int, size: int) -> None:
        """One answer gave `count` messages of a topic to a group."""
        self.get_total += count
        pair = self._of_group.get((topic, group))
        if pair is None:
            key = f"{topic}@{group}"
            nums, sizes = self._item(GROUP_GET_NUMS, key), self._item(GROUP_GET_SIZE, key)
            if nums is None or sizes is None:
                return
            pair = self._of_group[topic, group] = nums, sizes
        pair[0].add(count)
        pair[1].add(size)

    def sent_back(self, topic: str, group: str) -> None:
        """A consumer sent a message back."""
        item = self._item(SNDBCK_PUT_NUMS, f"{topic}@{group}")
        if item is not None:
            item.add(1)

    def _item(self, name: str, key: str) -> Item | None:
        item = self._items.get((name, key))
        if item is None and len(self._items) < ITEMS_MAX:
            item = self._items[name, key] = Item(self._clock.now_ms())
        return item

    def forget_topic(self, topic: str) -> None:
        """A deleted topic has no statistics any more."""
        prefix = topic + "@"
        for name, key in [place for place in self._items if place[1] == topic or place[1].startswith(prefix)]:
            del self._items[name, key]
        self._of_queue.clear()
        self._of_group.clear()

    # Sampling.

    def start(self, wheel: Wheel) -> None:
        """Take samples from now on."""
        self._wheel = wheel
        wheel.call_at(wheel.now_ms() + SAMPLE_MS, self._sample)

    def _sample(self, now_ms: int) -> None:
        self._tick += 1
        wall_ms = self._clock.now_ms()
        self._sample_totals(wall_ms)
        self._slice(iter(list(self._items)), self._tick, wall_ms)
        if self._wheel is not None:
            self._wheel.call_at(now_ms + SAMPLE_MS, self._sample)

    def _slice(self, places: Iterator[tuple[str, str]], tick: int, wall_ms: int) -> None:
        for _ in range(ITEMS_PER_SLICE):
            place = next(places, None)
            if place is None:
                return
            item = self._items.get(place)
            if item is None:  # forgotten meanwhile
                continue
            item.sample(item.minute, MINUTE_RING, wall_ms)
            if tick % SAMPLES_PER_HOUR_STEP == 1:
                item.sample(item.hour, HOUR_RING, wall_ms)
            if tick % SAMPLES_PER_DAY_STEP == 1:
                item.sample(item.day, DAY_RING, wall_ms)
                if wall_ms - item.moved_ms > IDLE_MS_MAX:
                    del self._items[place]
                    self._of_queue.clear()
                    self._of_group.clear()
        if self._wheel is not None:
            self._wheel.call_at(self._wheel.now_ms() + 1, lambda now_ms: self._slice(places, tick, wall_ms))

    def _sample_totals(self, wall_ms: int) -> None:
        totals = self._totals
        if not totals:
            totals.extend((wall_ms - SAMPLE_MS, 0, 0))
        totals.extend((wall_ms, self.put_total, self.get_total))
        if len(totals) > TOTAL_RING * 3:
            del totals[:3]
        day = self._day_of(wall_ms)
        if day != self._day:
            self._day = day
            self._yesterday, self._morning = self._morning, (self.put_total, self.get_total)

    def _day_of(self, wall_ms: int) -> int:
        return wall_ms // 86_400_000

    # Reading.

    def windows(self, of_gets: bool = False) -> tuple[float, float, float]:
        """Messages a second over the last 10 s, 60 s and 600 s (or since the start)."""
        totals = self._totals
        column = 2 if of_gets else 1
        found = []
        for steps in (1, 6, 60):
            at = max(0, len(totals) - 3 * (steps + 1))
            spent_ms = totals[-3] - totals[at] if totals else 0
            found.append((totals[column - 3] - totals[at + column]) * 1000 / spent_ms if spent_ms > 0 else 0.0)
        return found[0], found[1], found[2]

    def days(self, of_gets: bool = False) -> tuple[int, int, int]:
        """Totals now, this morning (0:00 UTC) and yesterday morning."""
        index = int(of_gets)
        return (self.put_total, self.get_total)[index], self._morning[index], self._yesterday[index]

    def tables(self, name: str, count: int) -> Iterator[list[tuple[str, int]]]:
        """(key, value) of all counters of a name, of `count` counters at a time."""
        items, places = self._items, list(self._items)  # of pairs a list would take milliseconds
        for first in range(0, len(places), count):
            yield [
                (place[1], item.value)
                for place in places[first : first + count]
                if place[0] == name and (item := items.get(place)) is not None
            ]

    def rates(self, name: str) -> Iterator[tuple[float, str, int]]:
        """(per second over the last minute, key, value) of all counters of a name."""
        now_ms = self._clock.now_ms()
        items = self._items
        for place in list(items):
            if place[0] == name and (item := items.get(place)) is not None:
                yield item.since_oldest(item.minute, now_ms)[1], place[1], item.value

    def values_of(self, name: str, keys: Iterable[str]) -> dict[str, int]:
        """Value of a counter for each of these keys; 0 for what was not counted."""
        items = self._items
        return {key: item.value if (item := items.get((name, key))) is not None else 0 for key in keys}

    def snapshots(self, name: str, key: str) -> list[tuple[int, float, float]] | None:
        """(sum, per second, average per addition) of minute, hour and day; None for what was not counted."""
        now_ms = self._clock.now_ms()
        if name in (BROKER_PUT_NUMS, BROKER_GET_NUMS) and key == self._cluster:
            total = self.put_total if name == BROKER_PUT_NUMS else self.get_total
            totals, column = self._totals[-MINUTE_RING * 3 :], 1 if name == BROKER_PUT_NUMS else 2
            if not totals:
                return [(total, 0.0, 1.0)] * 3
            count = total - totals[column]
            return [(count, count * 1000 / max(now_ms - totals[0], SAMPLE_MS), 1.0)] * 3
        item = self._items.get((name, key))
        if item is None:
            return None
        return [item.since_oldest(ring, now_ms) for ring in (item.minute, item.hour, item.day)]

    def rate(self, name: str, key: str) -> float:
        """A second, over the last minute; 0 for what was not counted."""
        item = self._items.get((name, key))
        return item.since_oldest(item.minute, self._clock.now_ms())[1] if item is not None else 0.0
